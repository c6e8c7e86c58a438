"""The service with a real model: over sockets it says what the model says, and a killed process loses nothing."""

import json

import pytest
import torch
from conftest import fails, run, save_model
from serving import Serving, receive, words
from websockets.exceptions import ConnectionClosed

from hf_dualpath.client import RemoteTranslator
from hf_dualpath.inference.events import as_dict
from hf_dualpath.inference.streaming import SimultaneousTranslator
from hf_dualpath.toy import generate_pairs


PAIRS = generate_pairs(60, seed=2, max_words=8)
TEXT = " ".join(pair.source for pair in PAIRS[:4])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    return save_model(tmp_path_factory.mktemp("served"), PAIRS, encoder_layers=1, decoder_layers=1)


@pytest.fixture(scope="module")
def server(checkpoint):
    with Serving([checkpoint]) as running:
        yield running


def test_dials_beyond_all_numbers_kill_no_process(server):
    """A client's mistake is the client's own: the process serves all."""
    restarts = server.metric("dualpath_worker_restarts_total")
    for value in ("1" + 30 * "0", "1e308", "Infinity", "NaN", str(2**63 - 1)):
        with server.socket() as socket:
            socket.send(f'{{"text": "{TEXT} "}}')
            socket.send(f'{{"dials": {{"min_lag": {value}}}}}')
            events = receive(socket, "error")
            assert "min_lag" in events[-1]["message"]
            socket.send('{"end": true}')
            assert words(events + receive(socket), "read") == TEXT.split()
        with server.socket(f"/v1/stream?min_lag={value}") as socket, pytest.raises(ConnectionClosed, match="min_lag"):
            receive(socket)
    assert server.metric("dualpath_worker_restarts_total") == restarts


def timeless(events) -> list[dict]:
    return [{name: value for name, value in as_dict(event).items() if name != "seconds"} for event in events]


@pytest.mark.parametrize("direction, dials", [("de-en", {}), ("en-de", {"write_threshold": 0.3, "max_lag": 2})])
def test_the_same_as_a_model_of_ones_own(server, checkpoint, direction, dials):
    own = SimultaneousTranslator.from_pretrained(checkpoint, direction, **dials)
    remote = RemoteTranslator(server.url, direction, **dials)
    chunks = [word + " " for word in TEXT.split()]
    assert timeless(remote.stream(chunks)) == timeless(own.stream(chunks))
    assert remote.words == own.words and remote.translate(TEXT) == own.translate(TEXT)


def test_an_exported_model_says_the_same(checkpoint, tmp_path):
    """The service of ONNX graphs against a stream of the checkpoint in torch."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from hf_dualpath.inference.export import export_checkpoint

    export_checkpoint(checkpoint, tmp_path / "exported")
    chunks = [word + " " for word in TEXT.split()]
    with Serving([str(tmp_path / "exported")], backend="onnx") as server:
        for direction, dials in (("de-en", {"max_lag": 3}), ("en-de", {})):
            own = SimultaneousTranslator.from_pretrained(checkpoint, direction, **dials)
            remote = RemoteTranslator(server.url, direction, **dials)
            assert timeless(remote.stream(chunks)) == timeless(own.stream(chunks))
            assert remote.words == own.words != []


def test_a_killed_process_loses_nothing(server, checkpoint):
    own = SimultaneousTranslator.from_pretrained(checkpoint)
    expected = [as_dict(event) for event in own.stream([TEXT])]
    name = next(iter(server.service.workers))
    with server.socket() as socket:
        half = TEXT.split()[:7]
        socket.send(" ".join(half) + " ")
        events = receive(socket, "write")
        server.kill_worker(name)
        events += receive(socket, "notice")
        socket.send(" ".join(TEXT.split()[7:]))
        socket.send('{"end": true}')
        events += receive(socket)
    assert words(events) == words(expected) and words(events, "read") == TEXT.split()
    for kind in ("source", "target", "source_span"):
        found = [event[kind] for event in events if event["event"] == "sentence_end"]
        assert found == [
            list(event[kind]) if kind == "source_span" else event[kind]
            for event in expected
            if event["event"] == "sentence_end"
        ]


def test_translate_speaks_to_a_service(server, checkpoint, capsys, tmp_path):
    """The command gives the same with --server as with --model."""
    (tmp_path / "lines.txt").write_text("".join(pair.source + "\n" for pair in PAIRS[:5]), encoding="utf-8")
    lines = [json.dumps({"text": word, "is_final": number % 2 == 0}) for number, word in enumerate(TEXT.split())]
    (tmp_path / "talk.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "talk.srt").write_text(f"1\n00:00:01,000 --> 00:00:09,000\n{TEXT}\n", encoding="utf-8")
    for options in (
        [TEXT],
        ["--file", str(tmp_path / "lines.txt")],
        ["--file", str(tmp_path / "talk.jsonl")],
        ["--file", str(tmp_path / "talk.srt")],
        ["--file", str(tmp_path / "talk.srt"), "--format", "text"],
    ):
        local = run(capsys, "translate", "--model", checkpoint, *options)
        assert run(capsys, "translate", "--server", server.url, *options) == local != ""
    captions = str(tmp_path / "out.vtt")
    run(capsys, "translate", "--server", server.url, "--file", str(tmp_path / "talk.srt"), "--output", captions)
    assert (tmp_path / "out.vtt").read_text(encoding="utf-8").startswith("WEBVTT")


def test_mistakes_get_one_sentence(server, checkpoint, capsys, tmp_path):
    assert "There is no service" in fails(capsys, "translate", "--server", "http://127.0.0.1:1", "Hund")
    assert "there are" in fails(capsys, "translate", "--server", server.url, "--model", "other", "Hund")
    for options in (["--no-sentences"], ["--policy", "wait_k"], ["--backend", "onnx"], ["--device", "cpu"]):
        message = fails(capsys, "translate", "--server", server.url, *options, "Hund")
        assert message.startswith("dualpath: " + options[0]) and "service's choice" in message
    assert "is no dial of this model" in fails(capsys, "translate", "--server", server.url, "--agreement", "9", "Hund")
    assert "give --server" in fails(capsys, "translate", "--model", checkpoint, "--room", "a", "Hund")
    (tmp_path / "x.srt").write_text("no times", encoding="utf-8")
    assert "neither SRT" in fails(capsys, "translate", "--model", checkpoint, "--file", str(tmp_path / "x.srt"))
    assert "not a checkpoint" in fails(capsys, "serve", "--model", str(tmp_path), "--port", "0")
    assert "export.json" in fails(capsys, "serve", "--backend", "onnx")
    port = server.address.split(":")[1]
    assert "another --port" in fails(capsys, "serve", "--model", checkpoint, "--port", port)
