r"""Train as scripts/train.py does, with the authors' biased alpha in place of the exact one: what is exactness worth?

    python scripts/experiments/train_biased_alpha.py RECIPE [--key value ...]

Alpha is computed with cumulative products and an epsilon of 0.01, as the authors' released code does.
plans/multi30k-variants.yaml uses it.
"""

import sys
from pathlib import Path

import torch


sys.path.append(str(Path(__file__).parents[1]))

from benchmark import cumulative_product_alignment

from hf_dualpath.model import policies_dualpath
from hf_dualpath.model.monotonic_attention import last_source_position
from hf_dualpath.training.run import main


def biased_alignment(selection_probability: torch.Tensor, source_mask: torch.Tensor, epsilon: float = 0.01):
    """`expected_alignment` with an epsilon: a row may sum to more than 1; if to less, the last token has the rest."""
    alpha = cumulative_product_alignment(selection_probability * source_mask[:, None, None, :], epsilon)
    last = torch.nn.functional.one_hot(last_source_position(source_mask), alpha.shape[-1])[:, None, None, :]
    return alpha + last * (1 - alpha.sum(-1, keepdim=True)).clamp(min=0)


if __name__ == "__main__":
    policies_dualpath.expected_alignment = biased_alignment
    main()
