import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, dual_model, single_model
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, EarlyStoppingCallback

from hf_dualpath import DualPathTrainer, DualPathTrainingArguments
from hf_dualpath.inference.checkpoints import average_checkpoints, last_checkpoints, last_complete_checkpoint, push
from hf_dualpath.inference.tokenization import train_bpe_tokenizer
from hf_dualpath.training.trainer import inverse_sqrt


def tokenized(count: int = 24, seed: int = 0) -> Dataset:
    generator = torch.Generator().manual_seed(seed)

    def side():
        lengths = torch.randint(3, 9, (count,), generator=generator).tolist()
        return [torch.randint(3, 40, (length,), generator=generator).tolist() + [1] for length in lengths]

    return Dataset.from_dict({"input_ids": side(), "labels": side()})


def arguments(folder, **options) -> DualPathTrainingArguments:
    settings = {
        "max_tokens": 40,
        "max_steps": 6,
        "logging_steps": 2,
        "save_steps": 2,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "duality_reduction": "sentence",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return DualPathTrainingArguments(output_dir=str(folder), **(settings | options))


def trainer(folder, model=None, **options) -> DualPathTrainer:
    torch.manual_seed(0)
    return DualPathTrainer(model or dual_model(dropout=0.1), arguments(folder, **options), train_dataset=tokenized())


def weights(folder) -> dict[str, torch.Tensor]:
    return load_file(f"{folder}/model.safetensors")


@pytest.mark.parametrize("policy", ["offline", "wait_k", "static_rw", "mma", "shared_path"])
@pytest.mark.parametrize("make", [single_model, dual_model])
def test_every_system_trains(policy, make, tmp_path):
    options = {"multipath_k": 5} if policy == "wait_k" else {}
    run = trainer(tmp_path, make(policy=policy), **options)
    run.train()
    losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]


def gradient(folder, max_tokens: int, accumulation: int, reduction: str = "sentence") -> dict[str, torch.Tensor]:
    """The gradient of one update over the whole data, in so many pieces."""
    torch.manual_seed(0)
    run = trainer(
        folder,
        dual_model(noise_std=0.0),
        max_tokens=max_tokens,
        gradient_accumulation_steps=accumulation,
        max_steps=1,
        latency_weight=0.3,
        duality_reduction=reduction,
    )
    seen = {}

    def record(*_):
        seen.update({name: p.grad.clone() for name, p in run.model.named_parameters()})

    run.create_optimizer()
    run.optimizer.register_step_pre_hook(record)
    run.train()
    return seen


def test_gradient_does_not_depend_on_accumulation(tmp_path):
    one, three = gradient(tmp_path / "1", 10_000, 1), gradient(tmp_path / "3", 80, 3)
    assert len(list(trainer(tmp_path, max_tokens=80).get_train_dataloader())) == 3
    for name in one:
        torch.testing.assert_close(one[name], three[name], atol=1e-5, rtol=1e-5)


def test_batch_reduction_differs_only_in_duality(tmp_path):
    one, three = (gradient(tmp_path / str(n), tokens, n, "batch") for tokens, n in ((10_000, 1), (80, 3)))
    moved = {name for name in one if not torch.allclose(one[name], three[name], atol=1e-5)}
    assert any("policy" in name for name in moved)
    assert "forward_model.model.decoder.layers.2.fc2.weight" not in moved, "duality does not reach the last layer"


TWO_PROCESSES = """
import sys, torch
sys.path[:0] = [{tests!r}, {tests!r} + "/training"]
from test_trainer import gradient, left_behind, trainer
import torch.distributed as dist
torch.set_num_threads(1)
seen = gradient(sys.argv[1], 120, 1)
assert dist.get_world_size() == 2
order = [batch["labels"].tolist() for batch in trainer(sys.argv[1], max_tokens=40).get_train_dataloader()]
orders = [None, None]
dist.all_gather_object(orders, order)
assert len(orders[0]) == len(orders[1]) and orders[0] != orders[1]
if dist.get_rank() == 0:
    torch.save(seen, sys.argv[1] + "/gradient.pt")
trainer(sys.argv[1]).end()
assert not left_behind()
"""


RESUME_ON_TWO = """
import sys, torch
sys.path[:0] = [{tests!r}, {tests!r} + "/training"]
import hf_dualpath.training.trainer
from test_trainer import left_behind, trainer
import torch.distributed as dist
torch.set_num_threads(1)
def orders(folder, resume, **options):
    seen, run = [], trainer(folder, max_tokens=40, **options)
    original = run.training_step
    def step(model, inputs, *rest):
        seen.append(inputs["labels"].tolist())
        return original(model, inputs, *rest)
    run.training_step = step
    run.train(resume_from_checkpoint=resume)
    return seen
whole = orders(sys.argv[1] + "/whole", None, max_steps=8)
first = orders(sys.argv[1] + "/cut", None, max_steps=6)
rest = orders(sys.argv[1] + "/cut", True, max_steps=8)
assert dist.get_world_size() == 2 and len(whole) == 8 and len(rest) == 2
assert first + rest == whole
trainer(sys.argv[1]).end()
assert not left_behind()
"""


def left_behind() -> list[str]:
    """Threads of a process group: one that lives while the interpreter ends may abort the process."""
    names = (path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))
    return [name for name in names if name == "pt_gloo_runloop"]


def test_two_processes_resume_in_the_same_order(tmp_path):
    """In the middle of the second epoch, which the library's own resumption would start anew."""
    script = tmp_path / "two.py"
    script.write_text(RESUME_ON_TWO.format(tests=str(ROOT / "tests")))
    config = str(ROOT / "scripts/accelerate_configs/two_cpu_processes.yaml")
    accelerate = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", config]
    launch(*accelerate, "--main_process_port", "0", str(script), str(tmp_path))


def launch(*command: str, **environment):
    result = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment, timeout=300
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result


def test_two_real_processes_give_the_same_gradient(tmp_path):
    script = tmp_path / "two.py"
    script.write_text(TWO_PROCESSES.format(tests=str(ROOT / "tests")))
    (tmp_path / "out").mkdir()
    launch(
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        str(ROOT / "scripts/accelerate_configs/two_cpu_processes.yaml"),
        "--main_process_port",
        "0",
        str(script),
        str(tmp_path / "out"),
    )
    two = torch.load(tmp_path / "out" / "gradient.pt", weights_only=True)
    one = gradient(tmp_path / "one", 10_000, 1)
    assert two.keys() == one.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=1e-5, rtol=1e-5)


def test_resuming_is_bit_identical(tmp_path):
    trainer(tmp_path / "whole").train()
    half = trainer(tmp_path / "cut", max_steps=4)  # the schedule does not depend on the number of steps
    half.train()
    (tmp_path / "cut" / "checkpoint-6").mkdir()  # a later checkpoint whose saving was killed
    (tmp_path / "cut" / "checkpoint-6" / "model.safetensors").write_bytes(b"half")
    assert last_complete_checkpoint(tmp_path / "cut").endswith("checkpoint-4")
    resumed = trainer(tmp_path / "cut")
    torch.manual_seed(99)
    resumed.train(resume_from_checkpoint=True)
    whole, cut = (weights(tmp_path / name / "checkpoint-6") for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    logs = [
        [e["loss"] for e in json.loads((tmp_path / n / "checkpoint-6/trainer_state.json").read_text())["log_history"]]
        for n in ("whole", "cut")
    ]
    assert logs[0] == logs[1]


def test_nothing_to_resume_starts_afresh(tmp_path):
    assert trainer(tmp_path).train(resume_from_checkpoint=True).global_step == 6


def test_every_part_is_logged_by_name(tmp_path):
    run = trainer(tmp_path, report_to="tensorboard")
    run.train()
    entry = next(entry for entry in run.state.log_history if "loss" in entry)
    names = {f"{side}_{part}" for side in ("forward", "backward") for part in ("cross_entropy", "latency", "duality")}
    assert names | {"learning_rate", "tokens_per_second", "grad_norm"} <= entry.keys()
    assert entry["forward_cross_entropy"] == pytest.approx(math.log(40), rel=0.3), "of a token, in nats"
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    files = list(tmp_path.rglob("events.out.tfevents*"))
    tags = {tag for file in files for tag in EventAccumulator(str(file)).Reload().Tags()["scalars"]}
    assert {f"train/{name}" for name in names} <= tags


def test_a_nan_says_where(tmp_path):
    model = dual_model()
    model.forward_model.model.decoder.layers[1].fc1.weight.data[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match="update 1 .*forward_cross_entropy"):
        trainer(tmp_path, model).train()


def test_schedule():
    factor = inverse_sqrt(warmup=4, initial=0.1)
    assert [factor(step) for step in (0, 2, 4, 16)] == pytest.approx([0.1, 0.55, 1, 0.5])


def test_learning_rate_starts_at_the_warm_up_init(tmp_path):
    run = trainer(tmp_path, logging_steps=1, warmup_steps=4, warmup_init_lr=1e-4)
    run.train()
    rates = [entry["learning_rate"] for entry in run.state.log_history if "learning_rate" in entry]
    assert rates[0] == pytest.approx(1e-4) and rates[4] == pytest.approx(1e-2)


TEXTS = {"source": ["der Hund läuft", "die Katze", "ja"] * 4, "target": ["the dog runs", "the cat", "yes"] * 4}


def text_trainer(folder, callbacks=(), **options) -> DualPathTrainer:
    tokenizer = train_bpe_tokenizer(TEXTS["source"] + TEXTS["target"], 300, show_progress=False)
    torch.manual_seed(0)
    data = Dataset.from_dict(
        {name: tokenizer(TEXTS[side])["input_ids"] for name, side in (("input_ids", "source"), ("labels", "target"))}
    )
    options = {"max_tokens": 200, "save_total_limit": 10} | options
    return DualPathTrainer(
        dual_model(vocab_size=len(tokenizer), dropout=0.0, noise_std=0.5),
        arguments(folder, **options),
        train_dataset=data,
        eval_dataset=Dataset.from_dict({side: texts[:3] for side, texts in TEXTS.items()}),
        tokenizers=(tokenizer, tokenizer),
        callbacks=list(callbacks),
    )


def test_evaluation_decodes_simultaneously(tmp_path):
    run = text_trainer(
        tmp_path,
        max_steps=60,
        eval_strategy="steps",
        eval_steps=20,
        save_steps=20,
        metric_for_best_model="de-en_bleu",
        greater_is_better=True,
        load_best_model_at_end=True,
    )
    run.train()
    scores = [entry["eval_de-en_bleu"] for entry in run.state.log_history if "eval_de-en_bleu" in entry]
    assert len(scores) == 3 and float(f"{run.state.best_metric:.5g}") == max(scores)  # logs have five digits
    last = run.evaluate()
    assert {f"eval_{d}_{m}" for d in ("de-en", "en-de") for m in ("bleu", "al")} <= last.keys()
    assert last["eval_de-en_al"] > 0


def test_early_stopping(tmp_path):
    stopper = EarlyStoppingCallback(early_stopping_patience=1)
    run = text_trainer(
        tmp_path,
        [stopper],
        max_steps=40,
        learning_rate=1e-12,
        eval_strategy="steps",
        eval_steps=2,
        metric_for_best_model="en-de_al",
        greater_is_better=False,
        load_best_model_at_end=True,
    )
    assert run.train().global_step < 40


def test_what_is_saved_has_nothing_to_unpickle(tmp_path):
    run = text_trainer(tmp_path, max_steps=2)
    run.train()
    run.save_model()
    names = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert {
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "modeling_dualpath.py",
    } <= names
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pth", ".pkl"))]


def test_averaging(tmp_path):
    run = text_trainer(tmp_path, max_steps=6)
    run.train()
    folders = last_checkpoints(tmp_path, 3)
    assert [folder.name for folder in folders] == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    mean = weights(average_checkpoints(folders, tmp_path / "mean"))
    for name, tensor in mean.items():
        torch.testing.assert_close(tensor, torch.stack([weights(folder)[name] for folder in folders]).mean(0))
    assert (tmp_path / "mean" / "tokenizer.json").is_file() and (tmp_path / "mean" / "modeling_dualpath.py").is_file()
    average_checkpoints(folders, tmp_path / "half", half=True)
    assert {tensor.dtype for tensor in weights(tmp_path / "half").values()} == {torch.float16}
    widened = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "half").state_dict()
    for name, tensor in mean.items():
        torch.testing.assert_close(widened[name], tensor, rtol=1e-3, atol=1e-6)
    with pytest.raises(ValueError, match="fewer than 9"):
        last_checkpoints(tmp_path, 9)


def test_push(tmp_path, monkeypatch):
    run = text_trainer(tmp_path, max_steps=2)
    run.train()
    run.save_model()
    with pytest.raises(ValueError, match="README.md"):
        push(tmp_path, "me/model", dry_run=True)
    (tmp_path / "README.md").write_text("card")
    names = {str(path.relative_to(tmp_path)) for path in push(tmp_path, "me/model", dry_run=True)}
    assert {"README.md", "config.json", "model.safetensors", "modeling_dualpath.py"} <= names
    assert not [name for name in names if "checkpoint" in name or name.endswith(".pt")]
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("hf_dualpath.inference.checkpoints.get_token", lambda: None)
    with pytest.raises(ValueError, match="no Hub token"):
        push(tmp_path, "me/model")


@pytest.mark.parametrize("options", [{"gradient_checkpointing": True}, {"bf16": True}])
def test_library_options(options, tmp_path):
    assert trainer(tmp_path, max_steps=2, **options).train().global_step == 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's default backend needs a C++ compiler")
def test_compile(tmp_path):
    """With the default backend, which relies on the strides that the operators promise; the losses stay the same."""
    losses = []
    for compiled in (True, False):
        torch.manual_seed(0)
        model = single_model(noise_std=0.0, encoder_layers=1, decoder_layers=1)
        options = {"max_steps": 1, "logging_steps": 1, "max_tokens": 10_000, "torch_compile": compiled}
        run = trainer(tmp_path / str(compiled), model, **options)
        run.train()
        losses.append(run.state.log_history[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
