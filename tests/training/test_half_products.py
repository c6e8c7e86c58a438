"""Products in bfloat16 beside float32: the same weights and evaluation, a gradient as close as rounding."""

import copy

import torch
from torch import nn

from hf_dualpath.training.half_products import HalfLinear, multiply_in_half


def test_a_linear_map_computes_what_rounded_factors_give():
    torch.manual_seed(0)
    linear, states = nn.Linear(24, 40), torch.randn(3, 5, 24, requires_grad=True)
    half = copy.deepcopy(linear)
    multiply_in_half(half)
    assert isinstance(half, HalfLinear) and half.state_dict().keys() == linear.state_dict().keys()
    gradient = torch.randn(3, 5, 40)
    output = half(states)
    output.backward(gradient)
    rounded, weight, outer = (
        x.detach().bfloat16().double() for x in (states, linear.weight, gradient)
    )  # what is multiplied, and the exact products of that
    product = output.detach().double() - linear.bias.double()
    assert torch.allclose(product, rounded @ weight.T, rtol=2**-8, atol=1e-5)
    assert torch.allclose(states.grad.double(), outer @ weight, rtol=2**-7, atol=2e-2)
    assert torch.allclose(
        half.weight.grad.double(), torch.einsum("bto,bti->oi", outer, rounded), rtol=2**-7, atol=2e-2
    )
    assert torch.allclose(half.bias.grad, gradient.sum((0, 1)))


def test_evaluation_and_other_precisions_stay_exact():
    linear, states = nn.Linear(8, 8), torch.randn(2, 8)
    half = copy.deepcopy(linear)
    multiply_in_half(half)
    assert torch.equal(half.eval()(states), linear(states))
    assert half.double().train()(states.double()).dtype == torch.float64
