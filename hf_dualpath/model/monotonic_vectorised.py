"""The expectations and the hard path in plain torch without a loop over tokens, for devices that have no kernels.

A step along the target is a map of one row to the next: a matrix for alpha, a table of next stops for the hard path.
Neighbouring maps are joined in pairs, so that a sentence of n tokens takes log2(n) rounds of large operations.
"""

from functools import wraps

import torch
from torch import Tensor
from transformers.utils.generic import maybe_autocast

from .monotonic_cpu import last_position


CHUNK = 2**26  # numbers in the matrices that are held at once


def chunked(function, *tensors: Tensor):
    """`function` of tensors whose first dimension is rows or heads, a part of them at a time: memory stays bounded."""
    numbers_each = tensors[0][0].numel() * tensors[0].shape[-1] if len(tensors[0]) else 1
    parts = zip(*(tensor.split(max(1, CHUNK // numbers_each)) for tensor in tensors))
    return [torch.cat(results) for results in zip(*(function(*part) for part in parts))]


def running_products(factors: Tensor) -> Tensor:
    """`P[k, j] = f[k+1] ... f[j]` for j >= k, else 0, from factors (..., j): no division, so zeros do no harm."""
    columns = factors.shape[-1]
    above = torch.ones(columns, columns, dtype=torch.bool, device=factors.device).triu(1)
    return torch.where(above, factors[..., None, :], 1).cumprod(-1).triu()


def linear_recurrence(matrices: Tensor, offsets: Tensor) -> Tensor:
    """All `x[i] = x[i-1] A[i] + b[i]` with x[-1] = 0, from (n, i, j, j) and (n, i, j)."""
    rows = offsets.shape[1]
    if rows == 1:
        return offsets

    def step(x: Tensor, first: int) -> Tensor:
        """Every second row from `first` on, from the rows before them."""
        a, b = matrices[:, first::2], offsets[:, first::2]
        return (x[:, : a.shape[1], None] @ a).squeeze(2) + b

    even, odd = matrices[:, : rows - rows % 2 : 2], matrices[:, 1::2]
    x_odd = linear_recurrence(even @ odd, step(offsets[:, ::2], 1))
    x_even = step(torch.cat([torch.zeros_like(x_odd[:, :1]), x_odd], 1), 0)
    x = torch.empty_like(offsets)
    x[:, ::2], x[:, 1::2] = x_even, x_odd
    return x


# --- expected alignment ----------------------------------------------------------------------------------------------


def reading_on(p: Tensor) -> Tensor:
    """`P[k, j]`: the chance to read on from token k to token j, for every row."""
    return running_products(torch.cat([torch.ones_like(p[..., :1]), 1 - p[..., :-1]], -1))


def alignment_forward(p: Tensor, source_mask: Tensor) -> tuple[Tensor, Tensor]:
    def forward(p: Tensor) -> tuple[Tensor, Tensor]:
        flow = reading_on(p)
        starts = torch.zeros_like(p)
        starts[:, 0] = flow[:, 0, 0] * p[:, 0]
        alpha = linear_recurrence(flow * p[:, :, None], starts)
        above = torch.cat([torch.zeros_like(alpha[:, :1]), alpha[:, :-1]], 1)
        above[:, 0, 0] = 1
        return alpha, (above[:, :, None] @ flow).squeeze(2)

    p = p.masked_fill(~source_mask[:, None, None, :], 0)
    alpha, q = (result.view(p.shape) for result in chunked(forward, p.flatten(0, 1)))
    missing = (q[..., -1] - alpha[..., -1]).cumsum(-1)[..., None]
    return alpha.scatter_add(3, last_position(source_mask, *p.shape[1:3]), missing), torch.stack([p, q])


def alignment_backward(grad: Tensor, saved: Tensor, source_mask: Tensor) -> Tensor:
    def backward(grad: Tensor, p: Tensor, q: Tensor) -> tuple[Tensor]:
        """`d alpha[i] = grad[i] + d q[i+1]`, `d q[i] = (P p)[i] d alpha[i]`, from the last row up."""
        back = (reading_on(p) * p[:, :, None]).transpose(2, 3)
        later = torch.cat([torch.zeros_like(back[:, :1]), back.flip(1)[:, :-1]], 1)
        grad_alpha = linear_recurrence(later, grad.flip(1)).flip(1)
        grad_q = (grad_alpha[:, :, None] @ back).squeeze(2)
        right = torch.cat([grad_q[..., 1:], torch.zeros_like(grad_q[..., :1])], -1)
        return (q * (grad_alpha - right),)

    # alpha at the last token is one minus the others, so their gradient is taken relative to it.
    grad = grad - grad.gather(3, last_position(source_mask, *grad.shape[1:3]))
    (grad_p,) = chunked(backward, *(tensor.flatten(0, 1) for tensor in (grad, *saved)))
    return grad_p.view(grad.shape).masked_fill(~source_mask[:, None, None, :], 0)


# --- expected attention ----------------------------------------------------------------------------------------------


def attention_forward(alpha: Tensor, energies: Tensor, source_mask: Tensor) -> tuple[Tensor, Tensor]:
    def forward(alpha: Tensor, energies: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        columns = energies.shape[-1]
        later = torch.ones(columns, columns, dtype=torch.bool, device=energies.device).triu(1)
        prefixes = energies[..., None, :].masked_fill(later, -torch.inf).softmax(-1)  # k: the softmax over 1..k
        w, rest = prefixes.diagonal(dim1=-2, dim2=-1), prefixes.tril(-1).sum(-1)
        return w * (running_products(rest) @ alpha[..., None]).squeeze(-1), w, rest

    energies = energies.masked_fill(~source_mask[:, None, None, :], torch.finfo(energies.dtype).min)
    beta, *saved = chunked(forward, alpha.flatten(0, 1), energies.flatten(0, 1))
    return beta.view(alpha.shape), torch.stack(saved).view(2, *alpha.shape)


def attention_backward(grad: Tensor, alpha: Tensor, beta: Tensor, saved: Tensor) -> tuple[Tensor, Tensor]:
    def backward(grad: Tensor, alpha: Tensor, beta: Tensor, w: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        products = running_products(rest)
        grad_alpha = ((w * grad)[..., None, :] @ products).squeeze(-2)
        pull = (products @ (alpha * grad_alpha)[..., None]).squeeze(-1)
        return grad_alpha, grad * beta - w * pull

    results = chunked(backward, *(tensor.flatten(0, 1) for tensor in (grad, alpha, beta, *saved)))
    return tuple(result.view(grad.shape) for result in results)


# --- hard path -------------------------------------------------------------------------------------------------------


def compose_maps(maps: Tensor) -> Tensor:
    """The maps 1..i one after another, for every i: from tables (..., i, position) of positions."""
    rows = maps.shape[-2]
    if rows == 1:
        return maps
    even, odd = maps[..., : rows - rows % 2 : 2, :], maps[..., 1::2, :]
    composed_odd = compose_maps(odd.gather(-1, even))
    composed = maps.clone()
    composed[..., 1::2, :] = composed_odd
    following = maps[..., 2::2, :]
    composed[..., 2::2, :] = following.gather(-1, composed_odd[..., : following.shape[-2], :])
    return composed


def hard_path(hits: Tensor, source_mask: Tensor, min_lag: int | None, max_lag: int | None) -> Tensor:
    rows, columns = hits.shape[2:]
    positions, row = (torch.arange(n, device=hits.device) for n in (columns, rows))
    stop = torch.where(hits, positions, columns)
    stop = stop.flip(-1).cummin(-1).values.flip(-1)  # the first hit from each position on
    latest = last_position(source_mask, 1, 1)
    if min_lag is not None:
        stop = torch.maximum(stop, (row + min_lag - 1)[:, None])
    if max_lag is not None:
        latest = torch.minimum(latest, (row + max_lag - 1)[:, None])
    return compose_maps(torch.minimum(stop, latest))[..., 0]


def in_own_precision(function):
    """Autocast reaches into operators, and would round the factors of the products here to half precision."""

    @wraps(function)
    def run(tensor: Tensor, *arguments):
        with maybe_autocast(tensor.device.type, enabled=False):
            return function(tensor, *arguments)

    return run


FORM = {
    "expected_alignment": in_own_precision(alignment_forward),
    "expected_alignment_backward": in_own_precision(alignment_backward),
    "expected_attention": in_own_precision(attention_forward),
    "expected_attention_backward": in_own_precision(attention_backward),
    "hard_path": hard_path,
}
