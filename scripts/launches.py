"""How many kernels one training step launches, and how many of those are ours: `benchmark.py launches`.

The step runs on torch's meta device, where every tensor has a shape and no numbers. Our code takes the same branches
there as on a GPU, and each call of an operator that computes something counts as one launch. That is an estimate: on a
GPU some operators launch two kernels, and dropout one instead of three. The optimizer is left out.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import hf_dualpath
from hf_dualpath import DualPathConfig, DualPathForConditionalGeneration, dual_path_loss


PACKAGE = str(Path(hf_dualpath.__file__).parent)
EXPECTATIONS = ("model/monotonic_",)
# All that is no layer of a Transformer: the policies and the losses too, cross-entropy included. The ten calls that
# check the padding of both masks are the model's.
METHOD = (*EXPECTATIONS, "model/policies_dualpath.py", "paths/", "training/losses.py", "training/cross_entropy")
NO_LAUNCH = {"empty", "empty_like", "new_empty", "promote_types", "_unsafe_view", "detach", "alias", "lift_fresh"}


class Launches(NamedTuple):
    total: int
    expectations: int
    method: int


class FusedAttention(torch.autograd.Function):
    """Attention as a GPU runs it: one launch forward and one back. The meta device would take it apart."""

    @staticmethod
    def forward(ctx, query, key, value):
        ctx.save_for_backward(key, value)
        return query * 1

    @staticmethod
    def backward(ctx, grad):
        return grad * 1, *(torch.empty_like(tensor) for tensor in ctx.saved_tensors)


class FuseAttention(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.scaled_dot_product_attention:
            return FusedAttention.apply(*args[:3])
        return function(*args, **(kwargs or {}))


class CountLaunches(TorchDispatchMode):
    """Counts the calls of operators by the file of this package that made them, those of the backward included."""

    def __init__(self):
        super().__init__()
        self.by_file = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if not operator.is_view and operator._schema.name.split("::")[1] not in NO_LAUNCH:
            self.by_file[self.origin()] += 1
        return operator(*args, **(kwargs or {}))

    def origin(self) -> str:
        """In the backward, where the node was made in the forward: anomaly detection keeps that with each node."""
        node = torch._C._current_autograd_node()
        if node is not None:
            files = [line.split('"')[1] for line in node.metadata.get("traceback_", []) if '"' in line]
        else:
            files, frame = [], sys._getframe()
            while frame is not None:
                files.insert(0, frame.f_code.co_filename)
                frame = frame.f_back
        found = next((file for file in reversed(files) if file.startswith(PACKAGE)), PACKAGE + "/")
        return found[len(PACKAGE) + 1 :]

    @property
    def launches(self) -> Launches:
        def of(files: tuple[str, ...]) -> int:
            return sum(count for file, count in self.by_file.items() if file.startswith(files))

        return Launches(self.by_file.total(), of(EXPECTATIONS), of(METHOD))


def count_launches(length: int, layers: int = 6, **settings) -> Launches:
    """Calls of one dual training step, 32 pairs of `length` + `length` tokens."""
    heads = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
    config = {
        "vocab_size": 32000,
        "encoder_layers": layers,
        "decoder_layers": layers,
        **heads,
        "dropout": 0.3,
        **settings,
    }
    with torch.device("meta"):
        model = DualPathForConditionalGeneration(DualPathConfig(forward_config=config)).train()
        tokens = torch.empty(32, length, dtype=torch.long)
        mask = torch.empty(32, length, dtype=torch.bool)
        with FuseAttention(), torch.autograd.set_detect_anomaly(True, check_nan=False), CountLaunches() as count:
            loss = dual_path_loss(
                model(tokens, mask, tokens, return_loss=False), tokens, mask, tokens, latency_weight=0.2
            )
            (loss.total / loss.target_tokens).backward()
    return count.launches
