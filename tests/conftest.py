"""Shared by all tests: no network, one thread for each process, the recorded numbers of the authors' code."""

import json
import os
import sys
from pathlib import Path


os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import pytest  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from hf_dualpath import (  # noqa: E402
    DualPathConfig,
    DualPathForConditionalGeneration,
    SinglePathConfig,
    SinglePathForConditionalGeneration,
)


FIXTURES = Path(__file__).parent / "fixtures"
TINY = {
    "vocab_size": 40,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "dropout": 0.0,
    "max_position_embeddings": 64,
}
POLICIES = ("offline", "wait_k", "mma", "single_path")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def golden(name: str) -> tuple[dict[str, torch.Tensor], dict]:
    """Recorded tensors and settings; the exact_* files share one set of weights."""
    tensors = load_file(FIXTURES / f"{name}.safetensors")
    if name.startswith("exact"):
        tensors |= load_file(FIXTURES / "exact_weights.safetensors")
    return tensors, json.loads((FIXTURES / f"{name}.json").read_text())


def cases(name: str) -> list[dict]:
    return json.loads((FIXTURES / f"{name}.json").read_text())["cases"]


def single_model(**overrides) -> SinglePathForConditionalGeneration:
    return SinglePathForConditionalGeneration(SinglePathConfig(**(TINY | overrides)))


def dual_model(**overrides) -> DualPathForConditionalGeneration:
    config = DualPathConfig(forward_config=TINY | overrides, source_language="de", target_language="en")
    return DualPathForConditionalGeneration(config)


def random_batch(
    lengths: list[int], vocabulary: int = 40, pad: int = 0, eos: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded random token ids that end in `eos`, and their mask."""
    ids = torch.full((len(lengths), max(lengths)), pad)
    for row, length in enumerate(lengths):
        ids[row, : length - 1] = torch.randint(3, vocabulary, (length - 1,))
        ids[row, length - 1] = eos
    return ids, ids != pad
