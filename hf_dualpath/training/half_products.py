"""Matrix products in bfloat16, everything else in float32: what halves a training step on CPUs with such instructions.

Autocast would keep activations in bfloat16 too, and its backward on CPUs is many times slower than float32.
"""

import torch
from torch import Tensor, nn


class _HalfLinear(torch.autograd.Function):
    """`x W^T + b` and its gradients. Factors and products are rounded to bfloat16; they are summed in float32."""

    @staticmethod
    def forward(ctx, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows, matrix = states.flatten(0, -2).bfloat16(), weight.bfloat16()
        ctx.save_for_backward(rows, matrix)
        ctx.has_bias = bias is not None
        result = (rows @ matrix.t()).float()
        if bias is not None:
            result += bias
        return result.view(*states.shape[:-1], -1)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        rows, matrix = ctx.saved_tensors
        flat = grad.flatten(0, -2)
        half = flat.bfloat16()
        states = (half @ matrix).float().view(*grad.shape[:-1], -1)
        return states, (half.t() @ rows).float(), flat.sum(0) if ctx.has_bias else None


class HalfLinear(nn.Linear):
    """A linear map that multiplies in bfloat16 while it learns."""

    def forward(self, states: Tensor) -> Tensor:
        if self.training and states.dtype == torch.float32:
            return _HalfLinear.apply(states, self.weight, self.bias)
        return super().forward(states)


def multiply_in_half(model: nn.Module):
    """Turns the linear maps of a model; its weights and what it computes in evaluation stay as they are."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = HalfLinear
