"""A checkpoint is data: none of its Python runs unasked, and publishing one takes nothing from outside it."""

import io
import json
import pickle
import re
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest
from conftest import ROOT, fails, run, save_model
from safetensors.torch import load_file, save_file
from transformers import MarianConfig, MarianMTModel

from hf_dualpath.apps.cli import main
from hf_dualpath.inference.checkpoints import published_files, push
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
        "space": ["demo", "--model", model, "--export-space", str(folder / "space")],
        "long-form": ["evaluate", "--model", model, *test, "--long-form"],
        "policy": ["translate", "--model", model, "--policy", "wait_k", "Ein Satz."],
        "export": ["export", "--model", model, "--output", str(folder / "graphs")],
        "convert": ["convert", "marian", model, model, "--output", str(folder / "new")],
        "convert back": ["convert", "to-marian", model, "--output", str(folder / "new")],
        "start": ["train", "toy", *training, "--init_from", model],
        "tokenizer": ["train", "toy", *training, "--tokenizer", model],
    }


TAKES_THE_FLAG = (
    *("translate", "translate a file", "evaluate", "long-form", "sweep", "plot-path", "replay", "export"),
)


@pytest.mark.parametrize(
    "command", [*TAKES_THE_FLAG, "policy", "space", "convert", "convert back", "start", "tokenizer"]
)
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
    command = ["convert", "marian", str(folder), str(folder), "--output", str(tmp_path / "new")]
    assert "Wrote" in run(capsys, *command)
    assert "`policy` is one of" in fails(capsys, *command, "--policy", "coin")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:99])
    assert "damaged" in fails(capsys, *command)
    weights.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Pickled(mark)))
    assert "damaged" in fails(capsys, *command)
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


def uploaded(folder, monkeypatch) -> set[str]:
    """The names that the Hub's own client would send."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import filter_repo_objects

    sent = {}
    monkeypatch.setattr("hf_dualpath.inference.checkpoints.get_token", lambda: "token")
    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: None)
    monkeypatch.setattr(HfApi, "upload_folder", lambda _, **options: sent.update(options))
    push(folder, "me/model")
    everything = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    return set(filter_repo_objects(everything, allow_patterns=sent["allow_patterns"]))


def test_a_file_name_is_no_pattern(with_links, monkeypatch):
    """The Hub's client takes patterns: a file of the name `*.json` would bring all others along."""
    for name in ("*.json", "?.md", "[k-n]*.json", "*.md"):
        (with_links / name).write_text("{}")
    names = {str(path.relative_to(with_links)) for path in published_files(with_links)}
    assert uploaded(with_links, monkeypatch) == names
    assert "*.json" in names and not names & {"linked.json", "notes.md", ".env.json"}


@pytest.mark.parametrize("name", ["config.json", "README.md"])
def test_what_is_needed_cannot_be_a_link_either(name, with_links, capsys):
    (with_links / name).rename(with_links.parent / name)
    (with_links / name).symlink_to(with_links.parent / name)
    assert f"no {name}" in fails(capsys, "push", str(with_links), "me/model", "--dry-run")


def test_a_folder_called_snapshots_opens_nothing(tmp_path):
    """Files of a Hub cache are links to its blobs, two folders up. Nothing else up there is meant."""
    folder = tmp_path / "snapshots" / "checkpoint"
    folder.mkdir(parents=True)
    for name in ("private/key.json", "blobs/blob"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("{}")
    (folder / "key.json").symlink_to("../../private/key.json")
    (folder / "config.json").symlink_to("../../blobs/blob")
    assert [path.name for path in published_files(folder)] == ["config.json"]


def test_an_average_takes_no_strange_card(with_links, tmp_path, capsys):
    """Only that of the checkpoints' own run; a README beside any two folders is of something else."""
    (tmp_path / "README.md").write_text("# A diary\n\nsecret")
    run(capsys, "average", str(with_links), str(with_links), "--output", str(tmp_path / "mean"))
    (with_links / "README.md").unlink()
    (with_links / "inside.md").unlink()
    run(capsys, "average", str(with_links), str(with_links), "--output", str(tmp_path / "bare"))
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    with_links.rename(run_folder / "checkpoint-1")
    (run_folder / "README.md").symlink_to(tmp_path / "README.md")
    run(capsys, "average", str(run_folder / "checkpoint-1"), "--output", str(tmp_path / "linked"))
    for name in ("mean", "bare", "linked"):
        assert "secret" not in (tmp_path / name / "README.md").read_text()


def test_an_average_of_other_shapes(with_links, tmp_path, capsys):
    """A row added to a whole table would have been a mean, too."""
    other = tmp_path / "other"
    save_model(other, PAIRS, encoder_layers=1, decoder_layers=1)
    weights = {name: tensor[:1].clone() for name, tensor in load_file(other / "model.safetensors").items()}
    save_file(weights, other / "model.safetensors")
    message = fails(capsys, "average", str(with_links), str(other), "--output", str(tmp_path / "mean"))
    assert "only checkpoints of one model" in message and not (tmp_path / "mean").exists()


# --- paths that lead elsewhere ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../secrets", "a/../../secrets", "./..", "owner/name/../.."])
def test_a_hub_id_leads_nowhere_else(name, tmp_path, capsys, monkeypatch):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    message = fails(capsys, "translate", "--model", name, "Hallo")
    assert "no config.json" in message or "no checkpoint" in message or "no such checkpoint" in message


def test_shards_that_lead_elsewhere(mark, tmp_path, capsys):
    """An index may name any file, and the library would unpickle one that is not called .safetensors."""
    folder = tmp_path / "checkpoint"
    save_model(folder, PAIRS, encoder_layers=1, decoder_layers=1)
    names = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for name in ("../key.safetensors", "weights.bin"):
        (folder / name).write_bytes(pickle.dumps(Pickled(mark)))
        index = {"metadata": {}, "weight_map": dict.fromkeys(names, name)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        assert "in the same folder" in fails(capsys, "translate", "--model", str(folder), "Hallo")
    for text in ("[]", "{", '{"weight_map": 3}'):
        (folder / "model.safetensors.index.json").write_text(text)
        assert "no index of weights" in fails(capsys, "translate", "--model", str(folder), "Hallo")
    assert not mark.exists()


# --- pickles ---------------------------------------------------------------------------------------------------------


class Pickled:
    """Runs when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.write_text, (self.mark, "ran")


def test_no_pickle_is_opened(mark, tmp_path, capsys):
    folder = tmp_path / "checkpoint"
    save_model(folder, PAIRS, encoder_layers=1, decoder_layers=1)
    (folder / "README.md").write_text("card")
    (folder / "model.safetensors").unlink()
    pickled = pickle.dumps(Pickled(mark))
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "adapter_model.bin", "tokenizer.model"):
        (folder / name).write_bytes(pickled)
    for name, words in commands(str(folder), tmp_path).items():
        if name not in ("space", "tokenizer"):  # which need no weights
            fails(capsys, *words)
    assert "no weights" in fails(capsys, "push", str(folder), "me/model", "--dry-run")
    assert "no model.safetensors" in fails(capsys, "average", str(folder), "--output", str(tmp_path / "mean"))
    (tmp_path / "fairseq.json").write_text("{}")
    for name in ("state.pt", "state.bin"):
        (tmp_path / name).write_bytes(pickled)
        command = ["convert", "fairseq", str(tmp_path / name), "--config", str(tmp_path / "fairseq.json")]
        assert "tensors" in fails(capsys, *command, "--output", str(tmp_path / "new"))
    assert not mark.exists()


@pytest.mark.parametrize("command", ["export", "evaluate", "long-form"])
@pytest.mark.parametrize("name", ["../../elsewhere/x", "..\\x"])
def test_names_of_languages_lead_nowhere_else(name, command, tmp_path, capsys):
    """They become names of files and folders of what is written about a checkpoint."""
    folder, place = tmp_path / "checkpoint", tmp_path / "place"
    save_model(folder, PAIRS, encoder_layers=1, decoder_layers=1)
    config = json.loads((folder / "config.json").read_text()) | {"source_language": name}
    (folder / "config.json").write_text(json.dumps(config))
    (place / "out" / "sentences...").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    assert "file's name" in fails(capsys, *commands(str(folder), place)[command])
    assert not list((tmp_path / "elsewhere").iterdir())
