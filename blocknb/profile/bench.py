"""The benchmarks of `blocknb bench`: our kernels and their peers, interleaved in one run on the same random data.

Each benchmark is a function that prints a table and returns its rows; a row has a name, the peers' medians in milliseconds and the
ratio that matters (peer's time over ours: above one, we are faster). Peers that are not installed are left out and named.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from blocknb.errors import KernelError
from blocknb.profile.timing import interleaved

Row = dict[str, Any]
BENCHMARKS: dict[str, Callable[[], list[Row]]] = {}


def benchmark(function: Callable[[], list[Row]]) -> Callable[[], list[Row]]:
    BENCHMARKS[function.__name__] = function
    return function


def show(title: str, rows: list[Row]) -> None:
    """A plain table: the columns are the keys of the first row."""
    print(f"\n{title}")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(c, "")) for c in columns] for row in rows]
    widths = [max(len(c), *(len(line[i]) for line in cells)) for i, c in enumerate(columns)]
    for line in [columns, *cells]:
        print(
            "  "
            + "  ".join(
                text.ljust(w) if i == 0 else text.rjust(w) for i, (text, w) in enumerate(zip(line, widths, strict=True))
            )
        )


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# -- GPU


@benchmark
def gpu() -> list[Row]:
    """Vector add, softmax and matmul on the GPU against a device copy, CuPy and cuBLAS (fp16 through CuPy)."""
    from blocknb.runtime.driver import cupy as load_cupy

    cupy = load_cupy()
    rows = [_gpu_add(cupy), *_gpu_softmax(cupy), *_gpu_matmul(cupy)]
    show(f"GPU: {cupy.cuda.runtime.getDeviceProperties(0)['name'].decode()}", rows)
    return rows


def _gpu_add(cupy: Any) -> Row:
    from blocknb.kernels import add

    n = 1 << 26
    x, y = (cupy.random.standard_normal(n, dtype=cupy.float32) for _ in range(2))
    out, source = cupy.full(n, cupy.nan, cupy.float32), cupy.random.standard_normal(n + n // 2, dtype=cupy.float32)
    target = cupy.empty_like(source)
    times = interleaved(
        {
            "ours": lambda: add(x, y, out),
            "copy": lambda: cupy.copyto(target, source),
            "cupy": lambda: cupy.add(x, y, out),
        },
        gpu=True,
    )
    assert bool((out == x + y).all())
    moved = 3 * x.nbytes / 1e6
    ours, copy, peer = (times[k].median for k in ("ours", "copy", "cupy"))
    return {
        "benchmark": "add 2^26 fp32",
        "ms": ours,
        "GB/s": moved / ours,
        "copy GB/s": moved / copy,
        "of copy": copy / ours,
        "of CuPy": peer / ours,
    }


def _gpu_softmax(cupy: Any) -> list[Row]:
    from blocknb.kernels import softmax

    rows = []
    for n in (1024, 4096, 12672):
        x = cupy.random.standard_normal((4096, n), dtype=cupy.float32)
        out, source, target = cupy.full_like(x, cupy.nan), cupy.copy(x), cupy.empty_like(x)
        calls = {f"{w} warps": partial(softmax, x, out, num_warps=w) for w in (4, 8, 16)}
        times = interleaved(calls | {"copy": partial(cupy.copyto, target, source)}, gpu=True)
        exact = cupy.exp(x.astype(cupy.float64) - x.max(1, keepdims=True))
        cupy.testing.assert_allclose(out, exact / exact.sum(1, keepdims=True), rtol=2e-6, atol=1e-9)
        moved, best = 2 * x.nbytes / 1e6, min(calls, key=lambda k: times[k].median)
        ours = times[best].median
        rows.append(
            {
                "benchmark": f"softmax 4096 x {n} fp32, {best}",
                "ms": ours,
                "GB/s": moved / ours,
                "copy GB/s": moved / times["copy"].median,
                "of copy": times["copy"].median / ours,
            }
        )
    return rows


def _gpu_matmul(cupy: Any) -> list[Row]:
    from blocknb.kernels import matmul

    rows = []
    for n in (1024, 4096):
        a, b = (cupy.random.standard_normal((n, n), dtype=cupy.float32).astype(cupy.float16) for _ in range(2))
        out, library = cupy.full((n, n), cupy.nan, cupy.float16), cupy.empty((n, n), cupy.float16)
        tiles = {
            "128x128x64, 4 warps": ((128, 128, 64), 4),
            "128x128x32, 4 warps": ((128, 128, 32), 4),
            "128x256x64, 8 warps": ((128, 256, 64), 8),
            "128x128x64, 8 warps": ((128, 128, 64), 8),
            "64x128x64, 4 warps": ((64, 128, 64), 4),
        }
        calls = {k: partial(matmul, a, b, out, tile=t, num_warps=w) for k, (t, w) in tiles.items()}
        times = interleaved(calls | {"cublas": partial(cupy.matmul, a, b, out=library)}, gpu=True)
        exact = a[:64].astype(cupy.float64) @ b.astype(cupy.float64)
        cupy.testing.assert_allclose(out[:64].astype(cupy.float64), exact, rtol=5e-3, atol=5e-2)
        for name in tiles:
            ours, peer = times[name].median, times["cublas"].median
            rows.append(
                {
                    "benchmark": f"matmul {n}^3 fp16, {name}",
                    "ms": ours,
                    "TFLOP/s": 2 * n**3 / ours / 1e9,
                    "cuBLAS TFLOP/s": 2 * n**3 / peer / 1e9,
                    "of cuBLAS": peer / ours,
                }
            )
    return rows


# -- CPU


@benchmark
def cpu() -> list[Row]:
    """Vector add, softmax and matmul on the CPU against NumPy, on one thread and on all."""
    from blocknb.profile import bench_cpu

    bench_cpu.run()
    return []


# -- the limits of this machine


@benchmark
def ceilings() -> list[Row]:
    """Measures the limits of this machine's devices anew, which rooflines compare with: memory, caches, FP32, tensor cores."""
    from blocknb.profile import ceilings as limits
    from blocknb.runtime import machine
    from blocknb.runtime.arguments import HOST

    rows: list[Row] = []
    gpu = machine.current_gpu()
    for device in (HOST,) if gpu is None else (gpu, HOST):
        found = limits.ceilings(device, fresh=True)
        rows += [
            {
                "limit": item.name,
                "rate": item.value,
                "unit": item.unit,
                "quarter points": f"{item.low:.4g} to {item.high:.4g}",
                "measured by": item.how,
            }
            for item in found.items
        ]
        show(f"{found.device}, {found.measured}", rows[-len(found.items) :])
        for name, why in found.missing:
            print(f"  {name}: not measured ({why})")
    return rows


# -- compile times


@benchmark
def compile() -> list[Row]:
    """Compile times on this machine against Triton's, where BLOCKNB_TRITON_PYTHON names a Python that has it. Needs no GPU."""
    from blocknb.profile import bench_compile

    return bench_compile.run()


@benchmark
def scaling() -> list[Row]:
    """Compile times by stage as kernels get longer (125 to 2000 statements of many kinds), and on tiles of 2^16 elements."""
    from blocknb.profile import scaling

    rows = scaling.statements()
    show("Milliseconds by stage, and the power with which they grow over the larger sizes (1: linear)", rows)
    sizes = scaling.tiles()
    show("Milliseconds by stage for one operation on a tile of 2^16 elements", sizes)
    return rows + sizes


def run(names: list[str]) -> int:
    """Runs the named benchmarks (all of them when none is named). Returns an exit status."""
    if unknown := [name for name in names if name not in BENCHMARKS]:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    status = 0
    for name in names or BENCHMARKS:
        try:
            BENCHMARKS[name]()
        except KernelError as error:  # what it measures is not there; the other benchmarks may be
            print(f"{name}: {error}", file=sys.stderr)
            status = 1
    return status
