"""How much one client may ask for, so that others are served too."""

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    r"""
    Args:
        streams (`int`): Streams open at once.
        listeners (`int`): Readers of rooms at once.
        rooms (`int`): Rooms at once.
        characters (`float`): A second and stream, of messages; ten seconds' worth may come at once. Speech: 15.
        message_bytes (`int`): The largest message.
        text_characters (`int`): The longest text of `POST /v1/translate`.
        waiting_words (`int`): Words of a stream that the model has not read yet; our client sends 50 at once.
        kept_events (`int`): Events kept for each stream. A client that is further behind reads too slowly.
        idle_seconds (`float`): A stream without a message ends after this.
        resume_seconds (`float`): For so long a stream without a connection is kept.
        shutdown_seconds (`float`): For so long sentences may be finished when the service stops.
        restarts (`int`): So often a sentence is tried again when the model's process dies.
    """

    streams: int = 1000
    listeners: int = 5000
    rooms: int = 200
    characters: float = 1000
    message_bytes: int = 65_536
    text_characters: int = 20_000
    waiting_words: int = 500
    kept_events: int = 2048
    idle_seconds: float = 600
    resume_seconds: float = 60
    shutdown_seconds: float = 20
    restarts: int = 3


class Allowance:
    """Characters that a client may send: so many a second, and what ten seconds give at once."""

    BURST_SECONDS = 10

    def __init__(self, per_second: float):
        self.per_second = per_second
        self.left = per_second * self.BURST_SECONDS
        self.at = time.monotonic()

    def take(self, characters: int) -> bool:
        """Whether they are allowed."""
        now = time.monotonic()
        gained = self.per_second * (now - self.at)
        self.left, self.at = min(self.left + gained, self.per_second * self.BURST_SECONDS), now
        self.left -= characters
        return self.left >= 0
