"""Training pairs read as they are needed, for corpora larger than the disk: max-token batches from `datasets` streams.

A process reads its share of the shards, a buffer at a time. It tokenizes the buffer, cuts it into batches of pairs of
similar length, and hands those out in random order. At its end the stream starts again: `max_steps` ends the training.
Where it stands is a few numbers: the place where the buffer began, and how many of its batches were taken.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset, DatasetDict, IterableDataset, load_dataset
from datasets.distributed import split_dataset_by_node

from ..errors import DataError
from .arguments import DataArguments
from .data import MARKS, SPLITS, MaxTokenBatchSampler, as_text, check_folder, load_pairs


BUFFER = 100_000  # pairs that are shuffled and sorted together
NEED_ALL_PAIRS = "long_pair_repeats", "plain_source_share", "joined_share"  # settings
TOKENIZER_SAMPLE = 1_000_000  # pairs that a tokenizer is trained on


class MaxTokenStream(torch.utils.data.IterableDataset):
    r"""
    An endless stream of batches with at most `max_tokens` tokens on the longer side, and its exact place for resuming.

    Args:
        pairs (`datasets.IterableDataset`):
            With the texts `source` and `target`, or with `input_ids` and `labels`; a mark `teaches` is taken along.
            Do not `shuffle` it: the library forgets its shuffle buffer when it resumes. Buffers are shuffled here.
        encode (callable, *optional*): Tokens of a batch of texts, see `pair_encoder`.
        max_tokens (`int`): Tokens of a batch on its longer side.
        seed (`int`, *optional*, defaults to 0): Of the order.
        process_index, num_processes (`int`, *optional*): Which share is read; shards are dealt out where they divide.
        buffer_size (`int`, *optional*): Pairs that are shuffled and sorted together.
    """

    def __init__(
        self,
        pairs: IterableDataset,
        encode: Callable[[dict], dict] | None,
        max_tokens: int,
        seed: int = 0,
        process_index: int = 0,
        num_processes: int = 1,
        buffer_size: int = BUFFER,
    ):
        self.pairs = split_dataset_by_node(pairs, process_index, num_processes)
        self.encode, self.max_tokens, self.buffer_size = encode, max_tokens, buffer_size
        self.seed = (seed, process_index)
        self.name = f"stream_{process_index}.json"
        self.place = {"processes": num_processes, "epoch": 0, "buffer": 0, "start": None, "taken": 0}

    def __iter__(self) -> Iterator[list[dict]]:
        place = self.place
        while True:
            self.pairs.set_epoch(place["epoch"])
            if place["start"] is not None:
                self.pairs.load_state_dict(place["start"])
            rows, found = iter(self.pairs), place["buffer"] > 0
            while buffer := list(islice(rows, self.buffer_size)):
                for batch in self.batches(buffer)[place["taken"] :]:
                    found = True
                    place["taken"] += 1
                    yield batch
                place.update(buffer=place["buffer"] + 1, start=self.pairs.state_dict(), taken=0)
            if not found:
                raise DataError("No training pair is left after filtering.")
            place.update(epoch=place["epoch"] + 1, buffer=0, start=None, taken=0)

    def batches(self, buffer: list[dict]) -> list[list[dict]]:
        columns = {name: [row[name] for row in buffer] for name in buffer[0]}
        tokens = columns if self.encode is None else self.encode(columns)
        names = [name for name in ("input_ids", "labels", *MARKS) if name in tokens]
        pairs = [dict(zip(names, row)) for row in zip(*(tokens[name] for name in names))]
        if not pairs:
            return []
        seed = np.random.SeedSequence([*self.seed, self.place["epoch"], self.place["buffer"]]).generate_state(1)
        lengths = [max(len(pair["input_ids"]), len(pair["labels"])) for pair in pairs]
        sampler = MaxTokenBatchSampler(lengths, self.max_tokens, seed=int(seed[0]))
        return [[pairs[index] for index in batch] for batch in sampler]

    def save(self, folder: str | Path):
        """Writes the place of this process beside a checkpoint."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / self.name).write_text(json.dumps(self.place), encoding="utf-8")

    def load(self, folder: str | Path):
        file = Path(folder) / self.name
        place = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"processes": "other"}
        if place["processes"] != self.place["processes"]:
            raise DataError(
                f"{folder} is of {place['processes']} processes, and here are {self.place['processes']}: "
                "go on with as many processes as the run had before."
            )
        self.place = place


def load_stream(arguments: DataArguments) -> DatasetDict:
    """The splits that the arguments name: `train` as a stream, the others as usual."""
    if arguments.dataset is None:
        raise DataError(
            "`streaming` reads a `dataset`: give its name on the Hub, or a folder of .jsonl or .parquet files."
        )
    for name in NEED_ALL_PAIRS:
        if getattr(arguments, name) != getattr(DataArguments, name):
            raise DataError(
                f"`{name}` looks at all pairs first, and a stream is never read as a whole: leave it at "
                f"{getattr(DataArguments, name)}."
            )
    splits = load_pairs(replace(arguments, dataset=None, max_train_pairs=None))
    check_folder(arguments.dataset)
    found = load_dataset(arguments.dataset, arguments.dataset_config, streaming=True)
    names = (
        arguments.source_column or arguments.source_language,
        arguments.target_column or arguments.target_language,
    )

    def texts(row: dict) -> dict:
        row = row["translation"] if "translation" in row and names[0] not in row else row
        for name in names:
            if name not in row:
                raise DataError(f"{arguments.dataset} has columns {', '.join(row)}, and no column {name!r}.")
        return {side: as_text(row[name], arguments.dataset) for side, name in zip(("source", "target"), names)}

    def is_full(row: dict) -> bool:
        full = bool(row["source"].strip() and row["target"].strip())
        if not full and not arguments.skip_empty:
            raise DataError(f"A pair of {arguments.dataset} has an empty side: mend it or set `skip_empty`.")
        return full

    for split in SPLITS:
        if split in found and split not in splits:
            columns = next(iter(found[split])).keys()
            splits[split] = found[split].map(texts, remove_columns=[*columns]).filter(is_full)
    for split in ("validation", "test"):
        if isinstance(splits.get(split), IterableDataset):
            limit = arguments.max_validation_pairs if split == "validation" else None
            splits[split] = as_dataset(splits[split], limit)
    if arguments.max_train_pairs is not None and "train" in splits:
        splits["train"] = splits["train"].take(arguments.max_train_pairs)
    return splits


def as_dataset(stream: IterableDataset, limit: int | None) -> Dataset:
    """The first so many pairs of a stream, in memory."""
    return Dataset.from_list(list(stream if limit is None else stream.take(limit)))
