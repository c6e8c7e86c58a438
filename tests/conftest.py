"""Shared by all tests: no network, one thread for each process, the recorded numbers of the authors' code."""

import json
import os
import subprocess
import sys
from pathlib import Path


os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
ISA = "ONEDNN_MAX_CPU_ISA"
if ISA not in os.environ:  # some virtual machines name AMX among their instructions and die at the first of them
    probe = "import torch; a = torch.ones(64, 128, dtype=torch.bfloat16); a @ a.T"
    works = subprocess.run([sys.executable, "-c", probe], stderr=subprocess.DEVNULL).returncode == 0
    os.environ[ISA] = "DEFAULT" if works else "AVX512_CORE_FP16"
ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "scripts")]

import pytest  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from hf_dualpath import (  # noqa: E402
    DualPathConfig,
    DualPathForConditionalGeneration,
    SiMTConfig,
    SiMTForConditionalGeneration,
)
from hf_dualpath.apps.cli import main  # noqa: E402
from hf_dualpath.inference.tokenization import save_tokenizers, train_bpe_tokenizer  # noqa: E402


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
POLICIES = ("offline", "wait_k", "static_rw", "mma", "shared_path")


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


def single_model(**overrides) -> SiMTForConditionalGeneration:
    return SiMTForConditionalGeneration(SiMTConfig(**(TINY | overrides)))


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


def save_model(folder, pairs, seed=0, **settings) -> str:
    """A random but lively dual checkpoint with a tokenizer of the pairs' texts."""
    tokenizer = train_bpe_tokenizer([t for p in pairs for t in (p.source, p.target)], 420, show_progress=False)
    torch.manual_seed(seed)
    model = dual_model(vocab_size=len(tokenizer), max_position_embeddings=128, **settings)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3.0 if "policy" in name else 1.5)
    model.save_pretrained(folder)
    save_tokenizers(folder, tokenizer, tokenizer)
    return str(folder)


def run(capsys, *arguments: str) -> str:
    main(list(arguments))
    return capsys.readouterr().out


def fails(capsys, *arguments: str) -> str:
    """The one sentence that a user's mistake gets."""
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert stop.value.code not in (0, None)
    message = str(stop.value.code) if isinstance(stop.value.code, str) else capsys.readouterr().err
    assert "Traceback" not in message
    return message
