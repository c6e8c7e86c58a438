"""`dualpath replay`: a stream as a file for papers and slides."""

from pathlib import Path

from ..inference.streaming import SimultaneousTranslator
from .view import History, grid_svg, replay_html


def record(translator: SimultaneousTranslator, text: str) -> History:
    """The history of a text that arrives word by word."""
    return History().add(translator.fork().stream(word + " " for word in text.split()))


def write_replay(history: History, output: str | Path, title: str, seconds: float = 0.5):
    """Animated `.html` or `.svg`, or a `.gif`."""
    output = Path(output)
    if output.suffix == ".html":
        output.write_text(replay_html(history, title, seconds), encoding="utf-8")
    elif output.suffix == ".svg":
        output.write_text(grid_svg(history, seconds), encoding="utf-8")
    elif output.suffix == ".gif":
        write_gif(history, output, seconds)
    else:
        raise ValueError(f"{output.name} ends in none of .html, .svg and .gif.")


def write_gif(history: History, output: Path, seconds: float):
    """One frame a READ or WRITE."""
    from ..evaluation.pictures import _pyplot

    plt = _pyplot()
    from matplotlib.animation import FuncAnimation, PillowWriter

    columns, rows = max(len(history.source), 1), max(len(history.target), 1)
    figure, axis = plt.subplots(figsize=(0.5 * columns + 1.6, 0.36 * rows + 1.4), layout="constrained")

    def draw(frame: int):
        axis.clear()
        done = history.actions[: frame + 1]
        reads, writes = done.count("R"), done.count("W")
        axis.set_xlim(0, columns)
        axis.set_ylim(rows, 0)
        axis.xaxis.tick_top()
        axis.set_xticks([i + 0.5 for i in range(len(history.source))], history.source, rotation=50, ha="left")
        axis.set_yticks([i + 0.5 for i in range(len(history.target))], history.target)
        for tick in [*axis.get_xticklabels()[reads:], *axis.get_yticklabels()[writes:]]:
            tick.set_alpha(0)  # there, so that the frame keeps its size, and unseen
        x = 0
        for row, read in enumerate(history.path[:writes]):
            axis.fill_between([0, read], row, row + 1, color="#3b82f6", alpha=0.16)
            axis.plot([x, read], [row, row], color="#2563eb", linewidth=2, clip_on=False, zorder=3)
            axis.plot([read, read], [row, row + 1], color="#dc2626", linewidth=2, clip_on=False, zorder=3)
            x = read

    frames = len(history.actions)
    animation = FuncAnimation(figure, draw, frames=[*range(frames), *[frames - 1] * 4] if frames else [0])
    animation.save(output, writer=PillowWriter(fps=1 / seconds))
    plt.close(figure)
