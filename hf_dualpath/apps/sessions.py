"""What visitors of the demo have going: streams over one model, a session for each tab, and a limit to them all."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from threading import Event, Lock, RLock
from typing import NamedTuple

from ..inference.checkpoints import load_directions
from ..inference.streaming import SimultaneousTranslator
from ..model.policies_dualpath import Dials
from .view import History, grid_html, second_html, translation_html


MAX_CHARACTERS = 2000
MAX_WORDS_A_SECOND = 200  # what one visitor may push, so that others are served too
MAX_SESSIONS = 200
IDLE_SECONDS = 1800
SPEEDS = (60, 600)  # words per minute
NO_LIMIT = 20  # a largest lag this long is none


class Models:
    """The translators of all directions of a checkpoint; each visitor's streams are forks of them.

    `loading` are the options of [`load_directions`].
    """

    def __init__(self, path: str | Path, **loading):
        self.translators = {
            name: SimultaneousTranslator(*loaded) for name, loaded in load_directions(path, **loading).items()
        }

    @property
    def dials(self) -> dict[str, float]:
        """The dials that do something for this model, and where they stand."""
        model = next(iter(self.translators.values())).model
        saved = Dials.from_config(model.generation_config)
        values = {
            "write_threshold": saved.write_threshold,
            "wait_k": saved.wait_k or model.config.wait_k,
            "max_lag": saved.max_lag or NO_LIMIT,
            "agreement": saved.agreement,
            "frontier": saved.frontier,
        }
        return {name: value for name, value in values.items() if name in model.config.policy_class.dials}


class Settings(NamedTuple):
    """What a visitor has chosen."""

    direction: str
    streams: list[dict]  # the dials of the stream, and of a second one to compare with


def dial_value(name: str, position: float) -> float | int | None:
    """What a slider's position means."""
    if name == "max_lag" and position >= NO_LIMIT:
        return None
    return position if name == "write_threshold" else int(position)


@dataclass
class Panel:
    """One stream of one visitor."""

    translator: SimultaneousTranslator
    history: History = field(default_factory=History)

    def push(self, text: str):
        self.history.add(self.translator.push(text))

    def finish(self):
        self.history.add(self.translator.finish())


def one_at_a_time(method):
    """A tab sends what is typed and what is dialled as events of their own, and they may arrive together."""

    @wraps(method)
    def locked(self, *arguments):
        with self.lock:
            return method(self, *arguments)

    return locked


class Session:
    """One visitor's input, going through one stream or through two with dials of their own.

    Each method returns what to show: the translation, the grid, and the second stream.
    """

    def __init__(self, models: Models):
        self.models = models
        self.lock = RLock()
        self.stopped = Event()  # ends the playing of a text
        self.last_used = time.monotonic()
        self.last_paste = -1e9
        self.clear()

    @one_at_a_time
    def show(self) -> tuple[str, str, str]:
        first, *second = (panel.history for panel in self.panels) if self.panels else (History(),)
        return translation_html(first, self.note), grid_html(first), second_html(second[0]) if second else ""

    @one_at_a_time
    def stop(self):
        """Nothing is played any more."""
        self.stopped.set()
        self.stopped = Event()

    @one_at_a_time
    def clear(self) -> tuple[str, str, str]:
        self.stop()
        self.settings: Settings | None = None
        self.text = self.note = ""
        self.given: str | None = ""  # what the page itself put into the text box, or plays from it
        self.panels: list[Panel] = []
        return self.show()

    @one_at_a_time
    def restart(self, settings: Settings):
        self.clear()
        translator = self.models.translators[settings.direction]
        self.panels = [Panel(translator.fork(**dials)) for dials in settings.streams]

    def cut(self, text: str) -> str:
        self.note = f"Only the first {MAX_CHARACTERS} characters are read." if len(text) > MAX_CHARACTERS else ""
        return text[:MAX_CHARACTERS]

    @one_at_a_time
    def push(self, text: str):
        for panel in self.panels:
            panel.push(text)

    @one_at_a_time
    def choose(self, text: str):
        """An example goes into the text box, to be played."""
        self.clear()
        self.given = text

    @one_at_a_time
    def edit(self, text: str, settings: Settings) -> tuple[str, str, str]:
        """The text box has changed: by the visitor, unless it holds what the page put there."""
        return self.show() if text == self.given else self.type(text, settings)

    @one_at_a_time
    def type(self, text: str, settings: Settings) -> tuple[str, str, str]:
        """The text box as it is now. What was only added to is read on from there; other changes start afresh."""
        if settings != self.settings or not text.startswith(self.text):
            self.restart(settings)
            self.settings = settings
        self.given = None
        text = self.cut(text)
        added = text[len(self.text) :]
        words = len(added.split())
        if words > 20:  # pasted, not typed
            if time.monotonic() - self.last_paste < words / MAX_WORDS_A_SECOND:
                self.note = "That was a lot of text at once: wait a moment, then type on."
                return self.show()
            self.last_paste = time.monotonic()
        self.text = text
        self.push(added)
        return self.show()

    @one_at_a_time
    def finish(self, text: str, settings: Settings) -> tuple[str, str, str]:
        """The text has ended: the rest is written."""
        self.type(text, settings)
        for panel in self.panels:
            panel.finish()
        self.settings = None
        return self.show()

    def play(self, text: str, words_per_minute: float, settings: Settings) -> Iterator[tuple[str, str, str]]:
        """The text at speaking speed, until the visitor does something else."""
        slowest, fastest = SPEEDS
        pause = 60 / min(max(words_per_minute, slowest), fastest)
        with self.lock:
            self.restart(settings)
            self.given, text, stopped = text, self.cut(text), self.stopped
        for word in text.split():
            with self.lock:
                if stopped.is_set():
                    break
                self.push(word + " ")
            yield self.show()
            stopped.wait(pause)
        with self.lock:
            if not stopped.is_set():
                for panel in self.panels:
                    panel.finish()
        yield self.show()  # where it was stopped, what is going on instead


class Sessions:
    """Every visitor's session, by the browser tab's hash.

    Closing the tab ends a session. So does leaving it idle, and above the limit the one that was idle longest goes.
    Who comes back later loses nothing: the text box holds the text, and it is read afresh.
    """

    def __init__(self, models: Models, limit: int = MAX_SESSIONS, idle_seconds: float = IDLE_SECONDS):
        self.models, self.limit, self.idle_seconds = models, limit, idle_seconds
        self.lock = Lock()
        self.open: dict[str, Session] = {}  # the one used last is the last

    def of(self, tab: str) -> Session:
        with self.lock:
            session = self.open.pop(tab, None) or Session(self.models)
            self.open[tab] = session
            session.last_used = time.monotonic()
            for name, other in list(self.open.items()):
                if len(self.open) <= self.limit and session.last_used - other.last_used <= self.idle_seconds:
                    break
                self.open.pop(name).stop()
        return session

    def drop(self, tab: str):
        with self.lock:
            session = self.open.pop(tab, None)
        if session is not None:
            session.stop()
