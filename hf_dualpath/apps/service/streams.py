"""One client's stream inside the service: its words on the way in, its events on the way out."""

import secrets
import time
from collections import deque
from typing import TYPE_CHECKING

from ...inference.splitting import WordCutter
from .feeds import Feed
from .limits import Allowance, Limits
from .metrics import Metrics
from .protocol import Close, Command, Refusal, Unfinished, parse, parse_dials


if TYPE_CHECKING:
    from .workers import Worker


class Stream:
    """Goes through one direction of a worker's model. It outlives its connection, and its worker."""

    def __init__(self, worker: "Worker", direction: str, dials: dict, limits: Limits, metrics: Metrics):
        self.id = secrets.token_urlsafe(16)
        self.worker, self.direction, self.limits, self.metrics = worker, direction, limits, metrics
        self.feed = Feed(limits.kept_events)
        self.followers: list[Feed] = []  # of rooms: they get its events too
        self.unfinished = Unfinished(parse_dials(dials, worker.directions[direction]))
        self.allowance = Allowance(limits.characters)
        self.received = 0  # messages
        self.ended = False
        self.refusal: Refusal | None = None  # why it failed, if it did
        self.left_at: float | None = time.monotonic()  # when its last connection went
        self.heard_at = time.monotonic()  # when its last message came
        self.words_in = self.words_read = 0
        self._cutter = WordCutter()
        self._arrivals: deque[float] = deque()  # of the words of this sentence
        self._unanswered: list[float] = []  # arrivals of words after which nothing was written yet
        worker.add(self)

    # From the client

    def receive(self, message: str | bytes):
        """One message. A mistake in it is answered by an `error` event; one that is too much ends the stream."""
        self.received += 1
        self.heard_at = time.monotonic()
        if not self.allowance.take(len(message)):
            raise Refusal(Close.TOO_FAST, f"A stream takes {self.limits.characters:g} characters a second.")
        try:
            command = parse(message)
        except ValueError as error:
            return self.tell("error", str(error))
        if not self.ended:
            self._take(command)

    def _take(self, command: Command):
        self._push(self._cutter.push(command.text))
        if command.dials is not None:
            try:
                self._ask({"dials": parse_dials(command.dials, self.worker.directions[self.direction])})
            except ValueError as error:
                self.tell("error", str(error))
        if command.pause or command.end:
            self.finish_sentence()
        if command.end:
            self.ended = True
            self._ask({"end": True})
        if self.words_in - self.words_read > self.limits.waiting_words:
            raise Refusal(
                Close.TOO_FAST, f"More than {self.limits.waiting_words} words wait: send as fast as words are read."
            )

    def take_all(self, text: str):
        """A whole text."""
        self._push(self._cutter.push(text) + self._cutter.finish())
        self.ended = True
        self._ask({"end": True})

    def finish_sentence(self):
        if not self.ended:
            self._push(self._cutter.finish())
            self._ask({"pause": True})

    @property
    def is_settled(self) -> bool:
        """All that came is translated, and has reached whoever reads it."""
        return not self.unfinished.has_words and all(reader.seq == self.feed.seq for reader in self.feed.readers)

    def _push(self, words: list[str]):
        if not words:
            return
        self.words_in += len(words)
        now = time.monotonic()
        self._arrivals.extend([now] * len(words))
        self._unanswered += [now] * len(words)
        self.metrics.words_in.labels(self.worker.name).inc(len(words))
        for word in words:
            self.unfinished.add(word)
        self.worker.ask("push", self.id, " ".join(words) + " ")

    def _ask(self, command: dict):
        self.unfinished.add(command)
        self._send_command(command)

    def _send_command(self, command: dict):
        for kind, value in command.items():
            self.worker.ask(kind, self.id, *([value] if kind == "dials" else []))

    # From the worker

    def begin(self):
        """Opens the stream in the worker; again, if the worker was started again."""
        dials, items = self.unfinished.restart()
        self.worker.ask("open", self.id, self.direction, dials)
        for item in items:
            if isinstance(item, str):
                self.worker.ask("push", self.id, item + " ")
            else:
                self._send_command(item)

    def worker_died(self):
        if self.unfinished.has_words and self.unfinished.restarts >= self.limits.restarts:
            self.fail(Refusal(Close.BROKEN))
        else:
            self.tell("notice", "The model stopped and starts again. Nothing is lost.")

    def hear(self, events: list[dict], done: bool):
        """What the model has decided."""
        for event in events:
            if event["event"] == "refused":
                return self.fail(Refusal(Close.BAD_REQUEST, event["message"]))
            before = self.unfinished.source
            event = self.unfinished.see(event)
            if event is not None:
                self._measure(event, before)
                self.add(event)
        if done:
            self.feed.add({"event": "end"})
            self.close()

    def _measure(self, event: dict, before: int):
        now, name = time.monotonic(), self.worker.name
        if event["event"] == "read":
            self.words_read += 1
        elif event["event"] == "write":
            self.metrics.words_out.labels(name).inc()
            last = self._arrivals[max(event["source_words_read"] - before, 1) - 1]
            self.metrics.delay.labels(name).observe(now - last)
            for arrival in self._unanswered:
                self.metrics.next_word.labels(name).observe(now - arrival)
            self._unanswered = []
        elif event["event"] == "sentence_end":
            for _ in range(self.unfinished.source - before):
                self._arrivals.popleft()

    # To the client

    def add(self, event: dict):
        self.feed.add(event)
        for follower in self.followers:
            follower.add(event)

    def tell(self, kind: str, message: str):
        self.feed.add({"event": kind, "message": message})

    def fail(self, refusal: Refusal):
        """Ends the stream for good."""
        self.refusal = refusal
        for reader in self.feed.readers:
            reader.stop(refusal)
        self.close()

    def close(self):
        """Nothing more comes of the stream."""
        self.worker.remove(self)
        if not self.feed.over:
            self.feed.finish()
            for follower in self.followers:
                follower.add({"event": "end"})
