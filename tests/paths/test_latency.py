import pytest
import torch
from conftest import cases
from hypothesis import given
from hypothesis import strategies as st

from hf_dualpath import (
    average_lagging,
    average_proportion,
    differentiable_average_lagging,
    expected_delays,
    latency_metrics,
)


def test_recorded_cases():
    for case in cases("latency_cases"):
        ours = latency_metrics(case["g"], case["J"])
        assert ours == pytest.approx(case["hyp_len"], abs=1e-9)
        ours = latency_metrics(case["g"], case["J"], reference_length=case["ref_len"])
        assert ours == pytest.approx(case["ref_len_values"], abs=1e-9)


@given(st.integers(1, 9), st.integers(1, 9))
def test_wait_k_lags_by_k(k, length):
    """With equal lengths wait-k has an AL of k (or the whole sentence where it is shorter)."""
    path = [min(k + i, length) for i in range(length)]
    assert latency_metrics(path, length)["AL"] == pytest.approx(min(k, length))


def test_offline_lags_by_the_sentence():
    assert latency_metrics([7, 7, 7], 7) == pytest.approx({"AP": 1, "AL": 7, "DAL": 7, "LAAL": 7})


def test_batched_metrics_ignore_padding():
    paths, sources = [[1, 2, 4, 4], [2, 3]], torch.tensor([4, 3])
    delays = torch.tensor([[1.0, 2, 4, 4], [2, 3, 9, 9]], dtype=torch.float64)
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    targets = mask.sum(-1)
    single = [latency_metrics(path, int(source)) for path, source in zip(paths, sources)]
    for name, function in (
        ("AP", average_proportion),
        ("AL", average_lagging),
        ("DAL", differentiable_average_lagging),
    ):
        assert function(delays, sources, targets, mask).tolist() == pytest.approx([row[name] for row in single])


def test_dal_is_differentiable():
    delays = (torch.rand(2, 5, dtype=torch.float64) * 5).requires_grad_()
    mask = torch.ones(2, 5, dtype=torch.bool)
    lengths = torch.tensor([6, 4]), torch.tensor([5, 5])
    assert torch.autograd.gradcheck(lambda d: differentiable_average_lagging(d, *lengths, mask), delays)


def test_expected_delay_of_a_one_hot_path_is_its_position():
    alpha = torch.nn.functional.one_hot(torch.tensor([[[0, 2, 2]]]), 4).float()
    assert expected_delays(alpha).tolist() == [[[1, 3, 3]]]


def test_empty_path_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        latency_metrics([], 3)


def test_autocast_rounds_no_delay():
    alpha = torch.rand(1, 2, 5, 90).softmax(-1)
    with torch.autocast("cpu", torch.bfloat16):
        delays = expected_delays(alpha)
    torch.testing.assert_close(delays, expected_delays(alpha))
