"""Give a dual checkpoint the vocabulary of other texts, so that a new training does not begin from nothing.

    python scripts/experiments/transplant.py model_cards/dualpath-tatoeba-de-en --texts MIXTURE/train.de.gz \
        MIXTURE/train.en.gz --vocab-size 8000 --output runs/transplant

A token that the old vocabulary has keeps its embedding; another starts as the mean of the old pieces it is made of.
With `--ffn-dim` the feed-forward maps grow: new units write nothing at first, so the model computes what it did.
"""

import argparse
from itertools import chain
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from hf_dualpath import DualPathConfig, DualPathForConditionalGeneration
from hf_dualpath.inference.text import read_lines
from hf_dualpath.inference.tokenization import load_tokenizers, save_tokenizers, train_bpe_tokenizer


def new_embeddings(embeddings: torch.Tensor, old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast):
    known, pieces = old.get_vocab(), old.backend_tokenizer.model
    found = torch.zeros(len(new), embeddings.shape[1])
    for token, index in new.get_vocab().items():
        ids = [known[token]] if token in known else [piece.id for piece in pieces.tokenize(token)]
        found[index] = embeddings[ids].mean(0) if ids else embeddings.mean(0)
    return found


def widened(name: str, weight: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """A weight of a feed-forward map, with room for more units: those read at random and write nothing yet."""
    result = torch.zeros(size)
    if name.endswith("fc1.weight"):
        torch.nn.init.xavier_uniform_(result)
    result[tuple(slice(length) for length in weight.shape)] = weight
    return result


def transplant(
    checkpoint: Path, old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast, ffn_dim: int | None = None
) -> DualPathForConditionalGeneration:
    model = DualPathForConditionalGeneration.from_pretrained(checkpoint).float()
    table = model.forward_model.model.shared.weight.data
    config = DualPathConfig.from_pretrained(checkpoint)
    for direction in (config.forward_config, config.backward_config):
        direction.vocab_size = direction.decoder_vocab_size = len(new)
        if ffn_dim is not None:
            direction.encoder_ffn_dim = direction.decoder_ffn_dim = ffn_dim
    changed = DualPathForConditionalGeneration(config)
    tables = {name for name, weight in model.state_dict().items() if weight.data_ptr() == table.data_ptr()}
    moved = new_embeddings(table, old, new)
    weights = {name: moved if name in tables else weight for name, weight in model.state_dict().items()}
    sizes = {name: weight.shape for name, weight in changed.state_dict().items()}
    weights = {
        name: weight if weight.shape == sizes[name] else widened(name, weight, sizes[name])
        for name, weight in weights.items()
    }
    changed.load_state_dict(weights)
    changed.tie_weights()
    return changed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="A dual checkpoint with a joint vocabulary.")
    parser.add_argument("--texts", nargs="+", required=True, help="Files that the new vocabulary is made from.")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--ffn-dim", type=int, help="Width of the feed-forward maps; by default as it is.")
    parser.add_argument("--output", type=Path, required=True, help="Folder of the new checkpoint.")
    arguments = parser.parse_args()
    old, _ = load_tokenizers(arguments.checkpoint)
    new = train_bpe_tokenizer(chain.from_iterable(map(read_lines, arguments.texts)), arguments.vocab_size)
    transplant(arguments.checkpoint, old, new, arguments.ffn_dim).save_pretrained(arguments.output)
    save_tokenizers(arguments.output, new, new)


if __name__ == "__main__":
    main()
