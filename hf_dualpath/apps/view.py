"""What the demo shows, as pure functions: a stream's history in, HTML and SVG out. Text is always escaped."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

from ..inference.events import Event, Read, Write
from ..paths.latency import latency_metrics


@dataclass
class History:
    """What has been read and written so far, and after how many reads each word was written."""

    source: list[str] = field(default_factory=list)
    target: list[str] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    actions: str = ""  # R and W, in order

    def add(self, events: Iterable[Event]) -> "History":
        for event in events:
            if isinstance(event, Read):
                self.source.append(event.word)
                self.actions += "R"
            elif isinstance(event, Write):
                self.target.append(event.word)
                self.path.append(event.source_words_read)
                self.seconds.append(event.seconds)
                self.actions += "W"
        return self


def transcript_html(history: History) -> str:
    """Source and target words. Pointing at a target word, or reaching it with Tab, marks the words it waited for."""
    source = " ".join(f"<span>{escape(word)}</span>" for word in history.source)
    target = " ".join(
        f'<span class="dp-word dp-r{read}" tabindex="0" aria-label="{escape(word)}, after {read} source words">'
        f"{escape(word)}</span>"
        for word, read in zip(history.target, history.path)
    )
    marks = ",".join(
        f".dp:has(.dp-r{read}:is(:hover,:focus)) .dp-source span:nth-child(-n+{read})"
        for read in sorted(set(history.path))
    )
    style = f"<style>{marks}{{background:#f5b642;color:#111;border-radius:3px}}</style>" if marks else ""
    return (
        f'<div class="dp">{style}<p class="dp-source" aria-label="source words read">{source or "&nbsp;"}</p>'
        f'<p class="dp-target" role="log" aria-live="polite" aria-label="translation">{target or "&nbsp;"}</p></div>'
    )


def stats_html(history: History) -> str:
    """Average lagging, the lag right now, and the time a word takes."""
    if not history.target:
        return '<p class="dp-stats">Nothing written yet.</p>'
    lagging = latency_metrics(history.path, len(history.source))["AL"]
    lag = len(history.source) - len(history.target)
    milliseconds = 1000 * sum(history.seconds) / len(history.seconds)
    return (
        f'<p class="dp-stats"><b>AL</b> {lagging:.2f} words &nbsp; <b>lag now</b> {lag:+d} &nbsp; '
        f"<b>time</b> {milliseconds:.0f} ms a word</p>"
    )


CELL, LEFT, TOP, SHOWN = 22, 96, 84, 40


def grid_svg(history: History, animate: float | None = None) -> str:
    """The READ/WRITE grid: reads go right, writes go down. The last `SHOWN` words of a long stream are drawn.

    With `animate` each step appears after so many seconds, without any script.
    """
    from_source, from_target = max(0, len(history.source) - SHOWN), max(0, len(history.target) - SHOWN)
    source, target = history.source[from_source:], history.target[from_target:]
    width, height = LEFT + CELL * max(len(source), 1) + 64, TOP + CELL * max(len(target), 1) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="dp-grid" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{len(source)} words read, {len(target)} written" '
        'font-family="system-ui, sans-serif" font-size="12">'
    ]
    moments = _moments(history.actions, animate)
    for index, word in enumerate(source):
        x = LEFT + CELL * index + CELL / 2
        show = _appear(moments["R"], from_source + index, animate)
        parts.append(
            f'<g{show[0]}>{show[1]}<text x="{x:.0f}" y="{TOP - 8}" fill="currentColor" '
            f'transform="rotate(-50 {x:.0f} {TOP - 8})">{escape(word[:14])}</text></g>'
        )
    before = from_target and history.path[from_target - 1]
    for index, word in enumerate(target):
        y, read = TOP + CELL * index, history.path[from_target + index]
        x0, x1 = (LEFT + CELL * max(0, count - from_source) for count in (before, read))
        show = _appear(moments["W"], from_target + index, animate)
        parts.append(
            f'<g{show[0]}>{show[1]}<rect x="{LEFT}" y="{y}" width="{x1 - LEFT}" height="{CELL}" '
            'fill="#3b82f6" opacity="0.16"/>'
            f'<text x="{LEFT - 6}" y="{y + CELL / 2 + 4:.0f}" text-anchor="end" fill="currentColor">'
            f"{escape(word[:14])}</text>"
            f'<path d="M{x0} {y}H{x1}" stroke="#2563eb" stroke-width="2.5" fill="none"/>'
            f'<path d="M{x1} {y}V{y + CELL}" stroke="#dc2626" stroke-width="2.5" fill="none"/></g>'
        )
        before = read
    return "".join(parts) + "</svg>"


def _moments(actions: str, seconds: float | None) -> dict[str, list[float]]:
    """When each read and each write happens in an animation."""
    moments: dict[str, list[float]] = {"R": [], "W": []}
    for step, action in enumerate(actions):
        moments[action].append(step * (seconds or 0))
    return moments


def _appear(moments: list[float], index: int, animate: float | None) -> tuple[str, str]:
    if animate is None:
        return "", ""
    begin = (
        f'<animate attributeName="opacity" from="0" to="1" begin="{moments[index]:.2f}s" dur="0.15s" fill="freeze"/>'
    )
    return ' opacity="0"', begin


STYLE = """
.dp p { font-size: 1.15rem; line-height: 1.7; margin: .2rem 0; overflow-wrap: anywhere }
.dp-target { font-weight: 600 }
.dp-word { cursor: help; border-bottom: 1px dotted currentColor }
.dp-word:focus { outline: 2px solid #f5b642 }
.dp-stats { font-size: .95rem }
.dp-scroll { overflow-x: auto }
"""


def panel_html(history: History, note: str = "") -> str:
    """Everything about one stream."""
    message = f'<p role="alert"><b>{escape(note)}</b></p>' if note else ""
    grid = f'<div class="dp-scroll">{grid_svg(history)}</div>'
    return f"{message}{transcript_html(history)}{stats_html(history)}{grid}"


def replay_html(history: History, title: str, seconds: float = 0.5) -> str:
    """A page of its own that plays the stream, without a script and without a network."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        "<style>body{font-family:system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
        f"{STYLE}</style>"
        f"<h1>{escape(title)}</h1>{transcript_html(history)}{stats_html(history)}"
        f'<div class="dp-scroll">{grid_svg(history, seconds)}</div></html>'
    )
