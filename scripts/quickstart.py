"""Stream a few sentences in both directions, and watch it read and write.

    make quickstart

Uses the checkpoint that ships in model_cards/. Where there is none, the smallest model
is trained on the toy languages first.
"""

import sys
import time

from rich.console import Console
from transformers.utils import logging

from hf_dualpath import Read, SimultaneousTranslator
from hf_dualpath.cli import DEFAULT_MODEL
from hf_dualpath.examples import SHIPPED_EXAMPLES, TOY_EXAMPLES
from hf_dualpath.training import toy_model


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    ships = (DEFAULT_MODEL / "model.safetensors").is_file()
    model, sentences = (DEFAULT_MODEL, SHIPPED_EXAMPLES) if ships else (toy_model(), TOY_EXAMPLES)
    console = Console(highlight=False)
    pause = 0.25 if sys.stdout.isatty() else 0
    for direction, texts in sentences.items():
        translator = SimultaneousTranslator.from_pretrained(model, direction=direction)
        for text in texts:
            console.print(f"\n{direction}: {text}", style="bold")
            for event in translator.fork().stream(word + " " for word in text.split()):
                if isinstance(event, Read):
                    console.print(f"  READ   {event.word}", style="cyan", markup=False)
                else:
                    console.print(f"{'':26}WRITE  {event.word}", style="green", markup=False)
                time.sleep(pause)
            console.print(f"  = {translator.translate(text)}", markup=False)
    console.print("\nNext: source .venv/bin/activate; dualpath translate --help")


if __name__ == "__main__":
    main()
