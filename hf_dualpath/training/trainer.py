"""One trainer for all systems: the joint loss of two directions, or the loss of one."""

import gc
import math
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset
from safetensors import safe_open
from safetensors.torch import load_file
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast, Trainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import (
    PREFIX_CHECKPOINT_DIR,
    EvalPrediction,
    PredictionOutput,
    TrainOutput,
    unwrap_peft_model,
)
from transformers.utils import ADAPTER_SAFE_WEIGHTS_NAME, logging

from ..errors import DataError
from ..evaluation.metrics import METRICS, Sentence, TestSet
from ..inference.batches import translate_corpus
from ..inference.checkpoints import COMPLETE, WEIGHTS, last_complete_checkpoint, mark_complete
from ..inference.collator import PairCollator
from ..inference.tokenization import save_tokenizers
from ..model.modeling_dualpath import DualPathForConditionalGeneration, SiMTForConditionalGeneration
from ..model.policies_dualpath import Dials
from .arguments import DualPathTrainingArguments
from .card import FIGURES
from .data import MaxTokenBatchSampler, pair_encoder, pair_lengths, tokenize_pairs
from .half_products import multiply_in_half
from .losses import DirectionLoss, DualPathLoss, direction_loss, dual_path_loss, parts
from .safety import StopSignals, one_run_in, writing_to
from .streaming import MaxTokenStream


logger = logging.get_logger(__name__)
LAG_SHARE = 0.25  # of the batches have a `max_lag` where `hard_max_lag` allows one
# Settings of the library that mean nothing here, and what does instead.
WITHOUT_EFFECT = {
    "per_device_train_batch_size": "batches are as large as `max_tokens` allows",
    "per_device_eval_batch_size": "evaluation decodes `decode_batch_size` sentences at once",
    "auto_find_batch_size": "batches are as large as `max_tokens` allows",
    "dataloader_drop_last": "every pair is seen in every epoch",
}


def directions_of(model) -> dict[str, tuple[SiMTForConditionalGeneration, bool]]:
    """The directions of a model by name, each with whether it reads the data's source side."""
    if isinstance(model, DualPathForConditionalGeneration):
        return {
            name: (model.direction(name), forward) for name, forward in zip(model.config.directions, (True, False))
        }
    return {model.config.direction: (model, True)}


def is_over(state: TrainerState, args: DualPathTrainingArguments) -> bool:
    """Whether a training in that state has made all updates that the settings ask for."""
    if args.max_steps > 0:
        return state.global_step >= args.max_steps
    return (state.epoch or 0) >= args.num_train_epochs


def check_same_sizes(model, checkpoint: str | Path):
    """Refuses weights of other names or shapes in one sentence, where the library prints one for each weight."""
    here = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    with safe_open(Path(checkpoint) / WEIGHTS, "pt") as file:
        there = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    needed = {name for name, _ in model.named_parameters()}  # tied weights once
    for name in sorted(there.keys() | needed):
        if here.get(name) != there.get(name):
            raise ValueError(
                f"{checkpoint} is of a model of other sizes ({name} is {there.get(name)} there and {here.get(name)} "
                "here): give its sizes, or another `output_dir`."
            )


def load_added_adapter(model, file: Path):
    from peft import set_peft_model_state_dict

    weights = {name.removeprefix("base_model.model."): tensor for name, tensor in load_file(file).items()}
    set_peft_model_state_dict(model, weights, model.active_adapters()[0])


class EpochCallback(TrainerCallback):
    """Tells the sampler which epoch it is, which the library forgets when it resumes in the middle of one."""

    def __init__(self, sampler: MaxTokenBatchSampler):
        self.sampler = sampler

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.sampler.set_epoch(int(state.epoch or 0))


class StopCallback(TrainerCallback):
    """Ends the training with a checkpoint once all processes know that one of them was told to stop."""

    agreed = False

    def on_step_end(self, args, state, control, **kwargs):
        if self.agreed:
            control.should_save = control.should_training_stop = True


class DualPathTrainer(Trainer):
    r"""
    Trains dual paths (a [`DualPathForConditionalGeneration`]) or one direction of any policy.

    The loss of one update is divided by the true number of target tokens, of both directions, over all devices and
    accumulation steps. Every part of it is logged by name. Evaluation decodes simultaneously and reports BLEU and AL.
    SIGTERM and Ctrl-C save a checkpoint before they end the training.

    Args:
        model: The model to train, or one of PEFT's around it; none where `model_init` is given.
        args ([`DualPathTrainingArguments`]): Settings.
        data_collator (*optional*): Makes a batch of tokenized pairs; by default [`PairCollator`].
        train_dataset (`Dataset` or `IterableDataset`):
            With the texts `source` and `target`, or with `input_ids` and `labels`. In an optional column `teaches` two
            truth values say whether a pair teaches the forward and the backward direction. One that
            streams needs `max_steps`.
        eval_dataset (`Dataset` or `dict[str, Dataset]`, *optional*): With the texts `source` and `target`.
        tokenizers (pair of `PreTrainedTokenizerFast`): Of the source and the target side; twice the same where joint.
        loss (callable, *optional*):
            Another loss, of the batch and the model's outputs along the expected path (and the hard path, where a
            setting asks for that). It returns a data class of tensors, each a sum over the batch: `total`,
            `target_tokens`, and parts to log, see [`DualPathLoss`].
        kwargs: Further arguments of `Trainer`. `compute_metrics` gets the tokens that were written and those of the
            references, once for each direction.

    Example:

    ```python
    from datasets import Dataset
    from hf_dualpath import DualPathConfig, DualPathForConditionalGeneration
    from hf_dualpath import DualPathTrainer, DualPathTrainingArguments
    from hf_dualpath.inference.tokenization import train_bpe_tokenizer

    pairs = Dataset.from_dict({"source": ["der Hund", "die Katze"], "target": ["the dog", "the cat"]})
    tokenizer = train_bpe_tokenizer([*pairs["source"], *pairs["target"]], vocab_size=300)
    sizes = {"vocab_size": len(tokenizer), "d_model": 64, "encoder_layers": 1, "decoder_layers": 1}
    config = DualPathConfig(forward_config=sizes, source_language="de", target_language="en")
    settings = DualPathTrainingArguments("runs/mine", max_steps=50, learning_rate=5e-3, warmup_steps=10)
    model, data = DualPathForConditionalGeneration(config), {"train_dataset": pairs, "eval_dataset": pairs}
    trainer = DualPathTrainer(model, settings, **data, tokenizers=(tokenizer, tokenizer))
    trainer.train()
    trainer.save_model()  # then `dualpath translate --model runs/mine "die Katze"` writes "the cat"
    ```
    """

    def __init__(
        self,
        model: DualPathForConditionalGeneration | SiMTForConditionalGeneration | None = None,
        args: DualPathTrainingArguments | None = None,
        data_collator: Callable[[list[dict]], dict[str, torch.Tensor]] | None = None,
        train_dataset: Dataset | IterableDataset | MaxTokenStream | None = None,
        eval_dataset: Dataset | dict[str, Dataset] | None = None,
        tokenizers: tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast] | None = None,
        loss: Callable[[object, dict[str, torch.Tensor]], DirectionLoss | DualPathLoss] | None = None,
        **kwargs,
    ):
        args = DualPathTrainingArguments("tmp_trainer") if args is None else args
        super().__init__(model, args, data_collator, eval_dataset=eval_dataset, **kwargs)
        self.tokenizers = tokenizers
        self.loss = loss or self.loss_of_the_paper
        self.loss_is_scaled_for_ga = True
        self.is_dual = isinstance(self.core, DualPathForConditionalGeneration)
        config = self.core.config.forward_config if self.is_dual else self.core.config
        if data_collator is None:
            self.data_collator = PairCollator(config.pad_token_id)
        if args.half_products:
            multiply_in_half(self.core)
        policy = config.policy_class
        self.learns_path = policy.is_learned  # the other policies have no latency to weigh
        self.has_one_path = policy.is_learned and not policy.decides_in_each_layer  # what duality needs
        self.train_dataset = self.tokenized(train_dataset, config.max_position_embeddings)
        self._sums: dict[str, torch.Tensor | float] = defaultdict(float)
        self._sums_since = time.perf_counter()
        self._stop, self._stop_callback = StopSignals(), StopCallback()
        self.add_callback(self._stop_callback)
        self.say_what_has_no_effect(kwargs)

    @property
    def core(self) -> DualPathForConditionalGeneration | SiMTForConditionalGeneration:
        """The model itself, without what distributes, compiles or adapts it."""
        return unwrap_peft_model(self.accelerator.unwrap_model(self.model, keep_torch_compile=False))

    def say(self, sentence: str):
        if self.is_world_process_zero():
            logger.warning(sentence)

    def say_what_has_no_effect(self, kwargs: dict):
        defaults = {item.name: item.default for item in fields(self.args)}
        for name, instead in WITHOUT_EFFECT.items():
            if getattr(self.args, name) != defaults[name]:
                self.say(f"`{name}` has no effect: {instead}.")
        if kwargs.get("compute_loss_func") is not None:
            self.say("`compute_loss_func` has no effect: give `loss`, which sees both directions.")
        if self.args.save_total_limit == 1:
            self.args.save_total_limit = 2
            self.say("`save_total_limit` is 2, not 1: a run killed while it saves needs the checkpoint before.")

    # Data and schedule

    def tokenized(
        self, pairs: Dataset | IterableDataset | MaxTokenStream | None, max_length: int
    ) -> Dataset | MaxTokenStream | None:
        """Texts as tokens; what is tokenized already stays as it is."""
        if isinstance(pairs, (IterableDataset, MaxTokenStream)) and self.args.max_steps <= 0:
            raise ValueError("A stream has no end: say how many updates to make with `max_steps`.")
        if isinstance(pairs, IterableDataset):
            return self.streamed(pairs, max_length)
        if pairs is None or isinstance(pairs, MaxTokenStream) or {"input_ids", "labels"} <= set(pairs.column_names):
            return pairs
        self.check_texts(pairs, "train_dataset")
        with self.args.main_process_first(desc="tokenizing"):
            columns = [name for name in ("source", "target", "teaches") if name in pairs.column_names]
            return tokenize_pairs(pairs.select_columns(columns), *self.tokenizers, max_length)

    def streamed(self, pairs: IterableDataset, max_length: int) -> MaxTokenStream:
        encode = None
        if "input_ids" not in (pairs.column_names or next(iter(pairs))):
            if self.tokenizers is None:
                raise ValueError("`train_dataset` is text: give the trainer `tokenizers`, one for each side.")
            encode = pair_encoder(*self.tokenizers, max_length)
        return stream_of(pairs, encode, self.args)

    def check_texts(self, pairs: Dataset, name: str):
        if not {"source", "target"} <= set(pairs.column_names):
            raise DataError(f"`{name}` has columns {', '.join(pairs.column_names)}: name them `source` and `target`.")
        if self.tokenizers is None:
            raise ValueError(f"`{name}` is text: give the trainer `tokenizers`, one for each side.")

    def get_train_dataloader(self) -> DataLoader:
        if self.train_dataset is None:
            raise ValueError("There is nothing to train on: give the trainer a `train_dataset`.")
        if isinstance(self.train_dataset, MaxTokenStream):
            own = torch.Generator()  # a loader draws a number; a resumed run must not, after it restored the state
            return DataLoader(self.train_dataset, batch_size=None, collate_fn=self.data_collator, generator=own)
        sampler = MaxTokenBatchSampler(
            pair_lengths(self.train_dataset),
            self.args.max_tokens,
            seed=self.args.data_seed if self.args.data_seed is not None else self.args.seed,
            multiple_of=self.args.world_size,
        )
        self.remove_callback(EpochCallback)
        self.add_callback(EpochCallback(sampler))
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
        )
        return self.accelerator.prepare(loader)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None):
        """Inverse square root with a linear warm-up from `warmup_init_lr`; other schedules are the library's."""
        if self.lr_scheduler is None and self.args.lr_scheduler_type == "inverse_sqrt":
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                self.optimizer if optimizer is None else optimizer,
                inverse_sqrt(
                    self.args.get_warmup_steps(num_training_steps), self.args.warmup_init_lr / self.args.learning_rate
                ),
            )
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    # Loss

    def real_tokens(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Masks of the two sides; a collator may leave out the attention mask, or pad targets as sources."""
        pad = self.core.config.pad_token_id
        source = batch["attention_mask"].bool() if "attention_mask" in batch else batch["input_ids"] != pad
        return source, (batch["labels"] != -100) & (batch["labels"] != pad)

    def taught_tokens(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers of target tokens that teach the forward and the backward direction."""
        source, target = self.real_tokens(batch)
        if "teaches" in batch:
            target, source = (mask & rows[:, None] for mask, rows in zip((target, source), batch["teaches"].T))
        return target.sum(), source.sum() if self.is_dual else torch.zeros_like(source.sum())

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> torch.Tensor:
        """Target tokens of one update, of both directions, on all devices.

        The same exchange tells every process whether one of them was told to stop: they save together or not at all.
        """
        count = torch.tensor([0, self._stop.received])
        for batch in batch_samples:
            count[0] += sum(self.taught_tokens(batch)).cpu()
        tokens, stop = self.accelerator.reduce(count.to(device), reduction="sum")
        self._stop_callback.agreed = bool(stop)
        if stop and not self._stop.received:
            self._stop.received = signal.SIGTERM  # another process was told
        return tokens

    def compute_loss(
        self, model, inputs, return_outputs: bool = False, num_items_in_batch: torch.Tensor | None = None
    ):
        outputs = self.outputs_of(model, inputs)
        loss = self.loss(outputs, inputs)
        total = loss.total / (loss.target_tokens if num_items_in_batch is None else num_items_in_batch)
        if not torch.isfinite(total):
            broken = [name for name, part in parts(loss).items() if name != "total" and not torch.isfinite(part)]
            raise FloatingPointError(
                f"The loss is {total.item()} at update {self.state.global_step + 1} "
                f"(epoch {self.state.epoch or 0:.2f}): {', '.join(broken) or 'total'} is not finite. "
                "Lower the learning rate or the loss weights, or clip gradients."
            )
        for name, part in parts(loss).items():
            self._sums[name] += part
        self._sums["sentences"] += float(inputs["labels"].shape[0])
        self._sums["forward_tokens"] += self.taught_tokens(inputs)[0]
        # Data parallelism averages gradients over processes, and ours are shares of one sum.
        total = total * self.accelerator.num_processes if num_items_in_batch is not None else total
        return (total, outputs) if return_outputs else total

    def outputs_of(self, model, inputs: dict[str, torch.Tensor]):
        """Outputs of the model along the expected path, and along the hard path where the loss needs that."""
        args = self.args
        decides = self.learns_path and (args.hard_weight or (args.dual_weight and args.duality_path == "hard"))
        settings = {
            "input_ids": inputs["input_ids"],
            "attention_mask": self.real_tokens(inputs)[0],
            "path": "both" if decides else "expected",
            "dials": self.draw_dials(),
        }
        if self.is_dual:
            return model(**settings, labels=inputs["labels"], return_loss=False)
        start = self.core.prepare_decoder_input_ids_from_labels(inputs["labels"])
        return model(**settings, decoder_input_ids=start)

    def draw_dials(self) -> Dials:
        """The dials of one batch, drawn where the settings give a range; they steer fixed policies and hard paths."""
        args, dials = self.args, Dials()
        if args.multipath_k:
            dials.wait_k = int(torch.randint(1, args.multipath_k + 1, ()))
        low, high = args.hard_threshold_low, args.hard_threshold_high
        dials.write_threshold = low if low == high else low + (high - low) * float(torch.rand(()))
        if args.hard_max_lag and torch.rand(()) < LAG_SHARE:
            dials.max_lag = int(torch.randint(1, args.hard_max_lag + 1, ()))
        return dials

    def loss_of_the_paper(self, outputs, inputs: dict[str, torch.Tensor]) -> DirectionLoss | DualPathLoss:
        args, labels, mask = self.args, inputs["labels"], self.real_tokens(inputs)[0]
        teaches = inputs.get("teaches")
        latency_weight = args.latency_weight if self.learns_path else 0.0
        variance_weight = args.variance_weight if self.learns_path else 0.0
        hard_weight = args.hard_weight if self.learns_path else 0.0
        row_variance_weight = args.row_variance_weight if self.learns_path else 0.0
        if not self.is_dual:
            pad = self.core.config.pad_token_id
            return direction_loss(
                outputs,
                mask,
                labels,
                pad,
                latency_weight,
                variance_weight,
                args.label_smoothing_factor,
                hard_weight=hard_weight,
                row_variance_weight=row_variance_weight,
                teaches=None if teaches is None else teaches[:, 0],
            )
        return dual_path_loss(
            outputs,
            inputs["input_ids"],
            mask,
            labels,
            latency_weight=latency_weight,
            backward_latency_weight=args.backward_latency_weight if self.learns_path else 0.0,
            dual_weight=args.dual_weight if self.has_one_path else 0.0,
            label_smoothing=args.label_smoothing_factor,
            duality_reduction=args.duality_reduction,
            variance_weight=variance_weight,
            segment=args.segment,
            forward_duality=args.forward_duality,
            backward_duality=args.backward_duality,
            hard_weight=hard_weight,
            row_variance_weight=row_variance_weight,
            duality_path=args.duality_path,
            teaches=teaches,
        )

    def log(self, logs: dict[str, float], start_time: float | None = None):
        """Adds the parts of the loss since the last log: entropies and row variance a token, the rest a sentence.
        Variances are 0 where they have no weight."""
        if "loss" in logs and self._sums:
            names = sorted(self._sums)
            values = torch.tensor([float(self._sums[name]) for name in names], device=self.args.device)
            sums = dict(zip(names, self.accelerator.reduce(values, reduction="sum").tolist()))
            tokens, sentences, forward = (sums.pop(name) for name in ("target_tokens", "sentences", "forward_tokens"))
            sums.pop("total")
            for name, value in sums.items():
                if name.endswith(("cross_entropy", "row_variance")):
                    logs[name] = value / (tokens - forward if name.startswith("backward") else forward)
                else:
                    logs[name] = value / sentences
            logs["tokens_per_second"] = tokens / (time.perf_counter() - self._sums_since)
            self._sums.clear()
            self._sums_since = time.perf_counter()
        super().log({name: _rounded(value) for name, value in logs.items()}, start_time)

    # Evaluation

    def evaluate(
        self,
        eval_dataset: Dataset | dict[str, Dataset] | str | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Decodes all directions simultaneously, sentences shared among the processes: BLEU and token-level AL."""
        pairs = self.eval_dataset if eval_dataset is None else eval_dataset
        pairs = self.eval_dataset[pairs] if isinstance(pairs, str) else pairs
        if isinstance(pairs, dict):
            found = {}
            for name, part in pairs.items():
                found |= self.evaluate(part, ignore_keys, f"{metric_key_prefix}_{name}")
            return found
        metrics = self.measure(pairs, metric_key_prefix).metrics
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def predict(
        self, test_dataset: Dataset, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Translates a test set in all directions.

        Returns:
            `PredictionOutput`: The tokens written and those of the references, padded with -100, and the metrics. Of a
            dual model the tokens are pairs of arrays, of the forward and of the backward direction.
        """
        output = self.measure(test_dataset, metric_key_prefix)
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, output.metrics)
        return output

    def measure(self, pairs: Dataset | None, metric_key_prefix: str) -> PredictionOutput:
        if pairs is None:
            raise ValueError("There is nothing to evaluate on: give the trainer an `eval_dataset`.")
        self.check_texts(pairs, "eval_dataset")
        began = time.perf_counter()
        metrics, written, references = {}, [], []
        for name, (model, forward) in directions_of(self.core).items():
            measured = self.translate(pairs, name, model, forward)
            for figure, metric in FIGURES.items():
                metrics[f"{metric_key_prefix}_{name}_{figure}"] = METRICS[metric](measured)
            target_tokenizer = self.tokenizers[1 if forward else 0]
            written.append(padded([sentence.translation.tokens for sentence in measured.sentences]))
            references.append(padded(target_tokenizer(measured.references)["input_ids"]))
            if self.compute_metrics is not None:
                more = self.compute_metrics(EvalPrediction(written[-1], references[-1]))
                metrics |= {f"{metric_key_prefix}_{name}_{key}": value for key, value in more.items()}
        seconds = time.perf_counter() - began
        metrics[f"{metric_key_prefix}_runtime"] = seconds
        self._sums_since += seconds
        if not self.is_dual:
            return PredictionOutput(written[0], references[0], metrics)
        return PredictionOutput(tuple(written), tuple(references), metrics)

    def translate(self, pairs: Dataset, name: str, model: SiMTForConditionalGeneration, forward: bool) -> TestSet:
        """The test set of one direction, translated by all processes."""
        sources, references = (pairs["source"], pairs["target"]) if forward else (pairs["target"], pairs["source"])
        mine = range(self.args.process_index, len(pairs), self.args.world_size)
        found, seconds = translate_corpus(
            model,
            *(self.tokenizers if forward else self.tokenizers[::-1]),
            [sources[index] for index in mine],
            batch_size=self.args.decode_batch_size,
            progress=not self.args.disable_tqdm and self.is_world_process_zero(),
            description=f"Evaluating {name}",
        )
        everything = list(zip(mine, found))
        if self.args.world_size > 1:
            everything = sorted(gather_object(everything), key=lambda item: item[0])
        return TestSet([Sentence(translation, references[index]) for index, translation in everything], seconds)

    # Checkpoints

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs) -> TrainOutput:
        """As in transformers; `True` resumes from the last checkpoint that is whole, if there is one.

        A training that has made all its updates is not touched. One that is told to stop saves a checkpoint first.
        """
        with one_run_in(self.args.output_dir, self.args.process_index == 0), StopSignals() as self._stop:
            if resume_from_checkpoint is True:
                resume_from_checkpoint = last_complete_checkpoint(self.args.output_dir)
            if resume_from_checkpoint:
                state = TrainerState.load_from_json(str(Path(resume_from_checkpoint) / TRAINER_STATE_NAME))
                if is_over(state, self.args):
                    return self.take_over(resume_from_checkpoint, state)
            if isinstance(self.train_dataset, MaxTokenStream):
                self.args.ignore_data_skip = True  # a stream knows its place: nothing is read only to be skipped
                if resume_from_checkpoint:
                    self.train_dataset.load(resume_from_checkpoint)
            result = super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
            if self._stop.received:
                self.say(
                    f"Stopped at update {self.state.global_step}, saved in {self.args.output_dir}. "
                    "To go on, start the same training again."
                )
            self._stop.obey()
        return result

    def take_over(self, checkpoint: str, state: TrainerState) -> TrainOutput:
        """The weights and the state of a training that had come to its end."""
        self.say(f"{checkpoint} is the end of this training: nothing is left to do.")
        self._load_from_checkpoint(checkpoint)
        self.state = state
        if self.args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._load_best_model()
        return TrainOutput(state.global_step, 0.0, {})

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model=None):
        adapter = Path(resume_from_checkpoint) / ADAPTER_SAFE_WEIGHTS_NAME
        if (Path(resume_from_checkpoint) / WEIGHTS).is_file():
            check_same_sizes(self.core, resume_from_checkpoint)
        elif adapter.is_file() and self.core is self.accelerator.unwrap_model(self.model, keep_torch_compile=False):
            load_added_adapter(self.core, adapter)  # of `add_adapter`, which the library saves and cannot resume
            return
        super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _save_checkpoint(self, model, trial):
        """Takes the mark of completeness away first and writes it last."""
        folder = Path(self._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.args.should_save:
            (folder / COMPLETE).unlink(missing_ok=True)
        self.accelerator.wait_for_everyone()
        with writing_to(folder):
            super()._save_checkpoint(model, trial)
            if isinstance(self.train_dataset, MaxTokenStream):
                self.train_dataset.save(folder)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            with writing_to(folder):
                mark_complete(folder)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None):
        """Safetensors and JSON only: what is published holds nothing to unpickle."""
        folder = Path(output_dir or self.args.output_dir)
        with writing_to(folder):
            super()._save(output_dir, state_dict)
            (folder / "training_args.bin").unlink(missing_ok=True)
            if self.tokenizers is not None and self.args.should_save:
                save_tokenizers(folder, *self.tokenizers)

    def end(self):
        """Closes the process group after all that holds it: a thread left behind may abort the process at its exit."""
        self.accelerator.free_memory()
        self.model_wrapped = self.model
        gc.collect()
        super().end()


def stream_of(pairs: IterableDataset, encode: Callable | None, args: DualPathTrainingArguments) -> MaxTokenStream:
    """The share of this process."""
    seed = args.data_seed if args.data_seed is not None else args.seed
    return MaxTokenStream(pairs, encode, args.max_tokens, seed, args.process_index, args.world_size)


def padded(rows: list[list[int]]) -> np.ndarray:
    """Rows of tokens as one array, filled with -100."""
    result = np.full((len(rows), max(map(len, rows), default=0)), -100)
    for row, tokens in zip(result, rows):
        row[: len(tokens)] = tokens
    return result


def inverse_sqrt(warmup: int, initial: float) -> Callable[[int], float]:
    """Factor on the peak learning rate after so many updates."""

    def factor(step: int) -> float:
        if step < warmup:
            return initial + (1 - initial) * step / warmup
        return math.sqrt(max(warmup, 1) / max(step, 1))

    return factor


def _rounded(value):
    return float(f"{value:.5g}") if isinstance(value, float) else value
