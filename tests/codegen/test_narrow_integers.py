"""GPU code converts 8-bit and 16-bit integers to floats without the slow instruction, with identical bits."""

from __future__ import annotations

import ml_dtypes  # noqa: F401 (NumPy knows bfloat16 from now on)
import numpy as np
import pytest
from fuzz import simt
from kernels.base import Case, copied, parameters

import blocknb
import blocknb.language as bl
from blocknb.codegen import gpu
from blocknb.target import Target


@blocknb.kernel
def converted(x, y, BLOCK: bl.constexpr):
    at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    bl.store(y + at, bl.load(x + at).to(y.dtype.element_ty))


@pytest.mark.parametrize("result", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("source", ["int8", "uint8", "int16", "uint16"])
def test_every_narrow_integer_converts_exactly(source: str, result: str) -> None:
    numbers = np.arange(1 << 8 * np.dtype(source).itemsize, dtype=np.int64).astype(source)
    with np.errstate(over="ignore"):
        expected = numbers.astype(np.float32).astype(result)
    block, arguments = min(len(numbers), 4096), {"x": numbers, "y": np.full(len(numbers), np.nan, result)}
    case = Case("converted", converted, dict, lambda _: {"y": expected}, grid=(len(numbers) // block,), rtol=0, atol=0)
    for target in ("sm_75", "sm_90a"):
        func, _ = case.lower(arguments | {"BLOCK": block}, target, num_warps=8)
        text = gpu.generate(func, Target.parse(target))
        assert "tofp" not in text.text
        got = {name: copied(value) for name, value in arguments.items()}
        simt.run(text, parameters(func, got), case.grid)
        case.check(arguments, got)
