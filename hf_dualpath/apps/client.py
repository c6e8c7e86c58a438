"""A client of the streaming service. It speaks as a local translator does, and goes on after a break.

When a connection is lost the client connects again and says which event was the last it got; the service says how many
of the client's messages it has. So nothing is lost, and nothing comes twice. A service that does not know the stream
(it was started again, or another machine answers) reads the unfinished sentence again from its first word.
"""

import asyncio
import json
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from ..inference.events import KINDS, Event, Write, from_dict
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
        if kind in KINDS:
            event = self._unfinished.see(message)
            if event is not None:
                self._events.put_nowait(from_dict(event))
        elif kind in ("notice", "error"):
            logger.warning("The service says: %s", message["message"])
        return kind == "end"


class Stream:
    """The same without asyncio: a thread holds the connection.

    Use it as `with RemoteTranslator(url).open() as stream`.
    """

    def __init__(self, make: Callable[[], AsyncStream]):
        self._make = make
        self._events: queue.SimpleQueue[Event | Exception | None] = queue.SimpleQueue()
        self._ready = threading.Event()

    def __enter__(self) -> "Stream":
        threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True).start()
        self._ready.wait()
        return self

    def __exit__(self, *_):
        self._ask(self._closed.set)

    async def _run(self):
        self._loop, self._closed = asyncio.get_running_loop(), asyncio.Event()
        async with self._make() as self._stream:
            self._ready.set()
            tasks = [asyncio.create_task(self._relay()), asyncio.create_task(self._closed.wait())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _relay(self):
        try:
            async for event in self._stream:
                self._events.put(event)
        except Exception as error:  # raised again where the events are read
            self._events.put(error)
        self._events.put(None)

    def _ask(self, method: Callable, *arguments):
        with suppress(RuntimeError):  # the connection is closed already
            self._loop.call_soon_threadsafe(method, *arguments)

    def push(self, text: str | bytes):
        self._ask(self._stream.push, text)

    def pause(self):
        self._ask(self._stream.pause)

    def set_dials(self, **dials):
        self._ask(lambda: self._stream.set_dials(**dials))

    def finish(self):
        self._ask(self._stream.finish)

    def feed(self, chunks: Iterable[str | bytes]):
        """All of a text as it comes; what goes wrong with it is raised where the events are read."""
        try:
            for chunk in chunks:
                self.push(chunk)
            self.finish()
        except (OSError, ValueError) as error:
            self._events.put(error)

    def __iter__(self) -> Iterator[Event]:
        while (event := self._events.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event


class RemoteTranslator:
    r"""
    Translates a stream of text while it arrives, over a service: what a [`SimultaneousTranslator`] does with a model
    of its own, this does with one that runs elsewhere.

    Args:
        url (`str`): Of the service, such as `"http://127.0.0.1:8000"`.
        direction (`str`, *optional*): Such as `"de-en"`; by default the model's forward direction.
        model (`str`, *optional*): One of the service's models; by default its first.
        room (`str`, *optional*): The room to speak in; everybody with the link `/rooms/ROOM` reads along.
        token (`str`, *optional*, defaults to the environment variable `DUALPATH_TOKEN`): What the service asks for.
        dials: Those of the model, such as `write_threshold`.

    ```python
    >>> translator = RemoteTranslator("http://127.0.0.1:8000", direction="de-en")
    >>> for event in translator.stream(["Ich habe ", "heute ", "keine Zeit."]):
    ...     print(event)
    ```
    """

    def __init__(
        self,
        url: str,
        direction: str | None = None,
        model: str | None = None,
        room: str | None = None,
        token: str | None = None,
        **dials,
    ):
        address = urlsplit(url if "://" in url else f"http://{url}")
        if address.scheme not in ("http", "https", "ws", "wss") or not address.netloc:
            raise ValueError(f"{url!r} is no address of a service: give one such as http://127.0.0.1:8000.")
        path = address.path.rstrip("/") + (f"/v1/rooms/{quote(room, safe='')}" if room else "/v1/stream")
        self.url = urlunsplit((address.scheme.replace("http", "ws"), address.netloc, path, "", ""))
        self.query = {"model": model, "direction": direction}
        self.token, self.dials = token or os.environ.get("DUALPATH_TOKEN"), dials
        self.words: list[str] = []  # written of the last text

    def open_async(self) -> AsyncStream:
        """A text that goes in and comes out at once, with asyncio."""
        query = {name: value for name, value in self.query.items() if value is not None}
        return AsyncStream(self.url, query, self.dials, self.token)

    def open(self) -> Stream:
        """A text that goes in and comes out at once."""
        return Stream(self.open_async)

    def stream(self, chunks: Iterable[str | bytes]) -> Iterator[Event]:
        """Events of a source that arrives in chunks, each as soon as it comes, to the end."""
        self.words = words = []
        with self.open() as stream:
            threading.Thread(target=stream.feed, args=(chunks,), daemon=True).start()
            for event in stream:
                if isinstance(event, Write):
                    words.append(event.word)
                yield event

    async def astream(self, chunks: AsyncIterable[str | bytes]) -> AsyncIterator[Event]:
        """`stream` with asyncio."""

        async def feed():
            async for chunk in chunks:
                stream.push(chunk)
            stream.finish()

        async with self.open_async() as stream:
            feeder = asyncio.create_task(feed())
            try:
                async for event in stream:
                    yield event
            finally:
                feeder.cancel()
            await asyncio.wait([feeder])

    def translate(self, text: str) -> str:
        """The translation of a whole text."""
        return " ".join(event.word for event in self.stream([text]) if isinstance(event, Write))
