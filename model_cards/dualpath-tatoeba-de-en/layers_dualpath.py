"""The parts of the models: positions, attention along a path, and the layers.

Parameter names and arithmetic follow transformers' Marian.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bart.modeling_bart import eager_attention_forward

from .configuration_dualpath import SiMTConfig
from .monotonic_attention import expected_attention, full_precision
from .policies_dualpath import POLICIES, Dials, ReadWritePath


class SinusoidalPositions(nn.Module):
    """A fixed table of sines and cosines, in the manner of Marian or of fairseq."""

    def __init__(self, config: SiMTConfig):
        super().__init__()
        self.kind = config.position_embedding
        self.first_position = 0 if self.kind == "marian" else config.pad_token_id + 1
        self.weight = nn.Buffer(torch.empty(config.max_position_embeddings, config.d_model), persistent=False)

    def create_weight(self) -> Tensor:
        count, dim = self.weight.shape
        if self.kind == "marian":
            frequencies = np.power(10000.0, -2 * np.arange(dim // 2) / dim)
            angles = torch.from_numpy(np.outer(np.arange(count), frequencies))
        else:
            frequencies = torch.exp(torch.arange(dim // 2).float() * -(math.log(10000) / (dim // 2 - 1)))
            angles = torch.arange(self.first_position, self.first_position + count).float()[:, None] * frequencies
        return torch.cat([angles.sin(), angles.cos()], -1).float()

    def forward(self, start: int, length: int) -> Tensor:
        if start + length > self.weight.shape[0]:
            raise ValueError(
                f"The sequence has {start + length} tokens, more than the model's limit `max_position_embeddings` = "
                f"{self.weight.shape[0]}."
            )
        return self.weight[start : start + length]


def dropout(states: Tensor, p: float, training: bool) -> Tensor:
    """Dropout that draws four decisions from one random number on CPU, where drawing takes a fifth of a small step."""
    if not training or not p:
        return states
    if not states.is_cpu:
        return nn.functional.dropout(states, p)
    words = torch.empty((states.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    keep = words.view(torch.int16)[: states.numel()].view(states.shape) >= round(p * 2**16) - 2**15
    return states * keep.to(states.dtype).div_(1 - p)


def split_heads(states: Tensor, head_dim: int) -> Tensor:
    return states.unflatten(-1, (-1, head_dim)).transpose(1, 2)  # batch, head, token, dim


class SiMTSelfAttention(nn.Module):
    """Self-attention of the encoder and the decoder, through the library's attention functions."""

    def __init__(self, config: SiMTConfig, heads: int, is_causal: bool, layer_idx: int):
        super().__init__()
        self.config = config
        self.head_dim = config.d_model // heads
        self.scaling = self.head_dim**-0.5
        self.dropout = config.attention_dropout
        self.is_causal = is_causal
        self.layer_idx = layer_idx
        self.k_proj = nn.Linear(config.d_model, config.d_model)
        self.v_proj = nn.Linear(config.d_model, config.d_model)
        self.q_proj = nn.Linear(config.d_model, config.d_model)
        self.out_proj = nn.Linear(config.d_model, config.d_model)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs,
    ) -> tuple[Tensor, Tensor | None]:
        query = split_heads(self.q_proj(hidden_states), self.head_dim)
        key = split_heads(self.k_proj(hidden_states), self.head_dim)
        value = split_heads(self.v_proj(hidden_states), self.head_dim)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        dropout = self.dropout if self.training else 0.0
        output, weights = attend(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        return self.out_proj(output.flatten(-2)), weights


class PathAttention(nn.Module):
    """Attention over the source as far as the path allows."""

    def __init__(self, config: SiMTConfig, layer_idx: int):
        super().__init__()
        self.head_dim = config.d_model // config.decoder_attention_heads
        self.dropout = config.attention_dropout
        self.layer_idx = layer_idx
        self.is_soft = config.monotonic_attention == "infinite_lookback"
        if self.is_soft:
            self.k_proj = nn.Linear(config.d_model, config.d_model)
            self.q_proj = nn.Linear(config.d_model, config.d_model)
        self.v_proj = nn.Linear(config.d_model, config.d_model)
        self.out_proj = nn.Linear(config.d_model, config.d_model)

    def keys_and_values(self, encoder_hidden_states: Tensor, cache: Cache | None) -> tuple[Tensor, Tensor]:
        """Keys and values of the source. Those of a causal encoder never change: only new states are projected."""
        known = 0 if cache is None else cache.get_seq_length(self.layer_idx)
        new_states = encoder_hidden_states[:, known:]
        if cache is not None and new_states.shape[1] == 0:
            return cache.layers[self.layer_idx].keys, cache.layers[self.layer_idx].values
        value = split_heads(self.v_proj(new_states), self.head_dim)
        key = split_heads(self.k_proj(new_states), self.head_dim) if self.is_soft else value
        return (key, value) if cache is None else cache.update(key, value, self.layer_idx)

    def forward(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor, path: ReadWritePath, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor]:
        key, value = self.keys_and_values(encoder_hidden_states, cache)
        if self.is_soft:
            query = split_heads(self.q_proj(hidden_states), self.head_dim)
            weights = self.attention_weights(query * self.head_dim**-0.5 @ key.transpose(2, 3), path)
        else:
            weights = path.writing_probability(key.shape[2])
        weights = weights.to(value.dtype)
        output = dropout(weights, self.dropout, self.training) @ value
        return self.out_proj(output.transpose(1, 2).flatten(-2)), weights

    @staticmethod
    def attention_weights(energies: Tensor, path: ReadWritePath) -> Tensor:
        if path.alpha is not None:
            return expected_attention(path.alpha, energies, path.source_mask)
        energies = energies.masked_fill(~path.allowed(energies.shape[-1]), -torch.inf)
        return full_precision(energies).softmax(-1)


class SiMTEncoderLayer(GradientCheckpointingLayer):
    """Self-attention, then two linear maps, each added to its input and normalised (post-norm, as in Marian)."""

    def __init__(self, config: SiMTConfig, heads: int, ffn_dim: int, is_causal: bool, layer_idx: int):
        super().__init__()
        self.dropout = config.dropout
        self.activation_dropout = config.activation_dropout
        self.activation_fn = ACT2FN[config.activation_function]
        self.self_attn = SiMTSelfAttention(config, heads, is_causal, layer_idx)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.fc1 = nn.Linear(config.d_model, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model)

    def add(self, residual: Tensor, update: Tensor) -> Tensor:
        return residual + dropout(update, self.dropout, self.training)

    def attend_to_self(self, hidden_states: Tensor, attention_mask: Tensor | None, **kwargs) -> Tensor:
        update, _ = self.self_attn(hidden_states, attention_mask, **kwargs)
        return self.self_attn_layer_norm(self.add(hidden_states, update))

    def feed_forward(self, hidden_states: Tensor) -> Tensor:
        update = self.activation_fn(self.fc1(hidden_states))
        update = self.fc2(dropout(update, self.activation_dropout, self.training))
        return self.final_layer_norm(self.add(hidden_states, update))

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs) -> Tensor:
        return self.feed_forward(self.attend_to_self(hidden_states, attention_mask, **kwargs))


class SiMTDecoderLayer(SiMTEncoderLayer):
    """A layer with attention over the source in between. A layer with a policy makes the path, the others follow."""

    def __init__(self, config: SiMTConfig, layer_idx: int):
        super().__init__(config, config.decoder_attention_heads, config.decoder_ffn_dim, True, layer_idx)
        policy = POLICIES[config.policy]
        self.policy = policy(config) if layer_idx == 0 or policy.decides_in_each_layer else None
        self.encoder_attn = PathAttention(config, layer_idx)
        self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model)

    def attend_to_source(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor, path: ReadWritePath, cache: Cache | None = None
    ) -> Tensor:
        update, _ = self.encoder_attn(hidden_states, encoder_hidden_states, path, cache)
        return self.encoder_attn_layer_norm(self.add(hidden_states, update))

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        path: ReadWritePath,
        attention_mask: Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        kind: str = "hard",
        dials: Dials | None = None,
        **kwargs,
    ) -> tuple[Tensor, ReadWritePath]:
        self_cache = None if past_key_values is None else past_key_values.self_attention_cache
        cross_cache = None if past_key_values is None else past_key_values.cross_attention_cache
        hidden_states = self.attend_to_self(hidden_states, attention_mask, past_key_values=self_cache, **kwargs)
        if self.policy is not None:
            path = self.policy(hidden_states, encoder_hidden_states, path.source_mask, kind, dials or Dials())
        hidden_states = self.attend_to_source(hidden_states, encoder_hidden_states, path, cross_cache)
        return self.feed_forward(hidden_states), path
