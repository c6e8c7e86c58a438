"""Whole checkpoints: finding one, averaging the last ones of a run, and publishing one on the Hub."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from huggingface_hub import HfApi, get_token
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, PreTrainedConfig


WEIGHTS = "model.safetensors"
# What a published folder holds; optimizer states and other checkpoints of a run stay at home.
PUBLISHED = (
    "*.safetensors",
    "*.json",
    "*.py",
    "*.md",
    "*.png",
    "*.svg",
    "*.gif",
    "*.csv",
    "*/tokenizer*.json",
    "*/special_*.json",
)


def load_config(path: str | Path) -> PreTrainedConfig:
    """The configuration of a checkpoint: a folder, or an id of the Hub."""
    if Path(path).is_dir():
        if not (Path(path) / "config.json").is_file():
            raise FileNotFoundError(f"There is no config.json in {path}: it is not a checkpoint.")
        return AutoConfig.from_pretrained(path)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", str(path)):
        raise FileNotFoundError(f"There is no checkpoint in {path}: give its folder, or a Hub id such as owner/name.")
    try:
        return AutoConfig.from_pretrained(path)
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise FileNotFoundError(f"There is no folder {path}, and the Hub gave no such checkpoint: {reason}") from error


def last_checkpoints(run: str | Path, count: int) -> list[Path]:
    """The last `count` checkpoints of a training run, oldest first."""
    folders = [path for path in Path(run).glob("checkpoint-*") if (path / WEIGHTS).is_file()]
    folders.sort(key=lambda path: int(path.name.split("-")[-1]))
    if len(folders) < count:
        raise ValueError(
            f"{run} holds fewer than {count} checkpoints: {len(folders)}. Save more often (`save_steps`) or keep more "
            "(`save_total_limit`)."
        )
    return folders[-count:]


def average_checkpoints(folders: Sequence[str | Path], output: str | Path, half: bool = False) -> Path:
    """Writes a checkpoint whose weights are the mean of others'; everything else is taken from the last of them.

    With `half` the file stores float16. Its config still says float32, so that the weights are widened on loading.
    """
    folders, output = [Path(folder) for folder in folders], Path(output)
    if not folders:
        raise ValueError("There is nothing to average: name checkpoints, or a run with --last.")
    for folder in folders:
        if not (folder / WEIGHTS).is_file():
            raise ValueError(f"There is no {WEIGHTS} in {folder}.")
    total: dict[str, torch.Tensor] = {}
    last: dict[str, torch.Tensor] = {}
    for folder in folders:
        last = load_file(folder / WEIGHTS)
        if total and last.keys() != total.keys():
            raise ValueError(
                f"{folder} has other weights than {folders[0]}: only checkpoints of one model can be averaged."
            )
        for name, tensor in last.items():
            total[name] = total.get(name, 0) + tensor.double()
    mean = {
        name: (tensor / len(folders)).to(
            torch.float16 if half and last[name].is_floating_point() else last[name].dtype
        )
        for name, tensor in total.items()
    }
    output.mkdir(parents=True, exist_ok=True)
    for path in published_files(folders[-1]):
        if path.suffix != ".safetensors":
            copy = output / path.relative_to(folders[-1])
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)
    save_file(mean, output / WEIGHTS, metadata={"format": "pt"})
    return output


def published_files(folder: str | Path) -> list[Path]:
    """The files of a checkpoint that belong on the Hub."""
    folder = Path(folder)
    found = {path for pattern in PUBLISHED for path in folder.glob(pattern)}
    inside_run = [path for path in found if path.relative_to(folder).parts[0].startswith("checkpoint-")]
    return sorted(path for path in found.difference(inside_run) if path.name != "trainer_state.json")


def push(folder: str | Path, repo_id: str, private: bool = False, dry_run: bool = False) -> list[Path]:
    """Uploads a checkpoint to the Hub; with `dry_run` only says what would go."""
    folder = Path(folder)
    for name in ("config.json", "README.md"):
        if not (folder / name).is_file():
            raise ValueError(f"There is no {name} in {folder}: it is not a complete checkpoint.")
    files = published_files(folder)
    if not any(path.suffix == ".safetensors" for path in files):
        raise ValueError(f"There are no weights in {folder}.")
    if dry_run:
        return files
    if get_token() is None:
        raise ValueError("There is no Hub token: run `hf auth login`, or set HF_TOKEN.")
    api = HfApi()
    api.create_repo(repo_id, private=private, exist_ok=True)
    api.upload_folder(
        repo_id=repo_id,
        folder_path=folder,
        allow_patterns=[str(path.relative_to(folder)) for path in files],
        commit_message="Upload with hf_dualpath",
    )
    return files
