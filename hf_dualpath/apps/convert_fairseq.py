"""Turn a fairseq state (Dual-Path, MMA or wait-k) into a checkpoint of ours.

    dualpath convert fairseq WEIGHTS --config CONFIG.json --output DIR

WEIGHTS is a `.safetensors` file, or a `.pt` file that holds nothing but tensors and plain values (it is read with
`weights_only`). CONFIG.json has the fields embed, ffn, enc_layers, dec_layers, heads, vocab, pad and eos, and for MMA
and wait-k also simul_type (infinite_lookback, hard_aligned or waitk) and waitk.
"""

import json
from argparse import Namespace
from pathlib import Path
from pickle import UnpicklingError

import torch

from ..errors import DataError
from ..inference.checkpoints import read_weights
from ..model.configuration_dualpath import DualPathConfig, SiMTConfig
from ..model.modeling_dualpath import DualPathForConditionalGeneration, SiMTForConditionalGeneration


REQUIRED = ("embed", "ffn", "enc_layers", "dec_layers", "heads", "vocab")


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """Parameters by fairseq name."""
    if path.suffix == ".safetensors":
        state = read_weights(path)
    else:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, UnpicklingError) as error:
            reason = str(error).splitlines()[0] if str(error) else "it is empty"
            raise DataError(f"{path} holds other things than tensors and plain values, or is cut: {reason}") from error
        state = state.get("model", state) if isinstance(state, dict) else {}
    if not state or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise DataError(f"{path} is no dictionary of parameters.")
    recorded = {name[2:]: tensor for name, tensor in state.items() if name.startswith("w.")}
    return recorded or state


def direction_config(settings: dict) -> SiMTConfig:
    if not isinstance(settings, dict):
        raise DataError(f"The configuration is a JSON object with {', '.join(REQUIRED)}.")
    missing = [name for name in REQUIRED if name not in settings]
    if missing:
        raise DataError(f"The configuration lacks {', '.join(missing)}.")
    kind = settings.get("simul_type")  # only fairseq's own models name one
    eos = settings.get("eos", 2)
    return SiMTConfig(
        vocab_size=settings["vocab"],
        d_model=settings["embed"],
        encoder_layers=settings["enc_layers"],
        decoder_layers=settings["dec_layers"],
        encoder_ffn_dim=settings["ffn"],
        decoder_ffn_dim=settings["ffn"],
        encoder_attention_heads=settings["heads"],
        decoder_attention_heads=settings["heads"],
        dropout=settings.get("dropout", 0.3),
        noise_std=settings.get("noise_var", 1.5),
        pad_token_id=settings.get("pad", 1),
        eos_token_id=eos,
        decoder_start_token_id=settings.get("bos_of_decoder", eos),
        policy={None: "shared_path", "waitk": "wait_k"}.get(kind, "mma"),
        monotonic_attention="hard_aligned" if kind == "hard_aligned" else "infinite_lookback",
        wait_k=settings.get("waitk") or 3,
        position_embedding="fairseq",
    )


def convert_direction(state: dict[str, torch.Tensor], config: SiMTConfig, prefix: str = "") -> dict[str, torch.Tensor]:
    """Our names for the parameters of one direction; `prefix` is `back_` for the backward one.

    fairseq keeps the selection projections in `q_proj`/`k_proj` of the attention. Where it has no separate soft ones
    (or never uses them: wait-k), the same matrices serve both purposes.
    """
    table = "encoder.embed_tokens.weight"
    table = prefix + table if prefix + table in state else table
    if table not in state:
        raise DataError(f"There is no {table} among the weights: they are of another kind of model.")
    result = {"model.shared.weight": state[table]}
    for side in ("encoder", "decoder"):
        for name, tensor in state.items():
            if not name.startswith(f"{prefix}{side}.layers."):
                continue
            ours = f"model.{name.removeprefix(prefix)}"
            layer, _, rest = ours.partition(".encoder_attn.")
            projection = rest.split(".")[0]
            if projection in ("q_proj_soft", "k_proj_soft"):
                if config.policy_class.decides_in_each_layer:
                    result[ours.replace("_soft", "")] = tensor
            elif projection in ("q_proj", "k_proj"):
                policy = config.policy_class
                if policy.is_learned and (policy.decides_in_each_layer or layer.endswith(".0")):
                    result[f"{layer}.policy.{rest}"] = tensor
                has_soft = name.replace("_proj", "_proj_soft") in state and policy.decides_in_each_layer
                if config.monotonic_attention == "infinite_lookback" and not has_soft:
                    result[ours] = tensor
            elif projection == "energy_bias":
                result[f"{layer}.policy.energy_bias"] = tensor
            else:
                result[ours] = tensor
    return result


def convert(state: dict[str, torch.Tensor], settings: dict):
    """A model of ours, in the precision of `state`."""
    tables = [
        tensor for name, tensor in state.items() if name.endswith(("embed_tokens.weight", "output_projection.weight"))
    ]
    if any(not torch.equal(table, tables[0]) for table in tables[1:]):
        raise DataError(
            "Only models with one embedding table for everything (--share-all-embeddings) can be converted."
        )
    config = direction_config(settings)
    if any(name.startswith("back_encoder.") for name in state):
        model = DualPathForConditionalGeneration(DualPathConfig(forward_config=config))
        directions = {"forward_model.": "", "backward_model.": "back_"}
    else:
        model = SiMTForConditionalGeneration(config)
        directions = {"": ""}
    converted = {}
    for ours, theirs in directions.items():
        weights = convert_direction(state, config, theirs)
        converted |= {ours + name: tensor for name, tensor in weights.items()}
    dtype = next(iter(converted.values())).dtype
    model.to(dtype)
    try:
        missing, unexpected = model.load_state_dict(converted, strict=False)
    except RuntimeError as error:  # torch's word for other shapes
        raise DataError("The weights have other shapes than the configuration says.") from error
    tied = model.all_tied_weights_keys
    missing = [name for name in missing if name not in tied]
    if missing or unexpected:
        raise DataError(f"The weights do not fit the configuration: missing {missing}, unexpected {unexpected}.")
    return model


def run(arguments: Namespace):
    for path in (arguments.weights, arguments.config):
        if not path.is_file():
            raise DataError(f"There is no file {path}.")
    try:
        settings = json.loads(arguments.config.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{arguments.config} cannot be read as JSON: {error}.") from error
    model = convert(read_state(arguments.weights), settings)
    model.save_pretrained(arguments.output)
    print(f"Wrote {arguments.output}: {sum(p.numel() for p in model.parameters()):,} parameters.")
