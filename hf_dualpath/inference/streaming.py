"""Words in, READ and WRITE events out: a live stream of text over one direction of a model."""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event as Flag
from typing import TYPE_CHECKING

from .events import Event
from .splitting import SentenceSplitter, Splitter
from .text_stream import TextStream


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from ..model.modeling_dualpath import SiMTForConditionalGeneration


class SimultaneousTranslator(TextStream):
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
        model: "SiMTForConditionalGeneration",
        source_tokenizer: "PreTrainedTokenizerFast",
        target_tokenizer: "PreTrainedTokenizerFast",
        splitter: Callable[[str | None], Splitter] | None = SentenceSplitter,
        max_sentence_words: int | None = None,
        **dials,
    ):
        super().__init__(model.eval(), source_tokenizer, target_tokenizer, splitter, max_sentence_words, **dials)

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
        backend: str = "torch",
        **dials,
    ) -> "SimultaneousTranslator":
        """A translator from a checkpoint's folder or Hub id; of a dual one, by default the forward direction.

        The arguments from `device` to `target_language` are those of [`load_directions`]. With `backend="onnx"` the
        folder is one that `dualpath export` wrote, and neither torch nor transformers is needed.
        """
        languages = {"source_language": source_language, "target_language": target_language}
        if backend == "onnx":  # needs nothing of what the others need
            from .onnx_backend import check_loading, load_exported

            check_loading(device=device, dtype=dtype, policy=policy, **languages)
            loaded = load_exported(path, direction)
        else:
            from .checkpoints import load_direction

            loading = {"device": device, "dtype": dtype, "trust_remote_code": trust_remote_code, "policy": policy}
            loaded = load_direction(path, direction, **loading, **languages, backend=backend)
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
        self.feed(text)
        yield from self._run()

    def _pause(self) -> Iterator[Event]:
        if not self._finished:
            self.feed_pause()
            yield from self._run()

    def _finish(self) -> Iterator[Event]:
        yield from self._pause()
        self._finished = True

    def _run(self) -> Iterator[Event]:
        """Ticks until there is nothing to do and nothing to say; a sentence that ends makes room for the next."""
        working = True
        while working:
            working = False
            for event in self._events():
                working = True
                yield event
            began = time.perf_counter()
            working |= self.engine.tick()
            self.seconds += time.perf_counter() - began


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
