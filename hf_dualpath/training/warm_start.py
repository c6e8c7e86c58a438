"""Starting a model from a checkpoint of any policy: its sizes, and its weights where names and shapes fit."""

from pathlib import Path

from transformers.utils import logging

from ..inference.checkpoints import checkpoint_folder, load_config, read_weights
from ..model.configuration_dualpath import DualPathConfig, SiMTConfig
from ..model.modeling_dualpath import SiMTForConditionalGeneration
from .arguments import ModelArguments


logger = logging.get_logger(__name__)


def starting_config(init_from: str | None) -> DualPathConfig | SiMTConfig | None:
    return None if init_from is None else load_config(init_from)


def forward_of(config: DualPathConfig | SiMTConfig | None) -> SiMTConfig | None:
    return getattr(config, "forward_config", config)


def take_sizes(arguments: ModelArguments):
    """A model that starts from a checkpoint has its sizes, whatever the recipe says. A Hub id becomes its folder."""
    if arguments.init_from is None:
        return
    arguments.init_from = str(checkpoint_folder(arguments.init_from))
    config = forward_of(starting_config(arguments.init_from))
    if not isinstance(config, SiMTConfig):
        raise ValueError(f"`init_from`: {arguments.init_from} is a {config.model_type!r} model and no start for ours.")
    for name in ("d_model", "encoder_layers", "decoder_layers", "activation_function", "max_position_embeddings"):
        setattr(arguments, name, getattr(config, name))
    arguments.ffn_dim, arguments.attention_heads = config.encoder_ffn_dim, config.encoder_attention_heads
    if arguments.energy_bias is None:  # else the checkpoint's learned bias would find no place
        arguments.energy_bias = config.energy_bias


def start_from(model, checkpoint: str | Path) -> tuple[int, int]:
    """Copies weights of a checkpoint of any policy where names and shapes fit; returns how many of how many did."""
    files = sorted(checkpoint_folder(checkpoint).glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"`init_from`: there are no .safetensors weights in {checkpoint}.")
    weights = {}
    for file in files:
        weights |= read_weights(file)
    names = model.state_dict()
    if isinstance(model, SiMTForConditionalGeneration):
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
