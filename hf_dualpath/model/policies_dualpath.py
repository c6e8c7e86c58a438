"""When to READ and when to WRITE: one class for each policy, and the path that it makes.

A policy answers the same question three times, from one rule: the *expected* path that training averages over, the
*hard* path of a whole sentence pair, and live, where the next target token stops as far as the source has arrived. All
else is asked of the policy object; nothing compares its name. A new policy is one class:

    @register_policy("my_policy")
    class MyPolicy(FixedPolicy):
        def reads(self, target_position, dials):
            return 2 * target_position + 1
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers.utils.generic import maybe_autocast

from .dials_dualpath import NOWHERE, Dials
from .monotonic_attention import (
    expected_alignment,
    first_stop,
    full_precision,
    hard_path,
    last_source_position,
    one_hot,
)


PATHS = ("expected", "hard")


@dataclass
class ReadWritePath:
    """How far each head reads before each target token: an expectation (`alpha`) or a position (`stop`).

    Args:
        source_mask (`torch.BoolTensor` of shape `(batch, source)`, *optional*): True at real tokens.
        alpha (`torch.Tensor` of shape `(batch, head, target, source)`, *optional*): Expected writing probability.
        stop (`torch.LongTensor` of shape `(batch, head or 1, target)`, *optional*): Last position read, from 0.
        selection_probability (`torch.Tensor`, *optional*): What a learned policy decided from.
    """

    source_mask: Tensor | None = None
    alpha: Tensor | None = None
    stop: Tensor | None = None
    selection_probability: Tensor | None = None

    def allowed(self, source_length: int) -> Tensor:
        """Mask of the source tokens up to each stop: batch, head, target, source."""
        return torch.arange(source_length, device=self.stop.device) <= self.stop[..., None]

    def writing_probability(self, source_length: int) -> Tensor:
        """Alpha, with one-hot rows where the path is hard."""
        return one_hot(self.stop, source_length).float() if self.alpha is None else self.alpha


POLICIES: dict[str, type["Policy"]] = {}


def register_policy(name: str):
    """Makes a class known under a name for `SiMTConfig(policy=name)`, recipes and the command line."""

    def register(policy: type["Policy"]) -> type["Policy"]:
        policy.name = name
        POLICIES[name] = policy
        return policy

    return register


class Policy(nn.Module):
    """What all policies share. It is a module because some learn."""

    name: ClassVar[str]
    description: ClassVar[str] = "A simultaneous translation model."  # for the card of a checkpoint
    reads_everything: ClassVar[bool] = False
    is_learned: ClassVar[bool] = False
    decides_in_each_layer: ClassVar[bool] = False
    dials: ClassVar[tuple[str, ...]] = ("min_lag", "max_lag")

    def __init__(self, config):
        super().__init__()

    @classmethod
    def check_settings(cls, settings: dict):
        """Refuses `policy_settings` that this policy does not know."""
        if settings:
            raise ValueError(f"The {cls.name} policy has no settings, and got {', '.join(settings)}.")

    @classmethod
    def check_dials(cls, given: dict):
        """Refuses a dial that would do nothing."""
        for name in given:
            if name not in cls.dials:
                has = f"its dials are {', '.join(cls.dials)}" if cls.dials else "it reads all first and has no dials"
                raise ValueError(f"`{name}` does nothing for the {cls.name} policy: {has}.")

    def forward(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor, source_mask: Tensor | None, path: str, dials: Dials
    ) -> ReadWritePath:
        make = self.expected_path if path == "expected" else self.hard_path
        return make(hidden_states, encoder_hidden_states, source_mask, dials)

    def expected_path(self, hidden_states, encoder_hidden_states, source_mask, dials) -> ReadWritePath:
        """The path that training follows."""
        raise NotImplementedError

    def hard_path(self, hidden_states, encoder_hidden_states, source_mask, dials) -> ReadWritePath:
        """The path that decoding takes, for all target tokens at once."""
        raise NotImplementedError

    def query(self, hidden_states: Tensor) -> Tensor | None:
        """What the next target token asks the source with; a fixed policy asks nothing."""
        return None

    def key(self, encoder_hidden_states: Tensor) -> Tensor | None:
        return None

    def live_stop(
        self,
        query: Tensor | None,
        key: Tensor | None,
        start: int,
        previous: Tensor,
        written: Sequence[int],
        dials: Sequence[Dials],
    ) -> Tensor:
        """Where each head stops for the next target token of each stream, as far as the source tokens from `start` on
        tell.

        Args:
            query (`torch.Tensor` of shape `(batch, head, 1, dim)`, *optional*): From `query`.
            key (`torch.Tensor` of shape `(batch, head, source, dim)`, *optional*): Of the tokens from `start` on.
            previous (`torch.LongTensor` of shape `(batch, head or 1, 1)`): The stops of the token before.
            written (`Sequence[int]`): Target tokens written so far, in each stream.
            dials (`Sequence[Dials]`): Of each stream.

        Returns:
            `torch.LongTensor` like `previous`; a position that has not arrived yet (or `NOWHERE`) means READ.
        """
        raise NotImplementedError


class FixedPolicy(Policy):
    """A policy that needs only to count. Its expected path is its hard path."""

    def reads(self, target_position: int, dials: Dials) -> int:
        """Source tokens read before a target token, both counted from 0; more than there are means all."""
        raise NotImplementedError

    def hard_path(self, hidden_states, encoder_hidden_states, source_mask, dials) -> ReadWritePath:
        batch, columns, _ = encoder_hidden_states.shape
        stops = []
        for position in range(hidden_states.shape[1]):
            low, high = dials.limits(position)
            stops.append(min(max(self.reads(position, dials) - 1, low), high, columns - 1))
        stop = torch.tensor(stops, device=encoder_hidden_states.device).expand(batch, 1, -1)
        if source_mask is not None:
            stop = torch.minimum(stop, last_source_position(source_mask)[:, None, None])
        return ReadWritePath(source_mask, stop=stop)

    expected_path = hard_path

    def live_stop(self, query, key, start, previous, written, dials) -> Tensor:
        stops = [self.reads(position, its_dials) - 1 for position, its_dials in zip(written, dials)]
        return torch.tensor(stops, device=previous.device)[:, None, None]


@register_policy("offline")
class Offline(FixedPolicy):
    """Reads all, then writes."""

    description = "A full-sentence translation model: it reads all before it writes."
    reads_everything = True
    dials = ()

    def reads(self, target_position, dials):
        return NOWHERE


@register_policy("wait_k")
class WaitK(FixedPolicy):
    """`g_i = min(k + i - 1, J)`: k tokens first, then one for one (Ma et al., 2019)."""

    description = "A simultaneous translation model with the wait-k policy."
    dials = ("min_lag", "max_lag", "wait_k")

    def __init__(self, config):
        super().__init__(config)
        self.k = config.wait_k

    def reads(self, target_position, dials):
        return target_position + (dials.wait_k or self.k)


@register_policy("static_rw")
class StaticRW(FixedPolicy):
    """Reads `start` tokens, then writes `turn` and reads `turn`, in turns (STATIC-RW of Dalvi et al., 2018)."""

    description = "A simultaneous translation model with the STATIC-RW policy: it writes and reads in fixed turns."
    settings: ClassVar[dict[str, int]] = {"start": 4, "turn": 2}

    def __init__(self, config):
        super().__init__(config)
        settings = self.settings | (config.policy_settings or {})
        self.start, self.turn = settings["start"], settings["turn"]

    @classmethod
    def check_settings(cls, settings):
        for name, value in settings.items():
            if name not in cls.settings or not isinstance(value, int) or value < 1:
                raise ValueError(f"The static_rw policy has `start` and `turn`, at least 1, not {name} = {value}.")

    def reads(self, target_position, dials):
        return self.start + self.turn * (target_position // self.turn)


class LearnedPolicy(Policy):
    """Monotonic attention (eq. 2): each head learns where to stop reading."""

    is_learned = True
    dials = ("write_threshold", "min_lag", "max_lag")

    def __init__(self, config):
        super().__init__(config)
        self.head_dim = config.d_model // config.decoder_attention_heads
        self.noise_std = config.noise_std
        self.q_proj = nn.Linear(config.d_model, config.d_model)
        self.k_proj = nn.Linear(config.d_model, config.d_model)
        self.initial_bias = config.energy_bias
        self.energy_bias = None if config.energy_bias is None else nn.Parameter(torch.empty(1))

    def query(self, hidden_states: Tensor) -> Tensor:
        return self._heads(self.q_proj(hidden_states) * self.head_dim**-0.5)

    def key(self, encoder_hidden_states: Tensor) -> Tensor:
        return self._heads(self.k_proj(encoder_hidden_states))

    def _heads(self, states: Tensor) -> Tensor:
        return states.view(*states.shape[:2], -1, self.head_dim).transpose(1, 2)  # batch, head, token, dim

    def selection_probability(self, query: Tensor, key: Tensor, noise: bool = False) -> Tensor:
        """`sigmoid(<Q s_i, K m_j> / sqrt(d_head) + b + noise)`, in float32 whatever the model's precision."""
        with maybe_autocast(query.device.type, enabled=False):
            energies = full_precision(query) @ full_precision(key).transpose(2, 3)
            if self.energy_bias is not None:
                energies = energies + self.energy_bias.to(energies.dtype)
        if noise and self.noise_std:
            energies = torch.add(energies, torch.randn_like(energies), alpha=self.noise_std)
        return energies.sigmoid()  # batch, head, target, source

    def probabilities(self, hidden_states, encoder_hidden_states, source_mask, noise: bool) -> Tensor:
        p = self.selection_probability(self.query(hidden_states), self.key(encoder_hidden_states), noise)
        return p if source_mask is None else p * source_mask[:, None, None, :]

    def expected_path(self, hidden_states, encoder_hidden_states, source_mask, dials) -> ReadWritePath:
        p = self.probabilities(hidden_states, encoder_hidden_states, source_mask, noise=self.training)
        return ReadWritePath(source_mask, alpha=expected_alignment(p, source_mask), selection_probability=p)

    def hard_path(self, hidden_states, encoder_hidden_states, source_mask, dials) -> ReadWritePath:
        """Free of noise: the decisions that decoding would make. No gradient flows through them."""
        p = self.probabilities(hidden_states, encoder_hidden_states, source_mask, noise=False)
        stop = hard_path(p, source_mask, dials.write_threshold, dials.min_lag, dials.max_lag)
        return ReadWritePath(source_mask, stop=stop, selection_probability=p)

    def live_stop(self, query, key, start, previous, written, dials) -> Tensor:
        p = self.selection_probability(query, key).squeeze(2)  # batch, head, source
        thresholds = {its_dials.write_threshold for its_dials in dials}
        threshold = thresholds.pop()
        if thresholds:  # the streams differ
            threshold = p.new_tensor([its_dials.write_threshold for its_dials in dials])[:, None, None]
        return first_stop(p >= threshold, previous, start)


@register_policy("mma")
class MMA(LearnedPolicy):
    """Monotonic multi-head attention: every head of every decoder layer decides (Ma et al., 2020)."""

    description = "A simultaneous translation model with monotonic multi-head attention (MMA)."
    decides_in_each_layer = True


@register_policy("shared_path")
class SharedPath(LearnedPolicy):
    """The heads of the first decoder layer decide for all layers: one path in a direction (section 3.1)."""

    description = "A simultaneous translation model whose decoder layers share one learned READ/WRITE path."
