"""The service on a local Ray cluster: two replicas, one of which is killed while both have open streams."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest


ray = pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
pytestmark = pytest.mark.slow
sys.path[:0] = [str(Path(__file__).parents[2] / "scripts")]

from hf_dualpath.client import RemoteTranslator  # noqa: E402
from hf_dualpath.inference.events import SentenceEnd, Write  # noqa: E402


TEXT = "Ich habe heute leider keine Zeit. Der Mann, der dort steht, ist mein Bruder. Ich gehe jetzt nach Hause."


@pytest.fixture(scope="module")
def url():
    from ray import serve
    from serve_ray import application

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = str(Path(__file__).parents[2])
    address = {"_node_ip_address": "127.0.0.1"}
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        **address,
        runtime_env={"env_vars": {"PYTHONPATH": f"{here}:{here}/scripts"}},
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(application({"replicas": 2, "max_replicas": 2, "streams": 20}), blocking=False)
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()


def replica_pids() -> list[int]:
    """Replicas among the processes that this one started, directly or not."""
    commands, parents = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            commands[int(folder.name)] = (folder / "cmdline").read_text()
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return [pid for pid, command in commands.items() if command.startswith("ray::ServeReplica") and is_ours(pid)]


def test_a_replica_dies_and_no_word_is_lost(url):
    expected = RemoteTranslator(url).translate(TEXT).split()

    async def one(killed: asyncio.Event, ready: asyncio.Semaphore) -> tuple[list, bool]:
        words, events = TEXT.split(), []
        async with RemoteTranslator(url).open_async() as stream:
            stream.push(" ".join(words[:9]) + " ")  # in the middle of the second sentence
            async for event in stream:
                events.append(event)
                if isinstance(event, SentenceEnd):
                    break
            before = stream.id
            ready.release()
            await killed.wait()
            for word in words[9:]:
                stream.push(word + " ")
                await asyncio.sleep(0.05)
            stream.finish()
            async for event in stream:
                events.append(event)
            return events, stream.id != before

    async def all_of_them():
        killed, ready = asyncio.Event(), asyncio.Semaphore(0)
        tasks = [asyncio.create_task(one(killed, ready)) for _ in range(8)]
        for _ in tasks:
            await ready.acquire()
        pids = replica_pids()
        assert len(pids) == 2
        os.kill(pids[0], signal.SIGKILL)
        killed.set()
        return await asyncio.gather(*tasks)

    results = asyncio.run(asyncio.wait_for(all_of_them(), 300))
    moved = [was_moved for _, was_moved in results]
    assert any(moved) and not all(moved), "one of two replicas was killed, and both had streams"
    for events, _ in results:
        assert [event.word for event in events if isinstance(event, Write)] == expected
        ends = [event for event in events if isinstance(event, SentenceEnd)]
        assert [end.source_span for end in ends] == [(0, 6), (6, 14), (14, 19)]
