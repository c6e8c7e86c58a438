import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_dualpath.inference.splitting import (
    MAX_WORD_CHARACTERS,
    SentenceCutter,
    SentenceSplitter,
    WordCutter,
    base_language,
    whole_words,
)


def sentences(language, text, splitter=SentenceSplitter, max_words=None, max_tokens=1000) -> list[str]:
    cutter = SentenceCutter(language, splitter, max_words, max_tokens)
    return [" ".join(sentence) for sentence in cutter.cut((word, 1) for word in text.split())]


def test_languages_by_other_names():
    for name in ("de", "de-AT", "de_DE", "deu_Latn", "German"):
        assert base_language(name) == "de"


@pytest.mark.parametrize(
    "language, text",
    [
        ("de", "Ich traf Dr. Müller. | Er kam z.B. mit Prof. Meier. | Nr. 5 lebt."),
        ("de", "Das kostet ca. 3 Mio. Euro. | Er kam z. B. gestern, d. h. Sie auch."),
        ("de", "Er kam um 10. | Er auch. | Am 3. Mai begann der 2. Weltkrieg. | Das 19. Jahrhundert."),
        ("de", "Äpfel, Birnen usw. | Dann kam der Nachtisch. | Äpfel usw. Birnen auch."),
        ("de", '"Halt!" rief er. | "Halt!" | Er rief. | (Das war gestern.) | Heute nicht. | »Gut.« | Er ging.'),
        ("de", "Ich … weiß nicht. | Er ging… | Sie auch... | Na so was! | wirklich? | Ja. | nein."),
        ("de_AT", "J. S. Bach kam 1723. | Leipzig war groß."),
        ("en", "Mr. Smith met Dr. J. Jones. | He left. | No. 5 is here. | He said no. | Then he left."),
        (
            "en",
            'The U.S. is big. | In the U.S. | She did too. | "Stop!" and ran. | He said "Stop!" | He ran.',
        ),
        ("en", "At 5 p.m. he ate apples, e.g. Granny Smith, etc. | The end. | Call me. | Paris is ill. | Berlin too."),
        ("fr", "Il est parti. | Elle aussi ! | Vraiment ? | Oui."),
        ("zh", "你好。 | 再见！ | 好"),
        ("hi", "यह घर है। | वह आया।"),
        (None, "Dr. Smith came. | He left."),
        ("no such language", "Dr. Smith came. | He left."),
        ("de", "Hund . | Katze ? | ."),
        ("de", ""),
    ],
)
def test_sentences(language, text):
    assert sentences(language, text.replace(" | ", " ")) == [part for part in text.split(" | ") if part]


@pytest.mark.parametrize("language", ["de", "en", "fr", None])
@pytest.mark.parametrize("word", ["Haus.", "you.", "Wer?", "Stop!", "ja?!", "1990.", "GmbH.", "。", "."])
def test_what_is_clear_is_decided_at_once(language, word):
    assert SentenceSplitter(language).after(word), "no word more is waited for"


@pytest.mark.parametrize("language, word", [("de", "mich."), ("de", "mag."), ("en", "me."), ("en", "ill.")])
def test_usual_words_are_no_abbreviations(language, word):
    assert SentenceSplitter(language).after(word)


@pytest.mark.parametrize("word", ["Dr.", "z.B.", "3.", "J.", '"Stop!"', "so...", "etc.", "(da.)", "Wort", "so,", "a:"])
def test_what_is_not_clear_waits(word):
    splitter = SentenceSplitter("de")
    assert not splitter.after(word)
    assert not splitter.before("aber"), "a small letter never begins a sentence there"


def test_a_sentence_longer_than_the_model_can_read():
    assert sentences("de", "a b c d ee. f", max_tokens=2) == ["a b", "c d", "ee.", "f"]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a b c d e f g h i j", ["a b c d e f", "g h i j"]),
        ("a b c d e, f g h i j", ["a b c d e,", "f g h i j"]),
        ("a b c d und f g h i j", ["a b c d", "und f g h i j"]),
        ("a b c, d und e f g h", ["a b c, d", "und e f g h"]),
        ("a, b und c d e f", ["a, b und c d e", "f"]),
        ("a b c da. e f g h i j", ["a b c da.", "e f g h i j"]),
    ],
)
def test_text_without_punctuation(text, expected):
    assert sentences("de", text, max_words=6) == expected


@given(st.lists(st.sampled_from("a b und c, Dr. d. 3. Er".split()), max_size=60), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_no_sentence_is_longer_than_allowed_and_none_is_lost(words, limit):
    found = sentences("de", " ".join(words), max_words=limit)
    assert all(0 < len(sentence.split()) <= limit for sentence in found)
    assert " ".join(found).split() == words


def test_a_limit_below_one_gets_a_sentence():
    with pytest.raises(ValueError, match="at least 1 word"):
        sentences("de", "a", max_words=0)


@given(st.text(st.sampled_from("ab ä\n\u00a0😀\ud800."), max_size=30), st.lists(st.integers(0, 30), max_size=6))
@settings(max_examples=200, deadline=None)
def test_words_do_not_depend_on_the_cuts(text, cuts):
    edges = [0, *sorted(cuts), 30]
    cutter = WordCutter()
    found = [word for start, end in zip(edges, edges[1:]) for word in cutter.push(text[start:end])]
    assert found + cutter.finish() == whole_words(text) == text.replace("\ud800", "\ufffd").split()


def test_a_word_without_end_takes_linear_time_and_little_memory():
    """16 MB in chunks of 1 kB: 16,000 concatenations of the whole took minutes."""
    start = time.perf_counter()
    cutter = WordCutter()
    for _ in range(16_000):
        assert cutter.push("x" * 1000) == []
        assert cutter._characters <= MAX_WORD_CHARACTERS and len(cutter._pieces) <= MAX_WORD_CHARACTERS
    assert cutter.push(" y ") == ["x" * MAX_WORD_CHARACTERS, "y"]
    assert time.perf_counter() - start < 5
