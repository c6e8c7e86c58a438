import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_dualpath.paths.quality import (
    duality_iou,
    intersection_over_union,
    necessity,
    parse_alignment,
    sufficiency,
)
from hf_dualpath.training.data import DataError


# The paper's example: a = 3 2 1 5 4 and g = 2 2 4 4 5
PATH = [2, 2, 4, 4, 5]
ALIGNMENT = [(2, 0), (1, 1), (0, 2), (4, 3), (3, 4)]


def test_the_papers_example():
    assert sufficiency(PATH, ALIGNMENT) == pytest.approx(3 / 5)
    assert necessity(PATH, ALIGNMENT) == pytest.approx(41 / 60)


def test_the_furthest_word_counts_and_unaligned_words_do_not():
    alignment = [(0, 0), (3, 0)]
    assert sufficiency([3, 9], alignment) == 0 and necessity([3, 9], alignment) is None
    assert sufficiency([4, 9], alignment) == 1 and necessity([8, 9], alignment) == 0.5
    assert sufficiency([1], []) is None


def test_iou_by_hand():
    assert intersection_over_union([1, 2, 3], [1, 2, 3]) == 1
    assert intersection_over_union([1, 1, 1], [3, 3, 3]) == pytest.approx(1 / 3)
    assert intersection_over_union([2, 2], [1, 4]) == pytest.approx(3 / 6)
    with pytest.raises(ValueError):
        intersection_over_union([1], [1, 2])


def one_hot(path: list[int], length: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(path) - 1, length).float()[None, None]


def test_dual_paths_agree_wholly():
    """2,2,2,3,3,5 over five words and its transpose 3,3,5,6,6 are the same segments."""
    masks = torch.ones(1, 5, dtype=torch.bool), torch.ones(1, 6, dtype=torch.bool)
    forward, backward = one_hot([2, 2, 2, 3, 3, 5], 5), one_hot([3, 3, 5, 6, 6], 6)
    assert duality_iou(forward, backward, *masks).item() == 1
    offline = duality_iou(one_hot([5] * 6, 5), one_hot([1] * 5, 6), *masks).item()
    assert offline == pytest.approx(intersection_over_union([5] * 6, [5] + [5] * 5))


@given(st.lists(st.integers(1, 6), min_size=5, max_size=5), st.lists(st.integers(1, 5), min_size=6, max_size=6))
def test_iou_of_tensors_equals_iou_of_lists(forward, backward):
    from hf_dualpath import transpose_path

    forward, backward = sorted(forward), sorted(backward)
    masks = torch.ones(1, 6, dtype=torch.bool), torch.ones(1, 5, dtype=torch.bool)
    transposed = (transpose_path(one_hot(backward, 5)).argmax(-1) + 1)[0, 0].tolist()
    expected = intersection_over_union(forward, transposed)
    padded = [torch.nn.functional.pad(mask, (0, 2)) for mask in masks]
    ours = duality_iou(
        torch.nn.functional.pad(one_hot(forward, 6), (0, 2, 0, 2)),
        torch.nn.functional.pad(one_hot(backward, 5), (0, 2, 0, 2)),
        *padded,
    )
    assert ours.item() == pytest.approx(expected)


def test_alignments():
    assert parse_alignment("0-0 1?2", 2, 3) == [(0, 0), (1, 2)]
    with pytest.raises(DataError, match="line 7: '1:2'"):
        parse_alignment("1:2", 5, 5, 7)
    with pytest.raises(DataError, match="line 3: 2-0 is out of range"):
        parse_alignment("2-0", 2, 5, 3)
