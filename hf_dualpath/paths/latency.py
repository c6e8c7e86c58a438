"""How late a translation is: expected delays of a path in training, and AP, AL, DAL, LAAL of any path.

A path holds the number of source tokens read before each target token. The metrics are differentiable, batched over
the first dimension and blind to padding.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def expected_delays(alpha: Tensor) -> Tensor:
    """Expected number of source tokens read before each target token: `sum_j j alpha[..., j]`."""
    positions = torch.arange(1, alpha.shape[-1] + 1, dtype=alpha.dtype, device=alpha.device)
    return (alpha * positions).sum(-1)  # no product of matrices, which autocast would round


def average_over_heads(delays: Tensor) -> Tensor:
    """Delays `(batch, head, target)` averaged with weights softmax over heads, so the slowest head counts most."""
    return (delays.softmax(1) * delays).sum(1)


def head_delay_variance(delays: Tensor, target_mask: Tensor) -> Tensor:
    """Variance of the delays `(batch, head, target)` over heads, averaged over target tokens: MMA's variance loss."""
    if delays.shape[1] == 1:
        return torch.zeros_like(delays[:, 0, 0])
    return _masked_mean(delays.var(1), target_mask)


def row_variance(alpha: Tensor) -> Tensor:
    """`sum_j j^2 alpha[..., j] - (sum_j j alpha[..., j])^2`: how far a row that sums to 1 is from one decision."""
    distance = torch.arange(1, alpha.shape[-1] + 1, dtype=alpha.dtype, device=alpha.device)
    distance = distance - expected_delays(alpha)[..., None]  # around the mean: nothing large is subtracted
    return (alpha * distance**2).sum(-1)


def average_proportion(delays: Tensor, source_length: Tensor, target_length: Tensor, target_mask: Tensor) -> Tensor:
    """AP: `sum_i g_i / (I J)` for each sentence."""
    return (delays * target_mask).sum(-1) / (source_length * target_length)


def average_lagging(delays: Tensor, source_length: Tensor, target_length: Tensor, target_mask: Tensor) -> Tensor:
    """AL: mean of `g_i - (i - 1) J / I` over target tokens up to the first one written with the whole source read."""
    before = delays.detach().roll(1, -1)
    before[..., 0] = 0
    counted = target_mask & (before < source_length[..., None])
    return _masked_mean(_lag(delays, source_length, target_length), counted)


def differentiable_average_lagging(
    delays: Tensor, source_length: Tensor, target_length: Tensor, target_mask: Tensor
) -> Tensor:
    """DAL: mean of `g'_i - (i - 1) J / I` with `g'_i = max(g_i, g'_{i-1} + J / I)`, whose lag is a running maximum."""
    lag = _lag(delays, source_length, target_length).cummax(-1).values
    return (lag * target_mask).sum(-1) / target_length


def latency_metrics(
    path: Sequence[float],
    source_length: int,
    target_length: int | None = None,
    reference_length: int | None = None,
) -> dict[str, float]:
    r"""
    AP, AL, DAL and LAAL of one sentence.

    Args:
        path (`Sequence[float]`): Source tokens (or words) read before each target token (or word).
        source_length (`int`): J, in the same unit.
        target_length (`int`, *optional*, defaults to `len(path)`): I, the length of the hypothesis.
        reference_length (`int`, *optional*):
            With it AP and AL take the reference's length for I as SimulEval does, and LAAL the longer of the two; DAL
            keeps the hypothesis. Without it all four take the hypothesis (the paper).
    """
    if not len(path):
        raise ValueError("latency_metrics needs a path of at least one target token.")
    delays = torch.tensor([list(path)], dtype=torch.float64)
    mask = torch.ones_like(delays, dtype=torch.bool)
    source, target = torch.tensor([source_length]), torch.tensor([target_length or len(path)])
    reference = target if reference_length is None else torch.tensor([reference_length])
    return {
        "AP": average_proportion(delays, source, reference, mask).item(),
        "AL": average_lagging(delays, source, reference, mask).item(),
        "DAL": differentiable_average_lagging(delays, source, target, mask).item(),
        "LAAL": average_lagging(delays, source, torch.maximum(target, reference), mask).item(),
    }


def _lag(delays: Tensor, source_length: Tensor, target_length: Tensor) -> Tensor:
    """`g_i - (i - 1) J / I`: how far each write is behind an ideal translator that writes evenly."""
    step = (source_length.to(delays.dtype) / target_length)[..., None]
    before = torch.arange(delays.shape[-1], dtype=delays.dtype, device=delays.device)
    return torch.addcmul(delays, step, before, value=-1)


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum(-1) / mask.sum(-1)
