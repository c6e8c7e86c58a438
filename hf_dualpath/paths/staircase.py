"""The path as a walk over the grid of source and target words: every drawing takes its steps from here."""

from collections.abc import Sequence
from typing import NamedTuple


class Step(NamedTuple):
    """One move, from the corner where so many words are read and so many written."""

    is_read: bool  # a READ goes right over a source word, a WRITE goes down over a target word
    read: int
    written: int

    @property
    def end(self) -> tuple[int, int]:
        """Words read and written after it."""
        return (self.read + 1, self.written) if self.is_read else (self.read, self.written + 1)


def staircase(path: Sequence[int], read: int = 0) -> list[Step]:
    """The steps of a path, in the order in which they are taken.

    Args:
        path (`Sequence[int]`): Source words read before each target word, never falling.
        read (`int`, *optional*, defaults to 0): Source words read in all, where some were read after the last WRITE.
    """
    steps, column = [], 0
    for row, stop in enumerate(path):
        steps += [*(Step(True, at, row) for at in range(column, stop)), Step(False, stop, row)]
        column = stop
    return steps + [Step(True, at, len(path)) for at in range(column, read)]
