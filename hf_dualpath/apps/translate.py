"""`dualpath translate`: text, standard input or a file through a model, shown word by word."""

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from rich.console import Console

from ..inference.batches import translate_texts
from ..inference.checkpoints import load_direction
from ..inference.events import Event, Read, SentenceEnd, Write
from ..inference.splitting import SentenceSplitter
from ..inference.streaming import SimultaneousTranslator
from ..inference.text import read_lines
from ..model.policies_dualpath import Dials
from .cli import loading_of
from .terminal import Screen, typed


def translate(arguments: Namespace):
    """Runs the command."""
    loaded = load_direction(arguments.model, arguments.direction, **loading_of(arguments))
    options = {
        "splitter": None if arguments.no_sentences else SentenceSplitter,
        "max_sentence_words": arguments.max_sentence_words,
        **Dials.given_in(arguments),
    }
    if arguments.file is not None and not (arguments.json or arguments.show_path or arguments.wpm):
        translate_file(arguments, loaded, options)
    else:
        translate_live(arguments, SimultaneousTranslator(*loaded, **options))


def translate_live(arguments: Namespace, translator: SimultaneousTranslator):
    """Event by event."""
    texts, output = sources(arguments)
    output = open(arguments.output, "w", encoding="utf-8") if arguments.output else output
    show = as_json if arguments.json else show_path(translator) if arguments.show_path else as_text()
    try:
        for chunks in texts:
            for event in translator.stream(chunks):
                show(event, output)
    except KeyboardInterrupt:  # what was written stays
        output.write("" if arguments.json else "\n")
    finally:
        output.flush()
        if arguments.output:
            output.close()


def sources(arguments: Namespace) -> tuple[list[Iterable[str | bytes]], TextIO]:
    """The texts to translate, each as the chunks in which it arrives; and where the translation is shown."""
    if arguments.file is not None:
        texts = read_lines(arguments.file)
    elif arguments.text is not None:
        texts = [arguments.text]
    elif sys.stdin.isatty() and os.name == "posix":
        if arguments.wpm:
            raise ValueError("--wpm replays TEXT, a file or what comes through a pipe: you type at your own speed.")
        apart = arguments.output or not sys.stdout.isatty()
        screen = Screen(sys.stderr if apart else sys.stdout)
        return [typed(sys.stdin.fileno(), screen)], sys.stdout if apart else screen
    elif arguments.wpm:
        texts = [sys.stdin.buffer.read().decode("utf-8", "replace")]
    else:
        return [arriving(sys.stdin.fileno())], sys.stdout
    return [spoken(text, arguments.wpm) if arguments.wpm else [text] for text in texts], sys.stdout


def arriving(descriptor: int) -> Iterator[bytes]:
    """Bytes as they come, without waiting for a line or a buffer to be full."""
    while chunk := os.read(descriptor, 65536):
        yield chunk


def spoken(text: str, words_per_minute: float) -> Iterator[str]:
    """A text at speaking speed."""
    pause = 60 / words_per_minute
    for word in text.split():
        yield word + " "
        time.sleep(pause)


def translate_file(arguments: Namespace, loaded: tuple, options: dict):
    """Line by line, in batches: the same words as the stream gives, faster."""
    lines = read_lines(arguments.file)
    found, seconds = translate_texts(
        *loaded, lines, batch_size=arguments.batch_size, progress=sys.stderr.isatty(), **options
    )
    result = "".join(" ".join(sentence.text for sentence in line if sentence.text) + "\n" for line in found)
    if arguments.output:
        Path(arguments.output).write_text(result, encoding="utf-8")
        print(f"Wrote {len(lines)} lines to {arguments.output} ({seconds:.1f} s of decoding).", file=sys.stderr)
    else:
        sys.stdout.write(result)


# How events are shown


def as_text() -> Callable[[Event, TextIO], None]:
    """Target words only, a sentence a line."""
    space = ""

    def show(event: Event, output: TextIO):
        nonlocal space
        if isinstance(event, Write):
            output.write(space + event.word)
            space = " "
        elif isinstance(event, SentenceEnd) and event.target:
            output.write("\n")
            space = ""
        output.flush()

    return show


NAMES = {Read: "read", Write: "write", SentenceEnd: "sentence_end"}


def as_json(event: Event, output: TextIO):
    """One event a line."""
    output.write(json.dumps({"event": NAMES[type(event)], **asdict(event)}, ensure_ascii=False) + "\n")
    output.flush()


def show_path(translator: SimultaneousTranslator) -> Callable[[Event, TextIO], None]:
    """READ on the left, WRITE on the right, with how many words the translation lags behind."""
    console = None

    def show(event: Event, output: TextIO):
        nonlocal console
        console = console or Console(file=output, highlight=False, soft_wrap=True)
        if isinstance(event, Read):
            console.print(f"READ   {event.word}", style="cyan", markup=False)
        elif isinstance(event, Write):
            lag = event.source_words_read - len(translator.words)
            line = f"{'':24}WRITE  {event.word}"
            detail = f"   (read {event.source_words_read}, lag {lag:+d}, {event.seconds * 1000:.0f} ms)"
            console.print(line, style="bold green", end="", markup=False)
            console.print(detail, style="dim", markup=False)
        else:
            console.print()
        output.flush()

    return show
