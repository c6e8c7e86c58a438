"""What a GPU would run, found out without one."""

import pytest
from launches import count_launches


def test_launches_do_not_grow_with_the_sentence():
    short, long = (count_launches(length, layers=2) for length in (5, 17))
    assert short == long
    assert 0 < short.expectations <= 0.1 * short.total


@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_for_gpus_and_spill_nothing(capability):
    pytest.importorskip("triton")
    from gpu_kernels import KERNELS, compile_kernel

    for name in KERNELS:
        used = compile_kernel(name, capability, columns=64)
        assert 0 < used.registers < 256 and used.spilled == 0
