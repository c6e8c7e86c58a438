"""Stream a few sentences in both directions, and watch it read and write.

    make quickstart

Uses the checkpoint that ships in model_cards/. Where there is none, the smallest model
is trained on the toy languages first.
"""

import sys
import time
from pathlib import Path

from rich.console import Console
from transformers.utils import logging

from hf_dualpath import Read, SimultaneousTranslator
from hf_dualpath.cli import DEFAULT_MODEL


SENTENCES = {
    "de-en": ["Ich habe heute leider keine Zeit.", "Der Mann, der dort steht, ist mein Bruder."],
    "en-de": ["I would like to go home now.", "She has never seen the sea."],
}
TOY_SENTENCES = {
    "de-en": ["Eine Hexe tritt zu Hause auf.", "Wir sollen einen Schirm zurücklassen."],
    "en-de": ["Lisa touches our big potato.", "In summer his dog sees her."],
}
TOY_MODEL = Path("runs/quickstart")


def train_toy_model() -> Path:
    """The toy languages in a minute or two."""
    if not (TOY_MODEL / "README.md").is_file():
        from hf_dualpath.training import train

        print(
            "No checkpoint ships yet: training the smallest model on the toy languages (about two minutes) ...",
            flush=True,
        )
        train(
            "scripts/recipes/toy.yaml", ["--output_dir", str(TOY_MODEL), "--max_steps", "350", "--eval_strategy", "no"]
        )
    return TOY_MODEL


def main():
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    ships = (DEFAULT_MODEL / "model.safetensors").is_file()
    model, sentences = (DEFAULT_MODEL, SENTENCES) if ships else (train_toy_model(), TOY_SENTENCES)
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
    console.print("\nNext: dualpath translate --help, or the README.")


if __name__ == "__main__":
    main()
