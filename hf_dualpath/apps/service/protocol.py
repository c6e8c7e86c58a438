"""What clients and the service say to each other, and how a stream goes on after a break.

A client sends text, cut anywhere, or one of these as JSON: `{"text": "..."}` (of a recogniser with `is_final`: what is
false is not read, what is true ends with a whole word), `{"pause": true}`, `{"dials": {...}}`, `{"end": true}`. The
service answers with events as JSON, each with its number in the stream under `seq`: `read`, `write`, `sentence_end`
(see [`hf_dualpath.Read`] and so on), `notice`, `error` and, last of all, `end`. Before them comes `open`: the stream's
id, and how many of the client's messages have arrived.
"""

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from math import inf


class Close(Enum):
    """Why a connection is closed: a WebSocket code and, for those that differ, a sentence."""

    DONE = 1000, "The text has ended."
    SHUTDOWN = 1012, "The service is stopping. Your sentences are finished; connect again to go on."
    BAD_REQUEST = 4400, ""
    UNAUTHORIZED = 4401, "This service asks for a bearer token."
    FORBIDDEN = 4403, "Pages of other sites may not connect."
    UNKNOWN = 4404, ""
    IDLE = 4408, "Nothing has come for too long."
    TAKEN = 4409, ""
    FULL = 4429, "All streams are taken: try again later."
    TOO_FAST = 4430, ""
    TOO_SLOW = 4431, "You read more slowly than the translation is written."
    TOO_LATE = 4410, "The events that you missed are gone: begin a new stream."
    BROKEN = 4500, "The model stopped again and again at your sentence."

    @property
    def code(self) -> int:
        return self.value[0]

    @property
    def reason(self) -> str:
        return self.value[1]


# After these a client may connect again and go on: the network failed, or the service stopped. All others are final.
PASSING = {1001, 1005, 1006, 1011, Close.SHUTDOWN.code, 1013}


class Refusal(ValueError):
    """The service says no. `reason` is short enough for the frame that closes a connection."""

    def __init__(self, close: Close, reason: str = ""):
        self.close = close
        self.reason = (reason or close.reason).encode()[:120].decode(errors="ignore")
        super().__init__(reason or close.reason)


@dataclass(frozen=True)
class Command:
    """One message of a client: text to read, a pause, other dials, or the end."""

    text: str | bytes = ""
    pause: bool = False
    end: bool = False
    dials: dict | None = None


FIELDS = {"text": str, "is_final": bool, "pause": bool, "end": bool, "dials": dict}


def parse(message: str | bytes) -> Command:
    """A frame of a client. A JSON object is a command; everything else is text. Bytes are text in UTF-8."""
    if isinstance(message, bytes) or not message.lstrip().startswith("{"):
        return Command(message)
    try:
        fields = json.loads(message)
    except (ValueError, RecursionError):
        return Command(message)
    for name, value in fields.items():
        if name not in FIELDS:
            raise ValueError(f"There is no {name[:40]!r} in a message; there are {', '.join(FIELDS)}.")
        if not isinstance(value, FIELDS[name]):
            raise ValueError(f"{name!r} is {FIELDS[name].__name__} in a message.")
    final = fields.pop("is_final", None)
    if final is not None:  # of a recogniser: a guess is not read, and what is final ends with a word
        fields["text"] = fields.get("text", "") + " " if final else ""
    return Command(**fields)


def parse_dials(values: dict, known: Iterable[str]) -> dict:
    """Dials as numbers, or None for one that is off; from a query they come as text."""
    dials = {}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"{name[:40]!r} is no dial of this model; there are {', '.join(known)}.")
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                value = "text"
        if value is not None and (type(value) not in (int, float) or not -inf < value < inf):
            raise ValueError(f"{name!r} is a number.")
        dials[name] = value
    return dials


class Unfinished:
    """What of a stream is not finished, so that it can go on elsewhere: with another worker, or another service.

    There the sentence is read again from its first word. What it had already written is not written again, and words
    are counted on from where they were. (Only tokens are not: their number is then a lower bound.)
    """

    def __init__(self, dials: dict):
        self.dials = dials
        self.items: deque[str | dict] = deque()  # words, and commands between them, since the last sentence's end
        self.source = self.target = self.tokens = 0  # counted before this sentence
        self.base = 0, 0  # words and tokens read before the last restart: the new stream counts from there
        self.last_tokens = 0
        self.read, self.written = 0, []  # of this sentence
        self.repeated_reads = self.repeated_writes = 0  # still to come, because the sentence began again
        self.restarts = 0  # in this sentence

    def add(self, item: str | dict):
        """A word or a command is sent. Commands between the same two words are one, or they could be any number."""
        if isinstance(item, dict) and self.items and isinstance(self.items[-1], dict):
            before = self.items.pop()
            if "dials" in before and "dials" in item:
                item = item | {"dials": before["dials"] | item["dials"]}
            item = before | item
        self.items.append(item)

    @property
    def has_words(self) -> bool:
        """Whether a sentence was begun."""
        return any(isinstance(item, str) for item in self.items)

    def restart(self) -> tuple[dict, list[str | dict]]:
        """The stream begins again: its dials, and what to send."""
        self.repeated_reads, self.repeated_writes = self.read, len(self.written)
        self.base = self.source, self.tokens
        self.restarts += self.has_words
        return self.dials, list(self.items)

    def see(self, event: dict) -> dict | None:
        """An event of the stream as it is now, in terms of the stream as it was; None if it was there before."""
        kind = event["event"]
        if kind == "read":
            if self.repeated_reads:
                self.repeated_reads -= 1
                return None
            self.read += 1
        elif kind == "write":
            self.last_tokens = max(self.last_tokens, event["source_tokens_read"] + self.base[1])
            if self.repeated_writes:
                self.repeated_writes -= 1
                return None
            self.written.append(event["word"])
            return event | {
                "source_words_read": event["source_words_read"] + self.base[0],
                "source_tokens_read": event["source_tokens_read"] + self.base[1],
            }
        elif kind == "sentence_end":
            return self._end(event)
        elif kind == "error":  # dials that the model does not take are not asked for again
            wrong = event.get("dials", {})
            for item in self.items:
                if isinstance(item, dict) and "dials" in item:
                    item["dials"] = {name: value for name, value in item["dials"].items() if wrong.get(name) != value}
        return event

    def _end(self, event: dict) -> dict:
        source, target = event["source_span"][1] + self.base[0], self.target + len(self.written)
        event = event | {
            "target": " ".join(self.written),
            "source_span": (self.source, source),
            "target_span": (self.target, target),
        }
        words = source - self.source
        while words:
            item = self.items.popleft()
            if isinstance(item, str):
                words -= 1
            else:
                self.dials = self.dials | item.get("dials", {})
        self.source, self.target, self.tokens = source, target, self.last_tokens
        self.read, self.written, self.restarts = 0, [], 0
        self.repeated_reads = self.repeated_writes = 0
        return event
