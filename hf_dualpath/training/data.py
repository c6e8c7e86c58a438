"""Sentence pairs from files or datasets, tokenized once and cut into batches of at most so many tokens."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
from datasets import config as datasets_config
from transformers import PreTrainedTokenizerFast

from ..errors import DataError
from ..inference.text import read_lines
from ..inference.tokenization import load_tokenizers, train_bpe_tokenizer, train_word_tokenizer
from ..toy import toy_splits
from .arguments import DataArguments


SPLITS = ("train", "validation", "test")
LOADERS = {".tsv": "csv", ".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


# --- reading ---------------------------------------------------------------------------------------------------------


def read_text_pairs(source: str | Path, target: str | Path) -> Dataset:
    sides = read_lines(source), read_lines(target)
    if len(sides[0]) != len(sides[1]):
        shorter = min(map(len, sides))
        raise DataError(
            f"The sides are unequal: {source} has {len(sides[0])} lines and {target} {len(sides[1])}; "
            f"line {shorter + 1} has no partner."
        )
    return Dataset.from_dict({"source": sides[0], "target": sides[1]})


def read_table(path: str | Path, source_column: str, target_column: str) -> Dataset:
    path = Path(path)
    if not path.is_file():
        raise DataError(f"There is no file {path}.")
    suffix = next((suffix for suffix in path.suffixes if suffix in LOADERS), None)
    if suffix is None:
        raise DataError(f"{path} is none of {', '.join(LOADERS)}; give plain text as a source and a target file.")
    options = {"delimiter": "\t", "quoting": 3} if suffix == ".tsv" else {}
    try:
        table = load_dataset(LOADERS[suffix], data_files=str(path), split="train", **options)
    except Exception as error:  # the loaders raise many kinds; all mean that the file is not what its name says
        raise DataError(f"{path} cannot be read as {suffix[1:]}: {error.__cause__ or error}") from error
    return select_columns(table, source_column, target_column, str(path))


def select_columns(table: Dataset, source_column: str, target_column: str, origin: str) -> Dataset:
    """Columns `source` and `target`, from two columns or from a `translation` column."""
    if "translation" in table.column_names and source_column not in table.column_names:
        pairs = table["translation"]
        missing = [name for name in (source_column, target_column) if name not in pairs[0]]
        if missing:
            raise DataError(f"{origin}: its translations have {', '.join(pairs[0])}, and no {missing[0]}.")
        return Dataset.from_dict(
            {"source": [pair[source_column] for pair in pairs], "target": [pair[target_column] for pair in pairs]}
        )
    for name in (source_column, target_column):
        if name not in table.column_names:
            raise DataError(f"{origin} has columns {', '.join(table.column_names)}, and no column {name!r}.")
    return Dataset.from_dict({"source": list(table[source_column]), "target": list(table[target_column])})


def load_pairs(arguments: DataArguments) -> DatasetDict:
    """The splits that the arguments name, each with the columns `source` and `target`."""
    root = Path(arguments.data_dir or ".")
    columns = (
        arguments.source_column or arguments.source_language,
        arguments.target_column or arguments.target_language,
    )
    splits = DatasetDict()
    if arguments.dataset == "toy":
        splits = toy_splits(arguments.max_train_pairs) if arguments.max_train_pairs else toy_splits()
    elif arguments.dataset is not None:
        if (Path(arguments.dataset) / "dataset_dict.json").is_file():
            found = load_from_disk(arguments.dataset)
        else:
            found = load_dataset(arguments.dataset, arguments.dataset_config)
        for split in SPLITS:
            if split in found:
                splits[split] = select_columns(found[split], *columns, f"{arguments.dataset}, {split}")
    for split in SPLITS:
        source, target, table = (getattr(arguments, f"{split}_{kind}") for kind in ("source", "target", "file"))
        if bool(source) != bool(target):
            raise DataError(f"Give both `{split}_source` and `{split}_target`, or `{split}_file`.")
        if source:
            splits[split] = read_text_pairs(root / source, root / target)
        elif table:
            splits[split] = read_table(root / table, *columns)
    for split, limit in (("train", arguments.max_train_pairs), ("validation", arguments.max_validation_pairs)):
        if limit is not None and split in splits:
            splits[split] = splits[split].select(range(min(limit, len(splits[split]))))
    for split, pairs in splits.items():
        splits[split] = without_empty(pairs, split, arguments.skip_empty)
    if "train" in splits:
        splits["train"] = repeat_long(splits["train"], arguments.long_pair_words, arguments.long_pair_repeats)
    return splits


def repeat_long(pairs: Dataset, words: int, times: int) -> Dataset:
    """Long pairs so many times, the others once."""
    if times == 1:
        return pairs
    if times < 1:
        raise DataError("`long_pair_repeats` is how often long pairs are shown: at least once.")
    lengths = (min(len(s.split()), len(t.split())) for s, t in zip(pairs["source"], pairs["target"]))
    return pairs.select(
        [index for index, length in enumerate(lengths) for _ in range(times if length >= words else 1)]
    )


def without_empty(pairs: Dataset, split: str, skip: bool) -> Dataset:
    full = [bool(s and s.strip() and t and t.strip()) for s, t in zip(pairs["source"], pairs["target"])]
    if all(full):
        return pairs
    if not skip:
        raise DataError(
            f"Line {full.index(False) + 1} of the {split} data has an empty side: mend it or set `skip_empty`."
        )
    return pairs.select([index for index, is_full in enumerate(full) if is_full])


# --- tokenizing ------------------------------------------------------------------------------------------------------


def make_tokenizers(
    arguments: DataArguments, train: Dataset | None
) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """Source and target tokenizer: trained on the training pairs, or loaded."""
    if arguments.tokenizer not in ("bpe", "word"):
        return load_tokenizers(arguments.tokenizer)
    if train is None:
        raise DataError("Training a tokenizer needs training data.")
    if arguments.tokenizer == "bpe":
        tokenizer = train_bpe_tokenizer(
            (text for side in ("source", "target") for text in train[side]), arguments.vocab_size
        )
        return tokenizer, tokenizer
    return tuple(train_word_tokenizer(train[side], arguments.min_frequency) for side in ("source", "target"))


def tokenize_pairs(
    pairs: Dataset,
    source_tokenizer: PreTrainedTokenizerFast,
    target_tokenizer: PreTrainedTokenizerFast,
    max_length: int | None = None,
    max_length_ratio: float | None = None,
    workers: int = 1,
) -> Dataset:
    """Columns `input_ids` and `labels`, cached by content; pairs that are too long or too unequal are left out."""

    def encode(batch):
        sources = source_tokenizer(batch["source"])["input_ids"]
        targets = target_tokenizer(batch["target"])["input_ids"]
        kept = [(s, t) for s, t in zip(sources, targets) if fits(len(s), len(t))]
        return {"input_ids": [s for s, _ in kept], "labels": [t for _, t in kept]}

    def fits(source: int, target: int) -> bool:
        long, short = max(source, target), min(source, target)
        return (max_length is None or long <= max_length) and (
            max_length_ratio is None or long <= max_length_ratio * short
        )

    digest = hashlib.sha256(repr((max_length, max_length_ratio)).encode())
    for tokenizer in (source_tokenizer, target_tokenizer):
        digest.update(tokenizer.backend_tokenizer.to_str().encode())
    for side in ("source", "target"):
        for text in pairs[side]:
            digest.update(text.encode() + b"\n")
    cache = Path(datasets_config.HF_DATASETS_CACHE) / "hf_dualpath"
    cache.mkdir(parents=True, exist_ok=True)
    return pairs.map(
        encode,
        batched=True,
        remove_columns=pairs.column_names,
        num_proc=workers if workers > 1 else None,
        cache_file_name=str(cache / f"{digest.hexdigest()[:32]}.arrow"),
        load_from_cache_file=True,
        new_fingerprint=digest.hexdigest()[:16],
        desc="Tokenizing",
    )


# --- batches ---------------------------------------------------------------------------------------------------------


class MaxTokenBatchSampler:
    """Batches of pairs of like length with at most `max_tokens` tokens on the longer side, padding included.

    The order is drawn from the seed and the epoch, and the number of batches is the same in every epoch and a multiple
    of `multiple_of` (the number of processes): the last ones are filled up with the first.
    """

    def __init__(
        self, lengths: np.ndarray, max_tokens: int, seed: int = 0, multiple_of: int = 1, shuffle: bool = True
    ):
        self.lengths = np.asarray(lengths)
        if not len(self.lengths):
            raise DataError("No training pair is left after filtering.")
        longest = int(self.lengths.max())
        if longest > max_tokens:
            raise DataError(f"A pair has {longest} tokens, more than the {max_tokens} of a batch: lower `max_length`.")
        self.max_tokens, self.seed, self.multiple_of, self.shuffle = max_tokens, seed, multiple_of, shuffle
        self.epoch = 0
        self.boundaries = self._cut(np.sort(self.lengths))

    def _cut(self, sorted_lengths: np.ndarray) -> list[int]:
        """Where the batches start among the pairs sorted by length."""
        boundaries = [0]
        for index, length in enumerate(sorted_lengths):
            if (index + 1 - boundaries[-1]) * length > self.max_tokens:
                boundaries.append(index)
        return boundaries

    def set_epoch(self, epoch: int):
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.boundaries) // self.multiple_of) * self.multiple_of

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng((self.seed, self.epoch))
        ties = random.random(len(self.lengths)) if self.shuffle else np.arange(len(self.lengths))
        batches = np.split(np.lexsort((ties, self.lengths)), self.boundaries[1:])
        if self.shuffle:
            random.shuffle(batches)
        for index in range(len(self)):
            yield batches[index % len(batches)].tolist()


def pair_lengths(dataset: Dataset) -> np.ndarray:
    """Tokens of the longer side of each pair."""
    columns = (dataset.with_format("arrow")[:][name] for name in ("input_ids", "labels"))
    return np.maximum(*(pc.list_value_length(column).to_numpy() for column in columns))
