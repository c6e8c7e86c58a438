"""What a GPU would run, found out without one."""

import pytest
from launches import count_launches


def test_launches_do_not_grow_with_the_sentence():
    short, long = (count_launches(length, layers=2) for length in (5, 17))
    assert short == long


def test_the_method_is_a_tenth_of_the_papers_step():
    """Of 6+6 layers: alphas, policies and all losses, cross-entropy included."""
    found = count_launches(40)
    assert 0 < found.expectations < found.method <= 0.1 * found.total


@pytest.mark.parametrize("size", [0, 1], ids=["short", "long"])
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_for_gpus_and_spill_nothing(capability, size):
    pytest.importorskip("triton")
    from gpu_kernels import KERNELS, compile_kernel

    for kernel, sizes in KERNELS.items():
        used = compile_kernel(kernel, capability, columns=sizes[size])
        assert 0 < used.registers < 256 and used.spilled == 0, kernel.__name__
