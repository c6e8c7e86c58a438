"""Many texts at once over one direction of a model."""

import time

from .events import Event
from .streaming import SimultaneousTranslator
from .text_stream import TextStream


ROOM = 64  # tokens, of most sentences: to make more room in the middle stops all streams of a large pool for a moment


class StreamPool:
    r"""
    Many texts at once over one direction of a model, in one engine.

    Each session is fed text and handed events as they are decided. Nothing is computed but in `step`, which advances
    all sessions together.

    Args:
        translator ([`SimultaneousTranslator`]): The model, its tokenizers, splitter and dials.
        max_sessions (`int`, *optional*): How many sessions may be open at once.
        slots (`int`, *optional*, defaults to 1): Sessions to make room for from the start.

    ```python
    >>> pool = StreamPool(translator)
    >>> sessions = [pool.open() for _ in range(3)]
    >>> for session in sessions:
    ...     session.push("Ich habe heute keine Zeit.")
    ...     session.finish()
    >>> while pool.step():
    ...     events = [session.take() for session in sessions]
    ```
    """

    def __init__(self, translator: SimultaneousTranslator, max_sessions: int | None = None, slots: int = 1):
        self.translator, self.max_sessions = translator, max_sessions
        self.engine = translator.model.open_engine(slots, ROOM if slots > 1 else None)
        self.sessions: set[Session] = set()
        self.seconds = 0.0  # of computing, in all
        self.touched: set[Session] = set()  # by who feeds them, since they were last looked at
        self._news: set[Session] = set()

    def open(self, remembers: bool = True, **dials) -> "Session":
        """A new text; `dials` replace the translator's. `remembers` is as in [`TextStream`]."""
        if self.max_sessions is not None and len(self.sessions) >= self.max_sessions:
            raise ValueError(f"All {self.max_sessions} streams are taken: close one first.")
        session = Session(self, remembers, **dials)
        self.sessions.add(session)
        return session

    def step(self) -> bool:
        """One tick for all sessions together. False when there is nothing left to do until more text comes."""
        began = time.perf_counter()
        working = self.engine.tick()
        self.seconds += time.perf_counter() - began
        due = self.touched.union(stream.owner for stream in self.engine.changed)
        self.touched.clear()
        for session in due:
            working |= session.collect()
            if session.has_news:
                self._news.add(session)
        return working

    def take_news(self) -> list["Session"]:
        """The sessions with events to take, or that are done, since this was last asked."""
        news, self._news = list(self._news), set()
        return news


class Session(TextStream):
    """One text of a [`StreamPool`]."""

    def __init__(self, pool: StreamPool, remembers: bool = True, **dials):
        made = pool.translator
        self._pool, self._collected, self._closed = pool, [], False
        self._seconds_before = 0.0
        super().__init__(
            made.model,
            made.source_tokenizer,
            made.target_tokenizer,
            made.splitter,
            made.max_sentence_words,
            engine=pool.engine,
            remembers=remembers,
            **(made.dials | dials),
        )

    def push(self, text: str | bytes):
        """More of the source. Nothing is computed here."""
        self._check_open()
        self._pool.touched.add(self)
        self.feed(text)

    def pause(self):
        """The speaker pauses: the sentence ends, the text goes on."""
        self._check_open()
        self._pool.touched.add(self)
        self.feed_pause()

    def finish(self):
        """The source has ended; once the rest is written the session is `done`."""
        self._check_open()
        self._pool.touched.add(self)
        self.end()

    def set_dials(self, **dials):
        self._pool.touched.add(self)
        super().set_dials(**dials)

    def close(self):
        """Gives up what is left of the text, and the session's memory."""
        super().close()
        self._pool.sessions.discard(self)
        self._pool.touched.discard(self)
        self._pool._news.discard(self)
        self._closed = True

    @property
    def done(self) -> bool:
        """The text has ended and everything is written, or it was given up."""
        return self._closed or super().done

    def collect(self) -> bool:
        """Keeps what the last tick decided for `take`."""
        events = super().take()
        self._collected += events
        if events:  # a sentence that ended may have begun another
            self._pool.touched.add(self)
        return bool(events)

    def _start_sentence(self):
        super()._start_sentence()
        self._stream.owner = self

    @property
    def seconds(self) -> float:
        """Of computing for the whole pool since the last word: all wait for it."""
        return self._pool.seconds - self._seconds_before

    @seconds.setter
    def seconds(self, value: float):
        self._seconds_before = self._pool.seconds - value

    @property
    def has_news(self) -> bool:
        return bool(self._collected) or self.done

    def take(self) -> list[Event]:
        """The events decided since last asked."""
        events, self._collected = self._collected, []
        return events

    def _check_open(self):
        if self._finished or self._closed:
            raise ValueError("This text has ended: open another session.")
