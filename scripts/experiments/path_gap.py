"""Does decoding get what training promised? The loss along the expected path against that along the hard one.

    python scripts/experiments/path_gap.py runs/dual-0.6 runs/dual-2 --source val.de.gz --target val.en.gz

Training averages over all paths that the policy may take; decoding takes one. For each dual checkpoint and direction,
with teacher forcing and without dropout or noise: cross-entropy a token along both, and the share of selection
probabilities between 0.2 and 0.8, which decide nothing.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch

from hf_dualpath.evaluation.tables import as_csv
from hf_dualpath.inference.checkpoints import load_directions
from hf_dualpath.inference.text import read_lines


def gaps(checkpoint: Path, sides: tuple[list[str], list[str]]) -> Iterator[dict]:
    directions = load_directions(checkpoint)
    for (name, (model, *tokenizers)), texts in zip(directions.items(), (sides, sides[::-1])):
        source, target = (t(side, padding=True, return_tensors="pt") for t, side in zip(tokenizers, texts))
        real = target.attention_mask.bool()
        labels = target.input_ids.masked_fill(~real, -100)
        row = {"run": checkpoint.name, "direction": name}
        for path in ("expected", "hard"):
            with torch.no_grad():
                output = model.eval()(source.input_ids, source.attention_mask, labels=labels, path=path)
            row[f"{path} path"] = output.loss.item()
        row["gap"] = row["hard path"] - row["expected path"]
        if output.selection_probabilities:
            p = torch.cat(output.selection_probabilities, 1)
            cells = (real[:, None, :, None] & source.attention_mask.bool()[:, None, None, :]).expand_as(p)
            row["undecided"] = ((p[cells] > 0.2) & (p[cells] < 0.8)).float().mean().item()
        yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", type=Path, nargs="+", help="Checkpoints of both directions.")
    parser.add_argument("--source", required=True, help="Source side of the forward direction.")
    parser.add_argument("--target", required=True, help="Its target side.")
    parser.add_argument("--limit", type=int, default=300, help="Only the first so many sentences.")
    parser.add_argument("--output", type=Path, help="CSV file; the table is printed in any case.")
    arguments = parser.parse_args()
    sides = tuple(read_lines(file)[: arguments.limit] for file in (arguments.source, arguments.target))
    rows = [row for checkpoint in arguments.checkpoints for row in gaps(checkpoint, sides)]
    text = as_csv(rows, ["run", "direction", "expected path", "hard path", "gap", "undecided"])
    if arguments.output:
        arguments.output.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
