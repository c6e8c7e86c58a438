"""The read/write path of one direction: expected alignment, expected attention and the hard path.

The two expectations are exact. Each is one operator with its own backward, and beside each stands a naive version of a
few lines that reads like its equation; the tests hold the fast ones against it in float64. The fast ones are for CPUs
(`monotonic_cpu`), for GPUs (`monotonic_triton`), and for all other devices (`monotonic_vectorised`).
"""

from functools import cache

import torch
from torch import Tensor

from .dials_dualpath import NOWHERE, lag_limits
from .monotonic_cpu import FORM as CPU_FORM
from .monotonic_vectorised import FORM as VECTORISED_FORM


def full_precision(tensor: Tensor) -> Tensor:
    """`tensor` in float32, or as it is where it is float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def last_source_position(source_mask: Tensor) -> Tensor:
    """Position of the last real source token of each sentence, from a right-padded mask `(batch, source)`."""
    return source_mask.long().sum(-1) - 1  # batch


def one_hot(positions: Tensor, length: int) -> Tensor:
    """True at each position. Unlike torch's function of this name it compiles for any length."""
    return torch.arange(length, device=positions.device) == positions[..., None]


def _given(source_mask: Tensor | None, grid: Tensor) -> Tensor:
    """The mask, or one of real tokens only, for a grid `(batch, head, target, source)`."""
    if source_mask is not None:
        return source_mask
    return torch.ones(grid.shape[0], grid.shape[-1], dtype=torch.bool, device=grid.device)


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
    return torch.ops.hf_dualpath.expected_alignment(p, _given(source_mask, p))[0]


# --- expected attention ("infinite lookback") ------------------------------------------------------------------------


def naive_expected_attention(alpha: Tensor, energies: Tensor, source_mask: Tensor | None = None) -> Tensor:
    """`expected_attention` as the sum over stops k of alpha[k] times the softmax over 1..k. The tests' oracle."""
    if source_mask is not None:
        energies = energies.masked_fill(~source_mask[:, None, None, :], -torch.inf)
    beta = torch.zeros_like(alpha)
    for k in range(alpha.shape[-1]):
        beta[..., : k + 1] += alpha[..., k : k + 1] * energies[..., : k + 1].softmax(-1)
    return beta


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
    alpha = full_precision(alpha)
    return torch.ops.hf_dualpath.expected_attention(alpha, energies.to(alpha.dtype), _given(source_mask, alpha))[0]


# --- hard path -------------------------------------------------------------------------------------------------------


def first_stop(hits: Tensor, previous: Tensor, start: int) -> Tensor:
    r"""
    The rule of the hard path, for one target token: each head goes from its previous stop to the first source token
    whose selection probability reaches the threshold.

    Args:
        hits (`torch.BoolTensor` of shape `(batch, head, source)`): Which tokens from `start` on do.
        previous (`torch.LongTensor` of shape `(batch, head, 1)`): The heads' stops for the target token before.

    Returns:
        `torch.LongTensor` of shape `(batch, head, 1)`: positions, `NOWHERE` where no token so far reaches it.
    """
    positions = torch.arange(start, start + hits.shape[-1], device=previous.device)
    return torch.where(hits & (positions >= previous), positions, NOWHERE).amin(-1, keepdim=True)


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
    # Compared here, since torch.compile would make a graph for every threshold that an operator takes as a number.
    return torch.ops.hf_dualpath.hard_path(p >= threshold, _given(source_mask, p), min_lag, max_lag)


def _hard_path_rows(hits: Tensor, source_mask: Tensor, min_lag: int | None, max_lag: int | None) -> Tensor:
    hits, last = hits & source_mask[:, None, None, :], last_source_position(source_mask)[:, None, None]
    stop = torch.zeros(*hits.shape[:2], 1, dtype=torch.long, device=hits.device)
    stops = []
    for row in range(hits.shape[2]):
        stop = first_stop(hits[:, :, row], stop, 0).clamp(*lag_limits(row, min_lag, max_lag))
        stop = torch.minimum(stop, last)
        stops.append(stop)
    return torch.cat(stops, 2)


# --- operators -------------------------------------------------------------------------------------------------------


@cache
def _cuda_form() -> dict:
    """Triton's kernels, imported when the first CUDA tensor comes, or the vectorised form where triton is missing."""
    try:
        from .monotonic_triton import FORM
    except ImportError:
        return VECTORISED_FORM
    return FORM


OPERATORS = {}  # those that this load of the file has defined, by name


def _define(name: str, schema: str, fake):
    """Registers an operator with torch, so that torch.compile sees one node.

    Compiled code relies on what the fake kernels promise: every result is contiguous, whatever came in.
    """
    operator = torch.library.custom_op(f"hf_dualpath::{name}", VECTORISED_FORM[name], mutates_args=(), schema=schema)
    operator.register_kernel("cpu")(_hard_path_rows if name == "hard_path" else CPU_FORM[name])
    operator.register_kernel("cuda")(lambda *arguments: _cuda_form()[name](*arguments))
    operator.register_fake(fake)
    OPERATORS[name] = operator
    return operator


def _no_double_backward(*_):
    raise NotImplementedError("hf_dualpath: expected_alignment and expected_attention have no double backward.")


def _save(ctx, *tensors: Tensor):
    """Keeps what the backward needs. Nobody has a gradient for the second result, so none is made of zeros."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


def _empty(tensor: Tensor) -> Tensor:
    return tensor.new_empty(tensor.shape)


def _define_expectations():
    def saved(like: Tensor, *cpu_shape: int) -> Tensor:
        """What the backward needs: in the layout of the form's choice."""
        return like.new_empty(2, *(cpu_shape if like.device.type == "cpu" else like.shape))

    def saved_of_alignment(p):
        batch, heads, rows, columns = p.shape
        return saved(p, rows + columns, rows, batch * heads)

    def saved_of_attention(energies):
        return saved(energies, energies.shape[-1], energies[..., 0].numel())  # of a shape it would be a constant

    alignment = _define(
        "expected_alignment",
        "(Tensor p, Tensor source_mask) -> (Tensor, Tensor)",
        lambda p, source_mask: (_empty(p), saved_of_alignment(p)),
    )
    alignment_backward = _define(
        "expected_alignment_backward",
        "(Tensor grad, Tensor saved, Tensor source_mask) -> Tensor",
        lambda grad, saved, source_mask: _empty(grad),
    )

    def backward_of_alignment(ctx, grad, _):
        if grad is None:
            return None, None
        return torch.ops.hf_dualpath.expected_alignment_backward(grad, *ctx.saved_tensors), None

    alignment.register_autograd(
        backward_of_alignment,
        setup_context=lambda ctx, inputs, output: _save(ctx, output[1], inputs[1]),
    )
    alignment_backward.register_autograd(_no_double_backward)

    attention = _define(
        "expected_attention",
        "(Tensor alpha, Tensor energies, Tensor source_mask) -> (Tensor, Tensor)",
        lambda alpha, energies, source_mask: (_empty(alpha), saved_of_attention(energies)),
    )
    attention_backward = _define(
        "expected_attention_backward",
        "(Tensor grad, Tensor alpha, Tensor beta, Tensor saved) -> (Tensor, Tensor)",
        lambda grad, alpha, beta, saved: (_empty(grad), _empty(grad)),
    )

    def backward_of_attention(ctx, grad, _):
        if grad is None:
            return None, None, None
        return *torch.ops.hf_dualpath.expected_attention_backward(grad, *ctx.saved_tensors), None

    attention.register_autograd(
        backward_of_attention,
        setup_context=lambda ctx, inputs, output: _save(ctx, inputs[0], *output),
    )
    attention_backward.register_autograd(_no_double_backward)


def _define_hard_path():
    _define(
        "hard_path",
        "(Tensor hits, Tensor source_mask, SymInt? min_lag, SymInt? max_lag) -> Tensor",
        lambda hits, source_mask, min_lag, max_lag: hits.new_empty(hits.shape[:3], dtype=torch.long),
    )


# Remote code may load this file a second time under another name; the operators of the first load stay.
for _name, _define_it in {"expected_alignment": _define_expectations, "hard_path": _define_hard_path}.items():
    try:
        _ = getattr(torch.ops.hf_dualpath, _name)
    except AttributeError:
        _define_it()
