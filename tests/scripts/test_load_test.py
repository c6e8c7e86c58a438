"""The load test itself: what it must notice, and a small run that starts a service."""

import asyncio
import json
from argparse import Namespace
from contextlib import asynccontextmanager

import pytest
from load_test import main, measure, talk
from websockets.asyncio.server import serve


@asynccontextmanager
async def service(seconds: float = 0.0, lost: str = ""):
    """Reads a word and writes it, so late; a lost one is not read."""

    async def answer(socket):
        words = 0
        async for message in socket:
            fields = json.loads(message)
            if "end" in fields:
                return
            if fields["text"].strip() != lost:
                words += 1
                await asyncio.sleep(seconds)
                await socket.send(json.dumps({"event": "read"}))
                await socket.send(json.dumps({"event": "write", "source_words_read": words}))

    async with serve(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def measured(**behaviour) -> dict:
    async def run():
        async with service(**behaviour) as url:
            return await measure(url, 20, Namespace(seconds=1.0, wpm=600, direction=None))

    return asyncio.run(run())


def test_a_late_service_does_not_hold():
    """Words take 400 ms, and come every 100: each waits for those before it."""
    row = measured(seconds=0.4)
    assert row["p50_ms"] > 1000 and not row["holds"]


def test_only_words_with_all_streams_open_count():
    """Twenty streams begin within 0.4 seconds, and each says ten words after that."""
    assert measured()["words_out"] in range(180, 221)


def test_lost_words_are_noticed():
    with pytest.raises(AssertionError, match="1 words were lost"):
        measured(lost=talk(3, 1)[0])


@pytest.mark.slow
def test_a_few_streams_and_a_short_soak(tmp_path):
    row = main(["--streams", "3", "--seconds", "4", "--output", str(tmp_path / "load.json")])
    assert row["streams"] == 3 and row["words_out"] > 10 and row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
    soaked = main(["--soak", "--streams", "2", "--words", "60"])
    assert soaked["words_in"] == 120 and soaked["memory_mb"]["end"] > 50
    assert talk(0, 50) != talk(1, 50) and len(talk(0, 50)) == 50
