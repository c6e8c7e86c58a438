import json
import subprocess
import sys

import pytest
import sentencepiece
import torch
from conftest import dual_model, random_batch, run, single_model
from transformers import AutoTokenizer, MarianConfig, MarianMTModel, MarianTokenizer

from hf_dualpath import DualPathForConditionalGeneration, SimultaneousTranslator
from hf_dualpath.apps.convert_marian import carry_over, convert
from hf_dualpath.inference.hub_translators.marian import to_marian
from hf_dualpath.inference.tokenization import load_tokenizers, save_tokenizers, train_bpe_tokenizer
from hf_dualpath.toy import toy_splits
from hf_dualpath.training.run import train


def tiny_marian(**overrides) -> MarianMTModel:
    settings = {
        "vocab_size": 40,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "activation_function": "swish",
        "scale_embedding": True,
        "max_position_embeddings": 64,
        "pad_token_id": 39,
        "decoder_start_token_id": 39,
        "eos_token_id": 1,
        "forced_eos_token_id": 1,
    }
    model = MarianMTModel(MarianConfig(**(settings | overrides))).eval()
    model.generation_config.max_length = 20
    for parameter in model.parameters():  # untrained models repeat one token; make the logits differ
        torch.nn.init.normal_(parameter, std=0.3) if parameter.requires_grad else None
    model.final_logits_bias.normal_()
    model.tie_weights()
    return model


VARIANTS = {
    "tied": {},
    "two tables": {"share_encoder_decoder_embeddings": False},
    "untied": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    "two vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 48},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_offline_policy_is_marian(variant, tmp_path):
    overrides = VARIANTS[variant]
    mirrored = dict(overrides)
    if "decoder_vocab_size" in overrides:
        mirrored |= {"vocab_size": 48, "decoder_vocab_size": 40}
    marians = tiny_marian(**overrides), tiny_marian(**mirrored)
    dual = convert(*marians, "offline", "de", "en").eval()
    dual.save_pretrained(tmp_path)
    dual = DualPathForConditionalGeneration.from_pretrained(tmp_path)
    for marian, direction in zip(marians, ("de-en", "en-de")):
        ours = dual.direction(direction)
        x, mask = random_batch([9, 5, 7], vocabulary=39, pad=39)
        y, _ = random_batch([6, 8, 3], vocabulary=39, pad=39)
        with torch.no_grad():
            expected = marian(input_ids=x, attention_mask=mask, decoder_input_ids=y).logits
            logits = ours(x, mask, y).logits
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
        for options in ({}, {"num_beams": 3}, {"num_beams": 2, "do_sample": False, "length_penalty": 0.5}):
            assert torch.equal(
                dual.generate(x, mask, direction=direction, **options),
                marian.generate(input_ids=x, attention_mask=mask, **options),
            )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_and_back(tmp_path, capsys, bias, shared):
    """An offline model of ours as a plain Marian translator: its logits, its tokens, its words."""
    texts = toy_splits(train=60)["train"]
    tokenizer = train_bpe_tokenizer([*texts["source"], *texts["target"]], 340, show_progress=False)
    options = {"final_logits_bias": bias, "share_encoder_decoder_embeddings": shared}
    ours = dual_model(policy="offline", vocab_size=len(tokenizer), **options).eval()
    for name, tensor in ours.state_dict().items():
        tensor.normal_(std=0.3) if tensor.dim() > 1 and "embed_positions" not in name else None
    ours.save_pretrained(tmp_path / "ours")
    save_tokenizers(tmp_path / "ours", tokenizer, tokenizer)
    run(
        capsys,
        "convert",
        "to-marian",
        str(tmp_path / "ours"),
        "--direction",
        "en-de",
        "--output",
        str(tmp_path / "out"),
    )

    marian, ours = MarianMTModel.from_pretrained(tmp_path / "out"), ours.direction("en-de")
    x, mask = random_batch([9, 5, 7], vocabulary=300)
    y, _ = random_batch([6, 8, 3], vocabulary=300)
    with torch.no_grad():
        expected = ours(x, mask, y).logits
        torch.testing.assert_close(marian(x, mask, y).logits, expected, atol=1e-5, rtol=0)
    for options in ({}, {"num_beams": 3}):
        options |= {"max_new_tokens": 12}
        assert torch.equal(ours.generate(x, mask, **options), marian.generate(x, attention_mask=mask, **options))
    text = texts["target"][0]
    assert AutoTokenizer.from_pretrained(tmp_path / "out")(text)["input_ids"] == tokenizer(text)["input_ids"]
    streamed = SimultaneousTranslator.from_pretrained(tmp_path / "ours", "en-de", policy="wait_k").translate(text)
    command = ["translate", "--model", str(tmp_path / "out"), "--policy", "wait_k", text]
    assert run(capsys, *command).split() == streamed.split()

    back, dual = str(tmp_path / "back"), str(tmp_path / "dual")  # a pair of them is a start like a published one
    run(capsys, "convert", "to-marian", str(tmp_path / "ours"), "--direction", "de-en", "--output", back)
    languages = ["--source-language", "de", "--target-language", "en"]
    run(capsys, "convert", "marian", back, str(tmp_path / "out"), "--output", dual, *languages)
    assert [each(text)["input_ids"] for each in load_tokenizers(dual)] == [tokenizer(text)["input_ids"]] * 2


def test_only_offline_models_go_back():
    with pytest.raises(ValueError, match="wait_k policy with a causal encoder: only offline models"):
        to_marian(single_model(policy="wait_k"))
    with pytest.raises(ValueError, match="causal encoder"):
        to_marian(single_model(policy="offline", causal_encoder=True))
    with pytest.raises(ValueError, match="positions are fairseq's"):
        to_marian(single_model(policy="offline", position_embedding="fairseq"))


def test_warm_start_of_a_dual_path_model():
    dual = convert(tiny_marian(), tiny_marian(), "shared_path", "de", "en")
    assert dual.config.forward_config.causal_encoder and not dual.config.share_embeddings
    x, mask = random_batch([9, 5], vocabulary=39, pad=39)
    output = dual.eval().generate(x, mask, return_dict_in_generate=True)
    assert (output.path[:, 0] > 0).all()


def test_tokens_are_carried_over_by_their_text():
    model = tiny_marian()
    old = model.model.shared.weight.clone()
    theirs = {f"t{i}": i for i in range(40)}
    ours = {f"t{i}": 38 - i for i in range(39)} | {"new": 39}
    assert carry_over(model, theirs, ours) == 39
    assert torch.equal(model.model.shared.weight[38 - 7], old[7])
    torch.testing.assert_close(model.model.shared.weight[39], old.mean(0))


def convert_command(folder):
    command = [
        sys.executable,
        "-m",
        "hf_dualpath",
        "convert",
        "marian",
        str(folder / "forward"),
        str(folder / "backward"),
    ]
    command += ["--output", str(folder / "dual"), "--source-language", "de", "--target-language", "en"]
    subprocess.run(command, check=True, capture_output=True)


def test_command(tmp_path):
    for name in ("forward", "backward"):
        tiny_marian().save_pretrained(tmp_path / name)
    convert_command(tmp_path)
    dual = DualPathForConditionalGeneration.from_pretrained(tmp_path / "dual")
    assert dual.config.forward_config.policy == "shared_path" and dual.config.directions[0] == "de-en"


def write_marian(folder, source: list[str], target: list[str]):
    """A Marian checkpoint as they are published: two SentencePiece models over one vocabulary, pad last."""
    folder.mkdir()
    vocabulary = {"</s>": 0, "<unk>": 1}
    for name, texts in (("source", source), ("target", target)):
        (folder / name).write_text("\n".join(texts), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / name),
            model_prefix=str(folder / name),
            vocab_size=90,
            character_coverage=1.0,
            minloglevel=2,
        )
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        for index in range(pieces.get_piece_size()):
            vocabulary.setdefault(pieces.id_to_piece(index), len(vocabulary))
    vocabulary["<pad>"] = pad = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer"}))
    tiny_marian(
        vocab_size=pad + 1, pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0, forced_eos_token_id=0
    ).save_pretrained(folder)


def test_from_a_published_pair_to_a_stream(tmp_path):
    pairs = toy_splits(train=300)
    german, english = pairs["train"]["source"], pairs["train"]["target"]
    write_marian(tmp_path / "forward", german, english)
    write_marian(tmp_path / "backward", english, german)
    convert_command(tmp_path)

    theirs = MarianTokenizer.from_pretrained(tmp_path / "forward")
    source, target = load_tokenizers(tmp_path / "dual")
    strange = ["Ein  Hund\u00a0schläft.", "ﬁne Ａ", "</s> <pad>"]
    assert source([*german[:50], *strange[:2]])["input_ids"] == theirs([*german[:50], *strange[:2]])["input_ids"]
    assert target(english[:50])["input_ids"] == theirs(text_target=english[:50])["input_ids"]
    assert source.decode(source(german[0])["input_ids"], skip_special_tokens=True) == german[0]
    assert source.eos_token_id not in source(strange[2])["input_ids"][:-1]

    recipe, folder = "toy", tmp_path / "run"
    options = (
        f"--init_from {tmp_path / 'dual'} --output_dir {folder} --max_steps 2 --max_train_pairs 150 --max_tokens 300"
    )
    model = train(recipe, [*options.split(), "--max_validation_pairs", "4", "--use_cpu", "true"]).model
    assert model.config.forward_config.d_model == 32 and not model.config.share_embeddings
    biases = [direction.final_logits_bias for direction in (model.forward_model, model.backward_model)]
    marian = MarianMTModel.from_pretrained(tmp_path / "forward")
    assert torch.equal(biases[0], marian.final_logits_bias) and not torch.equal(*biases)
    translator = SimultaneousTranslator.from_pretrained(folder, direction="en-de")
    assert " ".join(event.word for event in translator.stream(english[0]) if hasattr(event, "source_words_read"))
