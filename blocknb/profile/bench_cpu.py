"""The CPU against NumPy, side by side in one run, on one thread and on all: `blocknb bench cpu`.

Vector add of 2^24 fp32, softmax of 4096 x 1024 fp32 (NumPy: max, subtract, exp, sum, divide, each with `out=`), and matmul of
1024^3 fp32 against NumPy's BLAS. Bounds checks are on. For each number of threads a process of its own, because BLAS reads its
number once; the peers take turns, and a ratio is of medians: NumPy's time over ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import numpy as np

ROUNDS = 25


def measure(threads: int) -> None:
    from blocknb.kernels import add, matmul, softmax
    from blocknb.profile.timing import interleaved

    rows = [f"{'':34}{'ours ms':>10}{'NumPy ms':>10}{'ratio':>8}{'rate':>14}"]

    def row(name: str, ours: float, peer: float, rate: str) -> None:
        rows.append(f"{name:34}{ours:>10.3f}{peer:>10.3f}{peer / ours:>8.2f}{rate:>14}")

    rng = np.random.default_rng()
    x, y = (rng.standard_normal(1 << 24).astype(np.float32) for _ in range(2))
    out, peer_out = np.full_like(x, np.nan), np.full_like(x, np.nan)
    blocks = (1024, 4096, 16384, 65536)
    calls = {str(b): partial(add, x, y, out, block=b) for b in blocks}
    times = interleaved(calls | {"numpy": partial(np.add, x, y, out=peer_out)}, gpu=False, rounds=ROUNDS)
    np.testing.assert_array_equal(out, peer_out)
    for b in blocks:
        ours = times[str(b)].median
        row(f"add 2^24, BLOCK {b}", ours, times["numpy"].median, f"{3 * x.nbytes / ours / 1e6:.1f} GB/s")

    x = rng.standard_normal((4096, 1024)).astype(np.float32)
    out, peer_out, column = np.full_like(x, np.nan), np.empty_like(x), np.empty((4096, 1), np.float32)

    def numpy_softmax() -> None:
        np.max(x, axis=1, keepdims=True, out=column)
        np.subtract(x, column, out=peer_out)
        np.exp(peer_out, out=peer_out)
        np.sum(peer_out, axis=1, keepdims=True, out=column)
        np.divide(peer_out, column, out=peer_out)

    times = interleaved({"ours": partial(softmax, x, out), "numpy": numpy_softmax}, gpu=False, rounds=ROUNDS)
    exact = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, exact / exact.sum(1, keepdims=True), rtol=2e-6, atol=1e-9)
    ours = times["ours"].median
    row("softmax 4096 x 1024", ours, times["numpy"].median, f"{2 * x.nbytes / ours / 1e6:.1f} GB/s")

    left, right = (rng.standard_normal((1024, 1024)).astype(np.float32) for _ in range(2))
    out, peer_out = np.full_like(left, np.nan), np.empty_like(left)
    tiles = ((128, 128, 64), (128, 256, 64), (256, 128, 64))
    calls = {str(t): partial(matmul, left, right, out, tile=t) for t in tiles}
    times = interleaved(calls | {"numpy": partial(np.matmul, left, right, out=peer_out)}, gpu=False, rounds=ROUNDS)
    np.testing.assert_allclose(out, left.astype(np.float64) @ right, rtol=1e-4, atol=1e-3)
    for t in tiles:
        ours = times[str(t)].median
        name = "matmul 1024^3, " + "x".join(map(str, t))
        row(name, ours, times["numpy"].median, f"{2 * 1024**3 / ours / 1e6:.0f} GFLOP/s")

    print(f"{threads} thread{'s' if threads > 1 else ''}")
    print("\n".join(rows), flush=True)


def run(counts: tuple[int, ...] = ()) -> None:
    """Measures on each number of threads (one, and all there are) in a process of its own, and prints the tables."""
    for n in counts or sorted({1, len(os.sched_getaffinity(0))}):
        names = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "BLOCKNB_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, str(n))
        subprocess.run([sys.executable, "-m", "blocknb.profile.bench_cpu", str(n)], env=environment, check=True)


if __name__ == "__main__":
    measure(int(sys.argv[1]))
