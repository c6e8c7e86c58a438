"""One trainer for all systems: the joint loss of two directions, or the loss of one."""

import math
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from sacrebleu import corpus_bleu
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast, Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..inference.batches import PairCollator, translate_corpus
from ..inference.tokenization import save_tokenizers
from ..model.modeling_dualpath import DualPathForConditionalGeneration, SiMTForConditionalGeneration
from ..model.policies_dualpath import Dials
from ..paths.latency import latency_metrics
from .arguments import DualPathTrainingArguments
from .data import MaxTokenBatchSampler, pair_lengths
from .losses import DirectionLoss, DualPathLoss, direction_loss, dual_path_loss, parts


COMPLETE = "complete"  # a file that marks a checkpoint as wholly written


def last_complete_checkpoint(output_dir: str | Path) -> str | None:
    """The newest checkpoint that was wholly written; a run may have been killed while it saved."""
    marks = Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*/{COMPLETE}")
    folders = sorted((mark.parent for mark in marks), key=lambda folder: int(folder.name.split("-")[-1]))
    return str(folders[-1]) if folders else None


def directions_of(model) -> dict[str, tuple[SiMTForConditionalGeneration, bool]]:
    """The directions of a model by name, each with whether it reads the data's source side."""
    if isinstance(model, DualPathForConditionalGeneration):
        return {
            name: (model.direction(name), forward) for name, forward in zip(model.config.directions, (True, False))
        }
    return {model.config.direction: (model, True)}


class EpochCallback(TrainerCallback):
    """Tells the sampler which epoch it is, which the library forgets when it resumes in the middle of one."""

    def __init__(self, sampler: MaxTokenBatchSampler):
        self.sampler = sampler

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.sampler.set_epoch(int(state.epoch or 0))


class DualPathTrainer(Trainer):
    r"""
    Trains dual paths (a [`DualPathForConditionalGeneration`]) or one direction of any policy.

    The loss of one update is divided by the true number of target tokens, of both directions, over all devices and
    accumulation steps. Every part of it is logged by name. Evaluation decodes simultaneously and reports BLEU and AL.

    Args:
        model: The model to train.
        args ([`DualPathTrainingArguments`]): Settings.
        train_dataset (`Dataset`): With `input_ids` and `labels`, see `tokenize_pairs`.
        eval_dataset (`Dataset`, *optional*): With the texts `source` and `target`.
        tokenizers (pair of `PreTrainedTokenizerFast`): Of the source and the target side; twice the same where joint.
        kwargs: Further arguments of `Trainer`.
    """

    def __init__(
        self,
        model: DualPathForConditionalGeneration | SiMTForConditionalGeneration,
        args: DualPathTrainingArguments,
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | None = None,
        tokenizers: tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast] | None = None,
        **kwargs,
    ):
        args.remove_unused_columns = False
        if args.save_total_limit == 1:
            args.save_total_limit = 2  # a run killed while it saves needs the checkpoint before
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            data_collator=PairCollator(model.config.pad_token_id),
            **kwargs,
        )
        self.tokenizers = tokenizers
        self.loss_is_scaled_for_ga = True
        self.is_dual = isinstance(model, DualPathForConditionalGeneration)
        config = model.config.forward_config if self.is_dual else model.config
        policy = config.policy_class
        self.learns_path = policy.is_learned  # the other policies have no latency to weigh
        self.has_one_path = policy.is_learned and not policy.decides_in_each_layer  # what duality needs
        self._sums: dict[str, torch.Tensor | float] = defaultdict(float)
        self._sums_since = time.perf_counter()

    # Data and schedule

    def get_train_dataloader(self) -> DataLoader:
        sampler = MaxTokenBatchSampler(
            pair_lengths(self.train_dataset),
            self.args.max_tokens,
            seed=self.args.data_seed if self.args.data_seed is not None else self.args.seed,
            multiple_of=self.args.world_size,
        )
        self.add_callback(EpochCallback(sampler))
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
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

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> torch.Tensor:
        """Target tokens of one update, of both directions, on all devices."""
        count = torch.zeros((), dtype=torch.long)
        for batch in batch_samples:
            count += (batch["labels"] != -100).sum().cpu()
            if self.is_dual:
                count += batch["attention_mask"].sum().cpu()
        return self.accelerator.reduce(count.to(device), reduction="sum")

    def compute_loss(
        self, model, inputs, return_outputs: bool = False, num_items_in_batch: torch.Tensor | None = None
    ):
        loss, outputs = self.loss_parts(model, inputs)
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
        self._sums["forward_tokens"] += (inputs["labels"] != -100).sum()
        # Data parallelism averages gradients over processes, and ours are shares of one sum.
        total = total * self.accelerator.num_processes if num_items_in_batch is not None else total
        return (total, outputs) if return_outputs else total

    def loss_parts(self, model, inputs: dict[str, torch.Tensor]) -> tuple[DirectionLoss | DualPathLoss, object]:
        args, labels, mask = self.args, inputs["labels"], inputs["attention_mask"]
        dials = Dials(wait_k=int(torch.randint(1, args.multipath_k + 1, ()))) if args.multipath_k else None
        latency_weight = args.latency_weight if self.learns_path else 0.0
        variance_weight = args.variance_weight if self.learns_path else 0.0
        if not self.is_dual:
            start = self.model.prepare_decoder_input_ids_from_labels(labels)
            outputs = model(inputs["input_ids"], mask, start, path="expected", dials=dials)
            pad = self.model.config.pad_token_id
            loss = direction_loss(
                outputs, mask, labels, pad, latency_weight, variance_weight, args.label_smoothing_factor
            )
            return loss, outputs
        outputs = model(inputs["input_ids"], mask, labels, return_loss=False, path="expected", dials=dials)
        loss = dual_path_loss(
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
        )
        return loss, outputs

    def log(self, logs: dict[str, float], start_time: float | None = None):
        """Adds the parts of the loss since the last log: entropies a token, latency and duality a sentence."""
        if "loss" in logs and self._sums:
            names = sorted(self._sums)
            values = torch.tensor([float(self._sums[name]) for name in names], device=self.args.device)
            sums = dict(zip(names, self.accelerator.reduce(values, reduction="sum").tolist()))
            tokens, sentences, forward = (sums.pop(name) for name in ("target_tokens", "sentences", "forward_tokens"))
            sums.pop("total")
            for name, value in sums.items():
                if name.endswith("cross_entropy"):
                    logs[name] = value / (tokens - forward if name.startswith("backward") else forward)
                else:
                    logs[name] = value / sentences
            logs["tokens_per_second"] = tokens / (time.perf_counter() - self._sums_since)
            self._sums.clear()
            self._sums_since = time.perf_counter()
        super().log({name: _rounded(value) for name, value in logs.items()}, start_time)

    # Evaluation

    def evaluate(self, eval_dataset: Dataset | None = None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict:
        """Decodes both directions simultaneously, sentences shared among the processes: BLEU and token-level AL."""
        pairs = self.eval_dataset if eval_dataset is None else eval_dataset
        began = time.perf_counter()
        metrics = {}
        for name, (model, forward) in directions_of(self.accelerator.unwrap_model(self.model)).items():
            source, target = ("source", "target") if forward else ("target", "source")
            tokenizers = self.tokenizers if forward else self.tokenizers[::-1]
            mine = range(self.args.process_index, len(pairs), self.args.world_size)
            found, _ = translate_corpus(
                model,
                *tokenizers,
                [pairs[index][source] for index in mine],
                batch_size=self.args.decode_batch_size,
                progress=not self.args.disable_tqdm and self.is_world_process_zero(),
                description=f"Evaluating {name}",
            )
            local = [
                (index, result.text, latency_metrics(result.path, len(result.source_tokens))["AL"])
                for index, result in zip(mine, found)
            ]
            everything = sorted(gather_object(local)) if self.args.world_size > 1 else local
            references = [pairs[index][target] for index, _, _ in everything]
            metrics[f"{metric_key_prefix}_{name}_bleu"] = corpus_bleu(
                [text for _, text, _ in everything], [references]
            ).score
            metrics[f"{metric_key_prefix}_{name}_al"] = sum(al for _, _, al in everything) / len(everything)
        metrics[f"{metric_key_prefix}_runtime"] = time.perf_counter() - began
        self._sums_since += time.perf_counter() - began
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    # Checkpoints

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs):
        """As in transformers; `True` resumes from the last checkpoint that was wholly written, if there is one."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_complete_checkpoint(self.args.output_dir)
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        folder = Path(self._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.args.should_save:
            (folder / COMPLETE).touch()

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None):
        """Safetensors and JSON only: what is published holds nothing to unpickle."""
        super()._save(output_dir, state_dict)
        folder = Path(output_dir or self.args.output_dir)
        (folder / "training_args.bin").unlink(missing_ok=True)
        if self.tokenizers is not None and self.args.should_save:
            save_tokenizers(folder, *self.tokenizers)


def inverse_sqrt(warmup: int, initial: float) -> Callable[[int], float]:
    """Factor on the peak learning rate after so many updates."""

    def factor(step: int) -> float:
        if step < warmup:
            return initial + (1 - initial) * step / warmup
        return math.sqrt(max(warmup, 1) / max(step, 1))

    return factor


def _rounded(value):
    return float(f"{value:.5g}") if isinstance(value, float) else value
