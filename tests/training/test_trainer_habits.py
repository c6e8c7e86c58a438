"""The trainer is a Trainer, and the models are models of transformers: what users do with others works here."""

import logging
import re
from dataclasses import dataclass

import numpy as np
import peft
import pytest
import torch
from conftest import dual_model, single_model
from datasets import Dataset
from test_trainer import TEXTS, arguments, tokenized
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from hf_dualpath import DualPathTrainer, SiMTForConditionalGeneration, SimultaneousTranslator, latency_metrics
from hf_dualpath.errors import DataError
from hf_dualpath.inference.collator import PairCollator
from hf_dualpath.inference.tokenization import train_bpe_tokenizer


PAIRS = Dataset.from_dict(TEXTS)
TOKENIZER = train_bpe_tokenizer(TEXTS["source"] + TEXTS["target"], 300, show_progress=False)


def text_trainer(folder, make=dual_model, settings=None, **options) -> DualPathTrainer:
    """On plain texts, which the trainer tokenizes."""
    settings = {"max_tokens": 200, "max_steps": 2} | (settings or {})
    if "model_init" not in options:
        options = {"model": make(vocab_size=len(TOKENIZER))} | options
    options = {"train_dataset": PAIRS, "tokenizers": (TOKENIZER, TOKENIZER)} | options
    return DualPathTrainer(args=arguments(folder, **settings), **options)


def test_texts_are_tokenized(tmp_path):
    run = text_trainer(tmp_path, train_dataset=PAIRS.add_column("note", ["x"] * len(PAIRS)))
    assert run.train_dataset["labels"][0] == TOKENIZER(TEXTS["target"][0])["input_ids"]
    assert run.train().global_step == 2
    with pytest.raises(ValueError, match="give the trainer `tokenizers`"):
        text_trainer(tmp_path, tokenizers=None)
    with pytest.raises(DataError, match="columns de, en: name them"):
        text_trainer(tmp_path, train_dataset=PAIRS.rename_columns({"source": "de", "target": "en"}))


def test_an_own_collator_makes_the_batches(tmp_path):
    seen = []

    def collate(examples):
        seen.append(len(examples))
        return PairCollator(0)(examples)

    text_trainer(tmp_path, data_collator=collate).train()
    assert sum(seen) >= len(PAIRS)


@pytest.mark.parametrize("make", [single_model, dual_model])
def test_the_librarys_collator_gives_the_same_loss(make, tmp_path):
    """It pads targets with -100, and may bring `decoder_input_ids` or bring no mask."""
    losses = []
    for collator in (None, DataCollatorForSeq2Seq(TOKENIZER), lambda examples: without_mask(examples)):
        torch.manual_seed(0)
        run = text_trainer(tmp_path, make, {"logging_steps": 1, "max_steps": 1}, data_collator=collator)
        run.train()
        losses.append(run.state.log_history[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6) and losses[0] == pytest.approx(losses[2], rel=1e-6)


def without_mask(examples):
    batch = PairCollator(0)(examples)
    return {"input_ids": batch["input_ids"], "labels": batch["labels"].masked_fill(batch["labels"] == -100, 0)}


def test_compute_metrics_and_predict(tmp_path):
    seen = []

    def compute_metrics(prediction):
        seen.append(prediction)
        return {"tokens": float((prediction.predictions != -100).sum())}

    run = text_trainer(tmp_path, eval_dataset=PAIRS, compute_metrics=compute_metrics)
    metrics = run.evaluate()
    assert metrics["eval_de-en_tokens"] == (seen[0].predictions != -100).sum() and len(seen) == 2
    output = run.predict(PAIRS.select(range(3)))
    written, references = output.predictions, output.label_ids
    assert (
        len(written) == 2
        and written[0].shape[0] == 3
        and {"test_de-en_bleu", "test_en-de_al"} <= output.metrics.keys()
    )
    assert references[1][0][references[1][0] != -100].tolist() == TOKENIZER(TEXTS["source"][0])["input_ids"]
    one = text_trainer(tmp_path, single_model).predict(PAIRS.select(range(3)))
    assert isinstance(one.predictions, np.ndarray) and one.predictions.shape[0] == 3


def test_predictions_after_training_are_those_of_the_checkpoint(tmp_path):
    """Evaluation on the way leaves nothing behind: the engine follows the optimizer."""
    fast = {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 3, "learning_rate": 3e-2, "warmup_steps": 1}
    run = text_trainer(tmp_path, single_model, fast, eval_dataset=PAIRS)
    run.train()
    run.save_model(tmp_path / "model")
    again = text_trainer(tmp_path, model=SiMTForConditionalGeneration.from_pretrained(tmp_path / "model"))
    found, expected = (trainer.predict(PAIRS).predictions for trainer in (run, again))
    assert np.array_equal(found, expected)


def test_figures_are_those_of_the_table_of_metrics(tmp_path):
    """AL of each sentence by its definition, from a stream's own path."""
    run = text_trainer(tmp_path, single_model, tokenizers=(TOKENIZER, TOKENIZER))
    found = run.evaluate(PAIRS.select(range(3)))
    lags = []
    for text in TEXTS["source"][:3]:
        output = run.model.generate(torch.tensor([TOKENIZER(text)["input_ids"]]), return_dict_in_generate=True)
        lags.append(latency_metrics(output.path[0].tolist(), len(TOKENIZER(text)["input_ids"]))["AL"])
    name = run.model.config.direction
    assert found[f"eval_{name}_al"] == pytest.approx(np.mean(lags))


def test_a_dict_of_evaluation_sets(tmp_path):
    sets = {"short": PAIRS.select([2, 5]), "long": PAIRS.select([0, 1])}
    run = text_trainer(tmp_path, eval_dataset=sets, settings={"eval_strategy": "steps", "eval_steps": 2})
    run.train()
    names = {name for entry in run.state.log_history for name in entry}
    assert {"eval_short_de-en_bleu", "eval_long_en-de_al"} <= names
    assert run.evaluate("short").keys() == set(run.evaluate(sets["short"]))


@pytest.mark.parametrize("make", [single_model, dual_model])
@pytest.mark.parametrize("way", ["get_peft_model", "add_adapter"])
def test_peft(make, way, tmp_path):
    torch.manual_seed(0)
    model = make(vocab_size=len(TOKENIZER))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    lora = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2, init_lora_weights=False)
    if way == "get_peft_model":
        model = peft.get_peft_model(model, lora)
    else:
        model.add_adapter(lora)
    run = text_trainer(tmp_path, model=model, eval_dataset=PAIRS.select(range(2)))
    adapters = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    assert adapters and all("lora" in name for name in adapters)
    run.train()
    assert any(not torch.equal(p, adapters[name]) for name, p in model.named_parameters() if name in adapters)
    after = {name.replace(".base_layer", ""): tensor for name, tensor in run.core.state_dict().items()}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items()), "the rest is frozen"
    assert any(name.endswith("_bleu") for name in run.evaluate())
    trained = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in model.named_parameters():
        parameter.data = adapters.get(name, parameter.data)
    again = text_trainer(tmp_path, model=model)
    again.train(resume_from_checkpoint=True)
    assert all(torch.equal(p, trained[name]) for name, p in model.named_parameters() if name in trained), "resumed"


def test_model_init(tmp_path):
    run = text_trainer(tmp_path, model_init=lambda: dual_model(vocab_size=len(TOKENIZER)), eval_dataset=PAIRS)
    run.train()
    first = run.state.log_history[0]["loss"]
    run.train()
    assert run.state.log_history[0]["loss"] == first, "every training starts from a model of its own"


@pytest.mark.parametrize("make", [single_model, dual_model])
def test_the_librarys_seq2seq_trainer(make, tmp_path):
    """With its own loop and loss; and accumulating over two batches is one update over both."""
    settings = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "learning_rate": 1e-2, "logging_steps": 1}
    model = make(vocab_size=40)
    run = Seq2SeqTrainer(
        model,
        Seq2SeqTrainingArguments(str(tmp_path), max_steps=8, save_strategy="no", **settings),
        train_dataset=tokenized(),
        eval_dataset=tokenized(4),
        data_collator=PairCollator(0),
    )
    run.train()
    losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0] and run.evaluate()["eval_loss"] < losses[0]


def test_the_librarys_trainer_accumulates_a_mean(tmp_path):
    norms = []
    for size, steps in ((12, 1), (4, 3)):
        torch.manual_seed(0)
        model = single_model(policy="offline")
        same = Dataset.from_dict({"input_ids": [[3, 4, 5, 1]] * 12, "labels": [[6, 7, 1]] * 12})
        settings = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "logging_steps": 1}
        settings |= {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps, "max_steps": 1}
        run = Seq2SeqTrainer(
            model,
            Seq2SeqTrainingArguments(str(tmp_path), save_strategy="no", **settings),
            train_dataset=same,
            data_collator=PairCollator(0),
        )
        run.train()
        norms.append(run.state.log_history[0]["grad_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


@pytest.mark.parametrize("make", [single_model, dual_model])
def test_a_loop_written_by_hand(make):
    model = make(vocab_size=40).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    batch = PairCollator(0)(list(tokenized(8)))
    losses = []
    for _ in range(5):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@dataclass
class ForwardOnly:
    total: torch.Tensor
    target_tokens: torch.Tensor
    entropy: torch.Tensor


def test_another_loss(tmp_path):
    def forward_only(outputs, inputs):
        logits = outputs.forward_output.logits.flatten(0, 1)
        total = torch.nn.functional.cross_entropy(logits, inputs["labels"].flatten(), reduction="sum")
        return ForwardOnly(total, (inputs["labels"] != -100).sum(), total)

    run = text_trainer(tmp_path, loss=forward_only, settings={"logging_steps": 1, "weight_decay": 0.0})
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items() if "layers" in name}
    run.train()
    moved = {name for name, tensor in before.items() if not torch.equal(run.model.state_dict()[name], tensor)}
    assert moved and all(name.startswith("forward_model") for name in moved)
    assert "entropy" in run.state.log_history[0] and "forward_latency" not in run.state.log_history[0]


def test_what_cannot_be_honoured_is_said_once(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        run = text_trainer(tmp_path, settings={"per_device_train_batch_size": 3, "save_total_limit": 1})
    said = [message for message in caplog.messages if "per_device_train_batch_size" in message]
    assert len(said) == 1 and "max_tokens" in said[0]
    assert any("save_total_limit" in message for message in caplog.messages)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        run = text_trainer(tmp_path)
    assert not [message for message in caplog.messages if "no effect" in message]
    assert run.args.remove_unused_columns is True, "a setting of the user's, which stays as it is"


def test_the_example_of_the_trainer(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    snippet = re.search(r"```python\n(.*?)```", DualPathTrainer.__doc__, re.DOTALL).group(1)
    lines = [line.removeprefix("    ") for line in snippet.splitlines()]
    exec("\n".join(lines), {})
    translator = SimultaneousTranslator.from_pretrained("runs/mine", direction="de-en")
    assert translator.translate("die Katze") == "the cat"
