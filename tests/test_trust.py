"""A checkpoint is data: none of its Python runs unasked, and publishing one takes nothing from outside it."""

import io
import json
import re
import subprocess
import sys
from argparse import ArgumentParser

import pytest
from conftest import ROOT, fails, run, save_model
from transformers import MarianConfig, MarianMTModel

from hf_dualpath.apps.cli import main
from hf_dualpath.toy import generate_pairs


PAIRS = generate_pairs(60, seed=2, max_words=6)
HOSTILE = """
from pathlib import Path
Path({mark!r}).write_text("ran")
from transformers import PreTrainedConfig, PreTrainedTokenizerFast
class Tokenizer(PreTrainedTokenizerFast):
    pass
class Config(PreTrainedConfig):
    model_type = "hostile"
"""


@pytest.fixture
def mark(tmp_path):
    """What hostile Python leaves behind if it runs."""
    return tmp_path / "it-ran"


def make_hostile(folder, mark, kind: str) -> str:
    """A whole checkpoint that asks for its own Python, for its tokenizer or for its configuration."""
    save_model(folder, PAIRS, encoder_layers=1, decoder_layers=1)
    (folder / "hostile.py").write_text(HOSTILE.format(mark=str(mark)))
    name, change = {
        "tokenizer": ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": [None, "hostile.Tokenizer"]}}),
        "class": (
            "tokenizer_config.json",
            {"auto_map": {"AutoTokenizer": [None, "hostile.Tokenizer"]}, "tokenizer_class": "Tokenizer"},
        ),
        "config": ("config.json", {"auto_map": {"AutoConfig": "hostile.Config"}, "model_type": "hostile"}),
    }[kind]
    settings = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(settings | change))
    return str(folder)


@pytest.fixture(params=["tokenizer", "class", "config"])
def hostile(request, tmp_path, mark, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n1\n" * 9))
    return make_hostile(tmp_path / "hostile", mark, request.param)


def commands(model: str, folder) -> dict[str, list[str]]:
    """Every command that loads a checkpoint."""
    for name, side in (("t.de", "source"), ("t.en", "target")):
        (folder / name).write_text("\n".join(getattr(pair, side) for pair in PAIRS[:3]))
    test = ["--source", str(folder / "t.de"), "--target", str(folder / "t.en"), "--output", str(folder / "out")]
    training = ["--output_dir", str(folder / "run"), "--max_steps", "1"]
    training += ["--train_source", str(folder / "t.de"), "--train_target", str(folder / "t.en")]
    return {
        "translate": ["translate", "--model", model, "Ein Satz."],
        "translate a file": ["translate", "--model", model, "--file", str(folder / "t.de")],
        "evaluate": ["evaluate", "--model", model, *test],
        "sweep": ["sweep", "--model", model, *test],
        "plot-path": ["plot-path", "--model", model, "Ein Satz."],
        "replay": ["replay", "--model", model, "Ein Satz.", "--output", str(folder / "r.svg")],
        "convert": ["convert", "marian", model, model, "--output", str(folder / "new")],
        "start": ["train", "toy", *training, "--init_from", model],
        "tokenizer": ["train", "toy", *training, "--tokenizer", model],
    }


TAKES_THE_FLAG = ("translate", "translate a file", "evaluate", "sweep", "plot-path", "replay")


@pytest.mark.parametrize("command", [*TAKES_THE_FLAG, "convert", "start", "tokenizer"])
def test_no_command_runs_a_checkpoints_python(command, hostile, mark, tmp_path, capsys):
    try:
        main(commands(hostile, tmp_path)[command])
    except SystemExit as stop:
        assert isinstance(stop.code, str)
    assert not mark.exists()


@pytest.mark.parametrize("command", TAKES_THE_FLAG)
def test_with_the_flag_it_runs(command, mark, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    model = make_hostile(tmp_path / "hostile", mark, "class")
    run(capsys, *commands(model, tmp_path)[command], "--trust-remote-code")
    assert mark.read_text() == "ran"


def test_converting_does_not(mark, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n1\n" * 9))
    folder = tmp_path / "marian"
    sizes = dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim"), 1)
    heads = {"encoder_attention_heads": 1, "decoder_attention_heads": 1, "d_model": 8, "vocab_size": 9}
    tokens = {"pad_token_id": 8, "decoder_start_token_id": 8, "eos_token_id": 1, "forced_eos_token_id": 1}
    MarianMTModel(MarianConfig(**sizes, **heads, **tokens)).save_pretrained(folder)
    (folder / "hostile.py").write_text(HOSTILE.format(mark=str(mark)))
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "hostile.Config", "AutoModelForSeq2SeqLM": "hostile.Config"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": [null, "hostile.Tokenizer"]}}')
    assert "Wrote" in run(capsys, "convert", "marian", str(folder), str(folder), "--output", str(tmp_path / "new"))
    assert not mark.exists()


def test_the_demo_does_not(hostile, mark):
    from hf_dualpath.apps.demo import Models

    try:
        Models(hostile)
    except (ValueError, OSError):
        pass
    assert not mark.exists()


def test_the_service_does_not(hostile, mark):
    from hf_dualpath.apps.service.worker import load_pools

    try:
        load_pools(hostile)
    except (ValueError, OSError):
        pass
    assert not mark.exists()


@pytest.mark.parametrize("flag", [[], ["--trust-remote-code"]])
def test_the_simuleval_agent(flag, mark, tmp_path, monkeypatch):
    pytest.importorskip("simuleval", reason="SimulEval is not installed")
    from hf_dualpath.apps.simuleval_agent import DualPathAgent

    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n1\n"))
    parser = ArgumentParser()
    parser.add_argument("--standalone", action="store_true")
    DualPathAgent.add_args(parser)
    arguments = parser.parse_args(["--model", make_hostile(tmp_path / "hostile", mark, "class"), *flag])
    try:
        DualPathAgent(arguments)
    except OSError:
        assert not flag
    assert mark.exists() == bool(flag)


def test_piped_text_is_no_answer(mark, tmp_path):
    model = make_hostile(tmp_path / "hostile", mark, "class")
    command = [sys.executable, "-m", "hf_dualpath", "translate", "--model", model]
    result = subprocess.run(command, input="Satz.\n1\nMehr.\ny\n", capture_output=True, text=True, timeout=60)
    assert not mark.exists() and "Traceback" not in result.stderr


def test_every_auto_call_says_whether_it_trusts():
    for path in [*(ROOT / "hf_dualpath").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]:
        for call in re.findall(r"Auto\w+\.from_pretrained\((?:[^()]|\([^()]*\))*\)", path.read_text()):
            assert "trust_remote_code=" in call, f"{path.name}: {call}"


# --- publishing ------------------------------------------------------------------------------------------------------


@pytest.fixture
def with_links(tmp_path):
    """A checkpoint with links to what is nobody's business, and hidden files."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "tokenizer_key.json").write_text("secret")
    (secrets / "key.json").write_text("secret")
    folder = tmp_path / "checkpoint"
    save_model(folder, PAIRS, encoder_layers=1, decoder_layers=1)
    (folder / "README.md").write_text("card")
    (folder / "linked.json").symlink_to(secrets / "key.json")
    (folder / "notes.md").symlink_to("../secrets/key.json")
    (folder / "linked").symlink_to(secrets)
    (folder / ".env.json").write_text("secret")
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "tokenizer.json").write_text("secret")
    (folder / "inside.md").symlink_to(folder / "README.md")
    return folder


def test_push_takes_nothing_from_outside(with_links, capsys):
    listed = run(capsys, "push", str(with_links), "me/model", "--dry-run")
    names = {line.split()[0] for line in listed.splitlines()[1:]}
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md", "inside.md"} <= names
    assert not names & {"linked.json", "notes.md", "linked/tokenizer_key.json", ".env.json", ".hidden/tokenizer.json"}


def test_what_is_needed_cannot_be_a_link(with_links, capsys):
    (with_links / "model.safetensors").rename(with_links.parent / "elsewhere.safetensors")
    (with_links / "model.safetensors").symlink_to(with_links.parent / "elsewhere.safetensors")
    assert "no weights" in fails(capsys, "push", str(with_links), "me/model", "--dry-run")


def test_average_copies_nothing_from_outside(with_links, tmp_path, capsys):
    run(capsys, "average", str(with_links), str(with_links), "--output", str(tmp_path / "mean"))
    copied = [path for path in (tmp_path / "mean").rglob("*") if path.is_file()]
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= {path.name for path in copied}
    assert not any("secret" in path.read_text(errors="replace") for path in copied if path.suffix != ".safetensors")
    assert not any(path.is_symlink() for path in copied)
