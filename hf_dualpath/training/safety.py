"""What keeps a run safe: one run a folder, a stop that saves first, and a full disk said in one sentence."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


LOCK = ".lock"
_locked: set[Path] = set()  # by this process: `dualpath train` holds its folder longer than the trainer inside it


@contextmanager
def one_run_in(folder: str | Path, is_main_process: bool = True) -> Iterator[None]:
    """Refuses a second run in a folder. The lock is the system's, so that it goes when the process dies."""
    home = Path(folder).resolve()
    if not is_main_process or home in _locked or os.name != "posix":
        yield
        return
    import fcntl

    with writing_to(folder):
        home.mkdir(parents=True, exist_ok=True)
        # Not through a link: the lock's own text would overwrite what it leads to.
        descriptor = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        file = os.fdopen(descriptor, "a+")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise BlockingIOError(
                f"Process {file.read()} is training in {folder}: wait for its end, or give another `output_dir`."
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        _locked.add(home)
        try:
            yield
        finally:
            _locked.remove(home)


@contextmanager
def writing_to(folder: str | Path) -> Iterator[None]:
    """A disk that is full or read-only, in one sentence, whichever library met it."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:  # a sentence already
            raise
        raise cannot_write(folder, error.strerror) from error
    except SafetensorError as error:
        raise cannot_write(folder, str(error)) from error
    except RuntimeError as error:
        if "PytorchStreamWriter" not in str(error) and "inline_container" not in str(error):  # torch.save's own words
            raise
        raise cannot_write(folder, "the disk may be full") from error


def cannot_write(folder: str | Path, reason: str) -> OSError:
    return OSError(
        f"{folder} cannot be written ({reason}): make room and start again, which goes on from the last complete "
        "checkpoint, or give another `output_dir`."
    )


class StopSignals:
    """While open, notes SIGTERM and SIGINT instead of obeying; the same one a second time acts as usual."""

    def __init__(self):
        self.received = 0
        self.before = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # no other thread may set handlers
            self.before = {number: signal.signal(number, self.note) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_):
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def note(self, number: int, frame):
        if self.received == number:
            signal.signal(number, self.before[number])
            signal.raise_signal(number)
        self.received = self.received or number

    def obey(self):
        """Now does what the signal asked for."""
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received:
            raise SystemExit(128 + self.received)
