"""From text pairs to a checkpoint: arguments, data, losses, the trainer, warm starts, recipes and the card."""
