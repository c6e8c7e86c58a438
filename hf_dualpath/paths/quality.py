"""How good a READ/WRITE path is: sufficiency and necessity against gold alignments, and how two directions agree."""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import DataError
from .duality import transpose_path


Alignment = Sequence[tuple[int, int]]  # source word, target word, from 0


def parse_alignment(line: str, source_length: int, target_length: int, number: int = 1) -> list[tuple[int, int]]:
    """Links of one sentence in Pharaoh format: `i-j` for a sure link, `i?j` for a possible one; both count."""
    links = []
    for item in line.split():
        match = re.fullmatch(r"(\d+)[-?](\d+)", item)
        if match is None:
            raise DataError(f"Alignments, line {number}: {item!r} is not of the form i-j or i?j.")
        source, target = int(match[1]), int(match[2])
        if source >= source_length or target >= target_length:
            raise DataError(
                f"Alignments, line {number}: {item} is out of range "
                f"for {source_length} source and {target_length} target words."
            )
        links.append((source, target))
    return links


def furthest_alignment(alignment: Alignment) -> dict[int, int]:
    """`a_i` of each aligned target word: its furthest source word, counted from 1."""
    furthest: dict[int, int] = {}
    for source, target in alignment:
        furthest[target] = max(furthest.get(target, 0), source + 1)
    return furthest


def sufficiency(path: Sequence[int], alignment: Alignment) -> float | None:
    """A_suf: share of aligned target words written after all their source words were read, `a_i <= g_i`."""
    furthest = furthest_alignment(alignment)
    if not furthest:
        return None
    return sum(a <= path[i] for i, a in furthest.items()) / len(furthest)


def necessity(path: Sequence[int], alignment: Alignment) -> float | None:
    """A_nec: mean of `a_i / g_i` over the aligned target words that were written with enough read, `a_i <= g_i`."""
    enough = [(a, path[i]) for i, a in furthest_alignment(alignment).items() if a <= path[i]]
    return sum(a / g for a, g in enough) / len(enough) if enough else None


def intersection_over_union(path: Sequence[int], other: Sequence[int]) -> float:
    """Area under both of two paths over one sentence pair (cells j <= g_i), relative to the area under either."""
    shared = sum(min(a, b) for a, b in zip(path, other, strict=True))
    covered = sum(max(a, b) for a, b in zip(path, other, strict=True))
    return shared / covered


def duality_iou(forward_alpha: Tensor, backward_alpha: Tensor, source_mask: Tensor, target_mask: Tensor) -> Tensor:
    """IoU of each sentence's forward path and transposed backward path, averaged over heads.

    Both are hard paths in one-hot form, as eval mode gives them: `(batch, head, target, source)` and its mirror image.
    """
    forward = forward_alpha.argmax(-1) + 1  # batch, head, target
    backward = transpose_path(backward_alpha, target_mask, source_mask).argmax(-1) + 1
    real = target_mask[:, None]
    shared = (torch.minimum(forward, backward) * real).sum(-1)
    covered = (torch.maximum(forward, backward) * real).sum(-1)
    return (shared / covered).mean(-1)  # batch
