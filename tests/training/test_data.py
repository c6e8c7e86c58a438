import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_dualpath.errors import DataError
from hf_dualpath.inference.collator import PairCollator
from hf_dualpath.training.arguments import DataArguments
from hf_dualpath.training.data import (
    MaxTokenBatchSampler,
    load_pairs,
    make_tokenizers,
    pair_lengths,
    read_table,
    tokenize_pairs,
)
from hf_dualpath.training.streaming import load_stream


PAIRS = [("Der Hund läuft.", "The dog runs."), ("Die Katze schläft.", "The cat sleeps."), ("Ja.", "Yes.")]


def arguments(tmp_path, **options) -> DataArguments:
    return DataArguments(source_language="de", target_language="en", data_dir=str(tmp_path), **options)


def write_sides(tmp_path, source: str, target: str):
    (tmp_path / "t.de").write_text(source, encoding="utf-8")
    (tmp_path / "t.en").write_text(target, encoding="utf-8")
    return arguments(tmp_path, train_source="t.de", train_target="t.en")


def write_text(tmp_path):
    return write_sides(tmp_path, *("\n".join(side) + "\n" for side in zip(*PAIRS)))


def write_gzip(tmp_path):
    for index, name in enumerate(("t.de.gz", "t.en.gz")):
        (tmp_path / name).write_bytes(gzip.compress("\n".join(pair[index] for pair in PAIRS).encode()))
    return arguments(tmp_path, train_source="t.de.gz", train_target="t.en.gz")


def write_tsv(tmp_path):
    (tmp_path / "t.tsv").write_text("de\ten\n" + "\n".join("\t".join(pair) for pair in PAIRS), encoding="utf-8")
    return arguments(tmp_path, train_file="t.tsv")


def write_csv(tmp_path):
    (tmp_path / "t.csv").write_text("de,en\n" + "\n".join(",".join(pair) for pair in PAIRS), encoding="utf-8")
    return arguments(tmp_path, train_file="t.csv")


def write_jsonl(tmp_path):
    rows = (json.dumps({"translation": {"de": s, "en": t}}) for s, t in PAIRS)
    (tmp_path / "t.jsonl").write_text("\n".join(rows), encoding="utf-8")
    return arguments(tmp_path, train_file="t.jsonl")


def write_parquet(tmp_path):
    Dataset.from_dict({"a": [s for s, _ in PAIRS], "b": [t for _, t in PAIRS]}).to_parquet(tmp_path / "t.parquet")
    return arguments(tmp_path, train_file="t.parquet", source_column="a", target_column="b")


def write_folder(tmp_path):
    rows = [{"de": s, "en": t} for s, t in PAIRS]
    DatasetDict(train=Dataset.from_dict({"translation": rows})).save_to_disk(tmp_path / "set")
    return arguments(tmp_path, dataset=str(tmp_path / "set"))


@pytest.mark.parametrize(
    "write", [write_text, write_gzip, write_tsv, write_csv, write_jsonl, write_parquet, write_folder]
)
def test_every_format(write, tmp_path):
    pairs = load_pairs(write(tmp_path))["train"]
    assert list(zip(pairs["source"], pairs["target"])) == PAIRS


@pytest.mark.parametrize(
    "source, target, message",
    [("a\nb\n", "a\n", "line 2 has no partner"), ("a\n\nc\n", "a\nb\nc\n", "Line 2 .* empty side")],
)
def test_unequal_and_empty(source, target, message, tmp_path):
    with pytest.raises(DataError, match=message):
        load_pairs(write_sides(tmp_path, source, target))


def test_bad_files(tmp_path):
    sides = write_text(tmp_path)
    (tmp_path / "t.de").write_bytes(b"gut\nM\xe4dchen\nja\n")
    with pytest.raises(DataError, match="line 2, is not UTF-8"):
        load_pairs(sides)
    with pytest.raises(DataError, match="There is no file"):
        load_pairs(arguments(tmp_path, train_source="none.de", train_target="t.en"))
    with pytest.raises(DataError, match="both `train_source`"):
        load_pairs(arguments(tmp_path, train_source="t.de"))
    (tmp_path / "t.de.gz").write_bytes(gzip.compress(b"Hallo" * 100)[:20])
    with pytest.raises(DataError, match="gzip"):
        load_pairs(arguments(tmp_path, train_source="t.de.gz", train_target="t.en"))
    write_csv(tmp_path)
    with pytest.raises(DataError, match="no column 'fr'"):
        load_pairs(arguments(tmp_path, train_file="t.csv", target_column="fr"))
    write_jsonl(tmp_path)
    with pytest.raises(DataError, match="no column 'fr'"):
        load_pairs(arguments(tmp_path, train_file="t.jsonl", target_column="fr"))
    (tmp_path / "t.docx").write_text("x")
    with pytest.raises(DataError, match="none of"):
        load_pairs(arguments(tmp_path, train_file="t.docx"))


def pairs_of(path, text: str, **options) -> list[tuple[str, str]]:
    path.write_text(text, encoding="utf-8")
    pairs = load_pairs(arguments(path.parent, train_file=path.name, **options))["train"]
    return list(zip(pairs["source"], pairs["target"]))


@pytest.mark.parametrize("name, comma", [("t.tsv", "\t"), ("t.csv", ",")])
def test_tables_are_text(name, comma, tmp_path):
    rows = [("NA", "null"), ("None", "nan"), ("7", "1.0"), ("N/A", "#N/A")]
    table = "\n".join(comma.join(row) for row in [("de", "en"), *rows]) + "\n"
    assert pairs_of(tmp_path / name, table) == rows
    numbers = "\n".join(comma.join(row) for row in [("de", "en"), ("1", "2"), ("03", "4")])
    assert pairs_of(tmp_path / name, numbers) == [("1", "2"), ("03", "4")]


@pytest.mark.parametrize("name, comma", [("t.tsv", "\t"), ("t.csv", ",")])
def test_rows_of_the_wrong_width(name, comma, tmp_path):
    for row in (("a", "b", "c"), ("a",)):
        table = "\n".join(comma.join(row) for row in [("de", "en"), ("gut", "good"), row, ("ja", "yes")])
        with pytest.raises(DataError, match=f"line 3, has {len(row)} fields, and its first line 2"):
            pairs_of(tmp_path / name, table)


@pytest.mark.parametrize("name, comma", [("t.tsv", "\t"), ("t.csv", ",")])
def test_a_file_without_names(name, comma, tmp_path):
    table = "\n".join(comma.join(("7", *pair)) for pair in PAIRS)
    assert pairs_of(tmp_path / name, table, source_column="1", target_column="2") == PAIRS
    assert pairs_of(tmp_path / name, table, source_column=2, target_column=0)[0] == ("The dog runs.", "7")
    with pytest.raises(DataError, match="no column 'de'.*numbers"):
        pairs_of(tmp_path / name, table)
    with pytest.raises(DataError, match="no column '5'"):
        pairs_of(tmp_path / name, table, source_column="1", target_column="5")


def test_quotes_and_line_breaks(tmp_path):
    assert pairs_of(tmp_path / "t.csv", 'de,en\n"a, b","c\n""d"""\n') == [("a, b", 'c\n"d"')]
    assert pairs_of(tmp_path / "t.tsv", 'de\ten\r\n"a\tb"\r\n') == [('"a', 'b"')]
    with pytest.raises(DataError, match="cannot be read as csv"):
        pairs_of(tmp_path / "t.csv", 'de,en\n"a,b\n')
    with pytest.raises(DataError, match="Line 1 .* empty side"):
        pairs_of(tmp_path / "t.tsv", "de\ten\n\tb\n")
    with pytest.raises(DataError, match="is empty"):
        pairs_of(tmp_path / "t.tsv", "")


def test_numbers_become_text(tmp_path):
    wanted = [("1", "2.50"), ("ja", "yes")]
    lines = '{"de": 1, "en": 2.50}\n{"de": "ja", "en": "yes"}\n'
    assert pairs_of(tmp_path / "t.jsonl", lines) == wanted
    assert pairs_of(tmp_path / "t.json", f"[{lines.strip().replace(chr(10), ',')}]") == wanted
    Dataset.from_dict({"de": [1, 2], "en": [0.5, 3.0]}).to_parquet(tmp_path / "t.parquet")
    pairs = load_pairs(arguments(tmp_path, train_file="t.parquet"))["train"]
    assert list(zip(pairs["source"], pairs["target"])) == [("1", "0.5"), ("2", "3.0")]
    DatasetDict(train=Dataset.from_dict({"de": [1], "en": ["one"]})).save_to_disk(tmp_path / "set")
    pairs = load_pairs(arguments(tmp_path, dataset=str(tmp_path / "set")))["train"]
    assert pairs[0] == {"source": "1", "target": "one"}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_folder_of_tables_without_types_is_refused(streamed, tmp_path):
    """The library would take 7 for a number, `NA` for nothing, and the first of three fields for an index."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.csv").write_text("de,en\nx,gut,good\n")
    load = load_stream if streamed else load_pairs
    with pytest.raises(DataError, match="train.csv: a `dataset` folder holds"):
        load(arguments(tmp_path, dataset=str(tmp_path / "set")))


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("t.jsonl", '{"de": "a", "en": "b"}\n{"de": "a"\n', "line 2, cannot be read as json"),
        ("t.jsonl", "7\n", "JSON object"),
        ("t.jsonl", '{"de": ["a"], "en": "b"}\n', "list values where sentences"),
        ("t.jsonl", '{"de": null, "en": "b"}\n', "empty side"),
        ("t.jsonl", '{"translation": 3}\n', "no column 'de'"),
        ("t.jsonl", "", "no column 'de'"),
        ("t.parquet", "text", "cannot be read as parquet"),
        ("t.tsv", "de\tde\ten\na\tb\tc\n", "more than one column 'de'"),
        ("t.csv", "de,en,en\na,b,c\n", "more than one column 'en'"),
    ],
)
def test_damaged_tables(name, text, message, tmp_path):
    with pytest.raises(DataError, match=message):
        pairs_of(tmp_path / name, text)


def test_two_columns_of_one_name_are_one_sentence(tmp_path):
    columns = [pa.array([text]) for text in "abc"]
    pq.write_table(pa.table(columns, names=["de", "de", "en"]), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="cannot be read as parquet") as error:
        read_table(tmp_path / "t.parquet", "de", "en")
    assert "\n" not in str(error.value)


def test_half_characters_become_a_sign(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"de": "a\\ud800b", "en": "c"}\n')
    assert read_table(tmp_path / "t.jsonl", "de", "en")["source"] == ["a\ufffdb"]


def test_empty_pairs_can_be_skipped(tmp_path):
    sides = write_sides(tmp_path, "a\n\nc\n", "a\nb\nc\n")
    sides.skip_empty = True
    assert load_pairs(sides)["train"]["source"][:] == ["a", "c"]


def test_long_pairs_can_be_repeated(tmp_path):
    sides = write_sides(tmp_path, "a\nb b\nc c c\n", "a\nb b b\nc c\n")
    sides.long_pair_words, sides.long_pair_repeats = 2, 3
    assert load_pairs(sides)["train"]["source"][:] == ["a", *["b b"] * 3, *["c c c"] * 3]
    sides.long_pair_repeats = 0
    with pytest.raises(DataError, match="at least once"):
        load_pairs(sides)


def test_tokenizing_filters_and_caches(tmp_path):
    data = write_sides(tmp_path, "a b c d e f g h\nx\nja ja\n", "a\nx y\nyes yes\n")
    data.tokenizer, data.min_frequency = "word", 1
    pairs = load_pairs(data)["train"]
    tokenizers = make_tokenizers(data, pairs)
    assert tokenizers[0] is not tokenizers[1]
    everything = tokenize_pairs(pairs, *tokenizers)
    assert len(everything) == 3 and everything[1]["labels"][-1] == tokenizers[1].eos_token_id
    assert len(tokenize_pairs(pairs, *tokenizers, max_length_ratio=2.0)) == 2
    assert len(tokenize_pairs(pairs, *tokenizers, max_length=2)) == 0
    again = tokenize_pairs(pairs, *tokenizers)
    assert again.cache_files == everything.cache_files
    assert pair_lengths(everything).tolist() == [9, 3, 3]
    assert tokenize_pairs(pairs, *tokenizers, max_length=100, workers=2)[:] == everything[:]


def test_line_breaks_do_not_confuse_the_cache(tmp_path):
    pairs = [
        Dataset.from_dict({"source": source, "target": ["x", "y"]})
        for source in (["a\nb", "c"], ["a", "b\nc"], ["a", "b c"])
    ]
    tokenizers = make_tokenizers(arguments(tmp_path, tokenizer="word", min_frequency=1), pairs[0])
    sources = [tokenize_pairs(some, *tokenizers)["input_ids"][:] for some in pairs]
    assert [list(map(len, lengths)) for lengths in sources] == [[3, 2], [2, 3], [2, 3]]


def test_collator():
    batch = PairCollator(0)([{"input_ids": [5, 1], "labels": [7, 8, 1]}, {"input_ids": [5, 6, 1], "labels": [1]}])
    assert batch["input_ids"].tolist() == [[5, 1, 0], [5, 6, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["labels"].tolist() == [[7, 8, 1], [1, -100, -100]]


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=80), st.integers(30, 100), st.integers(1, 4), st.integers(0, 9)
)
@settings(max_examples=60, deadline=None)
def test_batches_hold_everything_within_the_limit(lengths, max_tokens, processes, epoch):
    lengths = np.array(lengths)
    sampler = MaxTokenBatchSampler(lengths, max_tokens, seed=3, multiple_of=processes)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(batches) == len(sampler) and len(batches) % processes == 0
    assert all(len(batch) * lengths[batch].max() <= max_tokens for batch in batches)
    assert {index for batch in batches for index in batch} == set(range(len(lengths)))
    assert batches == list(sampler), "the order is a function of seed and epoch"


def test_epochs_and_seeds_differ():
    lengths = np.arange(1, 200) % 20 + 1

    def order(seed, epoch):
        sampler = MaxTokenBatchSampler(lengths, 60, seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0, 0) != order(0, 1) and order(0, 0) != order(1, 0)


def test_too_long_a_pair_for_a_batch():
    with pytest.raises(DataError, match="lower `max_length`"):
        MaxTokenBatchSampler(np.array([5, 80]), 60)
    with pytest.raises(DataError, match="No training pair"):
        MaxTokenBatchSampler(np.array([]), 60)
