"""What the demo shows, as pure functions: a stream's history in, HTML and SVG out. Text is always escaped."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

from ..inference.events import Event, Read, SentenceEnd, Write
from ..paths.latency import latency_metrics
from ..paths.staircase import Step, staircase
from .style import MARK_COLOR, READ_COLOR, STYLE, WRITE_COLOR


@dataclass
class History:
    """What has been read and written so far, and after how many reads each word was written."""

    source: list[str] = field(default_factory=list)
    target: list[str] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sentence: tuple[int, int] = (0, 0)  # source and target words before the current sentence
    ended: tuple[int, int] = (0, 0)  # the same before the next one, which begins with its first READ

    def add(self, events: Iterable[Event]) -> "History":
        for event in events:
            if isinstance(event, Read):
                self.sentence = self.ended
                self.source.append(event.word)
            elif isinstance(event, Write):
                self.target.append(event.word)
                self.path.append(event.source_words_read)
                self.seconds.append(event.seconds)
            elif isinstance(event, SentenceEnd):
                self.ended = event.source_span[1], event.target_span[1]
        return self

    @property
    def steps(self) -> list[Step]:
        return staircase(self.path, len(self.source))

    def moments(self, seconds: float) -> tuple[list[float], list[float]]:
        """When each READ and when each WRITE happens, with so many seconds between the steps."""
        reads, writes = [], []
        for number, step in enumerate(self.steps):
            (reads if step.is_read else writes).append(number * seconds)
        return reads, writes


def transcript_html(history: History, animate: float | None = None) -> str:
    """Target and source words. Pointing at a target word, or reaching it with Tab, marks the words it waited for.

    With `animate` each word appears when its step is taken, so many seconds after the one before, without any script.
    """

    def words(texts: list[str], moments: list[float], attributes: list[str]) -> str:
        appear = [f' style="animation-delay:{moment:.2f}s"' if animate else "" for moment in moments]
        spans = (f"<span{a}{b}>{escape(word)}</span>" for word, a, b in zip(texts, attributes, appear))
        return " ".join(spans) or "&nbsp;"

    reads, writes = history.moments(animate or 0)
    target = words(
        history.target,
        writes,
        [
            f' class="dp-word dp-r{read}" tabindex="0" aria-label="{escape(word)}, after {read} source words"'
            for word, read in zip(history.target, history.path)
        ],
    )
    source = words(history.source, reads, [""] * len(history.source))
    marks = ",".join(
        f".dp:has(.dp-r{read}:is(:hover,:focus)) .dp-source span:nth-child(-n+{read})"
        for read in sorted(set(history.path))
    )
    style = f"<style>{marks}{{background:{MARK_COLOR};color:#111;border-radius:3px}}</style>" if marks else ""
    return (
        f'<div class="dp{" dp-moving" if animate else ""}">{style}'
        f'<p class="dp-target" role="log" aria-live="polite" aria-label="translation">{target}</p>'
        f'<p class="dp-source" aria-label="source words read">{source}</p></div>'
    )


def stats_html(history: History) -> str:
    """Of the current sentence: the average lag and the lag right now. Of all words: the time one takes."""
    read, written = history.sentence
    source, path = len(history.source) - read, [count - read for count in history.path[written:]]
    average = f"{latency_metrics(path, source)['AL']:.1f} words on average (AL), " if path else ""
    time = f" · {1000 * sum(history.seconds) / len(history.seconds):.0f} ms per word" if history.seconds else ""
    return f'<p class="dp-stats"><b>Lag in this sentence</b> {average}{source - len(path):+d} now{time}</p>'


CELL, LEFT, TOP, SHOWN = 22, 96, 84, 40


def grid_svg(history: History, animate: float | None = None) -> str:
    """The READ/WRITE grid: reads go right, writes go down. The last `SHOWN` words of a long stream are drawn.

    With `animate` each step appears after so many seconds, without any script.
    """
    from_source, from_target = max(0, len(history.source) - SHOWN), max(0, len(history.target) - SHOWN)
    columns, rows = len(history.source) - from_source, len(history.target) - from_target
    width, height = LEFT + CELL * max(columns, 1) + 64, TOP + CELL * max(rows, 1) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="dp-grid" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{columns} words read, {rows} written" '
        'font-family="system-ui, sans-serif" font-size="12" stroke-width="2.5" stroke-linecap="square">'
        f'<text x="4" y="40" fill="{READ_COLOR}" font-weight="bold">READ →</text>'
        f'<text x="4" y="58" fill="{WRITE_COLOR}" font-weight="bold">WRITE ↓</text>'
    ]
    for number, step in enumerate(history.steps):
        column, row = step.read - from_source, step.written - from_target
        if (column if step.is_read else row) < 0:
            continue
        x, y = LEFT + CELL * max(column, 0), TOP + CELL * max(row, 0)
        if step.is_read:
            middle, word = x + CELL // 2, escape(history.source[step.read][:14])
            drawn = (
                f'<text x="{middle}" y="{TOP - 8}" fill="currentColor" '
                f'transform="rotate(-50 {middle} {TOP - 8})">{word}</text>'
                f'<path d="M{x} {y}h{CELL}" stroke="{READ_COLOR}"/>'
            )
        else:
            word = escape(history.target[step.written][:14])
            drawn = (
                f'<rect x="{LEFT}" y="{y}" width="{x - LEFT}" height="{CELL}" fill="{READ_COLOR}" opacity="0.16"/>'
                f'<text x="{LEFT - 6}" y="{y + 15}" text-anchor="end" fill="currentColor">{word}</text>'
                f'<path d="M{x} {y}v{CELL}" stroke="{WRITE_COLOR}"/>'
            )
        parts.append(f"<g>{drawn}</g>" if animate is None else _appearing(drawn, number * animate))
    return "".join(parts) + "</svg>"


def _appearing(drawn: str, moment: float) -> str:
    appear = f'<animate attributeName="opacity" from="0" to="1" begin="{moment:.2f}s" dur="0.15s" fill="freeze"/>'
    return f'<g opacity="0">{appear}{drawn}</g>'


def translation_html(history: History, note: str = "") -> str:
    """The translation and its lag, or what to do first."""
    message = f'<p role="alert"><b>{escape(note)}</b></p>' if note else ""
    if not history.source:
        return f'{message}<div class="dp"><p class="dp-target">…</p><p>The translation appears here.</p></div>'
    return f"{message}{transcript_html(history)}{stats_html(history)}"


def grid_html(history: History, animate: float | None = None) -> str:
    """The grid and how to read it."""
    return (
        f'<div class="dp-scroll">{grid_svg(history, animate)}</div>'
        '<p class="dp-hint">A word that is read goes right, a word that is written goes down.</p>'
    )


def second_html(history: History) -> str:
    """Everything about the stream to compare with."""
    return f"<h3>Second stream</h3>{translation_html(history)}{grid_html(history)}"


def replay_html(history: History, title: str, seconds: float = 0.5) -> str:
    """A page of its own that plays the stream, without a script and without a network."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width">'
        "<style>:root{color-scheme:light dark}"
        "body{font-family:system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
        f"{STYLE}</style>"
        f"<h1>{escape(title)}</h1>{transcript_html(history, seconds)}{grid_html(history, seconds)}</html>"
    )
