"""Whatever a user types or a file holds: one sentence, never a traceback."""

import copy
import gzip
import json
import math
import os
import shutil
from dataclasses import fields

import pytest
import torch
from conftest import fails, main, run, save_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from published import published
from safetensors.torch import load_file, save, save_file

from hf_dualpath import DualPathConfig, SiMTConfig
from hf_dualpath.apps.cli import build_parser
from hf_dualpath.model.dials_dualpath import Dials
from hf_dualpath.model.generation_dualpath import HONOURED
from hf_dualpath.toy import generate_pairs


PAIRS = generate_pairs(40, seed=1, max_words=5)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny checkpoint, a test set, and some broken files."""
    folder = tmp_path_factory.mktemp("fuzz")
    save_model(folder / "model", PAIRS, encoder_layers=1, decoder_layers=1)
    (folder / "model" / "README.md").write_text("card")
    for name, side in (("t.de", "source"), ("t.en", "target")):
        (folder / name).write_text("\n".join(getattr(pair, side) for pair in PAIRS[:2]))
    (folder / "cut.gz").write_bytes(gzip.compress(b"Hallo\n" * 100)[:20])
    (folder / "no.gz").write_bytes(b"Hallo")
    for name in ("empty", "list", "broken"):
        (folder / name).mkdir()
        (folder / name / "report.json").write_text({"empty": "{}", "list": "[1]", "broken": "{"}[name])
    (folder / "far.srt").write_text(f"{'9' * 400}:00:00,000 --> 00:00:02,000\nHallo\n")
    (folder / "wrong.log").write_text("{}\n")
    (folder / "deep.json").write_text("[" * 100_000)
    return folder


def attempt(*arguments: str):
    """Runs a command; anything but an end in a sentence or a number is a failure."""
    try:
        main(list(arguments))
    except SystemExit as stop:
        assert stop.code is None or isinstance(stop.code, (str, int))


@pytest.mark.parametrize(
    "command, message",
    [
        ("evaluate --model model --source cut.gz --target t.en", "not a whole gzip file"),
        ("evaluate --model model --source no.gz --target t.en", "not a whole gzip file"),
        ("translate --model model --file cut.gz", "not a whole gzip file"),
        ("translate --model model --file t.de --batch-size -1", "batch"),
        ("translate --model model --file t.de --batch-size 0", "batch"),
        ("evaluate --model model --source t.de --target t.en --batch-size -1", "batch"),
        ("sweep --model model --source t.de --target t.en --batch-size -1", "batch"),
        ("evaluate --model model --source t.de --target t.en --limit -1", "at least 1"),
        ("sweep --model model --source t.de --target t.en --limit 0", "at least 1"),
        ("translate --model model --device x Hallo", "no device 'x'"),
        ("translate --model model --device meta Hallo", "no device 'meta'"),
        ("translate --model model --file far.srt", "no captions"),
        ("compare empty", "no whole report"),
        ("compare list", "no whole report"),
        ("compare broken", "no whole report"),
        ("compare wrong.log", "not an instance log"),
        ("average model --last 0 --output mean", "at least 1"),
        ("average model --last -3 --output mean", "at least 1"),
        ("average model --last 1 --output mean", "fewer than 1"),
        ("convert marian model model --output new", "not a Marian translator"),
        ("push model me/model/too/long --dry-run --colour", "unrecognized"),
        ("demo --model model --no-browser --port 99999999", "from 1 to 65535"),
        ("demo --model model --no-browser --port 0", "from 1 to 65535"),
        ("convert fairseq model/model.safetensors --config deep.json --output new", "cannot be read as JSON"),
        ("serve --model nowhere --max-characters nan", "numbers above 0"),
        ("serve --model nowhere --idle-seconds inf", "numbers above 0"),
        ("serve --model nowhere --max-streams 0", "numbers above 0"),
        ("serve --model nowhere --max-streams 1000000000000", "at most 100000"),
        ("serve --model nowhere --port 0 --host a\udcff", "no address to serve"),
        ("train toy --output_dir run --max_train_pairs 9 --d_model 30", "`d_model` (30) must be a multiple"),
        ("train toy --output_dir run --max_train_pairs 9 --dropout 2", "`dropout` is a probability"),
        ("train toy --output_dir run --max_train_pairs 9 --encoder_layers 0", "`encoder_layers` is a number"),
        ("train toy --output_dir run --max_train_pairs 9 --max_length 2", "No training pair is left"),
        ("train toy --output_dir run --max_train_pairs 9 --vocab_size 9", "`vocab_size` is at least 260"),
        ("train toy --output_dir run --max_train_pairs 0", "`max_train_pairs` is a number of at least 1"),
        ("train toy --output_dir run --gradient_accumulation_steps 0", "`gradient_accumulation_steps` is a number"),
        ("train toy --output_dir run --save_steps inf", "finite"),
        ("train toy --output_dir run --multipath_k -1", "`multipath_k` is a number of at least 1"),
        ("train toy --output_dir run --label_smoothing_factor 2", "lies in [0, 1)"),
        ("train toy --output_dir run --learning_rate 0", "`learning_rate`"),
        ("train toy --output_dir run --min_frequency -1", "`min_frequency` is a number of at least 1"),
    ],
)
def test_mistakes(command, message, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    assert message in fails(capsys, *command.split())


ABSURD = (-1, 0, 10**12, math.nan, "text", None, [1])


@pytest.fixture(scope="module")
def config(place):
    return json.loads((place / "model" / "config.json").read_text())


def names_of(config) -> list[str]:
    return sorted({item.name for item in fields(config)} - {"forward_config", "backward_config"})


@pytest.mark.parametrize("name", names_of(SiMTConfig))
def test_absurd_values_of_a_direction(name, place, config):
    for value in ABSURD:
        changed = copy.deepcopy(config)
        changed["forward_config"][name] = changed["backward_config"][name] = value
        translate_with(place, changed)


@pytest.mark.parametrize("name", [*names_of(DualPathConfig), "forward_config", "backward_config", "model_type"])
def test_absurd_values_of_a_pair(name, place, config):
    for value in ABSURD:
        translate_with(place, config | {name: value})


def translate_with(place, config: dict):
    whole = (place / "model" / "config.json").read_text()
    try:
        (place / "model" / "config.json").write_text(json.dumps(config))
        attempt("translate", "--model", str(place / "model"), "Ein Hund.")
    finally:
        (place / "model" / "config.json").write_text(whole)


NUMBERS = st.sampled_from(["-1", "0", "1", "2", "0.5", "1e9", "1" + 30 * "0", "nan", "inf", "x", ""])
NAMES = st.sampled_from(
    ["model", "t.de", "t.en", "deep.json", "cut.gz", "empty", "wrong.log", "nowhere", "", ".", "a/b", "\u00e4 b"]
)
# Mostly right, so that commands get far.
MODEL = ("--model", st.one_of(st.just("model"), st.just("model"), NAMES))
DIALS = [(f"--{name}", NUMBERS) for name in ("write-threshold", "min-lag", "max-lag", "wait-k")]
DIRECTION = ("--direction", st.sampled_from(["de-en", "en-de", "fr-en", ""]))
LOADING = [
    ("--dtype", st.sampled_from(["float32", "bfloat16", "float8"])),
    ("--device", st.sampled_from(["cpu", "x"])),
]
SIDES = [("--source", st.just("t.de")), ("--target", st.one_of(st.just("t.en"), NAMES))]
TEST_SET = [*SIDES, ("--limit", NUMBERS), ("--batch-size", NUMBERS)]
OUTPUT = ("--output", st.sampled_from(["out", "out.svg", "out.html", "t.de/x", ""]))
FORMAT = ("--format", st.sampled_from(["text", "jsonl", "srt", "vtt"]))
TEXT = st.sampled_from(["Ein Hund.", "", " ", "\x00", "." * 50, "-", "H\udcffnd"])
COMMANDS = {
    "translate": ([TEXT], [MODEL, DIRECTION, *DIALS, *LOADING, ("--file", NAMES), FORMAT, OUTPUT]),
    "evaluate": ([], [MODEL, DIRECTION, *DIALS, *LOADING, *TEST_SET, ("--alignments", NAMES), OUTPUT]),
    "sweep": (
        [],
        [MODEL, DIRECTION, *LOADING, *TEST_SET, *DIALS[::2], ("--label", NAMES), OUTPUT],
    ),
    "compare": ([NAMES], [("--tolerance", NUMBERS), ("--samples", st.sampled_from(["-1", "0", "2", "x"])), OUTPUT]),
    "plot-path": ([TEXT], [MODEL, DIRECTION, *DIALS, ("--translation", TEXT)]),
    "replay": ([TEXT], [MODEL, DIRECTION, *DIALS, OUTPUT, ("--seconds", NUMBERS)]),
    "average": ([NAMES], [("--last", NUMBERS), OUTPUT]),
    "push": ([NAMES, NAMES], []),
    "convert": (
        [st.sampled_from(["marian", "fairseq", "to-marian", "x"]), NAMES, NAMES],
        [("--config", NAMES), ("--direction", NAMES), OUTPUT],
    ),
    "export": ([], [MODEL, OUTPUT]),
    "demo": ([], [MODEL, ("--port", NUMBERS), ("--policy", NAMES), ("--source-language", NAMES)]),
    "serve": (
        [],
        [(name, NUMBERS) for name in ("--max-streams", "--max-characters", "--idle-seconds", "--max-sentence-words")],
    ),
    "train": ([NAMES], [("--train_file", NAMES), ("--system", NAMES), ("--d_model", NUMBERS), ("--init_from", NAMES)]),
}


# So that nothing is sent, and nothing stays open.
ALWAYS = {
    "push": ["--dry-run"],
    "demo": ["--export-space=space"],
    "serve": ["--model=nowhere"],
}


def test_all_commands_are_tried():
    commands = next(action for action in build_parser()._actions if action.dest == "command")
    assert set(commands.choices) == set(COMMANDS)


@st.composite
def command_lines(draw) -> list[str]:
    name = draw(st.sampled_from(sorted(COMMANDS)))
    positional, options = COMMANDS[name]
    words = [name, *(draw(one) for one in positional)]
    for option, values in (
        draw(st.lists(st.sampled_from(options), max_size=5, unique_by=lambda one: one[0])) if options else ()
    ):
        words += [f"{option}={draw(values)}"]
    words += ALWAYS.get(name, [])
    if name == "train":
        words += ["--output_dir=run", "--max_steps=1", "--use_cpu=true"]
    return words


@given(command_lines())
@settings(
    max_examples=100,
    deadline=None,
    derandomize=not os.environ.get("FUZZ_AT_RANDOM"),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_command_line_ends_in_a_traceback(place, monkeypatch, words):
    monkeypatch.chdir(place)
    attempt(*words)


# --- folders of other people -----------------------------------------------------------------------------------------

GARBAGE = ("{}", "[]", "null", '"text"', "", "{", "\xff", "[" * 100_000)
FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def translate_with_file(place, name: str, content: bytes):
    """Translates with another file in the checkpoint, and puts the old one back."""
    file = place / "model" / name
    before = file.read_bytes()
    try:
        file.write_bytes(content)
        attempt("translate", "--model", str(place / "model"), "Ein Hund.")
    finally:
        file.write_bytes(before)


@pytest.mark.parametrize("name", [*HONOURED, *Dials.names(), "bos_token_id"])
def test_absurd_values_of_a_generation(name, place):
    settings = json.loads((place / "model" / "generation_config.json").read_text())
    for value in (*ABSURD, 10**30, True, {}, [[]]):
        translate_with_file(place, "generation_config.json", json.dumps(settings | {name: value}).encode())


@pytest.mark.parametrize("name", FILES)
def test_garbage_in_a_checkpoint(name, place):
    for text in GARBAGE:
        translate_with_file(place, name, text.encode("latin-1"))


WRONG = {
    "tokenizer_config.json": [
        {"tokenizer_class": 5},
        {"pad_token": 5},
        {"eos_token": None},
        {"eos_token": "not in the vocabulary"},
        {"added_tokens_decoder": {"x": 1}},
        {"model_max_length": "x"},
        {"split_special_tokens": "x"},
    ],
    "tokenizer.json": [{"model": {}}, {"normalizer": {"type": "Replace", "pattern": {"Regex": "("}, "content": ""}}],
    "generation_config.json": [
        {"max_length": "x"},
        {"write_threshold": "x"},
        {"max_lag": "x"},
        {"min_lag": [1]},
        {"no_repeat_ngram_size": "x"},
        {"watermarking_config": {"a": 1}},
    ],
    "config.json": [{"attn_implementation": "somebody/kernel"}, {"num_labels": 10**9}, {"quantization_config": 5}],
}


@pytest.mark.parametrize("name, change", [(name, change) for name, changes in WRONG.items() for change in changes])
def test_wrong_values_in_a_checkpoint(name, change, place):
    settings = json.loads((place / "model" / name).read_text())
    translate_with_file(place, name, json.dumps(settings | change).encode())


def test_tokens_that_the_model_does_not_have(place, capsys):
    settings = json.loads((place / "model" / "tokenizer.json").read_text())
    vocabulary = settings["model"]["vocab"]
    settings["model"]["vocab"] = {token: index + 1000 * (index > 300) for token, index in vocabulary.items()}
    whole = (place / "model" / "tokenizer.json").read_text()
    try:
        (place / "model" / "tokenizer.json").write_text(json.dumps(settings))
        message = fails(capsys, "translate", "--model", str(place / "model"), "Ein Hund.")
    finally:
        (place / "model" / "tokenizer.json").write_text(whole)
    assert "tokenizer has a token" in message


def test_a_kernel_of_the_hub_is_code(place, capsys):
    """transformers would import it where the package `kernels` is installed."""
    settings = json.loads((place / "model" / "config.json").read_text())
    folder = place / "kernel"
    folder.mkdir()
    for change in (
        {"attn_implementation": "kernels-community/x"},
        {"attn_implementation": {"forward_config": "kernels-community/x"}},
    ):
        (folder / "config.json").write_text(json.dumps(settings | change))
        assert "it is not run" in fails(capsys, "translate", "--model", str(folder), "Ein Hund.")


def test_weights_of_a_type_that_is_no_number_to_compute_with(place, capsys, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(place / "model", folder)
    weights = load_file(folder / "model.safetensors")
    for dtype in (torch.float8_e4m3fn, torch.int8, torch.bool):
        changed = {name: tensor.to(dtype) for name, tensor in weights.items()}
        save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
        assert "float" in fails(capsys, "translate", "--model", str(folder), "Ein Hund.").lower()


@pytest.mark.parametrize("damage", [b"", b"\xff" * 100, None], ids=["empty", "noise", "cut"])
def test_damaged_weights(damage, place, capsys, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(place / "model", folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000] if damage is None else damage)
    (tmp_path / "config.json").write_text("{}")
    start = ["--output_dir", str(tmp_path / "run"), "--max_steps", "1", "--init_from", str(folder)]
    start += ["--train_source", str(place / "t.de"), "--train_target", str(place / "t.en")]
    for command in (
        ["translate", "--model", str(folder), "Ein Hund."],
        ["average", str(place / "model"), str(folder), "--output", str(tmp_path / "mean")],
        ["train", "toy", *start],
        ["convert", "fairseq", str(weights), "--config", str(tmp_path / "config.json"), "--output", str(tmp_path)],
    ):
        assert "cut short" in fails(capsys, *command)
    assert not (tmp_path / "mean").exists()


@pytest.mark.parametrize(
    "report, message",
    [
        ({"directions": {"de-en": {"figures": dict.fromkeys(("AL (words)", "BLEU"), "x")}}, "dials": {}}, "report"),
        ({"directions": {"de-en": {"figures": {}}}, "dials": {}}, "report"),
        ({"directions": [1]}, "report"),
    ],
)
def test_reports_of_another_shape(report, message, tmp_path, capsys):
    (tmp_path / "report.json").write_text(json.dumps(report))
    (tmp_path / "sentences.de-en.jsonl").write_text('{"text": 3, "reference": null}\n')
    assert message in fails(capsys, "compare", str(tmp_path))


@pytest.mark.parametrize(
    "text", ["3\n", '{"delays": [1]}\n', "{", "\xff", '{"delays": 3, "prediction": "a"}', "[" * 9999]
)
def test_logs_of_another_shape(text, tmp_path, capsys):
    (tmp_path / "instances.log").write_bytes(text.encode("latin-1"))
    assert "not an instance log" in fails(capsys, "compare", str(tmp_path))


def test_tokens_that_only_the_model_has(place, capsys, tmp_path):
    """Tables are rounded up: what a random model writes of the rest is no word."""
    shutil.copytree(place / "model", tmp_path / "model")
    settings = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    known = {token: index for token, index in settings["model"]["vocab"].items() if index < 260}
    settings["model"] |= {"vocab": known, "merges": []}
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(settings))
    run(capsys, "translate", "--model", str(tmp_path / "model"), " ".join(pair.source for pair in PAIRS))


# --- translators of the Hub ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def marian(tmp_path_factory):
    folder, _ = published("marian", tmp_path_factory.mktemp("marian"))
    return folder


def translate_marian(folder, name: str, content: bytes) -> str | None:
    """Translates with another file in the checkpoint; what was said against it."""
    file = folder / name
    before = file.read_bytes() if file.is_file() else None
    try:
        file.write_bytes(content)
        main(["translate", "--model", str(folder), "Ein Hund."])
    except SystemExit as stop:
        assert isinstance(stop.code, str) and "Traceback" not in stop.code
        return stop.code
    finally:
        file.unlink() if before is None else file.write_bytes(before)
    return None


FIELDS = {
    "config.json": (
        *("d_model", "encoder_layers", "decoder_ffn_dim", "encoder_attention_heads", "max_position_embeddings"),
        *("vocab_size", "pad_token_id", "decoder_start_token_id", "activation_function", "dropout", "dtype"),
    ),
    "generation_config.json": ("eos_token_id", "pad_token_id", "decoder_start_token_id", "no_repeat_ngram_size"),
}


@pytest.mark.parametrize("name, field", [(name, field) for name, fields in FIELDS.items() for field in fields])
def test_absurd_values_of_a_translator_of_the_hub(name, field, marian):
    settings = json.loads((marian / name).read_text())
    found = [
        translate_marian(marian, name, json.dumps(settings | {field: value}).encode())
        for value in (-1, 7, 10**12, math.nan, "text", [1])
    ]
    assert found[-2] is not None, "no field of these is a text"


def test_garbage_in_a_translator_of_the_hub(marian):
    for file in sorted(marian.iterdir()):
        for text in GARBAGE:
            translate_marian(marian, file.name, text.encode("latin-1"))
        translate_marian(marian, file.name, file.read_bytes()[:-9])


def test_a_translator_of_the_hub_whose_weights_are_elsewhere_or_missing(marian):
    weights = marian / "model.safetensors"
    tensors = load_file(weights)
    name = next(name for name in tensors if name.endswith("fc1.weight"))
    rest = save({key: tensor for key, tensor in tensors.items() if key != name}, metadata={"format": "pt"})
    assert f"the first is {name}" in translate_marian(marian, weights.name, rest)
    weights.rename(marian / "other.safetensors")
    try:
        for place in ("weights.bin", "../weights.safetensors"):
            index = json.dumps({"metadata": {}, "weight_map": dict.fromkeys(tensors, place)}).encode()
            assert "same folder" in translate_marian(marian, "model.safetensors.index.json", index)
    finally:
        (marian / "other.safetensors").rename(weights)


def test_converting_a_translator_without_all_weights(marian, tmp_path, capsys):
    shutil.copytree(marian, tmp_path / "marian")
    weights = tmp_path / "marian" / "model.safetensors"
    tensors = load_file(weights)
    tensors.pop("model.encoder.layers.0.fc1.weight")
    save_file(tensors, weights, metadata={"format": "pt"})
    command = ["convert", "marian", *[str(tmp_path / "marian")] * 2, "--output", str(tmp_path / "new")]
    assert "lacks 1 weights" in fails(capsys, *command)
    config = json.loads((marian / "config.json").read_text()) | {"attn_implementation": "kernels-community/x"}
    (tmp_path / "marian" / "config.json").write_text(json.dumps(config))
    assert "it is not run" in fails(capsys, *command)
