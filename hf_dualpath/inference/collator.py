"""Pairs of token lists as a padded batch."""

import torch


class PairCollator:
    """Pads sources with the pad token and targets with -100, on the right. A mark `teaches` is taken along."""

    def __init__(self, pad_token_id: int):
        self.pad_token_id = pad_token_id

    def __call__(self, examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        sources, targets = ([torch.tensor(example[name]) for example in examples] for name in ("input_ids", "labels"))
        input_ids = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True, padding_value=self.pad_token_id)
        lengths = torch.tensor([len(source) for source in sources])
        batch = {
            "input_ids": input_ids,
            "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long(),
            "labels": torch.nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=-100),
        }
        if "teaches" in examples[0]:
            batch["teaches"] = torch.tensor([example["teaches"] for example in examples])
        return batch
