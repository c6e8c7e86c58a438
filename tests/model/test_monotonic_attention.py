import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_dualpath import expected_alignment, expected_attention, hard_path
from hf_dualpath.model.monotonic_attention import naive_expected_alignment, naive_expected_attention, one_hot


KINDS = ("random", "sharp", "zero", "one")
SHAPES = ((1, 1), (1, 7), (7, 1), (5, 9), (9, 5), (33, 40))


def probabilities(kind: str, *shape: int, dtype=torch.float64) -> torch.Tensor:
    p = torch.rand(*shape, dtype=dtype)
    return {"random": p, "sharp": (p > 0.7).to(dtype), "zero": torch.zeros_like(p), "one": torch.ones_like(p)}[kind]


def ragged_mask(batch: int, source: int) -> torch.Tensor:
    lengths = torch.tensor([max(1, source - 2 * row) for row in range(batch)])
    return torch.arange(source) < lengths[:, None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_alignment_equals_recurrence(kind, shape):
    p, mask = probabilities(kind, 3, 2, *shape).requires_grad_(), ragged_mask(3, shape[1])
    weights = torch.randn(3, 2, *shape, dtype=torch.float64)
    ours, naive = expected_alignment(p, mask), naive_expected_alignment(p, mask)
    torch.testing.assert_close(ours, naive, atol=1e-12, rtol=0)
    gradients = [torch.autograd.grad(result, p, weights)[0] for result in (ours, naive)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(50, 50), (200, 3), (3, 200), (200, 200)])
def test_alignment_in_float32_agrees_with_float64(kind, shape):
    exact = probabilities(kind, 1, 2, *shape).float()
    weights = torch.randn(1, 2, *shape)
    results = []
    for dtype in (torch.float32, torch.float64):
        p = exact.to(dtype).requires_grad_()
        alpha = expected_alignment(p)
        (gradient,) = torch.autograd.grad(alpha, p, weights.to(dtype))
        results.append((alpha, gradient))
    (alpha32, gradient32), (alpha64, gradient64) = results
    assert (alpha32 - alpha64).abs().max() < 1e-5
    assert (gradient32 - gradient64).abs().max() <= 1e-5 * gradient64.abs().max().clamp(min=1)
    assert (alpha32.sum(-1) - 1).abs().max() < 1e-5


def test_gradcheck():
    p = torch.rand(2, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    assert torch.autograd.gradcheck(expected_alignment, (p, mask))
    alpha = naive_expected_alignment(p.detach(), mask).requires_grad_()
    energies = torch.randn(2, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, e: expected_attention(a, e, mask), (alpha, energies))


def test_double_backward_says_so():
    p = torch.rand(1, 1, 2, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad((expected_alignment(p) ** 2).sum(), p, create_graph=True)
    with pytest.raises(NotImplementedError, match="no double backward"):
        gradient.sum().backward()


@given(
    st.lists(st.floats(0, 1), min_size=6, max_size=6), st.sampled_from([torch.float16, torch.bfloat16, torch.float32])
)
@settings(max_examples=50, deadline=None)
def test_any_probabilities_are_finite_and_sum_to_one(values, dtype):
    p = torch.tensor(values, dtype=dtype).view(1, 1, 2, 3).requires_grad_()
    alpha = expected_alignment(p)
    assert alpha.dtype == torch.float32
    assert (alpha.sum(-1) - 1).abs().max() < 1e-6 and (alpha >= 0).all()
    alpha[..., 0].sum().backward()
    assert p.grad.isfinite().all() and p.grad.dtype == dtype


@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 5), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_alignment_ignores_batch_mates_and_padding(target, source, padding, seed):
    torch.manual_seed(seed)
    alone = torch.rand(1, 2, target, source).requires_grad_()
    weights = torch.randn(1, 2, target, source)
    (alone_gradient,) = torch.autograd.grad(expected_alignment(alone), alone, weights)

    padded = torch.rand(3, 2, target, source + padding)
    padded[1:2, ..., :source] = alone.detach()
    padded.requires_grad_()
    mask = torch.ones(3, source + padding, dtype=torch.bool)
    mask[1, source:] = False
    alpha = expected_alignment(padded, mask)
    (gradient,) = torch.autograd.grad(alpha[1:2, ..., :source], padded, weights)
    torch.testing.assert_close(alpha[1:2, ..., :source], expected_alignment(alone), atol=0, rtol=0)
    torch.testing.assert_close(gradient[1:2, ..., :source], alone_gradient, atol=0, rtol=0)
    assert (alpha[1, ..., source:] == 0).all() and (gradient[1, ..., source:] == 0).all()


def test_attention_equals_naive_sum():
    mask = ragged_mask(3, 9)
    alpha = naive_expected_alignment(torch.rand(3, 2, 6, 9, dtype=torch.float64), mask).requires_grad_()
    energies = (3 * torch.randn(3, 2, 6, 9, dtype=torch.float64)).requires_grad_()
    weights = torch.randn(3, 2, 6, 9, dtype=torch.float64) * mask[:, None, None]
    ours, naive = expected_attention(alpha, energies, mask), naive_expected_attention(alpha, energies, mask)
    torch.testing.assert_close(ours, naive, atol=1e-12, rtol=0)
    for ours_gradient, naive_gradient in zip(
        torch.autograd.grad(ours, (alpha, energies), weights), torch.autograd.grad(naive, (alpha, energies), weights)
    ):
        real = mask[:, None, None]
        torch.testing.assert_close(ours_gradient * real, naive_gradient * real, atol=1e-12, rtol=0)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_attention_of_a_one_hot_path_is_softmax(scale):
    energies = scale * (2 * torch.rand(2, 2, 5, 8) - 1)
    stops = torch.randint(0, 8, (2, 2, 5))
    alpha = torch.nn.functional.one_hot(stops, 8).float()
    beta = expected_attention(alpha, energies)
    allowed = torch.arange(8) <= stops[..., None]
    torch.testing.assert_close(beta, energies.masked_fill(~allowed, -torch.inf).softmax(-1), atol=1e-6, rtol=0)


def test_attention_is_stable_for_huge_energies():
    energies = (1e4 * (2 * torch.rand(2, 2, 9, 12) - 1)).requires_grad_()
    alpha = expected_alignment(torch.rand(2, 2, 9, 12)).requires_grad_()
    beta = expected_attention(alpha, energies)
    assert (beta.sum(-1) - 1).abs().max() < 1e-5
    beta[..., 0].sum().backward()
    assert energies.grad.isfinite().all() and alpha.grad.isfinite().all()


def step_by_step(p: torch.Tensor, length: int, threshold: float) -> list[int]:
    """The rule in words: from the previous stop on, the first token that reaches the threshold, else the last."""
    stop, stops = 0, []
    for row in p:
        stop = next((j for j in range(stop, length) if row[j] >= threshold), length - 1)
        stops.append(stop)
    return stops


@given(st.integers(1, 7), st.integers(1, 9), st.integers(1, 9), st.floats(0.05, 1.0), st.integers(0, 2**31))
@settings(max_examples=80, deadline=None)
def test_hard_path_follows_the_rule(target, source, length, threshold, seed):
    torch.manual_seed(seed)
    length = min(length, source)
    p = torch.rand(1, 2, target, source)
    mask = torch.arange(source)[None] < length
    stops = hard_path(p, mask, threshold)
    for head in range(2):
        assert stops[0, head].tolist() == step_by_step(p[0, head], length, threshold)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's default backend needs a C++ compiler")
def test_compiled_by_the_default_backend():
    """Which generates code for the strides that the operators promise."""
    inputs = torch.rand(2, 3, 4, 5), torch.randn(2, 3, 4, 5)

    def gradients(function):
        p, energies = (tensor.clone().requires_grad_() for tensor in inputs)
        (function(p, energies) ** 2).sum().backward()
        return p.grad, energies.grad

    def attention(p, energies):
        return expected_attention(expected_alignment(2 * p / 2), energies + 1) * 2

    for ours, compiled in zip(gradients(attention), gradients(torch.compile(attention))):
        torch.testing.assert_close(ours, compiled)


def test_one_graph_for_all_shapes_and_dials():
    """Batches of a training differ in all of these. What is compiled for each anew soon is not compiled at all."""

    def step(p, energies, threshold, lag):
        mask = torch.ones_like(p[:, 0, 0], dtype=torch.bool)
        beta = expected_attention(expected_alignment(p, mask), energies, mask)
        return beta + one_hot(hard_path(p, mask, threshold, max_lag=lag), p.shape[-1])

    torch.compiler.reset()
    compiled = torch.compile(step, backend="eager", fullgraph=True)
    batches = (2, 3, 4, 5, 0.5, 2), (3, 2, 6, 9, 0.3, 3), (4, 5, 9, 7, 0.61, 4)
    for number, (*shape, threshold, lag) in enumerate(batches):
        inputs = torch.rand(shape), torch.randn(shape), threshold, lag
        with torch.compiler.set_stance("default" if number < 2 else "fail_on_recompile"):
            torch.testing.assert_close(compiled(*inputs), step(*inputs))


def test_everything_runs_on_meta_tensors():
    p = torch.rand(2, 3, 4, 5, device="meta", requires_grad=True)
    mask = torch.ones(2, 5, dtype=torch.bool, device="meta")
    alpha = expected_alignment(p, mask)
    expected_attention(alpha, torch.rand_like(p), mask).sum().backward()
    assert p.grad.device.type == "meta" and hard_path(p, mask).shape == (2, 3, 4)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 1, 1), (3, 2, 7, 2)])
def test_the_operators_keep_what_they_promise_the_compiler(shape):
    """torch's own check: schema, fake kernel (shapes and strides), autograd, and the compiled backward."""
    mask = torch.ones(shape[0], shape[-1], dtype=torch.bool)
    mask[-1, 1:] = False
    p, energies = torch.rand(shape).requires_grad_(), torch.randn(shape).requires_grad_()
    permuted = torch.rand(shape[1], shape[0], *shape[2:]).transpose(0, 1).requires_grad_()
    operators = torch.ops.hf_dualpath
    for alpha in (p, permuted):
        torch.library.opcheck(operators.expected_alignment, (alpha, mask))
        torch.library.opcheck(operators.expected_attention, (alpha, energies, mask))
    alpha, saved = operators.expected_alignment(p.detach(), mask)
    torch.library.opcheck(operators.expected_alignment_backward, (permuted.detach(), saved, mask))
    beta, saved = operators.expected_attention(alpha, energies.detach(), mask)
    torch.library.opcheck(operators.expected_attention_backward, (permuted.detach(), alpha, beta, saved))
    torch.library.opcheck(operators.hard_path, (permuted.detach() > 0.5, mask, 2, None))
