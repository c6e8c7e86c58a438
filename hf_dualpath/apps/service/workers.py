"""A model's process, seen from the service: started, fed, listened to, and started again when it dies."""

import asyncio
import json
import logging
import os
import sys

from .metrics import Metrics
from .streams import Stream


logger = logging.getLogger(__name__)
LONGEST_LINE = 1 << 26
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0  # seconds before a dead process is started again


class Worker:
    """`settings` are those of [`load_pools`]."""

    command = sys.executable, "-m", "hf_dualpath.apps.service.worker"

    def __init__(self, name: str, settings: dict, metrics: Metrics):
        self.name, self.settings, self.metrics = name, settings, metrics
        self.state = "loading"  # then "ready" or "restarting", and "stopped" at last
        self.directions: dict[str, list[str]] = {}  # with their dials
        self.streams: dict[str, Stream] = {}
        self._batch: list[tuple] = []

    async def start(self):
        """Loads the model; a [`ValueError`] says why it cannot be loaded."""
        await self._launch()
        self._task = asyncio.create_task(self._supervise())

    async def stop(self):
        self.state = "stopped"
        self.process.stdin.close()  # the process ends where its input does
        try:
            await asyncio.wait_for(self._task, 5)
        except asyncio.TimeoutError:
            self.process.kill()
            await self.process.wait()

    async def _launch(self):
        self.process = await asyncio.create_subprocess_exec(
            *self.command,
            json.dumps(self.settings),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is for the service, which lets sentences finish
        )
        line = await self.process.stdout.readline()
        answer = json.loads(line) if line else {"failed": "its process died while it was loaded"}
        if "failed" in answer:
            await self.process.wait()
            raise ValueError(f"{self.name} cannot be served: {answer['failed']}")
        self.directions = answer["directions"]
        self.state = "ready"
        for stream in self.streams.values():
            stream.begin()

    async def _supervise(self):
        while self.state != "stopped":
            await self._listen()
            code = await self.process.wait()
            if self.state != "stopped":
                await self._restart(code)

    async def _restart(self, code: int):
        self.state = "restarting"
        self._batch.clear()
        logger.error(
            "The process of %s died (%s) with %s open streams. It starts again.", self.name, code, len(self.streams)
        )
        for stream in list(self.streams.values()):
            stream.worker_died()
        pause = FIRST_PAUSE
        while self.state == "restarting":
            await asyncio.sleep(pause)
            self.metrics.restarts.labels(self.name).inc()
            try:
                await self._launch()
            except (OSError, ValueError) as error:  # there may be no memory for a process just now
                logger.error("%s", error)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _listen(self):
        while (line := await self.process.stdout.readline()).endswith(b"\n"):  # half a line is a death's
            for stream, events, done in json.loads(line):
                if stream in self.streams:
                    self.streams[stream].hear(events, done)
            await asyncio.sleep(0)  # readers have their turn, however many lines are there

    # Streams

    def add(self, stream: Stream):
        self.streams[stream.id] = stream
        self.metrics.streams.labels(self.name).set(len(self.streams))
        if self.state == "ready":
            stream.begin()

    def remove(self, stream: Stream):
        if self.streams.pop(stream.id, None) is not None:
            self.ask("close", stream.id)
            self.metrics.streams.labels(self.name).set(len(self.streams))

    def ask(self, *request):
        """Goes out with all else that is asked in this turn of the event loop. A stream begins again after a restart,
        so nothing is kept for a process that is not there."""
        if self.state != "ready":
            return
        if not self._batch:
            asyncio.get_running_loop().call_soon(self._flush)
        self._batch.append(request)

    def _flush(self):
        if self._batch and self.state == "ready" and not self.process.stdin.is_closing():
            self.process.stdin.write(json.dumps(self._batch, ensure_ascii=False).encode() + b"\n")
        self._batch.clear()
