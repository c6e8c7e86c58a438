"""Does decoding get what training promised? The loss along the expected path against that along the hard one.

    python scripts/path_gap.py runs/seed-2/dual-0.6 runs/seed-2/dual-2 --source val.de.gz --target val.en.gz

Training averages over all paths that the policy may take; decoding takes one. For each dual checkpoint and direction,
with teacher forcing and without dropout or noise: cross-entropy a token along both, and the share of selection
probabilities between 0.2 and 0.8, which decide nothing.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM

from hf_dualpath.evaluation.comparison import as_csv
from hf_dualpath.inference.checkpoints import load_config
from hf_dualpath.inference.tokenization import load_tokenizers
from hf_dualpath.training.data import read_lines
from hf_dualpath.training.losses import label_smoothed_cross_entropy


def gaps(checkpoint: Path, sides: tuple[list[str], list[str]]) -> Iterator[dict]:
    config = load_config(checkpoint)
    for one in (config.forward_config, config.backward_config):
        one.dropout = one.attention_dropout = one.activation_dropout = one.noise_std = 0.0
    model = AutoModelForSeq2SeqLM.from_pretrained(checkpoint, config=config, trust_remote_code=False)
    batches = [t(texts, padding=True, return_tensors="pt") for t, texts in zip(load_tokenizers(checkpoint), sides)]
    for name, (source, target) in (
        (config.forward_direction, batches),
        (config.backward_direction, batches[::-1]),
    ):
        direction, real = model.direction(name), target.attention_mask.bool()
        labels = target.input_ids.masked_fill(~real, -100)
        start = direction.prepare_decoder_input_ids_from_labels(labels)
        row = {"run": checkpoint.name, "direction": name}
        for path in ("expected", "hard"):
            with torch.no_grad():
                output = direction.train(path == "expected")(source.input_ids, source.attention_mask, start)
            loss = label_smoothed_cross_entropy(output.logits, labels, label_smoothing=0) / real.sum()
            row[f"{path} path"] = loss.item()
        row["gap"] = row["hard path"] - row["expected path"]
        p = output.selection_probability
        if p is not None:
            p = torch.cat(p, 1) if isinstance(p, tuple) else p
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
