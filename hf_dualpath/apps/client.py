"""A client of the streaming service that speaks as a local translator does."""

import asyncio
import os
import queue
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from urllib.parse import quote, urlsplit, urlunsplit

from ..inference.events import Event, Write
from .async_client import AsyncStream


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
            relay, closed = asyncio.create_task(self._relay()), asyncio.create_task(self._closed.wait())
            await asyncio.wait([relay, closed], return_when=asyncio.FIRST_COMPLETED)
            self._events.put(relay.exception() if relay.done() else None)  # raised where the events are read

    async def _relay(self):
        async for event in self._stream:
            self._events.put(event)

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
