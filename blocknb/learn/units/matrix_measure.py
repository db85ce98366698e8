"""The last cell of unit 10: a learner's matrix product and the vendor's library, timed in turns on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from blocknb.learn.cell import Answer
from blocknb.learn.running import called
from blocknb.profile.timing import interleaved

SIZE = 4096


def against_library(kernel: Any, grid: Callable[..., Any], size: int = SIZE, rounds: int = 30) -> str:
    """Times `c = a @ b` of square fp16 matrices by a kernel and by cuBLAS, with cold caches. The parameters of the kernel are a, b, c, M,
    N, K.

    Returns a line with both rates and their ratio, or a line that says that the result is wrong. Raises ModuleNotFoundError without CuPy.
    """
    import cupy

    a, b = (cupy.random.standard_normal((size, size), dtype=cupy.float32).astype(cupy.float16) for _ in range(2))
    c, library = cupy.full((size, size), cupy.nan, cupy.float16), cupy.empty((size, size), cupy.float16)
    sizes = {"M": size, "N": size, "K": size}
    programs = called(grid, {**Answer(kernel, {}).defaults(), **sizes})
    launch = kernel[programs if isinstance(programs, tuple) else (programs,)]
    launch(a, b, c, size, size, size)
    exact = a.astype(cupy.float64) @ b.astype(cupy.float64)
    if not bool(cupy.allclose(c.astype(cupy.float64), exact, 2.0**-10, 2.0**-10 * math.sqrt(size))):
        return "the result is wrong, so its time does not count"
    calls = {"yours": lambda: launch(a, b, c, size, size, size), "cuBLAS": lambda: cupy.matmul(a, b, out=library)}
    times = interleaved(calls, gpu=True, rounds=rounds, warmup=3)
    mine, theirs = (2 * size**3 / times[name].median / 1e9 for name in ("yours", "cuBLAS"))
    return f"yours: {mine:.0f} TFLOP/s, cuBLAS: {theirs:.0f} TFLOP/s, ratio {mine / theirs:.2f} ({size} x {size} x {size}, fp16)"
