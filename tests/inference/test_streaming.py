import asyncio
import threading
import time
from dataclasses import replace

import pytest
import torch
from conftest import dual_model
from hypothesis import given, settings
from hypothesis import strategies as st
from published import published

from hf_dualpath import Read, SentenceEnd, SimultaneousTranslator, Write
from hf_dualpath.inference.batches import translate_corpus
from hf_dualpath.inference.tokenization import save_tokenizers, train_bpe_tokenizer


TEXT = "Der kleine Hund läuft über die Wiese. Die Katze schläft, aber wo? Niemand weiß es"
HARD = 'Dr. Müller kam um 10. Er rief z.B. "Stop!" und ging usw. Dann (na ja.) Er schlief … und schlief, wo 7. und so'
POLICIES = ("wait_k", "mma", "shared_path")
pytestmark = pytest.mark.filterwarnings("ignore:Recommended")  # of Marian's tokenizer: sacremoses, which it lacks


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe_tokenizer([TEXT] * 5, vocab_size=340, show_progress=False)


def make_translator(tokenizer, policy="shared_path", seed=0, **options) -> SimultaneousTranslator:
    torch.manual_seed(seed)
    sizes = {"encoder_layers": 1, "decoder_layers": 2, "max_position_embeddings": 128}
    model = dual_model(policy=policy, vocab_size=len(tokenizer), **sizes).eval().forward_model
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3.0 if "policy" in name else 1.5)
    return SimultaneousTranslator(model, tokenizer, tokenizer, **options)


HUB_POLICIES = ("wait_k", "local_agreement", "align_att")


@pytest.fixture(scope="module")
def hub_translators(tmp_path_factory):
    """A translator of the Hub, with each of its policies."""
    folder, _ = published("marian", tmp_path_factory.mktemp("published"))
    return {name: SimultaneousTranslator.from_pretrained(folder, policy=name) for name in HUB_POLICIES}


@pytest.fixture(params=["shared_path", *HUB_POLICIES])
def make(request, tokenizer, hub_translators):
    """Makes a translator of our own or of the Hub: what a stream does with text is the same for both."""

    def make_either(**options) -> SimultaneousTranslator:
        if request.param == "shared_path":
            return make_translator(tokenizer, **options)
        hub = hub_translators[request.param]
        return SimultaneousTranslator(
            hub.model, hub.source_tokenizer, hub.target_tokenizer, **{"max_new_tokens": 9} | options
        )

    return make_either


def untimed(events):
    return [replace(event, seconds=0.0) if isinstance(event, Write) else event for event in events]


def words(events):
    return [(type(event), event.word) for event in events if not isinstance(event, SentenceEnd)]


def run(translator, chunks):
    fork = translator.fork()
    return untimed(event for chunk in chunks for event in fork.push(chunk)) + untimed(fork.finish())


@pytest.mark.parametrize("text, limit", [(TEXT, None), (HARD, None), (HARD, 5)])
@pytest.mark.parametrize("policy", POLICIES)
def test_any_cutting_gives_the_same_events(tokenizer, policy, text, limit):
    translator = make_translator(tokenizer, policy, max_sentence_words=limit)
    expected = run(translator, [text])

    @given(cuts=st.lists(st.integers(0, len(text)), max_size=8), as_bytes=st.booleans())
    @settings(max_examples=5, deadline=None)
    def cut_anywhere(cuts, as_bytes):
        whole = text.encode() if as_bytes else text
        edges = [0, *sorted(cuts), len(whole)]
        assert run(translator, [whole[start:end] for start, end in zip(edges, edges[1:])]) == expected

    cut_anywhere()


@pytest.mark.parametrize("policy", POLICIES)
def test_streamed_equals_batched(tokenizer, policy):
    sentences = ["Der kleine Hund läuft über die Wiese", "Niemand weiß es", "Die Katze", "läuft"]
    for seed in range(3):
        translator = make_translator(tokenizer, policy, seed, splitter=None)
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
            elif isinstance(event, Write):
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
        tokens = len(translator._stream.path)
        assert tokens == translator.tokens_read, "one token written for each token read"
        assert count == translator.words_read


def test_sentences_end_as_they_arrive(tokenizer):
    translator = make_translator(tokenizer)
    whole = run(translator, [TEXT])
    parts = []
    for sentence in ("Der kleine Hund läuft über die Wiese.", "Die Katze schläft, aber wo?", "Niemand weiß es"):
        parts += words(run(translator, [sentence]))
    assert words(whole) == parts, "each sentence is translated as if it were alone"
    one = make_translator(tokenizer, splitter=None)
    one.push(TEXT)
    assert one._cutter.tokens >= 14


def test_a_word_that_may_end_a_sentence_is_read_at_once(tokenizer):
    """Only the end of the sentence waits for the next word."""
    translator = make_translator(tokenizer)
    assert Read("Dr.") in translator.push("Dr. ")
    events = translator.push("Müller läuft. ")
    assert [event.source for event in events if isinstance(event, SentenceEnd)] == ["Dr. Müller läuft."]
    assert Read("10.") in translator.push("10. ") and translator._cutter.tokens, "still open"
    events = translator.push("Er ")
    assert [type(event) for event in events].index(SentenceEnd) < events.index(Read("Er"))
    assert isinstance(make_translator(tokenizer).push("Wo? ")[-1], SentenceEnd), "nothing to wait for"


@pytest.mark.parametrize("policy", POLICIES)
def test_sentence_ends_tell_their_words(tokenizer, policy):
    translator = make_translator(tokenizer, policy)
    for text in (TEXT, HARD):
        events = translator.push(text) + translator.finish()
        ends = [event for event in events if isinstance(event, SentenceEnd)]
        read, written = text.split(), translator.words
        source, target = 0, 0
        for end in ends:
            assert end.source_span[0] == source and end.target_span[0] == target, "no word between two sentences"
            (_, source), (_, target) = end.source_span, end.target_span
            assert end.source.split() == read[slice(*end.source_span)]
            assert end.target.split() == written[slice(*end.target_span)]
        assert (source, target) == (len(read), len(written)) and events[-1] is ends[-1]
        position = 0  # and they come when all their words are there, before any word of the next
        for event in events:
            if isinstance(event, SentenceEnd):
                assert event.source_span[1] == position
            position += isinstance(event, Read)
    assert len(ends) == 4


def test_a_splitter_of_ones_own(tokenizer):
    class AtStops:
        def __init__(self, language):
            assert language == "de"

        def before(self, word):
            return word == "BEGIN"

        def after(self, word):
            return word == "STOP"

    translator = make_translator(tokenizer, splitter=AtStops)
    events = translator.push("Der Hund. STOP Die Katze BEGIN läuft") + translator.finish()
    ends = [event.source for event in events if isinstance(event, SentenceEnd)]
    assert ends == ["Der Hund. STOP", "Die Katze", "BEGIN läuft"]


def test_a_pause_ends_the_sentence_and_not_the_text(make):
    translator = make()
    alone = [translator.translate(part) for part in ("der kleine Hund", "die Katze")]
    assert translator.pause() == []
    translator.push("der kleine Hun")
    translator.push("d")
    first = translator.pause()
    assert isinstance(first[-1], SentenceEnd) and first[-1].source_span == (0, 3) and translator.pause() == []
    second = translator.push("die Katze ") + translator.pause()
    assert second[-1].source_span == (3, 5) and [first[-1].target, second[-1].target] == alone
    assert translator.finish() == [] and translator.text == " ".join(alone)


def test_text_without_punctuation_is_cut(make):
    translator = make(max_sentence_words=6)
    events = translator.fork().stream(["die Katze schläft aber der Hund läuft über die Wiese wo niemand schläft"])
    ends = [event.source for event in events if isinstance(event, SentenceEnd)]
    assert ends == ["die Katze schläft aber der Hund", "läuft über die Wiese wo niemand", "schläft"]
    with pytest.raises(ValueError, match="at least 1 word"):
        translator = make(max_sentence_words=0)


def test_without_a_splitter_only_the_end_and_a_pause_end_a_sentence(make):
    translator = make(splitter=None)
    events = translator.push("Der Hund. Die Katze schläft. ") + translator.pause()
    events += translator.push("Wo? ") + translator.push("Da.") + translator.finish()
    ends = [event for event in events if isinstance(event, SentenceEnd)]
    assert [end.source for end in ends] == ["Der Hund. Die Katze schläft.", "Wo? Da."]
    assert [end.target for end in ends] == [translator.translate(end.source) for end in ends]


def test_a_push_after_the_end_starts_a_new_text(tokenizer):
    translator = make_translator(tokenizer)
    texts = [TEXT, "Die Katze läuft"]
    for text in texts:
        events = translator.push(text) + translator.finish()
        expected = translator.translate(text)
        assert translator.text == expected and translator.finish() == [] and translator.text == expected
        assert len(translator.path) == len(translator.words) and translator.words_read == len(text.split())
        assert untimed(events) == run(translator, [text])
    assert list(translator.stream([])) == [] and translator.text == ""


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


@pytest.mark.parametrize("times", [1, 2])
def test_a_cancelled_stream_leaves_no_thread_behind(make, times):
    translator = make()
    running = threading.Event()
    follow = translator._follow

    def slowly():
        running.set()
        time.sleep(0.05)
        yield from follow()
        running.clear()

    translator._follow = slowly

    async def chunks():
        yield TEXT * 100

    async def consume():
        return [event async for event in translator.astream(chunks())]

    async def main():
        task = asyncio.create_task(consume())
        while not running.is_set():
            await asyncio.sleep(0.001)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        del translator._follow
        return untimed(await asyncio.to_thread(translator.push, TEXT) + translator.finish())

    start = time.perf_counter()
    assert asyncio.run(main()) == run(translator, [TEXT]), "the next text is alone"
    assert translator.words_read == len(TEXT.split()) and time.perf_counter() - start < 5


def test_a_stream_left_early_gives_up_its_text(tokenizer):
    translator = make_translator(tokenizer)

    async def chunks():
        yield "Der "
        yield "kleine Hund"

    async def main():
        events = translator.astream(chunks())
        await anext(events)
        await events.aclose()

    def leave():
        for _ in translator.stream(["Der kleine Hund läuft"]):
            break

    for left in (leave, lambda: asyncio.run(main())):
        left()
        assert translator.words_read == 1 and translator.finish() == []
        assert untimed(translator.push(TEXT) + translator.finish()) == run(translator, [TEXT])


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


def test_half_characters_are_replaced(tokenizer):
    """A lone surrogate comes from broken JSON, or from bytes in a command line that are not UTF-8."""
    translator = make_translator(tokenizer)
    events = translator.push("ab\ud800c d\udcff ") + translator.push("\udfff") + translator.finish()
    assert [event.word for event in events if isinstance(event, Read)] == ["ab\ufffdc", "d\ufffd", "\ufffd"]


def test_a_word_of_a_megabyte_in_small_pieces(tokenizer):
    translator = make_translator(tokenizer)
    start = time.perf_counter()
    for _ in range(10_000):
        assert translator.push("Donau" * 20) == []
    events = translator.push(" Hund")
    assert events[0] == Read("Donau" * 2000) and time.perf_counter() - start < 10


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
    assert not translator._stream.tokens[1:] and translator.words_read == 103 * 7


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
