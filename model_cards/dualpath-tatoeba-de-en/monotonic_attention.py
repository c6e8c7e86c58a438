"""The read/write path of one direction: expected alignment, expected attention and the hard path.

The two expectations are exact. Each is one operator with its own backward, and beside each stands a naive version of a
few lines that reads like its equation; the tests hold the fast one against the naive one in float64.
"""

import torch
from torch import Tensor

from .dials_dualpath import NOWHERE, lag_limits


def full_precision(tensor: Tensor) -> Tensor:
    """`tensor` in float32, or as it is where it is float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def last_source_position(source_mask: Tensor) -> Tensor:
    """Position of the last real source token of each sentence, from a right-padded mask `(batch, source)`."""
    return source_mask.long().sum(-1) - 1  # batch


# --- expected alignment (eq. 5) --------------------------------------------------------------------------------------


def naive_expected_alignment(selection_probability: Tensor, source_mask: Tensor | None = None) -> Tensor:
    """The recurrence of `expected_alignment` written as in the paper, cell by cell. The oracle of the tests."""
    p = selection_probability
    if source_mask is None:
        source_mask = torch.ones(p.shape[0], p.shape[-1], dtype=torch.bool, device=p.device)
    p = p * source_mask[:, None, None, :]
    previous = torch.zeros_like(p[:, :, 0])
    previous[..., 0] = 1
    rows = []
    for i in range(p.shape[2]):
        q, row = torch.zeros_like(p[:, :, 0, 0]), []
        for j in range(p.shape[3]):
            q = q * (1 - p[:, :, i, j - 1]) + previous[..., j] if j else previous[..., 0]
            row.append(p[:, :, i, j] * q)
        previous = torch.stack(row, -1)
        rows.append(previous)
    alpha = torch.stack(rows, 2)
    last = torch.nn.functional.one_hot(last_source_position(source_mask), p.shape[-1])[:, None, None, :]
    return alpha + last * (1 - alpha.sum(-1, keepdim=True))


def _diagonal_view(diagonals: Tensor, rows: int, columns: int) -> Tensor:
    """Cells (i, j) of `diagonals` (diagonal, row, n), where cell (i, j) lies on diagonal i + j: a view (i, j, n)."""
    _, height, width = diagonals.shape
    return diagonals.as_strided((rows, columns, width), ((height + 1) * width, height * width, 1))


def _alignment_forward(p: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """Exact alpha by anti-diagonals: all cells of one diagonal depend only on the diagonal before.

    `p` is (batch, head, target, source), zero at padding. Also returns p and q in diagonal layout for the backward.
    """
    batch, heads, rows, columns = p.shape
    n = batch * heads
    saved = p.new_zeros(2, rows + columns, rows, n)
    p_diagonals, q_diagonals = saved
    _diagonal_view(p_diagonals, rows, columns).copy_(p.reshape(n, rows, columns).permute(1, 2, 0))
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
    missing = _diagonal_view(q_diagonals, rows, columns + 1)[:, columns].cumsum(0)  # row, n
    alpha = _diagonal_view(alpha_diagonals, rows, columns).permute(2, 0, 1).reshape(p.shape).contiguous()
    last = last.view(batch, 1, 1, 1).expand(batch, heads, rows, 1)
    return alpha.scatter_add_(3, last, missing.t().reshape(batch, heads, rows, 1)), saved


def _alignment_backward(grad: Tensor, saved: Tensor, last: Tensor) -> Tensor:
    batch, heads, rows, columns = grad.shape
    n = batch * heads
    p_diagonals, q_diagonals = saved
    # alpha at the last token is one minus the others, so their gradient is taken relative to it.
    grad = grad - grad.gather(3, last.view(batch, 1, 1, 1).expand(batch, heads, rows, 1))
    difference = torch.zeros_like(p_diagonals)  # d alpha[i, j] - d q[i, j + 1]; until its diagonal's turn, d alpha
    _diagonal_view(difference, rows, columns).copy_(grad.reshape(n, rows, columns).permute(1, 2, 0))
    grad_q = p_diagonals.new_zeros(rows + 1, n)
    for t in reversed(range(rows + columns - 1)):
        low, high = max(0, t - columns + 1), min(rows, t + 1)
        cell = difference[t, low:high]
        cell.add_(grad_q[low + 1 : high + 1]).sub_(grad_q[low:high])
        grad_q[low:high].addcmul_(p_diagonals[t, low:high], cell)
        # Row `high` starts on the next diagonal up; below it nothing has flowed yet.
    grad_p = _diagonal_view(difference.mul_(q_diagonals), rows, columns)
    return grad_p.permute(2, 0, 1).reshape(grad.shape).contiguous()


def expected_alignment(selection_probability: Tensor, source_mask: Tensor | None = None) -> Tensor:
    r"""
    Expected writing probability alpha (eq. 5): the probability that target token i is written at source token j.

    `q[i,j] = (1 - p[i,j-1]) q[i,j-1] + alpha[i-1,j]`, `alpha[i,j] = p[i,j] q[i,j]`, and the mass that never stopped is
    added at the last real source token, so that every row sums to 1. Exact, in float32 (float64 stays float64).

    Args:
        selection_probability (`torch.Tensor` of shape `(batch, head, target, source)`):
            Probability to stop at each source token.
        source_mask (`torch.BoolTensor` of shape `(batch, source)`, *optional*):
            True at real tokens; padding is on the right.

    Returns:
        `torch.Tensor` of shape `(batch, head, target, source)`.
    """
    p = full_precision(selection_probability)
    if source_mask is None:
        last = torch.full((p.shape[0],), p.shape[-1] - 1, device=p.device)
    else:
        p = p.masked_fill(~source_mask[:, None, None, :], 0)
        last = last_source_position(source_mask)
    return torch.ops.hf_dualpath.expected_alignment(p, last)[0]


# --- expected attention ("infinite lookback") ------------------------------------------------------------------------


def naive_expected_attention(alpha: Tensor, energies: Tensor, source_mask: Tensor | None = None) -> Tensor:
    """`expected_attention` as the sum over stops k of alpha[k] times the softmax over 1..k. The tests' oracle."""
    if source_mask is not None:
        energies = energies.masked_fill(~source_mask[:, None, None, :], -torch.inf)
    beta = torch.zeros_like(alpha)
    for k in range(alpha.shape[-1]):
        beta[..., : k + 1] += alpha[..., k : k + 1] * energies[..., : k + 1].softmax(-1)
    return beta


def _attention_forward(alpha: Tensor, energies: Tensor) -> tuple[Tensor, Tensor]:
    """beta[j] = w[j] R[j] with w[j] the weight of token j in the softmax over 1..j and
    R[j] = alpha[j] + (1 - w[j+1]) R[j+1], the chance that a later softmax leaves to the tokens up to j.

    Also returns w and 1 - w (apart, so that neither loses digits), source dimension first, for the backward.
    """
    columns = energies.shape[-1]
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


def _attention_backward(grad: Tensor, alpha: Tensor, beta: Tensor, saved: Tensor) -> tuple[Tensor, Tensor]:
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


def expected_attention(alpha: Tensor, energies: Tensor, source_mask: Tensor | None = None) -> Tensor:
    r"""
    Expected soft attention beta: `beta[i,j] = sum_{k >= j} alpha[i,k] exp(e[i,j]) / sum_{l <= k} exp(e[i,l])`.

    With a one-hot alpha at g this is the softmax over 1..g. No exponential leaves the range of its own softmax, so
    that any finite energies are safe.

    Args:
        alpha (`torch.Tensor` of shape `(batch, head, target, source)`): From `expected_alignment`.
        energies (`torch.Tensor` of the same shape): Scaled dot products of one layer.
        source_mask (`torch.BoolTensor` of shape `(batch, source)`, *optional*): True at real tokens.
    """
    alpha, energies = full_precision(alpha), full_precision(energies)
    if source_mask is not None:
        energies = energies.masked_fill(~source_mask[:, None, None, :], torch.finfo(energies.dtype).min)
    return torch.ops.hf_dualpath.expected_attention(alpha, energies.to(alpha.dtype))[0]


# --- hard path -------------------------------------------------------------------------------------------------------


def first_stop(selection_probability: Tensor, previous: Tensor, start: int, threshold: float | Tensor) -> Tensor:
    r"""
    The rule of the hard path, for one target token: each head goes from its previous stop to the first source token
    whose selection probability reaches `threshold`.

    Args:
        selection_probability (`torch.Tensor` of shape `(batch, head, source)`): Of the tokens from `start` on.
        previous (`torch.LongTensor` of shape `(batch, head, 1)`): The heads' stops for the target token before.

    Returns:
        `torch.LongTensor` of shape `(batch, head, 1)`: positions, `NOWHERE` where no token so far reaches it.
    """
    positions = torch.arange(start, start + selection_probability.shape[-1], device=previous.device)
    hits = (selection_probability >= threshold) & (positions >= previous)
    return torch.where(hits, positions, NOWHERE).amin(-1, keepdim=True)


def hard_path(
    selection_probability: Tensor,
    source_mask: Tensor | None = None,
    threshold: float = 0.5,
    min_lag: int | None = None,
    max_lag: int | None = None,
) -> Tensor:
    r"""
    Where each head stops before each target token: [`first_stop`] row by row, within the lags, and at the last real
    source token at the latest. Positions from 0, of shape `(batch, head, target)`, without a gradient.
    """
    p = selection_probability.detach()
    batch, heads, rows, columns = p.shape
    if source_mask is None:
        last = torch.full((batch, 1, 1), columns - 1, device=p.device)
    else:
        p = p.masked_fill(~source_mask[:, None, None, :], -1)
        last = last_source_position(source_mask)[:, None, None]
    stop = torch.zeros(batch, heads, 1, dtype=torch.long, device=p.device)
    stops = []
    for row in range(rows):
        stop = first_stop(p[:, :, row], stop, 0, threshold).clamp(*lag_limits(row, min_lag, max_lag))
        stop = torch.minimum(stop, last)
        stops.append(stop)
    return torch.cat(stops, 2)


# --- operators -------------------------------------------------------------------------------------------------------


def _no_double_backward(*_):
    raise NotImplementedError("hf_dualpath: expected_alignment and expected_attention have no double backward.")


def _define_operators():
    """Registers both expectations with torch, so that torch.compile sees one node for each.

    Compiled code relies on what the fake kernels promise: every result is contiguous, whatever came in.
    """

    def define(name, function, schema, fake):
        operator = torch.library.custom_op(f"hf_dualpath::{name}", function, mutates_args=(), schema=schema)
        operator.register_fake(fake)
        return operator

    def saved_like(p):
        batch, heads, rows, columns = p.shape
        return p.new_empty(2, rows + columns, rows, batch * heads)

    def empty(tensor):
        return tensor.new_empty(tensor.shape)

    alignment = define(
        "expected_alignment",
        _alignment_forward,
        "(Tensor p, Tensor last) -> (Tensor, Tensor)",
        lambda p, last: (empty(p), saved_like(p)),
    )
    alignment_backward = define(
        "expected_alignment_backward",
        _alignment_backward,
        "(Tensor grad, Tensor saved, Tensor last) -> Tensor",
        lambda grad, saved, last: empty(grad),
    )
    alignment.register_autograd(
        lambda ctx, grad, _: (torch.ops.hf_dualpath.expected_alignment_backward(grad, *ctx.saved_tensors), None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output[1], inputs[1]),
    )
    alignment_backward.register_autograd(_no_double_backward)

    attention = define(
        "expected_attention",
        _attention_forward,
        "(Tensor alpha, Tensor energies) -> (Tensor, Tensor)",
        lambda alpha, energies: (
            empty(alpha),
            energies.new_empty(2, energies.shape[-1], energies.shape[:-1].numel()),
        ),
    )
    attention_backward = define(
        "expected_attention_backward",
        _attention_backward,
        "(Tensor grad, Tensor alpha, Tensor beta, Tensor saved) -> (Tensor, Tensor)",
        lambda grad, alpha, beta, saved: (empty(grad), empty(grad)),
    )
    attention.register_autograd(
        lambda ctx, grad, _: torch.ops.hf_dualpath.expected_attention_backward(grad, *ctx.saved_tensors),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], *output),
    )
    attention_backward.register_autograd(_no_double_backward)


try:  # Remote code may load this file a second time under another name; the operators of the first load stay.
    _ = torch.ops.hf_dualpath.expected_alignment
except AttributeError:
    _define_operators()
