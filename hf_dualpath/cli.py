"""The command line: `dualpath COMMAND`, each a thin shell over a module of the package."""

import argparse
import logging
import sys
from pathlib import Path


DESCRIPTION = """\
Simultaneous machine translation: translate while the source is still arriving.

  dualpath translate --model DIR "Ich habe heute keine Zeit."      stream a text through a model
  tail -f talk.txt | dualpath translate --model DIR                live input, each word the moment it is decided
  dualpath train scripts/recipes/toy.yaml                          train any of the five systems from a recipe
  dualpath average RUN --last 5 --output DIR                       average the last checkpoints of a run
  dualpath push DIR your-name/model                                publish it on the Hub
"""

DEFAULT_MODEL = Path(__file__).parent.parent / "model_cards" / "dualpath-tatoeba-de-en"


def add_model_arguments(parser: argparse.ArgumentParser):
    parser.add_argument(
        "--model",
        default=str(DEFAULT_MODEL) if DEFAULT_MODEL.is_dir() else None,
        required=not DEFAULT_MODEL.is_dir(),
        help="checkpoint: a folder or a Hub id (default: the one that ships, where it does)",
    )
    parser.add_argument("--direction", help="such as de-en; default: the checkpoint's forward direction")
    dials = parser.add_argument_group("latency dials, none needs retraining")
    dials.add_argument("--write-threshold", type=float, help="in (0, 1], default 0.5; lower writes earlier")
    dials.add_argument("--min-lag", type=int, help="token i is not written before i - 1 + MIN_LAG tokens are read")
    dials.add_argument("--max-lag", type=int, help="token i is written at the latest with i - 1 + MAX_LAG tokens read")
    dials.add_argument("--wait-k", type=int, help="another k for a wait-k model")


def add_translate(commands):
    parser = commands.add_parser(
        "translate",
        help="stream text, standard input or a file through a model",
        description="Translate while the source arrives. Without TEXT standard input is read as it comes.",
    )
    add_model_arguments(parser)
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what to translate; default: standard input")
    parser.add_argument("--file", help="translate a file line by line, in fast batches")
    parser.add_argument("--output", help="write here instead of to the terminal")
    parser.add_argument("--wpm", type=float, help="replay the text at so many words per minute")
    parser.add_argument("--show-path", action="store_true", help="show reads and writes side by side, with the lag")
    parser.add_argument("--json", action="store_true", help="print one event a line as JSON")
    parser.add_argument("--no-sentences", action="store_true", help="take the whole input as one sentence")
    parser.add_argument("--batch-size", type=int, default=64, help="sentences at once with --file")

    def run(arguments):
        if arguments.wpm is not None and arguments.wpm <= 0:
            raise ValueError("--wpm is a speed in words per minute, above 0.")
        if arguments.file is not None and arguments.text is not None:
            raise ValueError("Give TEXT or --file, not both.")
        from .live import translate

        translate(arguments)

    parser.set_defaults(run=run)


def add_train(commands):
    parser = commands.add_parser(
        "train",
        help="train a system from a recipe",
        description="Train from a YAML recipe; any setting can be overridden with --key value. "
        "`dualpath train --help-settings` lists them all.",
    )
    parser.add_argument("recipe", nargs="?", help="a YAML file, or the name of one in scripts/recipes")
    parser.add_argument("--help-settings", action="store_true", help="list all settings")
    parser.set_defaults(run=None)


def add_average(commands):
    parser = commands.add_parser(
        "average",
        help="average the weights of checkpoints",
        description="Average checkpoints into a new one: name them, or a training run and how many of its last to take.",
    )
    parser.add_argument("checkpoints", nargs="+", help="checkpoint folders, or one run folder with --last")
    parser.add_argument("--last", type=int, help="take the last so many checkpoints of the run")
    parser.add_argument("--output", required=True, help="folder of the new checkpoint")

    def run(arguments):
        from .checkpoints import average_checkpoints, last_checkpoints

        folders = arguments.checkpoints
        if arguments.last is not None:
            folders = last_checkpoints(folders[0], arguments.last)
        average_checkpoints(folders, arguments.output)
        print(f"Wrote the mean of {len(folders)} checkpoints to {arguments.output}.")

    parser.set_defaults(run=run)


def add_push(commands):
    parser = commands.add_parser(
        "push",
        help="publish a checkpoint on the Hugging Face Hub",
        description="Upload a complete checkpoint folder. Optimizer states and other checkpoints of a run stay at home.",
    )
    parser.add_argument("folder", help="the checkpoint")
    parser.add_argument("repo_id", help="such as your-name/dualpath-de-en")
    parser.add_argument("--private", action="store_true", help="make the repository private")
    parser.add_argument("--dry-run", action="store_true", help="only list what would go")

    def run(arguments):
        from .checkpoints import push

        files = push(arguments.folder, arguments.repo_id, arguments.private, arguments.dry_run)
        print(f"{'Would upload' if arguments.dry_run else 'Uploaded'} {len(files)} files to {arguments.repo_id}:")
        for path in files:
            print(f"  {path.relative_to(arguments.folder)}  ({path.stat().st_size / 1e6:.2f} MB)")

    parser.set_defaults(run=run)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dualpath", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add in (add_translate, add_train, add_average, add_push):
        add(commands)
    return parser


def main(arguments: list[str] | None = None):
    parser = build_parser()
    parsed, rest = parser.parse_known_args(arguments)
    if rest and parsed.command != "train":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    quiet_libraries()
    try:
        if parsed.command == "train":
            from .training import main as train

            train(["--help"] if parsed.help_settings else ([parsed.recipe] if parsed.recipe else []) + rest)
        else:
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


def quiet_libraries():
    """Loading a model is not news."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    logging.getLogger("datasets").setLevel(logging.ERROR)
