"""The step of simultaneous decoding: READ or WRITE.

`Decoding.write` is a generator that yields whenever the policy wants another source token, and so resumes exactly
where it waited, in whichever layer that was. Nothing is computed twice: each source token passes the encoder once,
each target token the decoder once, and a READ costs one row of selection energies.
"""

from collections.abc import Generator
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import GenerationConfig


NOWHERE = torch.iinfo(torch.long).max  # a head that has not stopped yet


@dataclass
class Dials:
    """Latency dials that need no retraining. Each can be saved in a `GenerationConfig`.

    Args:
        write_threshold (`float`, *optional*, defaults to 0.5):
            A head stops where its selection probability reaches this; lower writes earlier.
        min_lag (`int`, *optional*): Target token i is not written before `i - 1 + min_lag` source tokens are read.
        max_lag (`int`, *optional*): Target token i is written at the latest when `i - 1 + max_lag` are read.
        wait_k (`int`, *optional*): Another k for a wait-k model.
    """

    write_threshold: float = 0.5
    min_lag: int | None = None
    max_lag: int | None = None
    wait_k: int | None = None

    def __post_init__(self):
        if not 0 < self.write_threshold <= 1:
            raise ValueError(f"`write_threshold` lies in (0, 1], not at {self.write_threshold}.")
        for name in ("min_lag", "max_lag", "wait_k"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` is a number of source tokens, at least 1, not {value}.")
        if self.min_lag and self.max_lag and self.min_lag > self.max_lag:
            raise ValueError(f"`min_lag` ({self.min_lag}) is larger than `max_lag` ({self.max_lag}).")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    @classmethod
    def from_config(cls, config: GenerationConfig) -> "Dials":
        saved = config.to_dict()
        return cls(**{name: saved[name] for name in cls.names() if saved.get(name) is not None})


class TokenLayer:
    """A layer that gets its tokens one at a time, and remembers their keys and values.

    It computes what the layer's modules do, with fewer and larger operations: for one token the time goes into calls.
    """

    def __init__(self, layer):
        attention = layer.self_attn
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        self.weight = torch.cat([projection.weight for projection in projections])
        self.bias = torch.cat([projection.bias for projection in projections])
        self.head_dim = attention.head_dim
        self.out_proj, self.norm = attention.out_proj, layer.self_attn_layer_norm
        self.feed_forward = layer.feed_forward
        self.memory: Tensor | None = None  # batch, key and value, head, token, dim

    def attend_to_self(self, hidden_states: Tensor) -> Tensor:
        projected = linear(hidden_states, self.weight, self.bias)
        query, new = projected.view(len(projected), 3, -1, 1, self.head_dim).tensor_split((1,), 1)
        self.memory = new if self.memory is None else torch.cat([self.memory, new], 3)
        output = scaled_dot_product_attention(query[:, 0], self.memory[:, 0], self.memory[:, 1])
        return self.norm(hidden_states + self.out_proj(output.view(hidden_states.shape)))


class TokenDecoderLayer(TokenLayer):
    """The same with attention over the source, whose keys and values are added as it is read."""

    def __init__(self, layer):
        super().__init__(layer)
        attention = layer.encoder_attn
        projections = (attention.k_proj, attention.v_proj) if attention.is_soft else (attention.v_proj,)
        self.source_weight = torch.cat([projection.weight for projection in projections])
        self.source_bias = torch.cat([projection.bias for projection in projections])
        self.attention, self.source_norm = attention, layer.encoder_attn_layer_norm
        self.source_memory: Tensor | None = None  # batch, key and value, head, source, dim
        self.policy = layer.policy
        self.policy_memory: Tensor | None = None  # batch, head, source, dim
        self.stop: Tensor | None = None  # batch, head, 1

    def attend_to_source(self, hidden_states: Tensor, encoder_states: Tensor, visible: Tensor) -> Tensor:
        known = 0 if self.source_memory is None else self.source_memory.shape[3]
        if known < encoder_states.shape[1]:
            new = linear(encoder_states[:, known:], self.source_weight, self.source_bias)
            new = new.unflatten(-1, (1 + self.attention.is_soft, -1, self.head_dim)).permute(0, 2, 3, 1, 4)
            self.source_memory = new if self.source_memory is None else torch.cat([self.source_memory, new], 3)
        value = self.source_memory[:, -1]
        if self.attention.is_soft:
            query = self.attention.q_proj(hidden_states).view(len(hidden_states), -1, 1, self.head_dim)
            output = scaled_dot_product_attention(query, self.source_memory[:, 0], value, visible)
        else:
            output = visible.to(value.dtype) @ value
        return self.source_norm(hidden_states + self.attention.out_proj(output.view(hidden_states.shape)))

    def policy_keys(self, encoder_states: Tensor) -> Tensor:
        known = 0 if self.policy_memory is None else self.policy_memory.shape[2]
        if known < encoder_states.shape[1]:
            new = self.policy.key(encoder_states[:, known:])
            self.policy_memory = new if known == 0 else torch.cat([self.policy_memory, new], 2)
        return self.policy_memory


class Decoding:
    """The state of a running translation of one batch, and the step that advances it."""

    def __init__(self, model, dials: Dials, batch_size: int = 1):
        if dials.wait_k is not None and model.config.policy != "wait_k":
            raise ValueError(f"`wait_k` is a dial of wait-k models; this one's policy is {model.config.policy}.")
        self.model = model
        self.dials = dials
        self.encoder, self.decoder = model.model.encoder, model.model.decoder
        self.encoder_layers = [TokenLayer(layer) for layer in self.encoder.layers]
        self.decoder_layers = [TokenDecoderLayer(layer) for layer in self.decoder.layers]
        self.encoder_states = torch.empty(batch_size, 0, model.config.d_model, dtype=model.dtype, device=model.device)
        self.last: Tensor | None = None  # last source position of each sentence, known once the source has ended
        self.written = 0

    # Reading

    def read(self, token: int):
        """One more source token of an open stream."""
        ids = torch.tensor([[token]], device=self.encoder_states.device)
        hidden_states = self.encoder.embed(ids, self.available)
        for layer in self.encoder_layers:
            hidden_states = layer.feed_forward(layer.attend_to_self(hidden_states))
        self.encoder_states = torch.cat([self.encoder_states, hidden_states], 1)

    def read_all(self, input_ids: Tensor, attention_mask: Tensor):
        """Whole sources, right-padded: the encoder is causal, so these are the states reading one by one gives."""
        self.encoder_states = self.encoder(input_ids, attention_mask).last_hidden_state
        self.end_source(attention_mask.long().sum(-1) - 1)

    def end_source(self, last: Tensor):
        self.last = last[:, None, None]  # batch, 1, 1

    @property
    def available(self) -> int:
        return self.encoder_states.shape[1]

    # Writing

    def write(self, tokens: Tensor) -> Generator[None, None, Tensor]:
        """Takes the last target token `(batch, 1)`, yields for each READ it needs, returns the next token's logits."""
        hidden_states = self.decoder.embed(tokens, self.written)
        visible = None
        if self.model.config.policy == "wait_k":
            visible = self.visible((yield from self.fixed_stop()))
        for layer in self.decoder_layers:
            hidden_states = layer.attend_to_self(hidden_states)
            if layer.policy is not None:
                visible = self.visible((yield from self.adaptive_stop(layer, hidden_states)))
            hidden_states = layer.attend_to_source(hidden_states, self.encoder_states, visible)
            hidden_states = layer.feed_forward(hidden_states)
        self.written += 1
        return self.model.lm_logits(hidden_states)[:, -1]

    def fixed_stop(self) -> Generator[None, None, Tensor]:
        """`g_i = min(k + i - 1, J)`, within the lags."""
        low, high = self.lag_limits()
        k = self.dials.wait_k or self.model.config.wait_k
        position = min(max(self.written + k - 1, low), high)
        while self.last is None and self.available <= position:
            yield
        stop = torch.full((self.encoder_states.shape[0], 1, 1), position, device=self.encoder_states.device)
        self.decoder_layers[0].stop = self.cap(stop)
        return self.decoder_layers[0].stop

    def adaptive_stop(self, layer: TokenDecoderLayer, hidden_states: Tensor) -> Generator[None, None, Tensor]:
        """Each head goes from its last stop to the first token whose selection probability reaches the threshold."""
        low, high = self.lag_limits()
        query = layer.policy.query(hidden_states)
        batch, heads = query.shape[:2]
        if layer.stop is None:
            layer.stop = torch.zeros(batch, heads, 1, dtype=torch.long, device=query.device)
        start = 0 if batch > 1 else int(layer.stop.min())  # nothing before every head's stop is looked at again
        stop = torch.full_like(layer.stop, NOWHERE)
        while True:
            if self.available > start:
                columns = torch.arange(start, self.available, device=query.device)
                keys = layer.policy_keys(self.encoder_states)[:, :, start:]
                p = layer.policy.selection_probability(query, keys).squeeze(2)  # batch, head, source
                hits = (p >= self.dials.write_threshold) & (columns >= layer.stop)
                stop = torch.minimum(stop, torch.where(hits, columns, NOWHERE).amin(-1, keepdim=True))
            if self.last is not None or self.available > (low if bool((stop < NOWHERE).all()) else high):
                break
            start = self.available
            yield
        layer.stop = self.cap(stop.clamp(low, high))
        return layer.stop

    def visible(self, stop: Tensor) -> Tensor:
        """The source tokens that each head attends to: those up to its stop, or with hard alignment the stop alone."""
        positions = torch.arange(self.available, device=stop.device)
        is_soft = self.model.config.monotonic_attention == "infinite_lookback"
        return positions <= stop[..., None] if is_soft else positions == stop[..., None]  # batch, head, 1, source

    def lag_limits(self) -> tuple[int, int]:
        """Earliest and latest source position at which the next target token may be written."""
        low = self.written + self.dials.min_lag - 1 if self.dials.min_lag else 0
        high = self.written + self.dials.max_lag - 1 if self.dials.max_lag else NOWHERE - 1
        return low, high

    def cap(self, stop: Tensor) -> Tensor:
        return stop if self.last is None else torch.minimum(stop, self.last)

    def head_stops(self) -> Tensor:
        """Where the heads stopped for the token just written: batch, layer, head."""
        return torch.cat([layer.stop for layer in self.decoder_layers if layer.stop is not None], 2).transpose(1, 2)
