"""Measures what checks cost: add, softmax, GEMM and attention unchecked, with bounds checks and with race checks.

`python scripts/check_overhead.py [--gpu] [--rounds N] [--scale N]` launches each kernel in turns with each value of `checked`, and prints
the median times and their ratios to the unchecked launch. `--scale` divides the sizes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from blocknb import kernels
from blocknb.runtime.launch_context import enforced

MODES = (False, True, "race", "all")


def cases(xp: Any, gpu: bool, scale: int) -> dict[str, Callable[[], Any]]:
    """The launches by name, on arrays of NumPy or CuPy."""
    kind = xp.float16 if gpu else xp.float32
    n = (1 << (26 if gpu else 22)) // scale
    rows, width = (16384 if gpu else 2048) // scale, 1024
    m = (4096 if gpu else 512) // scale
    heads, length = (32 if gpu else 4), (2048 if gpu else 512) // scale
    x, y, out = xp.ones(n, xp.float32), xp.ones(n, xp.float32), xp.empty(n, xp.float32)
    table, probabilities = xp.ones((rows, width), xp.float32), xp.empty((rows, width), xp.float32)
    a, b, c = xp.ones((m, m), kind), xp.ones((m, m), kind), xp.empty((m, m), kind)
    q, k, v, o = (xp.ones((1, heads, length, 64), kind) for _ in range(4))
    return {
        "add": lambda: kernels.add(x, y, out),
        "softmax": lambda: kernels.softmax(table, probabilities),
        "gemm": lambda: kernels.matmul(a, b, c),
        "attention": lambda: kernels.attention(q, k, v, o),
    }


def seconds(launch: Callable[[], Any], checked: Any, settle: Callable[[], Any]) -> float:
    """The time of one launch with a value of `checked`."""
    enforced["checked"] = checked
    try:
        settle()
        begin = time.perf_counter()
        launch()
        settle()
        return time.perf_counter() - begin
    finally:
        enforced.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--scale", type=int, default=1)
    given = parser.parse_args()
    xp: Any = np
    if given.gpu:
        import cupy as xp
    settle = xp.cuda.runtime.deviceSynchronize if given.gpu else lambda: None
    print(f"{'kernel':<10}" + "".join(f"{f'checked={mode}':>26}" for mode in MODES))
    for name, launch in cases(xp, given.gpu, given.scale).items():
        times: dict[Any, list[float]] = {mode: [] for mode in MODES}
        for mode in MODES:  # compiles
            seconds(launch, mode, settle)
        for _ in range(given.rounds):
            for mode in MODES:
                times[mode].append(seconds(launch, mode, settle))
        medians = {mode: statistics.median(found) for mode, found in times.items()}
        shown = [f"{1e3 * medians[mode]:.3f} ms ({medians[mode] / medians[False]:.1f} x)" for mode in MODES]
        print(f"{name:<10}" + "".join(f"{text:>26}" for text in shown), flush=True)


if __name__ == "__main__":
    main()
