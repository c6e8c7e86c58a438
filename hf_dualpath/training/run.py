"""From a recipe to a checkpoint: what `dualpath train` and `scripts/train.py` run."""

import sys
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path

from safetensors.torch import load_file
from transformers import set_seed
from transformers.utils import logging

from ..inference.checkpoints import WEIGHTS, average_checkpoints, last_checkpoints
from ..inference.tokenization import has_tokenizers, load_tokenizers
from ..model.configuration_dualpath import DualPathConfig, SiMTConfig
from ..model.modeling_dualpath import DualPathForConditionalGeneration, SiMTForConditionalGeneration
from .arguments import DataArguments, DualPathTrainingArguments, ModelArguments, policy_of
from .card import ModelCard
from .data import load_pairs, make_tokenizers, tokenize_pairs
from .settings import parse_recipe, show_settings
from .trainer import DualPathTrainer, last_complete_checkpoint
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
    """Trains as the recipe says and leaves a complete checkpoint in `output_dir`. A run that was cut short goes on."""
    model_arguments, data_arguments, arguments = parse_recipe(recipe, overrides)
    take_sizes(model_arguments)
    if model_arguments.system != "dual_paths":
        arguments.dual_weight = 0.0
    set_seed(arguments.seed)
    resume = last_complete_checkpoint(arguments.output_dir)
    if resume is not None:
        logger.warning(f"Going on from {resume}; for a new run give another `output_dir`.")
    with arguments.main_process_first(desc="preparing the data"):
        pairs = load_pairs(data_arguments)
        if "train" not in pairs:
            raise ValueError(
                "There is no training data: set `train_source` and `train_target`, `train_file` or `dataset`."
            )
        start = resume or (model_arguments.init_from if data_arguments.tokenizer == "bpe" else None)
        if start is not None and has_tokenizers(start):
            tokenizers = load_tokenizers(start)
        else:
            tokenizers = make_tokenizers(data_arguments, pairs["train"])
        train_dataset = tokenize_pairs(
            pairs["train"],
            *tokenizers,
            min(data_arguments.max_length, model_arguments.max_position_embeddings),
            data_arguments.max_length_ratio,
            data_arguments.preprocessing_workers,
        )
    set_seed(arguments.seed)
    trainer = DualPathTrainer(
        build_model(model_arguments, data_arguments, tokenizers),
        arguments,
        train_dataset=train_dataset,
        eval_dataset=pairs.get("validation"),
        tokenizers=tokenizers,
    )
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model()
    if arguments.average_checkpoints and trainer.is_world_process_zero():
        average_checkpoints(
            last_checkpoints(arguments.output_dir, arguments.average_checkpoints), arguments.output_dir
        )
    trainer.accelerator.wait_for_everyone()
    if arguments.average_checkpoints:
        averaged = load_file(Path(arguments.output_dir) / WEIGHTS)
        trainer.accelerator.unwrap_model(trainer.model).load_state_dict(averaged, strict=False)
    results = {}
    for split in ("validation", "test"):
        if split in pairs:
            found = trainer.evaluate(pairs[split], metric_key_prefix=split)
            results |= {name: value for name, value in found.items() if name.endswith(("_bleu", "_al"))}
    if trainer.is_world_process_zero():
        card = make_card(model_arguments, data_arguments, arguments, results, recipe, overrides)
        Path(arguments.output_dir, "README.md").write_text(card.render(), encoding="utf-8")
    return trainer


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
    trainer.accelerator.end_training()
