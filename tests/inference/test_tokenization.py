import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hf_dualpath.inference.tokenization import (
    load_tokenizers,
    save_tokenizers,
    train_bpe_tokenizer,
    train_word_tokenizer,
)
from hf_dualpath.inference.words import WordAssembler, encode_word


TEXTS = [
    "Der kleine Hund läuft schnell über die grüne Wiese.",
    "Die Katze schläft, aber der Hund (ein Dackel) bellt!",
    "The little dog runs quickly across the green meadow.",
    "\"Don't wake the cat,\" she said; it's 3.5 o'clock.",
] * 5
printable = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn", "Co")), max_size=40)


@pytest.fixture(scope="module")
def bpe():
    return train_bpe_tokenizer(TEXTS, vocab_size=400, show_progress=False)


@pytest.fixture(scope="module")
def words():
    return train_word_tokenizer(TEXTS, min_frequency=5, show_progress=False)


def normal(text: str) -> str:
    import unicodedata

    return " ".join(unicodedata.normalize("NFC", text).replace("▁", "_").split())


def test_size_and_specials(bpe):
    assert len(bpe) == 400
    assert (bpe.pad_token_id, bpe.eos_token_id, bpe.unk_token_id) == (0, 1, 2)
    assert bpe("Hund")["input_ids"][-1] == bpe.eos_token_id


@pytest.mark.parametrize("kind", ["bpe", "words"])
def test_encoding_is_stable_under_streaming(kind, request):
    """The tokens of the first n words are the first tokens of the sentence."""
    tokenizer = request.getfixturevalue(kind)
    for text in TEXTS[:4]:
        whole = tokenizer(text)["input_ids"][:-1]
        so_far = []
        for word in text.split():
            so_far += encode_word(tokenizer, word)
            assert whole[: len(so_far)] == so_far
        assert so_far == whole


@given(text=printable)
@settings(max_examples=150, deadline=None)
def test_any_text_streams_and_comes_back(bpe, text):
    ids = bpe(text)["input_ids"]
    assert bpe.unk_token_id not in ids
    assert [token for word in normal(text).split() for token in encode_word(bpe, word)] == ids[:-1]
    assert bpe.decode(ids, skip_special_tokens=True) == normal(text)


def test_special_tokens_in_a_text_are_text(bpe, words, tmp_path):
    save_tokenizers(tmp_path, bpe, bpe)
    for tokenizer in (bpe, load_tokenizers(tmp_path)[0]):
        assert tokenizer("Hund </s> <pad>")["input_ids"].count(tokenizer.eos_token_id) == 1
        assert (
            tokenizer.decode(tokenizer("Hund </s> <pad>")["input_ids"], skip_special_tokens=True) == "Hund </s> <pad>"
        )
    assert words("a </s> b")["input_ids"].count(words.eos_token_id) == 1


def test_known_words_come_back_from_a_word_vocabulary(words):
    for text in TEXTS[:4]:
        assert words.decode(words(text)["input_ids"], skip_special_tokens=True) == text
    assert words("Unbekannt")["input_ids"][0] == words.unk_token_id


@pytest.mark.parametrize("kind", ["bpe", "words"])
def test_a_word_is_complete_at_its_last_token(kind, request):
    tokenizer = request.getfixturevalue(kind)
    for text in TEXTS[:4]:
        assembler = WordAssembler(tokenizer)
        for word in text.split():
            *most, last = encode_word(tokenizer, word)
            assert [assembler.push(token) for token in most] == [None] * len(most)
            assert assembler.push(last) == word
        assert assembler.push(tokenizer.eos_token_id) is None and assembler.finish() is None


def test_an_unfinished_word_is_not_lost(bpe):
    assembler = WordAssembler(bpe)
    token = bpe.convert_tokens_to_ids("<0x41>")
    assert assembler.push(token) is None and assembler.finish() == "A"


def test_sentencepiece_words_come_one_token_later():
    """Tokenizers that mark the beginning of words, such as Marian's, say that a word has ended with the next one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2, "▁Hallo": 3, "▁W": 4, "elt": 5}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    assembler = WordAssembler(tokenizer)
    assert [assembler.push(token) for token in (3, 4, 5, 1)] == [None, "Hallo", None, "Welt"]
    assert assembler.finish() is None


def test_saving(bpe, words, tmp_path):
    save_tokenizers(tmp_path / "joint", bpe, bpe)
    source, target = load_tokenizers(tmp_path / "joint")
    save_tokenizers(tmp_path / "again", source, target)
    first, again = ((tmp_path / name / "tokenizer_config.json").read_text() for name in ("joint", "again"))
    assert "local" not in again and first == again
    assert source is target and AutoTokenizer.from_pretrained(tmp_path / "joint")(TEXTS[0]) == bpe(TEXTS[0])
    assert source.init_kwargs["word_boundary"] == "end"
    save_tokenizers(tmp_path / "two", words, bpe)
    source, target = load_tokenizers(tmp_path / "two")
    assert source(TEXTS[0]) == words(TEXTS[0]) and target(TEXTS[0]) == bpe(TEXTS[0])
    with pytest.raises(OSError, match="no tokenizer"):
        load_tokenizers(tmp_path)
