from hypothesis import given
from hypothesis import strategies as st

from hf_dualpath.paths.staircase import staircase


PATHS = st.lists(st.integers(0, 9), max_size=9).map(sorted)


def test_a_read_goes_right_and_a_write_goes_down():
    steps = staircase([1, 3, 3], read=4)
    assert "".join("R" if step.is_read else "W" for step in steps) == "RWRRWWR"
    assert [step.end for step in steps] == [(1, 0), (1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (4, 3)]


@given(PATHS, st.integers(0, 12))
def test_each_step_begins_where_the_last_one_ended(path, read):
    steps = staircase(path, read)
    assert [(step.read, step.written) for step in steps] == [(0, 0), *[step.end for step in steps]][: len(steps)]
    assert [step.read for step in steps if not step.is_read] == path, "the steps give the path back"
    assert sum(step.is_read for step in steps) == max([read, *path])
