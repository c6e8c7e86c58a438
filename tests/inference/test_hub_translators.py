"""Translators of the Hub as streams, on tiny random models in the published formats."""

import asyncio
import json
import random
import shutil
from dataclasses import replace

import pytest
import torch
from conftest import dual_model, single_model
from hypothesis import given, settings
from hypothesis import strategies as st
from published import ENGLISH, GERMAN, PUBLISHED, lively, published
from transformers import (
    AutoConfig,
    AutoTokenizer,
    BartConfig,
    MT5ForConditionalGeneration,
    NllbMoeForConditionalGeneration,
    UMT5ForConditionalGeneration,
)

from hf_dualpath import Dials, HubPolicy, Read, SentenceEnd, SimultaneousTranslator, Write, register_hub_policy
from hf_dualpath.inference.batches import encode_sources, translate_corpus, translate_texts
from hf_dualpath.inference.checkpoints import load_directions
from hf_dualpath.inference.hub_translators.policies import HUB_POLICIES
from hf_dualpath.inference.pool import StreamPool
from hf_dualpath.inference.tokenization import save_tokenizers, train_bpe_tokenizer
from hf_dualpath.model.generation_dualpath import HONOURED


POLICIES = ("wait_k", "local_agreement", "align_att")
TEXT = " ".join(GERMAN[:3])
SHORT = {"max_new_tokens": 9}
pytestmark = pytest.mark.filterwarnings(
    "ignore:Recommended"
)  # of Marian's tokenizer: sacremoses, which it does not use


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("published")


_LOADED = {}


def load(home, family, policy, **dials) -> SimultaneousTranslator:
    if (family, policy) not in _LOADED:
        folder, languages = published(family, home)
        _LOADED[family, policy] = SimultaneousTranslator.from_pretrained(folder, policy=policy, **languages)
    return _LOADED[family, policy].fork(**dials)


def source_ids(translator: SimultaneousTranslator, text: str) -> torch.Tensor:
    tokenizer = translator.source_tokenizer
    words = (tokenizer.encode(word, add_special_tokens=False) for word in text.split())
    return torch.tensor([[*(token for word in words for token in word), tokenizer.eos_token_id]])


def untimed(events):
    return [replace(event, seconds=0.0) if isinstance(event, Write) else event for event in events]


def run(translator, chunks):
    fork = translator.fork()
    return untimed(event for chunk in chunks for event in fork.push(chunk)) + untimed(fork.finish())


# Families


@pytest.mark.parametrize("family", PUBLISHED)
def test_sources_and_targets_begin_and_end_as_published(home, family):
    """Word by word in its frame, a text has the tokens that its tokenizer gives it; the rest is as in `generate`."""
    folder, languages = published(family, home)
    translator = load(home, family, "local_agreement")
    hub, tokenizer = translator.model, AutoTokenizer.from_pretrained(folder)
    frame = hub.decoder.frame
    prefix = {"t5": "translate German to English: ", "multilingual marian": ">>eng<<"}.get(family, "")
    if family not in ("marian", "multilingual marian", "t5"):
        tokenizer.src_lang = languages["source_language"]
    for text in [*GERMAN[:20], "Ein  ungesehenes Wört\u00a0☃ (na ja) 12,5 %!"]:
        (tokens, lengths), *_ = encode_sources(translator.source_tokenizer, [text])
        whole = prefix + " ".join(text.split())
        assert [*frame.before, *tokens[:-1], *frame.after] == tokenizer(whole)["input_ids"]
        assert len(lengths) == len(text.split())

    first = {"max_new_tokens": 10, "num_beams": 1, "suppress_tokens": [hub.config.pad_token_id]}
    if family in ("m2m_100", "nllb", "mbart50"):
        code = hub.decoder.frame.prompt[-1]
        assert tokenizer.convert_ids_to_tokens(code).strip("_") == languages["target_language"]
        first |= {"forced_bos_token_id": code, "max_new_tokens": 11}
    if family == "mbart":
        first["decoder_start_token_id"] = frame.prompt[0]
    for text in GERMAN[:5]:
        expected = hub.model.generate(torch.tensor([tokenizer(prefix + text)["input_ids"]]), **first)[0]
        (tokens, _), *_ = encode_sources(translator.source_tokenizer, [text])
        written = hub.generate(torch.tensor([tokens]), agreement=1000, max_new_tokens=10)[0, 1:].tolist()
        assert written == expected[len(frame.prompt) :].tolist()


def test_special_tokens_in_a_text_are_text(home):
    for family in PUBLISHED:
        translator = load(home, family, "wait_k")
        tokenizer, frame = translator.source_tokenizer, translator.model.decoder.frame
        special = {*tokenizer.all_special_ids, *frame.prompt} - {tokenizer.unk_token_id}
        if family == "multilingual marian":
            special |= set(frame.before)
        for word in ("</s>", "<pad>", "__de__", "deu_Latn", "de_DE", "＜/ｓ＞", "＜pad＞", "ｄe_DE", ">>eng<<"):
            ids = tokenizer.encode(word, add_special_tokens=False)
            assert not set(ids) & special, (family, word)
            assert len(ids) > 1


def test_what_is_missing_is_said(home, tmp_path):
    cases = [
        ("nllb", {}, "source language is missing: give `source_language` .--source-language., such as deu_Latn"),
        ("nllb", {"source_language": "deu_Latn", "target_language": "english"}, "'english' is not one of"),
        ("m2m_100", {"source_language": "de"}, "target language is missing"),
        ("mbart", {"source_language": "de", "target_language": "en_XX"}, "'de' is not one of .* such as de_DE"),
        ("multilingual marian", {}, "target language is missing.* It knows eng, fra"),
        ("t5", {}, "codes that it knows .de-en. or names such as English and German"),
        ("marian", {"policy": "read_minds"}, "streams with align_att, local_agreement, wait_k.*, not 'read_minds'"),
        ("marian", {"frontier": 3}, "`frontier` does nothing for the local_agreement policy"),
        ("marian", {"policy": "align_att", "frontier": -1}, "`frontier` is a number"),
        ("marian", {"target_language": "fr"}, "'fr' is not one of .* such as en. It knows en"),
        ("marian", {"num_beams": 4}, "beam search revises"),
        ("marian", {"temper": 4}, "does not know `temper`"),
    ]
    for family, options, message in cases:
        with pytest.raises(ValueError, match=message):
            SimultaneousTranslator.from_pretrained(published(family, home)[0], **options)
    BartConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="type 'bart', which cannot be streamed: nothing says .* register a family"):
        SimultaneousTranslator.from_pretrained(tmp_path)


def test_what_generate_cannot_honour_is_refused(home):
    """Each field that our own models honour changes what comes out, or is refused."""
    translator = load(home, "marian", "wait_k")
    model, ids = translator.model, source_ids(translator, GERMAN[0])
    usual = model.generate(ids, max_new_tokens=8).tolist()
    written = usual[0][1]
    changing = {
        "max_length": 4,
        "max_new_tokens": 3,
        "repetition_penalty": 9.0,
        "no_repeat_ngram_size": 1,
        "sequence_bias": [[[written], -99.0]],
        "bad_words_ids": [[written]],
        "suppress_tokens": [written],
        "begin_suppress_tokens": [written],
        "forced_eos_token_id": 5,
    }
    for name, value in changing.items():
        assert model.generate(ids, **({"max_new_tokens": 8} | {name: value})).tolist() != usual, name
    ending = {"sequence_bias": [[[model.config.end_tokens[0]], 999.0]]}  # it would end at once
    for longer in ({"min_length": 6}, {"min_new_tokens": 6}):
        assert len(model.generate(ids, **ending)[0]) < len(model.generate(ids, **ending, **longer)[0])
    slow = {"exponential_decay_length_penalty": (1, 99.0)}
    assert len(model.generate(ids, **slow)[0]) < len(model.generate(ids)[0])
    harmless = {"remove_invalid_values", "renormalize_logits", "return_dict_in_generate"}
    refused = set(HONOURED) - changing.keys() - harmless - slow.keys() - {"min_length", "min_new_tokens"}
    for name in (*refused, "bos_token_id", "generation_config"):
        with pytest.raises(ValueError, match=f"cannot honour `{name}"):
            model.generate(ids, **{name: 5})
    for name in ("max_length", "max_new_tokens"):
        for value in (0, -3, "x", 2.5):
            with pytest.raises(ValueError, match=f"`{name}` is a number of tokens"):
                model.generate(ids, **{name: value})


def test_padding_on_the_left_is_no_part_of_a_source(home):
    translator = load(home, "marian", "wait_k")
    ids = source_ids(translator, GERMAN[0])
    padding = torch.full((1, 3), translator.model.config.pad_token_id)
    usual = translator.model.generate(ids, max_new_tokens=8)
    for padded in ((padding, ids), (ids, padding)):
        assert torch.equal(translator.model.generate(torch.cat(padded, 1), max_new_tokens=8), usual)


def test_a_direction_names_the_languages(home):
    folder, _ = published("nllb", home)
    assert list(load_directions(folder, "deu_Latn-fra_Latn")) == ["deu_Latn-fra_Latn"]
    t5 = SimultaneousTranslator.from_pretrained(
        published("t5", home)[0], source_language="English", target_language="German"
    )
    frame = t5.model.decoder.frame
    assert t5.source_tokenizer.decode(frame.before) == "translate English to German:"
    marian, _ = published("marian", home)
    assert list(load_directions(marian, "deu-eng")) == ["deu-eng"], "other names of the only languages that it has"


KIN = {"mt5": (MT5ForConditionalGeneration, "t5"), "umt5": (UMT5ForConditionalGeneration, "t5")}
KIN["nllb-moe"] = (NllbMoeForConditionalGeneration, "nllb")


@pytest.mark.parametrize("kin", KIN)
def test_kin_have_the_same_format(home, tmp_path, kin):
    """Models of other types with the tokenizer, the frame and the languages of one above."""
    model_class, family = KIN[kin]
    folder, languages = published(family, home)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    sizes = AutoConfig.from_pretrained(folder).to_dict()
    for name in ("model_type", "architectures", "transformers_version"):
        sizes.pop(name)
    if kin == "nllb-moe":
        sizes |= {"num_experts": 2, "encoder_sparse_step": 2, "decoder_sparse_step": 2, "expert_capacity": 64}
    torch.manual_seed(1)
    lively(model_class(model_class.config_class(**sizes))).save_pretrained(tmp_path)
    for policy in ("local_agreement", "align_att"):
        translator = SimultaneousTranslator.from_pretrained(tmp_path, policy=policy, **languages, **SHORT)
        hub, frame = translator.model, translator.model.decoder.frame
        for text in GERMAN[:2]:
            (tokens, _), *_ = encode_sources(translator.source_tokenizer, [text])
            events = translator.fork().stream([text])
            [read_first] = hub.generate(torch.tensor([tokens]), min_lag=1000, **SHORT)[:, 1:].tolist()
            expected = hub.model.generate(
                torch.tensor([[*frame.before, *tokens[:-1], *frame.after]]),
                decoder_input_ids=torch.tensor([frame.prompt]),
                suppress_tokens=[hub.config.pad_token_id],
                **SHORT,
            )
            assert read_first == expected[0, len(frame.prompt) :].tolist()
            batched, _ = translate_corpus(hub, *tokenizers_of(translator), [text], progress=False, **SHORT)
            assert [event.word for event in events if isinstance(event, Write)] == batched[0].words


def tokenizers_of(translator):
    return translator.source_tokenizer, translator.target_tokenizer


def test_a_word_without_a_token_is_a_word(home, tmp_path):
    """A vocabulary may lack pieces of its SentencePiece model: such a word is one unknown token without ▁."""
    folder, _ = published("marian", home)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    vocabulary, text = json.loads((tmp_path / "vocab.json").read_text()), "Anna hat oft Mein Vater"
    vocabulary |= {f"not {word}": vocabulary.pop(f"▁{word}") for word in text.split()}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    dials = {"wait_k": 1, "min_new_tokens": 8, **SHORT}
    translator = SimultaneousTranslator.from_pretrained(tmp_path, policy="wait_k", **dials)
    [translation], _ = translate_corpus(translator.model, *tokenizers_of(translator), [text], progress=False, **dials)
    assert translation.source_tokens[:-1] == [translator.source_tokenizer.unk_token_id] * 5
    assert translation.path[:5] == [1, 2, 3, 4, 5]
    list(translator.stream([text]))
    assert (translator.words, translator.path) == (translation.words, translation.word_path)


# Policies, against an implementation that translates each prefix from scratch, without a cache, a batch or a guess


def from_scratch(hub, source, written, longest):
    """A greedy translation after `written`: its tokens, where each of the new ones looked most, and its end."""
    frame = hub.decoder.frame
    ids, looks = [*frame.prompt, *written], []
    while len(ids) - len(frame.prompt) < longest:
        with torch.no_grad():
            output = hub.model(
                input_ids=torch.tensor([[*frame.before, *source, *frame.after]]),
                decoder_input_ids=torch.tensor([ids]),
                use_cache=False,
                output_attentions=hub.config.policy_class.needs_attention,
            )
        scores = output.logits[0, -1]
        scores[hub.config.pad_token_id] = -torch.inf
        token = int(scores.argmax())
        if len(ids) - len(frame.prompt) == SHORT["max_new_tokens"] - 1:  # some checkpoints ask for an end there
            forced = hub.model.generation_config.forced_eos_token_id
            token = token if forced is None else forced
        if token in hub.config.end_tokens:
            return ids[len(frame.prompt) :], looks, token
        if hub.config.policy_class.needs_attention:
            weights = torch.cat([layer[0, :, -1] for layer in output.cross_attentions]).mean(0)
            looks.append(int(weights[len(frame.before) : len(frame.before) + len(source)].argmax()))
        ids.append(token)
    return ids[len(frame.prompt) :], looks, None


def naive(hub, words, longest, policy, setting) -> list[tuple[int, int]]:
    """Each token written, and the source tokens read before it."""
    found, history = [], []
    for count in range(1, len(words) + 1):
        source = [token for word in words[:count] for token in word]
        written = [token for token, _ in found]
        limit = min(longest, 2 * len(source) + 10)
        tokens, looks, _ = from_scratch(hub, source, written, limit)
        if policy == "wait_k":
            stable = tokens[: max(count - setting + 1, len(written))]
        elif policy == "local_agreement":
            history.append(tokens)
            stable = []
            if count >= setting:
                for column in zip(*history[-setting:]):
                    if len(set(column)) > 1:
                        break
                    stable.append(column[0])
        else:
            unstable = [index for index, look in enumerate(looks) if look >= len(source) - setting]
            stable = tokens[: len(written) + min(unstable, default=len(looks))]
        found += [(token, len(source)) for token in stable[len(written) :]]
        if len(found) == longest:
            return found
    written = [token for token, _ in found]
    tokens, _, end = from_scratch(hub, source, written, min(longest, 2 * len(source) + 12))
    rest = tokens[len(written) :] + ([] if end is None else [end])
    return found + [(token, len(source) + 1) for token in rest]


DIALS = {"wait_k": ("wait_k", (1, 3)), "local_agreement": ("agreement", (2, 3)), "align_att": ("frontier", (1, 3))}


MIXED = [(family, "local_agreement") for family in PUBLISHED] + [("marian", "wait_k"), ("nllb", "align_att")]


@pytest.mark.parametrize(
    "family, policy",
    [(family, policy) for family in ("marian", "t5") for policy in POLICIES] + [("nllb", "align_att")],
)
def test_policies_are_as_defined(home, family, policy):
    translator = load(home, family, policy)
    hub = translator.model
    name, values = DIALS[policy]
    for value in values:
        for sentence in GERMAN[:2]:
            (tokens, lengths), *_ = encode_sources(translator.source_tokenizer, [sentence])
            words, rest = [], tokens[:-1]
            for length in lengths:
                words.append(rest[:length])
                rest = rest[length:]
            stream = hub.open_stream(**{name: value}, **SHORT)
            actions = [action for word in words for action in stream.push(word)]
            actions += [*stream.push([hub.source_end]), *stream.finish()]
            assert actions.count(None) == len(tokens)
            written = [action for action in actions if action is not None]
            expected = naive(hub, words, SHORT["max_new_tokens"], policy, value)
            assert written[: len(expected)] == expected and stream.done
            assert [token for token, _ in written[len(expected) :]] in ([], [hub.target_end])


@pytest.mark.parametrize("family, policy", MIXED)
def test_streamed_equals_batched(home, family, policy):
    translator = load(home, family, policy, **SHORT)
    sentences = [*GERMAN[3:6], "Hund", "Das  unbekannte\u00b4Wort ☃ schläft"]
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    batched, _ = translate_corpus(translator.model, *tokenizers, sentences, progress=False, **SHORT)
    for sentence, translation in zip(sentences, batched):
        stream = type(translator)(translator.model, *tokenizers, splitter=None, **SHORT)
        events = [event for word in sentence.split() for event in stream.push(word + " ")] + stream.finish()
        assert stream.words == translation.words and stream.path == translation.word_path
        assert [event.word for event in events if isinstance(event, Read)] == sentence.split()


@pytest.mark.parametrize("policy", POLICIES)
def test_any_cutting_gives_the_same_events(home, policy):
    translator = load(home, "nllb", policy, **SHORT)
    expected = run(translator, [TEXT])
    texts, _ = translate_texts(
        translator.model, translator.source_tokenizer, translator.target_tokenizer, [TEXT], progress=False, **SHORT
    )
    assert [s.text for s in texts[0]] == [event.target for event in expected if isinstance(event, SentenceEnd)]

    @given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=8), as_bytes=st.booleans())
    @settings(max_examples=4, deadline=None)
    def cut_anywhere(cuts, as_bytes):
        whole = TEXT.encode() if as_bytes else TEXT
        edges = [0, *sorted(cuts), len(whole)]
        assert run(translator, [whole[start:end] for start, end in zip(edges, edges[1:])]) == expected

    cut_anywhere()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pool_gives_what_streams_give(home, policy, monkeypatch):
    """In the service, too, many texts share one translator, and what they want translated is one batch."""
    translator = load(home, "marian", policy, **SHORT)
    pool, translate, together = StreamPool(translator), translator.model.translate, []

    def counted(requests, generation):
        together.append(len(requests))
        return translate(requests, generation)

    monkeypatch.setattr(translator.model, "translate", counted)
    texts = [" ".join(GERMAN[number : number + 2]) for number in range(3)]
    sessions = [pool.open() for _ in texts]
    for chunk in range(3):
        for session, text in zip(sessions, texts):
            session.push(text[chunk * len(text) // 3 : (chunk + 1) * len(text) // 3])
        pool.step()
    for session in sessions:
        session.finish()
    while pool.step():
        pass
    assert max(together) == 3
    for session, text in zip(sessions, texts):
        assert session.done and untimed(session.take()) == run(translator, [text])


@pytest.mark.parametrize("policy", POLICIES)
def test_lags_hold(home, policy):
    """Target token i is written after at least i - 1 + min_lag source tokens and at most i - 1 + max_lag."""
    translator = load(home, "t5", policy)
    (tokens, _), *_ = encode_sources(translator.source_tokenizer, [GERMAN[7]])
    ids = torch.tensor([tokens])

    @given(low=st.integers(1, 9), more=st.integers(0, 6), which=st.sampled_from(["both", "min_lag", "max_lag"]))
    @settings(max_examples=12, deadline=None)
    def within(low, more, which):
        dials = {"min_lag": low, "max_lag": low + more}
        dials = dials if which == "both" else {which: dials[which]}
        output = translator.model.generate(ids, return_dict_in_generate=True, max_new_tokens=20, **dials)
        for index, read in enumerate(output.path[0].tolist()):
            assert read >= min(index + dials.get("min_lag", -1000), len(tokens))
            assert read <= min(index + dials.get("max_lag", 1000), len(tokens))

    within()


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_written_stays_and_streams_do_not_meet(home, policy):
    translator = load(home, "m2m_100", policy, **SHORT)
    alone = [run(translator, [text]) for text in GERMAN[:3]]
    forks, events = [translator.fork() for _ in alone], [[] for _ in alone]
    for position in range(max(map(len, GERMAN[:3]))):
        for text, fork, seen in zip(GERMAN, forks, events):
            before = fork.words[:]
            seen += untimed(fork.push(text[position : position + 1]))
            assert fork.words[: len(before)] == before
    for fork, seen in zip(forks, events):
        seen += untimed(fork.finish())
    assert events == alone

    async def chunks():
        for word in GERMAN[0].split():
            yield word + " "

    async def collect():
        return [event async for event in translator.fork().astream(chunks())]

    assert untimed(asyncio.run(collect())) == alone[0]


@pytest.mark.parametrize("family", PUBLISHED)
def test_sources_are_as_long_as_the_model_allows(home, family):
    """And no longer: a stream without sentence ends is cut, and who feeds tokens is told."""
    translator = load(home, family, "local_agreement", max_new_tokens=3)
    limit = translator.model.config.max_position_embeddings
    fits = torch.full((1, limit), translator.source_tokenizer.unk_token_id)
    fits[0, -1] = translator.model.source_end
    assert translator.model.generate(fits, max_new_tokens=3, agreement=1000).shape[1] > 1
    message = f"has {limit + 1} tokens with its end, more than the model's limit of {limit}"
    with pytest.raises(ValueError, match=message):
        translator.model.generate(torch.cat([fits[:, :1], fits], 1), max_new_tokens=3)
    stream = translator.model.open_stream(agreement=1000)
    stream.push(fits[0, :-1].tolist())
    with pytest.raises(ValueError, match=message):
        stream.push(fits[0, :1].tolist())
    stream.push([translator.model.source_end])
    if limit < 100:
        words = " ".join(GERMAN).replace(".", "").split()[:limit]
        events = translator.fork(agreement=1000).stream([" ".join(words)])
        sentences = [event.source for event in events if isinstance(event, SentenceEnd)]
        assert len(sentences) > 1 and " ".join(sentences).split() == words


def test_an_endless_stream_keeps_one_sentence(home):
    translator = load(home, "marian", "wait_k", max_new_tokens=4)
    for _ in range(30):
        translator.push(GERMAN[0] + " ")
    assert translator.words_read == 30 * len(GERMAN[0].split())
    assert translator._stream.text == [] and translator._stream.written == []


@pytest.mark.parametrize("text", ["", " \n", "😀 😀😀", "漢字かな", "a\x00b \x7f", "\u200b \u2060", "Donau" * 200])
@pytest.mark.parametrize("family", ["marian", "nllb", "t5"])
def test_strange_input(home, family, text):
    translator = load(home, family, "align_att", **SHORT)
    events = translator.push(text) + translator.finish()
    assert [event.word for event in events if isinstance(event, Read)] == text.split()


def test_the_previous_hypothesis_is_checked_in_one_pass(home, monkeypatch):
    """The decoder runs once a token at most, and once for all tokens that stay."""
    translator = load(home, "mbart", "local_agreement", **SHORT)
    model, lengths = translator.model.model, []
    forward = model.forward

    def counted(*args, **kwargs):
        lengths.append(kwargs["decoder_input_ids"].shape[1])
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", counted)
    source = translator.source_tokenizer.encode("Hund", add_special_tokens=False)
    stream = translator.model.open_stream(**SHORT)
    list(stream.push(source))
    first = len(lengths)
    assert lengths[0] == len(translator.model.decoder.frame.prompt) and set(lengths[1:]) == {1}
    before = stream.hypothesis.tokens
    list(stream.push(source))
    agreed = next((i for i, (a, b) in enumerate(zip(before, stream.hypothesis.tokens)) if a != b), len(before))
    assert lengths[first] == len(before) + 1 and len(lengths) - first <= 1 + len(stream.hypothesis.tokens) - agreed


def test_a_policy_of_ones_own(home):
    @register_hub_policy("hold_two")
    class HoldTwo(HubPolicy):
        def ready(self, hypothesis, written):
            return len(hypothesis) - 2

    try:
        translator = load(home, "nllb", "hold_two", **SHORT)
        assert len(run(translator, [TEXT])) > len(TEXT.split())
        with pytest.raises(ValueError, match="`wait_k` does nothing for the hold_two policy"):
            translator.fork(wait_k=3)
    finally:
        del HUB_POLICIES["hold_two"]


# Our own offline models


def test_an_offline_model_of_ours_streams_with_a_policy(tmp_path):
    tokenizer = train_bpe_tokenizer(GERMAN + ENGLISH, 340, show_progress=False)
    torch.manual_seed(1)
    for name, policy in (("offline", "offline"), ("dual", "shared_path")):
        dual_model(vocab_size=len(tokenizer), policy=policy).save_pretrained(tmp_path / name)
        save_tokenizers(tmp_path / name, tokenizer, tokenizer)
    with pytest.raises(ValueError, match="shared_path policy of its own"):
        load_directions(tmp_path / "dual", policy="wait_k")
    with pytest.raises(ValueError, match="choose one of its directions"):
        load_directions(tmp_path / "dual", source_language="de")
    for policy in POLICIES:
        assert list(load_directions(tmp_path / "offline", policy=policy)) == ["de-en", "en-de"]
        translator = SimultaneousTranslator.from_pretrained(tmp_path / "offline", "en-de", policy=policy, **SHORT)
        batched, _ = translate_corpus(translator.model, tokenizer, tokenizer, ENGLISH[:3], progress=False, **SHORT)
        for text, translation in zip(ENGLISH, batched):
            stream = translator.fork()
            stream.push(text)
            stream.finish()
            assert stream.words == translation.words and stream.path == translation.word_path


def test_dials_of_the_hub_do_nothing_for_our_own_models():
    assert Dials().agreement == 2 and Dials(frontier=0).frontier == 0
    with pytest.raises(ValueError, match="`agreement` does nothing"):
        single_model(policy="wait_k").open_stream(agreement=3)


def test_random_sentences_of_many_words(home):
    """Batches of different lengths: rows that end early do not disturb the others."""
    translator = load(home, "marian", "local_agreement")
    draw = random.Random(3)
    words = " ".join(GERMAN).split()
    sentences = [" ".join(draw.sample(words, draw.randint(1, 7))) for _ in range(8)]
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    together, _ = translate_corpus(translator.model, *tokenizers, sentences, 8, False, **SHORT)
    alone, _ = translate_corpus(translator.model, *tokenizers, sentences, 1, False, **SHORT)
    assert together == alone
