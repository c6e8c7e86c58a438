"""Simultaneous decoding: one step that READs or WRITEs, and on top of it batches of whole sources and open streams.

`Decoding.write` is the step. It is a generator that yields whenever the policy wants another source token, and so
resumes exactly where it waited, in whichever layer that was. `generate` runs it on sources that have ended, where it
never waits; a `TokenStream` runs it on a source that is still arriving. Nothing is computed twice: each source token
passes the encoder once, each target token the decoder once, and a READ costs one row of selection energies.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import GenerateEncoderDecoderOutput, LogitsProcessorList
from transformers.generation.streamers import BaseStreamer


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


@dataclass
class SimultaneousOutput(GenerateEncoderDecoderOutput):
    r"""
    What `generate(..., return_dict_in_generate=True)` returns: as in transformers, with the path.

    Args:
        path (`torch.LongTensor` of shape `(batch, target)`):
            Number of source tokens read before each target token (the start token is none); 0 after the sentence ends.
        head_stops (`torch.LongTensor` of shape `(batch, head, target)`, with MMA `(batch, layer, head, target)`):
            Source position, from 0, at which each head stopped.
    """

    path: Tensor | None = None
    head_stops: Tensor | None = None


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


def next_tokens(logits: Tensor, ids: Tensor, logits_processor: LogitsProcessorList) -> tuple[Tensor, Tensor]:
    """The best token of each sentence, and the scores it was chosen by."""
    scores = logits.float()
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
        self.ids = torch.tensor([[model.config.decoder_start_token_id]], device=model.device)
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
        token, _ = next_tokens(logits, self.ids, self.logits_processor)
        self.ids = torch.cat([self.ids, token[:, None]], 1)
        read = int(self.decoding.head_stops().max()) + 1
        self.done = int(token) in end_tokens_of(self.config) or bool(
            too_long(self.config, self.decoding.written, read)
        )
        self._step = self.decoding.write(self.ids[:, -1:])
        return int(token), read


UNSUPPORTED = {
    "num_beams": (1, "beam search revises words that are already written"),
    "do_sample": (False, "sampling is not implemented"),
    "num_return_sequences": (1, "there is one translation a source"),
    "assistant_early_exit": (None, "assisted decoding is not implemented"),
    "prompt_lookup_num_tokens": (None, "assisted decoding is not implemented"),
    "penalty_alpha": (None, "contrastive search is not implemented"),
    "guidance_scale": (None, "classifier-free guidance is not implemented"),
    "encoder_repetition_penalty": (1.0, "the whole source is not known while words are written"),
    "encoder_no_repeat_ngram_size": (0, "the whole source is not known while words are written"),
}


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
        if self.config.policy == "offline":
            refused = [name for name in Dials.names() if kwargs.get(name) is not None]
            if refused:
                raise ValueError(
                    f"`{refused[0]}` is a dial of simultaneous decoding; the offline policy reads all first."
                )
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
            ids = torch.full((batch, 1), self.config.decoder_start_token_id, device=device)
            open_rows = torch.ones(batch, dtype=torch.bool, device=device)
            if streamer is not None:
                streamer.put(ids.cpu())
            while bool(open_rows.any()):
                step_logits = _without_waiting(decoding.write(ids[:, -1:]))
                tokens, step_scores = next_tokens(step_logits, ids, processors)
                tokens = tokens.where(open_rows, self.config.pad_token_id)
                ids = torch.cat([ids, tokens[:, None]], 1)
                stops.append(decoding.head_stops())
                read = stops[-1].flatten(1).amax(1) + 1
                path.append(read * open_rows)
                if config.output_scores:
                    scores.append(step_scores)
                if config.output_logits:
                    logits.append(step_logits)
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
            head_stops=stops if self.config.policy == "mma" else stops.squeeze(1),
        )

    def open_stream(
        self,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        **kwargs,
    ) -> TokenStream:
        """A [`TokenStream`] over this model, with the arguments of `generate`. Any number can be open at once."""
        if self.config.policy == "offline":
            raise ValueError("An offline model reads the whole source before it writes and cannot translate a stream.")
        return TokenStream(self, *self.prepare_simultaneous(generation_config, logits_processor, **kwargs))

    def prepare_simultaneous(
        self, generation_config: GenerationConfig | None, logits_processor: LogitsProcessorList | None, **kwargs
    ) -> tuple[GenerationConfig, LogitsProcessorList]:
        """The complete generation config with its dials, and the processors it asks for; refuses what cannot be."""
        dials = {name: kwargs.pop(name) for name in Dials.names() if name in kwargs}
        config, unused = self._prepare_generation_config(generation_config, **kwargs)
        config.update(**dials, allow_custom_entries=True)
        if unused:
            raise ValueError(f"Simultaneous decoding does not know {', '.join(f'`{name}`' for name in unused)}.")
        settings = config.to_dict()
        for name, (allowed, reason) in UNSUPPORTED.items():
            if settings.get(name) not in (None, allowed):
                raise ValueError(f"Simultaneous decoding cannot honour `{name}={settings[name]}`: {reason}.")
        if config.max_new_tokens is not None:
            config.max_length = config.max_new_tokens + 1
        Dials.from_config(config)
        config.eos_token_id = self.config.eos_token_id if config.eos_token_id is None else config.eos_token_id
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
