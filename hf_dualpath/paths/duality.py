"""Duality: the path of one direction, transposed, guides the other direction (section 3 of the paper)."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor


def transpose_path(
    alpha: Tensor, source_mask: Tensor | None = None, target_mask: Tensor | None = None, segment: bool = True
) -> Tensor:
    r"""
    Transposed writing probability gamma of the other direction: segment, transpose, merge (eq. 8-10).

    Each target token i writes at `d_i = argmax_j alpha[i,j]`, made non-decreasing. Target tokens with equal d form a
    segment whose source side runs up to d; transposed, every source token of it writes at the segment's last target
    token. Source tokens after the last d write at the last target token.

    Args:
        alpha (`torch.Tensor` of shape `(batch, head, target, source)`): Expected writing probability.
        source_mask (`torch.BoolTensor` of shape `(batch, source)`, *optional*): True at real tokens.
        target_mask (`torch.BoolTensor` of shape `(batch, target)`, *optional*): True at real tokens.
        segment (`bool`, *optional*, defaults to `True`):
            False gives the paper's ablation: the plain transpose of the one-hot path.

    Returns:
        `torch.Tensor` of shape `(batch, head, source, target)`, zeros and ones, no gradient; zero rows at padding.
    """
    alpha, (source_mask, target_mask) = alpha.detach(), _masks(alpha, source_mask, target_mask)
    if segment:
        return torch.ops.hf_dualpath.transpose_path(alpha, source_mask, target_mask)
    source = torch.arange(alpha.shape[-1], device=alpha.device)
    gamma = (_stops(alpha, source_mask)[..., None] == source).transpose(2, 3)
    return gamma.to(alpha.dtype) * (source_mask[:, None, :, None] & target_mask[:, None, None, :])


def _stops(alpha: Tensor, source_mask: Tensor) -> Tensor:
    """`d`: the likeliest stop of each target token, made non-decreasing. batch, head, target"""
    return alpha.masked_fill(~source_mask[:, None, None, :], -1).argmax(-1).cummax(-1).values


def _transpose_segments(alpha: Tensor, source_mask: Tensor, target_mask: Tensor) -> Tensor:
    batch, heads, rows, columns = alpha.shape
    d = _stops(alpha, source_mask)
    d = d.masked_fill(~target_mask[:, None, :], columns)  # past every source token: padding ends no segment
    source = torch.arange(columns, device=alpha.device).expand(batch, heads, columns).contiguous()
    first = torch.searchsorted(d, source)  # first target token that writes at or after each source token
    segment_stop = d.gather(-1, first.clamp(max=rows - 1))
    segment_end = torch.searchsorted(d, segment_stop, right=True) - 1
    segment_end = torch.minimum(segment_end, target_mask.long().sum(-1)[:, None, None] - 1)
    gamma = torch.zeros(batch, heads, columns, rows, dtype=alpha.dtype, device=alpha.device)
    return gamma.scatter_(-1, segment_end[..., None], 1).masked_fill(~source_mask[:, None, :, None], 0)


@cache
def _cuda_form() -> Callable:
    """Triton's kernel, imported when the first CUDA tensor comes, or the code above where triton is missing."""
    try:
        from .duality_triton import transpose_path as kernel
    except ImportError:
        return _transpose_segments
    return kernel


TRANSPOSE = torch.library.custom_op(
    "hf_dualpath::transpose_path",
    _transpose_segments,
    mutates_args=(),
    schema="(Tensor alpha, Tensor source_mask, Tensor target_mask) -> Tensor",
)
TRANSPOSE.register_kernel("cuda")(lambda *arguments: _cuda_form()(*arguments))
TRANSPOSE.register_fake(lambda alpha, source_mask, target_mask: alpha.new_empty(alpha.transpose(2, 3).shape))


def duality_loss(
    forward_alpha: Tensor,
    backward_alpha: Tensor,
    source_mask: Tensor | None = None,
    target_mask: Tensor | None = None,
    reduction: str = "batch",
    segment: bool = True,
    guides: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    r"""
    `Omega_F = ||alpha_F - gamma_B||` and `Omega_B = ||alpha_B - gamma_F||` over real tokens (eq. 11-12).

    Args:
        forward_alpha (`torch.Tensor` of shape `(batch, head, target, source)`): Path of the forward direction.
        backward_alpha (`torch.Tensor` of shape `(batch, head, source, target)`): Path of the backward direction.
        source_mask, target_mask (`torch.BoolTensor`, *optional*): Real tokens of the forward direction's two sides.
        reduction (`str`, *optional*, defaults to `"batch"`):
            `"batch"` is one norm over the batch (the authors' code); `"sentence"` one norm a sentence, summed, which
            is the same for any batch size or number of processes.
        segment (`bool`, *optional*, defaults to `True`): See [`transpose_path`].
        guides (pair of `torch.Tensor`, *optional*):
            Paths of the forward and the backward direction to transpose, by default the alphas themselves.
    """
    source_mask, target_mask = _masks(forward_alpha, source_mask, target_mask)
    forward_guide, backward_guide = guides or (forward_alpha, backward_alpha)
    forward_gamma = transpose_path(forward_guide, source_mask, target_mask, segment)
    backward_gamma = transpose_path(backward_guide, target_mask, source_mask, segment)
    real = source_mask[:, None, None, :] & target_mask[:, None, :, None]
    return (
        _distance(forward_alpha, backward_gamma, real, reduction),
        _distance(backward_alpha, forward_gamma, real.transpose(2, 3), reduction),
    )


def _distance(alpha: Tensor, gamma: Tensor, real: Tensor, reduction: str) -> Tensor:
    difference = (alpha - gamma) * real
    if reduction == "batch":
        return torch.linalg.vector_norm(difference)
    if reduction == "sentence":
        return torch.linalg.vector_norm(difference, dim=(1, 2, 3)).sum()
    raise ValueError(f"The duality reduction is 'batch' or 'sentence', not {reduction!r}.")


def _masks(alpha: Tensor, source_mask: Tensor | None, target_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The masks of both sides, by default of real tokens only."""
    batch, _, rows, columns = alpha.shape
    if source_mask is None:
        source_mask = torch.ones(batch, columns, dtype=torch.bool, device=alpha.device)
    if target_mask is None:
        target_mask = torch.ones(batch, rows, dtype=torch.bool, device=alpha.device)
    return source_mask, target_mask
