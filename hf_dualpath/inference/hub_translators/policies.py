"""When a translator that reads whole sentences may write before the sentence is over.

After each source word the translator takes what it has read for a whole sentence and translates it, greedily and after
the text already written. A policy says how much of this hypothesis may be written now. A new policy is one class:

    @register_hub_policy("hold_two")
    class HoldTwo(HubPolicy):
        def ready(self, hypothesis, written):
            return len(hypothesis) - 2

The lags are not its business: `min_lag` holds back tokens that it would write, `max_lag` writes what it would not.
"""

import math
from typing import ClassVar

from ...model.policies_dualpath import Dials


HUB_POLICIES: dict[str, type["HubPolicy"]] = {}


def register_hub_policy(name: str):
    """Makes a class known under a name for `SimultaneousTranslator.from_pretrained(policy=name)` and `--policy`."""

    def register(policy: type["HubPolicy"]) -> type["HubPolicy"]:
        policy.name = name
        HUB_POLICIES[name] = policy
        return policy

    return register


def find_policy(name: str) -> type["HubPolicy"]:
    if name not in HUB_POLICIES:
        raise ValueError(
            f"A translator that reads whole sentences streams with {', '.join(HUB_POLICIES)}, not {name!r}."
        )
    return HUB_POLICIES[name]


class HubPolicy:
    """What all of them share. One object serves one sentence, and may remember what it has seen of it.

    Nothing is asked once the source has ended: then the rest is written.
    """

    name: ClassVar[str]
    dials: ClassVar[tuple[str, ...]] = ("min_lag", "max_lag")
    reads_everything: ClassVar[bool] = False
    needs_attention: ClassVar[bool] = False  # whether `stops` wants to know where each token looked

    def __init__(self, dials: Dials):
        pass

    @classmethod
    def check_dials(cls, given: dict):
        """Refuses a dial that would do nothing."""
        for name in given:
            if name not in cls.dials:
                raise ValueError(
                    f"`{name}` does nothing for the {cls.name} policy: its dials are {', '.join(cls.dials)}."
                )

    def wanted(self, words_read: int) -> float:
        """How many target tokens a hypothesis should have now. If so many are written already, none is made."""
        return math.inf

    def stops(self, alignment: int, tokens_read: int) -> bool:
        """Whether the hypothesis ends before a token that looked most at this source token, from 0, of those read."""
        return False

    def ready(self, hypothesis: list[int], written: int) -> int:
        """How many tokens of the hypothesis, from the first, may be written. It begins with what is written."""
        return len(hypothesis)
