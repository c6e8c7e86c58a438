"""Compiles the Triton kernels for real GPUs, without one, and says what they take: `benchmark.py kernels`."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hf_dualpath.model import monotonic_triton


TARGETS = (80, 90)  # A100, H100
KERNELS = (
    "alignment_forward_kernel",
    "alignment_backward_kernel",
    "attention_forward_kernel",
    "attention_backward_kernel",
    "hard_path_kernel",
)
# All other arguments are tensors of numbers.
TYPES = {"source_mask": "*i1", "stops": "*i64", "threshold": "fp32", "BLOCK": "constexpr"}
TYPES |= dict.fromkeys(("heads", "rows", "columns", "min_lag", "max_lag"), "i32")


class Usage(NamedTuple):
    """What a compiled kernel takes: registers of a thread, and bytes that did not fit into them."""

    registers: int
    spilled: int


def compile_kernel(name: str, capability: int, columns: int) -> Usage:
    """Compiles down to machine code for sources of so many tokens."""
    kernel = getattr(monotonic_triton, name)
    block, warps = monotonic_triton.block_size(columns)
    source = ASTSource(
        fn=kernel,
        signature={argument: TYPES.get(argument, "*fp32") for argument in kernel.arg_names},
        constexprs={"BLOCK": block},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    return usage_of(compiled.asm["cubin"])


def usage_of(machine_code: bytes) -> Usage:
    """What NVIDIA's `cuobjdump`, which comes with triton, reads in it. Local memory holds only what was spilled."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(machine_code)
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    registers, stack, local = (int(re.search(rf"{name}:(\d+)", report)[1]) for name in ("REG", "STACK", "LOCAL"))
    return Usage(registers, stack + local)
