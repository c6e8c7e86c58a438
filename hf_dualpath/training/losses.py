"""The losses of one direction (eq. 7) and of two joined by duality (eq. 13), as sums with their parts by name."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ..model.modeling_dualpath import DualPathOutput, SiMTOutput
from ..model.monotonic_attention import hard_path
from ..paths.duality import duality_loss
from ..paths.latency import (
    average_over_heads,
    differentiable_average_lagging,
    expected_delays,
    head_delay_variance,
    row_variance,
)


class _LabelSmoothedCrossEntropy(torch.autograd.Function):
    """`logsumexp(x) - gold x[gold] - other sum(x)` summed over rows, in blocks of rows that fit a processor's cache:
    small models spend much of their time here, and most of that on moving the logits."""

    BLOCK = 2**18  # numbers in a block

    @staticmethod
    def forward(ctx, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        vocabulary = logits.shape[-1]
        ctx.other = smoothing / (vocabulary - 1)
        ctx.gold = 1 - smoothing - ctx.other
        real, gold = labels != -100, labels.clamp(min=0)[:, None]
        scratch, rows = _LabelSmoothedCrossEntropy.scratch(logits)
        normaliser, loss = (scratch.new_empty(logits.shape[0], 1) for _ in range(2))
        for start in range(0, logits.shape[0], rows):
            now = slice(start, start + rows)
            x = logits[now].to(scratch.dtype)
            top = x.amax(-1, keepdim=True)
            exponentials = torch.sub(x, top, out=scratch[: x.shape[0]]).exp_()
            normaliser[now] = exponentials.sum(-1, keepdim=True).log_().add_(top)
            loss[now] = normaliser[now] - ctx.gold * x.gather(-1, gold[now]) - ctx.other * x.sum(-1, keepdim=True)
        ctx.save_for_backward(logits, real, gold, normaliser)
        return (loss.squeeze(-1) * real).sum()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        logits, real, gold, normaliser = ctx.saved_tensors
        result = torch.empty_like(logits)
        scratch, rows = _LabelSmoothedCrossEntropy.scratch(logits)
        weight = (grad * real).to(scratch.dtype)[:, None]
        for start in range(0, logits.shape[0], rows):
            now = slice(start, start + rows)
            x = logits[now].to(scratch.dtype)
            difference = torch.sub(x, normaliser[now], out=scratch[: x.shape[0]]).exp_().sub_(ctx.other)
            difference.scatter_add_(-1, gold[now], torch.full_like(weight[now], -ctx.gold))
            result[now] = difference.mul_(weight[now])
        return result, None, None

    @staticmethod
    def scratch(logits: Tensor) -> tuple[Tensor, int]:
        rows = max(1, _LabelSmoothedCrossEntropy.BLOCK // logits.shape[-1])
        dtype = torch.promote_types(logits.dtype, torch.float32)
        return torch.empty(rows, logits.shape[-1], dtype=dtype, device=logits.device), rows


def label_smoothed_cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float = 0.1) -> Tensor:
    r"""
    Sum over target tokens of the cross-entropy with weight `1 - eps` on the gold token and `eps / (V - 1)` on others.

    Args:
        logits (`torch.Tensor` of shape `(batch, target, vocabulary)`): Unnormalised scores.
        labels (`torch.LongTensor` of shape `(batch, target)`): Gold tokens; -100 is ignored.
        label_smoothing (`float`, *optional*, defaults to 0.1): eps.
    """
    if labels.is_cpu and not torch.compiler.is_compiling():
        wrong = (labels != -100) & ((labels < 0) | (labels >= logits.shape[-1]))
        if bool(wrong.any()):
            raise ValueError(
                f"A label is {int(labels[wrong][0])}, which is no token of a vocabulary of {logits.shape[-1]}."
            )
    logits, labels = logits.flatten(0, 1), labels.flatten()
    if logits.is_cpu and not torch.compiler.is_compiling():
        return _LabelSmoothedCrossEntropy.apply(logits, labels, label_smoothing)
    # The library spreads its smoothing over all tokens, the gold one included.
    vocabulary = logits.shape[-1]
    return torch.nn.functional.cross_entropy(
        logits.to(torch.promote_types(logits.dtype, torch.float32)),
        labels,
        reduction="sum",
        label_smoothing=label_smoothing * vocabulary / (vocabulary - 1),
    )


def latency_loss(alphas: tuple[Tensor, ...], source_mask: Tensor, target_mask: Tensor) -> tuple[Tensor, Tensor]:
    """DAL of the expected delays, averaged over the heads of all deciding layers, and the variance over those
    heads; both of each sentence."""
    delays = torch.cat([expected_delays(a) for a in alphas], dim=1)  # batch, head, target
    dal = differentiable_average_lagging(
        average_over_heads(delays), source_mask.sum(-1), target_mask.sum(-1), target_mask
    )
    return dal, head_delay_variance(delays, target_mask)


@dataclass
class DirectionLoss:
    """Unnormalised sums. `total` is what one minimises after division by `target_tokens`."""

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
    latency, variance = latency_loss(outputs.alphas, attention_mask.bool(), target_mask)
    if teaches is not None:
        latency, variance, target_mask = latency * teaches, variance * teaches, target_mask & teaches[:, None]
    latency, variance = latency.sum(), variance.sum()
    gold = labels.masked_fill(~target_mask, -100)
    cross_entropy = label_smoothed_cross_entropy(outputs.logits, gold, label_smoothing)
    hard = spread = torch.zeros_like(cross_entropy)
    if hard_weight:
        hard = label_smoothed_cross_entropy(outputs.hard_output.logits, gold, label_smoothing)
    if row_variance_weight:
        rows = torch.cat([row_variance(alpha) for alpha in outputs.alphas], 1)  # batch, head, target
        spread = (rows.mean(1) * target_mask).sum()
    weighted = ((latency_weight, latency), (variance_weight, variance))
    weighted += ((hard_weight, hard), (row_variance_weight, spread))
    total = cross_entropy
    for weight, part in weighted:
        if weight:  # a part without a weight needs no backward
            total = total + weight * part
    return DirectionLoss(
        cross_entropy=cross_entropy,
        hard_cross_entropy=hard,
        latency=latency,
        variance=variance,
        row_variance=spread,
        target_tokens=target_mask.sum(),
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
    forward = direction_loss(ahead, source_mask, gold, -100, latency_weight, *rest, teaches_forward)
    backward = direction_loss(back, target_mask, source, -100, backward_latency_weight, *rest, teaches_backward)
    omega_f = omega_b = torch.zeros_like(forward.total)
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
    duality = omega_f * forward_duality + omega_b * backward_duality
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
        total=forward.total + backward.total + dual_weight * duality,
    )


def decided_path(outputs: SiMTOutput, source_mask: Tensor) -> Tensor:
    """One-hot rows at each head's stop, free of noise and at the usual threshold, whatever the dial of this batch."""
    (p,) = outputs.hard_output.selection_probabilities
    return torch.nn.functional.one_hot(hard_path(p, source_mask), p.shape[-1]).to(p.dtype)


def parts(loss: DirectionLoss | DualPathLoss) -> dict[str, Tensor]:
    """The detached parts of a loss by name, for logging."""
    return {field.name: getattr(loss, field.name).detach() for field in fields(loss)}
