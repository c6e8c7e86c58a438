"""Configurations: one direction (`SinglePathConfig`) and two directions joined (`DualPathConfig`)."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig


POLICIES = ("offline", "wait_k", "mma", "single_path")
ATTENTIONS = ("infinite_lookback", "hard_aligned")
POSITIONS = ("marian", "fairseq")


@strict
class SinglePathConfig(PreTrainedConfig):
    r"""
    Configuration of one translation direction. Field names follow `MarianConfig`; these are our own:

    policy (`str`, *optional*, defaults to `"single_path"`):
        How READ and WRITE are decided: `"offline"` (read all, then write), `"wait_k"` (fixed), `"mma"` (every head of
        every decoder layer decides), `"single_path"` (the first decoder layer's heads decide for all layers).
    monotonic_attention (`str`, *optional*, defaults to `"infinite_lookback"`):
        What an adaptive policy attends to: everything up to its stop, or only the stop itself (`"hard_aligned"`).
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
    >>> from hf_dualpath import SinglePathConfig, SinglePathForConditionalGeneration

    >>> config = SinglePathConfig(vocab_size=100, d_model=32, policy="wait_k", wait_k=5)
    >>> model = SinglePathForConditionalGeneration(config)
    ```
    """

    model_type = "single_path"
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
    policy: str = "single_path"
    monotonic_attention: str = "infinite_lookback"
    wait_k: int = 3
    noise_std: float | int = 1.5
    energy_bias: float | int | None = None
    causal_encoder: bool | None = None
    position_embedding: str = "marian"
    final_logits_bias: bool = False

    def __post_init__(self, **kwargs):
        self.decoder_vocab_size = self.decoder_vocab_size or self.vocab_size
        if self.causal_encoder is None:
            self.causal_encoder = self.policy != "offline"
        super().__post_init__(**kwargs)

    @property
    def is_adaptive(self) -> bool:
        """Whether the path is learned."""
        return self.policy in ("mma", "single_path")

    def validate_architecture(self):
        """Part of `@strict`-powered validation."""
        for name, value, allowed in (
            ("policy", self.policy, POLICIES),
            ("monotonic_attention", self.monotonic_attention, ATTENTIONS),
            ("position_embedding", self.position_embedding, POSITIONS),
        ):
            if value not in allowed:
                raise ValueError(f"`{name}` is one of {', '.join(allowed)}, not {value!r}.")
        for side in ("encoder", "decoder"):
            heads = getattr(self, f"{side}_attention_heads")
            if self.d_model % heads:
                raise ValueError(
                    f"`d_model` ({self.d_model}) must be a multiple of `{side}_attention_heads` ({heads})."
                )
        if self.d_model % 2:
            raise ValueError(f"`d_model` ({self.d_model}) must be even: its positions are pairs of sines and cosines.")
        if self.policy != "offline" and not self.causal_encoder:
            raise ValueError(
                f"The {self.policy} policy reads the source as it arrives and needs `causal_encoder=True`; "
                "only the offline policy may look ahead."
            )
        if self.monotonic_attention == "hard_aligned" and not self.is_adaptive:
            raise ValueError(f"`hard_aligned` attention needs the mma or single_path policy, not {self.policy}.")
        if self.wait_k < 1:
            raise ValueError(f"`wait_k` is the number of source tokens read first, at least 1, not {self.wait_k}.")
        if self.noise_std < 0:
            raise ValueError(f"`noise_std` is a standard deviation, at least 0, not {self.noise_std}.")
        if self.share_encoder_decoder_embeddings and not self.tie_word_embeddings:
            raise ValueError(
                "`share_encoder_decoder_embeddings=True` ties the output too: set `tie_word_embeddings=True`."
            )
        if self.share_encoder_decoder_embeddings and self.vocab_size != self.decoder_vocab_size:
            raise ValueError(
                f"The two sides have vocabularies of {self.vocab_size} and {self.decoder_vocab_size} tokens "
                "and cannot share one table: set `share_encoder_decoder_embeddings=False`."
            )


@strict
class DualPathConfig(PreTrainedConfig):
    r"""
    Configuration of a forward and a backward direction trained together.

    Args:
        forward_config ([`SinglePathConfig`] or `dict`, *optional*):
            The direction from `source_language` to `target_language`.
        backward_config ([`SinglePathConfig`] or `dict`, *optional*):
            The other direction. By default the forward one with its vocabularies swapped.
        source_language, target_language (`str`, *optional*, default to `"source"` and `"target"`):
            Names of the two languages; `"de"` and `"en"` give the directions `"de-en"` and `"en-de"`.
        share_embeddings (`bool`, *optional*):
            Whether both directions use one embedding table. Defaults to True where the vocabulary is joint.
    """

    model_type = "dual_path"
    sub_configs = {"forward_config": SinglePathConfig, "backward_config": SinglePathConfig}

    forward_config: SinglePathConfig | dict[str, Any] | None = None
    backward_config: SinglePathConfig | dict[str, Any] | None = None
    source_language: str = "source"
    target_language: str = "target"
    share_embeddings: bool | None = None
    tie_word_embeddings: bool = True  # what each direction ties is up to its own configuration
    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs):
        if not isinstance(self.forward_config, SinglePathConfig):
            self.forward_config = SinglePathConfig(**(self.forward_config or {}))
        if self.backward_config is None:
            self.backward_config = {
                **self.forward_config.to_dict(),
                "vocab_size": self.forward_config.decoder_vocab_size,
                "decoder_vocab_size": self.forward_config.vocab_size,
            }
        if not isinstance(self.backward_config, SinglePathConfig):
            self.backward_config = SinglePathConfig(**self.backward_config)
        if self.share_embeddings is None:
            self.share_embeddings = self._can_share_embeddings
        # Both directions end, pad and start alike, and the library looks these up on the outer configuration.
        for name in ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"):
            kwargs[name] = getattr(self.forward_config, name)
        super().__post_init__(**kwargs)

    @property
    def forward_direction(self) -> str:
        return f"{self.source_language}-{self.target_language}"

    @property
    def backward_direction(self) -> str:
        return f"{self.target_language}-{self.source_language}"

    def direction_name(self, direction: str) -> str:
        """`"forward"` or `"backward"` for a direction such as `"de-en"`."""
        if direction in ("forward", self.forward_direction):
            return "forward"
        if direction in ("backward", self.backward_direction):
            return "backward"
        raise ValueError(
            f"Unknown direction {direction!r}: "
            f"this model has {self.forward_direction!r} and {self.backward_direction!r}."
        )

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
        if forward.is_adaptive and forward.decoder_attention_heads != backward.decoder_attention_heads:
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


SinglePathConfig.register_for_auto_class()
DualPathConfig.register_for_auto_class()

__all__ = ["DualPathConfig", "SinglePathConfig"]
