"""How many live streams a service holds: real sockets on this machine, for a bounded time.

    python scripts/load_test.py                                     # how many streams at 150 words a minute hold
    python scripts/load_test.py --streams 200 --seconds 60          # one number of streams
    python scripts/load_test.py --soak --streams 50 --words 9000    # an hour of talk each, as fast as it holds; memory

It starts `dualpath serve` itself unless --server names one. The delay of a target word is the time from when the last
source word that it waited for was due to when it is received: a service that is late with taking words gets no credit
for it. Only words that were due while all streams were open count. Streams hold if the 95th percentile stays under
300 ms.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from statistics import quantiles
from urllib.parse import urlencode

from websockets.asyncio.client import connect

from hf_dualpath.toy import generate_pairs


try:
    from uvloop import run  # the clients share the machine with what they measure
except ImportError:
    from asyncio import run

TARGET = 0.3  # seconds
STARTS = 50  # streams that begin in a second


@cache
def sentences() -> list[str]:
    return [pair.source for pair in generate_pairs(2000, max_words=14)]


def talk(number: int, words: int) -> list[str]:
    """So many words; each stream begins at another sentence."""
    found: list[str] = []
    for place in count(37 * number):
        found += sentences()[place % len(sentences())].split()
        if len(found) >= words:
            return found[:words]


@contextmanager
def service(arguments: argparse.Namespace):
    """The address of a service, and the ids of its processes if it is our own."""
    if arguments.server:
        yield arguments.server, []
        return
    command = [sys.executable, "-m", "hf_dualpath", "serve", "--port", "0", "--backend", arguments.backend]
    command += ["--max-characters", "1000000", "--max-streams", "5000"]
    command += ["--model", arguments.model] if arguments.model else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            sys.exit(f"The service did not start: {line}")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield found[0], [process.pid, *map(int, children)]
    finally:
        process.terminate()
        process.wait(30)


def address(url: str, arguments: argparse.Namespace) -> str:
    query = urlencode({"direction": arguments.direction} if arguments.direction else {})
    return f"{url.replace('http', 'ws', 1)}/v1/stream?{query}"


async def speak(url: str, number: int, start: float, full: float, arguments: argparse.Namespace) -> list[float]:
    """One speaker, who begins at `start`; returns the delays of all target words from `full` on."""
    pause = 60 / arguments.wpm
    words = talk(number, int((full - start + arguments.seconds) / pause))
    await asyncio.sleep(start - time.perf_counter())
    delays: list[float] = []
    read = 0
    async with connect(url, compression=None, ping_interval=None) as socket:

        async def listen():
            nonlocal read
            async for message in socket:
                event = json.loads(message)
                read += event["event"] == "read"
                if event["event"] == "write":
                    due = start + (event["source_words_read"] - 1) * pause
                    if due >= full:
                        delays.append(time.perf_counter() - due)

        listener = asyncio.create_task(listen())
        for spoken, word in enumerate(words):
            await asyncio.sleep(start + spoken * pause - time.perf_counter())
            await socket.send(json.dumps({"text": word + " "}))
        await socket.send('{"end": true}')
        await asyncio.wait_for(listener, 60)
    assert read == len(words), f"{len(words) - read} words were lost"
    return delays


async def measure(url: str, streams: int, arguments: argparse.Namespace) -> dict:
    sentences()
    began = time.perf_counter()
    full = began + streams / STARTS  # all are open from then on
    target = address(url, arguments)
    starts = [began + number / STARTS for number in range(streams)]
    each = await asyncio.gather(
        *(speak(target, number, start, full, arguments) for number, start in enumerate(starts))
    )
    delays = [delay for one in each for delay in one]
    cuts = quantiles(delays, n=100)
    return {
        "streams": streams,
        "words_out": len(delays),
        "p50_ms": round(1000 * cuts[49]),
        "p95_ms": round(1000 * cuts[94]),
        "p99_ms": round(1000 * cuts[98]),
        "seconds": round(time.perf_counter() - began, 1),
        "holds": cuts[94] < TARGET,
    }


async def search(url: str, arguments: argparse.Namespace) -> list[dict]:
    """Doubles the number of streams while it holds, then halves the gap three times."""
    rows, good, bad = [], 0, None
    streams = arguments.start
    for _ in range(arguments.rounds):
        rows.append(await measure(url, streams, arguments))
        print(json.dumps(rows[-1]), flush=True)
        if rows[-1]["holds"]:
            good = streams
        else:
            bad = streams
        streams = 2 * good if bad is None else (good + bad) // 2
        if bad is not None and bad - good <= max(good // 10, 5):
            break
    return rows


async def soak(url: str, pids: list[int], arguments: argparse.Namespace) -> dict:
    """So many words in each stream, as fast as they are read; memory every two seconds."""
    memory: list[float] = []
    began = time.perf_counter()

    async def one(number: int) -> int:
        written = read = 0
        words = talk(number, arguments.words)
        more = asyncio.Event()
        async with connect(address(url, arguments), compression=None, ping_interval=None) as socket:

            async def send():
                for start in range(0, len(words), 20):
                    while start - read > 100:  # within what the service lets wait
                        more.clear()
                        await more.wait()
                    await socket.send(json.dumps({"text": " ".join(words[start : start + 20]) + " "}))
                await socket.send('{"end": true}')

            sender = asyncio.create_task(send())
            async for message in socket:
                kind = json.loads(message)["event"]
                written += kind == "write"
                if kind == "read":
                    read += 1
                    more.set()
            await sender
        assert read == len(words), f"{len(words) - read} words were lost"
        return written

    async def watch():
        while True:
            memory.append(sum(map(resident_megabytes, pids)))
            await asyncio.sleep(2)

    watcher = asyncio.create_task(watch())
    written = await asyncio.gather(*(one(number) for number in range(arguments.streams or 50)))
    watcher.cancel()
    seconds = time.perf_counter() - began
    tenth = max(len(memory) // 10, 1)
    words = arguments.words * len(written)
    return {
        "streams": len(written),
        "words_in": words,
        "words_out": sum(written),
        "seconds": round(seconds, 1),
        "words_a_second": round(words / seconds),
        "memory_mb": {
            "after a tenth": round(sum(memory[tenth : 2 * tenth]) / tenth) if len(memory) > 2 else None,
            "half": round(memory[len(memory) // 2]),
            "end": round(sum(memory[-tenth:]) / tenth),
        },
    }


def resident_megabytes(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main(arguments: list[str] | None = None) -> list[dict] | dict:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", help="a service that runs already (on this machine, please)")
    parser.add_argument("--model", help="checkpoint (default: the one that ships)")
    parser.add_argument("--direction")
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--streams", type=int, help="this many; default: find how many hold")
    parser.add_argument("--seconds", type=float, default=30, help="of talk with all streams open")
    parser.add_argument("--wpm", type=float, default=150, help="words a minute")
    parser.add_argument("--start", type=int, default=25, help="streams to begin the search with")
    parser.add_argument("--rounds", type=int, default=10, help="measurements of the search at most")
    parser.add_argument("--soak", action="store_true", help="as fast as it holds, and watch the memory")
    parser.add_argument(
        "--words", type=int, default=9000, help="words in each stream of --soak: an hour at 150 a minute"
    )
    parser.add_argument("--output", help="also write the figures to this JSON file")
    options = parser.parse_args(arguments)
    with service(options) as (url, pids):
        if options.soak:
            found = run(soak(url, pids, options))
        elif options.streams:
            found = run(measure(url, options.streams, options))
        else:
            found = run(search(url, options))
    print(json.dumps(found, indent=1))
    if options.output:
        Path(options.output).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


if __name__ == "__main__":
    main()
