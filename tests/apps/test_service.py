"""The service over real sockets, with a worker that needs no model."""

import asyncio
import json
import random
import re
import socket as sockets
import sys
import time

import pytest
from echo_worker import sentences
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import ECHO, Serving, eventually, receive, words
from websockets.exceptions import ConnectionClosed

from hf_dualpath.apps.service.access import Access
from hf_dualpath.apps.service.limits import Limits
from hf_dualpath.apps.service.protocol import Close
from hf_dualpath.apps.service.workers import Worker
from hf_dualpath.client import RemoteTranslator
from hf_dualpath.inference.events import Read, SentenceEnd, Write


TEXT = "Ich habe heute keine Zeit. Übrigens: ist das 😀 gut? Ja"


@pytest.fixture(scope="module", autouse=True)
def echo():
    patch = pytest.MonkeyPatch()
    patch.setattr(Worker, "command", (sys.executable, ECHO))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def server():
    limits = Limits(characters=1e6, shutdown_seconds=5)
    with Serving(["first", "second"], limits) as running:
        yield running


def closing(socket, timeout=30) -> tuple[int, str]:
    """Why the service closes; 1006 if it could not say."""
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            socket.recv(timeout)
    received = closed.value.rcvd
    return (received.code, received.reason) if received else (1006, "")


# Streams


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_text_may_be_cut_anywhere(server, data):
    """As text or as bytes, even inside a character: the events are the same."""
    raw = TEXT.encode() if data.draw(st.booleans()) else TEXT
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    with server.socket() as socket:
        for start, end in zip([0, *cuts], [*cuts, len(raw)]):
            socket.send(raw[start:end])
        socket.send('{"end": true}')
        events = receive(socket)
        assert closing(socket) == (1000, Close.DONE.reason)
    assert words(events, "read") == TEXT.split() and words(events) == TEXT.upper().split()
    assert [e["source"] for e in events if e["event"] == "sentence_end"] == sentences(TEXT)
    assert events[0]["event"] == "open" and [e["seq"] for e in events[1:]] == list(range(1, len(events)))


def test_a_word_comes_the_moment_it_is_decided(server):
    with server.socket() as socket:
        socket.send("eins zwei ")
        assert words(receive(socket, "write")) == ["EINS"], "before the text goes on"
        socket.send("drei ")
        assert words(receive(socket, "write")) == ["ZWEI"]
        socket.send('{"pause": true}')
        assert words(receive(socket, "sentence_end")) == ["DREI"]


def test_partial_hypotheses_are_not_read(server):
    with server.socket() as socket:
        for text, final in (("Ich ha", False), ("Ich habe", True), ("kei", False), ("keine Zeit.", True)):
            socket.send(json.dumps({"text": text, "is_final": final}))
        socket.send('{"text": "Und", "is_final": false, "end": true}')
        assert words(receive(socket), "read") == ["Ich", "habe", "keine", "Zeit."]


def test_dials_change_from_the_next_sentence_on(server):
    with server.socket("/v1/stream?max_lag=3") as socket:
        socket.send('a b {"not": "a command')
        socket.send('{"dials": {"max_lag": 7}}')
        socket.send(" c. d e.")
        socket.send('{"dials": {"max_lag": null}}')
        socket.send('{"text": " f.", "end": true}')
        assert " ".join(words(receive(socket))) == 'A B {"NOT": "A COMMAND C. D! E.! F.'


@pytest.mark.parametrize(
    "message, reason",
    [
        ('{"dials": {"beams": 3}}', "no dial"),
        ('{"dials": {"max_lag": "x"}}', "number"),
        ('{"dials": {"max_lag": 0}}', "at least 1"),
        ('{"dials": 3}', "dict"),
        ('{"stop": true}', "no 'stop'"),
        ('{"end": 1}', "bool"),
    ],
)
def test_a_mistake_in_a_message_gets_a_sentence_and_the_stream_goes_on(server, message, reason):
    with server.socket() as socket:
        socket.send(message)
        assert reason in receive(socket, "error")[-1]["message"]
        socket.send('{"text": "gut.", "end": true}')
        assert words(receive(socket)) == ["GUT."]


@pytest.mark.parametrize(
    "query, code, reason",
    [
        ("model=third", 4404, "there are first, second"),
        ("direction=de-fr", 4404, "de-en, en-de"),
        ("speed=3", 4400, "no dial"),
        ("max_lag=fast", 4400, "number"),
        ("max_lag=0", 4400, "at least 1"),
        ("after=-1", 4400, "number of an event"),
    ],
)
def test_a_mistake_in_the_address_closes_with_a_sentence(server, query, code, reason):
    with server.socket(f"/v1/stream?{query}") as socket:
        found = closing(socket)
    assert found[0] == code and reason in found[1]


# Going on after a break


@pytest.mark.parametrize("seed", range(6))
def test_a_stream_goes_on_after_any_break(server, seed):
    """A client that loses its connection at any moment, again and again: nothing is lost, nothing comes twice."""
    chance = random.Random(seed)
    inputs = [word + " " for word in TEXT.split()] + ['{"end": true}']
    stream, arrived, events = None, 0, []
    while not events or events[-1]["event"] != "end":
        resumed = f"?stream={stream}&after={len(events)}" if stream else ""
        with server.socket(f"/v1/stream{resumed}") as socket:
            opened = json.loads(socket.recv(30))
            assert stream in (None, opened["stream"])
            stream, arrived = opened["stream"], opened["received"]
            for message in inputs[arrived : arrived + chance.randint(0, 6)]:
                socket.send(message)
            try:
                for _ in range(chance.randint(0, 9)):
                    events.append(json.loads(socket.recv(0.1)))
            except (TimeoutError, ConnectionClosed):
                pass
            if chance.random() < 0.5:
                socket.socket.close()  # without a word
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert words(events, "read") == TEXT.split() and words(events) == TEXT.upper().split()


def test_a_new_connection_takes_over(server):
    with server.socket() as old:
        stream = json.loads(old.recv())["stream"]
        old.send("eins zwei ")
        with server.socket(f"/v1/stream?stream={stream}&after=0") as new:
            assert closing(old)[0] == Close.TAKEN.code
            new.send('{"end": true}')
            assert words(receive(new)) == ["EINS", "ZWEI"]


def test_a_stream_is_kept_for_a_while_only():
    with Serving(["model"], Limits(resume_seconds=1)) as server:
        with server.socket() as socket:
            stream = json.loads(socket.recv())["stream"]
            time.sleep(1.5)
            assert stream in server.service.streams, "a connection is enough to keep it"
        eventually(lambda: not server.service.streams)
        with server.socket(f"/v1/stream?stream={stream}&after=1") as socket:
            assert json.loads(socket.recv())["stream"] != stream, "it is another one, and the client is told"


def test_who_comes_back_too_late_learns_why():
    with Serving(["model"], Limits(idle_seconds=0.3)) as server:
        with server.socket() as socket:
            stream = json.loads(socket.recv())["stream"]
        eventually(lambda: server.service.streams[stream].refusal)
        with server.socket(f"/v1/stream?stream={stream}&after=0") as socket:
            assert closing(socket) == (Close.IDLE.code, Close.IDLE.reason)


def test_missed_events_that_are_gone(server):
    with server.socket() as socket:
        stream = json.loads(socket.recv())["stream"]
    with server.socket(f"/v1/stream?stream={stream}&after=99") as socket:
        assert closing(socket)[0] == Close.TOO_LATE.code


# Whole texts


def test_whole_texts(server):
    before = set(server.service.streams)
    status, answer = server.request("/v1/translate", {"text": TEXT})
    assert status == 200 and json.loads(answer)["text"] == TEXT.upper()
    assert [s["source"] for s in json.loads(answer)["sentences"]] == sentences(TEXT)
    status, answer = server.request("/v1/translate", {"text": TEXT, "stream": True, "dials": {"max_lag": 7}})
    events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: ")]
    assert words(events, "read") == TEXT.split() and words(events)[0] == "ICH!" and events[-1]["event"] == "end"
    assert server.request("/v1/translate", {"text": ""}) == (200, '{"text":"","sentences":[]}')
    eventually(lambda: set(server.service.streams) <= before)


@pytest.mark.parametrize(
    "body, status, reason",
    [
        ({"text": "a", "model": "third"}, 404, "third"),
        ({"text": "a", "dials": {"max_lag": 0}}, 400, "at least 1"),
        ({"text": "a", "dials": {"max_lag": 0}, "stream": True}, 400, "at least 1"),
        ({"text": "a", "dial": {"max_lag": 3}}, 422, "dial"),
        ({"text": "a " * 20_000}, 429, "at most"),
        ({"text": "a" * 100_000}, 413, "at most"),
        ({"texts": "a"}, 422, "text"),
        (b'{"text": "a", "stream": "\\ud800"}', 422, "stream"),
        (b'{"text": "a", "stream": NaN}', 422, "stream"),
        (b"\xff{", 400, ""),
    ],
)
def test_mistakes_of_requests(server, body, status, reason):
    found = server.request("/v1/translate", body)
    assert found[0] == status and reason in found[1] and "Traceback" not in found[1]


# What it says of itself


def test_pages_about_itself(server):
    assert json.loads(server.request("/health")[1]) == {
        "status": "ok",
        "models": {"first": "ready", "second": "ready"},
    }
    assert [model["name"] for model in json.loads(server.request("/v1/models")[1])] == ["first", "second"]
    openapi = json.loads(server.request("/openapi.json")[1])
    assert "/v1/translate" in openapi["paths"] and "/v1/rooms/NAME" in openapi["info"]["description"]
    page = server.request("/docs")[1]
    assert "POST /v1/translate" in page and not re.search(r"(src|href)=\"?https?:", page)
    assert server.request("/assets/../app.py")[0] == 404
    for path in ("/v1/stream", "/v1/rooms/talk"):
        status, answer = server.request(path)
        assert status == 426 and "WebSocket" in answer


def test_metrics(server):
    before = {name: server.metric(name) for name in ("dualpath_words_in_total", "dualpath_words_out_total")}
    delays = server.metric("dualpath_next_word_seconds_count"), server.metric("dualpath_word_delay_seconds_count")
    refused = server.metric("dualpath_refusals_total")
    with server.socket() as socket:
        socket.send("eins zwei drei.")
        socket.send('{"pause": true}')
        receive(socket, "sentence_end")
        assert server.metric("dualpath_open_streams") >= 1 and server.metric("dualpath_queue_words") == 0
    assert all(server.metric(name) == count + 3 for name, count in before.items())
    assert server.metric("dualpath_next_word_seconds_count") == delays[0] + 3
    assert server.metric("dualpath_word_delay_seconds_count") == delays[1] + 3
    server.request("/v1/translate", {"text": "a", "model": "third"})
    assert server.metric("dualpath_refusals_total") == refused + 1


# Faults


def test_clients_that_vanish_send_junk_or_nothing(server):
    """After all of them another client is served as ever."""
    for _ in range(20):
        with server.socket() as client:
            client.send("ein halbes W")
            client.socket.close()
    for junk in (b"\x00" * 5000, b"\xff\xfe\xc3", b"GET / HTTP/1.1\r\n\r\n" * 50):
        raw = sockets.create_connection(server.address.split(":"))
        raw.sendall(junk)
        raw.close()
    silent = [sockets.create_connection(server.address.split(":")) for _ in range(5)]
    with server.socket() as socket:
        for junk in ("\x00\u200b\ud7ff", b"\xc3", b"\xff\xff", "[" * 10_000, "{" * 10_000, "null", "3"):
            socket.send(junk)
        socket.send('{"end": true}')
        receive(socket)
    with server.socket() as socket:
        socket.send("gut.")
        socket.send('{"end": true}')
        assert words(receive(socket)) == ["GUT."]
    for raw in silent:
        raw.close()


def test_ten_megabytes(server):
    with server.socket() as socket:
        try:
            socket.send("a" * 10_000_000)
        except ConnectionClosed:
            pass
        assert closing(socket)[0] in (1009, 1006), "it may still be sending when the service has seen enough"
    try:
        assert server.request("/v1/translate", {"text": "a" * 10_000_000})[0] == 413
    except OSError:
        pass  # the same
    assert server.request("/health")[0] == 200


def test_closed_in_the_middle_of_a_character(server):
    with server.socket() as socket:
        stream = json.loads(socket.recv())["stream"]
        socket.send("Grü".encode()[:-1])
    with server.socket(f"/v1/stream?stream={stream}&after=0") as socket:
        assert json.loads(socket.recv())["received"] == 1
        socket.send("Grü".encode()[-1:] + "ße.".encode())
        socket.send('{"end": true}')
        assert words(receive(socket)) == ["GRÜSSE."]


def test_limits():
    limits = Limits(streams=2, characters=20, waiting_words=50, rooms=1, listeners=1)
    with Serving(["model"], limits) as server:
        with server.socket() as one, server.socket(), server.socket() as third:
            assert closing(third)[0] == Close.FULL.code
            one.send("a" * 300)
            code, reason = closing(one)
            assert code == Close.TOO_FAST.code and "20 characters a second" in reason
        for stream in list(server.service.streams.values()):
            server.loop.call_soon_threadsafe(server.service.drop, stream)
        with server.socket("/v1/rooms/a/captions"), server.socket("/v1/rooms/a/captions") as second:
            assert closing(second)[0] == Close.FULL.code
        with server.socket("/v1/rooms/no%20name") as wrong:
            assert closing(wrong)[0] == Close.BAD_REQUEST.code
    with Serving(["model"], Limits(idle_seconds=0.5)) as server, server.socket() as idle:
        assert closing(idle)[0] == Close.IDLE.code


@pytest.mark.parametrize("message", ['{"pause": true}', '{"text": "Guess", "is_final": false}', '{"dial": 3}'])
def test_messages_without_words_are_counted_too(message):
    with Serving(["model"], Limits(characters=20)) as server, server.socket() as socket:
        for _ in range(200 // len(message) + 2):
            socket.send(message)
        assert closing(socket)[0] == Close.TOO_FAST.code


def test_commands_without_words_do_not_pile_up(server):
    with server.socket() as socket:
        stream = server.service.streams[json.loads(socket.recv())["stream"]]
        for lag in range(1, 101):
            socket.send('{"pause": true}')
            socket.send(f'{{"dials": {{"max_lag": {lag}, "write_threshold": 0.5}}}}')
        socket.send('{"dials": {"max_lag": 7}}')
        eventually(lambda: stream.received == 201)
        assert list(stream.unfinished.items) == [{"pause": True, "dials": {"max_lag": 7, "write_threshold": 0.5}}]
        server.kill_worker("first")  # the other one begins with these
        socket.send('{"text": "gut.", "end": true}')
        assert words(receive(socket)) == ["GUT.!"]


def test_a_slow_client_is_not_waited_for():
    """It takes nothing; others are served meanwhile, and when it looks again it learns why it was let go."""
    limits = Limits(characters=1e9, kept_events=500, waiting_words=10**6)
    with Serving(["model"], limits) as server:
        narrow = sockets.socket()
        narrow.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        host, port = server.address.split(":")
        narrow.connect((host, int(port)))
        with server.socket(sock=narrow, max_queue=1) as slow, server.socket() as other:
            for _ in range(60):
                slow.send("wort " * 100)
            other.send('{"text": "gut.", "end": true}')
            assert words(receive(other)) == ["GUT."]
            eventually(lambda: server.metric("dualpath_refusals_total") == 1, 60)
            assert not [stream for stream in server.service.streams.values() if not stream.feed.over]
            assert closing(slow) == (Close.TOO_SLOW.code, Close.TOO_SLOW.reason)


def test_a_slow_reader_of_a_whole_text_learns_why_it_ends():
    text = "wort " * 19_000
    with Serving(["model"], Limits(kept_events=500, text_characters=100_000)) as server, sockets.socket() as narrow:
        narrow.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        host, port = server.address.split(":")
        narrow.connect((host, int(port)))
        body = json.dumps({"text": text, "stream": True}).encode()
        narrow.sendall(
            f"POST /v1/translate HTTP/1.1\r\nHost: {server.address}\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        streams = server.service.streams.values()
        eventually(lambda: any(reader.stopped.done() for stream in streams for reader in stream.feed.readers))
        answer = b"".join(iter(lambda: narrow.recv(65536), b"")).decode()
        assert answer.startswith("HTTP/1.1 200") and Close.TOO_SLOW.reason in answer.split("event: ")[-1]
        assert server.metric("dualpath_refusals_total") == 1
        # Nobody reads a text that is answered as a whole, however far it gets at once.
        status, answer = server.request("/v1/translate", {"text": text})
        assert status == 200 and json.loads(answer)["text"] == text.strip().upper()


def test_the_token():
    with Serving(["model"], access=Access(token="secret")) as server:
        for token in (None, "wrong", "secretly"):
            with server.socket(token=token) as socket:
                assert closing(socket)[0] == Close.UNAUTHORIZED.code
        assert server.request("/v1/translate", {"text": "a"})[0] == 401
        assert server.request("/v1/translate", {"text": "a"}, authorization="Bearer secret")[0] == 200
        with server.socket(token="secret") as socket:
            assert json.loads(socket.recv())["event"] == "open"
        assert RemoteTranslator(server.url, token="secret").translate("gut.") == "GUT."
        with pytest.raises(OSError, match="bearer token"):
            RemoteTranslator(server.url, token="wrong").translate("gut.")


def test_pages_that_are_allowed_may_connect():
    page = "https://captions.example"
    with Serving(["model"], access=Access(origins=(page,))) as server:
        for path in ("/v1/stream", "/v1/rooms/a", "/v1/rooms/a/captions"):
            with server.socket(path, origin=page) as socket:
                assert json.loads(socket.recv())["event"] == "open"
            with server.socket(path, origin=page + ".evil") as socket:
                assert closing(socket)[0] == Close.FORBIDDEN.code
        assert server.request("/v1/translate", {"text": "a"}, origin=page)[0] == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:1", "null", "http://["])
def test_pages_of_other_sites_may_not_connect(server, origin):
    for path in ("/v1/stream", "/v1/rooms/a", "/v1/rooms/a/captions"):
        with server.socket(path, origin=origin) as socket:
            assert closing(socket)[0] == Close.FORBIDDEN.code
    assert server.request("/v1/translate", {"text": "a"}, origin=origin)[0] == 403


def test_a_name_that_points_here_is_another_site(server):
    """DNS rebinding: the page's name has this machine's address."""
    host = f"evil.example:{server.address.split(':')[1]}"
    assert server.request("/v1/translate", {"text": "a"}, origin=f"http://{host}", host=host)[0] == 403
    with server.socket(origin=server.url) as socket:
        assert json.loads(socket.recv())["event"] == "open"


# The worker


def test_a_worker_dies_and_nothing_is_lost(server):
    """The service says so and starts it again; the other model goes on as if nothing had happened."""
    restarts = server.metric("dualpath_worker_restarts_total")
    with server.socket("/v1/stream?model=first") as socket, server.socket("/v1/stream?model=second") as other:
        socket.send("Erstens. eins zwei ")
        before = receive(socket, "sentence_end") + receive(socket, "write")
        server.kill_worker("first")
        after = receive(socket, "notice")
        assert "starts again" in after[-1]["message"]
        other.send('{"text": "gut.", "end": true}')
        socket.send("drei vier. Viertens.")
        assert words(receive(other)) == ["GUT."]
        socket.send('{"end": true}')
        events = before[1:] + after + receive(socket)
    assert words(events) == "ERSTENS. EINS ZWEI DREI VIER. VIERTENS.".split()
    assert words(events, "read") == "Erstens. eins zwei drei vier. Viertens.".split()
    ends = [event for event in events if event["event"] == "sentence_end"]
    assert [end["source_span"] for end in ends] == [[0, 1], [1, 5], [5, 6]]
    assert [end["target"] for end in ends] == ["ERSTENS.", "EINS ZWEI DREI VIER.", "VIERTENS."]
    assert [event["source_words_read"] for event in events if event["event"] == "write"] == [1, 3, 4, 5, 5, 6]
    assert server.metric("dualpath_worker_restarts_total") == restarts + 1
    eventually(lambda: json.loads(server.request("/health")[1])["status"] == "ok")


def test_a_dial_that_was_refused_is_not_asked_for_again():
    """Neither of the process that takes over, nor of another service."""

    async def talk(server):
        async with RemoteTranslator(server.url).open_async() as stream:
            stream.push("eins ")
            stream.set_dials(max_lag=0)
            stream.push("zwei. ")
            events = aiter(stream)
            while not isinstance(await anext(events), SentenceEnd):
                pass
            server.kill_worker("model")
            stream.push("drei ")
            while not (isinstance(event := await anext(events), Read) and event.word == "drei"):
                pass
            assert "max_lag" not in stream._address()
            stream.finish()
            return [event.word async for event in events if isinstance(event, Write)]

    with Serving(["model"]) as server:
        assert asyncio.run(asyncio.wait_for(talk(server), 60)) == ["DREI"]


@pytest.mark.parametrize("killer", ["CRASH", "HALF"])
def test_a_text_that_kills_the_worker_is_given_up(killer):
    with Serving(["model"], Limits(restarts=1)) as server:
        with server.socket() as other:
            other.send("eins. ")
            receive(other, "sentence_end")
            other.send('{"pause": true}')
            for _ in range(2):
                with server.socket() as socket:
                    socket.send(f"{killer} ")
                    assert closing(socket)[0] == Close.BROKEN.code
            other.send('{"text": "zwei.", "end": true}')
            assert words(receive(other)) == ["ZWEI."], "who had nothing in the model goes on"


def test_a_process_that_cannot_be_had_is_tried_again():
    with Serving(["model"]) as server:
        worker = server.service.workers["model"]
        worker.command = ("/no/such/program",)
        server.kill_worker("model")
        eventually(lambda: server.metric("dualpath_worker_restarts_total") >= 2)
        assert json.loads(server.request("/health")[1]) == {"status": "down", "models": {"model": "restarting"}}
        worker.command = Worker.command
        eventually(lambda: server.request("/health")[0] == 200)
        assert RemoteTranslator(server.url).translate("gut.") == "GUT."


def test_a_model_that_cannot_be_loaded_gets_one_sentence():
    with pytest.raises(ValueError, match="broken cannot be served: There is no checkpoint"):
        Serving(["model", "broken"]).__enter__()


def test_shutdown_finishes_sentences_and_says_so():
    with Serving(["model"], Limits(shutdown_seconds=10)) as server:
        with server.socket() as socket, server.socket("/v1/rooms/a/captions") as listener:
            socket.send("Dieser Satz ist nicht zu En")
            receive(socket, "write")
            server.stop()
            events = receive(socket, "sentence_end")
            assert (
                words(events)[-1] == "EN"
                and "finished" in next(e for e in events if e["event"] == "notice")["message"]
            )
            assert closing(socket) == (Close.SHUTDOWN.code, Close.SHUTDOWN.reason)
            assert closing(listener)[0] == Close.SHUTDOWN.code


# Rooms


def test_a_room(server):
    with server.socket("/v1/rooms/talk/captions") as early, server.socket("/v1/rooms/talk") as speaker:
        early_open = json.loads(early.recv())
        for number in range(20):
            speaker.send(f"Satz {number}. ")
        speaker.send("Und ")
        heard = receive(early, "speaker")
        while words(heard, "read")[-1:] != ["Und"]:
            heard += receive(early, "read")
        assert words(heard)[:4] == ["SATZ", "0.", "SATZ", "1."]
        with server.socket("/v1/rooms/talk/captions") as late, server.socket("/v1/rooms/talk") as second:
            assert closing(second)[0] == Close.TAKEN.code
            speaker.send("Schluss.")
            speaker.send('{"end": true}')
            seen = receive(late)
            assert words(seen)[:2] == ["SATZ", "8."] and words(seen)[-2:] == ["UND", "SCHLUSS."]
        rest = receive(early)
    again = f"/v1/rooms/talk/captions?stream={early_open['stream']}&after={heard[-1]['seq']}"
    with server.socket(again) as back:
        assert receive(back)[1:] == rest, "a listener goes on where it was"
    with server.socket("/v1/rooms/talk") as speaker:
        assert json.loads(speaker.recv())["event"] == "open", "the next speaker"


# The client


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=6))
def test_the_client_does_as_a_translator_does(server, cuts):
    cuts = sorted(cuts)
    translator = RemoteTranslator(server.url, "de-en")
    events = list(translator.stream([TEXT[a:b] for a, b in zip([0, *cuts], [*cuts, len(TEXT)])]))
    assert [event.word for event in events if isinstance(event, Read)] == TEXT.split()
    assert [event.word for event in events if isinstance(event, Write)] == translator.words == TEXT.upper().split()
    assert [event.source for event in events if isinstance(event, SentenceEnd)] == sentences(TEXT)


def test_the_client_by_hand_and_with_asyncio(server):
    with RemoteTranslator(server.url, model="second", max_lag=7).open() as stream:
        stream.push("eins zwei ")
        events = iter(stream)
        assert [next(events).word for _ in range(3)] == ["eins", "zwei", "EINS!"]
        stream.pause()
        assert [next(events).word, next(events).target] == ["ZWEI!", "EINS! ZWEI!"]
        stream.set_dials(max_lag=None)
        stream.push("drei")
        stream.finish()
        assert [event.word for event in events if isinstance(event, Write)] == ["DREI"]

    async def talk():
        async def chunks():
            for word in TEXT.split():
                yield word + " "

        return [event async for event in RemoteTranslator(server.url).astream(chunks())]

    assert [event.word for event in asyncio.run(talk()) if isinstance(event, Write)] == TEXT.upper().split()


def test_the_client_sends_no_faster_than_it_may():
    limits = Limits(characters=5000, waiting_words=60)
    with Serving(["model"], limits) as server:
        text = "wort. " * 1000
        assert RemoteTranslator(server.url).translate(text) == text.upper().strip()


def test_the_client_survives_breaks_and_another_service(server):
    """First its connections are cut; then the service is another one that knows nothing of the stream."""

    async def talk():
        translator = RemoteTranslator(server.url)
        events = []
        async with translator.open_async() as stream:

            async def hear(count):
                async for event in stream:
                    events.append(event)
                    if len(events) >= count:
                        break

            stream.push("Eins zwei drei. Vier fünf ")
            await hear(9)
            for stream_inside in list(server.service.streams.values()):
                for reader in list(stream_inside.feed.readers):
                    server.loop.call_soon_threadsafe(cut, reader)
            stream.push("sechs. Sieben ")
            await hear(14)
            known = stream.id
            server.loop.call_soon_threadsafe(forget, server)
            stream.push("acht neun.")
            stream.finish()
            await hear(10**6)
            return events, known, stream.id

    def cut(reader):
        from hf_dualpath.apps.service.protocol import Refusal

        reader.stop(Refusal(Close.SHUTDOWN))

    def forget(server):
        for stream in list(server.service.streams.values()):
            readers = list(stream.feed.readers)
            server.service.streams.pop(stream.id)
            for reader in readers:
                cut(reader)

    events, before, after = asyncio.run(asyncio.wait_for(talk(), 60))
    text = "Eins zwei drei. Vier fünf sechs. Sieben acht neun."
    assert before != after
    assert [event.word for event in events if isinstance(event, Read)] == text.split()
    assert [event.word for event in events if isinstance(event, Write)] == text.upper().split()
    ends = [event for event in events if isinstance(event, SentenceEnd)]
    assert [end.source_span for end in ends] == [(0, 3), (3, 6), (6, 9)] == [end.target_span for end in ends]


def test_no_service():
    with pytest.raises(OSError, match="There is no service at"):
        RemoteTranslator("http://127.0.0.1:1").translate("gut.")
    with pytest.raises(ValueError, match="no address of a service"):
        RemoteTranslator("ftp://x")
