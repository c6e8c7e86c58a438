"""The losses of one direction (eq. 7) and of two joined by duality (eq. 13), as sums with their parts by name."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ..model.modeling_dualpath import DualPathOutput, SiMTOutput
from ..model.monotonic_attention import hard_path, one_hot
from ..paths.duality import duality_loss
from ..paths.latency import (
    average_over_heads,
    differentiable_average_lagging,
    expected_delays,
    head_delay_variance,
    row_variance,
)
from .cross_entropy import label_smoothed_cross_entropy


def of_all_heads(values: list[Tensor]) -> Tensor:
    """Values `(batch, head, target)` of the deciding layers side by side; those of one layer are not copied."""
    return values[0] if len(values) == 1 else torch.cat(values, 1)


def latency_loss(delays: Tensor, source_mask: Tensor, target_mask: Tensor) -> Tensor:
    """DAL of the expected delays `(batch, head, target)`, averaged over heads; of each sentence."""
    source_length, target_length = (mask.sum(-1, dtype=delays.dtype) for mask in (source_mask, target_mask))
    return differentiable_average_lagging(average_over_heads(delays), source_length, target_length, target_mask)


@dataclass
class DirectionLoss:
    """Unnormalised sums. `total` is what one minimises after division by `target_tokens`. Variances and the hard
    path's cross-entropy are 0 where they have no weight."""

    cross_entropy: Tensor
    hard_cross_entropy: Tensor
    latency: Tensor
    variance: Tensor
    row_variance: Tensor
    target_tokens: Tensor
    total: Tensor


def direction_loss(
    outputs: SiMTOutput,
    attention_mask: Tensor,
    labels: Tensor,
    pad_token_id: int,
    latency_weight: float = 0.0,
    variance_weight: float = 0.0,
    label_smoothing: float = 0.1,
    hard_weight: float = 0.0,
    row_variance_weight: float = 0.0,
    teaches: Tensor | None = None,
) -> DirectionLoss:
    r"""
    Loss of one direction (eq. 7), and what makes its path decide.

    Args:
        outputs ([`SiMTOutput`]): What the model returned along the expected path; with `hard_weight`, along both.
        attention_mask (`torch.Tensor` of shape `(batch, source)`): 1 at real source tokens.
        labels (`torch.LongTensor` of shape `(batch, target)`): Target tokens, -100 or padding where there are none.
        pad_token_id (`int`): What padding is.
        latency_weight (`float`, *optional*, defaults to 0.0): lambda, the weight of DAL.
        variance_weight (`float`, *optional*, defaults to 0.0): Weight of MMA's variance over heads.
        label_smoothing (`float`, *optional*, defaults to 0.1): Label smoothing.
        hard_weight (`float`, *optional*, defaults to 0.0):
            Weight of the cross-entropy along the hard path. It is added to that along the expected path, the only one
            that the policy learns from: shared out, the latency would count for more.
        row_variance_weight (`float`, *optional*, defaults to 0.0):
            Weight of the variance of each row of alpha, summed over target tokens and averaged over heads.
        teaches (`torch.BoolTensor` of shape `(batch,)`, *optional*): Sentences that count, by default all.
    """
    target_mask = (labels != -100) & (labels != pad_token_id)
    gold = labels.masked_fill(~target_mask, -100)
    weights = (latency_weight, variance_weight, label_smoothing, hard_weight, row_variance_weight)
    return _direction_loss(outputs, attention_mask.bool(), target_mask, gold, *weights, teaches)


def _direction_loss(
    outputs: SiMTOutput,
    source_mask: Tensor,
    target_mask: Tensor,
    gold: Tensor,
    latency_weight: float,
    variance_weight: float,
    label_smoothing: float,
    hard_weight: float,
    row_variance_weight: float,
    teaches: Tensor | None,
) -> DirectionLoss:
    """[`direction_loss`] with the masks of both sides, and -100 in `gold` wherever there is no token."""

    def over_sentences(values: Tensor) -> Tensor:
        return (values if teaches is None else values * teaches).sum()

    counted = target_mask
    if teaches is not None:
        counted = target_mask & teaches[:, None]
        gold = gold.masked_fill(~counted, -100)
    cross_entropy = label_smoothed_cross_entropy(outputs.logits, gold, label_smoothing)
    delays = of_all_heads([expected_delays(alpha) for alpha in outputs.alphas])
    latency = over_sentences(latency_loss(delays, source_mask, target_mask))
    variance = hard = spread = torch.zeros_like(cross_entropy)
    if variance_weight:
        variance = over_sentences(head_delay_variance(delays, target_mask))
    if hard_weight:
        hard = label_smoothed_cross_entropy(outputs.hard_output.logits, gold, label_smoothing)
    if row_variance_weight:
        rows = of_all_heads([row_variance(alpha) for alpha in outputs.alphas])
        spread = (rows.mean(1) * counted).sum()
    weighted = ((latency_weight, latency), (variance_weight, variance))
    weighted += ((hard_weight, hard), (row_variance_weight, spread))
    total = cross_entropy
    for weight, part in weighted:
        if weight:  # a part without a weight needs no backward
            total = torch.add(total, part, alpha=weight)
    return DirectionLoss(
        cross_entropy=cross_entropy,
        hard_cross_entropy=hard,
        latency=latency,
        variance=variance,
        row_variance=spread,
        target_tokens=counted.sum(),
        total=total,
    )


@dataclass
class DualPathLoss:
    """Unnormalised sums of both directions. `total` is what one minimises after division by `target_tokens`."""

    forward_cross_entropy: Tensor
    backward_cross_entropy: Tensor
    forward_hard_cross_entropy: Tensor
    backward_hard_cross_entropy: Tensor
    forward_latency: Tensor
    backward_latency: Tensor
    forward_variance: Tensor
    backward_variance: Tensor
    forward_row_variance: Tensor
    backward_row_variance: Tensor
    forward_duality: Tensor
    backward_duality: Tensor
    target_tokens: Tensor
    total: Tensor


def dual_path_loss(
    outputs: DualPathOutput,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    labels: Tensor,
    latency_weight: float = 0.0,
    backward_latency_weight: float | None = None,
    dual_weight: float = 1.0,
    label_smoothing: float = 0.1,
    duality_reduction: str = "batch",
    variance_weight: float = 0.0,
    segment: bool = True,
    forward_duality: bool = True,
    backward_duality: bool = True,
    hard_weight: float = 0.0,
    row_variance_weight: float = 0.0,
    duality_path: str = "expected",
    teaches: Tensor | None = None,
) -> DualPathLoss:
    r"""
    Joint loss of both directions, `L_F + L_B + lambda_dual (Omega_F + Omega_B)` (eq. 13).

    Args:
        outputs ([`DualPathOutput`]):
            What the model returned along the expected path; with `hard_weight` or `duality_path="hard"`, along both.
        input_ids, attention_mask, labels: The batch, as the model took it; labels may hold -100 or padding.
        latency_weight (`float`, *optional*, defaults to 0.0): lambda_F.
        backward_latency_weight (`float`, *optional*): lambda_B, by default lambda_F.
        dual_weight (`float`, *optional*, defaults to 1.0): lambda_dual.
        label_smoothing (`float`, *optional*, defaults to 0.1): Label smoothing.
        duality_reduction (`str`, *optional*, defaults to `"batch"`): `"batch"` or `"sentence"`, see [`duality_loss`].
        variance_weight (`float`, *optional*, defaults to 0.0): Weight of MMA's variance over heads.
        segment (`bool`, *optional*, defaults to `True`): False for the ablation without the segment step.
        forward_duality, backward_duality (`bool`, *optional*, defaults to `True`):
            False drops Omega_F or Omega_B. With both False, or `dual_weight=0`, these are two single paths in one run.
        hard_weight, row_variance_weight (`float`, *optional*, defaults to 0.0): See [`direction_loss`].
        duality_path (`str`, *optional*, defaults to `"expected"`):
            Which path of one direction guides the other: its alpha, or `"hard"`, the one that decoding would take.
        teaches (`torch.BoolTensor` of shape `(batch, 2)`, *optional*):
            Which sentences teach the forward and the backward direction, by default all both. Duality takes all.
    """
    source_mask = outputs.source_mask if attention_mask is None else attention_mask.bool()
    target_mask = outputs.target_mask
    if backward_latency_weight is None:
        backward_latency_weight = latency_weight
    ahead, back = outputs.forward_output, outputs.backward_output
    gold, source = labels.masked_fill(~target_mask, -100), input_ids.masked_fill(~source_mask, -100)
    rest = (variance_weight, label_smoothing, hard_weight, row_variance_weight)
    teaches_forward, teaches_backward = (None, None) if teaches is None else teaches.T
    forward = _direction_loss(ahead, source_mask, target_mask, gold, latency_weight, *rest, teaches_forward)
    backward = _direction_loss(
        back, target_mask, source_mask, source, backward_latency_weight, *rest, teaches_backward
    )
    total = forward.total + backward.total
    if dual_weight and (forward_duality or backward_duality):
        if len(ahead.selection_probabilities) != 1:
            raise ValueError(
                "Duality needs one learned path a direction (policy shared_path); else set `dual_weight=0`."
            )
        guides = None
        if duality_path == "hard":
            guides = decided_path(ahead, source_mask), decided_path(back, target_mask)
        omega_f, omega_b = duality_loss(
            *ahead.alphas, *back.alphas, source_mask, target_mask, duality_reduction, segment, guides
        )
        for counts, omega in ((forward_duality, omega_f), (backward_duality, omega_b)):
            if counts:
                total = torch.add(total, omega, alpha=dual_weight)
    else:
        omega_f = omega_b = torch.zeros_like(total)
    return DualPathLoss(
        forward_cross_entropy=forward.cross_entropy,
        backward_cross_entropy=backward.cross_entropy,
        forward_hard_cross_entropy=forward.hard_cross_entropy,
        backward_hard_cross_entropy=backward.hard_cross_entropy,
        forward_latency=forward.latency,
        backward_latency=backward.latency,
        forward_variance=forward.variance,
        backward_variance=backward.variance,
        forward_row_variance=forward.row_variance,
        backward_row_variance=backward.row_variance,
        forward_duality=omega_f,
        backward_duality=omega_b,
        target_tokens=forward.target_tokens + backward.target_tokens,
        total=total,
    )


def decided_path(outputs: SiMTOutput, source_mask: Tensor) -> Tensor:
    """One-hot rows at each head's stop, free of noise and at the usual threshold, whatever the dial of this batch."""
    (p,) = outputs.hard_output.selection_probabilities
    return one_hot(hard_path(p, source_mask), p.shape[-1]).to(p.dtype)


def parts(loss: DirectionLoss | DualPathLoss) -> dict[str, Tensor]:
    """The detached parts of a loss by name, for logging."""
    return {field.name: getattr(loss, field.name).detach() for field in fields(loss)}
