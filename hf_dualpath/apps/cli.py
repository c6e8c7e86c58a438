"""The command line: `dualpath COMMAND`, each a thin shell over a module of the package."""

import argparse
import io
import logging
import os
import sys
from pathlib import Path

from .examples import DEFAULT_MODEL


DESCRIPTION = """\
Simultaneous machine translation: translate while the source is still arriving.

  dualpath translate --model DIR "Ich habe heute keine Zeit."      stream a text through a model
  tail -f talk.txt | dualpath translate --model DIR                live input, each word the moment it is decided
  dualpath serve                                                   live captions for many, over WebSockets
  dualpath train toy                                               train any of the systems from a recipe
  dualpath evaluate --model DIR --source FILE --target FILE        BLEU, latency, paths: one report
  dualpath compare REPORT REPORT ...                               who is ahead at the same latency
  dualpath sweep --model DIR ... --write-threshold 0.3 0.5 0.7     the quality-latency curve
  dualpath plot-path --model DIR "Ein Satz."                       see the path
  dualpath demo                                                    a page that translates as you type
  dualpath replay --model DIR "Ein Satz." --output replay.html     the same as an animated file
  dualpath convert marian|fairseq|to-marian ...                    from other projects' models, and back
  dualpath export --model DIR --output DIR --int8                  ONNX graphs that run without torch
  dualpath average RUN --last 5 --output DIR                       average the last checkpoints of a run
  dualpath push DIR your-name/model                                publish it on the Hub
"""


SHIPPED = str(DEFAULT_MODEL) if DEFAULT_MODEL.is_dir() else None


def add_model_arguments(parser: argparse.ArgumentParser, required: bool = True):
    parser.add_argument(
        "--model",
        default=SHIPPED if required else None,
        required=required and SHIPPED is None,
        help="checkpoint: a folder or a Hub id (default: the one that ships, where it does)",
    )
    parser.add_argument("--direction", help="such as de-en; default: the checkpoint's forward direction")
    add_loading(parser)


def add_loading(parser: argparse.ArgumentParser):
    loading = parser.add_argument_group("loading")
    loading.add_argument("--device", help="such as cpu or cuda:1 (default: the accelerator that is there)")
    loading.add_argument(
        "--backend", choices=("torch", "onnx"), default="torch", help="onnx runs a folder that `dualpath export` wrote"
    )
    loading.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: what the model says")
    loading.add_argument(
        "--trust-remote-code", action="store_true", help="let Python files of the checkpoint run; never done unasked"
    )
    hub = parser.add_argument_group(
        "translators of the Hub (Marian, NLLB, M2M-100, mBART, T5), and our offline models"
    )
    hub.add_argument(
        "--policy",
        help="when to write: wait_k, local_agreement (default for the Hub's), align_att, or a registered one",
    )
    hub.add_argument("--source-language", help="in the translator's codes, such as deu_Latn for NLLB")
    hub.add_argument("--target-language", help="the same")


HUB_OPTIONS = ("policy", "source_language", "target_language")
LOADING = ("device", "dtype", "trust_remote_code", "backend", *HUB_OPTIONS)


def loading_of(arguments: argparse.Namespace, names: tuple[str, ...] = LOADING) -> dict:
    return {name: getattr(arguments, name) for name in names}


def add_dials(parser: argparse.ArgumentParser):
    dials = parser.add_argument_group("latency dials, none needs retraining")
    dials.add_argument("--write-threshold", type=float, help="in (0, 1], default 0.5; lower writes earlier")
    dials.add_argument("--min-lag", type=int, help="token i is not written before i - 1 + MIN_LAG tokens are read")
    dials.add_argument("--max-lag", type=int, help="token i is written at the latest with i - 1 + MAX_LAG tokens read")
    dials.add_argument("--wait-k", type=int, help="another k for a wait-k model")
    dials.add_argument("--agreement", type=int, help="of local_agreement: hypotheses that must agree (default 2)")
    dials.add_argument("--frontier", type=int, help="of align_att: last source tokens not to look at (default 2)")


def given_dials(arguments: argparse.Namespace) -> dict:
    from ..model.dials_dualpath import Dials

    return Dials.given_in(arguments)


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
        elif arguments.no_sentences or arguments.max_sentence_words:
            raise ValueError("How sentences end is the service's choice: see `dualpath serve --help`.")
        from .translate import translate

        translate(arguments)

    parser.set_defaults(run=run)


def add_train(commands):
    parser = commands.add_parser(
        "train",
        help="train a system from a recipe",
        usage="dualpath train [RECIPE] [--key value ...]",
        description="Train from a YAML recipe, a file or the name of one that ships (such as toy). Any setting can be "
        "overridden with --key value. Training data of your own (--train_file, --train_source and --train_target, or "
        "--dataset) take the place of all data that the recipe names.",
    )
    # The recipe is no argument here: it would be mixed up with the value of a setting that only training knows.
    parser.add_argument(
        "--help-settings",
        nargs="?",
        const="ours",
        choices=("ours", "all"),
        help="list our settings; with `all` those of transformers' TrainingArguments too",
    )

    def run(arguments):
        if arguments.help_settings:
            from ..training.settings import show_settings

            show_settings(arguments.help_settings == "all")
        else:
            from ..training.run import main as train

            train(arguments.rest)

    parser.set_defaults(run=run)


def add_test_set(parser: argparse.ArgumentParser):
    parser.add_argument("--source", required=True, help="test set, source side, a sentence a line (.gz too)")
    parser.add_argument("--target", required=True, help="test set, target side")
    parser.add_argument("--limit", type=int, help="only the first so many sentences")
    parser.add_argument("--batch-size", type=int, default=64, help="sentences decoded at once")


def add_evaluate(commands):
    parser = commands.add_parser(
        "evaluate",
        help="quality, latency and paths of a checkpoint",
        description="Measure a checkpoint on a test set. A dual one is measured in both directions at once, SOURCE "
        "and TARGET being the sides of its forward direction; with --direction they are that direction's.",
    )
    add_model_arguments(parser)
    add_dials(parser)
    add_test_set(parser)
    parser.add_argument("--alignments", help="gold alignments, source-target, Pharaoh i-j (or i?j) a line a sentence")
    parser.add_argument(
        "--stream",
        action="store_true",
        help="one live stream after another instead of batches: slower, with computation-aware latency",
    )
    parser.add_argument(
        "--output", default="evaluation", help="folder for report.json, report.md and sentences.*.jsonl"
    )
    parser.add_argument(
        "--long-form",
        action="store_true",
        help="the files are whole speeches with a blank line between them: each is one stream, scored by OmniSTEval",
    )

    def run(arguments):
        from rich.console import Console
        from rich.table import Table

        files = arguments.model, arguments.source, arguments.target
        settings = loading_of(arguments) | given_dials(arguments)
        if arguments.long_form:
            from ..evaluation.long_form import evaluate_long_form

            if arguments.alignments is not None:
                raise ValueError("--alignments belong to sentences: leave them out with --long-form.")
            report = evaluate_long_form(*files, arguments.output, arguments.direction, arguments.limit, **settings)
            written = "the logs that OmniSTEval reads"
        else:
            from ..evaluation.report import evaluate_checkpoint

            report = evaluate_checkpoint(
                *files,
                arguments.direction,
                arguments.alignments,
                arguments.batch_size,
                sys.stderr.isatty(),
                arguments.limit,
                stream=arguments.stream,
                **settings,
            )
            report.save(arguments.output)
            written = "report.json, report.md and the sentences"
        table, rows = Table(title=report.model), report.rows()
        for heading in rows[0]:
            table.add_column(heading)
        for row in rows:
            table.add_row(*row.values())
        console = Console()
        console.print(table)
        console.print(f"Wrote {written} to {arguments.output}.", highlight=False)

    parser.set_defaults(run=run)


def add_compare(commands):
    parser = commands.add_parser(
        "compare",
        help="systems side by side, with significance",
        description="Compare reports of `dualpath evaluate` (or instances.log files of SimulEval): all systems by "
        "latency, and paired bootstrap tests between those of similar latency.",
    )
    parser.add_argument("reports", nargs="+", help="report folders, or SimulEval's instances.log")
    parser.add_argument(
        "--tolerance", type=float, default=0.5, help="word-level AL may differ by so much (default 0.5)"
    )
    parser.add_argument("--samples", type=int, default=1000, help="bootstrap samples")
    parser.add_argument("--output", help="also write the tables to this Markdown file")

    def run(arguments):
        from ..evaluation.comparison import compare_table, contests, load_systems

        systems = [system for report in arguments.reports for system in load_systems(report)]
        table = compare_table(systems, contests(systems, arguments.tolerance, arguments.samples))
        print(table, end="")
        if arguments.output:
            Path(arguments.output).write_text(table, encoding="utf-8")

    parser.set_defaults(run=run)


def add_sweep(commands):
    parser = commands.add_parser(
        "sweep",
        help="quality against latency: tables and the curve",
        description="Measure one or many checkpoints at every value of one dial, into OUTPUT.csv, .md, .png and .svg.",
    )
    parser.add_argument("--model", nargs="+", required=True, help="checkpoints")
    parser.add_argument(
        "--label",
        nargs="+",
        help="their names in tables and curves (default: their folders'); the same "
        "name for several makes one line of them",
    )
    parser.add_argument("--direction", help="such as de-en; default: both directions of a dual checkpoint")
    add_loading(parser)
    add_test_set(parser)
    dials = parser.add_mutually_exclusive_group()
    dials.add_argument("--write-threshold", type=float, nargs="+", help="thresholds to try")
    dials.add_argument("--wait-k", type=int, nargs="+", help="values of k to try on wait-k models")
    dials.add_argument("--max-lag", type=int, nargs="+", help="largest lags to try")
    dials.add_argument("--agreement", type=int, nargs="+", help="numbers of agreeing hypotheses to try")
    dials.add_argument("--frontier", type=int, nargs="+", help="frontiers of align_att to try")
    parser.add_argument("--output", default="sweep", help="where to write, without an ending")

    def run(arguments):
        from ..evaluation.comparison import COLUMNS, sweep, sweep_table
        from ..evaluation.pictures import quality_latency_curve
        from ..evaluation.tables import as_csv

        labels = arguments.label or [Path(model).name for model in arguments.model]
        if len(labels) != len(arguments.model):
            raise ValueError(f"There are {len(arguments.model)} models and {len(labels)} labels.")
        settings = [
            {name: value}
            for name in ("write_threshold", "wait_k", "max_lag", "agreement", "frontier")
            for value in getattr(arguments, name) or ()
        ]
        rows = sweep(
            arguments.model,
            labels,
            arguments.source,
            arguments.target,
            settings or [{}],
            arguments.direction,
            arguments.batch_size,
            sys.stderr.isatty(),
            arguments.limit,
            **loading_of(arguments),
        )
        output = Path(arguments.output)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.with_suffix(".csv").write_text(as_csv(rows, COLUMNS), encoding="utf-8")
        output.with_suffix(".md").write_text(sweep_table(rows), encoding="utf-8")
        quality_latency_curve(rows, [output.with_suffix(".png"), output.with_suffix(".svg")])
        print(sweep_table(rows), end="")
        print(f"Wrote {output}.csv, .md, .png and .svg.")

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
        from ..evaluation.pictures import path_pictures, plot_paths, text_paths

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


def add_export(commands):
    parser = commands.add_parser(
        "export",
        help="write a checkpoint as ONNX graphs",
        description="Write a wait_k or shared_path checkpoint as ONNX graphs, which run without torch and "
        "transformers: with `--backend onnx` in the other commands, or `backend='onnx'` in Python.",
    )
    parser.add_argument("--model", default=str(DEFAULT_MODEL), help="checkpoint: a folder or a Hub id")
    parser.add_argument("--output", required=True, help="folder to write")
    parser.add_argument("--int8", action="store_true", help="quantise the matrices: smaller, faster, nearly as good")
    parser.add_argument("--trust-remote-code", action="store_true", help="let Python files of the checkpoint run")

    def run(arguments):
        try:
            from ..inference.export import export_checkpoint
        except ImportError as error:
            raise ImportError("Exporting needs two packages: pip install 'hf_dualpath[onnx]'.") from error
        differences = export_checkpoint(arguments.model, arguments.output, arguments.int8, arguments.trust_remote_code)
        for direction, difference in differences.items():
            print(f"{direction}: the graphs differ from the model by at most {difference:.2g}.")
        print(f'Wrote {arguments.output}. Try: dualpath translate --backend onnx --model {arguments.output} "..."')

    parser.set_defaults(run=run)


def add_average(commands):
    parser = commands.add_parser(
        "average",
        help="average the weights of checkpoints",
        description="Average checkpoints into a new one: name them, or a run and how many of its last to take.",
    )
    parser.add_argument("checkpoints", nargs="+", help="checkpoint folders, or one run folder with --last")
    parser.add_argument("--last", type=int, help="take the last so many checkpoints of the run")
    parser.add_argument("--half", action="store_true", help="store the weights in half precision: a smaller file")
    parser.add_argument("--output", required=True, help="folder of the new checkpoint")

    def run(arguments):
        from ..inference.checkpoints import average_checkpoints, last_checkpoints

        folders = arguments.checkpoints
        if arguments.last is not None:
            folders = last_checkpoints(folders[0], arguments.last)
        average_checkpoints(folders, arguments.output, arguments.half)
        print(f"Wrote the mean of {len(folders)} checkpoints to {arguments.output}.")

    parser.set_defaults(run=run)


def add_push(commands):
    parser = commands.add_parser(
        "push",
        help="publish a checkpoint on the Hugging Face Hub",
        description="Upload a complete checkpoint. Optimizer states and other checkpoints of a run stay at home.",
    )
    parser.add_argument("folder", help="the checkpoint")
    parser.add_argument("repo_id", help="such as your-name/dualpath-de-en")
    parser.add_argument("--private", action="store_true", help="make the repository private")
    parser.add_argument("--dry-run", action="store_true", help="only list what would go")

    def run(arguments):
        from ..inference.checkpoints import push

        files = push(arguments.folder, arguments.repo_id, arguments.private, arguments.dry_run)
        print(f"{'Would upload' if arguments.dry_run else 'Uploaded'} {len(files)} files to {arguments.repo_id}:")
        for path in files:
            print(f"  {path.relative_to(arguments.folder)}  ({path.stat().st_size / 1e6:.2f} MB)")

    parser.set_defaults(run=run)


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
            from ..training.run import toy_model

            model = toy_model()
        if arguments.export_space:
            from .space import export_space

            export_space(model, arguments.export_space, **loading_of(arguments, HUB_OPTIONS))
            print(f"Wrote a Space to {arguments.export_space}.")
            return
        if arguments.port is not None and not 1 <= arguments.port <= 65535:
            raise ValueError(f"--port is a number from 1 to 65535, not {arguments.port}.")
        from .demo import launch

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
        from .service.limits import Limits

        if min(arguments.max_streams, arguments.max_characters, arguments.idle_seconds) <= 0:
            raise ValueError("--max-streams, --max-characters and --idle-seconds are above 0.")
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
            from .service.server import serve
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

    def run(arguments):
        from ..inference.streaming import SimultaneousTranslator
        from .replay import record, write_replay

        if not 0 < arguments.seconds <= 60:
            raise ValueError("--seconds is a time, above 0 and at most 60.")
        wrong = [name for name in arguments.output if not name.endswith((".html", ".svg", ".gif"))]
        if wrong:
            raise ValueError(f"{wrong[0]} ends in none of .html, .svg and .gif.")
        translator = SimultaneousTranslator.from_pretrained(
            arguments.model, arguments.direction, **loading_of(arguments), **given_dials(arguments)
        )
        history = record(translator, arguments.text)
        for output in arguments.output:
            write_replay(history, output, arguments.text, arguments.seconds)
        print(f"Wrote {', '.join(arguments.output)}.")

    parser.set_defaults(run=run)


def add_convert(commands):
    parser = commands.add_parser(
        "convert",
        help="start from Marian translators or from fairseq, or become a Marian translator",
        description="Turn checkpoints of other projects into one of ours, or an offline model of ours into Marian's.",
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    marian = kinds.add_parser(
        "marian",
        help="two Marian translators, one for each direction",
        description="Start a dual-path model from two pretrained Marian translators. With --policy offline it "
        "translates exactly as they do; with the others it is a start for `dualpath train --init_from`.",
    )
    marian.add_argument("forward", help="Marian checkpoint of the forward direction: a folder or a Hub id")
    marian.add_argument("backward", help="the same of the backward direction")
    marian.add_argument("--output", type=Path, required=True, help="folder of the new checkpoint")
    marian.add_argument("--policy", default="shared_path", help="offline, wait_k, mma, shared_path (default), ...")
    marian.add_argument("--source-language", default="source", help="for instance de")
    marian.add_argument("--target-language", default="target", help="for instance en")
    to_marian = kinds.add_parser(
        "to-marian",
        help="an offline model of ours as a plain MarianMTModel",
        description="Write one direction of an offline model as a `MarianMTModel`, with the same logits, for anything "
        "that runs Marian. Its tokenizer stays ours (AutoTokenizer loads it).",
    )
    to_marian.add_argument("model", help="an offline checkpoint of ours: a folder or a Hub id")
    to_marian.add_argument("--direction", help="such as de-en; default: the checkpoint's forward direction")
    to_marian.add_argument("--output", type=Path, required=True, help="folder of the new checkpoint")
    fairseq = kinds.add_parser(
        "fairseq",
        help="a fairseq state: Dual-Path, MMA or wait-k",
        description="Turn fairseq's parameters into a checkpoint of ours. `pydoc hf_dualpath.apps.convert_fairseq` "
        "says which fields the configuration needs.",
    )
    fairseq.add_argument("weights", type=Path, help="fairseq's parameters, .safetensors or .pt")
    fairseq.add_argument(
        "--config", type=Path, required=True, help="JSON with embed, ffn, enc_layers, heads, vocab ..."
    )
    fairseq.add_argument("--output", type=Path, required=True, help="folder of the new checkpoint")

    def run(arguments):
        if arguments.kind == "marian":
            from .convert_marian import run as convert
        elif arguments.kind == "to-marian":
            from .convert_marian import run_back as convert
        else:
            from .convert_fairseq import run as convert
        convert(arguments)

    parser.set_defaults(run=run)


COMMANDS = (
    add_translate,
    add_train,
    add_evaluate,
    add_compare,
    add_sweep,
    add_plot_path,
    add_demo,
    add_serve,
    add_replay,
    add_convert,
    add_export,
    add_average,
    add_push,
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dualpath", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in COMMANDS:
        add(commands)
    return parser


def main(arguments: list[str] | None = None):
    parser = build_parser()
    parsed, parsed.rest = parser.parse_known_args(arguments)
    if parsed.rest and parsed.command != "train":
        parser.error(f"unrecognized arguments: {' '.join(parsed.rest)}")
    prepare_streams()
    if vars(parsed).get("backend") != "onnx":  # the light runtime has no transformers
        quiet_libraries()
    from huggingface_hub.errors import StrictDataclassError

    try:
        parsed.run(parsed)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has gone: nothing to say, and nowhere to say it
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError, FloatingPointError, ImportError) as error:
        if parsed.debug:
            raise
        sys.exit(f"dualpath: {error}")
    except StrictDataclassError as error:  # sizes that make no model; the library puts a line of its own before ours
        if parsed.debug:
            raise
        sys.exit(f"dualpath: {str(error).splitlines()[-1].strip().removeprefix('ValueError: ')}")


def prepare_streams():
    """What a terminal cannot show becomes a question mark; a closed standard error stops nothing."""
    sys.stderr = sys.stderr or open(os.devnull, "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def quiet_libraries():
    """Loading a model is not news."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    logging.getLogger("datasets").setLevel(logging.ERROR)
