"""From a checkpoint to translations: loading, tokenizers, sentence ends, live streams and fast batches."""
