"""`dualpath translate`, `plot-path`, `replay`: one text, and what became of it."""

import os
import sys
from pathlib import Path

from .options import LOADING, SHIPPED, add_dials, add_model_arguments, given_dials, loading_of


def add_translate(commands):
    parser = commands.add_parser(
        "translate",
        help="stream text, standard input or a file through a model",
        description="Translate while the source arrives. Without TEXT standard input is read as it comes, from a pipe "
        "or as you type. A file of captions (.srt, .vtt) is translated into captions with times.",
    )
    add_model_arguments(parser, required=False)
    add_dials(parser)
    service = parser.add_argument_group("a service instead of a model of your own (see `dualpath serve`)")
    service.add_argument("--server", metavar="URL", help="such as http://127.0.0.1:8000; --model is one of its models")
    service.add_argument("--room", metavar="NAME", help="speak in a room: everybody with URL/rooms/NAME reads along")
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what to translate; default: standard input")
    parser.add_argument(
        "--file", help="translate a file line by line, in fast batches; with --wpm, --show-path or --json as a stream"
    )
    parser.add_argument(
        "--format",
        choices=("text", "jsonl", "srt", "vtt"),
        help="of the input (default: by the file's ending, else text); jsonl has `text` and, for guesses that may "
        "still change, `is_final` false",
    )
    parser.add_argument("--output", help="write here instead of to the terminal")
    parser.add_argument("--wpm", type=float, help="replay the text at so many words per minute")
    parser.add_argument("--show-path", action="store_true", help="show reads and writes side by side, with the lag")
    parser.add_argument("--json", action="store_true", help="print one event a line as JSON")
    parser.add_argument("--no-sentences", action="store_true", help="take the whole input as one sentence")
    parser.add_argument(
        "--max-sentence-words", type=int, help="end a sentence after so many words, for text without punctuation"
    )
    parser.add_argument("--batch-size", type=int, default=64, help="sentences at once with --file")

    def run(arguments):
        if arguments.wpm is not None and not 1 <= arguments.wpm < float("inf"):
            raise ValueError("--wpm is a speed in words per minute, at least 1.")
        if arguments.file is not None and arguments.text is not None:
            raise ValueError("Give TEXT or --file, not both.")
        if arguments.text is not None and os.path.isfile(arguments.text):
            raise ValueError(f"{arguments.text} is a file: give --file {arguments.text}.")
        if arguments.text is None and arguments.file is None and sys.stdin is None:
            raise ValueError("Standard input is closed: give TEXT or --file.")
        if arguments.output is None and sys.stdout is None:
            raise ValueError("Standard output is closed: give --output.")
        if arguments.text is not None and arguments.format not in (None, "text"):
            raise ValueError(f"TEXT is plain text: give {arguments.format} with --file or through a pipe.")
        if arguments.server is None:
            arguments.model = SHIPPED if arguments.model is None else arguments.model
            if arguments.room is not None or arguments.model is None:
                raise ValueError("A room is at a service: give --server." if arguments.room else "Give --model.")
        else:
            theirs = (*LOADING, "no_sentences", "max_sentence_words")
            for name in theirs:
                if getattr(arguments, name) != parser.get_default(name):
                    option = "--" + name.replace("_", "-")
                    raise ValueError(f"{option} is the service's choice: see `dualpath serve --help`.")
        from ..translate import translate

        translate(arguments)

    parser.set_defaults(run=run)


def add_plot_path(commands):
    parser = commands.add_parser(
        "plot-path",
        help="draw the READ/WRITE path of a sentence",
        description="Draw the path that is taken over a sentence. Without --output it is drawn in the terminal.",
    )
    add_model_arguments(parser)
    add_dials(parser)
    parser.add_argument("text", metavar="SENTENCE", help="the source sentence")
    parser.add_argument("--translation", help="the target sentence; default: the model's own")
    parser.add_argument("--heads", action="store_true", help="draw the path of each head, not only of the slowest")
    parser.add_argument("--dual", action="store_true", help="beside it the transposed path and the other direction's")
    parser.add_argument("--output", nargs="+", help="files ending in .png, .svg or .txt")

    def run(arguments):
        from ...evaluation.pictures import path_pictures, plot_paths, text_paths

        outputs = [Path(output) for output in arguments.output or ()]
        wrong = [output.name for output in outputs if output.suffix not in (".png", ".svg", ".txt")]
        if wrong:
            raise ValueError(f"{wrong[0]} ends in none of .png, .svg and .txt.")
        pictures = path_pictures(
            arguments.model,
            arguments.text,
            arguments.translation,
            arguments.direction,
            arguments.heads,
            arguments.dual,
            **loading_of(arguments),
            **given_dials(arguments),
        )
        images = [output for output in outputs if output.suffix != ".txt"]
        if images:
            plot_paths(pictures, images)
        for output in outputs:
            if output.suffix == ".txt":
                output.write_text(text_paths(pictures), encoding="utf-8")
        print(text_paths(pictures) if not outputs else f"Wrote {', '.join(map(str, outputs))}.")

    parser.set_defaults(run=run)


def add_replay(commands):
    parser = commands.add_parser(
        "replay",
        help="a stream as an animated file",
        description="Write a stream as a self-contained animated page (.html), picture (.svg) or .gif.",
    )
    add_model_arguments(parser)
    add_dials(parser)
    parser.add_argument("text", metavar="TEXT", help="what to translate")
    parser.add_argument("--output", nargs="+", required=True, help="files ending in .html, .svg or .gif")
    parser.add_argument("--seconds", type=float, default=0.5, help="time between steps (default 0.5)")
    parser.add_argument(
        "--captions", action="store_true", help="for talk: a .gif of source and translation side by side"
    )
    parser.add_argument("--wpm", type=float, default=150, help="words a minute of --captions (default 150)")

    def run(arguments):
        from ...inference.splitting import replace_surrogates
        from ...inference.streaming import SimultaneousTranslator
        from ..replay import record, write_captions, write_replay

        if not 0 < arguments.seconds <= 60:
            raise ValueError("--seconds is a time, above 0 and at most 60.")
        if not 1 <= arguments.wpm <= 6000:
            raise ValueError("--wpm is a speed in words per minute, from 1 to 6000.")
        wrong = [name for name in arguments.output if not name.endswith((".html", ".svg", ".gif"))]
        if wrong:
            raise ValueError(f"{wrong[0]} ends in none of .html, .svg and .gif.")
        if arguments.captions and not all(name.endswith(".gif") for name in arguments.output):
            raise ValueError("--captions writes a .gif.")
        translator = SimultaneousTranslator.from_pretrained(
            arguments.model, arguments.direction, **loading_of(arguments), **given_dials(arguments)
        )
        text = replace_surrogates(arguments.text)
        history = record(translator, text)
        for output in arguments.output:
            if arguments.captions:
                write_captions(history, output, arguments.wpm)
            else:
                write_replay(history, output, text, arguments.seconds)
        print(f"Wrote {', '.join(arguments.output)}.")

    parser.set_defaults(run=run)
