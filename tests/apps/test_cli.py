import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import dual_model, fails, run

from hf_dualpath.apps.cli import main
from hf_dualpath.inference.streaming import SimultaneousTranslator
from hf_dualpath.inference.tokenization import save_tokenizers, train_bpe_tokenizer


TEXT = "Der kleine Hund läuft. Die Katze schläft"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = train_bpe_tokenizer([TEXT] * 5, vocab_size=300, show_progress=False)
    torch.manual_seed(0)
    model = dual_model(vocab_size=len(tokenizer)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(1.5 if parameter.dim() > 1 else 1)
    model.save_pretrained(folder)
    save_tokenizers(folder, tokenizer, tokenizer)
    return str(folder)


def test_text(checkpoint, capsys):
    expected = SimultaneousTranslator.from_pretrained(checkpoint, "de-en").translate(TEXT)
    assert run(capsys, "translate", "--model", checkpoint, "--direction", "de-en", TEXT).split() == expected.split()


def test_json_events(checkpoint, capsys):
    events = [
        json.loads(line) for line in run(capsys, "translate", "--model", checkpoint, "--json", TEXT).splitlines()
    ]
    assert [event["word"] for event in events if event["event"] == "read"] == TEXT.split()
    assert all(
        {"source_words_read", "source_tokens_read", "seconds"} < event.keys()
        for event in events
        if event["event"] == "write"
    )


def test_show_path_is_plain_without_a_terminal(checkpoint, capsys):
    lines = run(capsys, "translate", "--model", checkpoint, "--show-path", "--min-lag", "1", "--max-lag", "1", TEXT)
    assert lines.startswith("READ   Der") and "WRITE" in lines and "lag" in lines and "\x1b" not in lines


def test_output_and_files(checkpoint, capsys, tmp_path):
    (tmp_path / "in.txt").write_text("Der Hund\n\nDie Katze\n", encoding="utf-8")
    run(
        capsys,
        "translate",
        "--model",
        checkpoint,
        "--file",
        str(tmp_path / "in.txt"),
        "--output",
        str(tmp_path / "out.txt"),
    )
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").split("\n")
    assert len(lines) == 4 and lines[1] == ""
    translator = SimultaneousTranslator.from_pretrained(checkpoint, is_sentence_end=None)
    assert lines[0] == translator.translate("Der Hund") and lines[2] == translator.translate("Die Katze")
    assert run(capsys, "translate", "--model", checkpoint, "--file", str(tmp_path / "in.txt")).split("\n") == lines
    run(capsys, "translate", "--model", checkpoint, "--output", str(tmp_path / "text.txt"), "Der Hund")
    assert (tmp_path / "text.txt").read_text(encoding="utf-8").strip() == lines[0]


def test_speaking_speed(checkpoint, capsys):
    start = time.perf_counter()
    run(capsys, "translate", "--model", checkpoint, "--wpm", "1200", "Der Hund läuft Die Katze schläft")
    assert time.perf_counter() - start > 6 * 60 / 1200


def test_standard_input(checkpoint, capsys, monkeypatch):
    reader, writer = os.pipe()
    os.write(writer, TEXT.encode())
    os.close(writer)
    with os.fdopen(reader) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        piped = run(capsys, "translate", "--model", checkpoint)
    assert piped.split() == run(capsys, "translate", "--model", checkpoint, TEXT).split()


def live(checkpoint: str, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "hf_dualpath", "translate", "--model", checkpoint, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)


def test_words_come_out_of_a_pipe_while_the_source_is_open(checkpoint):
    process = live(checkpoint, "--json", "--min-lag", "1", "--max-lag", "1")
    process.stdin.write(b"Der kleine Hund ")
    events = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert events[0] == {"event": "read", "word": "Der"}
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode in (0, 130) and b"Traceback" not in err
    assert all(json.loads(line) for line in io.BytesIO(out))


def test_help_teaches(capsys):
    for arguments, words in (
        (["--help"], ("translate", "train", "tail -f")),
        (["translate", "--help"], ("--wpm", "latency")),
    ):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        text = capsys.readouterr().out
        assert stop.value.code == 0 and all(word in text for word in words)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--direction", "fr-en", "Hallo"], "'de-en' and 'en-de'"),
        (["--write-threshold", "7", "Hallo"], "write_threshold"),
        (["--wait-k", "2", "Hallo"], "shared_path policy"),
        (["--wpm", "0", "Hallo"], "words per minute"),
        (["--file", "/nowhere.txt"], "no file"),
        (["--colour", "red", "Hallo"], "unrecognized"),
    ],
)
def test_mistakes_get_one_sentence(checkpoint, capsys, arguments, message):
    assert message in fails(capsys, "translate", "--model", checkpoint, *arguments)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/nowhere", "no checkpoint in /nowhere: give its folder, or a Hub id"),
        ("nowhere", "no checkpoint in nowhere: give its folder, or a Hub id"),
        ("no/where", "no folder no/where, and the Hub gave no such checkpoint"),
        ("", "no config.json in "),
    ],
)
def test_a_missing_checkpoint(capsys, tmp_path, monkeypatch, name, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert message in fails(capsys, "translate", "--model", name or str(tmp_path), "Hallo")
