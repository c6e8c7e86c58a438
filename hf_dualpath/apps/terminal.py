"""Typing into a live translation: a word is read at each space; what is typed and what is translated stay apart."""

import atexit
import codecs
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TextIO


PROMPT = "Type: a word is read at each space or Enter. Ctrl-D ends the text, Ctrl-C stops."
INDENT = " " * 8
END_OF_TEXT, ERASE = "\x04", "\b\x7f"


class Screen(io.TextIOBase):
    """A terminal with two writers that never share a line: who types, and the translation, which is indented."""

    def __init__(self, output: TextIO):
        self.output = output
        self.writer: str | None = None  # of the line that the cursor is in

    def write(self, text: str) -> int:
        """Of the translation."""
        return self._write("translation", text)

    def echo(self, text: str):
        """What was typed."""
        self._write("typing", text)
        self.output.flush()

    def erase(self):
        """The last character typed disappears, unless the translation has come after it."""
        if self.writer == "typing":
            self.echo("\b \b")

    def _write(self, writer: str, text: str) -> int:
        if self.writer not in (None, writer):
            self.output.write("\n")
        if writer == "translation" and self.writer != writer:
            self.output.write(INDENT)
        self.output.write(text)
        self.writer = None if text.endswith("\n") else writer
        return len(text)

    def flush(self):
        self.output.flush()

    def isatty(self) -> bool:
        return True


@contextmanager
def key_by_key(descriptor: int) -> Iterator[None]:
    """A terminal that hands over each key at once, unseen; by itself it would wait for Enter."""
    import termios
    import tty

    before = termios.tcgetattr(descriptor)
    restore = partial(termios.tcsetattr, descriptor, termios.TCSADRAIN, before)
    atexit.register(restore)  # for a thread that Ctrl-C leaves behind
    try:
        tty.setcbreak(descriptor, termios.TCSANOW)  # what was typed meanwhile is kept
        yield
    finally:
        restore()
        atexit.unregister(restore)


def typed(descriptor: int, screen: Screen) -> Iterator[str]:
    """Each word as its space is typed. Until then it can be corrected with Backspace."""
    print(PROMPT, file=sys.stderr, flush=True)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    word = ""
    with key_by_key(descriptor):
        while keys := os.read(descriptor, 65536):
            for key in re.sub(r"\x1b\[[\d;]*[A-Za-z~]", "", decoder.decode(keys)):  # arrows move nothing
                if key == END_OF_TEXT:
                    yield word
                    return
                if key in ERASE:
                    if word:
                        word = word[:-1]
                        screen.erase()
                elif key.isspace():
                    screen.echo("\n" if key in "\r\n" else " ")
                    yield word + key
                    word = ""
                elif key.isprintable():
                    screen.echo(key)
                    word += key
