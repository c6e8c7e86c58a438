"""Whole texts in batches: the words that a stream gives."""

from functools import cache
from random import Random

import pytest
import torch
from conftest import dual_model
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_dualpath.inference.batches import translate_corpus, translate_texts
from hf_dualpath.inference.events import Read, Write
from hf_dualpath.inference.splitting import SentenceSplitter, replace_surrogates
from hf_dualpath.inference.streaming import SimultaneousTranslator
from hf_dualpath.inference.tokenization import train_bpe_tokenizer


TEXT = 'Der Hund läuft. Dr. Müller 10. Er z.B. "Stop!" und, (ja.) wo? ab…'
WORDS = [*TEXT.split(), "\u200b", "\ud800", "Donau" * 30]


@cache
def direction():
    tokenizer = train_bpe_tokenizer([TEXT] * 5, vocab_size=330, show_progress=False)
    torch.manual_seed(0)
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 24}
    model = dual_model(vocab_size=len(tokenizer), **sizes).eval().forward_model
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3.0 if "policy" in name else 1.5)
    return model, tokenizer, tokenizer


@given(
    st.lists(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join), max_size=3),
    st.sampled_from([None, SentenceSplitter]),
    st.sampled_from([None, 4]),
)
@settings(max_examples=20, deadline=None)
def test_the_same_words_and_sentences_as_a_stream(texts, splitter, limit):
    """Of all texts: with abbreviations and quotes, too long for the model, without anything to translate."""
    options = {"splitter": splitter, "max_sentence_words": limit}
    found, _ = translate_texts(*direction(), texts, batch_size=3, progress=False, **options)
    translator = SimultaneousTranslator(*direction(), **options)
    for text, sentences in zip(texts, found, strict=True):
        events = list(translator.stream([text]))
        ends = [(event.source, event.target) for event in events if type(event).__name__ == "SentenceEnd"]
        assert [(sentence.source, sentence.text) for sentence in sentences] == ends
        assert [word for sentence in sentences for word in sentence.words] == translator.words


def test_six_hundred_batch_mates():
    """Whoever a sentence shares its batch with, it gets the same tokens at the same moments."""
    random = Random(0)
    texts = [" ".join(random.choices(TEXT.split(), k=random.randint(1, 3))) for _ in range(600)]
    wide, narrow = (translate_corpus(*direction(), texts, batch_size=size, progress=False)[0] for size in (600, 37))
    assert [(one.tokens, one.path) for one in wide] == [(one.tokens, one.path) for one in narrow]
    for index in random.sample(range(600), 10):
        alone = translate_corpus(*direction(), [texts[index]], progress=False)[0][0]
        assert (alone.tokens, alone.path) == (wide[index].tokens, wide[index].path)


ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=40)  # surrogates too


@given(ANY_TEXT, st.lists(st.integers(0, 160), max_size=5), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_unicode_streams(text, cuts, as_bytes):
    """All of Unicode, halves of characters too, as text or bytes cut anywhere: every word is read, nothing fails."""
    whole = text.encode("utf-8", "replace") if as_bytes else text
    edges = [0, *sorted(cuts), len(whole)]
    translator = translator_of_few_tokens()
    events = [event for a, b in zip(edges, edges[1:]) for event in translator.push(whole[a:b])] + translator.finish()
    expected = whole.decode() if as_bytes else replace_surrogates(text)
    assert [event.word for event in events if isinstance(event, Read)] == expected.split()
    written = [event.word for event in events if isinstance(event, Write)]
    assert written == translator.words and all(word and not word.isspace() for word in written)
    "".join(written).encode()  # no half of a character comes out


@cache
def translator_of_few_tokens() -> SimultaneousTranslator:
    return SimultaneousTranslator(*direction(), max_new_tokens=2)


def test_a_batch_has_at_least_one_sentence():
    for translate in (translate_corpus, translate_texts):
        with pytest.raises(ValueError, match="at least 1, not -1"):
            translate(*direction(), ["Der Hund"], batch_size=-1, progress=False)
