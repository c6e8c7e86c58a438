"""Everyday sentences and speeches in one training set, as the checkpoint that ships is trained on.

    python scripts/experiments/mixture.py --everyday DATA/tatoeba_deen --speeches DATA/europarl_deen --output MIXTURE

Each folder holds train.de.gz, train.en.gz, dev.de.gz and dev.en.gz. The everyday sentences come several times, some of
them two or three in a row, and short phrases (greetings, questions) more often than they are, if that is asked for; of
the speeches come pairs of fitting lengths. The output is the same for the same seed.
"""

import argparse
import gzip
import random
from pathlib import Path

from hf_dualpath.inference.text import read_lines
from hf_dualpath.training.live_text import Pair, joined


LANGUAGES = ("de", "en")
PHRASE = 4  # words, at most


def read_pairs(folder: Path, split: str) -> list[Pair]:
    return list(zip(*([line.strip() for line in read_lines(folder / f"{split}.{name}.gz")] for name in LANGUAGES)))


def write_pairs(pairs: list[Pair], folder: Path, split: str):
    for side, name in zip(zip(*pairs), LANGUAGES):
        with gzip.open(folder / f"{split}.{name}.gz", "wt", encoding="utf-8") as file:
            file.writelines(f"{text}\n" for text in side)


def fits(source: str, target: str) -> bool:
    """Neither a fragment nor too long, and no side much longer than the other."""
    n, m = len(source.split()), len(target.split())
    return 2 <= n <= 45 and 2 <= m <= 50 and max(n, m) <= 2 * min(n, m) + 4


def mixture(
    everyday: list[Pair],
    speeches: list[Pair],
    repeats: int,
    in_a_row: int,
    of_speeches: int,
    phrase_repeats: int,
    seed: int,
) -> list[Pair]:
    rng = random.Random(seed)
    rows = joined(everyday, in_a_row, rng)
    fitting = [pair for pair in speeches if fits(*pair)]
    rng.shuffle(fitting)
    phrases = [pair for pair in everyday if max(len(side.split()) for side in pair) <= PHRASE]
    pairs = everyday * repeats + phrases * phrase_repeats + rows + fitting[:of_speeches]
    rng.shuffle(pairs)
    return pairs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--everyday", type=Path, required=True, help="Folder of short sentences.")
    parser.add_argument("--speeches", type=Path, required=True, help="Folder of long ones.")
    parser.add_argument("--output", type=Path, required=True, help="Folder to write.")
    parser.add_argument("--repeats", type=int, default=2, help="Everyday sentences come so often.")
    parser.add_argument("--joined", type=int, default=30_000, help="Everyday sentences in a row, so many pairs.")
    parser.add_argument("--of-speeches", type=int, default=330_000, help="So many pairs of the speeches.")
    parser.add_argument(
        "--phrase-repeats", type=int, default=0, help=f"Those of up to {PHRASE} words come so often more."
    )
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    folders = arguments.everyday, arguments.speeches
    train = (read_pairs(folder, "train") for folder in folders)
    counts = arguments.repeats, arguments.joined, arguments.of_speeches, arguments.phrase_repeats
    write_pairs(mixture(*train, *counts, arguments.seed), arguments.output, "train")
    short, long = (read_pairs(folder, "dev") for folder in folders)
    write_pairs(short[:250] + long[:150], arguments.output, "dev")


if __name__ == "__main__":
    main()
