"""The expectations for CPUs: loops over diagonals and columns, each step one pass over memory that is close by."""

import torch
from torch import Tensor


# --- expected alignment ----------------------------------------------------------------------------------------------


def last_position(source_mask: Tensor, heads: int, rows: int) -> Tensor:
    """Position of the last real token, for every row: batch, head, target, 1."""
    return (source_mask.sum(-1) - 1)[:, None, None, None].expand(-1, heads, rows, 1)


def diagonal_view(diagonals: Tensor, rows: int, columns: int) -> Tensor:
    """Cells (i, j) of `diagonals` (diagonal, row, n), where cell (i, j) lies on diagonal i + j: a view (i, j, n)."""
    _, height, width = diagonals.shape
    return diagonals.as_strided((rows, columns, width), ((height + 1) * width, height * width, 1))


def alignment_forward(p: Tensor, source_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Exact alpha by anti-diagonals: all cells of one diagonal depend only on the diagonal before.

    `p` is (batch, head, target, source). Also returns p and q in diagonal layout for the backward.
    """
    p = p.masked_fill(~source_mask[:, None, None, :], 0)
    batch, heads, rows, columns = p.shape
    n = batch * heads
    saved = p.new_zeros(2, rows + columns, rows, n)
    p_diagonals, q_diagonals = saved
    diagonal_view(p_diagonals, rows, columns).copy_(p.reshape(n, rows, columns).permute(1, 2, 0))
    alpha_diagonals = torch.zeros_like(p_diagonals)
    unread = p.new_zeros(rows + 1, n)  # (1 - p) q of the cell to the left
    q_diagonals[0, 0] = 1
    for t in range(rows + columns):
        low, high = max(0, t - columns), min(rows, t + 1)
        q, alpha = q_diagonals[t, low:high], alpha_diagonals[t, low:high]
        if t:
            above = max(low, 1)
            if low == 0:
                q[0] = unread[0]
            torch.add(unread[above:high], alpha_diagonals[t - 1, above - 1 : high - 1], out=q_diagonals[t, above:high])
        torch.mul(p_diagonals[t, low:high], q, out=alpha)
        torch.sub(q, alpha, out=unread[low:high])
    # What flows past the last column never comes back: row i misses the sum of what rows 1..i lost.
    missing = diagonal_view(q_diagonals, rows, columns + 1)[:, columns].cumsum(0)  # row, n
    alpha = diagonal_view(alpha_diagonals, rows, columns).permute(2, 0, 1).reshape(p.shape).contiguous()
    last = last_position(source_mask, heads, rows)
    return alpha.scatter_add_(3, last, missing.t().reshape(batch, heads, rows, 1)), saved


def alignment_backward(grad: Tensor, saved: Tensor, source_mask: Tensor) -> Tensor:
    batch, heads, rows, columns = grad.shape
    n = batch * heads
    p_diagonals, q_diagonals = saved
    # alpha at the last token is one minus the others, so their gradient is taken relative to it.
    grad = grad - grad.gather(3, last_position(source_mask, heads, rows))
    difference = torch.zeros_like(p_diagonals)  # d alpha[i, j] - d q[i, j + 1]; until its diagonal's turn, d alpha
    diagonal_view(difference, rows, columns).copy_(grad.reshape(n, rows, columns).permute(1, 2, 0))
    grad_q = p_diagonals.new_zeros(rows + 1, n)
    for t in reversed(range(rows + columns - 1)):
        low, high = max(0, t - columns + 1), min(rows, t + 1)
        cell = difference[t, low:high]
        cell.add_(grad_q[low + 1 : high + 1]).sub_(grad_q[low:high])
        grad_q[low:high].addcmul_(p_diagonals[t, low:high], cell)
        # Row `high` starts on the next diagonal up; below it nothing has flowed yet.
    grad_p = diagonal_view(difference.mul_(q_diagonals), rows, columns)
    grad_p = grad_p.permute(2, 0, 1).reshape(grad.shape)
    return grad_p.masked_fill(~source_mask[:, None, None, :], 0).contiguous()


# --- expected attention ----------------------------------------------------------------------------------------------


def attention_forward(alpha: Tensor, energies: Tensor, source_mask: Tensor) -> tuple[Tensor, Tensor]:
    """beta[j] = w[j] R[j] with w[j] the weight of token j in the softmax over 1..j and
    R[j] = alpha[j] + (1 - w[j+1]) R[j+1], the chance that a later softmax leaves to the tokens up to j.

    Also returns w and 1 - w (apart, so that neither loses digits), source dimension first, for the backward.
    """
    columns = energies.shape[-1]
    energies = energies.masked_fill(~source_mask[:, None, None, :], torch.finfo(energies.dtype).min)
    e = energies.reshape(-1, columns).t().contiguous()  # source, n
    saved = torch.empty(2, *e.shape, dtype=e.dtype, device=e.device)
    w, rest = saved
    top, total = e[0].clone(), torch.ones_like(e[0])
    w[0], rest[0] = 1, 0
    for j in range(1, columns):
        new_top = torch.maximum(top, e[j])
        before = total.mul_(top.sub_(new_top).exp_())
        now = torch.sub(e[j], new_top, out=w[j]).exp_()
        total = before + now
        torch.div(before, total, out=rest[j])
        now.div_(total)
        top = new_top
    beta = alpha.reshape(-1, columns).t().clone(memory_format=torch.contiguous_format)
    for j in reversed(range(columns - 1)):
        beta[j].addcmul_(rest[j + 1], beta[j + 1])
    return beta.mul_(w).t().reshape(alpha.shape).contiguous(), saved


def attention_backward(grad: Tensor, alpha: Tensor, beta: Tensor, saved: Tensor) -> tuple[Tensor, Tensor]:
    columns = grad.shape[-1]
    w, rest = saved
    # d alpha[k] is the mean of the gradient under the softmax over 1..k, a running mean with weights w.
    grad_alpha = grad.reshape(-1, columns).t() * w
    for j in range(1, columns):
        grad_alpha[j].addcmul_(rest[j], grad_alpha[j - 1])
    pull = grad_alpha * alpha.reshape(-1, columns).t()
    for j in reversed(range(columns - 1)):
        pull[j].addcmul_(rest[j + 1], pull[j + 1])
    grad_energies = (grad * beta) - pull.mul_(w).t().reshape(grad.shape)
    return grad_alpha.t().reshape(grad.shape).contiguous(), grad_energies.contiguous()


FORM = {
    "expected_alignment": alignment_forward,
    "expected_alignment_backward": alignment_backward,
    "expected_attention": attention_forward,
    "expected_attention_backward": attention_backward,
}
