"""From a recipe to a checkpoint: what `dualpath train` and `scripts/train.py` run."""

import sys
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path

from datasets import Dataset, DatasetDict
from transformers import TrainerState, set_seed
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import IntervalStrategy
from transformers.utils import logging

from ..inference.checkpoints import (
    WEIGHTS,
    average_checkpoints,
    last_checkpoints,
    last_complete_checkpoint,
    read_weights,
)
from ..inference.tokenization import has_tokenizers, load_tokenizers
from ..model.configuration_dualpath import DualPathConfig, SiMTConfig
from ..model.modeling_dualpath import DualPathForConditionalGeneration, SiMTForConditionalGeneration
from .arguments import DataArguments, DualPathTrainingArguments, ModelArguments, policy_of
from .card import FIGURES, ModelCard, results_of
from .data import load_pairs, make_tokenizers, pair_encoder, tokenize_pairs
from .live_text import like_live_text
from .safety import one_run_in, writing_to
from .settings import parse_recipe, show_settings
from .streaming import TOKENIZER_SAMPLE, MaxTokenStream, as_dataset, load_stream
from .trainer import DualPathTrainer, check_same_sizes, directions_of, stream_of
from .warm_start import forward_of, start_from, starting_config, take_sizes


logger = logging.get_logger(__name__)


def build_model(
    arguments: ModelArguments, data: DataArguments, tokenizers
) -> DualPathForConditionalGeneration | SiMTForConditionalGeneration:
    """A fresh model, started from `init_from` where that is given."""
    source, target = tokenizers
    start = starting_config(arguments.init_from)
    one_table = getattr(forward_of(start), "share_encoder_decoder_embeddings", False) and len(source) == len(target)
    config = SiMTConfig(
        policy=policy_of(arguments.system),
        policy_settings=arguments.policy_settings,
        vocab_size=len(source),
        decoder_vocab_size=len(target),
        share_encoder_decoder_embeddings=source is target or one_table,
        d_model=arguments.d_model,
        encoder_layers=arguments.encoder_layers,
        decoder_layers=arguments.decoder_layers,
        encoder_ffn_dim=arguments.ffn_dim,
        decoder_ffn_dim=arguments.ffn_dim,
        encoder_attention_heads=arguments.attention_heads,
        decoder_attention_heads=arguments.attention_heads,
        dropout=arguments.dropout,
        attention_dropout=arguments.attention_dropout,
        activation_dropout=arguments.activation_dropout,
        activation_function=arguments.activation_function,
        max_position_embeddings=arguments.max_position_embeddings,
        noise_std=arguments.noise_std,
        energy_bias=arguments.energy_bias,
        monotonic_attention=arguments.monotonic_attention,
        wait_k=arguments.wait_k,
        causal_encoder=arguments.causal_encoder,
        final_logits_bias=getattr(forward_of(start), "final_logits_bias", False),
        pad_token_id=source.pad_token_id,
        eos_token_id=source.eos_token_id,
        decoder_start_token_id=source.pad_token_id,
        source_language=data.source_language,
        target_language=data.target_language,
    )
    if arguments.directions == "both":
        model = DualPathForConditionalGeneration(
            DualPathConfig(
                forward_config=config,
                source_language=data.source_language,
                target_language=data.target_language,
                share_embeddings=None if getattr(start, "share_embeddings", True) else False,
            )
        )
    else:
        model = SiMTForConditionalGeneration(config)
    if arguments.init_from is not None:
        start_from(model, arguments.init_from)
    return model


def train(recipe: str | Path | None, overrides: list[str]) -> DualPathTrainer:
    """Trains as the recipe says and leaves a complete checkpoint in `output_dir`.

    A run that was cut short goes on; of one that had finished only what is missing on its card is measured.
    """
    model_arguments, data_arguments, arguments = parse_recipe(recipe, overrides)
    take_sizes(model_arguments)
    if model_arguments.system != "dual_paths":
        arguments.dual_weight = 0.0
    output = Path(arguments.output_dir)
    with one_run_in(output, arguments.process_index == 0):
        resume = last_complete_checkpoint(output)
        finished = has_finished(output, arguments)
        pairs, tokenizers, train_dataset = prepare_data(
            model_arguments, data_arguments, arguments, start=output if finished else resume
        )
        if "validation" not in pairs and arguments.eval_strategy != IntervalStrategy.NO:
            logger.warning("There are no validation pairs, so nothing is evaluated on the way.")
            arguments.eval_strategy = IntervalStrategy.NO
        set_seed(arguments.seed)
        trainer = DualPathTrainer(
            build_model(model_arguments, data_arguments, tokenizers),
            arguments,
            train_dataset=train_dataset,
            eval_dataset=pairs.get("validation"),
            tokenizers=tokenizers,
        )
        if finished:
            trainer.say(f"The run in {output} has finished: its model stays. For a new run give another `output_dir`.")
        else:
            if resume is not None:
                trainer.say(f"Going on from {resume}; for a new run give another `output_dir`.")
            try:
                trainer.train(resume_from_checkpoint=resume)
            except (SystemExit, KeyboardInterrupt):  # told to stop: the process ends here, and must not abort
                trainer.end()
                raise
            save_result(trainer)
        check_same_sizes(trainer.core, output)
        trainer.core.load_state_dict(read_weights(output / WEIGHTS), strict=False)
        results = results_of(output / "README.md") if finished else {}
        missing = [split for split in ("validation", "test") if split in pairs and not measured(split, results)]
        for split in missing:
            found = trainer.evaluate(pairs[split], metric_key_prefix=split)
            results |= {name: value for name, value in found.items() if name.endswith(tuple(f"_{f}" for f in FIGURES))}
        if trainer.is_world_process_zero() and (missing or not (output / "README.md").is_file() or not finished):
            card = make_card(model_arguments, data_arguments, arguments, results, recipe, overrides)
            with writing_to(output):
                (output / "README.md").write_text(card.render(), encoding="utf-8")
    return trainer


def has_finished(output: Path, arguments: DualPathTrainingArguments) -> bool:
    """Whether a run left its final model here, and its plan was at least as long as what is asked for now."""
    if not (output / TRAINER_STATE_NAME).is_file():
        return False
    try:
        state = TrainerState.load_from_json(str(output / TRAINER_STATE_NAME))
    except (ValueError, TypeError):  # killed while it was written
        return False
    if arguments.max_steps > 0:
        return state.max_steps >= arguments.max_steps
    return state.num_train_epochs >= arguments.num_train_epochs


def save_result(trainer: DualPathTrainer):
    """The final model, averaged where that is asked for; then the state, which says that the model is whole."""
    arguments = trainer.args
    output = Path(arguments.output_dir)
    if trainer.is_world_process_zero():
        (output / TRAINER_STATE_NAME).unlink(missing_ok=True)
    trainer.save_model()
    if arguments.average_checkpoints and trainer.is_world_process_zero():
        with writing_to(output):
            average_checkpoints(last_checkpoints(output, arguments.average_checkpoints), output)
    trainer.save_state()
    trainer.accelerator.wait_for_everyone()


def measured(split: str, results: dict[str, float]) -> bool:
    return any(name.startswith(f"{split}_") for name in results)


def prepare_data(
    model: ModelArguments, data: DataArguments, arguments: DualPathTrainingArguments, start: str | Path | None
) -> tuple[DatasetDict, tuple, Dataset | MaxTokenStream]:
    """The pairs of each split, both tokenizers (those of `start` where it has some), and the training tokens."""
    set_seed(arguments.seed)
    with arguments.main_process_first(desc="preparing the data"):
        pairs = load_stream(data) if data.streaming else load_pairs(data)
        if "train" not in pairs:
            raise ValueError(
                "There is no training data: set `train_source` and `train_target`, `train_file` or `dataset`."
            )
        pairs["train"] = like_live_text(
            pairs["train"],
            data.plain_source_share,
            data.joined_share,
            data.long_pair_words,
            model.directions == "both",
            arguments.seed,
        )
        start = start or (model.init_from if data.tokenizer == "bpe" else None)
        if start is not None and has_tokenizers(start):
            tokenizers = load_tokenizers(start)
        else:
            sample = as_dataset(pairs["train"], TOKENIZER_SAMPLE) if data.streaming else pairs["train"]
            tokenizers = make_tokenizers(data, sample)
        limits = min(data.max_length, model.max_position_embeddings), data.max_length_ratio
        if data.streaming:
            tokens = stream_of(pairs["train"], pair_encoder(*tokenizers, *limits), arguments)
        else:
            tokens = tokenize_pairs(pairs["train"], *tokenizers, *limits, data.preprocessing_workers)
    return pairs, tokenizers, tokens


def make_card(
    model: ModelArguments,
    data: DataArguments,
    arguments: DualPathTrainingArguments,
    results: dict[str, float],
    recipe: str | Path | None,
    overrides: list[str],
) -> ModelCard:
    """The card of a run: what was set, and what came out."""
    settings = {}
    for given in (model, data, arguments):
        for item in fields(given):
            value = getattr(given, item.name)
            value = value.value if isinstance(value, Enum) else value
            default = (
                item.default_factory()
                if item.default is MISSING and item.default_factory is not MISSING
                else item.default
            )
            if value != default and isinstance(value, (str, int, float, bool)) and item.name not in MACHINE_SETTINGS:
                settings[item.name] = value
    used = data.dataset or data.train_file or f"{data.train_source} and {data.train_target}"
    return ModelCard(
        path=Path(arguments.output_dir).name,
        system=model.system,
        languages=(data.source_language, data.target_language),
        data=data.data_description or f"`{used}`, {data.source_language}-{data.target_language}.",
        dataset=data.dataset or Path(data.train_file or data.train_source).name,
        license=data.license,
        settings=settings,
        results=results,
        command=" ".join(["dualpath train", Path(recipe).name if recipe else "", *_without_paths(overrides)]),
    )


MACHINE_SETTINGS = (
    "data_dir",
    "output_dir",
    "init_from",
    "disable_tqdm",
    "use_cpu",
    "logging_dir",
    "run_name",
    "tokenizer",
)


def _without_paths(overrides: list[str]) -> list[str]:
    """A card shows folders by their last name: where they lie is nobody's business."""
    return [Path(word).name if "/" in word else word for word in overrides]


def toy_model(folder: str | Path = "runs/toy-quick") -> Path:
    """A model of the toy languages, trained on the spot in a few minutes where the folder does not hold one yet."""
    folder = Path(folder)
    if not (folder / "README.md").is_file():
        print("There is no checkpoint here: training a small one on the toy languages, a few minutes ...", flush=True)
        train("toy", ["--output_dir", str(folder), "--max_steps", "450"])
    return folder


def main(arguments: list[str] | None = None):
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        show_settings()
        return
    recipe = None if arguments[0].startswith("--") else arguments[0]
    trainer = train(recipe, arguments[1:] if recipe else arguments)
    if trainer.is_world_process_zero():
        folder, direction = trainer.args.output_dir, next(iter(directions_of(trainer.core)))
        print(f"The checkpoint is in {folder}, its results are in {folder}/README.md. To use and to publish it:")
        print(f'  dualpath translate --model {folder} --direction {direction} "..."')
        print(f"  dualpath push {folder} your-name/your-model")
    trainer.end()
