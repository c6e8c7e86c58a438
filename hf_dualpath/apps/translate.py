"""`dualpath translate`: text, standard input or a file through a model, shown word by word."""

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from rich.console import Console

from ..inference.batches import translate_corpus
from ..inference.checkpoints import load_direction
from ..inference.streaming import Event, Read, SimultaneousTranslator, Write, ends_sentence
from ..inference.text import read_lines
from ..model.policies_dualpath import Dials


def translate(arguments: Namespace):
    """Runs the command."""
    dials = Dials.given_in(arguments)
    if arguments.file is not None:
        translate_file(arguments, dials)
        return
    is_sentence_end = None if arguments.no_sentences else ends_sentence
    translator = SimultaneousTranslator.from_pretrained(
        arguments.model,
        arguments.direction,
        is_sentence_end=is_sentence_end,
        device=arguments.device,
        dtype=arguments.dtype,
        trust_remote_code=arguments.trust_remote_code,
        **dials,
    )
    text = arguments.text
    if text is None:
        chunks = arriving(sys.stdin.fileno())
        if arguments.wpm:
            text = sys.stdin.read()
    if text is not None:
        chunks = spoken(text, arguments.wpm) if arguments.wpm else [text]
    output = open(arguments.output, "w", encoding="utf-8") if arguments.output else sys.stdout
    show = as_json if arguments.json else show_path(translator) if arguments.show_path else as_text
    try:
        for event in translator.stream(chunks):
            show(event, output)
    except KeyboardInterrupt:
        pass  # what was written stays
    finally:
        if not arguments.json and not arguments.show_path:
            output.write("\n" if translator.words and not ends_sentence(translator.words[-1]) else "")
        output.flush()
        if output is not sys.stdout:
            output.close()


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


def translate_file(arguments: Namespace, dials: dict):
    """Line by line, in batches: the same words as the stream gives, faster."""
    model, source, target = load_direction(
        arguments.model,
        arguments.direction,
        device=arguments.device,
        dtype=arguments.dtype,
        trust_remote_code=arguments.trust_remote_code,
    )
    lines = read_lines(arguments.file)
    full = [index for index, line in enumerate(lines) if line]
    found, seconds = translate_corpus(
        model,
        source,
        target,
        [lines[index] for index in full],
        arguments.batch_size,
        progress=sys.stderr.isatty(),
        **dials,
    )
    texts = [""] * len(lines)
    for index, result in zip(full, found):
        texts[index] = result.text
    result = "".join(f"{text}\n" for text in texts)
    if arguments.output:
        Path(arguments.output).write_text(result, encoding="utf-8")
        print(f"Wrote {len(lines)} lines to {arguments.output} ({seconds:.1f} s of decoding).", file=sys.stderr)
    else:
        sys.stdout.write(result)


# How events are shown


def as_text(event: Event, output: TextIO):
    """Target words only, a sentence a line."""
    if isinstance(event, Write):
        output.write(event.word + ("\n" if ends_sentence(event.word) else " "))
        output.flush()


def as_json(event: Event, output: TextIO):
    """One event a line."""
    output.write(json.dumps({"event": type(event).__name__.lower(), **asdict(event)}, ensure_ascii=False) + "\n")
    output.flush()


def show_path(translator: SimultaneousTranslator) -> Callable[[Event, TextIO], None]:
    """READ on the left, WRITE on the right, with how many words the translation lags behind."""
    console = None

    def show(event: Event, output: TextIO):
        nonlocal console
        console = console or Console(file=output, highlight=False, soft_wrap=True)
        if isinstance(event, Read):
            console.print(f"READ   {event.word}", style="cyan", markup=False)
        else:
            lag = event.source_words_read - len(translator.words)
            line = f"{'':24}WRITE  {event.word}"
            detail = f"   (read {event.source_words_read}, lag {lag:+d}, {event.seconds * 1000:.0f} ms)"
            console.print(line, style="bold green", end="", markup=False)
            console.print(detail, style="dim", markup=False)
        output.flush()

    return show
