"""Many texts at once over one direction of a model."""

from collections import deque
from collections.abc import Iterator

from .events import Event
from .streaming import SimultaneousTranslator


class StreamPool:
    r"""
    Many texts at once over one direction of a model.

    Each session is fed text and handed events as they are decided. Nothing is computed but in `step`, which takes all
    sessions a little further.

    Args:
        translator ([`SimultaneousTranslator`]): The model, its tokenizers, splitter and dials.
        max_sessions (`int`, *optional*): How many sessions may be open at once.

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

    def __init__(self, translator: SimultaneousTranslator, max_sessions: int | None = None):
        self.translator, self.max_sessions = translator, max_sessions
        self.sessions: set[Session] = set()

    def open(self, **dials) -> "Session":
        """A new text; `dials` replace the translator's."""
        if self.max_sessions is not None and len(self.sessions) >= self.max_sessions:
            raise ValueError(f"All {self.max_sessions} streams are taken: close one first.")
        session = Session(self, self.translator.fork(**dials))
        self.sessions.add(session)
        return session

    def step(self) -> bool:
        """One tick for all sessions together. False when there is nothing left to do until more text comes."""
        return True in [session._advance() for session in self.sessions]


class Session:
    """One text of a [`StreamPool`]."""

    def __init__(self, pool: StreamPool, translator: SimultaneousTranslator):
        self._pool, self._translator = pool, translator
        self._steps: deque[tuple] = deque()  # what was asked for and not yet begun: a method and its arguments
        self._current: Iterator[Event] = iter(())
        self._events: list[Event] = []
        self._finished = False
        self.done = False

    def push(self, text: str | bytes):
        """More of the source. Nothing is computed here."""
        self._ask(self._translator._push, text)

    def pause(self):
        """The speaker pauses: the sentence ends, the text goes on."""
        self._ask(self._translator._pause)

    def finish(self):
        """The source has ended; once the rest is written the session is `done`."""
        self._ask(self._translator._finish)
        self._finished = True

    def set_dials(self, **dials):
        """Other dials from the next sentence on."""
        self._translator.model.prepare_simultaneous(None, None, **(self._translator.dials | dials))  # refuses now
        self._ask(self._change_dials, dials)

    def close(self):
        """Gives the text up."""
        self._pool.sessions.discard(self)
        self.done = True

    def take(self) -> list[Event]:
        """The events decided since last asked."""
        events, self._events = self._events, []
        return events

    @property
    def text(self) -> str:
        """All that has been written."""
        return self._translator.text

    @property
    def words_read(self) -> int:
        return self._translator.words_read

    def _ask(self, method, *arguments):
        if self._finished or self.done:
            raise ValueError("This text has ended: open another session.")
        self._steps.append((method, *arguments))

    def _change_dials(self, dials: dict) -> Iterator[Event]:
        self._translator.dials = self._translator.dials | dials
        if not (self._translator._sentence or self._translator._unread):
            self._translator._start_sentence()
        return iter(())

    def _advance(self) -> bool:
        """The next event; False when there is none."""
        while True:
            event = next(self._current, None)
            if event is not None:
                self._events.append(event)
                return True
            if not self._steps:
                break
            method, *arguments = self._steps.popleft()
            self._current = method(*arguments)
        if self._finished:
            self.done = True
        return False
