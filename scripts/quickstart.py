"""Stream a few sentences in both directions, and watch it read and write.

    make quickstart

Uses the checkpoint that ships in model_cards/.
"""

import sys
import time

from rich.console import Console
from transformers.utils import logging

from hf_dualpath import Read, SimultaneousTranslator, Write
from hf_dualpath.apps.examples import DEFAULT_MODEL, SHIPPED_EXAMPLES


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    console = Console(highlight=False)
    pause = 0.25 if sys.stdout.isatty() else 0
    for direction, texts in SHIPPED_EXAMPLES.items():
        translator = SimultaneousTranslator.from_pretrained(DEFAULT_MODEL, direction=direction)
        for text in texts:
            console.print(f"\n{direction}: {text}", style="bold")
            for event in translator.fork().stream(word + " " for word in text.split()):
                if isinstance(event, Read):
                    console.print(f"  READ   {event.word}", style="cyan", markup=False)
                elif isinstance(event, Write):
                    console.print(f"{'':26}WRITE  {event.word}", style="green", markup=False)
                time.sleep(pause)
            console.print(f"  = {translator.translate(text)}", markup=False)
    console.print("\nNext: source .venv/bin/activate; dualpath translate --help")


if __name__ == "__main__":
    main()
