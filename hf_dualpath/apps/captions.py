"""Text as live sources give it, and captions with times.

Plain text; JSON lines of speech recognisers, whose partial hypotheses are not read before they are final; SRT and
WebVTT files. A word of a caption counts as heard when its share of the caption's time has passed. A translated caption
is shown when all that its words were translated from has been heard, never before.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape, unescape
from math import ceil

from ..errors import DataError
from ..inference.events import Event, SentenceEnd, Write
from ..inference.splitting import whole_words


FORMATS = ("text", "jsonl", "srt", "vtt")
LONGEST_CAPTION = 84  # characters: two lines
LONGEST_WAIT = 3.0  # seconds that a caption waits for more words
SHORTEST, LONGEST = 1.0, 7.0  # seconds for which a caption is shown
SECONDS_A_CHARACTER = 0.05  # to read it

TIME = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{2})[.,](\d{3})"
TIMES = re.compile(rf"^\s*{TIME}\s+-->\s+{TIME}")
TAGS = re.compile(r"<[^<>]*>|\{\\[^{}]*\}")  # none begins inside another: else a line of `<` takes quadratic time


@dataclass(frozen=True)
class Caption:
    """A text and when it is shown, in seconds."""

    start: float
    end: float
    text: str


# In


def final_text(lines: Iterable[str | bytes]) -> Iterator[str]:
    """The text of JSON lines with `text` and, for hypotheses that may still change, `is_final` false."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            text, final = fields["text"], fields.get("is_final", True)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise DataError(f'Line {number} is not JSON such as {{"text": "...", "is_final": true}}.') from error
        if not isinstance(text, str) or not isinstance(final, bool):
            raise DataError(f"In line {number} `text` is a text and `is_final` is true or false.")
        if final:
            yield text + " "


def lines_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines as they come."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    yield rest


def read_captions(text: str) -> list[Caption]:
    """The captions of an SRT or WebVTT file, in the order of their times."""
    captions = []
    for block in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")):
        lines = block.strip("\n").split("\n")
        at = next((place for place, line in enumerate(lines[:2]) if TIMES.match(line)), None)
        if at is None:
            continue  # WebVTT's header, notes and styles
        start, end = times_of(lines[at])
        words = unescape(TAGS.sub("", " ".join(lines[at + 1 :]))).split()
        if end < start:
            raise DataError(f"A caption ends before it starts: {lines[at].strip()}")
        captions.append(Caption(start, end, " ".join(words)))
    if not captions:
        raise DataError("There are no captions with times in the text: it is neither SRT nor WebVTT.")
    return sorted(captions, key=lambda caption: caption.start)


def times_of(line: str) -> tuple[float, float]:
    parts = [int(part or 0) for part in TIMES.match(line).groups()]
    start, end = (
        hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
        for hours, minutes, seconds, milliseconds in (parts[:4], parts[4:])
    )
    return start, end


def heard_words(captions: Iterable[Caption]) -> list[tuple[str, float]]:
    """Each word and when it has been heard: the time of a caption is shared by its characters."""
    heard, last = [], 0.0
    for caption in captions:
        words = whole_words(caption.text)
        characters, spoken = sum(map(len, words)), 0
        for word in words:
            spoken += len(word)
            last = max(last, caption.start + (caption.end - caption.start) * spoken / characters)
            heard.append((word, last))
    return heard


# Out


def timed_captions(events: Iterable[Event], heard: list[float]) -> Iterator[Caption]:
    """Captions of a translation. `heard` says when each source word has been heard."""
    words: list[str] = []
    times: list[float] = []
    shown_until = 0.0

    def caption() -> Caption:
        nonlocal shown_until
        start, text = max(times[-1], shown_until), " ".join(words)
        shown_until = start + min(max(SHORTEST, SECONDS_A_CHARACTER * len(text)), LONGEST)
        words.clear(), times.clear()
        return Caption(start, shown_until, text)

    for event in events:
        if isinstance(event, Write):
            time = heard[event.source_words_read - 1]
            length = sum(map(len, words)) + len(words) + len(event.word)
            if words and (length > LONGEST_CAPTION or time - times[0] > LONGEST_WAIT):
                yield caption()
            words.append(event.word)
            times.append(time)
        elif isinstance(event, SentenceEnd) and words:
            yield caption()
    if words:
        yield caption()


def written(captions: Iterable[Caption], form: str) -> Iterator[str]:
    """SRT or WebVTT, a block at a time."""
    if form == "vtt":
        yield "WEBVTT\n\n"
    for number, caption in enumerate(captions, 1):
        start, end = (clock(time, "," if form == "srt" else ".") for time in (caption.start, caption.end))
        head = f"{number}\n" if form == "srt" else ""
        text = escape(caption.text, quote=False) if form == "vtt" else caption.text
        yield f"{head}{start} --> {end}\n{text}\n\n"


def clock(seconds: float, point: str) -> str:
    milliseconds = ceil(round(1000 * seconds, 6))  # rather a moment later than earlier
    minutes, milliseconds = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{milliseconds // 1000:02}{point}{milliseconds % 1000:03}"
