"""`dualpath translate`: text, standard input or a file through a model, here or at a service, shown word by word."""

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ..inference.events import Event, Read, SentenceEnd, Write, as_dict
from ..inference.text import read_lines, read_raw_lines
from .captions import FORMATS, final_text, heard_words, lines_of, read_captions, timed_captions, written
from .commands.options import loading_of
from .terminal import Screen, typed


if TYPE_CHECKING:
    from ..inference.streaming import SimultaneousTranslator
    from .client import RemoteTranslator

AT_ONCE = 8  # lines of a file that a service translates at the same time


def translate(arguments: Namespace):
    """Runs the command."""
    arguments.format = arguments.format or format_of(arguments.file)
    translator, translate_lines = (local if arguments.server is None else remote)(arguments)
    as_events = arguments.json or arguments.show_path or arguments.wpm
    if arguments.format in ("srt", "vtt") and not as_events:
        translate_captions(arguments, translator)
    elif arguments.file is not None and arguments.format == "text" and not as_events:
        translate_file(arguments, translate_lines)
    else:
        translate_live(arguments, translator)


def format_of(file: str | None) -> str:
    """By the ending of a file's name."""
    ending = Path(file or "").suffix[1:].lower()
    return ending if ending in FORMATS else "text"


def local(arguments: Namespace) -> tuple["SimultaneousTranslator", Callable[[list[str]], list[str]]]:
    """A model of our own: as a stream, and for many lines at once."""
    from ..inference.batches import translate_texts
    from ..inference.splitting import SentenceSplitter
    from ..inference.streaming import SimultaneousTranslator
    from ..model.dials_dualpath import Dials

    options = {
        "splitter": None if arguments.no_sentences else SentenceSplitter,
        "max_sentence_words": arguments.max_sentence_words,
        **Dials.given_in(arguments),
    }
    translator = SimultaneousTranslator.from_pretrained(
        arguments.model, arguments.direction, **loading_of(arguments), **options
    )
    loaded = translator.model, translator.source_tokenizer, translator.target_tokenizer

    def translate_lines(lines: list[str]) -> list[str]:
        """In batches: the same words as the stream gives, faster."""
        found, _ = translate_texts(
            *loaded, lines, batch_size=arguments.batch_size, progress=sys.stderr.isatty(), **options
        )
        return [" ".join(sentence.text for sentence in line if sentence.text) for line in found]

    return translator, translate_lines


def remote(arguments: Namespace) -> tuple["RemoteTranslator", Callable[[list[str]], list[str]]]:
    """A model at a service."""
    from ..model.dials_dualpath import Dials
    from .client import RemoteTranslator

    dials = Dials.given_in(arguments)

    def connect() -> RemoteTranslator:
        return RemoteTranslator(arguments.server, arguments.direction, arguments.model, arguments.room, **dials)

    def translate_lines(lines: list[str]) -> list[str]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda line: connect().translate(line), lines))

    return connect(), translate_lines


def translate_live(arguments: Namespace, translator: "SimultaneousTranslator | RemoteTranslator"):
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
    if arguments.format == "jsonl":
        lines = read_raw_lines(arguments.file) if arguments.file else lines_of(arriving(sys.stdin.fileno()))
        texts = [final_text(lines)]
        return [spoken(" ".join(texts[0]), arguments.wpm)] if arguments.wpm else texts, sys.stdout
    if arguments.format in ("srt", "vtt"):
        texts = [" ".join(word for word, _ in heard_words(captions_of(arguments)))]
    elif arguments.file is not None:
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


def translate_file(arguments: Namespace, translate_lines: Callable[[list[str]], list[str]]):
    """Line by line."""
    lines = read_lines(arguments.file)
    began = time.perf_counter()
    result = "".join(line + "\n" for line in translate_lines(lines))
    seconds = time.perf_counter() - began
    if arguments.output:
        Path(arguments.output).write_text(result, encoding="utf-8")
        print(f"Wrote {len(lines)} lines to {arguments.output} ({seconds:.1f} s of decoding).", file=sys.stderr)
    else:
        sys.stdout.write(result)


def captions_of(arguments: Namespace) -> list:
    """Those of a file, or of standard input."""
    if arguments.file is not None:
        return read_captions("\n".join(read_raw_lines(arguments.file)))
    return read_captions(sys.stdin.buffer.read().decode("utf-8", "replace"))


def translate_captions(arguments: Namespace, translator: "SimultaneousTranslator | RemoteTranslator"):
    """Captions with times into captions with times, in the format that OUTPUT's name says."""
    heard = heard_words(captions_of(arguments))
    form = format_of(arguments.output) if arguments.output else arguments.format
    if form not in ("srt", "vtt"):
        raise ValueError(f"{arguments.output} ends in neither .srt nor .vtt: captions are written as one of them.")
    said = 0

    def words() -> Iterator[str]:
        nonlocal said
        for word, _ in heard:
            said += 1
            yield word + " "

    events = translator.stream(words())
    if arguments.server is None:  # a service is told more than it has answered
        # A sentence's end may be known only at the word after it: "am 3. Wir".
        events = (replace(event, source_words_read=said) if isinstance(event, Write) else event for event in events)
    captions = timed_captions(events, [time for _, time in heard])
    output = open(arguments.output, "w", encoding="utf-8") if arguments.output else sys.stdout
    try:
        for block in written(captions, form):
            output.write(block)
            output.flush()
    finally:
        if arguments.output:
            output.close()


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


def as_json(event: Event, output: TextIO):
    """One event a line."""
    output.write(json.dumps(as_dict(event), ensure_ascii=False) + "\n")
    output.flush()


def show_path(translator: "SimultaneousTranslator | RemoteTranslator") -> Callable[[Event, TextIO], None]:
    """READ on the left, WRITE on the right, with how many words the translation lags behind."""
    from rich.console import Console

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
