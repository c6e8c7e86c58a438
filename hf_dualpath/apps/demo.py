"""`dualpath demo`: a page to watch it think. A thin shell over `SimultaneousTranslator` and `demo_view`."""

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from threading import RLock

from ..inference.checkpoints import load_directions
from ..inference.streaming import SimultaneousTranslator
from .examples import DEFAULT_MODEL, SHIPPED_EXAMPLES, TOY_EXAMPLES
from .view import STYLE, History, panel_html


os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

MAX_CHARACTERS = 2000
MAX_WORDS_A_SECOND = 200  # what one visitor may push, so that others are served too


class Models:
    """The translators of all directions of a checkpoint; each visitor's streams are forks of them."""

    def __init__(self, path: str | Path):
        self.path = str(path)
        self.translators = {
            name: SimultaneousTranslator(*loaded) for name, loaded in load_directions(self.path).items()
        }

    @property
    def directions(self) -> list[str]:
        return list(self.translators)


@dataclass
class Panel:
    """One stream of one visitor."""

    translator: SimultaneousTranslator
    history: History

    def push(self, text: str):
        self.history.add(self.translator.push(text))

    def finish(self):
        self.history.add(self.translator.finish())


def one_at_a_time(method):
    """A tab sends what is typed and what is dialled as events of their own, and they may arrive together."""

    @wraps(method)
    def locked(self, *arguments):
        with self.lock:
            return method(self, *arguments)

    return locked


class Session:
    """What one visitor has going: the same input through two streams with dials of their own."""

    def __init__(self, models: Models):
        self.models = models
        self.lock = RLock()
        self.text = ""
        self.settings: tuple | None = None
        self.panels: list[Panel] = []
        self.note = ""
        self.last_paste = -1e9

    def show(self) -> tuple[str, str]:
        first, second = (panel_html(panel.history, self.note) for panel in self.panels)
        return first, second

    @one_at_a_time
    def push(self, text: str) -> tuple[str, str]:
        for panel in self.panels:
            panel.push(text)
        return self.show()

    @one_at_a_time
    def end(self) -> tuple[str, str]:
        for panel in self.panels:
            panel.finish()
        self.settings = None
        return self.show()

    @one_at_a_time
    def restart(self, settings: tuple):
        direction, *dials = settings
        translator = self.models.translators[direction]
        self.settings, self.text, self.panels = settings, "", []
        for threshold, max_lag in (dials[:2], dials[2:]):
            fork = translator.fork(write_threshold=threshold, max_lag=int(max_lag) or None)
            self.panels.append(Panel(fork, History()))

    @one_at_a_time
    def type(self, text: str, settings: tuple) -> tuple[str, str]:
        """The text box as it is now. What was only added to is read on from there; other changes start afresh."""
        self.note = ""
        if len(text) > MAX_CHARACTERS:
            self.note = f"Only the first {MAX_CHARACTERS} characters are translated."
            text = text[:MAX_CHARACTERS]
        if settings != self.settings or not text.startswith(self.text):
            self.restart(settings)
        added = text[len(self.text) :]
        words = len(added.split())
        if words > 20:  # pasted, not typed
            if time.monotonic() - self.last_paste < words / MAX_WORDS_A_SECOND:
                self.note = "That was a lot of text at once: wait a moment, then type on."
                return self.show()
            self.last_paste = time.monotonic()
        self.text = text
        return self.push(added)

    @one_at_a_time
    def finish(self, text: str, settings: tuple) -> tuple[str, str]:
        """The text has ended: the rest is written."""
        self.type(text, settings)
        return self.end()

    def speak(self, text: str, words_per_minute: float, settings: tuple) -> Iterator[tuple[str, str]]:
        """The text at speaking speed."""
        self.note = f"Only the first {MAX_CHARACTERS} characters are spoken." if len(text) > MAX_CHARACTERS else ""
        self.restart(settings)
        for word in text[:MAX_CHARACTERS].split():
            yield self.push(word + " ")
            time.sleep(60 / words_per_minute)
        yield self.end()


class Sessions:
    """Every visitor's session, by the browser tab's hash; closing the tab frees it."""

    def __init__(self, models: Models):
        self.models = models
        self.open: dict[str, Session] = {}

    def of(self, request) -> Session:
        return self.open.setdefault(request.session_hash, Session(self.models))

    def drop(self, request):
        self.open.pop(request.session_hash, None)


def build(model: str | Path):
    """The page, as Gradio blocks."""
    try:
        import gradio as gr
    except ImportError as error:
        raise ImportError("The demo needs Gradio: pip install 'hf_dualpath[demo]'.") from error

    models = Models(model)
    sessions = Sessions(models)
    directions = models.directions
    examples = SHIPPED_EXAMPLES if Path(model) == DEFAULT_MODEL else TOY_EXAMPLES
    with gr.Blocks(title="hf_dualpath", analytics_enabled=False) as page:
        gr.Markdown(
            "# Simultaneous translation\nType, and it translates as you type: a word is read at the space behind it."
        )
        with gr.Row():
            direction = gr.Radio(directions, value=directions[0], label="Direction", elem_id="direction")
            speed = gr.Slider(60, 600, 150, step=10, label="Speaking speed (words per minute)", elem_id="speed")
        text = gr.Textbox(label="Source text", lines=3, elem_id="source", autofocus=True, max_length=20_000)
        with gr.Row():
            speak = gr.Button("Speak it", elem_id="speak")
            finish = gr.Button("End of text", elem_id="finish", variant="primary")
            clear = gr.Button("Clear", elem_id="clear")
        outputs, dials = [], []
        with gr.Row():
            for name, threshold in (("A", 0.5), ("B", 0.3)):
                with gr.Column(min_width=320):
                    gr.Markdown(f"## Dial {name}")
                    dials.append(
                        gr.Slider(
                            0.05,
                            1,
                            threshold,
                            step=0.05,
                            label="Write threshold (lower writes earlier)",
                            elem_id=f"t{name}",
                        )
                    )
                    dials.append(
                        gr.Slider(0, 20, 0, step=1, label="Largest lag in tokens (0: none)", elem_id=f"lag{name}")
                    )
                    outputs.append(gr.HTML(elem_id=f"panel{name}", label=f"Stream {name}"))
        rows = [[example, name] for name in directions for example in examples.get(name, [])]
        if rows:
            gr.Examples(rows, [text, direction], label="Examples")

        def on_type(text, direction, threshold_a, lag_a, threshold_b, lag_b, request: gr.Request):
            return sessions.of(request).type(text, (direction, threshold_a, lag_a, threshold_b, lag_b))

        def on_finish(text, direction, threshold_a, lag_a, threshold_b, lag_b, request: gr.Request):
            return sessions.of(request).finish(text, (direction, threshold_a, lag_a, threshold_b, lag_b))

        def on_speak(text, speed, direction, threshold_a, lag_a, threshold_b, lag_b, request: gr.Request):
            settings = direction, threshold_a, lag_a, threshold_b, lag_b
            yield from sessions.of(request).speak(text, speed, settings)

        def on_leave(request: gr.Request):
            sessions.drop(request)

        settings = [direction, *dials]
        quick = {"show_progress": "hidden", "trigger_mode": "always_last", "concurrency_limit": 4}
        for component in (text, direction, *dials):
            component.change(on_type, [text, *settings], outputs, **quick)
        finish.click(on_finish, [text, *settings], outputs, **quick)
        running = speak.click(
            on_speak, [text, speed, *settings], outputs, show_progress="hidden", concurrency_limit=16
        )
        clear.click(lambda: "", None, text, cancels=[running])
        page.unload(on_leave)
    page.sessions = sessions
    return page


def launch(
    model: str | Path, host: str = "127.0.0.1", port: int | None = None, open_browser: bool = True, block: bool = True
):
    """Serves the page; by default to this machine only, and without anything from the network."""
    page = build(model)
    import gradio as gr

    fonts = ["system-ui", "sans-serif"]
    page.queue(default_concurrency_limit=4, max_size=64).launch(
        server_name=host,
        server_port=port,
        inbrowser=open_browser,
        share=False,
        theme=gr.themes.Default(font=fonts, font_mono=["ui-monospace", "monospace"]),
        css=STYLE,
        footer_links=[],
        ssr_mode=False,
        prevent_thread_lock=not block,
        quiet=not block,
    )
    return page


SPACE_APP = '''"""A Hugging Face Space that runs the page of hf_dualpath."""

from hf_dualpath.apps.demo import launch


launch("model", host="0.0.0.0", port=7860, open_browser=False)
'''
SPACE_README = """---
title: Simultaneous translation
emoji: 🎧
colorFrom: blue
colorTo: red
sdk: gradio
app_file: app.py
license: apache-2.0
---

Translation while you type, with [hf_dualpath]: a learned READ/WRITE path decides when to wait and when to write.
"""


def export_space(model: str | Path, folder: str | Path):
    """Writes a Space: its app, its requirements, its header, the model and the package's source."""
    model, folder = Path(model), Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty.")
    from ..inference.checkpoints import published_files

    (folder / "model").mkdir(parents=True)
    for path in published_files(model):
        copy = folder / "model" / path.relative_to(model)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)
    package = Path(__file__).parents[1]
    shutil.copytree(package, folder / "hf_dualpath", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "app.py").write_text(SPACE_APP, encoding="utf-8")
    requirements = [
        "torch",
        "transformers>=5.22,<6",
        "datasets",
        "sacrebleu",
        "sentencex>=1.0.32,<2",
        "pyyaml",
        "rich",
    ]
    requirements += ["gradio>=6,<7"]
    (folder / "requirements.txt").write_text("\n".join(requirements) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(SPACE_README, encoding="utf-8")
