"""Simultaneous decoding as transformers' users know it: `generate` for batches of whole sources, and open streams.

Both are callers of the engine: whole sources are streams that have ended before they begin.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import GenerateEncoderDecoderOutput, LogitsProcessor, LogitsProcessorList
from transformers.generation.streamers import BaseStreamer

from .dials_dualpath import Dials
from .engine_dualpath import Engine, Limits, TokenStream
from .torch_backend_dualpath import TorchBackend, best


@dataclass
class SimultaneousOutput(GenerateEncoderDecoderOutput):
    r"""
    What `generate(..., return_dict_in_generate=True)` returns: as in transformers, with the path.

    Args:
        path (`torch.LongTensor` of shape `(batch, target)`):
            Number of source tokens read before each target token (the start token is none); 0 after the sentence ends.
        head_stops (`torch.LongTensor` of shape `(batch, layer, head, target)`):
            Source position, from 0, at which each head of each deciding layer stopped.
    """

    path: Tensor | None = None
    head_stops: Tensor | None = None


class NotBefore(LogitsProcessor):
    """No end before so many tokens, the start token counted: the library's own takes as long as a decoder layer."""

    def __init__(self, minimum: int, end_tokens: list[int]):
        self.minimum, self.end_tokens = minimum, end_tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.shape[1] < self.minimum:
            scores[:, self.end_tokens] = -torch.inf
        return scores


class Chooser:
    """Chooses the best token by processed scores, and keeps what `generate` is asked to return."""

    def __init__(self, processors: LogitsProcessorList, keep_scores: bool = False, keep_logits: bool = False):
        self.processors, self.keep_scores, self.keep_logits = processors, keep_scores, keep_logits
        self.scores: dict[TokenStream, list[Tensor]] = {}
        self.logits: dict[TokenStream, list[Tensor]] = {}

    def __call__(self, logits: Tensor, streams: Sequence[TokenStream], pad_token_id: int) -> Tensor:
        """The next token of streams that have written equally much. Padding is no word: it is never written."""
        ids = torch.tensor([stream.tokens for stream in streams], device=logits.device)
        scores = logits.float()
        scores = scores.clone() if self.keep_logits and scores is logits else scores
        scores[:, pad_token_id] = -torch.inf
        for process in self.processors:
            scores = process(ids, scores)
        for kept, values in ((self.scores, scores), (self.logits, logits)):
            if self.keep_scores if kept is self.scores else self.keep_logits:
                for stream, row in zip(streams, values):
                    kept.setdefault(stream, []).append(row)
        return best(scores)


def end_tokens_of(config: GenerationConfig) -> list[int]:
    return list(config.eos_token_id) if isinstance(config.eos_token_id, (list, tuple)) else [config.eos_token_id]


def limits_of(config: GenerationConfig) -> Limits:
    return Limits(frozenset(end_tokens_of(config)), config.max_length, config.max_new_tokens)


def settings_of(config: GenerationConfig, processors: LogitsProcessorList) -> dict:
    """What [`Engine.open`] takes."""
    choose = None
    if processors or config.output_scores or config.output_logits:
        choose = Chooser(processors, config.output_scores, config.output_logits)
    return {
        "dials": Dials.from_config(config),
        "limits": limits_of(config),
        "start_token": config.decoder_start_token_id,
        "choose": choose,
    }


def stacked(rows: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
    """For each step the values of all rows, zeros where a row has ended."""
    nothing = torch.zeros_like(rows[0][0])
    steps = range(max(map(len, rows)))
    return tuple(torch.stack([row[step] if step < len(row) else nothing for row in rows]) for step in steps)


# A token each; ends may be several.
TOKENS = (
    *("pad_token_id", "eos_token_id", "decoder_start_token_id"),
    *("bos_token_id", "forced_bos_token_id", "forced_eos_token_id"),
)
# Every field of a `GenerationConfig` is in one of these three; a test says so.
HONOURED = (
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens"),
    *("repetition_penalty", "no_repeat_ngram_size", "exponential_decay_length_penalty", "sequence_bias"),
    *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
    *("remove_invalid_values", "renormalize_logits"),
    *("pad_token_id", "eos_token_id", "decoder_start_token_id"),
    *("output_scores", "output_logits", "return_dict_in_generate"),
)
REFUSED = {  # unless it is not set, or has the value that changes nothing
    "num_beams": (1, "beam search revises words that are already written"),
    "num_beam_groups": (1, "beam search revises words that are already written"),
    "diversity_penalty": (0.0, "beam search revises words that are already written"),
    "constraints": (None, "beam search revises words that are already written"),
    "force_words_ids": (None, "beam search revises words that are already written"),
    "do_sample": (False, "sampling is not implemented"),
    "num_return_sequences": (1, "there is one translation of a source"),
    "max_time": (None, "a stream takes as long as its source; limit `max_new_tokens`"),
    "stop_strings": (None, "strings are not searched for; a translation ends at `eos_token_id`"),
    "assistant_early_exit": (None, "assisted decoding is not implemented"),
    "prompt_lookup_num_tokens": (None, "assisted decoding is not implemented"),
    "is_assistant": (False, "assisted decoding is not implemented"),
    "speculation_type": (None, "assisted decoding is not implemented"),
    "use_mtp": (False, "assisted decoding is not implemented"),
    "token_healing": (False, "there is no prompt to heal"),
    "dola_layers": (None, "contrasting layers is not implemented"),
    "penalty_alpha": (None, "contrastive search is not implemented"),
    "guidance_scale": (1.0, "classifier-free guidance is not implemented"),
    "watermarking_config": (None, "watermarks are not implemented"),
    "encoder_repetition_penalty": (1.0, "the whole source is not known while words are written"),
    "encoder_no_repeat_ngram_size": (0, "the whole source is not known while words are written"),
    "output_attentions": (False, "call the model on the finished translation for its attention"),
    "output_hidden_states": (False, "call the model on the finished translation for its hidden states"),
}
HARMLESS = (
    *("temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),  # of sampling
    *("early_stopping", "length_penalty"),  # of beams
    *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),  # of an assistant
    *("assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight", "max_matching_ngram_size"),
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory"),  # how, not what
    *("compile_config", "disable_compile", "prefill_chunk_size", "continuous_batching_config"),
    *("bos_token_id", "transformers_version", "_from_model_config"),
)


class SimultaneousGenerationMixin(GenerationMixin):
    """`generate` that follows the model's path. The offline policy keeps the library's."""

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        streamer: BaseStreamer | None = None,
        **kwargs,
    ) -> Tensor | SimultaneousOutput:
        r"""
        Translates a batch of whole sources as if they arrived token by token, each row along its own path.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, source)`): Sources with their end-of-sentence token.
            attention_mask (`torch.Tensor` of shape `(batch, source)`, *optional*):
                1 at real tokens; padding on the right.
            generation_config (`GenerationConfig`, *optional*): Lengths, penalties, banned words, and our [`Dials`].
            logits_processor (`LogitsProcessorList`, *optional*): More processors of the scores.
            streamer (`BaseStreamer`, *optional*): Receives each token of a batch of one as it is written.
            kwargs: Single fields of the generation config, dials included. Without `max_new_tokens` a translation ends
                at the latest at twice the tokens read, plus ten.

        Returns:
            `torch.LongTensor`, or [`SimultaneousOutput`] with `return_dict_in_generate=True`.
        """
        self.config.policy_class.check_dials(Dials.given_in(kwargs))
        if self.config.policy_class.reads_everything:
            return super().generate(
                input_ids,
                attention_mask=attention_mask,
                generation_config=generation_config,
                logits_processor=logits_processor,
                streamer=streamer,
                **kwargs,
            )
        if input_ids is None:
            raise ValueError("Simultaneous decoding needs `input_ids`, the source tokens.")
        config, processors = self.prepare_simultaneous(generation_config, logits_processor, **kwargs)
        settings = settings_of(config, processors)
        batch, device = input_ids.shape[0], input_ids.device
        if attention_mask is None:
            attention_mask = (input_ids != self.config.pad_token_id).long()
        if bool((attention_mask[:, :-1] < attention_mask[:, 1:]).any()) or not bool(attention_mask[:, 0].all()):
            raise ValueError("Simultaneous decoding needs sources of at least one token, padded on the right.")
        if streamer is not None and batch > 1:
            raise ValueError("A streamer follows one translation: give a batch of one.")

        engine, choose = Engine(TorchBackend(self), batch), settings["choose"]
        streams = [engine.open(**settings, record=True) for _ in range(batch)]
        for stream, tokens, length in zip(streams, input_ids.tolist(), attention_mask.sum(-1).tolist()):
            stream.feed(tokens[:length])
            stream.end()
        shown = 0
        while True:
            if streamer is not None:
                for token in streams[0].tokens[shown:]:
                    streamer.put(torch.tensor([token]))
                shown = len(streams[0].tokens)
            if not engine.tick():
                break
        if streamer is not None:
            streamer.end()

        longest = max(len(stream.path) for stream in streams)
        sequences = torch.full((batch, longest + 1), config.pad_token_id, device=device)
        path = torch.zeros(batch, longest, dtype=torch.long, device=device)
        for row, stream in enumerate(streams):
            sequences[row, : len(stream.tokens)] = torch.tensor(stream.tokens)
            path[row, : len(stream.path)] = torch.tensor(stream.path)
        if not config.return_dict_in_generate:
            return sequences
        stops = torch.zeros(batch, longest, *streams[0].head_stops[0].shape, dtype=torch.long, device=device)
        for row, stream in enumerate(streams):
            stops[row, : len(stream.path)] = torch.from_numpy(np.stack(stream.head_stops))
        return SimultaneousOutput(
            sequences=sequences,
            scores=stacked([choose.scores[stream] for stream in streams]) if config.output_scores else None,
            logits=stacked([choose.logits[stream] for stream in streams]) if config.output_logits else None,
            path=path,
            head_stops=stops.permute(0, 2, 3, 1),  # batch, layer, head, target
        )

    def open_engine(self, slots: int = 1, room: int | None = None, compile: bool = False) -> Engine:
        """A pool for many streams over this model, see [`open_stream`]; `compile` as of [`TorchBackend`]."""
        if self.config.policy_class.reads_everything:
            raise ValueError("An offline model reads the whole source before it writes and cannot translate a stream.")
        return Engine(TorchBackend(self, compile), slots, room)

    def stream_settings(
        self,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        **kwargs,
    ) -> dict:
        """What [`Engine.open`] takes for a stream with these arguments of `generate`."""
        return settings_of(*self.prepare_simultaneous(generation_config, logits_processor, **kwargs))

    def open_stream(self, engine: Engine | None = None, **kwargs) -> TokenStream:
        """A [`TokenStream`] over this model, with the arguments of `generate`. Any number can be open at once, each in
        an engine of its own, or in one `engine` that advances them together.

        Weights may change between streams, by training, `load_state_dict` or adapters: an engine with no open stream
        takes those that the model has when the next one begins.
        """
        engine = self.open_engine() if engine is None else engine
        return engine.open(**self.stream_settings(**kwargs))

    def prepare_simultaneous(
        self, generation_config: GenerationConfig | None, logits_processor: LogitsProcessorList | None, **kwargs
    ) -> tuple[GenerationConfig, LogitsProcessorList]:
        """The complete generation config with its dials, and the processors it asks for; refuses what cannot be."""
        dials = {name: kwargs.pop(name) for name in Dials.names() if name in kwargs}
        config, unused = self._prepare_generation_config(generation_config, **kwargs)
        config.update(**dials, allow_custom_entries=True)
        settings = vars(config)
        for name, (allowed, reason) in REFUSED.items():
            if settings.get(name) not in (None, allowed):
                raise ValueError(f"Simultaneous decoding cannot honour `{name}={settings[name]}`: {reason}.")
        if unused:
            raise ValueError(f"Simultaneous decoding does not know {', '.join(f'`{name}`' for name in unused)}.")
        if config.max_new_tokens is not None:
            config.max_length = config.max_new_tokens + 1
        self.config.policy_class.check_dials(Dials.given_in(config))
        Dials.from_config(config)
        for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
            if settings[name] is None:
                settings[name] = getattr(self.config, name)
        for name in TOKENS:
            several = name.endswith("eos_token_id") and isinstance(settings[name], (list, tuple))
            ids = settings[name] if several else [settings[name]]
            if settings[name] is not None and not all(map(self.is_token, ids)):
                raise ValueError(f"`{name}` is a token of the vocabulary, not {settings[name]}.")
        if self.config.pad_token_id in end_tokens_of(config):
            raise ValueError("`eos_token_id` is the model's padding, which is never written: nothing would end.")
        self._prepare_special_tokens(config, device=self.device)
        minimum = max(config.min_length or 0, (config.min_new_tokens or 0) + 1)
        given, config.min_length, config.min_new_tokens = (config.min_length, config.min_new_tokens), None, None
        try:
            processors = self._get_logits_processor(config, 1, logits_processor=logits_processor, device=self.device)
        except (TypeError, IndexError, KeyError) as error:  # what the library makes of wrong values
            raise ValueError(f"The generation config cannot be used: {error}") from error
        config.min_length, config.min_new_tokens = given
        if minimum > 1:
            processors.insert(0, NotBefore(minimum, end_tokens_of(config)))
        return config, processors

    def is_token(self, index) -> bool:
        """Whether this is a token that can be written."""
        return type(index) is int and 0 <= index < self.config.decoder_vocab_size
