"""Checkpoints by their id on the Hub, from a cache that the test makes: there is no network."""

import pytest
from conftest import TINY, dual_model, run

from hf_dualpath import SimultaneousTranslator
from hf_dualpath.inference.checkpoints import load_directions
from hf_dualpath.inference.tokenization import save_tokenizers, train_bpe_tokenizer, train_word_tokenizer
from hf_dualpath.toy import generate_pairs
from hf_dualpath.training.arguments import DataArguments
from hf_dualpath.training.data import make_tokenizers


PAIRS = generate_pairs(200, seed=3)


@pytest.fixture(params=["word", "bpe"])
def published(request, tmp_path, monkeypatch):
    """`owner/name` in an offline cache, laid out as huggingface_hub does: a snapshot of links to blobs."""
    repository = tmp_path / "hub" / "models--owner--name"
    snapshot = repository / "snapshots" / "abc123"
    sides = [[pair.source for pair in PAIRS], [pair.target for pair in PAIRS]]
    if request.param == "word":
        tokenizers = [train_word_tokenizer(side, 1, show_progress=False) for side in sides]
    else:
        tokenizers = [train_bpe_tokenizer(sides[0] + sides[1], 400, show_progress=False)] * 2
    source, target = (len(tokenizer) for tokenizer in tokenizers)
    shared = request.param == "bpe"
    model = dual_model(vocab_size=source, decoder_vocab_size=target, share_encoder_decoder_embeddings=shared)
    model.save_pretrained(snapshot)
    save_tokenizers(snapshot, *tokenizers)
    (repository / "blobs").mkdir()
    for index, path in enumerate(sorted(path for path in snapshot.rglob("*") if path.is_file())):
        blob = repository / "blobs" / str(index)
        path.rename(blob)
        path.symlink_to(blob)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tokenizers


def test_loading_by_id(published):
    for name, (model, source, target) in load_directions("owner/name").items():
        wanted = published if name == "de-en" else published[::-1]
        assert [source.get_vocab(), target.get_vocab()] == [tokenizer.get_vocab() for tokenizer in wanted]
        assert model.config.direction == name
    SimultaneousTranslator.from_pretrained("owner/name", "en-de").translate("a dog sleeps .")


def test_tokenizers_by_id(published):
    found = make_tokenizers(DataArguments(tokenizer="owner/name"), None)
    assert [tokenizer.get_vocab() for tokenizer in found] == [tokenizer.get_vocab() for tokenizer in published]


def test_starting_from_an_id(published, tmp_path, capsys):
    options = "--init_from owner/name --max_steps 1 --max_train_pairs 50 --max_validation_pairs 2 --max_tokens 300"
    run(capsys, "train", "toy", "--output_dir", str(tmp_path / "run"), *options.split(), "--disable_tqdm", "true")
    model, source, target = load_directions(tmp_path / "run")["de-en"]
    assert [source.get_vocab(), target.get_vocab()] == [tokenizer.get_vocab() for tokenizer in published]
    assert (model.config.d_model, model.config.encoder_layers) == (TINY["d_model"], TINY["encoder_layers"])
