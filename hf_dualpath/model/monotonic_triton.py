"""The expectations and the hard path as Triton kernels: one launch each, whatever the length.

All recurrences along the source are linear, `x[j] = a[j] x[j-1] + b[j]`, and run as parallel scans; those along the
target are loops inside the kernel. Nothing is divided by a probability, so that results are exact in the input's
precision. The operators in `monotonic_attention` call these functions for CUDA tensors.
"""

import torch
from torch import Tensor


try:  # transformers refuses remote code that imports a missing package, unless a `try` stands around it
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("The kernels for GPUs need triton: `pip install triton`.") from error


LOWEST = tl.constexpr(-3.0e38)  # an energy that no softmax sees
NO_LIMIT = 2**30  # a lag that never binds


@triton.jit
def then(a1, b1, a2, b2):
    """First `x -> a1 x + b1`, then `x -> a2 x + b2`."""
    return a1 * a2, a2 * b1 + b2


@triton.jit
def add_exponentials(top1, total1, top2, total2):
    """Sums of exponentials, each relative to its own maximum."""
    top = tl.maximum(top1, top2)
    return top, total1 * tl.exp(top1 - top) + total2 * tl.exp(top2 - top)


# --- expected alignment ----------------------------------------------------------------------------------------------


@triton.jit
def alignment_forward_kernel(p, source_mask, alpha, saved_p, saved_q, heads, rows, columns, BLOCK: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK)
    is_real = tl.load(source_mask + head // heads * columns + j, mask=j < columns, other=0)
    end = tl.sum(is_real.to(tl.int32), 0) - 1
    row = tl.where(j == 0, 1.0, 0.0).to(p.dtype.element_ty)  # alpha[i - 1] before mass preservation
    missing = tl.sum(row, 0) * 0
    for i in range(rows):
        here = (head * rows + i) * columns + j
        stop = tl.load(p + here, mask=j <= end, other=0.0)
        stop_left = tl.load(p + here - 1, mask=(j > 0) & (j <= end + 1), other=0.0)
        _, q = tl.associative_scan((1 - stop_left, row), 0, then)
        row = stop * q
        # What flows past the last column never comes back: row i misses the sum of what rows 1..i lost.
        missing += tl.sum(tl.where(j == columns - 1, q - row, 0.0), 0)
        tl.store(alpha + here, row + tl.where(j == end, missing, 0.0), mask=j < columns)
        tl.store(saved_p + here, stop, mask=j < columns)
        tl.store(saved_q + here, q, mask=j < columns)


@triton.jit
def alignment_backward_kernel(grad, saved_p, saved_q, source_mask, grad_p, heads, rows, columns, BLOCK: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK)
    is_real = tl.load(source_mask + head // heads * columns + j, mask=j < columns, other=0)
    end = tl.sum(is_real.to(tl.int32), 0) - 1
    has_right = j + 1 < columns
    grad_q = tl.zeros((BLOCK,), grad.dtype.element_ty)  # d q[i + 1, j]
    grad_q_right = grad_q  # d q[i + 1, j + 1]
    for back in range(rows):
        start = (head * rows + rows - 1 - back) * columns
        here = start + j
        # alpha at the last token is one minus the others, so their gradient is taken relative to it.
        at_end = tl.load(grad + start + tl.maximum(end, 0))  # a row of nothing but padding stays in its own memory
        stop = tl.load(saved_p + here, mask=j < columns, other=0.0)
        stop_right = tl.load(saved_p + here + 1, mask=has_right, other=0.0)
        grad_alpha = tl.load(grad + here, mask=j < columns, other=0.0) - at_end + grad_q
        grad_alpha_right = tl.load(grad + here + 1, mask=has_right, other=0.0) - at_end + grad_q_right
        _, grad_q_right = tl.associative_scan((1 - stop_right, stop_right * grad_alpha_right), 0, then, reverse=True)
        grad_q = stop * grad_alpha + (1 - stop) * grad_q_right
        q = tl.load(saved_q + here, mask=j <= end, other=0.0)
        tl.store(grad_p + here, q * (grad_alpha - grad_q_right), mask=j < columns)


def alignment_forward(p: Tensor, source_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Alpha, and p and q for the backward."""
    p = p.contiguous()
    batch, heads, rows, columns = p.shape
    alpha, saved = torch.empty_like(p), p.new_empty(2, *p.shape)
    launch(alignment_forward_kernel, batch * heads, p, source_mask.contiguous(), alpha, *saved, heads, rows, columns)
    return alpha, saved


def alignment_backward(grad: Tensor, saved: Tensor, source_mask: Tensor) -> Tensor:
    grad = grad.contiguous()
    batch, heads, rows, columns = grad.shape
    grad_p = torch.empty_like(grad)
    mask = source_mask.contiguous()
    launch(alignment_backward_kernel, batch * heads, grad, *saved, mask, grad_p, heads, rows, columns)
    return grad_p


# --- expected attention: every row by itself -------------------------------------------------------------------------


@triton.jit
def attention_forward_kernel(
    alpha, energies, source_mask, beta, saved_w, saved_rest, rows, columns, BLOCK: tl.constexpr
):
    row_number = tl.program_id(0).to(tl.int64)
    start = row_number * columns
    j = tl.arange(0, BLOCK)
    here = start + j
    is_real = tl.load(source_mask + row_number // rows * columns + j, mask=j < columns, other=0)
    end = tl.sum(is_real.to(tl.int32), 0) - 1
    energy = tl.load(energies + here, mask=j <= end, other=LOWEST)
    energy_right = tl.load(energies + here + 1, mask=j + 1 <= end, other=LOWEST)
    top, total = tl.associative_scan((energy, energy * 0 + 1), 0, add_exponentials)
    w = tl.exp(energy - top) / total
    top_right = tl.maximum(top, energy_right)
    before = total * tl.exp(top - top_right)
    rest_right = before / (before + tl.exp(energy_right - top_right))  # 1 - w[j + 1]
    row = tl.load(alpha + here, mask=j < columns, other=0.0)
    _, chance = tl.associative_scan((rest_right, row), 0, then, reverse=True)
    tl.store(beta + here, w * chance, mask=j < columns)
    tl.store(saved_w + here, w, mask=j < columns)
    tl.store(saved_rest + start, 0.0)
    tl.store(saved_rest + here + 1, rest_right, mask=j + 1 < columns)


@triton.jit
def attention_backward_kernel(
    grad, alpha, beta, saved_w, saved_rest, grad_alpha, grad_energies, columns, BLOCK: tl.constexpr
):
    start = tl.program_id(0).to(tl.int64) * columns
    j = tl.arange(0, BLOCK)
    here = start + j
    gradient = tl.load(grad + here, mask=j < columns, other=0.0)
    w = tl.load(saved_w + here, mask=j < columns, other=0.0)
    rest = tl.load(saved_rest + here, mask=j < columns, other=0.0)
    rest_right = tl.load(saved_rest + here + 1, mask=j + 1 < columns, other=0.0)
    # d alpha[k] is the mean of the gradient under the softmax over 1..k, a running mean with weights w.
    _, mean = tl.associative_scan((rest, w * gradient), 0, then)
    row = tl.load(alpha + here, mask=j < columns, other=0.0)
    _, pull = tl.associative_scan((rest_right, row * mean), 0, then, reverse=True)
    attention = tl.load(beta + here, mask=j < columns, other=0.0)
    tl.store(grad_alpha + here, mean, mask=j < columns)
    tl.store(grad_energies + here, gradient * attention - w * pull, mask=j < columns)


def attention_forward(alpha: Tensor, energies: Tensor, source_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Beta, and w and 1 - w for the backward."""
    alpha, energies, mask = alpha.contiguous(), energies.contiguous(), source_mask.contiguous()
    batch, heads, rows, columns = alpha.shape
    beta, saved = torch.empty_like(alpha), alpha.new_empty(2, *alpha.shape)
    programs = batch * heads * rows
    launch(attention_forward_kernel, programs, alpha, energies, mask, beta, *saved, heads * rows, columns)
    return beta, saved


def attention_backward(grad: Tensor, alpha: Tensor, beta: Tensor, saved: Tensor) -> tuple[Tensor, Tensor]:
    grad, alpha = grad.contiguous(), alpha.contiguous()
    results = torch.empty_like(grad), torch.empty_like(grad)
    launch(attention_backward_kernel, grad.shape[:-1].numel(), grad, alpha, beta, *saved, *results, grad.shape[-1])
    return results


# --- hard path -------------------------------------------------------------------------------------------------------


@triton.jit
def hard_path_kernel(hits, source_mask, stops, min_lag, max_lag, heads, rows, columns, BLOCK: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK)
    is_real = tl.load(source_mask + head // heads * columns + j, mask=j < columns, other=0)
    end = tl.sum(is_real.to(tl.int32), 0) - 1
    stop = end * 0
    for i in range(rows):
        hit = tl.load(hits + (head * rows + i) * columns + j, mask=j <= end, other=0)
        stop = tl.min(tl.where((hit != 0) & (j >= stop), j, columns), 0)
        stop = tl.minimum(tl.maximum(stop, i + min_lag - 1), i + max_lag - 1)
        stop = tl.minimum(stop, end)
        tl.store(stops + head * rows + i, stop)


def hard_path(hits: Tensor, source_mask: Tensor, min_lag: int | None, max_lag: int | None) -> Tensor:
    hits = hits.contiguous()
    batch, heads, rows, columns = hits.shape
    stops = torch.empty(batch, heads, rows, dtype=torch.long, device=hits.device)
    limits = -NO_LIMIT if min_lag is None else min_lag, NO_LIMIT if max_lag is None else max_lag
    mask = source_mask.contiguous()
    launch(hard_path_kernel, batch * heads, hits, mask, stops, *limits, heads, rows, columns)
    return stops


# --- launching -------------------------------------------------------------------------------------------------------


def block_size(columns: int) -> tuple[int, int]:
    """Columns that one program holds, and warps that share them."""
    block = triton.next_power_of_2(columns)
    return block, min(8, max(1, block // 256))


def launch(kernel, programs: int, *arguments):
    """Runs a kernel whose last argument is the number of columns, on the device of its first."""
    block, warps = block_size(arguments[-1])
    if programs:
        with torch.cuda.device_of(arguments[0]):
            kernel[(programs,)](*arguments, BLOCK=block, num_warps=warps)


FORM = {
    "expected_alignment": alignment_forward,
    "expected_alignment_backward": alignment_backward,
    "expected_attention": attention_forward,
    "expected_attention_backward": attention_backward,
    "hard_path": hard_path,
}
