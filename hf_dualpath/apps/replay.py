"""`dualpath replay`: a stream as a file for papers and slides."""

from pathlib import Path

from ..inference.splitting import whole_words
from ..inference.streaming import SimultaneousTranslator
from .view import History, grid_svg, replay_html


def record(translator: SimultaneousTranslator, text: str) -> History:
    """The history of a text that arrives word by word."""
    return History().add(translator.fork().stream(word + " " for word in whole_words(text)))


def write_replay(history: History, output: str | Path, title: str, seconds: float = 0.5):
    """Animated `.html` or `.svg`, or a `.gif`."""
    output = Path(output)
    if output.suffix == ".html":
        output.write_text(replay_html(history, title, seconds), encoding="utf-8")
    elif output.suffix == ".svg":
        output.write_text(grid_svg(history, seconds), encoding="utf-8")
    elif output.suffix == ".gif":
        from ..evaluation.pictures import animate_path

        animate_path(history.source, history.target, history.path, output, seconds)
    else:
        raise ValueError(f"{output.name} ends in none of .html, .svg and .gif.")


def write_captions(history: History, output: str | Path, words_per_minute: float = 150):
    """A `.gif` of a talk: the source on the left, the translation on the right, as a listener would see them."""
    from ..evaluation.captions_picture import animate_captions

    animate_captions(history.source, history.target, history.path, output, words_per_minute)
