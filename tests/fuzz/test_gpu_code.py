"""The GPU code of every kernel of tests/kernels, run by NumPy: its numbers, where there is no GPU."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import CASES
from kernels.base import copied, host_address

from blocknb.codegen import gpu
from blocknb.target import Target
from fuzz import simt

BEYOND = {  # what `simt` does not run
    "exact_float32": "a routine in which threads part",
    "exact_float64": "a routine in which threads part",
    "integer_functions_int64": "128-bit integers",
    "integer_functions_uint64": "128-bit integers",
}


@pytest.mark.parametrize("name", [name for name in CASES if name not in BEYOND])
def test_gpu_code_computes_what_the_reference_says(name):
    case = CASES[name]
    arguments = case.make(np.random.default_rng())
    func, _ = case.lower(arguments, "sm_90a")
    got = {key: copied(value) for key, value in arguments.items()}
    case.link(got, host_address)
    arrays = [value for value in got.values() if isinstance(value, np.ndarray)]
    simt.run(gpu.generate(func, Target.parse("sm_90a")), [got[hint.name] for hint in func.hints], case.grid, arrays)
    case.check(arguments, got)
