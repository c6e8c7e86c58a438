"""The text side of a stream: words in, READ and WRITE events out, over the token streams of an engine.

It computes nothing. Who drives it ticks the engine: [`SimultaneousTranslator`] its own, [`StreamPool`] one for many
texts. There is no torch in this file: the light runtime uses it too.
"""

from collections import deque
from collections.abc import Callable, Iterator

from .events import Event, Read, SentenceEnd, Write
from .splitting import SentenceCutter, SentenceSplitter, Splitter, WordCutter
from .words import WordAssembler, encode_word


class TextStream:
    """A text that arrives, and its translation. Text is fed as it comes; `take` hands out what has become of it.

    Each sentence is a token stream of its own. The next one is opened when the sentence before is written, so that
    events come in order.

    Args:
        model: One direction with `open_engine` and `stream_settings`, of any policy but offline.
        source_tokenizer, target_tokenizer: Its tokenizers, in that order.
        splitter, max_sentence_words: See [`SimultaneousTranslator`].
        remembers (`bool`, *optional*, defaults to `True`):
            `words` and `path` are those of the whole text; without it, so that nothing grows, of the sentence alone.
        engine ([`Engine`], *optional*): Where sentences are opened; by default an engine of its own.
        dials: Arguments of `stream_settings`.
    """

    def __init__(
        self,
        model,
        source_tokenizer,
        target_tokenizer,
        splitter: Callable[[str | None], Splitter] | None = SentenceSplitter,
        max_sentence_words: int | None = None,
        engine=None,
        remembers: bool = True,
        **dials,
    ):
        self.model, self.remembers = model, remembers
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.splitter, self.max_sentence_words = splitter, max_sentence_words
        self.dials, self._settings = dials, model.stream_settings(**dials)
        self.engine = model.open_engine() if engine is None else engine
        self.max_source_tokens = model.config.max_position_embeddings - 1
        self._cutter = SentenceCutter(
            model.config.source_language, splitter, max_sentence_words, self.max_source_tokens
        )
        self._stream = None
        self.reset()

    def reset(self):
        """Forgets everything but the model."""
        if self._stream is not None:
            self._stream.close()
        self.words: list[str] = []  # written
        self.path: list[int] = []  # source words read before each of them
        self.words_read = self.tokens_read = self.words_written = 0
        self.seconds = 0.0  # of computing since the last word; who ticks the engine adds to it
        self._finished = False
        self._source = WordCutter()
        self._cutter.start()
        # What is still to be fed: words, ends of sentences (None), and other settings for what follows.
        self._waiting: deque[tuple[str, list[int]] | dict | None] = deque()
        self._start_sentence()

    def close(self):
        """Gives up what is being translated, and frees its memory."""
        self._stream.close()

    def _start_sentence(self):
        self._stream = self.engine.open(**self._settings)
        self._assembler = WordAssembler(self.target_tokenizer)
        self._unread: deque[list] = deque()  # [source word, its tokens still to be read]
        self._sentence: list[str] = []  # source words read
        self._first_word = self.words_written
        if not self.remembers:
            self.words.clear()
            self.path.clear()
        self._ended = False  # all of the sentence is fed

    @property
    def text(self) -> str:
        """All that has been written of this text."""
        return " ".join(self.words)

    @property
    def done(self) -> bool:
        """The text has ended, and everything is written."""
        return self._finished and not self._waiting and not self._ended

    # Going in

    def feed(self, text: str | bytes):
        """More of the text."""
        for word in self._source.push(text):
            self._cut(word)
        self._feed_sentence()

    def feed_pause(self):
        """The speaker pauses: the sentence ends, the text goes on."""
        for word in self._source.finish():
            self._cut(word)
        if self._cutter.tokens:
            self._end_sentence()
        self._feed_sentence()

    def end(self):
        """The text has ended."""
        self.feed_pause()
        self._finished = True

    def set_dials(self, **dials):
        """Other dials, from the next sentence on; one that is None falls back to the model's."""
        given = {name: value for name, value in (self.dials | dials).items() if value is not None}
        self.dials = given
        self._waiting.append(self.model.stream_settings(**given))
        self._feed_sentence()

    def _cut(self, word: str):
        tokens = encode_word(self.source_tokenizer, word)[: self.max_source_tokens]
        if self._cutter.before(word, len(tokens)):
            self._end_sentence()
        ended = self._cutter.after(word, len(tokens))
        self._waiting.append((word, tokens))
        if ended:
            self._end_sentence()

    def _end_sentence(self):
        self._waiting.append(None)
        self._cutter.start()

    def _feed_sentence(self):
        """Feeds what is there of the sentence that is being translated."""
        while self._waiting and not self._ended:
            following = self._waiting.popleft()
            if following is None:
                self._stream.feed([self.source_tokenizer.eos_token_id])
                self._stream.end()
                self._ended = True
            elif isinstance(following, dict):
                self._settings = following
                if not (self._sentence or self._unread):
                    self._stream.close()
                    self._start_sentence()
            else:
                word, tokens = following
                self._unread.append([word, len(tokens)])
                self._stream.feed(tokens)

    # Coming out

    def take(self) -> list[Event]:
        """The events since this was last asked."""
        return list(self._events())

    def _events(self) -> Iterator[Event]:
        yield from self._follow()
        if self._ended and self._stream.done:
            count = self.words_written - self._first_word
            end = SentenceEnd(
                source=" ".join(self._sentence),
                target=" ".join(self.words[len(self.words) - count :]),
                source_span=(self.words_read - len(self._sentence), self.words_read),
                target_span=(self._first_word, self.words_written),
            )
            self._start_sentence()
            self._feed_sentence()
            yield end

    def _follow(self) -> Iterator[Event]:
        """Turns reads and writes of tokens into events of words."""
        actions = self._stream.take()
        last_write = max((index for index, action in enumerate(actions) if action is not None), default=None)
        for index, action in enumerate(actions):
            if action is None:
                self.tokens_read += 1
                yield from self._read_token()
            else:
                yield from self._written(self._assembler.push(action[0]))
            if self._stream.done and index == last_write:
                yield from self._written(self._assembler.finish())
        if self._stream.done or self._stream.waits:
            yield from self._read_empty_words()

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
        seconds, self.seconds = self.seconds, 0.0
        self.words_written += 1
        self.words.append(word)
        self.path.append(self.words_read)
        yield Write(word, self.words_read, self.tokens_read, seconds)
