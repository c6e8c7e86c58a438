"""One text over a streaming service, with asyncio. It goes on after a break.

When a connection is lost the client connects again and says which event was the last it got; the service says how many
of the client's messages it has. So nothing is lost, and nothing comes twice. A service that does not know the stream
(it was started again, or another machine answers) reads the unfinished sentence again from its first word.
"""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from urllib.parse import urlencode

from ..inference.events import KINDS, Event, from_dict
from ..inference.splitting import WordCutter
from .service.protocol import PASSING, Unfinished


logger = logging.getLogger(__name__)
PATIENCE = 60.0  # seconds for which a lost connection is tried again
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
AT_ONCE = 50  # words in a message


class ServiceError(OSError):
    """The service cannot be reached, or said no."""


class AsyncStream:
    """One text over a service: `push`, `pause`, `set_dials` and `finish` go in; iterating gives the events.

    Use it as `async with RemoteTranslator(url).open_async() as stream`.
    """

    def __init__(self, url: str, query: dict, dials: dict, token: str | None):
        self.url, self.query = url, query
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.id, self.seq = "", 0
        self._cutter = WordCutter()
        self._unfinished = Unfinished(dials)
        self._messages: deque[tuple[str, int]] = deque()  # not known to have arrived, with their numbers of words
        self._sent = 0  # of them, over this connection
        self._arrived = self._words_arrived = 0  # messages that the service has taken before them, and their words
        self._words_sent = self._words_read = 0  # over this stream of the service
        self._changed = asyncio.Event()
        self._events: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
        self._limits = {"characters_per_second": 1000, "waiting_words": 500}

    async def __aenter__(self) -> "AsyncStream":
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._over)
        return self

    async def __aexit__(self, *_):
        self._task.cancel()
        await asyncio.wait([self._task])

    # Going in

    def push(self, text: str | bytes):
        """More of the source. Whole words are sent; the rest waits for its end."""
        self._send_words(self._cutter.push(text))

    def pause(self):
        """The speaker pauses: the sentence ends, the text goes on."""
        self._send_words(self._cutter.finish())
        self._send({"pause": True})

    def set_dials(self, **dials):
        """Other dials from the next sentence on."""
        self._send({"dials": dials})

    def finish(self):
        """The source has ended."""
        self._send_words(self._cutter.finish())
        self._send({"end": True})

    def _send_words(self, words: list[str]):
        for start in range(0, len(words), AT_ONCE):
            part = words[start : start + AT_ONCE]
            for word in part:
                self._unfinished.add(word)
            self._queue({"text": " ".join(part) + " "}, len(part))

    def _send(self, command: dict):
        self._unfinished.add(command)
        self._queue(command, 0)

    def _queue(self, message: dict, words: int):
        self._messages.append((json.dumps(message, ensure_ascii=False), words))
        self._changed.set()

    # Coming out

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._events.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event

    # The connection

    async def _run(self):
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

        since, pause = time.monotonic(), FIRST_PAUSE
        while True:
            try:
                async with connect(self._address(), additional_headers=self.headers, max_size=None) as socket:
                    since, pause = time.monotonic(), FIRST_PAUSE
                    if await self._talk(socket):
                        return
            except ConnectionClosed as closed:
                code, reason = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
                if code not in PASSING:
                    raise ServiceError(f"The service said: {reason or code}") from closed
                error = closed
            except InvalidURI as wrong:
                raise ServiceError(str(wrong)) from wrong
            except (OSError, InvalidHandshake, TimeoutError) as failed:
                error = failed
                if not self.id:  # it was never there
                    raise ServiceError(f"There is no service at {self.url}: {error}") from failed
            if time.monotonic() - since > PATIENCE:
                raise ServiceError(f"The service at {self.url} has gone: {error}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _over(self, task: asyncio.Task):
        """Whoever iterates learns how it ended."""
        self._events.put_nowait(None if task.cancelled() else task.exception())

    def _address(self) -> str:
        resumed = {"stream": self.id, "after": self.seq} if self.id else {}
        dials = {name: json.dumps(value) for name, value in self._unfinished.dials.items()}
        return f"{self.url}?{urlencode(self.query | dials | resumed)}"

    async def _talk(self, socket) -> bool:
        """Over one connection, to the end of the text if it lasts."""
        self._open(json.loads(await socket.recv()))
        sender = asyncio.create_task(self._send_all(socket))
        try:
            async for message in socket:
                if self._take(json.loads(message)):
                    return True
        finally:
            sender.cancel()
            await asyncio.wait([sender])
        await socket.recv()  # raises why it was closed
        return False

    def _open(self, opened: dict):
        self._limits = opened
        if opened["stream"] == self.id:
            self._forget(opened["received"] - self._arrived)
        else:
            if self.id:
                self._begin_again()
            self.id, self.seq = opened["stream"], 0
            self._arrived = self._words_arrived = self._words_read = 0
        self._sent, self._words_sent = 0, self._words_arrived

    def _begin_again(self):
        """The same text over another stream."""
        _, items = self._unfinished.restart()
        self._messages.clear()
        for item in items:
            self._queue({"text": item + " "} if isinstance(item, str) else item, int(isinstance(item, str)))

    def _forget(self, messages: int):
        """The service has taken so many more."""
        for _ in range(messages):
            self._words_arrived += self._messages.popleft()[1]
        self._arrived += messages
        self._sent -= messages

    def _forget_read(self):
        """Messages whose words were read have arrived, and so have commands before other words that were read."""
        while self._messages and self._sent:
            words, unread = self._messages[0][1], self._words_read - self._words_arrived
            if unread < (words or 1):
                break
            self._forget(1)

    async def _send_all(self, socket):
        """Messages, no faster than the service takes them."""
        while True:
            message, words = self._messages[self._sent] if self._sent < len(self._messages) else (None, 0)
            waiting = self._words_sent + words - self._words_read
            if message is not None and waiting <= self._limits["waiting_words"]:
                self._sent += 1
                self._words_sent += words
                await socket.send(message)
                await asyncio.sleep(len(message) / self._limits["characters_per_second"])
            else:
                self._changed.clear()
                await self._changed.wait()

    def _take(self, message: dict) -> bool:
        """One event of the service. True if it is the last."""
        self.seq = message.pop("seq")
        kind = message["event"]
        if kind == "read":
            self._words_read += 1
            self._forget_read()
            self._changed.set()
        event = self._unfinished.see(message)
        if kind in KINDS and event is not None:
            self._events.put_nowait(from_dict(event))
        if kind in ("notice", "error"):
            logger.warning("The service says: %s", message["message"])
        return kind == "end"
