"""A service on a free port of this machine, in a thread of its own."""

import asyncio
import json
import os
import signal
import threading
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from websockets.sync.client import connect

from hf_dualpath.apps.service.access import Access
from hf_dualpath.apps.service.limits import Limits
from hf_dualpath.apps.service.server import bind, make_server
from hf_dualpath.apps.service.service import Service


ECHO = str(Path(__file__).parent / "echo_worker.py")


class Serving:
    """`with Serving(["model"]) as server`: `server.url`, and the service itself for a look inside."""

    def __init__(self, models, limits=None, access=None, **options):
        self.service = Service(models, limits or Limits(), **options)
        self.listener = bind("127.0.0.1", 0)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.url = f"http://{self.address}"
        self.access, self.ready = access or Access(), threading.Event()
        self.failure = None

    async def _run(self):
        try:
            await self.service.start()
        except ValueError as error:
            self.failure = error
            return self.ready.set()
        self.loop, self.server = asyncio.get_running_loop(), make_server(self.service, self.access)
        serving = asyncio.create_task(self.server.serve(sockets=[self.listener]))
        while not self.server.started:
            await asyncio.sleep(0.01)
        self.ready.set()
        await serving
        await self.service.stop()

    def __enter__(self):
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.thread.start()
        self.ready.wait(120)
        if self.failure:
            raise self.failure
        return self

    def stop(self):
        self.server.should_exit = True

    def __exit__(self, *_):
        self.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()

    # A client that does exactly what it is told

    def socket(self, path="/v1/stream", token=None, **options):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return connect(f"ws://{self.address}{path}", additional_headers=headers, **options)

    def request(self, path, body=None, **headers):
        data = None if body is None else json.dumps(body).encode() if not isinstance(body, bytes) else body
        request = Request(self.url + path, data, {"content-type": "application/json", **headers})
        try:
            with urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name) -> float:
        lines = self.request("/metrics")[1].splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split()[0] == name)

    def kill_worker(self, name):
        os.kill(self.service.workers[name].process.pid, signal.SIGKILL)


def receive(socket, until="end", timeout=60) -> list[dict]:
    """Events up to one of a kind."""
    events = []
    while not events or events[-1]["event"] != until:
        events.append(json.loads(socket.recv(timeout)))
    return events


def words(events, kind="write") -> list[str]:
    return [event["word"] for event in events if event["event"] == kind]


def eventually(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)
