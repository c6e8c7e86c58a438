"""Whole checkpoints: loading one direction, averaging the last ones of a run, and publishing one on the Hub."""

import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
import yaml
from huggingface_hub import HfApi, ModelCard, ModelCardData, get_token, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.utils import GENERATION_CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, logging

from ..model.configuration_dualpath import DualPathConfig, SiMTConfig
from ..model.modeling_dualpath import DualPathForConditionalGeneration, SiMTForConditionalGeneration
from .hub_translators import HubTranslator, load_translator, whole_sentence_model
from .tokenization import load_tokenizers


logger = logging.get_logger(__name__)
WEIGHTS = "model.safetensors"
COMPLETE = "complete"  # the mark of a checkpoint that was wholly written: size and sha256 of each of its files
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
    "*.spm",
    "*.model",
    "*/tokenizer*.json",
    "*/special_*.json",
)


def checkpoint_folder(path: str | Path) -> Path:
    """The folder of a checkpoint: itself, or the local copy of an id of the Hub (downloaded if it is not there)."""
    if Path(path).is_dir():
        return Path(path)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", str(path)):
        raise FileNotFoundError(f"There is no checkpoint in {path}: give its folder, or a Hub id such as owner/name.")
    try:
        return Path(snapshot_download(str(path), allow_patterns=list(PUBLISHED)))
    except (OSError, HfHubHTTPError) as error:
        reason = str(error).splitlines()[0]
        raise FileNotFoundError(f"There is no folder {path}, and the Hub gave no such checkpoint: {reason}") from error


def load_config(path: str | Path, trust_remote_code: bool = False) -> PreTrainedConfig:
    """The configuration of a checkpoint: a folder, or an id of the Hub."""
    folder = checkpoint_folder(path)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"There is no config.json in {path}: it is not a checkpoint. (For what `dualpath export` wrote take "
            "the backend onnx.)"
        )
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (StrictDataclassError, AttributeError, IndexError, TypeError, RecursionError) as error:
        # what the library makes of wrong values
        reason = " ".join(str(error).split("\n")[-1].split())
        raise ValueError(f"The config.json in {path} makes no model: {reason}") from error
    parts = [config, *(getattr(config, name) for name in config.sub_configs)]
    if any("/" in str(part._attn_implementation) for part in parts) and not trust_remote_code:
        raise ValueError(f"The config.json in {path} asks for code of the Hub (`attn_implementation`): it is not run.")
    return config


def read_weights(file: str | Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, or one sentence."""
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged or cut short ({error}): download or save it again.") from error


def default_device() -> torch.device:
    """The accelerator that is there, else the processor."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def usable_device(device: str | torch.device) -> torch.device:
    try:
        torch.zeros(1, device=device).item()
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # a name that torch does not know, or a device that is not there
        raise ValueError(f"There is no device {str(device)!r} here; cpu is always there.") from error


Direction = tuple[SiMTForConditionalGeneration | HubTranslator, PreTrainedTokenizerFast, PreTrainedTokenizerFast]


def load_directions(
    path: str | Path,
    direction: str | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    trust_remote_code: bool = False,
    policy: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    backend: str = "torch",
) -> dict[str, Direction]:
    r"""
    The model of each direction of a checkpoint with its source and target tokenizer, the forward direction first.

    Args:
        path (`str`): Folder or Hub id.
        direction (`str`, *optional*): Only this one, such as `"de-en"`.
        device (`str`, *optional*): Such as `"cuda"`; by default the accelerator that is there.
        dtype (`str`, *optional*): Such as `"bfloat16"`; by default what the checkpoint says.
        trust_remote_code (`bool`, *optional*, defaults to `False`): Whether Python files of the checkpoint may run.
        policy (`str`, *optional*):
            How a model that reads whole sentences is streamed, one of the Hub's or an offline one of ours: `wait_k`,
            `local_agreement` (the default for the Hub's), `align_att`, or another that was registered.
        source_language, target_language (`str`, *optional*): For translators of the Hub, in their own codes.
        backend (`str`, *optional*, defaults to `"torch"`): `"onnx"` for a folder that `dualpath export` wrote.
    """
    if backend == "onnx":
        from .onnx_backend import check_loading, exported_directions, load_exported

        languages = {"source_language": source_language, "target_language": target_language}
        check_loading(device=device, dtype=dtype, policy=policy, **languages)
        names = exported_directions(path) if direction is None else [direction]
        loaded = [load_exported(path, name) for name in names]
        return {exported[0].config.direction: exported for exported in loaded}
    if backend != "torch":
        raise ValueError(f"`backend` is torch or onnx, not {backend!r}.")
    folder = checkpoint_folder(path)
    config = load_config(folder, trust_remote_code)
    options = {} if dtype is None else {"dtype": dtype}
    device = usable_device(device or default_device())
    check_generation_config(folder)
    check_shards(folder)
    if not isinstance(config, (DualPathConfig, SiMTConfig)):
        if direction not in (None, "forward") and source_language is target_language is None:
            source_language, _, target_language = direction.partition("-")
        languages = source_language, target_language
        model, *tokenizers = load_translator(path, folder, config, policy, *languages, trust_remote_code, **options)
        model.model.to(device)
        return {model.config.direction: (model, *tokenizers)}
    if source_language or target_language:
        raise ValueError(f"{path} knows its languages: choose one of its directions with `direction` instead.")
    if policy is not None:
        directions = load_directions(path, direction, device, dtype, trust_remote_code)
        return {name: whole_sentence_model(*loaded, policy) for name, loaded in directions.items()}
    source, target = load_tokenizers(folder, trust_remote_code=trust_remote_code)
    check_vocabularies(config, source, target)
    if isinstance(config, SiMTConfig):
        if direction not in (None, "forward", config.direction):
            raise ValueError(f"{path} translates {config.direction} only, not {direction}.")
        model = SiMTForConditionalGeneration.from_pretrained(folder, **options).to(device)
        return {config.direction: (model, source, target)}
    forward, backward = config.directions
    if direction is None:
        model = DualPathForConditionalGeneration.from_pretrained(folder, **options).to(device)
        return {forward: (model.forward_model, source, target), backward: (model.backward_model, target, source)}
    model = SiMTForConditionalGeneration.from_pretrained(folder, direction=direction, **options).to(device)
    if config.is_forward(direction):
        return {forward: (model, source, target)}
    return {backward: (model, target, source)}


def check_vocabularies(
    config: DualPathConfig | SiMTConfig, source: PreTrainedTokenizerFast, target: PreTrainedTokenizerFast
):
    """Refuses tokenizers that could not end a sentence, or that know tokens which the model does not."""
    config = config.forward_config if isinstance(config, DualPathConfig) else config
    for side, tokenizer, size in (
        ("source", source, config.vocab_size),
        ("target", target, config.decoder_vocab_size),
    ):
        if tokenizer.eos_token_id is None:
            raise ValueError(f"The {side} tokenizer has no `eos_token`: a sentence would never end.")
        largest = max(tokenizer.get_vocab().values())
        if largest >= size:
            raise ValueError(f"The {side} tokenizer has a token {largest}, and the model only {size} tokens.")


def check_shards(folder: Path):
    """Refuses an index that names other files than safetensors beside it: the library would unpickle them."""
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    if (folder / WEIGHTS).is_file() or not index.is_file():
        return
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        strange = [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{index} is no index of weights.") from error
    if strange:
        raise ValueError(f"{index} names {strange[0]!r}: weights are .safetensors files in the same folder.")


def check_generation_config(folder: Path):
    """Refuses a generation_config.json with other things where numbers should be."""
    if not (folder / GENERATION_CONFIG_NAME).is_file():
        return
    try:
        config = GenerationConfig.from_pretrained(folder)
    except (TypeError, AttributeError, RecursionError) as error:  # what the library makes of wrong values
        raise ValueError(f"The {GENERATION_CONFIG_NAME} in {folder} cannot be used: {error}") from error
    for name in ("max_length", "max_new_tokens", "min_length", "min_new_tokens", "no_repeat_ngram_size"):
        if type(getattr(config, name)) not in (int, type(None)):
            raise ValueError(f"`{name}` in {folder / GENERATION_CONFIG_NAME} is no number of tokens.")


def load_direction(path: str | Path, direction: str | None = None, **options) -> Direction:
    """One direction, by default the forward one, see [`load_directions`]."""
    return next(iter(load_directions(path, direction or "forward", **options).values()))


def mark_complete(folder: str | Path):
    """Marks a checkpoint of a run as wholly written, after all its files have reached the disk."""
    folder = Path(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != COMPLETE)
    marks = {str(path.relative_to(folder)): [path.stat().st_size, digest(path, sync=True)] for path in files}
    draft = folder / f".{COMPLETE}"
    draft.unlink(missing_ok=True)  # it might be a link
    with draft.open("w", encoding="utf-8") as file:
        json.dump(marks, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / COMPLETE)


def digest(path: Path, sync: bool = False) -> str:
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        while block := file.read(2**20):
            sha256.update(block)
    return sha256.hexdigest()


def damaged_file(folder: str | Path) -> str | None:
    """The first file of a marked checkpoint that is not as its mark says; the mark itself where it says nothing."""
    try:
        marks = json.loads((Path(folder) / COMPLETE).read_text(encoding="utf-8"))
        marks = [(str(name), int(size), str(sha256)) for name, (size, sha256) in marks.items()]
    except (ValueError, TypeError, AttributeError):
        return COMPLETE
    if not marks:
        return COMPLETE
    for name, size, sha256 in marks:
        path = Path(folder) / name
        if not path.is_file() or path.stat().st_size != size or digest(path) != sha256:
            return name
    return None


def complete_checkpoints(run: str | Path, count: int) -> list[Path]:
    """The last `count` checkpoints of a run that were wholly written and still are whole, newest first."""
    updates = {
        path.parent: int(number[1])
        for path in Path(run).glob(f"checkpoint-*/{COMPLETE}")
        if (number := re.fullmatch(r"checkpoint-(\d+)", path.parent.name))  # and not somebody's copy of one
    }
    found = []
    for folder in sorted(updates, key=updates.get, reverse=True):
        damaged = damaged_file(folder)
        if damaged is None:
            found.append(folder)
        else:
            logger.warning(f"{folder} is left out: its {damaged} is cut short, changed or missing.")
        if len(found) == count:
            break
    return found


def last_complete_checkpoint(run: str | Path) -> str | None:
    """The newest checkpoint that is whole; a run may have been killed while it saved."""
    return next(map(str, complete_checkpoints(run, 1)), None)


def last_checkpoints(run: str | Path, count: int) -> list[Path]:
    """The last `count` complete checkpoints of a training run, oldest first."""
    if count < 1:
        raise ValueError(f"The last {count} checkpoints are none: give a number of at least 1.")
    folders = complete_checkpoints(run, count)
    if len(folders) < count:
        raise ValueError(
            f"{run} holds fewer than {count} complete checkpoints: {len(folders)}. Save more often (`save_steps`) or "
            "keep more (`save_total_limit`)."
        )
    return folders[::-1]


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
        last = read_weights(folder / WEIGHTS)
        if total and {name: w.shape for name, w in last.items()} != {name: w.shape for name, w in total.items()}:
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
    if output.resolve() != folders[-1].parent.resolve() and not (output / "README.md").is_file():
        card_of_the_mean(folders).save(output / "README.md")
    return output


def card_of_the_mean(folders: Sequence[Path]) -> ModelCard:
    """The card of the run that the checkpoints are from, without its claim to results: these are other weights."""
    card = folders[-1].parent / "README.md"
    is_of_a_run = re.fullmatch(r"checkpoint-\d+", folders[-1].name)
    loaded = None
    if is_of_a_run and card in published_files(folders[-1].parent):
        with contextlib.suppress(yaml.YAMLError, ValueError):  # a header that nobody can read
            loaded = ModelCard.load(card)
    if loaded is not None:
        card = loaded
        card.data.eval_results = card.data.model_name = None
    else:
        tags = ["simultaneous-translation", "hf_dualpath"]
        data = ModelCardData(library_name="transformers", pipeline_tag="translation", tags=tags)
        card = ModelCard(f"---\n{data}\n---\n\n# Simultaneous translation\n")
    card.text += (
        f"\n## Averaged weights\n\nThese weights are the mean of {', '.join(folder.name for folder in folders)}. "
        "Results above, if any, are of the training's own final weights.\n"
    )
    return card


def published_files(folder: str | Path) -> list[Path]:
    """The files of a checkpoint that belong on the Hub: nothing hidden, nothing that a link brings from outside."""
    folder = Path(folder)
    home = folder.resolve()
    homes = [home]
    if home.parent.name == "snapshots":  # of a Hub cache, where files are links into the same repository's blobs
        homes.append(home.parents[1] / "blobs")

    def belongs(path: Path) -> bool:
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") for part in parts)
        of_the_run = parts[0].startswith("checkpoint-") or path.name == "trainer_state.json"
        at_home = any(path.resolve().is_relative_to(home) for home in homes)
        return path.is_file() and at_home and not hidden and not of_the_run

    return sorted({path for pattern in PUBLISHED for path in folder.glob(pattern) if belongs(path)})


def push(folder: str | Path, repo_id: str, private: bool = False, dry_run: bool = False) -> list[Path]:
    """Uploads a checkpoint to the Hub; with `dry_run` only says what would go."""
    folder = Path(folder)
    files = published_files(folder)
    for name in ("config.json", "README.md"):
        if folder / name not in files:
            raise ValueError(f"There is no {name} in {folder}: it is not a complete checkpoint.")
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
        allow_patterns=[glob.escape(str(path.relative_to(folder))) for path in files],
        commit_message="Upload with hf_dualpath",
    )
    return files
