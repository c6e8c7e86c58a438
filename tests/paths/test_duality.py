import pytest
import torch
from conftest import cases

from hf_dualpath import duality_loss, transpose_path


def one_hot_path(d: list[int], source: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(d) - 1, source).double()[None, None]


def write_positions(gamma: torch.Tensor) -> list[int]:
    return (gamma.argmax(-1) + 1).tolist()


@pytest.mark.parametrize("padding", [0, 3])
def test_recorded_cases(padding):
    for case in cases("transpose_cases"):
        alpha = torch.nn.functional.pad(one_hot_path(case["d"], case["J"]), (0, padding, 0, padding))
        source_mask = torch.arange(case["J"] + padding)[None] < case["J"]
        target_mask = torch.arange(case["I"] + padding)[None] < case["I"]
        gamma = transpose_path(alpha, source_mask, target_mask)
        assert write_positions(gamma[0, 0, : case["J"]]) == case["write_at"]
        assert gamma.sum() == case["J"], "one write for each real source token, none at padding"


def test_worked_examples():
    assert write_positions(transpose_path(one_hot_path([2, 2, 2, 3, 3, 5], 5))[0, 0]) == [3, 3, 5, 6, 6]
    assert write_positions(transpose_path(one_hot_path([3, 1, 3], 4))[0, 0]) == [3, 3, 3, 3]


def test_without_segments_it_is_the_plain_transpose():
    alpha = one_hot_path([2, 2, 4], 4)
    assert torch.equal(transpose_path(alpha, segment=False), alpha.transpose(2, 3))


def test_a_segmented_path_transposed_twice_comes_back():
    """A path that ends with the source is given back, with every target token at its segment's end."""
    alpha = one_hot_path([2, 2, 2, 3, 3, 5], 5)
    assert torch.equal(transpose_path(transpose_path(alpha)), alpha)


def test_no_gradient_flows_into_gamma():
    assert not transpose_path(torch.rand(1, 2, 3, 4, requires_grad=True)).requires_grad


def random_alphas(batch=3, heads=2, target=5, source=6):
    return (
        torch.rand(batch, heads, target, source, dtype=torch.float64).softmax(-1),
        torch.rand(batch, heads, source, target, dtype=torch.float64).softmax(-1),
    )


def test_batch_reduction_is_one_norm():
    forward, backward = random_alphas()
    omega_f, omega_b = duality_loss(forward, backward)
    torch.testing.assert_close(omega_f, (forward - transpose_path(backward)).square().sum().sqrt())
    torch.testing.assert_close(omega_b, (backward - transpose_path(forward)).square().sum().sqrt())


def test_sentence_reduction_is_additive():
    forward, backward = random_alphas()
    together = duality_loss(forward, backward, reduction="sentence")
    apart = [duality_loss(forward[i : i + 1], backward[i : i + 1], reduction="sentence") for i in range(3)]
    torch.testing.assert_close(torch.stack(together), torch.stack([torch.stack(pair) for pair in apart]).sum(0))


@pytest.mark.parametrize("reduction", ["batch", "sentence"])
def test_padding_takes_no_part(reduction):
    forward, backward = random_alphas()
    masks = torch.ones(3, 6, dtype=torch.bool), torch.ones(3, 5, dtype=torch.bool)
    plain = duality_loss(forward, backward, *masks, reduction=reduction)
    pad = torch.nn.functional.pad
    padded = duality_loss(
        pad(forward, (0, 2, 0, 3), value=0.7),
        pad(backward, (0, 3, 0, 2), value=0.7),
        pad(masks[0], (0, 2)),
        pad(masks[1], (0, 3)),
        reduction=reduction,
    )
    torch.testing.assert_close(plain, padded)


def test_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="'batch' or 'sentence'"):
        duality_loss(*random_alphas(), reduction="mean")
