"""Streams of a sharded set: every pair once an epoch, batches within the limit, and resumption to the pair."""

import json
from dataclasses import replace
from itertools import islice

import pytest
import torch
from datasets import Dataset
from test_trainer import arguments, dual_model, tokenized, weights

from hf_dualpath import DualPathTrainer
from hf_dualpath.errors import DataError
from hf_dualpath.toy import generate_pairs
from hf_dualpath.training.arguments import DataArguments
from hf_dualpath.training.run import train
from hf_dualpath.training.streaming import MaxTokenStream, load_stream


def numbered(count: int = 40, shards: int = 4):
    """Pairs of 2 to 9 tokens; the first token of each is its number."""
    rows = [{"input_ids": [10 + n] * (2 + n % 8), "labels": [10 + n] * (2 + n % 5)} for n in range(count)]
    return Dataset.from_list(rows).to_iterable_dataset(num_shards=shards)


def numbers(batches) -> list[list[int]]:
    return [[pair["labels"][0] - 10 for pair in batch] for batch in batches]


@pytest.mark.parametrize("processes, shards", [(1, 4), (2, 4), (3, 4)])
def test_every_pair_once_an_epoch(processes, shards):
    epochs = [[], []]
    for index in range(processes):
        stream = MaxTokenStream(numbered(shards=shards), None, 24, 7, index, processes, buffer_size=6)
        for batch in stream:
            if stream.place["epoch"] == 2:
                break
            assert max(len(pair["input_ids"]) for pair in batch) * len(batch) <= 24
            epochs[stream.place["epoch"]] += numbers([batch])
    for epoch in epochs:
        assert sorted(number for batch in epoch for number in batch) == list(range(40))
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("taken", [0, 1, 2, 7, 15, 29])
def test_resumes_where_it_was(taken, tmp_path):
    def stream():
        return MaxTokenStream(numbered(), None, 24, 7, buffer_size=6)

    whole = numbers(islice(stream(), 40))
    first = stream()
    seen = numbers(islice(first, taken))
    first.save(tmp_path)
    assert json.loads((tmp_path / "stream_0.json").read_text())["taken"] >= 0
    rest = stream()
    rest.load(tmp_path)
    assert seen + numbers(islice(rest, 40 - taken)) == whole


def write_shards(folder, kind: str) -> DataArguments:
    """Three shards of twelve pairs, two of each with an empty source."""
    for shard in range(3):
        rows = [{"de": "x" * (n % 6), "en": f"{12 * shard + n:02d}" + "y" * (n % 4)} for n in range(12)]
        if kind == "jsonl":
            (folder / f"train-{shard}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        else:
            Dataset.from_list(rows).to_parquet(folder / f"train-{shard}.parquet", batch_size=5)
    names = {"source_language": "de", "target_language": "en"}
    return DataArguments(**names, dataset=str(folder), streaming=True, skip_empty=True)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_resumes_within_shards_of_which_pairs_are_dropped(kind, processes, tmp_path):
    """Several cuts: within a buffer, after one, and epochs later."""
    data = write_shards(tmp_path, kind)

    def letters(columns: dict) -> dict:
        sides = {"input_ids": "source", "labels": "target"}
        return {name: [[*map(ord, text)] for text in columns[side]] for name, side in sides.items()}

    for index in range(processes):

        def stream(index=index):
            return MaxTokenStream(load_stream(data)["train"], letters, 16, 7, index, processes, buffer_size=5)

        whole = list(islice(stream(), 40))
        for taken in (1, 4, 11, 29):
            first = stream()
            seen = list(islice(first, taken))
            first.save(tmp_path / "place")
            rest = stream()
            rest.load(tmp_path / "place")
            assert seen + list(islice(rest, 40 - taken)) == whole


def test_what_needs_all_pairs_is_refused(tmp_path):
    data = write_shards(tmp_path, "jsonl")
    for name, value in {"long_pair_repeats": 2, "plain_source_share": 0.2, "joined_share": 0.1}.items():
        with pytest.raises(DataError, match=f"`{name}` looks at all pairs first"):
            load_stream(replace(data, **{name: value}))


def test_marks_of_a_pair_stay_with_it():
    marked = numbered().map(lambda pair: pair | {"teaches": [pair["labels"][0] % 2 == 0, True]})
    for batch in islice(MaxTokenStream(marked, None, 24, buffer_size=6), 20):
        assert all(pair["teaches"] == [pair["labels"][0] % 2 == 0, True] for pair in batch)


@pytest.mark.parametrize("before, now, index", [(1, 2, 1), (1, 2, 0), (2, 1, 0)])
def test_another_number_of_processes_says_so(before, now, index, tmp_path):
    MaxTokenStream(numbered(), None, 24, num_processes=before).save(tmp_path)
    with pytest.raises(DataError, match="as many processes"):
        MaxTokenStream(numbered(), None, 24, process_index=index, num_processes=now).load(tmp_path)


def test_nothing_left_is_no_endless_loop():
    stream = MaxTokenStream(numbered(), lambda columns: {"input_ids": [], "labels": []}, 24)
    with pytest.raises(DataError, match="No training pair"):
        next(iter(stream))


def trainer(folder, **options) -> DualPathTrainer:
    torch.manual_seed(0)
    stream = tokenized().to_iterable_dataset(num_shards=3)
    return DualPathTrainer(dual_model(dropout=0.1), arguments(folder, **options), train_dataset=stream)


def test_a_training_resumes_bit_identically(tmp_path):
    trainer(tmp_path / "whole", gradient_accumulation_steps=2).train()
    trainer(tmp_path / "cut", gradient_accumulation_steps=2, max_steps=4).train()
    trainer(tmp_path / "cut", gradient_accumulation_steps=2).train(resume_from_checkpoint=True)
    whole, cut = (weights(tmp_path / name / "checkpoint-6") for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_a_stream_needs_max_steps(tmp_path):
    with pytest.raises(ValueError, match="max_steps"):
        trainer(tmp_path, max_steps=-1)


def test_a_recipe_streams_a_folder_of_shards(tmp_path):
    pairs = generate_pairs(90, seed=3, max_words=6)
    (tmp_path / "data").mkdir()
    for shard in range(3):
        rows = [json.dumps({"de": pair.source, "en": pair.target}) for pair in pairs[shard::3]]
        (tmp_path / f"data/train-{shard}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    sizes = "--d_model 16 --ffn_dim 16 --attention_heads 2 --encoder_layers 1 --decoder_layers 1 --vocab_size 300"
    short = "--max_steps 2 --save_steps 2 --eval_strategy no --disable_tqdm true --use_cpu true"
    data = ["--dataset", str(tmp_path / "data"), "--streaming", "true", "--source_language", "de"]
    run = train(
        "toy", [*data, "--target_language", "en", "--output_dir", str(tmp_path / "run"), *f"{sizes} {short}".split()]
    )
    assert run.state.global_step == 2 and (tmp_path / "run/checkpoint-2/stream_0.json").is_file()
