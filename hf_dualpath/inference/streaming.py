"""Words in, READ and WRITE events out: a live stream of text over one direction of a model."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event as Flag

from transformers import PreTrainedTokenizerFast

from ..model.generation_dualpath import TokenStream
from ..model.modeling_dualpath import SiMTForConditionalGeneration
from .checkpoints import load_direction
from .events import Event, Read, SentenceEnd, Write
from .splitting import SentenceCutter, SentenceSplitter, Splitter, WordCutter
from .tokenization import WordAssembler, encode_word


class SimultaneousTranslator:
    r"""
    Translates a stream of text while it arrives.

    Text goes in as it comes, cut anywhere, even inside a word or (as bytes) inside a character: a word is read when
    the space behind it has arrived. Whole words come out, each as soon as the model has decided it. The end of the
    source is only known at `finish`. Sentence ends are recognised as they arrive; each sentence is finished there and
    then and the model's state starts afresh, so that a stream can go on forever.

    Args:
        model ([`SiMTForConditionalGeneration`] or [`HubTranslator`]): One direction, of any policy but offline.
        source_tokenizer, target_tokenizer (`PreTrainedTokenizerFast`): Its tokenizers, in that order.
        splitter (`Callable[[str | None], Splitter]`, *optional*, defaults to [`SentenceSplitter`]):
            Makes the [`Splitter`] of each sentence from the source language; None for input that is already cut into
            sentences.
        max_sentence_words (`int`, *optional*):
            Ends a sentence after so many words, for text without punctuation.
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
        splitter: Callable[[str | None], Splitter] | None = SentenceSplitter,
        max_sentence_words: int | None = None,
        **dials,
    ):
        self.model = model.eval()
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.splitter, self.max_sentence_words = splitter, max_sentence_words
        self.dials = dials
        self.max_source_tokens = model.config.max_position_embeddings - 1
        self._cutter = SentenceCutter(
            model.config.source_language, splitter, max_sentence_words, self.max_source_tokens
        )
        self.reset()

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        direction: str | None = None,
        splitter: Callable[[str | None], Splitter] | None = SentenceSplitter,
        max_sentence_words: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        trust_remote_code: bool = False,
        policy: str | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
        **dials,
    ) -> "SimultaneousTranslator":
        """A translator from a checkpoint's folder or Hub id; of a dual one, by default the forward direction.

        The arguments from `device` to `target_language` are those of [`load_directions`].
        """
        loading = {"device": device, "dtype": dtype, "trust_remote_code": trust_remote_code, "policy": policy}
        languages = {"source_language": source_language, "target_language": target_language}
        loaded = load_direction(path, direction, **loading, **languages)
        return cls(*loaded, splitter=splitter, max_sentence_words=max_sentence_words, **dials)

    def fork(self, **dials) -> "SimultaneousTranslator":
        """An independent stream over the same model; `dials` replace this one's."""
        return type(self)(
            self.model,
            self.source_tokenizer,
            self.target_tokenizer,
            self.splitter,
            self.max_sentence_words,
            **(self.dials | dials),
        )

    def reset(self):
        """Forgets everything but the model."""
        self.words: list[str] = []  # written
        self.path: list[int] = []  # source words read before each of them
        self.words_read = self.tokens_read = 0
        self._finished = False
        self._source = WordCutter()
        self._seconds = 0.0
        self._start_sentence()

    def _start_sentence(self):
        self._cutter.start()
        self._stream: TokenStream = self.model.open_stream(**self.dials)
        self._assembler = WordAssembler(self.target_tokenizer)
        self._unread: deque[list] = deque()  # [source word, its tokens still to be read]
        self._sentence: list[str] = []  # source words read
        self._first_word = len(self.words)

    @property
    def text(self) -> str:
        """All that has been written of this text."""
        return " ".join(self.words)

    def __enter__(self) -> "SimultaneousTranslator":
        return self

    def __exit__(self, *_):
        self.reset()

    # Going in

    def push(self, text: str | bytes) -> list[Event]:
        """More of the source; returns what became possible."""
        return list(self._push(text))

    def pause(self) -> list[Event]:
        """The speaker pauses: ends the sentence, and returns the rest of it. The text goes on."""
        return list(self._pause())

    def finish(self) -> list[Event]:
        """The source has ended; returns the rest. The next `push` starts a new text, as after a `reset`."""
        return list(self._finish())

    def stream(self, chunks: Iterable[str | bytes]) -> Iterator[Event]:
        """Events of a source that arrives in chunks, each as soon as it is decided, to the end.

        A stream that is left earlier gives up its text: the next push starts a new one.
        """
        with self._one_text():
            for chunk in chunks:
                yield from self._push(chunk)
            yield from self._finish()

    async def astream(self, chunks: AsyncIterable[str | bytes]) -> AsyncIterator[Event]:
        """`stream` for servers: the model runs in a thread, so that the event loop stays free.

        A cancellation waits for the thread, which stops at the next event.
        """
        with self._one_text():
            async for chunk in chunks:
                for event in await in_thread(self._push(chunk)):
                    yield event
            for event in await in_thread(self._finish()):
                yield event

    def translate(self, text: str) -> str:
        """The translation of a whole text, as a stream of its own would give it."""
        fork = self.fork()
        fork.push(text)
        fork.finish()
        return fork.text

    def _begin(self):
        if self._finished:
            self.reset()

    @contextmanager
    def _one_text(self) -> Iterator[None]:
        self._begin()
        text = self._source
        try:
            yield
        finally:
            if self._source is text:  # and not a later one: Python may close a generator late
                self._finished = True

    def _push(self, text: str | bytes) -> Iterator[Event]:
        self._begin()
        for word in self._source.push(text):
            yield from self._read_word(word)

    def _pause(self) -> Iterator[Event]:
        if self._finished:
            return
        for word in self._source.finish():
            yield from self._read_word(word)
        if self._cutter.tokens:
            yield from self._end_sentence()

    def _finish(self) -> Iterator[Event]:
        yield from self._pause()
        self._finished = True

    def _read_word(self, word: str) -> Iterator[Event]:
        tokens = encode_word(self.source_tokenizer, word)[: self.max_source_tokens]
        if self._cutter.before(word, len(tokens)):
            yield from self._end_sentence()
        ended = self._cutter.after(word, len(tokens))
        self._unread.append([word, len(tokens)])
        yield from self._follow(self._stream.push(tokens))
        if ended:
            yield from self._end_sentence()

    def _end_sentence(self) -> Iterator[Event]:
        yield from self._follow(self._stream.push([self.source_tokenizer.eos_token_id]))
        yield from self._follow(self._stream.finish())
        end = SentenceEnd(
            source=" ".join(self._sentence),
            target=" ".join(self.words[self._first_word :]),
            source_span=(self.words_read - len(self._sentence), self.words_read),
            target_span=(self._first_word, len(self.words)),
        )
        self._start_sentence()
        yield end

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
            yield self._read(entry[0])
            entry[0] = None
        entry[1] -= 1
        if entry[1] == 0:
            self._unread.popleft()

    def _read_empty_words(self) -> Iterator[Event]:
        """Words that the tokenizer drops (control characters) are read and say nothing."""
        while self._unread and self._unread[0][0] is not None and self._unread[0][1] == 0:
            yield self._read(self._unread.popleft()[0])

    def _read(self, word: str) -> Read:
        self.words_read += 1
        self._sentence.append(word)
        return Read(word)

    def _written(self, word: str | None) -> Iterator[Event]:
        if word is None:
            return
        seconds, self._seconds = self._seconds, 0.0
        self.words.append(word)
        self.path.append(self.words_read)
        yield Write(word, self.words_read, self.tokens_read, seconds)


async def in_thread(events: Iterator[Event]) -> list[Event]:
    """All events, computed in a thread. When this is cancelled the thread stops at the next event, and is waited for:
    two threads never share a stream."""
    cancelled = Flag()

    def run() -> list[Event]:
        found = []
        for event in events:
            found.append(event)
            if cancelled.is_set():
                break
        return found

    thread = asyncio.get_running_loop().run_in_executor(None, run)
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        cancelled.set()
        while not thread.done():
            with suppress(asyncio.CancelledError):  # asked again: it is on its way
                await asyncio.wait([thread])
        raise
