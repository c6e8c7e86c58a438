"""Configurations: one direction (`SiMTConfig`) and two directions joined (`DualPathConfig`)."""

import math
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.activations import ACT2FN

from .policies_dualpath import POLICIES, Policy


ATTENTIONS = ("infinite_lookback", "hard_aligned")
COUNTS = (
    "vocab_size",
    "decoder_vocab_size",
    "max_position_embeddings",
    "d_model",
    "encoder_layers",
    "encoder_ffn_dim",
    "encoder_attention_heads",
    "decoder_layers",
    "decoder_ffn_dim",
    "decoder_attention_heads",
    "wait_k",
)
POSITIONS = ("marian", "fairseq")
# Larger ones are mistakes, and would fill the memory before anything else could say so.
LARGEST, MOST_LAYERS = 1_000_000, 1000


def _register_models():
    """The models make themselves known to the Auto classes when they are imported: now, since there is a configuration
    to make one from. Not earlier, because transformers may still be importing itself when it meets this file."""
    from .modeling_dualpath import SiMTModel  # noqa: F401


def _check_labels(num_labels: int = 2, **_):
    """A translator has no labels, but the library would make a table of that many."""
    if num_labels > LARGEST:
        raise ValueError(f"`num_labels` is a number of at most {LARGEST}, not {num_labels}.")


@strict
class SiMTConfig(PreTrainedConfig):
    r"""
    Configuration of one translation direction. Field names follow `MarianConfig`; these are our own:

    policy (`str`, *optional*, defaults to `"shared_path"`):
        How READ and WRITE are decided: `"offline"` (read all, then write), `"wait_k"` and `"static_rw"` (fixed),
        `"mma"` (every head of every decoder layer decides), `"shared_path"` (the first decoder layer's heads decide
        for all layers), or another that was registered with `register_policy`.
    policy_settings (`dict`, *optional*):
        Settings of that policy, such as `{"start": 4, "turn": 2}` for `"static_rw"`.
    monotonic_attention (`str`, *optional*, defaults to `"infinite_lookback"`):
        What a learned policy attends to: everything up to its stop, or only the stop itself (`"hard_aligned"`).
    wait_k (`int`, *optional*, defaults to 3):
        The lag of the wait-k policy.
    noise_std (`float`, *optional*, defaults to 1.5):
        Standard deviation of the noise added to the selection energies in training, which drives them apart.
    energy_bias (`float`, *optional*):
        Initial value of a learned bias on the selection energies; `None` for no bias.
    final_logits_bias (`bool`, *optional*, defaults to `False`):
        Whether a fixed bias is added to the logits, as in converted Marian checkpoints.
    causal_encoder (`bool`, *optional*):
        Whether a source token sees only the ones before it. Defaults to True for all policies but `"offline"`.
    position_embedding (`str`, *optional*, defaults to `"marian"`):
        Which table of sinusoids: `"marian"` or `"fairseq"`.

    ```python
    >>> from hf_dualpath import SiMTConfig, SiMTForConditionalGeneration

    >>> config = SiMTConfig(vocab_size=100, d_model=32, policy="wait_k", wait_k=5)
    >>> model = SiMTForConditionalGeneration(config)
    ```
    """

    model_type = "simt"
    keys_to_ignore_at_inference = ["past_key_values"]
    attribute_map = {
        "num_attention_heads": "encoder_attention_heads",
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
    }

    vocab_size: int = 32000
    decoder_vocab_size: int | None = None
    max_position_embeddings: int = 1024
    d_model: int = 512
    encoder_layers: int = 6
    encoder_ffn_dim: int = 1024
    encoder_attention_heads: int = 4
    decoder_layers: int = 6
    decoder_ffn_dim: int = 1024
    decoder_attention_heads: int = 4
    activation_function: str = "relu"
    dropout: float | int = 0.3
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    scale_embedding: bool = True
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    use_cache: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 1
    bos_token_id: int | None = None
    decoder_start_token_id: int = 0

    source_language: str | None = None
    target_language: str | None = None
    policy: str = "shared_path"
    policy_settings: dict[str, Any] | None = None
    monotonic_attention: str = "infinite_lookback"
    wait_k: int = 3
    noise_std: float | int = 1.5
    energy_bias: float | int | None = None
    causal_encoder: bool | None = None
    position_embedding: str = "marian"
    final_logits_bias: bool = False

    def __post_init__(self, **kwargs):
        _register_models()
        _check_labels(**kwargs)
        self.decoder_vocab_size = self.decoder_vocab_size or self.vocab_size
        if self.causal_encoder is None and self.policy in POLICIES:
            self.causal_encoder = not self.policy_class.reads_everything
        super().__post_init__(**kwargs)

    @property
    def policy_class(self) -> type[Policy]:
        """The class of the policy, which says what kind it is."""
        return POLICIES[self.policy]

    @property
    def direction(self) -> str:
        """Such as `"de-en"`."""
        return f"{self.source_language}-{self.target_language}"

    @property
    def end_tokens(self) -> list[int]:
        return list(self.eos_token_id) if isinstance(self.eos_token_id, (list, tuple)) else [self.eos_token_id]

    def validate_architecture(self):
        """Part of `@strict`-powered validation."""
        for name, value, allowed in (
            ("policy", self.policy, POLICIES),
            ("activation_function", self.activation_function, ACT2FN),
            ("monotonic_attention", self.monotonic_attention, ATTENTIONS),
            ("position_embedding", self.position_embedding, POSITIONS),
        ):
            if value not in allowed:
                raise ValueError(f"`{name}` is one of {', '.join(allowed)}, not {value!r}.")
        if self.model_type != type(self).model_type:
            raise ValueError(f"`model_type` of a direction is {type(self).model_type!r}, not {self.model_type!r}.")
        if not isinstance(self.dtype, (str, torch.dtype, type(None))):
            raise ValueError(f"`dtype` is a type such as 'float32', not {self.dtype!r}.")
        self.policy_class.check_settings(self.policy_settings or {})
        self._validate_numbers()
        for side in ("encoder", "decoder"):
            heads = getattr(self, f"{side}_attention_heads")
            if self.d_model % heads:
                raise ValueError(
                    f"`d_model` ({self.d_model}) must be a multiple of `{side}_attention_heads` ({heads})."
                )
        if self.d_model % 2:
            raise ValueError(f"`d_model` ({self.d_model}) must be even: its positions are pairs of sines and cosines.")
        if not self.policy_class.reads_everything and not self.causal_encoder:
            raise ValueError(
                f"The {self.policy} policy reads the source as it arrives and needs `causal_encoder=True`; "
                "only the offline policy may look ahead."
            )
        if self.monotonic_attention == "hard_aligned" and not self.policy_class.is_learned:
            raise ValueError(f"`hard_aligned` attention needs a learned policy, not {self.policy}.")
        if self.share_encoder_decoder_embeddings and not self.tie_word_embeddings:
            raise ValueError(
                "`share_encoder_decoder_embeddings=True` ties the output too: set `tie_word_embeddings=True`."
            )
        if self.share_encoder_decoder_embeddings and self.vocab_size != self.decoder_vocab_size:
            raise ValueError(
                f"The two sides have vocabularies of {self.vocab_size} and {self.decoder_vocab_size} tokens "
                "and cannot share one table: set `share_encoder_decoder_embeddings=False`."
            )

    def _validate_numbers(self):
        """Sizes that exist, probabilities that are some, and token ids that are in the vocabulary."""
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` is a number of at least 1, not {getattr(self, name)}.")
            largest = MOST_LAYERS if name.endswith("_layers") else LARGEST
            if getattr(self, name) > largest:
                raise ValueError(f"`{name}` is a number of at most {largest}, not {getattr(self, name)}.")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`{name}` is a probability below 1, not {getattr(self, name)}.")
        if not 0 <= self.noise_std < math.inf:
            raise ValueError(f"`noise_std` is a standard deviation, at least 0, not {self.noise_std}.")
        if self.energy_bias is not None and not math.isfinite(self.energy_bias):
            raise ValueError(f"`energy_bias` is a number, not {self.energy_bias}.")
        smaller = min(self.vocab_size, self.decoder_vocab_size)
        for name, ids in (
            ("pad_token_id", [self.pad_token_id]),
            ("eos_token_id", self.end_tokens),
            ("decoder_start_token_id", [self.decoder_start_token_id]),
        ):
            if not ids or any(index is None or not 0 <= index < smaller for index in ids):
                raise ValueError(f"`{name}` must be a token of the vocabulary (below {smaller}), not {ids}.")
        if self.pad_token_id in self.end_tokens:
            raise ValueError(
                "`pad_token_id` and `eos_token_id` are the same: such a model could never end a sentence."
            )


@strict
class DualPathConfig(PreTrainedConfig):
    r"""
    Configuration of a forward and a backward direction trained together.

    Args:
        forward_config ([`SiMTConfig`] or `dict`, *optional*):
            The direction from `source_language` to `target_language`.
        backward_config ([`SiMTConfig`] or `dict`, *optional*):
            The other direction. By default the forward one with its vocabularies swapped.
        source_language, target_language (`str`, *optional*):
            Names of the two languages, by default the forward configuration's; `"de"` and `"en"` give the directions
            `"de-en"` and `"en-de"`.
        share_embeddings (`bool`, *optional*):
            Whether both directions use one embedding table. Defaults to True where the vocabulary is joint.
    """

    model_type = "dual_path"
    sub_configs = {"forward_config": SiMTConfig, "backward_config": SiMTConfig}

    forward_config: SiMTConfig | dict[str, Any] | None = None
    backward_config: SiMTConfig | dict[str, Any] | None = None
    source_language: str | None = None
    target_language: str | None = None
    share_embeddings: bool | None = None
    tie_word_embeddings: bool = True  # what each direction ties is up to its own configuration
    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs):
        _check_labels(**kwargs)
        if not isinstance(self.forward_config, SiMTConfig):
            self.forward_config = SiMTConfig(**(self.forward_config or {}))
        self.source_language = self.source_language or self.forward_config.source_language or "source"
        self.target_language = self.target_language or self.forward_config.target_language or "target"
        if self.backward_config is None:
            self.backward_config = {
                **self.forward_config.to_dict(),
                "vocab_size": self.forward_config.decoder_vocab_size,
                "decoder_vocab_size": self.forward_config.vocab_size,
            }
        elif self.backward_config is self.forward_config:
            self.backward_config = self.forward_config.to_dict()
        if not isinstance(self.backward_config, SiMTConfig):
            self.backward_config = SiMTConfig(**self.backward_config)
        languages = self.source_language, self.target_language
        for config, (source, target) in ((self.forward_config, languages), (self.backward_config, languages[::-1])):
            config.source_language, config.target_language = source, target
        if self.share_embeddings is None:
            self.share_embeddings = self._can_share_embeddings
        # Both directions end, pad and start alike, and the library looks these up on the outer configuration.
        for name in ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"):
            kwargs[name] = getattr(self.forward_config, name)
        super().__post_init__(**kwargs)

    @property
    def directions(self) -> tuple[str, str]:
        """Such as `("de-en", "en-de")`: the forward and the backward one."""
        return self.forward_config.direction, self.backward_config.direction

    def is_forward(self, direction: str) -> bool:
        """Whether a direction such as `"de-en"` (or `"forward"`) is the forward one; refuses those of other models."""
        forward, backward = self.directions
        if direction not in ("forward", "backward", forward, backward):
            raise ValueError(f"Unknown direction {direction!r}: this model has {forward!r} and {backward!r}.")
        return direction in ("forward", forward)

    @property
    def _can_share_embeddings(self) -> bool:
        forward, backward = self.forward_config, self.backward_config
        return (
            forward.share_encoder_decoder_embeddings
            and backward.share_encoder_decoder_embeddings
            and (forward.vocab_size, forward.d_model) == (backward.vocab_size, backward.d_model)
        )

    def validate_architecture(self):
        """Part of `@strict`-powered validation."""
        forward, backward = self.forward_config, self.backward_config
        if forward.vocab_size != backward.decoder_vocab_size or backward.vocab_size != forward.decoder_vocab_size:
            raise ValueError(
                "What one direction reads the other writes: "
                f"vocabularies {forward.vocab_size} -> {forward.decoder_vocab_size} "
                f"and {backward.vocab_size} -> {backward.decoder_vocab_size} do not mirror each other."
            )
        if forward.policy != backward.policy:
            raise ValueError(f"Both directions need one policy, not {forward.policy} and {backward.policy}.")
        if forward.policy_class.is_learned and forward.decoder_attention_heads != backward.decoder_attention_heads:
            raise ValueError(
                "Heads guide each other in pairs: both directions need the same `decoder_attention_heads`."
            )
        for name in ("pad_token_id", "eos_token_id"):
            if getattr(forward, name) != getattr(backward, name):
                raise ValueError(f"Both directions need the same `{name}`.")
        if self.share_embeddings and not self._can_share_embeddings:
            raise ValueError("`share_embeddings` needs one joint vocabulary and one `d_model` in both directions.")
        if self.source_language == self.target_language:
            raise ValueError(f"`source_language` and `target_language` are both {self.source_language!r}.")


for _config in (SiMTConfig, DualPathConfig):
    _config.register_for_auto_class()
    AutoConfig.register(_config.model_type, _config, exist_ok=True)

__all__ = ["DualPathConfig", "SiMTConfig"]
