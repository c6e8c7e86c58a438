"""`dualpath export`: a checkpoint as ONNX graphs, which run without torch."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx

from ..model.dials_dualpath import Dials
from ..model.torch_backend_dualpath import TorchBackend
from .checkpoints import load_directions
from .onnx_backend import EXPORT, ExportedConfig, OnnxBackend, load_exported
from .onnx_graph import ACTIVATIONS, Steps
from .text import as_file_name
from .tokenization import save_tokenizers


def export_checkpoint(
    path: str | Path, output: str | Path, int8: bool = False, trust_remote_code: bool = False
) -> dict[str, float]:
    r"""
    Writes a checkpoint's directions as ONNX graphs, with what the runtime needs beside them.

    Args:
        path (`str`): Folder or Hub id of a wait_k or shared_path checkpoint.
        output (`str`): The folder to write.
        int8 (`bool`, *optional*, defaults to `False`): Quantise the matrices.

    Returns:
        `dict[str, float]`: For each direction how far its graphs are from the model, see [`largest_difference`].
    """
    directions = load_directions(path, device="cpu", dtype="float32", trust_remote_code=trust_remote_code)
    output = Path(output)
    configs = [exported_config(model) for model, _, _ in directions.values()]
    folders = {name: output / as_file_name(name) for name in directions}
    for name, (model, _, _) in directions.items():
        write_graphs(model, folders[name], int8)
    (output / EXPORT).write_text(json.dumps([asdict(config) for config in configs], indent=1) + "\n")
    _, source, target = next(iter(directions.values()))
    save_tokenizers(output, source, target)
    return {
        name: largest_difference(model, load_exported(output, name)[0].open_engine().backend)
        for name, (model, _, _) in directions.items()
    }


def write_graphs(model, folder: Path, int8: bool = False):
    """The graphs of one direction, a file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for step, graph in Steps(model, int8).graphs().items():
        onnx.save(graph, str(folder / f"{step}.onnx"))


def exported_config(model) -> ExportedConfig:
    config = model.config
    if config.policy not in ("wait_k", "shared_path") or config.monotonic_attention != "infinite_lookback":
        raise ValueError(
            f"The {config.policy} policy ({config.monotonic_attention}) cannot be exported: wait_k and shared_path "
            "with infinite lookback can. Use the torch backend for it."
        )
    if config.activation_function not in ACTIVATIONS:
        raise ValueError(
            f"The activation {config.activation_function} cannot be exported: {', '.join(ACTIVATIONS)} can."
        )
    generation = model.generation_config
    taken = ("direction", "end_tokens", "dials", "max_length")
    fields = {name: getattr(config, name) for name in ExportedConfig.__annotations__ if name not in taken}
    return ExportedConfig(
        direction=config.direction,
        end_tokens=[int(token) for token in config.end_tokens],
        dials=Dials.given_in(generation.to_dict()),
        max_length=generation.max_length or config.max_position_embeddings,
        **fields,
    )


def largest_difference(model, exported: OnnxBackend) -> float:
    """The largest difference of what the graphs compute on random tokens: what is kept of source and target tokens,
    and the state in which the first decision is made. What follows a token that is chosen is left out: int8 may
    choose another."""
    generator = np.random.default_rng(0)
    rows, tokens = np.arange(3), generator.integers(3, model.config.vocab_size, (3, 7))
    seen = []
    for backend in (TorchBackend(model), exported):
        backend.reserve(3, 8, 8)
        backend.start(rows, np.full(3, model.config.decoder_start_token_id))
        backend.encode(rows, np.zeros(3, int), np.full(3, 4), tokens[:, :4])
        backend.encode(rows, np.full(3, 4), np.full(3, 3), tokens[:, 4:])
        states = [np.asarray(backend.hidden_states).flatten(), np.asarray(backend.query).flatten()]
        stops = np.tile(np.array([[2], [4], [6]]), (1, backend.heads))
        backend.write(rows, 0, stops, np.zeros(3, int), [model.open_stream()] * 3)
        kept = [np.asarray(backend.__dict__[name]) for name in ("target_memory", "source_memory", "policy_memory")]
        states += [kept[0][:, :, :, 0].ravel(), *(memory.ravel() for memory in kept[1:])]
        seen.append(np.concatenate(states))
    return float(np.abs(seen[0] - seen[1]).max())
