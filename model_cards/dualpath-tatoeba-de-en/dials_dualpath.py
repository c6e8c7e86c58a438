"""Latency dials, and the limits that they set on a path. Without torch: the light runtime turns the same dials."""

from dataclasses import dataclass, fields


NOWHERE = 2**63 - 1  # the position of a head that has not stopped yet
LARGEST = 10**9  # of a dial: beyond any sentence, and a number of an array still
# The dials that count something: their lowest value, and what they count.
COUNTS = {
    **dict.fromkeys(("min_lag", "max_lag", "wait_k"), (1, "source tokens")),
    "agreement": (1, "hypotheses"),
    "frontier": (0, "source tokens"),
}


def lag_limits(target_position: int, min_lag: int | None, max_lag: int | None) -> tuple[int, int]:
    """Earliest and latest source position at which a target token may be written, all counted from 0."""
    low = target_position + min_lag - 1 if min_lag else 0
    high = target_position + max_lag - 1 if max_lag else NOWHERE - 1
    return low, high


@dataclass
class Dials:
    """Latency dials that need no retraining. Each can be saved in a `GenerationConfig`.

    Args:
        write_threshold (`float`, *optional*, defaults to 0.5):
            A head stops where its selection probability reaches this; lower writes earlier.
        min_lag (`int`, *optional*): Target token i is not written before `i - 1 + min_lag` source tokens are read.
        max_lag (`int`, *optional*): Target token i is written at the latest when `i - 1 + max_lag` are read.
        wait_k (`int`, *optional*): Another k for a wait-k model.
        agreement (`int`, *optional*, defaults to 2): Of translators of the Hub with `local_agreement`: how many
            hypotheses must agree.
        frontier (`int`, *optional*, defaults to 2): Of those with `align_att`: how many source tokens, from the last
            one read back, must not be looked at.
    """

    write_threshold: float = 0.5
    min_lag: int | None = None
    max_lag: int | None = None
    wait_k: int | None = None
    agreement: int = 2
    frontier: int = 2

    def __post_init__(self):
        if not isinstance(self.write_threshold, (int, float)) or not 0 < self.write_threshold <= 1:
            raise ValueError(f"`write_threshold` lies in (0, 1], not at {self.write_threshold}.")
        for name, (lowest, things) in COUNTS.items():
            value = getattr(self, name)
            if value == getattr(type(self), name):
                continue  # as it is unless somebody turns it
            if not isinstance(value, int) or not lowest <= value <= LARGEST:
                raise ValueError(
                    f"`{name}` is a number of {things}, at least {lowest}, at most {LARGEST}, not {value}."
                )
        if self.min_lag and self.max_lag and self.min_lag > self.max_lag:
            raise ValueError(f"`min_lag` ({self.min_lag}) is larger than `max_lag` ({self.max_lag}).")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    @classmethod
    def given_in(cls, source) -> dict:
        """The dials that a `GenerationConfig`, a namespace of command line arguments or a dict sets."""
        saved = source if isinstance(source, dict) else vars(source)
        return {name: saved[name] for name in cls.names() if saved.get(name) is not None}

    @classmethod
    def from_config(cls, config) -> "Dials":
        """Those of a `GenerationConfig`."""
        return cls(**cls.given_in(config))

    def limits(self, target_position: int) -> tuple[int, int]:
        """Earliest and latest source position at which a target token may be written, all counted from 0."""
        return lag_limits(target_position, self.min_lag, self.max_lag)
