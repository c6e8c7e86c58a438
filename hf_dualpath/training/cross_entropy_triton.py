"""Label-smoothed cross-entropy as Triton kernels: one launch forward and one back, one program a row.

A row may be as long as a vocabulary, so a program walks along it in blocks. It computes in the precision of its sums,
float32 where the logits are narrower.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..model import monotonic_triton
from ..model.monotonic_triton import LOWEST


WIDEST = 4096  # tokens of the vocabulary that a program holds at a time
IGNORED = tl.constexpr(-100)


@triton.jit
def cross_entropy_forward_kernel(
    logits, labels, loss, normaliser, columns, GOLD: tl.constexpr, OTHER: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * columns
    dtype = loss.dtype.element_ty
    j = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), LOWEST, dtype)
    exponentials = tl.zeros((BLOCK,), dtype)  # each lane's sum, relative to its own maximum
    total = tl.zeros((BLOCK,), dtype)
    for first in range(0, columns, BLOCK):
        inside = first + j < columns
        x = tl.load(start + first + j, mask=inside, other=float("-inf")).to(dtype)
        higher = tl.maximum(top, x)
        exponentials = exponentials * tl.exp(top - higher) + tl.exp(x - higher)
        top = higher
        total += tl.where(inside, x, 0.0)
    highest = tl.max(top, 0)
    log_sum = highest + tl.log(tl.sum(exponentials * tl.exp(top - highest), 0))
    gold = tl.load(labels + row)
    # A label that is no token makes the loss NaN: a kernel cannot raise.
    x_gold = tl.load(start + gold, mask=(gold >= 0) & (gold < columns), other=float("nan")).to(dtype)
    row_loss = log_sum - GOLD * x_gold - OTHER * tl.sum(total, 0)
    tl.store(loss + row, tl.where(gold == IGNORED, 0.0, row_loss))
    tl.store(normaliser + row, log_sum)


@triton.jit
def cross_entropy_backward_kernel(
    grad,
    logits,
    labels,
    normaliser,
    grad_logits,
    step,
    columns,
    GOLD: tl.constexpr,
    OTHER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    start = row * columns
    gold = tl.load(labels + row)
    log_sum = tl.load(normaliser + row)
    weight = tl.where(gold == IGNORED, 0.0, tl.load(grad + row * step))
    for first in range(0, columns, BLOCK):
        j = first + tl.arange(0, BLOCK)
        x = tl.load(logits + start + j, mask=j < columns, other=0.0).to(normaliser.dtype.element_ty)
        difference = tl.exp(x - log_sum) - OTHER
        difference = tl.where(j == gold, difference - GOLD, difference)
        tl.store(grad_logits + start + j, weight * difference, mask=j < columns)


def block_size(columns: int) -> tuple[int, int]:
    return monotonic_triton.block_size(min(columns, WIDEST))


def launch(kernel, rows: int, *arguments, smoothing: float):
    """Runs a kernel whose last argument is the size of the vocabulary."""
    columns = arguments[-1]
    other = smoothing / (columns - 1)
    block, warps = block_size(columns)
    if rows:
        with torch.cuda.device_of(arguments[0]):
            kernel[(rows,)](*arguments, GOLD=1 - smoothing - other, OTHER=other, BLOCK=block, num_warps=warps)


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The loss of each row, and the logarithm of its sum of exponentials for the backward."""
    logits, labels = logits.contiguous(), labels.contiguous()
    rows, columns = logits.shape
    dtype = torch.promote_types(logits.dtype, torch.float32)
    loss, normaliser = (torch.empty(rows, dtype=dtype, device=logits.device) for _ in range(2))
    launch(cross_entropy_forward_kernel, rows, logits, labels, loss, normaliser, columns, smoothing=smoothing)
    return loss, normaliser


def cross_entropy_backward(
    grad: Tensor, logits: Tensor, labels: Tensor, normaliser: Tensor, smoothing: float
) -> Tensor:
    """`grad` may be one number for all rows: it is read with its stride."""
    logits, labels = logits.contiguous(), labels.contiguous()
    rows, columns = logits.shape
    grad_logits, step = torch.empty_like(logits), grad.stride(0)
    tensors = grad, logits, labels, normaliser, grad_logits
    launch(cross_entropy_backward_kernel, rows, *tensors, step, columns, smoothing=smoothing)
    return grad_logits
