import asyncio
import time

import pytest
import torch
from conftest import dual_model
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_dualpath.inference.batches import translate_corpus
from hf_dualpath.inference.streaming import Read, SimultaneousTranslator, Write, ends_sentence
from hf_dualpath.inference.tokenization import save_tokenizers, train_bpe_tokenizer


TEXT = "Der kleine Hund läuft über die Wiese. Die Katze schläft, aber wo? Niemand weiß es"
POLICIES = ("wait_k", "mma", "shared_path")


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe_tokenizer([TEXT] * 5, vocab_size=340, show_progress=False)


def make_translator(tokenizer, policy="shared_path", seed=0, **options) -> SimultaneousTranslator:
    torch.manual_seed(seed)
    model = dual_model(policy=policy, vocab_size=len(tokenizer), max_position_embeddings=128).eval().forward_model
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3.0 if "policy" in name else 1.5)
    return SimultaneousTranslator(model, tokenizer, tokenizer, **options)


def untimed(events):
    return [(e.word,) if isinstance(e, Read) else (e.word, e.source_words_read, e.source_tokens_read) for e in events]


def run(translator, chunks):
    fork = translator.fork()
    return untimed(event for chunk in chunks for event in fork.push(chunk)) + untimed(fork.finish())


@pytest.mark.parametrize("policy", POLICIES)
@given(cuts=st.lists(st.integers(0, len(TEXT.encode())), max_size=8), as_bytes=st.booleans())
@settings(max_examples=15, deadline=None)
def test_any_cutting_gives_the_same_events(tokenizer, policy, cuts, as_bytes):
    translator = make_translator(tokenizer, policy)
    whole = TEXT.encode() if as_bytes else TEXT
    edges = [0, *sorted(cuts), len(whole)]
    chunks = [whole[start:end] for start, end in zip(edges, edges[1:])]
    assert run(translator, chunks) == run(translator, [TEXT])


@pytest.mark.parametrize("policy", POLICIES)
def test_streamed_equals_batched(tokenizer, policy):
    sentences = ["Der kleine Hund läuft über die Wiese", "Niemand weiß es", "Die Katze", "läuft"]
    for seed in range(3):
        translator = make_translator(tokenizer, policy, seed, is_sentence_end=None)
        batched, _ = translate_corpus(translator.model, tokenizer, tokenizer, sentences, progress=False)
        for sentence, translation in zip(sentences, batched):
            stream = translator.fork()
            events = [event for word in sentence.split() for event in stream.push(word + " ")] + stream.finish()
            assert stream.words == translation.words and stream.path == translation.word_path
            assert [e.word for e in events if isinstance(e, Write)] == translation.words
            assert [e.word for e in events if isinstance(e, Read)] == sentence.split()
            assert stream.text == translation.text


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_lost_or_doubled_or_changed(tokenizer, policy):
    translator = make_translator(tokenizer, policy)
    seen, reads = [], 0
    for position, character in enumerate(TEXT):
        for event in translator.push(character):
            if isinstance(event, Read):
                reads += 1
            else:
                seen.append(event.word)
                assert event.source_words_read == reads
            assert translator.words[: len(seen)] == seen
        complete = TEXT[: position + 1].count(" ")
        assert reads <= complete, "nothing is read before its space has arrived"
    translator.finish()
    assert translator.words_read == len(TEXT.split())
    assert translator.path == sorted(translator.path)


def test_words_are_read_only_when_complete(tokenizer):
    translator = make_translator(tokenizer)
    assert translator.push("Der klei") and translator.words_read == 1
    assert not any(isinstance(event, Read) for event in translator.push("ne"))
    assert Read("kleine") in translator.push(" ")


def test_a_word_is_written_before_the_end(tokenizer):
    """With wait-1 each word is answered at once: the translator does not secretly wait."""
    translator = make_translator(tokenizer, max_lag=1, min_new_tokens=30)
    for count, word in enumerate("Die Katze schläft aber wo".split(), 1):
        events = translator.push(word + " ")
        assert isinstance(events[0], Read)
        tokens = translator._stream.decoding.written
        assert tokens == translator.tokens_read, "one token written for each token read"
        assert count == translator.words_read


def test_sentences_end_as_they_arrive(tokenizer):
    translator = make_translator(tokenizer)
    whole = run(translator, [TEXT])
    parts = []
    for sentence in ("Der kleine Hund läuft über die Wiese.", "Die Katze schläft, aber wo?", "Niemand weiß es"):
        parts += [entry[0] for entry in run(translator, [sentence])]
    assert [entry[0] for entry in whole] == parts, "each sentence is translated as if it were alone"
    one = make_translator(tokenizer, is_sentence_end=None)
    one.push(TEXT)
    assert one._sentence_tokens >= 14


@pytest.mark.parametrize(
    "word, ends",
    [("Ende.", True), ("Wer?", True), ('"So!"', True), ("(da.)", True), ("3.", False), ("J.", False), ("24.", False)]
    + [("Wort", False), ("so,", False), ("wirklich…", True), ("。", True), ("ja?!", True)],
)
def test_sentence_ends(word, ends):
    assert ends_sentence(word) == ends


def test_two_streams_do_not_meet(tokenizer):
    translator = make_translator(tokenizer)
    texts = TEXT.split(". ")
    alone = [run(translator, [text]) for text in texts]
    forks, events = [translator.fork() for _ in texts], [[] for _ in texts]
    for position in range(max(map(len, texts))):
        for text, fork, seen in zip(texts, forks, events):
            seen += untimed(fork.push(text[position : position + 1]))
    for fork, seen in zip(forks, events):
        seen += untimed(fork.finish())
    assert events == alone


def test_stream_and_its_async_twin(tokenizer):
    translator = make_translator(tokenizer)
    expected = run(translator, [TEXT])
    assert untimed(translator.fork().stream([TEXT[:9], TEXT[9:]])) == expected

    async def chunks():
        for word in TEXT.split():
            yield word + " "

    async def collect():
        return [event async for event in translator.fork().astream(chunks())]

    assert untimed(asyncio.run(collect())) == expected


def test_translate_reset_and_context(tokenizer):
    translator = make_translator(tokenizer)
    text = translator.translate(TEXT)
    assert text and translator.words == [], "a whole text does not disturb the stream"
    with translator as stream:
        stream.push(TEXT)
        stream.finish()
        assert stream.text == text and len(stream.path) == len(stream.words)
    assert translator.text == "" and translator.words_read == 0


@pytest.mark.parametrize(
    "text",
    ["", "   \n\t ", "😀 😀😀", "漢字かな交じり文", "שלום עולם", "a\x00b \x7f\x1b[0m", "\u200b \u2060", "ẍ" * 50]
    + ["Donaudampfschiff" * 313],
)
def test_strange_input(tokenizer, text):
    """No crash; every word is read; a word longer than the model can hold is read as far as it goes."""
    translator = make_translator(tokenizer)
    events = translator.push(text) + translator.finish()
    assert [event.word for event in events if isinstance(event, Read)] == text.split()


def test_invalid_bytes_are_replaced(tokenizer):
    translator = make_translator(tokenizer)
    events = translator.push(b"abc\xff\xfe def ") + translator.finish()
    assert [event.word for event in events if isinstance(event, Read)] == ["abc��", "def"]


def test_an_endless_stream_stays_flat(tokenizer):
    """State per sentence only: the last thousand words are as fast as the first; no cache outlives its sentence."""
    translator = make_translator(tokenizer)
    sentence = "Der kleine Hund läuft über die Wiese. "

    def seconds(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            translator.push(sentence)
        return time.perf_counter() - start

    seconds(3)
    first = seconds(20)
    seconds(60)
    assert seconds(20) < 3 * first
    assert translator._stream.decoding.available == 0 and translator.words_read == 103 * 7


def test_from_pretrained(tokenizer, tmp_path):
    model = dual_model(vocab_size=len(tokenizer))
    model.save_pretrained(tmp_path)
    save_tokenizers(tmp_path, tokenizer, tokenizer)
    assert SimultaneousTranslator.from_pretrained(tmp_path, direction="en-de", min_lag=2).model.config.policy
    with pytest.raises(ValueError, match="'de-en' and 'en-de'"):
        SimultaneousTranslator.from_pretrained(tmp_path, direction="fr-en")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        SimultaneousTranslator.from_pretrained(tmp_path / "nothing")
    with pytest.raises(ValueError, match="write_threshold"):
        SimultaneousTranslator.from_pretrained(tmp_path, write_threshold=2)
    model.direction("de-en").save_pretrained(tmp_path / "single")
    save_tokenizers(tmp_path / "single", tokenizer, tokenizer)
    assert SimultaneousTranslator.from_pretrained(tmp_path / "single")
    dual_model(vocab_size=len(tokenizer), policy="offline").save_pretrained(tmp_path / "offline")
    save_tokenizers(tmp_path / "offline", tokenizer, tokenizer)
    with pytest.raises(ValueError, match="offline"):
        SimultaneousTranslator.from_pretrained(tmp_path / "offline")
