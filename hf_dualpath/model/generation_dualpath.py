"""Simultaneous decoding on top of its step: `generate` for batches of whole sources, and open streams of tokens.

Both run `Decoding.write`, so they cannot disagree: on sources that have ended it never waits, and a [`TokenStream`]
feeds it a source that is still arriving.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import GenerateEncoderDecoderOutput, LogitsProcessorList
from transformers.generation.streamers import BaseStreamer

from .decoding_dualpath import Decoding
from .policies_dualpath import Dials


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


def next_tokens(
    logits: Tensor, ids: Tensor, logits_processor: LogitsProcessorList, pad_token_id: int
) -> tuple[Tensor, Tensor]:
    """The best token of each sentence, and the scores it was chosen by. Padding is no word: it is never written."""
    scores = logits.float()
    scores[:, pad_token_id] = -torch.inf
    for process in logits_processor:
        scores = process(ids, scores)
    return scores.argmax(-1), scores


def too_long(config: GenerationConfig, written: int, read: int | Tensor) -> bool | Tensor:
    """Whether decoding must stop without an end: at the given limit, or else when far more is written than read."""
    if config.max_new_tokens is not None:
        return torch.as_tensor(written >= config.max_new_tokens)
    return torch.as_tensor((written >= config.max_length - 1) | (written >= 2 * torch.as_tensor(read) + 10))


def end_tokens_of(config: GenerationConfig) -> list[int]:
    return list(config.eos_token_id) if isinstance(config.eos_token_id, (list, tuple)) else [config.eos_token_id]


class TokenStream:
    """Translation of a source that is still arriving, token by token.

    `push` and `finish` yield the actions that become possible, in order and as they are decided: `None` for a READ,
    or the token written and the number of source tokens read before it. The same source gives the same actions
    however it is cut into pushes.
    """

    def __init__(self, model, generation_config: GenerationConfig, logits_processor: LogitsProcessorList):
        self.model = model
        self.config = generation_config
        self.logits_processor = logits_processor
        self.decoding = Decoding(model, Dials.from_config(generation_config))
        self.ids = torch.tensor([[generation_config.decoder_start_token_id]], device=model.device)
        self.pending: deque[int] = deque()
        self.source_finished = False
        self.done = False
        self._step = self.decoding.write(self.ids)
        self._wants_source = False

    def push(self, tokens: Iterable[int]) -> Iterator[tuple[int, int] | None]:
        """More of the source."""
        self.pending.extend(tokens)
        return self._actions()

    def finish(self) -> Iterator[tuple[int, int] | None]:
        """The source is complete; its end-of-sentence token was the last one pushed."""
        self.source_finished = True
        return self._actions()

    def _actions(self) -> Iterator[tuple[int, int] | None]:
        while not self.done:
            if self._wants_source:
                if self.pending:
                    self._read(self.pending.popleft())
                    yield None
                elif not self.source_finished:
                    return
            if self.source_finished and not self.pending and self.decoding.last is None:
                self.decoding.end_source(torch.tensor([self.decoding.available - 1], device=self.model.device))
            written = self._try_to_write()
            self._wants_source = written is None
            if written is not None:
                yield written
        while self.pending:  # after the end of the translation the rest is read in silence
            self.pending.popleft()
            yield None

    @torch.inference_mode()
    def _read(self, token: int):
        self.decoding.read(token)

    @torch.inference_mode()
    def _try_to_write(self) -> tuple[int, int] | None:
        """The next token with its g, or None where the policy wants to READ first."""
        try:
            next(self._step)
            return None
        except StopIteration as step:
            logits = step.value
        token, _ = next_tokens(logits, self.ids, self.logits_processor, self.model.config.pad_token_id)
        self.ids = torch.cat([self.ids, token[:, None]], 1)
        read = int(self.decoding.head_stops().max()) + 1
        self.done = int(token) in end_tokens_of(self.config) or bool(
            too_long(self.config, self.decoding.written, read)
        )
        self._step = self.decoding.write(self.ids[:, -1:])
        return int(token), read


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
        batch, device = input_ids.shape[0], input_ids.device
        if attention_mask is None:
            attention_mask = (input_ids != self.config.pad_token_id).long()
        if bool((attention_mask[:, :-1] < attention_mask[:, 1:]).any()) or not bool(attention_mask[:, 0].all()):
            raise ValueError("Simultaneous decoding needs sources of at least one token, padded on the right.")
        if streamer is not None and batch > 1:
            raise ValueError("A streamer follows one translation: give a batch of one.")

        end_tokens = torch.tensor(end_tokens_of(config), device=device)
        path, stops, scores, logits = [], [], [], []
        with torch.inference_mode():
            decoding = Decoding(self, Dials.from_config(config), batch)
            decoding.read_all(input_ids, attention_mask)
            ids = torch.full((batch, 1), config.decoder_start_token_id, device=device)
            open_rows = torch.ones(batch, dtype=torch.bool, device=device)
            if streamer is not None:
                streamer.put(ids.cpu())
            while bool(open_rows.any()):
                step_logits = _without_waiting(decoding.write(ids[:, -1:]))
                if config.output_logits:
                    logits.append(step_logits.clone())
                tokens, step_scores = next_tokens(step_logits, ids, processors, self.config.pad_token_id)
                tokens = tokens.where(open_rows, config.pad_token_id)
                ids = torch.cat([ids, tokens[:, None]], 1)
                stops.append(decoding.head_stops())
                read = stops[-1].flatten(1).amax(1) + 1
                path.append(read * open_rows)
                if config.output_scores:
                    scores.append(step_scores)
                if streamer is not None:
                    streamer.put(tokens.cpu())
                ended = (tokens[:, None] == end_tokens).any(1)
                open_rows = open_rows & ~ended & ~too_long(config, decoding.written, read)
        if streamer is not None:
            streamer.end()
        if not config.return_dict_in_generate:
            return ids.clone()  # clones are ordinary tensors, which can be trained on
        stops = torch.stack(stops, -1)  # batch, layer, head, target
        return SimultaneousOutput(
            sequences=ids.clone(),
            scores=tuple(step.clone() for step in scores) if config.output_scores else None,
            logits=tuple(step.clone() for step in logits) if config.output_logits else None,
            path=torch.stack(path, 1),
            head_stops=stops,
        )

    def open_stream(
        self,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        **kwargs,
    ) -> TokenStream:
        """A [`TokenStream`] over this model, with the arguments of `generate`. Any number can be open at once."""
        if self.config.policy_class.reads_everything:
            raise ValueError("An offline model reads the whole source before it writes and cannot translate a stream.")
        return TokenStream(self, *self.prepare_simultaneous(generation_config, logits_processor, **kwargs))

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
        self.config.policy_class.check_dials(Dials.given_in(config.to_dict()))
        Dials.from_config(config)
        for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
            if settings[name] is None:
                settings[name] = getattr(self.config, name)
            ids = end_tokens_of(config) if name == "eos_token_id" else [settings[name]]
            if not all(isinstance(index, int) and 0 <= index < self.config.decoder_vocab_size for index in ids):
                raise ValueError(f"`{name}` is a token of the vocabulary, not {settings[name]}.")
        self._prepare_special_tokens(config, device=self.device)
        processors = self._get_logits_processor(config, 1, logits_processor=logits_processor, device=self.device)
        return config, processors


def _without_waiting(step: Generator[None, None, Tensor]) -> Tensor:
    """The result of a step whose source has ended."""
    try:
        next(step)
    except StopIteration as stop:
        return stop.value
    raise RuntimeError("A source that has ended made the policy wait.")
