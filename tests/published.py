"""Tiny random translators in the formats that are published on the Hub, with tokenizers of the toy languages."""

import json
from functools import cache
from pathlib import Path

import sentencepiece
import torch
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    MarianConfig,
    MarianMTModel,
    MBart50Tokenizer,
    MBartConfig,
    MBartForConditionalGeneration,
    MBartTokenizer,
    NllbTokenizer,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    T5Tokenizer,
)

from hf_dualpath.toy import generate_pairs


SIZES = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 64,
}
PAIRS = generate_pairs(300, seed=11)
GERMAN, ENGLISH = [pair.source for pair in PAIRS], [pair.target for pair in PAIRS]


def lively(model: PreTrainedModel) -> PreTrainedModel:
    """Untrained models repeat one token; this makes the logits differ."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.tie_weights()
    return model.eval()


def train_sentencepiece(folder: Path, name: str, texts: list[str], **options) -> sentencepiece.SentencePieceProcessor:
    (folder / f"{name}.txt").write_text("\n".join(texts), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / f"{name}.txt"),
        model_prefix=str(folder / name),
        vocab_size=120,
        character_coverage=1.0,
        minloglevel=2,
        **options,
    )
    (folder / f"{name}.txt").unlink()
    (folder / f"{name}.vocab").unlink()
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.model"))


def charsmap_of(processor: sentencepiece.SentencePieceProcessor) -> bytes:
    """Its normalizer (NFKC and more), which the published tokenizers have too."""
    return ModelProto.FromString(processor.serialized_model_proto()).normalizer_spec.precompiled_charsmap


def pieces_of(processor: sentencepiece.SentencePieceProcessor) -> list[tuple[str, float]]:
    return [(processor.id_to_piece(i), processor.get_score(i)) for i in range(3, processor.get_piece_size())]


def write_marian(folder: Path, codes: tuple[str, ...] = ()):
    """Two SentencePiece models over one vocabulary, padding last; with codes, several target languages."""
    vocabulary = {"</s>": 0, "<unk>": 1}
    for name, texts in (("source", GERMAN), ("target", ENGLISH)):
        processor = train_sentencepiece(folder, name, texts)
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        for index in range(processor.get_piece_size()):
            vocabulary.setdefault(processor.id_to_piece(index), len(vocabulary))
    for code in codes:
        vocabulary[f">>{code}<<"] = len(vocabulary)
    vocabulary["<pad>"] = pad = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    languages = {} if codes else {"source_lang": "de", "target_lang": "en"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer", **languages}))
    tokens = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": 0}
    model = lively(MarianMTModel(MarianConfig(vocab_size=pad + 1, **tokens, **SIZES)))
    model.final_logits_bias.normal_()
    model.generation_config.update(num_beams=4, max_length=40, bad_words_ids=[[pad]])
    model.save_pretrained(folder)


def write_multilingual_marian(folder: Path):
    write_marian(folder, ("eng", "fra"))


def write_m2m_100(folder: Path):
    processor = train_sentencepiece(folder, "sentencepiece.bpe", GERMAN + ENGLISH)
    special = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    vocabulary = special | {piece: 4 + index for index, (piece, _) in enumerate(pieces_of(processor))}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = M2M100Tokenizer(str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"))
    tokenizer.save_pretrained(folder)
    write_m2m_100_model(folder, max(tokenizer.lang_code_to_id.values()) + 1 + tokenizer.num_madeup_words)


def write_m2m_100_model(folder: Path, vocab_size: int):
    tokens = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    lively(M2M100ForConditionalGeneration(M2M100Config(vocab_size=vocab_size, **tokens, **SIZES))).save_pretrained(
        folder
    )


def write_nllb(folder: Path):
    """The model of M2M-100 with a BPE tokenizer."""
    bpe = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    bpe.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    bpe.train_from_iterator(GERMAN + ENGLISH, trainers.BpeTrainer(vocab_size=150, special_tokens=special))
    merges = [tuple(pair) for pair in json.loads(bpe.to_str())["model"]["merges"]]
    tokenizer = NllbTokenizer(bpe.get_vocab(), merges)
    tokenizer.save_pretrained(folder)
    write_m2m_100_model(folder, len(tokenizer))


def write_mbart(folder: Path, tokenizer_class=MBartTokenizer):
    processor = train_sentencepiece(folder, "sentencepiece.bpe", GERMAN + ENGLISH)
    if tokenizer_class is MBartTokenizer:
        special = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
        tokenizer = tokenizer_class([*special, *pieces_of(processor)])
    else:
        special = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
        tokenizer = tokenizer_class(
            [*special, *pieces_of(processor)], _spm_precompiled_charsmap=charsmap_of(processor)
        )
    tokenizer.save_pretrained(folder)
    tokens = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    config = MBartConfig(vocab_size=len(tokenizer), **tokens, **SIZES)
    lively(MBartForConditionalGeneration(config)).save_pretrained(folder)


def write_mbart50(folder: Path):
    write_mbart(folder, MBart50Tokenizer)


def write_t5(folder: Path):
    processor = train_sentencepiece(folder, "spiece", [*GERMAN, *ENGLISH, "translate German to English:"])
    special, charsmap = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)], charsmap_of(processor)
    tokenizer = T5Tokenizer([*special, *pieces_of(processor)], extra_ids=4, _spm_precompiled_charsmap=charsmap)
    tokenizer.save_pretrained(folder)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        task_specific_params={"translation_de_to_en": {"prefix": "translate German to English: "}},
    )
    lively(T5ForConditionalGeneration(config)).save_pretrained(folder)


# What writes each, and the languages to ask it for.
PUBLISHED = {
    "marian": (write_marian, {}),
    "multilingual marian": (write_multilingual_marian, {"source_language": "de", "target_language": "eng"}),
    "m2m_100": (write_m2m_100, {"source_language": "de", "target_language": "en"}),
    "nllb": (write_nllb, {"source_language": "deu_Latn", "target_language": "eng_Latn"}),
    "mbart": (write_mbart, {"source_language": "de_DE", "target_language": "en_XX"}),
    "mbart50": (write_mbart50, {"source_language": "de_DE", "target_language": "en_XX"}),
    "t5": (write_t5, {"source_language": "de", "target_language": "en"}),
}


@cache
def published(name: str, home: Path) -> tuple[Path, dict[str, str]]:
    """The folder of a checkpoint, written once, and its languages."""
    write, languages = PUBLISHED[name]
    folder = home / name.replace(" ", "-")
    folder.mkdir()
    torch.manual_seed(5)
    write(folder)
    return folder, languages
