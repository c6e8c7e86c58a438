"""How far is Dual Paths ahead of the other systems at equal latency, in several trainings of one plan?

    python scripts/experiments/seeds.py model_cards/multi30k-de-en/seed-42 model_cards/multi30k-de-en/seed-2 \
        --sets test_2016_flickr test_2017_flickr --output model_cards/multi30k-de-en

Reads what `comparison.py tables` wrote into each folder. Writes `seeds.csv`, a row for each training, test set,
direction, rival and AL, and `seeds.md`, their means and ranges.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

from hf_dualpath.evaluation.comparison import LAGS, at_latency
from hf_dualpath.evaluation.tables import as_csv, as_markdown


def leads(folder: Path, test_set: str) -> Iterator[dict]:
    """BLEU and IoU of Dual Paths minus those of each rival, where both curves reach."""
    rows = json.loads((folder / f"{test_set}.json").read_text())
    curves = {
        (row["system"], row["direction"], value): row
        for value in ("BLEU", "IoU")
        for row in at_latency([row for row in rows if row[value] is not None], value=value)
    }
    rivals = dict.fromkeys(system for system, *_ in curves if system != "Dual Paths")
    for rival in rivals:
        for direction in dict.fromkeys(row["direction"] for row in rows):
            for lag in LAGS:
                ahead = {
                    value: difference(
                        *(curves.get((name, direction, value), {}).get(f"AL {lag}") for name in ("Dual Paths", rival))
                    )
                    for value in ("BLEU", "IoU")
                }
                if ahead["BLEU"] is not None:
                    where = {"training": folder.name, "test set": test_set, "direction": direction}
                    yield where | {"rival": rival, "AL": lag} | ahead


def difference(mine: float | None, other: float | None) -> float | None:
    return None if mine is None or other is None else mine - other


def summary(rows: list[dict], names: list[str]) -> str:
    """A line for each rival and AL: for each training the mean lead over test sets and directions, and its range."""
    lines = []
    for rival in dict.fromkeys(row["rival"] for row in rows):
        for lag in LAGS:
            line = {"Dual Paths against": rival, "AL": str(lag)}
            for name in names:
                key = (name, rival, lag)
                here = [row for row in rows if (row["training"], row["rival"], row["AL"]) == key]
                bleu = [row["BLEU"] for row in here]
                line[f"BLEU, {name}"] = f"{mean(bleu):+.1f} ({min(bleu):+.1f} to {max(bleu):+.1f})" if here else ""
                iou = [row["IoU"] for row in here if row["IoU"] is not None]
                learned = iou and rival != "Wait-k"  # a fixed path has nothing to agree on
                line[f"IoU, {name}"] = f"{mean(iou):+.2f}" if learned else ""
            if any(list(line.values())[2:]):
                lines.append(line)
    return as_markdown(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folders", type=Path, nargs="+", help="What `comparison.py tables` wrote, a folder a training."
    )
    parser.add_argument("--sets", nargs="+", required=True, help="Test sets.")
    parser.add_argument("--output", type=Path, required=True, help="Folder for seeds.csv and seeds.md.")
    arguments = parser.parse_args()
    rows = [row for folder in arguments.folders for name in arguments.sets for row in leads(folder, name)]
    text = summary(rows, [folder.name for folder in arguments.folders])
    (arguments.output / "seeds.csv").write_text(as_csv(rows, list(rows[0])))
    (arguments.output / "seeds.md").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
