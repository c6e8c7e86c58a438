"""Training sources that look like live text: lower-cased, without punctuation, several sentences in a row.

Only a source is made plain, never a target: who dictates in lower case still wants to read proper sentences. In a run
of both directions such a pair teaches one of them; `teaches` says which.
"""

import random
import re
from collections.abc import Sequence

from datasets import Dataset

from ..errors import DataError


Pair = tuple[str, str]
BOTH, ONLY_FORWARD, ONLY_BACKWARD = [True, True], [True, False], [False, True]
MARKS = re.escape(".,;:!?…\"„“”‚‘’«»‹›()[]–—-'")
OUTER_MARKS = re.compile(rf"(?<!\w)[{MARKS}]+|[{MARKS}]+(?!\w)")  # what joins two letters or digits stays: don't, 3.5


def without_punctuation(text: str) -> str:
    """The words alone; a text of nothing but marks stays as it is."""
    return " ".join(OUTER_MARKS.sub(" ", text).split()) or text


def plain(text: str, rng: random.Random) -> str:
    """Lower-cased, without punctuation, or both."""
    kind = rng.choice(("lower", "bare", "both"))
    text = text if kind == "lower" else without_punctuation(text)
    return text if kind == "bare" else text.lower()


def joined(pairs: Sequence[Pair], count: int, rng: random.Random) -> list[Pair]:
    """So many new pairs, each two or three others in a row; each of those is used once at most."""
    rest, found = list(pairs), []
    rng.shuffle(rest)
    while len(rest) >= 3 and len(found) < count:
        parts = [rest.pop() for _ in range(rng.choice((2, 2, 3)))]
        found.append(tuple(" ".join(side) for side in zip(*parts)))
    return found


def like_live_text(
    pairs: Dataset,
    plain_source_share: float = 0.0,
    joined_share: float = 0.0,
    long_pair_words: int = 9,
    both_directions: bool = True,
    seed: int = 0,
) -> Dataset:
    r"""
    Training pairs as a stream might bring them; the same for the same seed.

    Args:
        pairs (`Dataset`): With the texts `source` and `target`.
        plain_source_share (`float`, *optional*, defaults to 0.0): So many of the sources of each direction are plain.
        joined_share (`float`, *optional*, defaults to 0.0): Short pairs in a row are added: so many for each pair.
        long_pair_words (`int`, *optional*, defaults to 9): A pair is short with fewer words on a side.
        both_directions (`bool`, *optional*, defaults to `True`): Whether the target side is a source too.
        seed (`int`, *optional*, defaults to 0): Of the draws.

    Returns:
        `Dataset`: With a column `teaches` (forward, backward) where some pairs teach one direction only.
    """
    most = 0.5 if both_directions else 1.0
    if not 0 <= plain_source_share <= most:
        raise DataError(f"`plain_source_share` is a share of each direction's sources, from 0 to {most}.")
    if joined_share < 0:
        raise DataError("`joined_share` is a share of the training pairs, at least 0.")
    if not plain_source_share and not joined_share:
        return pairs
    rng = random.Random(seed)
    rows = list(zip(pairs["source"], pairs["target"]))
    short = [row for row in rows if min(len(side.split()) for side in row) < long_pair_words]
    rows += joined(short, round(joined_share * len(rows)), rng)
    teaches = [BOTH] * len(rows)
    for index, (source, target) in enumerate(rows):
        drawn = rng.random() if plain_source_share else 1.0
        if drawn < plain_source_share:
            rows[index], teaches[index] = (plain(source, rng), target), ONLY_FORWARD
        elif both_directions and drawn < 2 * plain_source_share:
            rows[index], teaches[index] = (source, plain(target, rng)), ONLY_BACKWARD
    columns = dict(zip(("source", "target"), map(list, zip(*rows))))
    return Dataset.from_dict(columns | {"teaches": teaches} if both_directions and plain_source_share else columns)
