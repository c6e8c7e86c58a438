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
from hf_dualpath.paths import duality_triton
from hf_dualpath.training import cross_entropy_triton


TARGETS = (80, 90)  # A100, H100
LENGTHS, VOCABULARIES = (64, 1024), (1024, cross_entropy_triton.WIDEST)
# With the numbers of columns that a program may hold.
KERNELS = {
    monotonic_triton.alignment_forward_kernel: LENGTHS,
    monotonic_triton.alignment_backward_kernel: LENGTHS,
    monotonic_triton.attention_forward_kernel: LENGTHS,
    monotonic_triton.attention_backward_kernel: LENGTHS,
    monotonic_triton.hard_path_kernel: LENGTHS,
    duality_triton.transpose_path_kernel: LENGTHS,
    cross_entropy_triton.cross_entropy_forward_kernel: VOCABULARIES,
    cross_entropy_triton.cross_entropy_backward_kernel: VOCABULARIES,
}
# All other arguments are tensors of numbers.
TYPES = {"source_mask": "*i1", "target_mask": "*i1", "hits": "*i1", "stops": "*i64", "labels": "*i64"}
TYPES |= dict.fromkeys(("heads", "rows", "columns", "min_lag", "max_lag", "step"), "i32")
SMOOTHING = {"GOLD": 0.9, "OTHER": 0.1 / 31999}


class Usage(NamedTuple):
    """What a compiled kernel takes: registers of a thread, and bytes that did not fit into them."""

    registers: int
    spilled: int


def compile_kernel(kernel: triton.JITFunction, capability: int, columns: int) -> Usage:
    """Compiles down to machine code for programs that hold so many columns."""
    block, warps = monotonic_triton.block_size(columns)
    constants = {"BLOCK": block} | {name: value for name, value in SMOOTHING.items() if name in kernel.arg_names}
    types = TYPES | dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        fn=kernel,
        signature={argument: types.get(argument, "*fp32") for argument in kernel.arg_names},
        constexprs=constants,
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
