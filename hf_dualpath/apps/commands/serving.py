"""`dualpath demo`, `serve`: what runs until it is stopped."""

from ..examples import DEFAULT_MODEL
from .options import HUB_OPTIONS, SHIPPED, add_loading, loading_of


MOST_STREAMS = 100_000


def add_demo(commands):
    parser = commands.add_parser(
        "demo",
        help="a page that translates as you type",
        description="Open a page that translates as you type, with the READ/WRITE grid growing live. Without --model: "
        "the checkpoint that ships, or a toy model trained on the spot.",
    )
    parser.add_argument("--model", help="checkpoint: a folder or a Hub id")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve (default: this machine only)")
    parser.add_argument("--port", type=int, help="port (default: the first free one from 7860 on)")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument(
        "--export-space", metavar="DIR", help="write a Hugging Face Space that runs the page, and stop"
    )
    add_loading(parser)

    def run(arguments):
        model = arguments.model or (DEFAULT_MODEL if DEFAULT_MODEL.is_dir() else None)
        if model is None:
            from ...training.run import toy_model

            model = toy_model()
        if arguments.export_space:
            from ..space import export_space

            export_space(model, arguments.export_space, **loading_of(arguments, HUB_OPTIONS))
            print(f"Wrote a Space to {arguments.export_space}.")
            return
        if arguments.port is not None and not 1 <= arguments.port <= 65535:
            raise ValueError(f"--port is a number from 1 to 65535, not {arguments.port}.")
        from ..demo import launch

        launch(model, arguments.host, arguments.port, not arguments.no_browser, **loading_of(arguments))

    parser.set_defaults(run=run)


def add_serve(commands):
    parser = commands.add_parser(
        "serve",
        help="live captions for many: a streaming service",
        description="Serve models over WebSockets, HTTP and caption pages; GET / says how to use it. A token in the "
        "environment variable DUALPATH_TOKEN is asked of clients.",
    )
    parser.add_argument("--model", nargs="+", help="checkpoints: folders or Hub ids (default: the one that ships)")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="port (default 8000; 0 takes a free one)")
    parser.add_argument("--allow-origin", nargs="+", default=[], help="other sites whose pages may connect")
    parser.add_argument("--max-streams", type=int, default=1000, help="streams at once (default 1000)")
    parser.add_argument(
        "--max-characters", type=float, default=1000, help="characters a second and stream (default 1000)"
    )
    parser.add_argument(
        "--idle-seconds", type=float, default=600, help="a silent stream ends after this (default 600)"
    )
    parser.add_argument(
        "--max-sentence-words", type=int, help="end a sentence after so many words, for text without punctuation"
    )
    add_loading(parser)

    def run(arguments):
        from ..service.limits import Limits

        limited = arguments.max_streams, arguments.max_characters, arguments.idle_seconds
        if not all(0 < limit < float("inf") for limit in limited):
            raise ValueError("--max-streams, --max-characters and --idle-seconds are numbers above 0.")
        if arguments.max_streams > MOST_STREAMS:
            raise ValueError(f"--max-streams is at most {MOST_STREAMS}: each takes memory.")
        if not 0 <= arguments.port < 2**16:
            raise ValueError(f"--port is a number from 0 to {2**16 - 1}.")
        models = arguments.model or ([SHIPPED] if SHIPPED else None)
        if models is None:
            raise ValueError("Give --model.")
        limits = Limits(
            streams=arguments.max_streams,
            characters=arguments.max_characters,
            idle_seconds=arguments.idle_seconds,
        )
        try:
            from ..service.server import serve
        except ImportError as error:
            raise ImportError("The service needs a few packages: pip install 'hf_dualpath[serve]'.") from error
        serve(
            models,
            arguments.host,
            arguments.port,
            tuple(arguments.allow_origin),
            limits,
            max_sentence_words=arguments.max_sentence_words,
            **loading_of(arguments),
        )

    parser.set_defaults(run=run)
