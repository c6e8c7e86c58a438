"""Everyday sentences, translated live and with the whole source read first: what does not waiting cost?

    python scripts/experiments/everyday.py model_cards/dualpath-tatoeba-de-en --output everyday.md

The sentences are in tests/fixtures/everyday, with references. A table for each direction marks what equals its
reference, case and punctuation aside; whether the rest is acceptable, a reader decides. `dualpath evaluate --source
tests/fixtures/everyday/de.txt --target tests/fixtures/everyday/en.txt` gives BLEU and latency.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from sacrebleu import sentence_chrf

from hf_dualpath.evaluation.tables import as_markdown
from hf_dualpath.inference.batches import translate_corpus
from hf_dualpath.inference.checkpoints import load_directions
from hf_dualpath.inference.text import read_lines
from hf_dualpath.training.live_text import without_punctuation


SENTENCES = Path(__file__).parents[2] / "tests/fixtures/everyday"


def same(text: str, reference: str) -> bool:
    return without_punctuation(text).lower() == without_punctuation(reference).lower()


def lost(live: str, full: str, reference: str) -> bool:
    """Whether waiting for the whole source gives a clearly better sentence."""
    scores = [0.0 if not text else sentence_chrf(text, [reference]).score for text in (live, full)]
    return not same(live, full) and scores[1] > scores[0] + 10


def check(checkpoint: Path, write_threshold: float | None = None) -> Iterator[tuple[str, list[dict]]]:
    """The rows of each direction."""
    sides = [read_lines(SENTENCES / f"{language}.txt") for language in ("de", "en")]
    dials = {} if write_threshold is None else {"write_threshold": write_threshold}
    directions = load_directions(checkpoint)
    for (name, (model, *tokenizers)), (sources, references) in zip(directions.items(), (sides, sides[::-1])):
        everything = {"min_lag": model.config.max_position_embeddings}
        live, full = (
            [found.text for found in translate_corpus(model, *tokenizers, sources, progress=False, **options)[0]]
            for options in (dials, everything)
        )
        yield (
            name,
            [
                {
                    "source": source,
                    "live": text,
                    "whole source": whole,
                    "exact": "yes" if same(text, reference) else "",
                    "lost": "yes" if lost(text, whole, reference) else "",
                }
                for source, text, whole, reference in zip(sources, live, full, references)
            ],
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="A checkpoint of German and English.")
    parser.add_argument("--write-threshold", type=float, help="The dial; default: the checkpoint's.")
    parser.add_argument("--output", type=Path, help="Markdown file; the table is printed in any case.")
    arguments = parser.parse_args()
    text = ""
    for name, rows in check(arguments.checkpoint, arguments.write_threshold):
        exact, worse = (sum(bool(row[key]) for row in rows) for key in ("exact", "lost"))
        text += (
            f"### {name}: {exact} of {len(rows)} as the reference, {worse} clearly better with the whole source\n\n"
        )
        text += f"{as_markdown(rows)}\n"
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
