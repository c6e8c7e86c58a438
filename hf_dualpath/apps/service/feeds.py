"""Numbered events that readers follow, each at its own pace and from where it was."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator

from .protocol import Close, Refusal


class Feed:
    """Numbers events and keeps the last of them as JSON. Nobody is waited for: who is further behind is let go."""

    def __init__(self, kept: int):
        self.seq = 0  # number of the last event
        self.kept: deque[str] = deque(maxlen=kept)
        self.over = False
        self.readers: set[Reader] = set()

    def add(self, event: dict):
        self.seq += 1
        self.kept.append(json.dumps({"seq": self.seq, **event}, ensure_ascii=False, separators=(",", ":")))
        for reader in self.readers:
            if self.seq - reader.seq > self.kept.maxlen:
                reader.stop(Refusal(Close.TOO_SLOW))
            reader.wake.set()

    def finish(self):
        """No more events will come."""
        self.over = True
        for reader in self.readers:
            reader.wake.set()

    @property
    def first(self) -> int:
        """Number of the oldest event that is kept."""
        return self.seq - len(self.kept) + 1


class Reader:
    """Follows a feed after the event `seq`. `stopped` is the future of a [`Refusal`]: why it must not go on."""

    def __init__(self, feed: Feed, seq: int):
        if not feed.first - 1 <= seq <= feed.seq:
            raise Refusal(Close.TOO_LATE)
        self.feed, self.seq = feed, seq
        self.wake = asyncio.Event()
        self.stopped: asyncio.Future[Refusal] = asyncio.get_running_loop().create_future()

    def stop(self, refusal: Refusal):
        if not self.stopped.done():
            self.stopped.set_result(refusal)
        self.wake.set()

    def __enter__(self) -> "Reader":
        self.feed.readers.add(self)
        return self

    def __exit__(self, *_):
        self.feed.readers.discard(self)

    async def batches(self) -> AsyncIterator[list[str]]:
        """What is there, together, until the feed is over or this reader is stopped."""
        while not self.stopped.done():
            self.wake.clear()
            last = self.feed.seq
            if behind := last - self.seq:
                yield [self.feed.kept[-place] for place in range(behind, 0, -1)]
                self.seq = last
            elif self.feed.over:
                return
            else:
                await self.wake.wait()

    async def __aiter__(self) -> AsyncIterator[str]:
        async for batch in self.batches():
            for text in batch:
                yield text
                self.seq += 1
