"""Whole texts in batches: the words that a stream gives."""

from functools import cache

import pytest
import torch
from conftest import dual_model
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_dualpath.inference.batches import translate_corpus, translate_texts
from hf_dualpath.inference.splitting import SentenceSplitter
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


def test_a_batch_has_at_least_one_sentence():
    for translate in (translate_corpus, translate_texts):
        with pytest.raises(ValueError, match="at least 1, not -1"):
            translate(*direction(), ["Der Hund"], batch_size=-1, progress=False)
