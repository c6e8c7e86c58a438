"""Encoder-decoder models whose decoder attends along a READ/WRITE path.

The path is a value: the policy of a decoder layer makes it, and every layer computes its attention from it. Parameter
names and arithmetic follow transformers' Marian, so that the offline policy gives Marian's logits on Marian's weights.
"""

import math
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForSeq2SeqLM, GenerationConfig, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.models.bart.modeling_bart import shift_tokens_right
from transformers.utils import ModelOutput, can_return_tuple
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_dualpath import DualPathConfig, SiMTConfig
from .generation_dualpath import SimultaneousGenerationMixin
from .layers_dualpath import (
    PathAttention,
    SiMTDecoderLayer,
    SiMTEncoderLayer,
    SiMTSelfAttention,
    SinusoidalPositions,
    dropout,
)
from .policies_dualpath import PATHS, Dials, LearnedPolicy, ReadWritePath


@dataclass
class SiMTDecoderOutput(BaseModelOutputWithPastAndCrossAttentions):
    alphas: tuple[Tensor, ...] | None = None
    selection_probabilities: tuple[Tensor, ...] | None = None


@dataclass
class SiMTModelOutput(Seq2SeqModelOutput):
    alphas: tuple[Tensor, ...] | None = None
    selection_probabilities: tuple[Tensor, ...] | None = None


@dataclass
class SiMTOutput(Seq2SeqLMOutput):
    r"""
    Output of one direction: a `Seq2SeqLMOutput` with its path.

    Args:
        alphas (tuple of `torch.Tensor` of shape `(batch, head, target, source)`):
            One for each layer that decides (all with MMA, else the first): the expected writing probability along the
            expected path, one-hot rows along the hard path.
        selection_probabilities (tuple, same shapes): What a learned policy decided from; empty for fixed policies.
        hard_output ([`SiMTOutput`], *optional*): With `path="both"`, what the decoder returned along the hard path.
    """

    alphas: tuple[Tensor, ...] | None = None
    selection_probabilities: tuple[Tensor, ...] | None = None
    hard_output: "SiMTOutput | None" = None


@dataclass
class DualPathOutput(ModelOutput):
    """Outputs of both directions, and which tokens of the two sides are real (the losses need to know).

    The backward direction reads the labels and predicts the input. `loss` is the mean cross-entropy a token over both;
    the losses of the paths are in `dual_path_loss`.
    """

    loss: Tensor | None = None
    forward_output: SiMTOutput | None = None
    backward_output: SiMTOutput | None = None
    source_mask: Tensor | None = None
    target_mask: Tensor | None = None


class SiMTPreTrainedModel(PreTrainedModel):
    config: SiMTConfig
    base_model_prefix = "model"
    accepts_loss_kwargs = False  # `loss` is a mean over the batch: a plain Trainer divides it by accumulation steps
    supports_gradient_checkpointing = True
    _no_split_modules = ["SiMTEncoderLayer", "SiMTDecoderLayer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        """Attention is all you need's initialisation: unit-variance scaled embeddings, Xavier elsewhere."""
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, SinusoidalPositions):
            init.copy_(module.weight, module.create_weight())
        elif isinstance(module, LearnedPolicy) and module.energy_bias is not None:
            init.constant_(module.energy_bias, module.initial_bias)
        elif isinstance(module, SiMTForConditionalGeneration) and module.final_logits_bias is not None:
            init.zeros_(module.final_logits_bias)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)


class SiMTStack(SiMTPreTrainedModel):
    """What encoder and decoder share: embedded tokens, and layers to pass them through."""

    def __init__(self, config: SiMTConfig, vocab_size: int):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(vocab_size, config.d_model, config.pad_token_id)
        self.embed_positions = SinusoidalPositions(config)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.gradient_checkpointing = False

    def embed(self, input_ids: Tensor, start: int) -> Tensor:
        """Token and position embeddings of tokens that stand at positions from `start` on."""
        return self.embed_tokens(input_ids) * self.embed_scale + self.embed_positions(start, input_ids.shape[1])


class SiMTEncoder(SiMTStack):
    """Causal for all policies but offline, so that a state never changes once computed. Padding is on the right."""

    _can_record_outputs = {"hidden_states": SiMTEncoderLayer, "attentions": SiMTSelfAttention}

    def __init__(self, config: SiMTConfig):
        super().__init__(config, config.vocab_size)
        heads, ffn_dim = config.encoder_attention_heads, config.encoder_ffn_dim
        self.layers = nn.ModuleList(
            SiMTEncoderLayer(config, heads, ffn_dim, config.causal_encoder, i) for i in range(config.encoder_layers)
        )
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutput:
        if inputs_embeds is None:
            hidden_states = self.embed(input_ids, 0)
        else:
            hidden_states = inputs_embeds + self.embed_positions(0, inputs_embeds.shape[1])
        hidden_states = dropout(hidden_states, self.config.dropout, self.training)
        if self.config.causal_encoder:
            mask = create_causal_mask(self.config, hidden_states, None, None)
        else:
            mask = create_bidirectional_mask(self.config, hidden_states, attention_mask)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=hidden_states)


class SiMTDecoder(SiMTStack):
    """A causal decoder that attends to the source along the path of its policy."""

    _can_record_outputs = {
        "hidden_states": SiMTDecoderLayer,
        "attentions": OutputRecorder(SiMTSelfAttention, index=1),
        "cross_attentions": OutputRecorder(PathAttention, index=1),
    }

    def __init__(self, config: SiMTConfig):
        super().__init__(config, config.decoder_vocab_size)
        self.layers = nn.ModuleList(SiMTDecoderLayer(config, i) for i in range(config.decoder_layers))
        self.post_init()

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor,
        encoder_hidden_states: Tensor,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        path: str | None = None,
        dials: Dials | None = None,
        **kwargs,
    ) -> SiMTDecoderOutput:
        kind = path or ("expected" if self.training else "hard")
        if kind not in PATHS:
            raise ValueError(f"`path` is {' or '.join(PATHS)}, not {path!r}.")
        past, self_cache = 0, None
        if past_key_values is not None:
            if not self.config.policy_class.reads_everything:
                raise ValueError(
                    "Only the offline policy decodes with `past_key_values`; "
                    f"call `generate` to decode with {self.config.policy}."
                )
            self_cache = past_key_values.self_attention_cache
            past = self_cache.get_seq_length()
        hidden_states = self.embed(input_ids, past)
        hidden_states = dropout(hidden_states, self.config.dropout, self.training)
        attention_mask = create_causal_mask(self.config, hidden_states, None, self_cache)

        source_length = encoder_hidden_states.shape[1]
        path = ReadWritePath(None if encoder_attention_mask is None else encoder_attention_mask.bool())
        paths = []
        for layer in self.layers:
            hidden_states, path = layer(
                hidden_states,
                encoder_hidden_states,
                path,
                attention_mask,
                past_key_values,
                kind=kind,
                dials=dials,
                **kwargs,
            )
            if layer.policy is not None:
                paths.append(path)
        heads = self.config.decoder_attention_heads
        decided = [path.selection_probability for path in paths if path.selection_probability is not None]
        return SiMTDecoderOutput(
            last_hidden_state=hidden_states,
            past_key_values=past_key_values,
            alphas=tuple(path.writing_probability(source_length).expand(-1, heads, -1, -1) for path in paths),
            selection_probabilities=tuple(decided),
        )


class SiMTModel(SiMTPreTrainedModel):
    """Encoder and decoder with their embeddings."""

    def __init__(self, config: SiMTConfig):
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
            self._tied_weights_keys = {
                "encoder.embed_tokens.weight": "shared.weight",
                "decoder.embed_tokens.weight": "shared.weight",
            }
        self.encoder = SiMTEncoder(config)
        self.decoder = SiMTDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding):
        self.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.shared = self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        path: str | None = None,
        dials: Dials | None = None,
        decoder_attention_mask: Tensor | None = None,  # right padding needs none: a causal decoder never looks ahead
        **kwargs,
    ) -> SiMTModelOutput:
        if encoder_outputs is None:
            if attention_mask is not None:
                check_right_padding(attention_mask)
            encoder_outputs = self.encoder(input_ids, attention_mask, inputs_embeds, **kwargs)
        elif not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        if use_cache and past_key_values is None and self.config.policy_class.reads_everything:
            past_key_values = EncoderDecoderCache(DynamicCache(), DynamicCache())
        decoder_outputs = self.decoder(
            decoder_input_ids,
            encoder_outputs.last_hidden_state,
            attention_mask,
            past_key_values=past_key_values,
            path=path,
            dials=dials,
            **kwargs,
        )
        return SiMTModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            alphas=decoder_outputs.alphas,
            selection_probabilities=decoder_outputs.selection_probabilities,
        )


def default_generation_config(config: SiMTConfig) -> GenerationConfig:
    """As long as the model can go; not marked as derived from the configuration, so that what users set is kept."""
    return GenerationConfig(
        max_length=config.max_position_embeddings,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        bos_token_id=config.bos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


def _hub_arguments(kwargs: dict) -> dict:
    names = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder")
    return {name: kwargs[name] for name in names if name in kwargs}


class CheckedLoadingMixin:
    """`from_pretrained` that refuses a checkpoint of another kind or with weights missing, where the library warns."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        path, wants_info = pretrained_model_name_or_path, kwargs.pop("output_loading_info", False)
        if "config" not in kwargs:
            found = cls.config_class.get_config_dict(path, **_hub_arguments(kwargs))[0].get("model_type")
            if found == DualPathConfig.model_type and cls.config_class is SiMTConfig:
                raise ValueError(
                    f"{path} holds two directions: choose one with `direction=`, "
                    "or load it with AutoModelForSeq2SeqLM."
                )
            if found != cls.config_class.model_type:
                raise ValueError(f"{path} is a checkpoint of type {found!r}, not {cls.config_class.model_type!r}.")
        try:
            model, info = super().from_pretrained(
                path, *args, output_loading_info=True, use_safetensors=True, **kwargs
            )
        except SafetensorError as error:
            raise OSError(
                f"The weights in {path} are damaged or cut short ({error}): download or save them again."
            ) from error
        except RuntimeError as error:  # the library's word for weights of other shapes
            raise ValueError(f"The weights in {path} do not fit the sizes in its config.json.") from error
        except TypeError as error:  # torch's word for a type that it cannot compute with
            raise ValueError(f"The weights in {path} cannot be computed with: {error}.") from error
        missing = sorted(info["missing_keys"])
        if missing:
            raise ValueError(f"{path} lacks {len(missing)} weights of {cls.__name__}, the first is {missing[0]}.")
        return (model, info) if wants_info else model


def check_right_padding(mask: Tensor):
    """Refuses a mask with padding on the left or a hole: paths count tokens from the first."""
    if torch.compiler.is_compiling():
        return
    right = (mask[:, :-1] >= mask[:, 1:]).all() & mask[:, 0].all()
    if mask.is_cpu and not right:
        raise ValueError("Sources need at least one token, and padding on the right only: set `padding_side='right'`.")
    if not mask.is_cpu:
        torch._assert_async(right, "Sources need at least one token, and padding on the right only.")


class SiMTForConditionalGeneration(CheckedLoadingMixin, SiMTPreTrainedModel, SimultaneousGenerationMixin):
    """One translation direction.

    `forward(..., path="expected")` follows the average over all paths that the policy may take, `path="hard"` the one
    that decoding takes. Unless told, it is the expected path after `train()` and the hard path after `eval()`.
    `path="both"` runs the encoder once and the decoder along each: the expected path's output holds the hard one's.
    """

    can_be_forced = True  # has a path over a given translation
    _keys_to_ignore_on_load_unexpected = [r"^(forward|backward)_model\."]  # the other direction of a dual checkpoint
    _tied_weights_keys = {"lm_head.weight": "model.decoder.embed_tokens.weight"}

    def __init__(self, config: SiMTConfig):
        super().__init__(config)
        self.model = SiMTModel(config)
        if config.share_encoder_decoder_embeddings:
            self._tied_weights_keys = {"lm_head.weight": "model.shared.weight"}
        bias = torch.zeros(1, config.decoder_vocab_size) if config.final_logits_bias else None
        self.register_buffer("final_logits_bias", bias)
        self.lm_head = nn.Linear(config.d_model, config.decoder_vocab_size, bias=False)
        self.generation_config = default_generation_config(config)
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, direction: str | None = None, **kwargs):
        """As in transformers; with `direction`, one direction (`"de-en"`) of a dual checkpoint is loaded alone."""
        if direction is not None:
            dual_config = DualPathConfig.from_pretrained(pretrained_model_name_or_path, **_hub_arguments(kwargs))
            forward = dual_config.is_forward(direction)
            kwargs["config"] = dual_config.forward_config if forward else dual_config.backward_config
            kwargs["key_mapping"] = {r"^forward_model\." if forward else r"^backward_model\.": ""}
            if dual_config.share_embeddings:
                kwargs["key_mapping"][r"^forward_model\.model\.shared"] = "model.shared"
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        if direction is not None:  # from here on it is a model of its own, and saves its own names
            (loaded[0] if isinstance(loaded, tuple) else loaded)._weight_conversions = None
        return loaded

    @property
    def reads_everything(self) -> bool:
        """Whether it reads the whole source before it writes, and so cannot be streamed."""
        return self.config.policy_class.reads_everything

    def lm_logits(self, hidden_states: Tensor) -> Tensor:
        logits = self.lm_head(hidden_states)
        return logits if self.final_logits_bias is None else logits + self.final_logits_bias

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        path: str | None = None,
        dials: Dials | None = None,
        **kwargs,
    ) -> SiMTOutput:
        r"""
        Args:
            input_ids (`torch.LongTensor` of shape `(batch, source)`): Source tokens with their end-of-sentence token.
            attention_mask (`torch.Tensor` of shape `(batch, source)`, *optional*):
                1 at real tokens; padding on the right.
            decoder_input_ids (`torch.LongTensor` of shape `(batch, target)`, *optional*):
                By default `labels`, shifted.
            labels (`torch.LongTensor` of shape `(batch, target)`, *optional*):
                Target tokens, -100 or padding where there are none. With them the output has `loss`, the mean
                cross-entropy; the losses of the path are in [`direction_loss`] and [`dual_path_loss`].
            path (`str`, *optional*):
                `"expected"`, `"hard"` or `"both"`; by default expected in training, hard in inference.
            dials ([`Dials`], *optional*): Latency dials of the hard path.
            kwargs: `encoder_outputs`, `past_key_values`, `use_cache`, `output_attentions`, `output_hidden_states`.
        """
        if attention_mask is None and input_ids is not None:
            attention_mask = (input_ids != self.config.pad_token_id).long()
        if labels is not None and decoder_input_ids is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        first = "expected" if path == "both" else path
        outputs = self.model(input_ids, attention_mask, decoder_input_ids, path=first, dials=dials, **kwargs)
        result = self.output_of(outputs, labels)
        if path == "both":
            kwargs["encoder_outputs"] = BaseModelOutput(outputs.encoder_last_hidden_state)
            hard = self.model(None, attention_mask, decoder_input_ids, path="hard", dials=dials, **kwargs)
            result.hard_output = self.output_of(hard, labels)
        return result

    def output_of(self, outputs: SiMTModelOutput, labels: Tensor | None) -> SiMTOutput:
        logits = self.lm_logits(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            gold = labels.masked_fill(labels == self.config.pad_token_id, -100)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), gold.flatten())
        rest = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return SiMTOutput(loss=loss, logits=logits, **rest)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args, **kwargs) -> nn.Embedding:
        if not self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "`resize_token_embeddings` needs a joint vocabulary (`share_encoder_decoder_embeddings`)."
            )
        embeddings = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        self.config.decoder_vocab_size = embeddings.num_embeddings
        if self.final_logits_bias is not None:
            added = embeddings.num_embeddings - self.final_logits_bias.shape[1]
            self.final_logits_bias = nn.functional.pad(self.final_logits_bias, (0, added))
        return embeddings


class DualPathForConditionalGeneration(CheckedLoadingMixin, PreTrainedModel, SimultaneousGenerationMixin):
    """A forward and a backward direction in one module, so that each path can supervise the other (section 3)."""

    config: DualPathConfig
    accepts_loss_kwargs = False
    supports_gradient_checkpointing = True
    _no_split_modules = SiMTPreTrainedModel._no_split_modules
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True
    main_input_name = "input_ids"

    def __init__(self, config: DualPathConfig):
        super().__init__(config)
        self.forward_model = SiMTForConditionalGeneration(config.forward_config)
        self.backward_model = SiMTForConditionalGeneration(config.backward_config)
        if config.share_embeddings:
            self._tied_weights_keys = {"backward_model.model.shared.weight": "forward_model.model.shared.weight"}
        self.generation_config = default_generation_config(config.forward_config)
        self.post_init()

    @property
    def generation_config(self) -> GenerationConfig | None:
        """One for both directions."""
        return self.__dict__.get("_shared_generation_config")

    @generation_config.setter
    def generation_config(self, value: GenerationConfig):
        self.__dict__["_shared_generation_config"] = value
        for model in self.children():
            model.generation_config = value

    def _init_weights(self, module: nn.Module):
        self.forward_model._init_weights(module)

    def direction(self, name: str) -> SiMTForConditionalGeneration:
        """The model of one direction, `"de-en"`, `"en-de"`, `"forward"` or `"backward"`; it shares its weights."""
        return self.forward_model if self.config.is_forward(name) else self.backward_model

    def generate(self, *args, direction: str = "forward", **kwargs):
        """`generate` of one direction, see [`SimultaneousGenerationMixin.generate`]."""
        return self.direction(direction).generate(*args, **kwargs)

    def open_stream(self, *args, direction: str = "forward", **kwargs):
        """`open_stream` of one direction, see [`SimultaneousGenerationMixin.open_stream`]."""
        return self.direction(direction).open_stream(*args, **kwargs)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        return_loss: bool = True,
        **kwargs,
    ) -> DualPathOutput:
        r"""
        Runs both directions: the forward one reads `input_ids` and predicts `labels`, the backward one the reverse.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, source)`): Source tokens with their end-of-sentence token.
            attention_mask (`torch.Tensor` of shape `(batch, source)`, *optional*):
                1 at real tokens; padding on the right.
            labels (`torch.LongTensor` of shape `(batch, target)`):
                Target tokens, -100 or padding where there are none.
            return_loss (`bool`, *optional*, defaults to `True`): Whether the output has `loss`.
            kwargs: As of one direction, for both.
        """
        if labels is None:
            raise ValueError(
                "Two directions need both texts: give `labels` too, or take one direction, "
                f"`model.direction({self.config.directions[0]!r})`."
            )
        pad = self.config.pad_token_id
        source_mask = input_ids != pad if attention_mask is None else attention_mask.bool()
        targets = labels.masked_fill(labels == -100, pad)
        target_mask = targets != pad
        sources = input_ids.masked_fill(~source_mask, pad)
        forward = self.forward_model(
            sources, source_mask, self.forward_model.prepare_decoder_input_ids_from_labels(targets), **kwargs
        )
        backward = self.backward_model(
            targets, target_mask, self.backward_model.prepare_decoder_input_ids_from_labels(sources), **kwargs
        )
        loss = None
        if return_loss:
            sums = (
                nn.functional.cross_entropy(
                    output.logits.flatten(0, 1), gold.masked_fill(gold == pad, -100).flatten(), reduction="sum"
                )
                for output, gold in ((forward, targets), (backward, sources))
            )
            loss = sum(sums) / (source_mask.sum() + target_mask.sum())
        return DualPathOutput(
            loss=loss,
            forward_output=forward,
            backward_output=backward,
            source_mask=source_mask,
            target_mask=target_mask,
        )

    def get_encoder(self, *args, **kwargs):
        return self.forward_model.get_encoder(*args, **kwargs)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.forward_model.get_input_embeddings()

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Embedding:
        embeddings = self.forward_model.resize_token_embeddings(*args, **kwargs)
        self.backward_model.resize_token_embeddings(*args, **kwargs)
        self.tie_weights()
        return embeddings


for _model in (SiMTForConditionalGeneration, DualPathForConditionalGeneration):
    _model.register_for_auto_class("AutoModelForSeq2SeqLM")
    AutoModelForSeq2SeqLM.register(_model.config_class, _model, exist_ok=True)
AutoModel.register(SiMTConfig, SiMTModel, exist_ok=True)
AutoModel.register(DualPathConfig, DualPathForConditionalGeneration, exist_ok=True)

__all__ = [
    "DualPathForConditionalGeneration",
    "DualPathOutput",
    "SiMTForConditionalGeneration",
    "SiMTModel",
    "SiMTOutput",
    "SiMTPreTrainedModel",
]
