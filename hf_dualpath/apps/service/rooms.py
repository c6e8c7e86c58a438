"""Rooms: one speaker, many listeners."""

import re
import secrets
from collections import deque

from .feeds import Feed, Reader
from .limits import Limits
from .protocol import Close, Refusal
from .streams import Stream


NAME = re.compile(r"[\w.-]{1,64}")
SENTENCES = 12  # that a late joiner sees


class Room(Feed):
    """The events of whoever speaks here, for all who listen."""

    def __init__(self, name: str, kept: int):
        super().__init__(kept)
        self.name, self.id = name, secrets.token_urlsafe(8)
        self.speaker: Stream | None = None
        self._ends: deque[int] = deque([0], maxlen=SENTENCES + 1)  # numbers of the last sentence ends

    def add(self, event: dict):
        super().add(event)
        if event["event"] == "sentence_end":
            self._ends.append(self.seq)

    def join(self, known: str | None, after: int) -> Reader:
        """A listener. One that was here before goes on `after` its last event; another one sees the last sentences."""
        seq = after if known == self.id else self._ends[0]
        return Reader(self, min(max(seq, self.first - 1), self.seq))

    def let_speak(self, stream: Stream):
        self.speaker = stream
        stream.followers.append(self)
        self.add({"event": "speaker", "model": stream.worker.name, "direction": stream.direction})


class Rooms:
    """All rooms by name. A room that nobody is in is forgotten when another one needs its place."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self.open: dict[str, Room] = {}

    @property
    def listeners(self) -> int:
        return sum(len(room.readers) for room in self.open.values())

    def enter(self, name: str) -> Room:
        if not NAME.fullmatch(name):
            raise Refusal(Close.BAD_REQUEST, "A room's name has up to 64 letters, digits, dots and dashes.")
        if name in self.open:
            return self.open[name]
        if len(self.open) >= self.limits.rooms:
            empty = next((room for room in self.open.values() if not room.readers and not speaks(room)), None)
            if empty is None:
                raise Refusal(Close.FULL, "All rooms are taken: try again later.")
            del self.open[empty.name]
        self.open[name] = Room(name, self.limits.kept_events)
        return self.open[name]

    def listen(self, name: str, known: str | None, after: int) -> tuple[Room, Reader]:
        if self.listeners >= self.limits.listeners:
            raise Refusal(Close.FULL, "All seats are taken: try again later.")
        room = self.enter(name)
        return room, room.join(known, after)


def speaks(room: Room) -> bool:
    return room.speaker is not None and not room.speaker.feed.over
