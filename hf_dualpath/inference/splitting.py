"""Cutting a stream: text into words as they arrive, and words into sentences.

Whether a period ends a sentence is sometimes known only at the next word: `Dr.`, `3.`, `"Stop!"`. Abbreviations are
those of `sentencex`, which knows them for many languages.
"""

import codecs
import re
from collections.abc import Callable, Iterable
from typing import Protocol


try:
    import sentencex
except ModuleNotFoundError:  # the light install has no lists of abbreviations
    sentencex = None


MAX_WORD_CHARACTERS = 10_000  # of a longer word the rest is dropped: it would not fit into any model


class WordCutter:
    """Text or UTF-8 bytes, cut anywhere, into words. A word is complete when the space behind it has arrived."""

    def __init__(self):
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: list[str] = []  # of a word whose end has not arrived
        self._characters = 0

    def push(self, text: str | bytes) -> list[str]:
        """The words that this text completes."""
        text = self._decoder.decode(text) if isinstance(text, bytes) else replace_surrogates(text)
        words = text.split()
        if not words:
            return self._complete() if text else []
        complete = [] if not text[0].isspace() else self._complete()
        for word in words[:-1]:
            self._grow(word)
            complete += self._complete()
        self._grow(words[-1])
        return complete + self._complete() if text[-1].isspace() else complete

    def finish(self) -> list[str]:
        """The text has ended, and with it the last word."""
        self._grow(self._decoder.decode(b"", final=True))
        return self._complete()

    def _grow(self, piece: str):
        piece = piece[: MAX_WORD_CHARACTERS - self._characters]
        if piece:
            self._pieces.append(piece)
            self._characters += len(piece)

    def _complete(self) -> list[str]:
        word = "".join(self._pieces)
        self._pieces, self._characters = [], 0
        return [word] if word else []


def whole_words(text: str) -> list[str]:
    """The words of a text that is all there."""
    cutter = WordCutter()
    return cutter.push(text) + cutter.finish()


def replace_surrogates(text: str) -> str:
    """Halves of characters, which no tokenizer takes, become U+FFFD, as broken bytes do."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


class Splitter(Protocol):
    """Finds the end of one sentence; the next sentence gets a new splitter.

    For each word `before` is asked first. If the sentence does not end there the word is read, and `after` is asked.
    """

    def before(self, word: str) -> bool:
        """Whether the sentence has ended before this word."""

    def after(self, word: str) -> bool:
        """Whether the sentence ends with this word. To wait for the next one, say no and answer its `before`."""


# A sign that can end a sentence, with quotes or brackets behind it.
SENTENCE_END = re.compile(r"""[.!?…。！？؟।][^\w\s.!?…,;:]*$""")
# "3." and "J." and "z.B." rarely end one.
NUMBER = re.compile(r"\d{1,3}\.")
INITIALS = re.compile(r"([^\W\d]\.)+")
# Words that sentencex takes for abbreviations (Michigan, Magister, Maine) and that end many sentences.
NO_ABBREVIATIONS = {"de": {"Bart.", "mag.", "mich."}, "en": {"ID.", "OK.", "art.", "ill.", "may.", "me.", "sec."}}
# German nouns are capitalised: only words like these show that a new sentence has begun.
STARTERS = {
    "de": set(
        """Aber Alle Alles Als Also Am An Auch Auf Aus Bei Bis Da Dabei Dafür Dagegen Daher Damals Damit Danach Dann
        Darum Das Dass Davon Dazu Dem Den Denn Der Deshalb Dessen Die Dies Diese Dieser Dieses Doch Dort Du Durch Ein
        Eine Einen Einer Einige Er Erst Es Euch Für Ganz Gegen Gibt Hat Heute Hier Ich Ihm Ihn Ihnen Ihr Ihre Im Immer
        In Ist Ja Jede Jeder Jedes Jetzt Kann Kein Keine Mag Man Mein Meine Mir Mit Nach Natürlich Nein Nicht Nichts
        Niemand Noch Nun Nur Ob Oder Ohne Sein Seine Seit Sie Sind So Sogar Trotzdem Über Um Und Uns Unser Unsere Unter
        Viele Vielleicht Vom Von Vor Wann War Waren Warum Was Weil Welche Wenn Wer Wie Wieder Wir Wird Wo Zu Zuerst Zum
        Zur Zwar""".split()
    ),
}
# Words that begin a clause.
CONJUNCTIONS = {
    "de": set("aber als bevor damit dann dass denn doch nachdem ob obwohl oder sondern und während weil wenn".split()),
    "en": set("after although and because before but if or since so then though until when where while".split()),
}
EDGES = "\"'„“”‚‘’«»‹›()[]{}¿¡"


class SentenceSplitter:
    """Finds sentence ends by punctuation, at once wherever the word itself can tell.

    Args:
        language (`str`, *optional*): Of the text, such as `"de"`; unknown ones are split by what languages share.
    """

    def __init__(self, language: str | None = None):
        self.language = base_language(language)
        self._open: str | None = None  # a word with which the sentence may have ended

    def after(self, word: str) -> bool:
        self._open = None
        if SENTENCE_END.search(word) is None:
            return False
        if self._is_clear(word):
            return True
        self._open = word.strip(EDGES)
        return False

    def before(self, word: str) -> bool:
        following = word.lstrip(EDGES)
        if self._open is None or following[:1].islower():
            return False
        if self._open.endswith(("..", "…")) or self._is_clear(self._open):
            return True  # it was a pause, or a quote
        if self.language not in STARTERS:
            return self._is_cut(self._open, following)
        return INITIALS.fullmatch(self._open) is None and following.rstrip(EDGES + ",") in STARTERS[self.language]

    def _is_clear(self, word: str) -> bool:
        if word[-1] != ".":
            return word[-1] in "!?。！？؟।"
        word = word.strip(EDGES)
        if word.endswith("..") or NUMBER.fullmatch(word) or INITIALS.fullmatch(word):
            return False
        return word in NO_ABBREVIATIONS.get(self.language, ()) or self._is_cut(word, "Xx")

    def _is_cut(self, word: str, following: str) -> bool:
        return sentencex is None or len(sentencex.segment(self.language, f"{word} {following}")) > 1


class WordLimit:
    """Ends a sentence of too many words: among the last third after a comma or before a conjunction, if there is one.

    Args:
        language (`str`, *optional*): Of the text; German and English conjunctions are known.
        max_words (`int`): The longest sentence.
    """

    def __init__(self, language: str | None, max_words: int):
        if max_words < 1:
            raise ValueError(f"A sentence has at least 1 word: max_sentence_words={max_words} is too small.")
        self.max_words = max_words
        self.conjunctions = CONJUNCTIONS.get(base_language(language), set())
        self._words = 0

    @property
    def _is_long(self) -> bool:
        return self._words >= self.max_words - self.max_words // 3

    def before(self, word: str) -> bool:
        return self._is_long and word.strip(EDGES).lower() in self.conjunctions

    def after(self, word: str) -> bool:
        self._words += 1
        return self._words == self.max_words or (self._is_long and word.endswith((",", ";", ":")))


class SentenceCutter:
    """Cuts words into sentences: where a splitter says so, after too many words, or when the model can read no more.

    Args:
        language (`str`, *optional*): Of the text.
        splitter (`Callable[[str | None], Splitter]`, *optional*): Makes a sentence's splitter from the language.
        max_words (`int`, *optional*): The longest sentence in words.
        max_tokens (`int`): The longest sentence in tokens.
    """

    def __init__(
        self,
        language: str | None,
        splitter: Callable[[str | None], Splitter] | None,
        max_words: int | None,
        max_tokens: int,
    ):
        self.language, self.splitter, self.max_words, self.max_tokens = language, splitter, max_words, max_tokens
        self.start()

    def start(self):
        """A new sentence begins."""
        self.tokens = 0
        self._splitters: list[Splitter] = [] if self.splitter is None else [self.splitter(self.language)]
        if self.max_words is not None:
            self._splitters.append(WordLimit(self.language, self.max_words))

    def before(self, word: str, tokens: int) -> bool:
        """Whether a sentence has ended before this word of so many tokens."""
        too_long = self.tokens + tokens > self.max_tokens
        return self.tokens > 0 and (too_long or any(splitter.before(word) for splitter in self._splitters))

    def after(self, word: str, tokens: int) -> bool:
        """Takes the word in, and says whether a sentence ends with it."""
        self.tokens += tokens
        ended = [splitter.after(word) for splitter in self._splitters]  # all of them see all words
        return self.tokens > 0 and any(ended)

    def cut(self, words: Iterable[tuple[str, int]]) -> list[list[str]]:
        """The sentences of a whole text, of which the words and their numbers of tokens are given."""
        sentences: list[list[str]] = []
        sentence: list[str] = []
        for word, tokens in words:
            if self.before(word, tokens):
                sentences.append(sentence)
                sentence = []
                self.start()
            sentence.append(word)
            if self.after(word, tokens):
                sentences.append(sentence)
                sentence = []
                self.start()
        if self.tokens:
            sentences.append(sentence)
        self.start()
        return sentences


# Other names of languages, as translators of the Hub have them.
SHORT_NAMES = {
    **{"ara": "ar", "arb": "ar", "ces": "cs", "deu": "de", "german": "de", "ell": "el", "eng": "en", "english": "en"},
    **{"spa": "es", "spanish": "es", "fin": "fi", "fra": "fr", "french": "fr", "hin": "hi", "hun": "hu", "ita": "it"},
    **{
        "italian": "it",
        "jpn": "ja",
        "nld": "nl",
        "dutch": "nl",
        "pol": "pl",
        "por": "pt",
        "ron": "ro",
        "romanian": "ro",
    },
    **{"rus": "ru", "russian": "ru", "swe": "sv", "tur": "tr", "ukr": "uk", "vie": "vi", "zho": "zh"},
}


def base_language(language: str | None) -> str:
    """`"de"` of `"de"`, `"de_DE"`, `"de-AT"` and `"deu_Latn"`; English stands for a language that is not named."""
    base = re.split("[-_]", language or "en")[0].lower()
    return SHORT_NAMES.get(base, base)
