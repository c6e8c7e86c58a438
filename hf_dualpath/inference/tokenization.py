"""Tokenizers that can be streamed: words are encoded one by one, and a word is known to be complete at its last token.

A joint BPE marks the *end* of each word with `▁`, where SentencePiece marks the beginning of the next; a written word
is therefore final without waiting for its successor. Punctuation is split off but keeps its
place: `Hund.` is `Hund` + `.▁`.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from .words import END_OF_WORD


SPECIAL_TOKENS = ["<pad>", "</s>", "<unk>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SOURCE_FOLDER, TARGET_FOLDER = "source_tokenizer", "target_tokenizer"


def train_bpe_tokenizer(
    texts: Iterable[str], vocab_size: int = 8000, show_progress: bool = True
) -> PreTrainedTokenizerFast:
    """A BPE over both languages. Characters never seen in training are spelt in bytes, so that nothing is unknown."""
    smallest = len(SPECIAL_TOKENS) + len(BYTES) + 1
    if vocab_size < smallest:
        raise ValueError(f"`vocab_size` is at least {smallest}, for the bytes and special tokens, not {vocab_size}.")
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace(END_OF_WORD, "_"),
            normalizers.Replace(Regex(r"(?<=\S)(?=\s|\z)"), END_OF_WORD),
        ]
    )
    word_or_sign = rf"[\p{{L}}\p{{M}}\p{{N}}]+{END_OF_WORD}?|[^\p{{L}}\p{{M}}\p{{N}}\s{END_OF_WORD}]{END_OF_WORD}?"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(word_or_sign), behavior="isolated")]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(BYTES),
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=[END_OF_WORD],
        show_progress=show_progress,
    )
    tokenizer.train_from_iterator(texts, trainer)

    learned = tokenizer.get_vocab()
    ordered = [token for token in sorted(learned, key=learned.get) if token not in SPECIAL_TOKENS]
    vocabulary = {token: index for index, token in enumerate(SPECIAL_TOKENS + BYTES + ordered)}
    merges = [tuple(pair) for pair in _merges(tokenizer)]
    tokenizer.model = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Replace(Regex(rf"{END_OF_WORD}\z"), ""),
            decoders.Replace(END_OF_WORD, " "),
        ]
    )
    return wrap_tokenizer(tokenizer, "end")


def train_word_tokenizer(
    texts: Iterable[str], min_frequency: int = 5, show_progress: bool = True
) -> PreTrainedTokenizerFast:
    """One token a word for words seen at least `min_frequency` times, as in the paper's English-Vietnamese runs."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace("</s>", "<unk>"), normalizers.Replace("<pad>", "<unk>")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(
        vocab_size=10**9, min_frequency=min_frequency, special_tokens=SPECIAL_TOKENS, show_progress=show_progress
    )
    tokenizer.train_from_iterator(texts, trainer)
    return wrap_tokenizer(tokenizer, "token")


def _merges(tokenizer: Tokenizer) -> list:
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]


def wrap_tokenizer(tokenizer: Tokenizer, word_boundary: str) -> PreTrainedTokenizerFast:
    end = tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", end)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        padding_side="right",
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # a "</s>" in somebody's text is text
        word_boundary=word_boundary,
    )


def save_tokenizers(folder: str | Path, source: PreTrainedTokenizerFast, target: PreTrainedTokenizerFast):
    """A joint tokenizer goes into the folder itself, two into two named subfolders."""
    for tokenizer in (source, target):
        for name in ("is_local", "local_files_only"):  # how it was once loaded is not part of it
            tokenizer.init_kwargs.pop(name, None)
    if source is target:
        source.save_pretrained(folder)
    else:
        source.save_pretrained(Path(folder) / SOURCE_FOLDER)
        target.save_pretrained(Path(folder) / TARGET_FOLDER)


def has_tokenizers(path: str | Path) -> bool:
    """Whether a checkpoint brings tokenizers that can be streamed."""
    return (Path(path) / "tokenizer.json").is_file() or (Path(path) / SOURCE_FOLDER).is_dir()


def load_tokenizers(
    path: str | Path, trust_remote_code: bool = False
) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """Source and target tokenizer of a checkpoint's forward direction; the same object where they are joint."""
    if (Path(path) / SOURCE_FOLDER).is_dir():
        return tuple(_load(path, trust_remote_code, subfolder=name) for name in (SOURCE_FOLDER, TARGET_FOLDER))
    tokenizer = _load(path, trust_remote_code)
    return tokenizer, tokenizer


def _load(path: str | Path, trust_remote_code: bool, **options) -> PreTrainedTokenizerFast:
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code, **options)
        tokenizer("a word")  # some mistakes in its files show only now
    except Exception as error:  # the library `tokenizers` raises nothing more special about a broken file
        reason = " ".join(str(error).split())[:200]
        raise OSError(f"There is no tokenizer in {path} that could be loaded: {reason}") from error
    return tokenizer
