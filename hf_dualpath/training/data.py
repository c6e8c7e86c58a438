"""Sentence pairs from files or datasets, tokenized once and cut into batches of at most so many tokens."""

import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
from datasets import config as datasets_config
from transformers import PreTrainedTokenizerFast

from ..errors import DataError
from ..inference.checkpoints import checkpoint_folder
from ..inference.splitting import replace_surrogates
from ..inference.text import read_lines, read_raw_lines
from ..inference.tokenization import load_tokenizers, train_bpe_tokenizer, train_word_tokenizer
from ..toy import toy_splits
from .arguments import DataArguments


SPLITS = ("train", "validation", "test")
Columns = Mapping[str, Sequence]


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
    """Pairs from one file with both sides. All values are text: `NA` and `7` are words like others."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"There is no file {path}.")
    suffix = next((suffix for suffix in path.suffixes if suffix in READERS), None)
    if suffix is None:
        raise DataError(f"{path} is none of {', '.join(READERS)}; give plain text as a source and a target file.")
    columns = READERS[suffix](path, (source_column, target_column))
    return select_pairs(columns, source_column, target_column, str(path))


def read_tsv(path: Path, names: tuple[str, str]) -> Columns:
    """Tabs separate, and nothing else is special: quotes are text."""
    rows = [(number, line.split("\t")) for number, line in enumerate(read_raw_lines(path), 1) if line]
    return columns_of(rows, names, path)


def read_csv(path: Path, names: tuple[str, str]) -> Columns:
    reader = csv.reader((line + "\n" for line in read_raw_lines(path)), strict=True)
    try:
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}, cannot be read as csv: {error}.") from error
    return columns_of(rows, names, path)


def columns_of(rows: list[tuple[int, list[str]]], names: tuple[str, str], path: Path) -> Columns:
    """Columns of rows with their line numbers; by the names in the first row, or else by numbers from 0 on."""
    if not rows:
        raise DataError(f"{path} is empty.")
    header = rows[0][1]
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(f"{path}, line {line}, has {len(row)} fields, and its first line {len(header)}: mend it.")
    if all(name in header for name in names):
        twice = next((name for name in names if header.count(name) > 1), None)
        if twice is not None:
            raise DataError(f"{path} has more than one column {twice!r}: which is meant cannot be told.")
        rows = rows[1:]
    elif all(name.isdecimal() for name in names):
        header = [str(index) for index in range(len(header))]
    else:
        missing = next(name for name in names if name not in header)
        raise DataError(
            f"{path} has columns {', '.join(header)}, and no column {missing!r}: set `source_column` and "
            "`target_column`, which are numbers (0 and 1) where a file has no line of names."
        )
    return dict(zip(header, zip(*(row for _, row in rows)))) if rows else dict.fromkeys(header, ())


def read_json(path: Path, names: tuple[str, str]) -> Columns:
    """One object a line, or one list of objects. Numbers are kept as they are written."""
    lines = read_raw_lines(path)
    as_list = next((line for line in lines if line.strip()), "").lstrip().startswith("[")
    rows = []
    for number, text in enumerate(["\n".join(lines)] if as_list else lines, 1):
        try:
            found = json.loads(text, parse_int=str, parse_float=str, parse_constant=str) if text.strip() else []
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"{path}, line {number}, cannot be read as json: {error}.") from error
        rows += found if isinstance(found, list) else [found]
    if not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: each line is a JSON object with the two sides, such as {{{names[0]!r}: ...}}.")
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}


def read_parquet(path: Path, names: tuple[str, str]) -> Columns:
    try:
        return pq.read_table(path).to_pydict()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {str(error).splitlines()[0]}") from error


READERS = {".tsv": read_tsv, ".csv": read_csv, ".json": read_json, ".jsonl": read_json, ".parquet": read_parquet}


def select_pairs(columns: Columns, source_column: str, target_column: str, origin: str) -> Dataset:
    """Columns `source` and `target`, from two columns or from a `translation` column."""
    names = {"source": source_column, "target": target_column}
    if "translation" in columns and source_column not in columns:
        pairs = [pair if isinstance(pair, dict) else {} for pair in columns["translation"]]
        columns = {name: [pair.get(name) for pair in pairs] for name in dict.fromkeys(chain(*pairs))}
    for name in names.values():
        if name not in columns:
            raise DataError(f"{origin} has columns {', '.join(columns) or 'of no name'}, and no column {name!r}.")
    return Dataset.from_dict(
        {side: [as_text(value, origin) for value in columns[name]] for side, name in names.items()}
    )


def as_text(value, origin: str) -> str:
    if isinstance(value, (list, dict, bytes)):
        raise DataError(f"{origin} has {type(value).__name__} values where sentences should be.")
    return "" if value is None else replace_surrogates(str(value))


def check_folder(dataset: str):
    """Refuses tables without types: the library guesses numbers, empty values and the place of columns."""
    files = sorted(Path(dataset).rglob("*")) if Path(dataset).is_dir() else []
    table = next((file for file in files if {".csv", ".tsv"}.intersection(file.suffixes)), None)
    if table is not None:
        raise DataError(f"{table}: a `dataset` folder holds .jsonl or .parquet files; give a table as `train_file`.")


def load_pairs(arguments: DataArguments) -> DatasetDict:
    """The splits that the arguments name, each with the columns `source` and `target`."""
    root = Path(arguments.data_dir or ".")
    columns = tuple(
        str(language if column is None else column)  # YAML reads a column 0 as a number
        for column, language in (
            (arguments.source_column, arguments.source_language),
            (arguments.target_column, arguments.target_language),
        )
    )
    splits = DatasetDict()
    if arguments.dataset == "toy":
        splits = toy_splits(arguments.max_train_pairs) if arguments.max_train_pairs else toy_splits()
    elif arguments.dataset is not None:
        if (Path(arguments.dataset) / "dataset_dict.json").is_file():
            found = load_from_disk(arguments.dataset)
        else:
            check_folder(arguments.dataset)
            found = load_dataset(arguments.dataset, arguments.dataset_config)
        for split in SPLITS:
            if split in found:
                table = {name: found[split][name] for name in found[split].column_names}
                splits[split] = select_pairs(table, *columns, f"{arguments.dataset}, {split}")
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
    full = [bool(s.strip() and t.strip()) for s, t in zip(pairs["source"], pairs["target"])]
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
        return load_tokenizers(checkpoint_folder(arguments.tokenizer))
    if train is None:
        raise DataError("Training a tokenizer needs training data.")
    if arguments.tokenizer == "bpe":
        tokenizer = train_bpe_tokenizer(
            (text for side in ("source", "target") for text in train[side]), arguments.vocab_size
        )
        return tokenizer, tokenizer
    return tuple(train_word_tokenizer(train[side], arguments.min_frequency) for side in ("source", "target"))


MARKS = ("teaches",)  # columns of pairs that stay beside their tokens


def pair_encoder(
    source_tokenizer: PreTrainedTokenizerFast,
    target_tokenizer: PreTrainedTokenizerFast,
    max_length: int | None = None,
    max_length_ratio: float | None = None,
) -> Callable[[Mapping[str, list[str]]], dict[str, list[list[int]]]]:
    """Makes columns `input_ids` and `labels` (and `teaches` where the pairs have it) of columns `source` and `target`;
    pairs that are too long or too unequal are left out."""

    def encode(batch):
        marks = [name for name in MARKS if name in batch]
        sources = source_tokenizer(batch["source"])["input_ids"]
        targets = target_tokenizer(batch["target"])["input_ids"]
        kept = [row for row in zip(sources, targets, *(batch[name] for name in marks)) if fits(*map(len, row[:2]))]
        return {name: [row[index] for row in kept] for index, name in enumerate(["input_ids", "labels", *marks])}

    def fits(source: int, target: int) -> bool:
        long, short = max(source, target), min(source, target)
        return (max_length is None or long <= max_length) and (
            max_length_ratio is None or long <= max_length_ratio * short
        )

    return encode


def tokenize_pairs(
    pairs: Dataset,
    source_tokenizer: PreTrainedTokenizerFast,
    target_tokenizer: PreTrainedTokenizerFast,
    max_length: int | None = None,
    max_length_ratio: float | None = None,
    workers: int = 1,
) -> Dataset:
    """The columns of [`pair_encoder`] for all pairs, cached by content."""
    digest = hashlib.sha256(repr((max_length, max_length_ratio)).encode())
    for tokenizer in (source_tokenizer, target_tokenizer):
        digest.update(tokenizer.backend_tokenizer.to_str().encode())
    for side in ("source", "target"):
        for text in pairs[side]:
            raw = text.encode()
            digest.update(len(raw).to_bytes(8, "little") + raw)  # a text may itself hold line breaks
    for name in MARKS:
        if name in pairs.column_names:
            digest.update(np.asarray(pairs[name][:]).tobytes())
    cache = Path(datasets_config.HF_DATASETS_CACHE) / "hf_dualpath"
    cache.mkdir(parents=True, exist_ok=True)
    return pairs.map(
        pair_encoder(source_tokenizer, target_tokenizer, max_length, max_length_ratio),
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
    """Batches of pairs of similar length with at most `max_tokens` tokens on the longer side, padding included.

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
    if not len(dataset):
        return np.zeros(0, dtype=int)  # such a dataset has not even columns
    columns = (dataset.with_format("arrow")[:][name] for name in ("input_ids", "labels"))
    return np.maximum(*(pc.list_value_length(column).to_numpy() for column in columns))
