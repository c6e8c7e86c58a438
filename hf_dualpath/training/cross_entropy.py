"""Label-smoothed cross-entropy, as sums over target tokens: for CPUs in blocks, for GPUs as one kernel each way."""

from functools import cache
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor


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


def _kernels() -> ModuleType:
    from . import cross_entropy_triton

    return cross_entropy_triton


@cache
def _has_kernels() -> bool:
    return find_spec("triton") is not None


CROSS_ENTROPY = torch.library.custom_op(
    "hf_dualpath::cross_entropy",
    lambda *arguments: _kernels().cross_entropy(*arguments),
    mutates_args=(),
    device_types="cuda",
    schema="(Tensor logits, Tensor labels, float smoothing) -> (Tensor, Tensor)",
)
CROSS_ENTROPY_BACKWARD = torch.library.custom_op(
    "hf_dualpath::cross_entropy_backward",
    lambda *arguments: _kernels().cross_entropy_backward(*arguments),
    mutates_args=(),
    device_types="cuda",
    schema="(Tensor grad, Tensor logits, Tensor labels, Tensor normaliser, float smoothing) -> Tensor",
)


@CROSS_ENTROPY.register_fake
def _(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return tuple(labels.new_empty(labels.shape, dtype=dtype) for _ in range(2))


@CROSS_ENTROPY_BACKWARD.register_fake
def _(grad: Tensor, logits: Tensor, labels: Tensor, normaliser: Tensor, smoothing: float) -> Tensor:
    return logits.new_empty(logits.shape)


def _save(ctx, inputs, output):
    logits, labels, ctx.smoothing = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(logits, labels, output[1])


def _backward(ctx, grad: Tensor | None, _) -> tuple[Tensor | None, None, None]:
    if grad is None:
        return None, None, None
    return CROSS_ENTROPY_BACKWARD(grad, *ctx.saved_tensors, ctx.smoothing), None, None


CROSS_ENTROPY.register_autograd(_backward, setup_context=_save)


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
    if not torch.compiler.is_compiling():  # what is compiled is fused anyway
        if logits.is_cpu:
            return _LabelSmoothedCrossEntropy.apply(logits, labels, label_smoothing)
        if logits.is_meta or (logits.is_cuda and _has_kernels()):
            return CROSS_ENTROPY(logits, labels, label_smoothing)[0].sum()
    # The library spreads its smoothing over all tokens, the gold one included.
    vocabulary = logits.shape[-1]
    return torch.nn.functional.cross_entropy(
        logits.to(torch.promote_types(logits.dtype, torch.float32)),
        labels,
        reduction="sum",
        label_smoothing=label_smoothing * vocabulary / (vocabulary - 1),
    )
