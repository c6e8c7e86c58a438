"""`transpose_path` as a Triton kernel: one launch, whatever the lengths."""

import triton
import triton.language as tl
from torch import Tensor

from ..model.monotonic_triton import launch


@triton.jit
def transpose_path_kernel(alpha, source_mask, target_mask, gamma, heads, rows, columns, BLOCK: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    sentence = head // heads
    j = tl.arange(0, BLOCK)
    is_source = tl.load(source_mask + sentence * columns + j, mask=j < columns, other=0)
    length = tl.sum(is_source.to(tl.int32), 0) * 0
    stop = length - 1  # d of this target token
    before = stop  # d of the segment before
    write = tl.zeros((BLOCK,), tl.int32) - 1
    for i in range(rows):
        is_target = tl.load(target_mask + sentence * rows + i)
        row = tl.load(alpha + (head * rows + i) * columns + j, mask=is_source, other=-1.0)
        further = tl.maximum(tl.argmax(row, 0), stop)
        before = tl.where(further > stop, stop, before)
        stop = further
        # The source side of a segment writes at its last target token: each token of it overwrites the one before.
        write = tl.where((j > before) & (j <= stop) & is_target, i, write)
        length += is_target.to(tl.int32)
    write = tl.where(write < 0, length - 1, write)
    for i in range(rows):
        here = (head * columns + j) * rows + i
        tl.store(gamma + here, tl.where(is_source & (write == i), 1.0, 0.0), mask=j < columns)


def transpose_path(alpha: Tensor, source_mask: Tensor, target_mask: Tensor) -> Tensor:
    alpha = alpha.contiguous()
    batch, heads, rows, columns = alpha.shape
    gamma = alpha.new_empty(batch, heads, columns, rows)
    masks = source_mask.contiguous(), target_mask.contiguous()
    launch(transpose_path_kernel, batch * heads, alpha, *masks, gamma, heads, rows, columns)
    return gamma
