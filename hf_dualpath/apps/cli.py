"""The command line: `dualpath COMMAND`; the commands are in `commands/`."""

import argparse
import difflib
import io
import logging
import os
import sys

from .commands.checkpoints import add_average, add_convert, add_export, add_push
from .commands.measuring import add_compare, add_evaluate, add_sweep
from .commands.serving import add_demo, add_serve
from .commands.streaming import add_plot_path, add_replay, add_translate
from .commands.training import add_train


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
    for command in commands.choices.values():
        command.set_defaults(parser=command)
    return parser


def did_you_mean(words: list[str], parser: argparse.ArgumentParser) -> str:
    """What was meant by the first of the options that do not exist."""
    given = next((word.split("=")[0] for word in words if word.startswith("--")), "")
    close = difflib.get_close_matches(given, parser._option_string_actions, 1)
    return f"; did you mean {close[0]}?" if close else ""


def main(arguments: list[str] | None = None):
    parser = build_parser()
    parsed, parsed.rest = parser.parse_known_args(arguments)
    if parsed.rest and parsed.command != "train":
        meant = did_you_mean(parsed.rest, parsed.parser)
        parsed.parser.error(f"unrecognized arguments: {' '.join(parsed.rest)}{meant}")
    prepare_streams()
    if vars(parsed).get("backend") != "onnx":  # the light runtime has no transformers
        quiet_libraries()
    try:
        parsed.run(parsed)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe has gone: nothing to say, and nowhere to say it
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError, ArithmeticError, ImportError, MemoryError, RuntimeError) as error:
        is_expected = not isinstance(error, RuntimeError) or "allocate" in str(error)  # torch has no room
        if parsed.debug or not is_expected:
            raise
        sys.exit(f"dualpath: {error}")
    except Exception as error:
        library = sys.modules.get("huggingface_hub.errors")  # the light runtime does not load it
        if parsed.debug or library is None or not isinstance(error, library.StrictDataclassError):
            raise
        # Sizes that make no model; the library puts a line of its own before ours.
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
