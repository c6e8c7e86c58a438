"""READ and WRITE over a translator that reads whole sentences: one open stream, or many in step."""

import math
from collections import deque
from collections.abc import Generator, Iterable, Iterator

from ...model.policies_dualpath import Dials
from .decoding import Hypothesis, Request


WAIT = "wait"  # for more of the source
Action = tuple[int, int] | None


class HubStream:
    """Translation of a source that is still arriving, word by word; what [`TokenStream`] is for our own models.

    `push` and `finish` yield the actions that become possible: `None` for a READ, or the token written and the number
    of source tokens read before it. A push holds whole words, any number of them, so that the policy can be asked at
    the end of each. Only `max_lag` makes it write in the middle of one.
    """

    def __init__(self, engine: "HubEngine", dials: Dials, generation):
        self.engine, self.translator = engine, engine.translator
        self.dials, self.generation = dials, generation
        self.policy = self.translator.config.policy_class(dials)
        self.pending: deque[tuple[int, bool]] = deque()  # source tokens, and whether a word ends with them
        self.text: list[int] = []  # source tokens read, without the end
        self.tokens_read = self.words_read = 0
        self.written: list[int] = []
        self.source_finished = self.ended = False
        self.done = False
        self.owner: object = None  # whom a pool tells that something has become of it
        self.hypothesis = Hypothesis([])
        self.request: Request | None = None  # what it wants translated
        self._acted: list[Action] = []
        self._translated = -1  # source tokens that it translates
        self.life = self._live()

    def push(self, tokens: Iterable[int]) -> Iterator[Action]:
        """More of the source: whole words."""
        self.feed(tokens)
        return self._run()

    def finish(self) -> Iterator[Action]:
        """The source is complete; its end-of-sentence token was the last one pushed."""
        self.end()
        return self._run()

    def _run(self) -> Iterator[Action]:
        yield from self.take()
        while not self.done and self.engine.tick():
            yield from self.take()
        yield from self.take()

    # For who drives the pool

    def feed(self, tokens: Iterable[int]):
        """More of the source, whole words, for the next tick."""
        tokens, end, limit = list(tokens), self.translator.source_end, self.translator.config.max_position_embeddings
        size = self.tokens_read + len(self.pending) + len(tokens) + (tokens[-1:] != [end])
        if tokens and not self.done and size > limit:
            raise ValueError(f"The source has {size} tokens with its end, more than the model's limit of {limit}.")
        for index, token in enumerate(tokens):
            following = tokens[index + 1] if index + 1 < len(tokens) else None
            is_last = following in (None, end)
            self.pending.append((token, is_last or self.translator.ends_word(token, following)))

    def end(self):
        """The source is complete, from the next tick on."""
        self.source_finished = True

    def take(self) -> list[Action]:
        """The actions decided since this was last asked."""
        if self.done:
            self.advance()  # the rest is read in silence
        actions, self._acted = self._acted, []
        self.engine.changed.discard(self)
        return actions

    @property
    def waits(self) -> bool:
        """Whether the next action is a READ of what has not arrived yet."""
        return not self.pending and self.request is None and not self.source_finished

    def close(self):
        """Gives the translation up."""
        self.done, self.request = True, None
        self.engine.changed.discard(self)
        if self in self.engine.streams:
            self.engine.streams.remove(self)

    def advance(self, answer: Hypothesis | None = None) -> bool:
        """Acts until a hypothesis is wanted or the source is used up; whether there was anything to do."""
        if self.request is not None and answer is None:
            return False
        before = len(self._acted)
        step = next(self.life) if answer is None else self.life.send(answer)
        while step is not WAIT and not isinstance(step, Request):
            self._acted.append(step)
            step = next(self.life)
        self.request = None if step is WAIT else step
        return len(self._acted) > before or self.request is not None

    def _live(self) -> Generator[Action | Request | str, Hypothesis | None, None]:
        """All that happens to one sentence: a request gets its hypothesis sent, the rest tells."""
        while True:
            completes_word = False
            if self.pending:
                completes_word = yield from self._read()
            elif self.source_finished and not self.done:
                self.ended = True
            else:
                yield WAIT
                continue
            if self.done:
                continue  # after the end of the translation the rest is read in silence
            if self.ended:
                yield from self._write_the_rest()
            else:
                yield from self._write_what_is_ready(completes_word)

    def _read(self) -> Generator[None, None, bool]:
        token, completes_word = self.pending.popleft()
        self.tokens_read += 1
        if token == self.translator.source_end:
            self.ended, completes_word = True, False
        else:
            self.text.append(token)
        self.words_read += completes_word
        yield None
        return completes_word

    def _write_what_is_ready(self, completes_word: bool) -> Generator[tuple[int, int] | Request, Hypothesis, None]:
        earliest, latest = self._lags()
        wanted = self.policy.wanted(self.words_read) if completes_word else 0
        if max(wanted, latest) <= len(self.written):
            return
        hypothesis = yield from self._translate(max(wanted, latest), latest)
        ready = self.policy.ready(hypothesis.tokens, len(self.written)) if completes_word else 0
        yield from self._write(hypothesis.tokens[: max(min(ready, earliest), latest)])

    def _lags(self) -> tuple[float, int]:
        """How many target tokens may have been written by now, and how many must have been."""
        earliest = math.inf if self.dials.min_lag is None else self.tokens_read - self.dials.min_lag + 1
        latest = 0 if self.dials.max_lag is None else self.tokens_read - self.dials.max_lag + 1
        return earliest, max(min(latest, self._longest()), 0)

    def _write_the_rest(self) -> Generator[tuple[int, int] | Request, Hypothesis, None]:
        if self.hypothesis.end is None or self._translated < len(self.text):
            yield from self._translate(math.inf, 0)
        tokens, end = self.hypothesis.tokens, self.hypothesis.end
        if end is None and len(tokens) > len(self.written):
            yield from self._write(tokens, done=True)
        else:
            yield from self._write([*tokens, self.translator.target_end if end is None else end], done=True)

    def _translate(self, wanted: float, no_end_before: int) -> Generator[Request, Hypothesis, Hypothesis]:
        policy, tokens = self.policy, len(self.text)
        follows = policy.needs_attention and not self.ended
        self.hypothesis = yield Request(
            source=self.text[:],
            written=self.written[:],
            limit=int(min(wanted, self._longest())),
            guess=self.hypothesis.tokens,
            no_end_before=no_end_before,
            stops=(lambda alignment: policy.stops(alignment, tokens)) if follows else None,
        )
        self._translated = tokens
        return self.hypothesis

    def _longest(self) -> int:
        """Where a translation must stop without an end: at the given limit, or when far more is written than read."""
        return min(self.generation.longest, 2 * self.tokens_read + 10)

    def _write(self, tokens: list[int], done: bool = False) -> Iterator[tuple[int, int]]:
        """The tokens after those already written; `done` with the last of them."""
        new = tokens[len(self.written) :]
        for count, token in enumerate(new, 1):
            self.written.append(token)
            self.done = (done and count == len(new)) or len(self.written) >= self.generation.longest
            yield token, self.tokens_read


class HubEngine:
    """A pool of streams over one translator: what several want translated goes in common batches. To its streams it is
    what [`Engine`] is to those of our own models."""

    def __init__(self, translator):
        self.translator = translator
        self.streams: list[HubStream] = []
        self.changed: set[HubStream] = set()  # of which something has become since they were last asked

    def open(self, dials: Dials, generation) -> HubStream:
        """A new stream."""
        self.streams.append(HubStream(self, dials, generation))
        return self.streams[-1]

    def tick(self) -> bool:
        """One hypothesis for each stream that wants one; False where there is nothing to do without more source."""
        acted = [stream for stream in self.streams if stream.advance()]
        self.changed.update(acted)
        groups: dict[str, list[HubStream]] = {}  # streams that choose tokens in the same way
        for stream in self.streams:
            if stream.request is not None:
                groups.setdefault(stream.generation.settings, []).append(stream)
        for group in groups.values():
            self.changed.update(group)
            requests = [stream.request for stream in group]
            for stream, answer in zip(group, self.translator.translate(requests, group[0].generation)):
                stream.advance(answer)
        self.streams = [stream for stream in self.streams if not stream.done]
        return bool(groups or acted)
