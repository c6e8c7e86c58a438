"""How far is Dual Paths ahead of the other systems at equal latency, in several trainings of one plan?

    python scripts/seeds.py model_cards/multi30k-de-en/seed-42 model_cards/multi30k-de-en/seed-2 \
        --sets test_2016_flickr test_2017_flickr --output model_cards/multi30k-de-en

Reads what `comparison.py tables` wrote into each folder. Writes `seeds.csv`, a row for each test set, direction, rival
and AL, and `seeds.md`, their means and ranges.
"""

import argparse
import json
from pathlib import Path
from statistics import mean

from hf_dualpath.comparison import as_csv


def leads(folder: Path, test_set: str) -> dict[tuple[str, str, str], float]:
    """BLEU of Dual Paths minus that of each rival, by rival, direction and AL, where both curves reach."""
    curves = {
        (row["system"], row["direction"]): row
        for row in json.loads((folder / f"{test_set}-at-latency.json").read_text())
    }
    return {
        (system, direction, lag): curves["Dual Paths", direction][lag] - score
        for (system, direction), row in curves.items()
        if system != "Dual Paths"
        for lag, score in row.items()
        if lag.startswith("AL ") and score is not None and curves["Dual Paths", direction][lag] is not None
    }


def table(folders: list[Path], sets: list[str]) -> list[dict]:
    rows = []
    for test_set in sets:
        found = {folder.name: leads(folder, test_set) for folder in folders}
        for rival, direction, lag in dict.fromkeys(key for by_key in found.values() for key in by_key):
            scores = {name: by_key.get((rival, direction, lag)) for name, by_key in found.items()}
            rows.append({"test set": test_set, "direction": direction, "rival": rival, "AL": lag[3:]} | scores)
    return rows


def summary(rows: list[dict], names: list[str]) -> str:
    """A line for each rival and AL: for each training the mean lead over test sets and directions, and its range."""
    lines = ["| Dual Paths against | AL | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for rival, lag in sorted({(row["rival"], row["AL"]) for row in rows}, key=lambda key: (key[0], float(key[1]))):
        cells = []
        for name in names:
            here = (row[name] for row in rows if (row["rival"], row["AL"]) == (rival, lag))
            leads = [lead for lead in here if lead is not None]
            cells.append(f"{mean(leads):+.1f} ({min(leads):+.1f} to {max(leads):+.1f})" if leads else "")
        lines.append(f"| {rival} | {lag} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folders", type=Path, nargs="+", help="What `comparison.py tables` wrote, a folder a training."
    )
    parser.add_argument("--sets", nargs="+", required=True, help="Test sets.")
    parser.add_argument("--output", type=Path, required=True, help="Folder for seeds.csv and seeds.md.")
    arguments = parser.parse_args()
    rows = table(arguments.folders, arguments.sets)
    text = summary(rows, [folder.name for folder in arguments.folders])
    (arguments.output / "seeds.csv").write_text(as_csv(rows, list(rows[0])))
    (arguments.output / "seeds.md").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
