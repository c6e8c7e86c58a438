"""`dualpath demo`: a page to watch it think. A thin shell over the sessions of its visitors."""

import os
from pathlib import Path

from .examples import PAPER, examples_for
from .sessions import MAX_SESSIONS, NO_LIMIT, SPEEDS, Models, Sessions, Settings, dial_value
from .style import STYLE
from .view import History, grid_html, translation_html


os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

HEADER = "## Simultaneous translation\n**{name}** translates while you type: each word is read at the space behind it."
FOOTER = f"What is written never changes. Made with hf_dualpath, after [Dual Read/Write Paths]({PAPER})."
# label, lowest, highest, step, where the second stream starts
SLIDERS = {
    "write_threshold": ("Write threshold (lower writes earlier)", 0.05, 1, 0.05, 0.3),
    "wait_k": ("k: how far to wait", 1, 12, 1, 1),
    "agreement": ("Hypotheses that must agree", 1, 5, 1, 3),
    "frontier": ("Last source tokens not to look at", 0, 10, 1, 5),
    "max_lag": (f"Largest lag in tokens ({NO_LIMIT}: no limit)", 1, NO_LIMIT, 1, NO_LIMIT),
}
PAGE_STYLE = """
.gradio-container { max-width: 1240px !important }
main.app, .gradio-container > main { padding: 12px 16px !important }
#header h2 { margin: 0 }
"""


class Door:
    """ASGI middleware: of Gradio's interface only what the page itself uses is open. No uploads, no direct calls, and
    no request that is larger than a full text box."""

    LARGEST = 200_000  # bytes
    OPEN = tuple(f"/gradio_api/{name}" for name in ("queue/", "heartbeat/", "cancel", "reset", "startup-events"))

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        refusal = self.refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            return await self.app(scope, receive, send)
        from starlette.responses import PlainTextResponse

        await PlainTextResponse(*refusal)(scope, receive, send)

    def refusal(self, scope) -> tuple[str, int] | None:
        if scope["path"].startswith("/gradio_api/") and not scope["path"].startswith(self.OPEN):
            return "This page does not offer that.", 403
        headers = dict(scope["headers"])
        if b"transfer-encoding" in headers or int(headers.get(b"content-length", 0)) > self.LARGEST:
            return "That is too much at once.", 413
        return None


def gradio():
    try:
        import gradio as gr
    except ImportError as error:
        raise ImportError("The demo needs Gradio: pip install 'hf_dualpath[demo]'.") from error
    return gr


def build(model: str | Path, name: str | None = None, **loading):
    """The page, as Gradio blocks."""
    gr = gradio()
    models = Models(model, **loading)
    sessions = Sessions(models)
    directions = list(models.translators)
    names = list(models.dials)
    samples = [
        (example, direction)
        for direction, translator in models.translators.items()
        for example in examples_for(direction, translator.source_tokenizer)
    ]

    def sliders(stream: str, positions: list[float]) -> list:
        return [
            gr.Slider(low, high, position, step=step, label=label, elem_id=f"{dial}{stream}")
            for (dial, (label, low, high, step, _)), position in zip(
                ((dial, SLIDERS[dial]) for dial in names), positions
            )
        ]

    with gr.Blocks(title="Simultaneous translation", analytics_enabled=False) as page:
        gr.Markdown(HEADER.format(name=name or Path(model).resolve().name), elem_id="header")
        with gr.Row():
            with gr.Column(min_width=320):
                direction = gr.Radio(
                    [(choice.replace("-", " → "), choice) for choice in directions],
                    value=directions[0],
                    show_label=False,
                    container=False,
                    visible=len(directions) > 1,
                    elem_id="direction",
                )
                text = gr.Textbox(
                    label="Source text",
                    placeholder="Type here, or play an example.",
                    lines=2,
                    max_lines=6,
                    elem_id="source",
                    autofocus=True,
                    max_length=20_000,
                )
                translation = gr.HTML(translation_html(History()), elem_id="translation")
                with gr.Row():
                    play = gr.Button(
                        "▶ Play at speaking speed",
                        variant="primary",
                        size="md",
                        scale=2,
                        min_width=220,
                        elem_id="play",
                    )
                    finish = gr.Button("Translate the rest", size="md", min_width=170, elem_id="finish")
                    clear = gr.Button("Clear", size="md", min_width=80, elem_id="clear")
                examples = gr.Dataset(
                    components=[gr.Textbox(visible=False)],
                    samples=[[example] for example, _ in samples],
                    type="index",
                    label="Examples",
                    visible=bool(samples),
                    elem_id="examples",
                )
                with gr.Accordion("Latency and speed", open=False, elem_id="settings"):
                    speed = gr.Slider(
                        *SPEEDS, 150, step=10, label="Speaking speed (words per minute)", elem_id="speed"
                    )
                    first = sliders("A", list(models.dials.values()))
                    compare = gr.Checkbox(label="Compare with a second stream", elem_id="compare")
                    with gr.Group(visible=False) as second_dials:
                        second = sliders("B", [SLIDERS[dial][-1] for dial in names])
            with gr.Column(min_width=320):
                grid = gr.HTML(grid_html(History()), elem_id="grid")
                other = gr.HTML(elem_id="second")
        gr.Markdown(FOOTER)

        def settings_of(direction: str, *positions) -> Settings:
            first, compare, second = positions[: len(names)], positions[len(names)], positions[len(names) + 1 :]
            streams = [first, second] if compare else [first]
            return Settings(
                direction,
                [{name: dial_value(name, at) for name, at in zip(names, positions)} for positions in streams],
            )

        def on_edit(request: gr.Request, text, *settings):
            return sessions.of(request.session_hash).edit(text, settings_of(*settings))

        def on_example(request: gr.Request, number):
            sessions.of(request.session_hash).choose(samples[number][0])
            return samples[number]

        def on_type(request: gr.Request, text, *settings):
            return sessions.of(request.session_hash).type(text, settings_of(*settings))

        def on_finish(request: gr.Request, text, *settings):
            return sessions.of(request.session_hash).finish(text, settings_of(*settings))

        def on_play(request: gr.Request, text, speed, *settings):
            yield from sessions.of(request.session_hash).play(text, speed, settings_of(*settings))

        def on_clear(request: gr.Request):
            return "", *sessions.of(request.session_hash).clear()

        def on_leave(request: gr.Request):
            sessions.drop(request.session_hash)

        settings = [direction, *first, compare, *second]
        outputs = [translation, grid, other]
        private = {"show_progress": "hidden", "api_visibility": "private"}
        quick = private | {"trigger_mode": "always_last", "concurrency_limit": 4}
        long = private | {"trigger_mode": "multiple", "concurrency_limit": 16}
        text.change(on_edit, [text, *settings], outputs, **quick)
        for moved in (direction.input, *(dial.change for dial in settings[1:])):
            moved(on_type, [text, *settings], outputs, **quick)
        compare.input(lambda on: gr.Group(visible=on), compare, second_dials, **private)
        gr.on([finish.click, text.submit], on_finish, [text, *settings], outputs, **quick)
        chosen = examples.click(on_example, examples, [text, direction], **private)
        for start in (play.click, chosen.then):
            start(on_play, [text, speed, *settings], outputs, **long)
        clear.click(on_clear, None, [text, *outputs], **quick)
        page.unload(on_leave)
    page.sessions = sessions
    return page


def launch(
    model: str | Path,
    host: str = "127.0.0.1",
    port: int | None = None,
    open_browser: bool = True,
    block: bool = True,
    name: str | None = None,
    **loading,
):
    """Serves the page; by default to this machine only, and without anything from the network.

    `name` is what the page calls the model. `loading` are the options of [`load_directions`].
    """
    page = build(model, name, **loading)
    gr = gradio()
    from starlette.middleware import Middleware

    fonts = ["system-ui", "sans-serif"]
    page.queue(default_concurrency_limit=4, max_size=64, api_open=False).launch(
        server_name=host,
        server_port=port,
        inbrowser=open_browser,
        share=False,
        theme=gr.themes.Default(font=fonts, font_mono=["ui-monospace", "monospace"]),
        css=STYLE + PAGE_STYLE,
        footer_links=[],
        ssr_mode=False,
        prevent_thread_lock=not block,
        quiet=not block,
        app_kwargs={"middleware": [Middleware(Door)]},
        state_session_capacity=MAX_SESSIONS,
        enable_monitoring=False,
    )
    return page
