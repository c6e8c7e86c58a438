"""The forms for devices other than a CPU, on a CPU, against the same oracles: the vectorised one by forcing it, and
Triton's in its interpreter. Triton decides at its import whether it interprets, so this file runs itself once more.
"""

import os
import subprocess
import sys
from contextlib import ExitStack

import pytest
import torch
from conftest import cases, single_model
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_dualpath import expected_alignment, expected_attention, hard_path, label_smoothed_cross_entropy
from hf_dualpath.model.monotonic_attention import OPERATORS, naive_expected_alignment, naive_expected_attention
from hf_dualpath.paths.duality import TRANSPOSE
from hf_dualpath.training.cross_entropy import CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD, _kernels


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
EXAMPLES = settings(max_examples=5 if INTERPRETED else 40, deadline=None, derandomize=True)
HEADS = 1 if INTERPRETED else 2  # the interpreter takes milliseconds for a row
KINDS = ("random", "sharp", "zero", "one")
SIZES = {"target": st.integers(1, 7), "source": st.integers(1, 9), "seed": st.integers(0, 2**31)}


@pytest.fixture(autouse=True, scope="module")
def form():
    with ExitStack() as stack:
        for name, operator in OPERATORS.items():
            if INTERPRETED:
                from hf_dualpath.model.monotonic_triton import FORM

                operator.register_kernel("cpu")(FORM[name])
            else:
                stack.enter_context(operator.set_kernel_enabled("cpu", False))
        yield


def probabilities(kind: str, *shape: int) -> torch.Tensor:
    p = torch.rand(shape, dtype=torch.float64)
    return {"random": p, "sharp": (p > 0.7).double(), "zero": torch.zeros_like(p), "one": torch.ones_like(p)}[kind]


def ragged_mask(batch: int, source: int) -> torch.Tensor:
    return torch.arange(source) < torch.tensor([[max(1, source - 2 * row)] for row in range(batch)])


def check_alignment(kind: str, target: int, source: int):
    p, mask = probabilities(kind, 2, HEADS, target, source).requires_grad_(), ragged_mask(2, source)
    weights = torch.randn(p.shape, dtype=torch.float64)
    ours, naive = expected_alignment(p, mask), naive_expected_alignment(p, mask)
    torch.testing.assert_close(ours, naive, atol=1e-12, rtol=0)
    gradients = [torch.autograd.grad(result, p, weights)[0] for result in (ours, naive)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)


def check_attention(scale: float, target: int, source: int):
    mask = ragged_mask(2, source)
    alpha = naive_expected_alignment(probabilities("random", 2, HEADS, target, source), mask).requires_grad_()
    energies = (scale * torch.randn(alpha.shape, dtype=torch.float64)).requires_grad_()
    weights = torch.randn(alpha.shape, dtype=torch.float64) * mask[:, None, None]
    ours, naive = expected_attention(alpha, energies, mask), naive_expected_attention(alpha, energies, mask)
    torch.testing.assert_close(ours, naive, atol=1e-12, rtol=0)
    of_ours, of_naive = (torch.autograd.grad(result, (alpha, energies), weights) for result in (ours, naive))
    for our_gradient, naive_gradient in zip(of_ours, of_naive):
        real = mask[:, None, None]
        torch.testing.assert_close(our_gradient * real, naive_gradient * real, atol=1e-12, rtol=0)


@given(kind=st.sampled_from(KINDS), **SIZES)
@EXAMPLES
def test_alignment_equals_the_recurrence(kind, target, source, seed):
    torch.manual_seed(seed)
    check_alignment(kind, target, source)


@given(scale=st.sampled_from([0.0, 3.0, 30.0]), **SIZES)
@EXAMPLES
def test_attention_equals_the_naive_sum(scale, target, source, seed):
    torch.manual_seed(seed)
    check_attention(scale, target, source)


@pytest.mark.parametrize("target, source", [(5, 33), (2, 70)])
def test_longer_than_one_warp(target, source):
    check_alignment("random", target, source)
    check_attention(3.0, target, source)


def test_float32_sums_to_one_and_stays_finite():
    p, energies = (torch.rand(1, HEADS, 12, 20) for _ in range(2))
    p, energies = p.requires_grad_(), (2e4 * energies - 1e4).requires_grad_()
    alpha = expected_alignment(p)
    beta = expected_attention(alpha, energies)
    exact = expected_alignment(p.detach().double())
    assert alpha.dtype == torch.float32 and (alpha - exact).abs().max() < 1e-6
    for rows in (alpha, beta):
        assert (rows.sum(-1) - 1).abs().max() < 1e-5
    beta[..., 0].sum().backward()
    assert p.grad.isfinite().all() and energies.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_and_bfloat16_round_no_sum(dtype):
    mask = ragged_mask(2, 20)
    p, energies = (torch.rand(2, HEADS, 6, 20).to(dtype) for _ in range(2))

    def found(dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [tensor.to(dtype).requires_grad_() for tensor in (p, energies)]
        alpha = expected_alignment(leaves[0], mask)
        beta = expected_attention(alpha, leaves[1], mask)
        return [alpha, beta, *torch.autograd.grad(beta[..., 3].sum(), leaves)]

    with torch.autocast("cpu", torch.bfloat16):
        half = found(dtype)
    assert [tensor.dtype for tensor in half] == [torch.float32, torch.float32, dtype, dtype]
    for ours, exact in zip(half, found(torch.float64)):
        rounding = 1e-5 if ours.dtype == torch.float32 else 1e-2  # of the gradient at its very end
        torch.testing.assert_close(ours.double(), exact, atol=rounding, rtol=rounding)


def walk(p: torch.Tensor, length: int, threshold: float, min_lag: int, max_lag: int) -> list[int]:
    """The rule in words: from the previous stop on the first token that reaches the threshold, within the lags."""
    stop, stops = 0, []
    for row, line in enumerate(p):
        stop = next((j for j in range(stop, length) if line[j] >= threshold), length)
        stop = min(max(stop, row + min_lag - 1), row + max_lag - 1, length - 1)
        stops.append(stop)
    return stops


@given(threshold=st.floats(0.05, 1.0), lags=st.sampled_from([(None, None), (2, None), (None, 3), (2, 4)]), **SIZES)
@EXAMPLES
def test_hard_path_follows_the_rule(threshold, lags, target, source, seed):
    torch.manual_seed(seed)
    p, mask = torch.rand(2, 2, target, source), ragged_mask(2, source)
    stops = hard_path(p, mask, threshold, *lags)
    for sentence in range(2):
        for head in range(2):
            expected = walk(p[sentence, head], int(mask[sentence].sum()), threshold, lags[0] or -99, lags[1] or 99)
            assert stops[sentence, head].tolist() == expected


@pytest.mark.skipif(not INTERPRETED, reason="there is one other form, Triton's")
@given(kind=st.sampled_from(["random", "sharp"]), **SIZES)
@EXAMPLES
def test_transposed_path_equals_torch(kind, target, source, seed):
    from hf_dualpath.paths.duality_triton import transpose_path

    torch.manual_seed(seed)
    alpha, source_mask, target_mask = (
        probabilities(kind, 2, 2, target, source),
        *map(ragged_mask, (2, 2), (source, target)),
    )
    assert torch.equal(transpose_path(alpha, source_mask, target_mask), TRANSPOSE(alpha, source_mask, target_mask))


@pytest.mark.skipif(not INTERPRETED, reason="tests/paths does this for torch")
def test_transposed_path_of_recorded_cases():
    from hf_dualpath.paths.duality_triton import transpose_path

    for case in cases("transpose_cases"):
        alpha = torch.zeros(1, 1, case["I"] + 2, case["J"] + 3)
        for row, stop in enumerate(case["d"]):
            alpha[0, 0, row, stop - 1] = 1
        source_mask, target_mask = (
            torch.arange(case[side] + pad)[None] < case[side] for side, pad in (("J", 3), ("I", 2))
        )
        gamma = transpose_path(alpha, source_mask, target_mask)
        assert (gamma[0, 0, : case["J"]].argmax(-1) + 1).tolist() == case["write_at"]
        assert gamma.sum() == case["J"]


@pytest.mark.skipif(not INTERPRETED, reason="there is one other form, Triton's")
@pytest.mark.parametrize("vocabulary", [2, 33, 5000])  # one block, and two
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_cross_entropy_equals_that_of_cpus(vocabulary, dtype):
    CROSS_ENTROPY.register_kernel("cpu")(_kernels().cross_entropy)
    CROSS_ENTROPY_BACKWARD.register_kernel("cpu")(_kernels().cross_entropy_backward)
    logits = (5 * torch.randn(1, 4, vocabulary)).to(dtype).requires_grad_()
    labels = torch.randint(0, vocabulary, (1, 4))
    labels[0, 1] = -100
    expected = label_smoothed_cross_entropy(logits, labels)
    found = CROSS_ENTROPY(logits[0], labels[0], 0.1)[0].sum()
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-3}[dtype]
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    gradients = [torch.autograd.grad(3 * loss, logits)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients, atol=tolerance, rtol=tolerance)


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None  # as where it is not installed
import torch
from transformers import AutoModelForSeq2SeqLM
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], trust_remote_code=True)
assert "hf_dualpath" not in sys.modules
attention = sys.modules[type(model).__module__.replace("modeling_dualpath", "monotonic_attention")]
assert attention._cuda_form() is attention.VECTORISED_FORM
ids = torch.tensor([[5, 6, 1]])
model(ids, labels=ids, path="expected").loss.backward()
"""


@pytest.mark.skipif(INTERPRETED, reason="about files, not numbers")
def test_remote_code_loads_where_triton_is_missing(tmp_path):
    single_model().save_pretrained(tmp_path / "model")
    names = {path.name for path in (tmp_path / "model").glob("monotonic_*.py")}
    assert names == {f"monotonic_{form}.py" for form in ("attention", "cpu", "triton", "vectorised")}
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules"), "PYTHONPATH": ""}
    command = [sys.executable, "-c", WITHOUT_TRITON, str(tmp_path / "model")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.skipif(INTERPRETED, reason="this is the run that interprets")
def test_triton_in_its_interpreter():
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
