"""Words in, READ and WRITE events out: a live stream of text over one direction of a model."""

import asyncio
import codecs
import re
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from ..model.generation_dualpath import TokenStream
from ..model.modeling_dualpath import SiMTForConditionalGeneration
from .checkpoints import load_direction
from .tokenization import WordAssembler, encode_word


@dataclass(frozen=True)
class Read:
    """A source word was read."""

    word: str


@dataclass(frozen=True)
class Write:
    """A target word was written, and will not change.

    Args:
        word (`str`): The word, with its punctuation.
        source_words_read, source_tokens_read (`int`): How much of the stream had been read when it was written.
        seconds (`float`): Compute time since the previous word.
    """

    word: str
    source_words_read: int
    source_tokens_read: int
    seconds: float


Event = Read | Write

# A sign that ends a sentence, with quotes or brackets behind it; but "3." and "J." do not.
SENTENCE_END = re.compile(r"""(?<!^\w)(?<!^\d\d)[.!?…。！？؟]["'»«”’“)\]]*$""")


def ends_sentence(word: str) -> bool:
    """Whether a sentence ends with this word, as far as the word itself can tell."""
    return SENTENCE_END.search(word) is not None


class SimultaneousTranslator:
    r"""
    Translates a stream of text while it arrives.

    Text goes in as it comes, cut anywhere, even inside a word or (as bytes) inside a character: a word is read when
    the space behind it has arrived. Whole words come out, each as soon as the model has decided it. The end of the
    source is only known at `finish`. Sentence ends are recognised as they arrive; each sentence is finished there and
    then and the model's state starts afresh, so that a stream can go on forever.

    Args:
        model ([`SiMTForConditionalGeneration`]): One direction, of any policy but offline.
        source_tokenizer, target_tokenizer (`PreTrainedTokenizerFast`): Its tokenizers, in that order.
        is_sentence_end (`Callable[[str], bool]`, *optional*, defaults to [`ends_sentence`]):
            Says of a word whether it ends a sentence; None for input that is already cut into sentences.
        dials: `write_threshold`, `min_lag`, `max_lag`, `wait_k`, or any argument of `generate`.

    ```python
    >>> translator = SimultaneousTranslator.from_pretrained("model_cards/dualpath-tatoeba-de-en", direction="de-en")
    >>> for event in translator.stream(["Ich habe ", "heute ", "keine Zeit."]):
    ...     print(event)
    ```
    """

    def __init__(
        self,
        model: SiMTForConditionalGeneration,
        source_tokenizer: PreTrainedTokenizerFast,
        target_tokenizer: PreTrainedTokenizerFast,
        is_sentence_end: Callable[[str], bool] | None = ends_sentence,
        **dials,
    ):
        self.model = model.eval()
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.is_sentence_end = is_sentence_end
        self.dials = dials
        self.max_source_tokens = model.config.max_position_embeddings - 1
        self.reset()

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        direction: str | None = None,
        is_sentence_end: Callable[[str], bool] | None = ends_sentence,
        device: str | None = None,
        dtype: str | None = None,
        trust_remote_code: bool = False,
        **dials,
    ) -> "SimultaneousTranslator":
        """A translator from a checkpoint's folder or Hub id; of a dual one, by default the forward direction.

        `device`, `dtype` and `trust_remote_code` are those of [`load_directions`].
        """
        model, *tokenizers = load_direction(
            path, direction, device=device, dtype=dtype, trust_remote_code=trust_remote_code
        )
        return cls(model, *tokenizers, is_sentence_end=is_sentence_end, **dials)

    def fork(self, **dials) -> "SimultaneousTranslator":
        """An independent stream over the same model; `dials` replace this one's."""
        return type(self)(
            self.model, self.source_tokenizer, self.target_tokenizer, self.is_sentence_end, **(self.dials | dials)
        )

    def reset(self):
        """Forgets everything but the model."""
        self.words: list[str] = []  # written
        self.path: list[int] = []  # source words read before each of them
        self.words_read = self.tokens_read = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""  # a source word whose end has not arrived
        self._seconds = 0.0
        self._start_sentence()

    def _start_sentence(self):
        self._stream: TokenStream = self.model.open_stream(**self.dials)
        self._assembler = WordAssembler(self.target_tokenizer)
        self._unread: deque[list] = deque()  # [source word, its tokens still to be read]
        self._sentence_tokens = 0

    @property
    def text(self) -> str:
        """All that has been written since the last reset."""
        return " ".join(self.words)

    def __enter__(self) -> "SimultaneousTranslator":
        return self

    def __exit__(self, *_):
        self.reset()

    # Going in

    def push(self, text: str | bytes) -> list[Event]:
        """More of the source; returns what became possible."""
        return list(self._push(text))

    def finish(self) -> list[Event]:
        """The source has ended; returns the rest. The next `push` starts a new text."""
        return list(self._finish())

    def stream(self, chunks: Iterable[str | bytes]) -> Iterator[Event]:
        """Events of a source that arrives in chunks, each as soon as it is decided, to the end."""
        for chunk in chunks:
            yield from self._push(chunk)
        yield from self._finish()

    async def astream(self, chunks: AsyncIterable[str | bytes]) -> AsyncIterator[Event]:
        """`stream` for servers: the model runs in a thread, so that the event loop stays free."""
        async for chunk in chunks:
            for event in await asyncio.to_thread(self.push, chunk):
                yield event
        for event in await asyncio.to_thread(self.finish):
            yield event

    def translate(self, text: str) -> str:
        """The translation of a whole text, as a stream of its own would give it."""
        fork = self.fork()
        fork.push(text)
        fork.finish()
        return fork.text

    def _push(self, text: str | bytes) -> Iterator[Event]:
        text = self._partial + (self._decoder.decode(text) if isinstance(text, bytes) else text)
        words = text.split()
        self._partial = words.pop() if words and not text[-1].isspace() else ""
        for word in words:
            yield from self._read_word(word)

    def _finish(self) -> Iterator[Event]:
        yield from self._push(self._decoder.decode(b"", final=True))
        if self._partial:
            word, self._partial = self._partial, ""
            yield from self._read_word(word)
        if self._sentence_tokens or self._unread:
            yield from self._end_sentence()

    def _read_word(self, word: str) -> Iterator[Event]:
        tokens = encode_word(self.source_tokenizer, word)[: self.max_source_tokens]
        if self._sentence_tokens + len(tokens) > self.max_source_tokens:
            yield from self._end_sentence()  # longer than the model can read: go on as if a new sentence began
        self._unread.append([word, len(tokens)])
        self._sentence_tokens += len(tokens)
        yield from self._follow(self._stream.push(tokens))
        if self.is_sentence_end is not None and self.is_sentence_end(word):
            yield from self._end_sentence()

    def _end_sentence(self) -> Iterator[Event]:
        yield from self._follow(self._stream.push([self.source_tokenizer.eos_token_id]))
        yield from self._follow(self._stream.finish())
        self._start_sentence()

    # Coming out

    def _follow(self, actions: Iterator[tuple[int, int] | None]) -> Iterator[Event]:
        """Turns reads and writes of tokens into events of words."""
        while True:
            began = time.perf_counter()
            action = next(actions, actions)
            self._seconds += time.perf_counter() - began
            if action is actions:
                yield from self._read_empty_words()
                return
            if action is None:
                self.tokens_read += 1
                yield from self._read_token()
            else:
                yield from self._written(self._assembler.push(action[0]))
                if self._stream.done:
                    yield from self._written(self._assembler.finish())

    def _read_token(self) -> Iterator[Event]:
        yield from self._read_empty_words()
        if not self._unread:
            return  # the end-of-sentence token
        entry = self._unread[0]
        if entry[0] is not None:
            self.words_read += 1
            yield Read(entry[0])
            entry[0] = None
        entry[1] -= 1
        if entry[1] == 0:
            self._unread.popleft()

    def _read_empty_words(self) -> Iterator[Event]:
        """Words that the tokenizer drops (control characters) are read and say nothing."""
        while self._unread and self._unread[0][0] is not None and self._unread[0][1] == 0:
            self.words_read += 1
            yield Read(self._unread.popleft()[0])

    def _written(self, word: str | None) -> Iterator[Event]:
        if word is None:
            return
        seconds, self._seconds = self._seconds, 0.0
        self.words.append(word)
        self.path.append(self.words_read)
        yield Write(word, self.words_read, self.tokens_read, seconds)
