"""The service itself: its models, streams and rooms, without the web around it."""

import asyncio
import time
from pathlib import Path

from .feeds import Reader
from .limits import Limits
from .metrics import Metrics
from .protocol import Close, Refusal
from .rooms import Rooms, speaks
from .streams import Stream
from .workers import Worker


def model_names(models: list[str]) -> dict[str, str]:
    """A name for each checkpoint: a folder's own name, or the Hub id."""
    names = {Path(model).resolve().name if Path(model).is_dir() else model: model for model in models}
    if len(names) < len(models):
        raise ValueError("Two models have one name: rename a folder.")
    return names


class Service:
    r"""
    Args:
        models (`list[str]`): Checkpoints: folders or Hub ids. The first is used unless another is named.
        limits ([`Limits`], *optional*): What a client may ask for.
        options: Those of [`SimultaneousTranslator.from_pretrained`], for all models.
    """

    def __init__(self, models: list[str], limits: Limits | None = None, **options):
        self.limits, self.metrics = limits or Limits(), Metrics()
        self.workers = {
            name: Worker(name, {"path": model, "slots": self.limits.streams, **options}, self.metrics)
            for name, model in model_names(models).items()
        }
        self.streams: dict[str, Stream] = {}
        self.rooms = Rooms(self.limits)
        self.closing = False

    async def start(self):
        """Loads all models."""
        started = await asyncio.gather(*(worker.start() for worker in self.workers.values()), return_exceptions=True)
        failures = [failure for failure in started if isinstance(failure, BaseException)]
        if failures:
            await self._stop_workers()
            raise failures[0]
        self._sweeper = asyncio.create_task(self._sweep())

    async def finish(self):
        """Nothing new is taken; sentences that were begun are finished, and their clients told."""
        self.closing = True
        for stream in self.streams.values():
            stream.tell("notice", Close.SHUTDOWN.reason)
            stream.finish_sentence()
        deadline = time.monotonic() + self.limits.shutdown_seconds
        while time.monotonic() < deadline and not all(stream.is_settled for stream in self.streams.values()):
            await asyncio.sleep(0.02)
        for stream in list(self.streams.values()):
            for reader in stream.feed.readers:
                reader.stop(Refusal(Close.SHUTDOWN))
            if not stream.feed.readers:  # its client has gone, or waits for the whole text
                stream.fail(Refusal(Close.SHUTDOWN))
        for room in self.rooms.open.values():
            for reader in room.readers:
                reader.stop(Refusal(Close.SHUTDOWN))

    async def stop(self):
        self._sweeper.cancel()
        await self._stop_workers()

    async def _stop_workers(self):
        await asyncio.gather(*(worker.stop() for worker in self.workers.values() if worker.state == "ready"))

    async def _sweep(self):
        """Streams that nobody came back to are given up, and so are silent ones."""
        while True:
            await asyncio.sleep(min(1, self.limits.resume_seconds / 4, self.limits.idle_seconds / 4))
            now = time.monotonic()
            for stream in list(self.streams.values()):
                if stream.left_at is not None and now - stream.left_at > self.limits.resume_seconds:
                    self.drop(stream)
                elif not stream.ended and now - stream.heard_at > self.limits.idle_seconds:
                    stream.fail(Refusal(Close.IDLE))

    # Streams

    def open(self, model: str | None, direction: str | None, dials: dict) -> Stream:
        """A new stream; a [`Refusal`] says why not."""
        if self.closing:
            raise Refusal(Close.SHUTDOWN)
        if sum(len(worker.streams) for worker in self.workers.values()) >= self.limits.streams:
            raise Refusal(Close.FULL)
        if len(self.streams) >= 2 * self.limits.streams:  # the rest are over, and kept for clients that missed the end
            self.drop(next(stream for stream in self.streams.values() if stream.feed.over))
        name = model or next(iter(self.workers))
        if name not in self.workers:
            raise Refusal(Close.UNKNOWN, f"There is no model {name[:40]!r}; there are {', '.join(self.workers)}.")
        worker = self.workers[name]
        direction = direction or next(iter(worker.directions))
        if direction not in worker.directions:
            has = ", ".join(worker.directions)
            raise Refusal(Close.UNKNOWN, f"{name} does not translate {direction[:20]!r} but {has}.")
        try:
            stream = Stream(worker, direction, dials, self.limits, self.metrics)
        except ValueError as error:
            raise Refusal(Close.BAD_REQUEST, str(error)) from error
        self.streams[stream.id] = stream
        return stream

    def resume(self, stream: Stream, after: int) -> Reader:
        """A connection of a stream; one that was there before makes way."""
        if stream.refusal is not None:
            raise stream.refusal
        reader = Reader(stream.feed, after)
        for other in stream.feed.readers:
            other.stop(Refusal(Close.TAKEN, "Another connection goes on with this stream."))
        return reader

    def drop(self, stream: Stream):
        """Forgets a stream."""
        if self.streams.pop(stream.id, None) is not None:
            stream.close()

    def speak(self, name: str, model: str | None, direction: str | None, dials: dict) -> Stream:
        """A new stream that a room follows."""
        room = self.rooms.enter(name)
        if speaks(room):
            raise Refusal(Close.TAKEN, f"Somebody speaks in {name} already.")
        stream = self.open(model, direction, dials)
        room.let_speak(stream)
        return stream

    # What it says of itself

    @property
    def health(self) -> dict:
        states = {name: worker.state for name, worker in self.workers.items()}
        ready = list(states.values()).count("ready")
        status = "closing" if self.closing else "ok" if ready == len(states) else "degraded" if ready else "down"
        return {"status": status, "models": states}

    def measured(self) -> bytes:
        """The page of metrics."""
        for name, worker in self.workers.items():
            waiting = sum(stream.words_in - stream.words_read for stream in worker.streams.values())
            self.metrics.queue.labels(name).set(waiting)
        self.metrics.listeners.set(self.rooms.listeners)
        return self.metrics.page()
