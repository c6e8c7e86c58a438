import json
from pathlib import Path

import pytest
import torch
from conftest import dual_model, run, single_model
from transformers import AutoModelForSeq2SeqLM

from hf_dualpath import SiMTForConditionalGeneration, SimultaneousTranslator
from hf_dualpath.apps.examples import DEFAULT_MODEL
from hf_dualpath.inference.tokenization import load_tokenizers
from hf_dualpath.training.arguments import policy_of
from hf_dualpath.training.run import build_model, start_from, take_sizes
from hf_dualpath.training.settings import parse_recipe


TINY = "--d_model 32 --encoder_layers 1 --decoder_layers 1 --ffn_dim 32 --max_steps 4 --save_steps 2 --warmup_steps 2 "
TINY += "--max_train_pairs 150 --max_validation_pairs 4 --vocab_size 500 --max_tokens 300 --disable_tqdm true"


def train(capsys, folder, *more: str):
    run(capsys, "train", "toy", "--output_dir", str(folder), *TINY.split(), *more)


def test_from_recipe_to_a_complete_repository(tmp_path, capsys):
    train(capsys, tmp_path, "--average_checkpoints", "2", "--lr_scheduler_type", "linear")
    names = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert {"config.json", "model.safetensors", "generation_config.json", "tokenizer.json", "README.md"} <= names
    card = (tmp_path / "README.md").read_text()
    assert "| test | de-en |" in card and "| validation | en-de |" in card and "license: apache-2.0" in card
    assert str(tmp_path) not in card and "max_steps: 4" in card and "lr_scheduler_type: linear" in card
    assert "model.safetensors" in run(capsys, "push", str(tmp_path), "me/model", "--dry-run")
    SimultaneousTranslator.from_pretrained(tmp_path, direction="en-de").translate("A dog sleeps.")


@pytest.mark.parametrize("system", ["offline", "wait_k", "static_rw", "mma", "single_path"])
def test_other_systems_and_warm_starts(system, tmp_path, capsys):
    train(capsys, tmp_path / "first", "--system", system)
    config = json.loads((tmp_path / "first" / "config.json").read_text())
    assert config["policy"] == policy_of(system) and config["source_language"] == "de"
    train(capsys, tmp_path / "dual", "--init_from", str(tmp_path / "first"), "--max_steps", "2")
    assert Path(tmp_path / "dual" / "model.safetensors").is_file()


def test_a_run_that_was_cut_short_goes_on(tmp_path, capsys):
    train(capsys, tmp_path, "--max_steps", "2")
    first = json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())["global_step"]
    train(capsys, tmp_path)
    assert first == 2 and (tmp_path / "checkpoint-4" / "complete").is_file()


def test_a_start_brings_its_learned_bias(tmp_path):
    model, data, _ = parse_recipe("tatoeba-small", ["--output_dir", str(tmp_path), "--use_cpu", "true"])
    model.init_from = str(DEFAULT_MODEL)
    take_sizes(model)
    started = build_model(model, data, load_tokenizers(DEFAULT_MODEL)).state_dict()
    shipped = AutoModelForSeq2SeqLM.from_pretrained(DEFAULT_MODEL).state_dict()
    assert started.keys() == shipped.keys() and all(torch.equal(started[name], shipped[name]) for name in shipped)


def test_start_from_takes_what_fits(tmp_path):
    dual_model(policy="offline").save_pretrained(tmp_path / "offline")
    model = dual_model()
    taken, total = start_from(model, tmp_path / "offline")
    assert taken == total
    layer = model.backward_model.model.decoder.layers[0]
    assert torch.equal(layer.policy.k_proj.weight, layer.encoder_attn.k_proj.weight), "a new policy: as soft attention"
    biased = dual_model(energy_bias=-1.0)
    taken, total = start_from(biased, tmp_path / "offline")
    assert total - taken == 2, "all but the bias of each direction"
    torch.nn.init.zeros_(layer.policy.k_proj.weight)
    model.save_pretrained(tmp_path / "dual")
    start_from(biased, tmp_path / "dual")
    assert not biased.backward_model.model.decoder.layers[0].policy.k_proj.weight.any(), "a policy that is there wins"
    single = single_model()
    start_from(single, tmp_path / "offline")
    assert isinstance(single, SiMTForConditionalGeneration)
    source = dual_model(policy="offline").from_pretrained(tmp_path / "offline").forward_model
    assert torch.equal(single.model.shared.weight, source.model.shared.weight)
    with pytest.raises(ValueError, match="no weight"):
        start_from(dual_model(d_model=64, encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=50), tmp_path / "offline")
    with pytest.raises(FileNotFoundError, match="safetensors"):
        start_from(model, tmp_path)


def test_without_validation_pairs_nothing_is_evaluated(tmp_path, caplog, capsys):
    """Own training pairs are enough, whatever the recipe evaluates on."""
    (tmp_path / "pairs.tsv").write_text("de\ten\nder Hund\tthe dog\ndie Katze\tthe cat\n")
    names = ["--source_language", "de", "--target_language", "en", "--train_file", str(tmp_path / "pairs.tsv")]
    run(capsys, "train", "multi30k-tiny", "--output_dir", str(tmp_path / "run"), *TINY.split(), *names)
    assert "no validation pairs" in caplog.text and (tmp_path / "run" / "README.md").is_file()
