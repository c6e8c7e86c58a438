"""Greedy translations of source prefixes, each after a text that stays: the only file here that runs the model.

The encoder sees the future, so a READ costs one encoding of the prefix. The decoder looks at the encoder in every
layer, so its cache is stale after a READ: the text goes through it again, in one pass instead of token by token. The
previous hypothesis goes along as a guess. As far as the new translation agrees with it the cache stays; the rest is
cropped. Several streams are decoded as one batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput


@dataclass
class Frame:
    """What surrounds the text in the published format of a model: see `families.py`.

    Args:
        before, after (`list[int]`): Source tokens around the text: a language code, a task, the end of the sentence.
        prompt (`list[int]`): What the decoder starts with: the start token, in many models the target language too.
    """

    before: list[int]
    after: list[int]
    prompt: list[int]


@dataclass
class Request:
    """One source prefix to translate.

    Args:
        source (`list[int]`): Tokens of the text read so far.
        written (`list[int]`): Target tokens that stay.
        limit (`int`): Longest hypothesis, `written` included.
        guess (`list[int]`): A hypothesis that may be right, `written` included.
        no_end_before (`int`): The hypothesis has at least so many tokens.
        stops (`Callable`, *optional*): Ends the hypothesis before a token by the source token it looked at most.
    """

    source: list[int]
    written: list[int]
    limit: int
    guess: list[int] = field(default_factory=list)
    no_end_before: int = 0
    stops: Callable[[int], bool] | None = None


@dataclass
class Hypothesis:
    """A translation of a prefix: its tokens, and the end-of-sentence token if it came to its end."""

    tokens: list[int]
    end: int | None = None


class _Row:
    """One request on its way: the tokens known to be right so far, the prompt among them."""

    def __init__(self, request: Request, prompt: list[int]):
        self.request = request
        self.offset = len(prompt)
        self.known = prompt + request.written
        self.guess = prompt + request.guess[: request.limit]
        if self.guess[: len(self.known)] != self.known:
            self.guess = self.known
        self.passed = 0  # how many of the known tokens have gone through the decoder
        self.end: int | None = None
        self.open = len(request.written) < request.limit

    @property
    def may_end(self) -> bool:
        return len(self.known) - self.offset >= self.request.no_end_before

    def take(self, token: int, is_end: bool, alignment: int | None):
        """The token after the known ones."""
        if is_end:
            self.end, self.open = token, False
        elif alignment is not None and self.may_end and self.request.stops(alignment):
            self.open = False
        else:
            self.known.append(token)
            self.open = len(self.known) - self.offset < self.request.limit


class PrefixDecoder:
    """Translates source prefixes with one model.

    Args:
        model (`PreTrainedModel`): An encoder-decoder of transformers.
        frame ([`Frame`]): What surrounds the text.
        pad_token_id (`int`), end_tokens (`list[int]`): The model's.
    """

    def __init__(self, model: PreTrainedModel, frame: Frame, pad_token_id: int, end_tokens: list[int]):
        self.model, self.frame = model, frame
        self.pad_token_id, self.end_tokens = pad_token_id, end_tokens

    @torch.inference_mode()
    def translate(self, requests: list[Request], processors: LogitsProcessorList) -> list[Hypothesis]:
        """The hypothesis of each request; together they are one batch."""
        encoded, mask = self._encode([request.source for request in requests])
        looks = any(request.stops is not None for request in requests)
        rows = [_Row(request, self.frame.prompt) for request in requests]
        upcoming = [row.guess for row in rows]
        cache, cached = None, 0
        while any(row.open for row in rows):
            width = min(len(tokens) for row, tokens in zip(rows, upcoming) if row.open)
            fed = torch.tensor([self._padded(tokens, width) for tokens in upcoming], device=self.model.device)
            output = self.model(
                encoder_outputs=encoded,
                attention_mask=mask,
                decoder_input_ids=fed[:, cached:],
                past_key_values=cache,
                use_cache=True,
                output_attentions=looks,
            )
            attention = torch.stack(output.cross_attentions).float().mean((0, 2)) if looks else None
            for position in range(cached, width):
                column = position - cached
                for row, token in zip(rows, fed[:, position].tolist()):
                    row.passed += row.passed == position < len(row.known) and row.known[position] == token
                self._follow(
                    rows, position, output.logits[:, column], attention[:, column] if looks else None, processors
                )
            cache, cached = output.past_key_values, min((row.passed for row in rows if row.open), default=width)
            cache.crop(cached - width)
            for row in rows:
                row.passed = cached
            upcoming = [row.known for row in rows]
        return [Hypothesis(row.known[row.offset :], row.end) for row in rows]

    def _encode(self, sources: list[list[int]]) -> tuple[BaseModelOutput, Tensor]:
        framed = [[*self.frame.before, *source, *self.frame.after] for source in sources]
        longest = max(map(len, framed))
        input_ids = torch.tensor([self._padded(source, longest) for source in framed], device=self.model.device)
        lengths = torch.tensor(list(map(len, framed)), device=self.model.device)
        mask = (torch.arange(longest, device=self.model.device) < lengths[:, None]).long()
        return self.model.get_encoder()(input_ids=input_ids, attention_mask=mask), mask

    def _padded(self, tokens: list[int], width: int) -> list[int]:
        return [*tokens[:width], *[self.pad_token_id] * (width - len(tokens))]

    def _follow(
        self,
        rows: list[_Row],
        position: int,
        logits: Tensor,
        attention: Tensor | None,
        processors: LogitsProcessorList,
    ):
        """Takes what the model says after one position, in the rows whose known tokens end there."""
        deciding = [
            index for index, row in enumerate(rows) if row.open and row.passed == position + 1 == len(row.known)
        ]
        if not deciding:
            return
        scores = logits[deciding].float()  # row, vocabulary
        scores[:, self.pad_token_id] = -torch.inf
        for score, index in zip(scores, deciding):
            if not rows[index].may_end:
                score[self.end_tokens] = -torch.inf
        if processors:
            scores = processors(torch.tensor([rows[index].known for index in deciding], device=scores.device), scores)
        for index, token in zip(deciding, scores.argmax(-1).tolist()):
            row, alignment = rows[index], None
            if row.request.stops is not None:
                first = len(self.frame.before)
                alignment = int(attention[index, first : first + len(row.request.source)].argmax())
            row.take(token, token in self.end_tokens, alignment)
