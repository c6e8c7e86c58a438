import io
import json
import os
import select
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import dual_model, fails, run

from hf_dualpath.apps.cli import main
from hf_dualpath.inference.events import SentenceEnd
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
    ends = [event for event in events if event["event"] == "sentence_end"]
    assert [end["source"] for end in ends] == ["Der kleine Hund läuft.", "Die Katze schläft"]
    assert [end["source_span"] for end in ends] == [[0, 4], [4, 7]] and events[-1] == ends[-1]


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
    translator = SimultaneousTranslator.from_pretrained(checkpoint)
    assert lines[0] == translator.translate("Der Hund") and lines[2] == translator.translate("Die Katze")
    assert run(capsys, "translate", "--model", checkpoint, "--file", str(tmp_path / "in.txt")).split("\n") == lines
    run(capsys, "translate", "--model", checkpoint, "--output", str(tmp_path / "text.txt"), "Der Hund")
    assert (tmp_path / "text.txt").read_text(encoding="utf-8").strip() == lines[0]


LINES = ["Der Hund. Die Katze schläft", "", "Dr. Hund läuft. Die", "Der kleine Hund " * 40, "\u200b"]


def file_of(lines, folder) -> str:
    (folder / "lines.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(folder / "lines.txt")


@pytest.mark.parametrize("options", [[], ["--no-sentences"], ["--max-sentence-words", "3"]])
def test_a_file_gives_what_the_stream_gives(checkpoint, capsys, tmp_path, options):
    """Two sentences in a line, abbreviations, and a line that is longer than the model can read."""
    settings = {"splitter": None} if "--no-sentences" in options else {}
    settings |= {"max_sentence_words": 3} if "3" in options else {}
    translator = SimultaneousTranslator.from_pretrained(checkpoint, **settings)
    lines = run(capsys, "translate", "--model", checkpoint, "--file", file_of(LINES, tmp_path), *options).split("\n")
    assert lines == [translator.translate(line) for line in LINES] + [""]


@pytest.mark.parametrize("option", [["--json"], ["--show-path"], ["--wpm", "100000"]])
def test_a_file_as_a_stream(checkpoint, capsys, tmp_path, option):
    translator = SimultaneousTranslator.from_pretrained(checkpoint)
    shown = run(capsys, "translate", "--model", checkpoint, "--file", file_of(LINES, tmp_path), *option)
    words = [word for line in LINES for word in translator.translate(line).split()]
    if option == ["--json"]:
        events = [json.loads(line) for line in shown.splitlines()]
        assert [event["word"] for event in events if event["event"] == "write"] == words
        assert [event["word"] for event in events if event["event"] == "read"] == " ".join(LINES).split()
    elif option == ["--show-path"]:
        assert [line.split()[1] for line in shown.splitlines() if line.startswith(" ")] == words
    else:
        assert shown.split() == words


def test_a_sentence_a_line(checkpoint, capsys):
    shown = run(capsys, "translate", "--model", checkpoint, TEXT)
    stream = SimultaneousTranslator.from_pretrained(checkpoint).stream([TEXT])
    assert shown.splitlines() == [event.target for event in stream if isinstance(event, SentenceEnd)]


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


def test_typing(checkpoint):
    """In a terminal: it says how, reads at each space without Enter, and keeps its words apart from what is typed."""
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "hf_dualpath", "translate", "--model", checkpoint]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = ""

    def wait_for(text: str):
        nonlocal shown
        deadline = time.monotonic() + 60
        while text not in shown and time.monotonic() < deadline:
            if select.select([ours], [], [], 1)[0]:
                shown += os.read(ours, 65536).decode()
        assert text in shown

    wait_for("Ctrl-D ends")
    wait_for("space or Enter")
    time.sleep(0.2)
    shown = ""
    os.write(ours, b"Der klu\x7feine. \x1b[A")  # a mistake mended, and an arrow
    translator = SimultaneousTranslator.from_pretrained(checkpoint)
    words = translator.translate("Der kleine.").split()
    wait_for(words[-1] + "\r\n")
    assert "[A" not in shown
    typed = [line for line in shown.split("\r\n") if not line.startswith(" " * 8)]
    written = [line for line in shown.split("\r\n") if line.startswith(" " * 8)]
    assert "".join(typed).replace("u\b \b", "").split() == ["Der", "kleine."]
    assert " ".join(written).split() == words
    shown = ""
    os.write(ours, "Hünd".encode() + b"\x04")
    wait_for("Hünd\r\n" + " " * 8)
    wait_for(translator.translate("Hünd").split()[-1] + "\r\n")
    assert process.wait(timeout=30) == 0
    os.close(ours)


def test_closed_standard_streams(checkpoint, capsys, monkeypatch):
    command = f'"{sys.executable}" -m hf_dualpath translate --model "{checkpoint}" <&-'
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == "dualpath: Standard input is closed: give TEXT or --file.\n"
    monkeypatch.setattr(sys, "stdout", None)
    assert "Standard output is closed" in fails(capsys, "translate", "--model", checkpoint, "Hallo")


def test_a_closed_standard_error(checkpoint, capsys, monkeypatch, tmp_path):
    (tmp_path / "t.de").write_text("Der Hund\n")
    monkeypatch.setattr(sys, "stderr", None)
    assert run(capsys, "translate", "--model", checkpoint, "--file", str(tmp_path / "t.de")).count("\n") == 1


def test_a_terminal_that_cannot_show_a_letter(monkeypatch, tmp_path):
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    report = tmp_path / "\u6f22\udcff"
    report.mkdir()
    with pytest.raises(SystemExit):
        main(["compare", str(report)])
    print(report.name, flush=True)
    assert screen.buffer.getvalue() == b"??\n"


def test_an_argument_that_is_not_utf8(checkpoint):
    command = [sys.executable, "-m", "hf_dualpath", "translate", "--model", checkpoint, "--json", b"Der H\xffnd"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["word"] for event in events if event["event"] == "read"] == ["Der", "H\ufffdnd"]


def test_half_characters_are_replaced_everywhere(checkpoint, tmp_path, capsys):
    main(["plot-path", "--model", checkpoint, "H\udcffnd", "--translation", "d\udcffg"])
    assert "H <0xEF> <0xBF> <0xBD> nd" in capsys.readouterr().out  # the bytes of U+FFFD, which is a token of no text
    main(["replay", "--model", checkpoint, "H\udcffnd", "--output", str(tmp_path / "r.html")])
    assert "H\ufffdnd" in (tmp_path / "r.html").read_text(encoding="utf-8")


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
        *((["--wpm", speed, "Hallo"], "words per minute") for speed in ("0", "-3", "1e-9", "nan", "inf")),
        (["--batch-size", "-1", "--file", __file__], "at least 1"),
        (["--max-sentence-words", "0", "Hallo"], "at least 1 word"),
        (["--file", "/nowhere.txt"], "no file"),
        (["--colour", "red", "Hallo"], "unrecognized"),
        (["--write-treshold", "0.3", "Hallo"], "did you mean --write-threshold?"),
        ([__file__], f"is a file: give --file {__file__}"),
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
