"""The step of simultaneous decoding: READ or WRITE.

`Decoding.write` is a generator that yields whenever the policy wants another source token, and so resumes exactly
where it waited, in whichever layer that was. Nothing is computed twice: each source token passes the encoder once,
each target token the decoder once, and a READ costs one row of selection energies.
"""

from collections.abc import Generator

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from .monotonic_attention import NOWHERE
from .policies_dualpath import Dials


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

    def policy_keys(self, encoder_states: Tensor, start: int) -> Tensor | None:
        """What the policy sees of the source from a position on; a fixed one sees nothing."""
        known = 0 if self.policy_memory is None else self.policy_memory.shape[2]
        if self.policy.is_learned and known < encoder_states.shape[1]:
            new = self.policy.key(encoder_states[:, known:])
            self.policy_memory = new if known == 0 else torch.cat([self.policy_memory, new], 2)
        return None if self.policy_memory is None else self.policy_memory[:, :, start:]


class Decoding:
    """The state of a running translation of one batch, and the step that advances it."""

    def __init__(self, model, dials: Dials, batch_size: int = 1):
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
        for layer in self.decoder_layers:
            hidden_states = layer.attend_to_self(hidden_states)
            if layer.policy is not None:
                visible = self.visible((yield from self.decide(layer, hidden_states)))
            hidden_states = layer.attend_to_source(hidden_states, self.encoder_states, visible)
            hidden_states = layer.feed_forward(hidden_states)
        self.written += 1
        return self.model.lm_logits(hidden_states)[:, -1]

    def decide(self, layer: TokenDecoderLayer, hidden_states: Tensor) -> Generator[None, None, Tensor]:
        """Where the layer's heads stop for the next target token, within the lags."""
        low, high = self.dials.limits(self.written)
        query = layer.policy.query(hidden_states)
        batch, heads = (len(hidden_states), 1) if query is None else query.shape[:2]
        if layer.stop is None:
            layer.stop = torch.zeros(batch, heads, 1, dtype=torch.long, device=hidden_states.device)
        start = 0 if batch > 1 else int(layer.stop.min())  # nothing before every head's stop is looked at again
        stop = torch.full_like(layer.stop, NOWHERE)
        while True:
            if self.available > start:
                keys = layer.policy_keys(self.encoder_states, start)
                found = layer.policy.live_stop(query, keys, start, layer.stop, self.written, self.dials)
                stop = torch.minimum(stop, found)
            decided = bool((stop < self.available).all())
            if self.last is not None or self.available > (low if decided else high):
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

    def cap(self, stop: Tensor) -> Tensor:
        return stop if self.last is None else torch.minimum(stop, self.last)

    def head_stops(self) -> Tensor:
        """Where the heads stopped for the token just written: batch, layer, head."""
        return torch.cat([layer.stop for layer in self.decoder_layers if layer.stop is not None], 2).transpose(1, 2)
