"""GPU code of random warp-specialized kernels gives NumPy's results in the `simt` simulator."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz import simt
from kernels.base import copied, parameters
from passes.test_warp_specialization_random import drawn

from blocknb.codegen import gpu
from blocknb.target import Target


def check(seed: int) -> bool:
    """Whether the kernel of a seed has warp roles. Raises AssertionError if its results are wrong."""
    case, options = drawn(seed)
    arguments = case.make(np.random.default_rng(seed))
    func, _ = case.lower(arguments, "sm_90a", **options)
    got = {name: copied(value) for name, value in arguments.items()}
    simt.run(gpu.generate(func, Target.parse("sm_90a")), parameters(func, got), case.grid)
    case.check(arguments, got)
    return any(op.name == "roles" for op in func.ops())


#: Three loops of each kind, one of them without iterations.
@pytest.mark.parametrize("seeds", [(1, 5, 7), (9, 12, 14), (27, 40, 59)], ids=str)
def test_random_warp_specialized_code_gives_numpys_results(seeds: tuple[int, ...]) -> None:
    assert sum(map(check, seeds)) >= 2


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, 200, 10))
def test_many_random_warp_specialized_kernels(first: int) -> None:
    for seed in range(first, first + 10):
        check(seed)
