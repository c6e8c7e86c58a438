import json

import pytest
from conftest import fails, run
from datasets import Dataset, DatasetDict

from hf_dualpath import FixedPolicy, SimultaneousTranslator, register_policy
from hf_dualpath.model.policies_dualpath import POLICIES
from hf_dualpath.toy import generate_pairs
from hf_dualpath.training.data import load_pairs
from hf_dualpath.training.settings import RECIPES as FOLDER
from hf_dualpath.training.settings import find_recipe, parse_recipe, read_recipe


RECIPES = sorted(FOLDER.glob("*.yaml"))
TINY = "--d_model 32 --encoder_layers 1 --decoder_layers 1 --ffn_dim 32 --max_steps 2 --save_steps 2 --warmup_steps 1 "
TINY += "--max_train_pairs 60 --max_validation_pairs 4 --vocab_size 400 --max_tokens 300 --disable_tqdm true"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipes_parse(recipe, tmp_path):
    model, data, arguments = parse_recipe(recipe, ["--output_dir", str(tmp_path), "--use_cpu", "true"])
    assert (
        model.system == "dual_paths" and arguments.learning_rate > 0 and data.source_language != data.target_language
    )


def test_the_papers_settings(tmp_path):
    model, data, arguments = parse_recipe("iwslt15-envi", ["--output_dir", str(tmp_path), "--use_cpu", "true"])
    assert (model.d_model, model.ffn_dim, model.attention_heads, model.dropout, model.noise_std) == (
        512,
        1024,
        4,
        0.3,
        1.5,
    )
    assert (arguments.learning_rate, arguments.warmup_steps, arguments.max_tokens) == (5e-4, 4000, 16000)
    assert (arguments.adam_beta1, arguments.adam_beta2, arguments.max_grad_norm) == (0.9, 0.98, 0.0)
    assert (arguments.warmup_init_lr, arguments.weight_decay, arguments.label_smoothing_factor) == (1e-7, 1e-4, 0.1)
    assert (data.tokenizer, data.min_frequency, arguments.average_checkpoints) == ("word", 5, 5)


def test_the_papers_settings_of_wmt15(tmp_path):
    model, data, arguments = parse_recipe("wmt15-deen", ["--output_dir", str(tmp_path), "--use_cpu", "true"])
    assert (model.d_model, model.ffn_dim, model.attention_heads, model.dropout, model.noise_std) == (
        512,
        1024,
        8,
        0.3,
        1.5,
    )
    assert (arguments.max_tokens, arguments.gradient_accumulation_steps, arguments.max_steps) == (2400, 4, 180_000)
    assert (arguments.learning_rate, arguments.warmup_steps, arguments.average_checkpoints) == (5e-4, 4000, 5)
    assert (data.tokenizer, data.vocab_size) == ("bpe", 32_000)


def test_mistakes_in_a_recipe(tmp_path, capsys):
    recipe = tmp_path / "wrong.yaml"
    recipe.write_text("latency_wieght: 0.1\n")
    with pytest.raises(ValueError, match="did you mean `latency_weight`"):
        read_recipe(recipe)
    with pytest.raises(FileNotFoundError, match="no recipe"):
        find_recipe("nothing")
    recipe.write_text("system: magic\n")
    assert "one of offline" in fails(
        capsys, "train", str(recipe), "--output_dir", str(tmp_path / "o"), "--use_cpu", "true"
    )
    recipe.write_text("system: wait_k\n")
    assert "no training data" in fails(
        capsys, "train", str(recipe), "--output_dir", str(tmp_path / "o"), "--use_cpu", "true"
    )


def parse(recipe, folder, *overrides: str):
    return parse_recipe(recipe, ["--output_dir", str(folder), "--use_cpu", "true", *overrides])


def write_pairs(folder, kind: str) -> list[str]:
    """Training data in one of the ways to give them, and the arguments that say so."""
    pairs = [(f"der Hund {i}", f"the dog {i}") for i in range(4)]
    if kind == "text":
        for name, side in (("my.de", 0), ("my.en", 1)):
            (folder / name).write_text("\n".join(pair[side] for pair in pairs))
        return ["--train_source", str(folder / "my.de"), "--train_target", str(folder / "my.en")]
    table = Dataset.from_dict({"de": [pair[0] for pair in pairs], "en": [pair[1] for pair in pairs]})
    if kind == "dataset":
        DatasetDict(train=table).save_to_disk(folder / "set")
        return ["--dataset", str(folder / "set")]
    path = folder / f"my.{kind}"
    if kind == "parquet":
        table.to_parquet(path)
    elif kind == "jsonl":
        table.to_json(path)
    else:
        table.to_csv(path, sep="\t" if kind == "tsv" else ",", index=False)
    return [f"--train-file={path}"]


@pytest.mark.parametrize("kind", ["text", "csv", "tsv", "jsonl", "parquet", "dataset"])
@pytest.mark.parametrize("recipe", ["tatoeba-small", "toy"])
def test_own_data_replace_the_recipes(kind, recipe, tmp_path):
    data = parse(recipe, tmp_path, *write_pairs(tmp_path, kind))[1]
    assert (data.license, data.data_description, data.data_dir) == ("unknown", None, None)
    assert data.vocab_size == parse(recipe, tmp_path)[1].vocab_size, "all else is the recipe's"
    splits = load_pairs(data)
    assert list(splits) == ["train"] and splits["train"][3]["target"] == "the dog 3"


def test_own_data_keep_what_is_given_with_them(tmp_path):
    mine = ["--train_file", "my.csv", "--validation_file", "v.csv", "--data_dir", "d", "--license", "mit"]
    data = parse("tatoeba-small", tmp_path, *mine)[1]
    assert (data.validation_file, data.data_dir, data.license) == ("v.csv", "d", "mit")
    assert data.validation_source is None and data.test_source is None and data.long_pair_repeats == 3
    untouched = parse("tatoeba-small", tmp_path, "--data_dir", "d")[1]
    assert untouched.license == "cc-by-2.0" and untouched.train_source == "train.de.gz"


def test_no_recipe(capsys, tmp_path):
    where = ["--output_dir", str(tmp_path), "--use_cpu", "true"]
    assert "no training data" in fails(capsys, "train", *where)
    assert "the recipe comes first" in fails(capsys, "train", *where, "toy")


def test_mistyped_settings(capsys, tmp_path):
    where = ["--output_dir", str(tmp_path)]
    assert "did you mean `latency_weight`?" in fails(capsys, "train", "toy", *where, "--latency_wieght", "0.1")
    assert "did you mean `max_steps`?" in fails(capsys, "train", "toy", *where, "--max-step=3")
    assert "There is no setting `--qqqqq`." in fails(capsys, "train", "toy", *where, "--qqqqq", "3")
    message = fails(capsys, "train", "toy", *where, "--d_model", "wide")
    assert "d_model" in message and len(message) < 200


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [\n", "a: b: c\n", "\x00", "3"])
def test_what_is_no_recipe(text, capsys, tmp_path):
    (tmp_path / "r.yaml").write_text(text)
    assert "r.yaml is no" in fails(capsys, "train", str(tmp_path / "r.yaml"), "--output_dir", str(tmp_path / "o"))


def test_our_settings_come_first(capsys):
    ours = run(capsys, "train", "--help-settings")
    everything = run(capsys, "train", "--help-settings", "all")
    for name in ("--system", "--train_file", "--latency_weight", "--learning_rate", "--output_dir"):
        assert name in ours and name in everything
    for name in ("--gradient_checkpointing", "--fsdp"):
        assert name not in ours and name in everything
    assert "--help-settings all" in ours and len(ours) < len(everything) / 1.5


def test_settings_of_a_policy(capsys, tmp_path):
    """Trained, streamed and evaluated: reads 3, then writes 2 and reads 2 in turns."""
    given = ["--system", "static_rw", "--policy_settings", "{start: 3, turn: 2}", *TINY.split()]
    run(capsys, "train", "toy", "--output_dir", str(tmp_path / "run"), *given)
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["policy_settings"]
    assert settings == {"start": 3, "turn": 2}
    translator = SimultaneousTranslator.from_pretrained(tmp_path / "run")
    stream = translator.model.open_stream(min_new_tokens=6, max_new_tokens=6)
    path = [action[1] for action in stream.push(range(300, 320)) if action is not None]
    assert path == [3, 3, 5, 5, 7, 7]
    pairs = generate_pairs(4, seed=1)
    for name, side in (("t.de", "source"), ("t.en", "target")):
        (tmp_path / name).write_text("\n".join(getattr(pair, side) for pair in pairs))
    test = ["--source", str(tmp_path / "t.de"), "--target", str(tmp_path / "t.en"), "--output", str(tmp_path / "e")]
    assert "BLEU" in run(capsys, "evaluate", "--model", str(tmp_path / "run"), *test)
    message = fails(capsys, "train", "toy", "--output_dir", str(tmp_path / "no"), *given[:2], "--policy_settings", "3")
    assert "policy_settings" in message


def test_settings_of_a_policy_in_a_recipe(tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("system: static_rw\npolicy_settings: {start: 5}\n")
    assert parse(recipe, tmp_path)[0].policy_settings == {"start": 5}
    overridden = parse(recipe, tmp_path, "--policy_settings", "{turn: 3}")[0]
    assert overridden.policy_settings == {"turn": 3}


def test_a_third_partys_policy(capsys, tmp_path):
    @register_policy("every_other")
    class EveryOther(FixedPolicy):
        def reads(self, target_position, dials):
            return 2 * target_position + 1

    try:
        recipe = tmp_path / "r.yaml"
        recipe.write_text(find_recipe("toy").read_text().replace("system: dual_paths", "system: every_other"))
        run(capsys, "train", str(recipe), "--output_dir", str(tmp_path / "run"), *TINY.split())
        stream = SimultaneousTranslator.from_pretrained(tmp_path / "run").model.open_stream(min_new_tokens=4)
        path = [action[1] for action in stream.push(range(300, 308)) if action is not None]
        assert path[:4] == [1, 3, 5, 7]
    finally:
        del POLICIES["every_other"]
