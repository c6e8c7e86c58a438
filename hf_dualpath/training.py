"""From a recipe to a checkpoint: what `dualpath train` and `scripts/train.py` run."""

import difflib
import sys
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from pathlib import Path

import yaml
from safetensors.torch import load_file
from transformers import AutoConfig, HfArgumentParser, set_seed
from transformers.utils import logging

from .checkpoints import average_checkpoints, last_checkpoints
from .configuration_dualpath import DualPathConfig, SinglePathConfig
from .data import DataArguments, load_pairs, make_tokenizers, tokenize_pairs
from .model_card import ModelCard
from .modeling_dualpath import DualPathForConditionalGeneration, SinglePathForConditionalGeneration
from .tokenization import has_tokenizers, load_tokenizers
from .trainer import DualPathTrainer, last_complete_checkpoint
from .training_args import DualPathTrainingArguments


logger = logging.get_logger(__name__)

SYSTEMS = {
    "offline": {"policy": "offline"},
    "wait_k": {"policy": "wait_k"},
    "mma": {"policy": "mma"},
    "single_path": {"policy": "single_path"},
    "dual_paths": {"policy": "single_path"},
}


@dataclass
class ModelArguments:
    """Which system, and how large."""

    system: str = field(default="dual_paths", metadata={"help": f"One of {', '.join(SYSTEMS)}."})
    directions: str | None = field(
        default=None,
        metadata={"help": "`both` in one run, or `forward`. Default: both for dual_paths, else forward."},
    )
    init_from: str | None = field(
        default=None,
        metadata={"help": "Checkpoint to start from: its sizes, tokenizer and, where names and shapes fit, weights."},
    )
    d_model: int = field(default=512, metadata={"help": "Width."})
    encoder_layers: int = field(default=6, metadata={"help": "Encoder layers."})
    decoder_layers: int = field(default=6, metadata={"help": "Decoder layers."})
    ffn_dim: int = field(default=1024, metadata={"help": "Width of the feed-forward maps."})
    attention_heads: int = field(default=8, metadata={"help": "Attention heads."})
    dropout: float = field(default=0.3, metadata={"help": "Dropout."})
    attention_dropout: float = field(default=0.0, metadata={"help": "Dropout of attention weights."})
    activation_dropout: float = field(default=0.0, metadata={"help": "Dropout inside the feed-forward maps."})
    activation_function: str = field(default="relu", metadata={"help": "Activation of the feed-forward maps."})
    max_position_embeddings: int = field(default=1024, metadata={"help": "Longest sentence in tokens."})
    noise_std: float = field(default=1.5, metadata={"help": "Noise on the selection energies in training."})
    energy_bias: float | None = field(
        default=None,
        metadata={"help": "Initial value of a learned bias on the energies; with -3 a path begins by reading."},
    )
    monotonic_attention: str = field(
        default="infinite_lookback", metadata={"help": "How a head attends: infinite_lookback or hard_aligned."}
    )
    wait_k: int = field(default=3, metadata={"help": "k of the wait-k policy."})
    causal_encoder: bool | None = field(
        default=None, metadata={"help": "For offline: a causal encoder as the others."}
    )

    def __post_init__(self):
        if self.system not in SYSTEMS:
            raise ValueError(f"`system` is one of {', '.join(SYSTEMS)}, not {self.system!r}.")
        if self.directions is None:
            self.directions = "both" if self.system == "dual_paths" else "forward"
        if self.directions not in ("both", "forward"):
            raise ValueError(f"`directions` is both or forward, not {self.directions!r}.")
        if self.system == "dual_paths" and self.directions != "both":
            raise ValueError("Dual paths are two directions trained together: leave `directions` at both.")


ARGUMENTS = (ModelArguments, DataArguments, DualPathTrainingArguments)
OWN_DATA = ("--train_source", "--train_file", "--dataset")


def parse_recipe(
    recipe: str | Path | None, overrides: list[str]
) -> tuple[ModelArguments, DataArguments, DualPathTrainingArguments]:
    """Arguments from a YAML recipe, with `--key value` overrides."""
    parser = HfArgumentParser(ARGUMENTS)
    if recipe is not None:
        settings = read_recipe(recipe)
        if any(word.split("=")[0] in OWN_DATA for word in overrides):  # what the recipe says of its data is not true
            settings = {name: value for name, value in settings.items() if name not in ("license", "data_description")}
        parser.set_defaults(**settings)
        for action in parser._actions:
            if action.dest in settings:
                action.required = False
    return parser.parse_args_into_dataclasses(overrides, look_for_args_file=False)


def read_recipe(recipe: str | Path) -> dict:
    """The settings of a recipe: a YAML file, or the name of one that ships."""
    path = find_recipe(recipe)
    settings = yaml.safe_load(path.read_text()) or {}
    known = {item.name: item for cls in ARGUMENTS for item in fields(cls)}
    for name, value in settings.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            raise ValueError(
                f"{path} sets `{name}`, which does not exist{f'; did you mean `{close[0]}`?' if close else '.'}"
            )
        if isinstance(value, str) and "float" in str(known[name].type):
            settings[name] = float(value)  # YAML reads 1e-3 as a string
    return settings


def find_recipe(recipe: str | Path) -> Path:
    shipped = Path(__file__).parent.parent / "scripts" / "recipes"
    for path in (Path(recipe), shipped / f"{recipe}.yaml"):
        if path.is_file():
            return path
    raise FileNotFoundError(f"There is no recipe {recipe}: give a YAML file, or the name of one in scripts/recipes.")


def build_model(
    arguments: ModelArguments, data: DataArguments, tokenizers
) -> DualPathForConditionalGeneration | SinglePathForConditionalGeneration:
    """A fresh model, started from `init_from` where that is given."""
    source, target = tokenizers
    start = starting_config(arguments.init_from)
    one_table = getattr(forward_of(start), "share_encoder_decoder_embeddings", False) and len(source) == len(target)
    config = SinglePathConfig(
        **SYSTEMS[arguments.system],
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
        model = SinglePathForConditionalGeneration(config)
    if arguments.init_from is not None:
        start_from(model, arguments.init_from)
    return model


def starting_config(init_from: str | None) -> DualPathConfig | SinglePathConfig | None:
    if init_from is None or not (Path(init_from) / "config.json").is_file():
        return None
    return AutoConfig.from_pretrained(init_from)


def forward_of(config: DualPathConfig | SinglePathConfig | None) -> SinglePathConfig | None:
    return getattr(config, "forward_config", config)


def take_sizes(arguments: ModelArguments):
    """A model that starts from a checkpoint has its sizes, whatever the recipe says."""
    config = forward_of(starting_config(arguments.init_from))
    if config is None:
        return
    for name in ("d_model", "encoder_layers", "decoder_layers", "activation_function", "max_position_embeddings"):
        setattr(arguments, name, getattr(config, name))
    arguments.ffn_dim, arguments.attention_heads = config.encoder_ffn_dim, config.encoder_attention_heads
    if arguments.energy_bias is None:  # else the checkpoint's learned bias would find no place
        arguments.energy_bias = config.energy_bias


def start_from(model, checkpoint: str | Path) -> tuple[int, int]:
    """Copies weights of a checkpoint of any policy where names and shapes fit; returns how many of how many did."""
    files = sorted(Path(checkpoint).glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"`init_from`: there are no .safetensors weights in {checkpoint}.")
    weights = {}
    for file in files:
        weights |= load_file(file)
    names = model.state_dict()
    if isinstance(model, SinglePathForConditionalGeneration):
        weights = {name.removeprefix("forward_model."): tensor for name, tensor in weights.items()} | weights
    elif not any(name.startswith("forward_model.") for name in weights):
        weights = {f"forward_model.{name}": tensor for name, tensor in weights.items()}
    # A policy that the checkpoint lacks starts as the soft attention beside it, which knows what it is waiting for.
    weights = {name.replace(".encoder_attn.", ".policy."): tensor for name, tensor in weights.items()} | weights
    fitting = {name: tensor for name, tensor in weights.items() if name in names and tensor.shape == names[name].shape}
    if not fitting:
        raise ValueError(
            f"`init_from`: no weight of {checkpoint} fits this model; are its sizes and vocabulary the same?"
        )
    model.load_state_dict(fitting, strict=False)
    model.tie_weights()
    expected = [name for name, _ in model.named_parameters()]
    fresh = [name for name in expected if name not in fitting]
    logger.warning(
        f"Started {len(expected) - len(fresh)} of {len(expected)} weights from {checkpoint}; fresh: {fresh or 'none'}"
    )
    return len(expected) - len(fresh), len(expected)


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
        start_from(trainer.accelerator.unwrap_model(trainer.model), arguments.output_dir)
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
        HfArgumentParser(ARGUMENTS, prog="dualpath train RECIPE").parse_args(["--help"])
    recipe = None if arguments[0].startswith("--") else arguments[0]
    trainer = train(recipe, arguments[1:] if recipe else arguments)
    trainer.accelerator.end_training()
