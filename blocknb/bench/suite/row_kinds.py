"""The benchmarks `kinds_*` over rows and columns: scans and reductions of tuples, sorts, and sums along columns, against Triton.

Both compilers run the kernels of `triton_kinds/rows.py` with the same tiles and warps. A shape is (rows, columns).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from blocknb import cdiv, next_power_of_2
from blocknb.bench.suite.definition import Arrays, Make, Shape, SuiteBenchmark, Variant
from blocknb.bench.suite.kinds import KINDS, loaded

EPS = 1e-5
PARTIAL_ROWS = 32  # rows whose gradients one program sums


def row_kind(
    name: str,
    launch: Callable[..., Any],
    arrays: Callable[[Make, int, int], tuple[Arrays, Arrays]],
    exact: Callable[..., Any],
    gpu: dict[str, tuple[Shape, ...]],
    tolerance: tuple[float, float] = (1e-4, 1e-4),
    **options: int,
) -> SuiteBenchmark:
    """A benchmark whose only peer is Triton. `launch(module, *arrays, **options)` runs a kernel of a module."""
    return SuiteBenchmark(
        f"{KINDS}_{name}", "", arrays, lambda _, a: launch(loaded("rows", "blocknb"), *a.values(), **options),
        exact, gpu, ((70, 50),), lambda shape: (),
        tolerance={"fp32": tolerance, "fp16": (5e-3, 2e-2)}, peers=("Triton",),
        variants={"Triton": Variant("triton", lambda _, a: launch(loaded("rows", "triton"), *a.values(), **options), "")},
    )  # fmt: skip


# -- scans of complex numbers


def _phases(make: Make, m: int, n: int) -> tuple[Any, Any]:
    """Real and imaginary parts of numbers on the unit circle, whose products neither vanish nor overflow."""
    angles = make.normal(m, n)
    return make.cast(make.xp.cos(angles)), make.cast(make.xp.sin(angles))


def _products_arrays(make: Make, m: int, n: int) -> tuple[Arrays, Arrays]:
    return {"x": make.xp.stack(_phases(make, m, n), 2)}, {"y": make.poison(m, n, 2)}


def _products(xp: Any, x: Any) -> Any:
    found = xp.cumprod(x[:, :, 0] + 1j * x[:, :, 1], 1)
    return xp.stack((found.real, found.imag), 2)


def _launch_products(k: Any, x: Any, y: Any) -> None:
    m, n, _ = x.shape
    warps = 1 if n <= 256 else 4 if n <= 2048 else 8
    k.complex_products_kernel[(m,)](x, y, 2 * n, n, BLOCK=next_power_of_2(n), num_warps=warps)


def _recurrence_arrays(make: Make, m: int, n: int) -> tuple[Arrays, Arrays]:
    a, b = _phases(make, m, n)
    inputs = {"a": a * 0.99, "b": b * 0.99, "u": make.normal(m, n), "v": make.normal(m, n)}
    return inputs, {"real": make.poison(m, n), "imaginary": make.poison(m, n)}


def _recurrence(xp: Any, a: Any, b: Any, u: Any, v: Any) -> tuple[Any, Any]:
    factor, added, found = a + 1j * b, u + 1j * v, []
    h = 0 * added[:, 0]
    for t in range(a.shape[1]):
        h = factor[:, t] * h + added[:, t]
        found.append(h)
    whole = xp.stack(found, 1)
    return whole.real, whole.imag


def _launch_recurrence(k: Any, *arrays: Any) -> None:
    m, n = arrays[0].shape
    rows, warps = 4 if n <= 512 else 1, 4 if n <= 2048 else 8
    k.complex_recurrence_kernel[(cdiv(m, rows),)](
        *arrays, m, n, REVERSE=False, ROWS=rows, BLOCK=next_power_of_2(n), num_warps=warps
    )


# -- sums along columns


def _sums_arrays(make: Make, m: int, n: int) -> tuple[Arrays, Arrays]:
    inputs = {"dw": make.normal(m, n), "db": make.normal(m, n)}
    return inputs, {"sum_dw": make.poison(n), "sum_db": make.poison(n)}


def _launch_sums(k: Any, *arrays: Any) -> None:
    m, n = arrays[0].shape
    k.column_sums_kernel[(cdiv(n, 128),)](*arrays, m, n, BLOCK_M=32, BLOCK_N=128, num_warps=4)


def _norm_inputs(make: Make, m: int, n: int) -> Arrays:
    statistics = {name: make.normal(m, dtype="float32") for name in ("mean", "rstd")}
    return {"x": make.normal(m, n), "dy": make.normal(m, n), **statistics}


def _partials_arrays(make: Make, m: int, n: int) -> tuple[Arrays, Arrays]:
    parts = cdiv(m, PARTIAL_ROWS)
    return _norm_inputs(make, m, n), {name: make.poison(parts, n, dtype="float32") for name in ("dw", "db")}


def _terms(x: Any, dy: Any, mean: Any, rstd: Any) -> tuple[Any, Any]:
    return dy * (x - mean[:, None]) * rstd[:, None], dy


def _partials(xp: Any, *inputs: Any) -> tuple[Any, ...]:
    starts = range(0, inputs[0].shape[0], PARTIAL_ROWS)
    return tuple(xp.stack([y[i : i + PARTIAL_ROWS].sum(0) for i in starts]) for y in _terms(*inputs))


def _launch_partials(k: Any, *arrays: Any) -> None:
    m, n = arrays[0].shape
    warps = 4 if n <= 2048 else 8
    k.norm_partials_kernel[(cdiv(m, PARTIAL_ROWS),)](
        *arrays, m, n, ROWS=PARTIAL_ROWS, BLOCK=next_power_of_2(n), num_warps=warps
    )


def _columns_arrays(make: Make, m: int, n: int) -> tuple[Arrays, Arrays]:
    return _norm_inputs(make, m, n), {name: make.poison(n) for name in ("dw", "db")}


def _launch_columns(k: Any, *arrays: Any, block_m: int, block_n: int, num_warps: int) -> None:
    m, n = arrays[0].shape
    k.norm_columns_kernel[(cdiv(n, block_n),)](*arrays, m, n, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=num_warps)


# -- sorts


def _rows_arrays(make: Make, m: int, n: int) -> tuple[Arrays, Arrays]:
    return {"x": make.normal(m, n)}, {"y": make.poison(m, n)}


def _sparsemax(xp: Any, x: Any) -> Any:
    z = x - xp.amax(x, axis=1, keepdims=True)
    found = xp.sort(-z, 1)
    ordered = -(found[0] if isinstance(found, tuple) else found)  # torch gives the indices, too
    place = xp.cumsum(xp.ones_like(z), 1)
    kept = ordered * place > xp.cumsum(ordered, 1) - 1
    count = xp.sum(kept, axis=1, keepdims=True)
    threshold = (xp.sum(xp.where(kept, ordered, 0 * ordered), axis=1, keepdims=True) - 1) / count
    return (z - threshold) * (z > threshold)


def _launch_sparsemax(k: Any, x: Any, y: Any) -> None:
    m, n = x.shape
    k.sparsemax_kernel[(m,)](x, y, n, n, n, BLOCK=next_power_of_2(n), num_warps=4 if n <= 2048 else 8)


# -- reductions of tuples


def _variance(xp: Any, x: Any, axis: int) -> tuple[Any, Any]:
    mean = xp.mean(x, axis=axis, keepdims=True)
    return xp.mean(x, axis=axis), xp.mean((x - mean) ** 2, axis=axis)


def _normed(xp: Any, x: Any) -> Any:
    mean, variance = _variance(xp, x, 1)
    return (x - mean[:, None]) / xp.sqrt(variance + EPS)[:, None]


def _by_row(make: Make, m: int, n: int) -> tuple[Arrays, Arrays]:
    return {"x": make.normal(m, n)}, {name: make.poison(m, dtype="float32") for name in ("mean", "variance")}


def _by_column(make: Make, m: int, n: int) -> tuple[Arrays, Arrays]:
    return {"x": make.normal(m, n)}, {name: make.poison(n, dtype="float32") for name in ("mean", "variance")}


def _launch_welford_rows(k: Any, *arrays: Any) -> None:
    m, n = arrays[0].shape
    rows, warps = 8 if n <= 256 else 1, 4 if n <= 1024 else 8
    k.welford_rows_kernel[(cdiv(m, rows),)](*arrays, m, n, ROWS=rows, BLOCK=next_power_of_2(n), num_warps=warps)


def _launch_welford_loop(k: Any, x: Any, y: Any) -> None:
    m, n = x.shape
    k.welford_loop_kernel[(m,)](x, y, m, n, EPS, ROWS=1, BLOCK=2048, num_warps=8)


def _launch_welford_columns(k: Any, *arrays: Any) -> None:
    m, n = arrays[0].shape
    k.welford_columns_kernel[(cdiv(n, 32),)](*arrays, m, n, BLOCK_M=32, BLOCK_N=32, num_warps=4)


def both(*shapes: Shape) -> dict[str, tuple[Shape, ...]]:
    return {"fp32": shapes, "fp16": shapes}


BENCHMARKS = (
    row_kind(
        "complex_products", _launch_products, _products_arrays, _products,
        {"fp32": ((8192, 1024), (4096, 2048), (2048, 4096), (16384, 256), (256, 1024), (128, 4096))},
    ),
    row_kind(
        "complex_recurrence", _launch_recurrence, _recurrence_arrays, _recurrence,
        {"fp32": ((8192, 1024), (4096, 2048), (8192, 512), (8192, 256), (256, 1024), (256, 4096))}, (1e-4, 1e-3),
    ),
    row_kind(
        "column_sums", _launch_sums, _sums_arrays, lambda xp, dw, db: (dw.sum(0), db.sum(0)),
        both((64, 8192), (96, 1024), (256, 1024), (256, 4096), (4096, 4096)), (1e-4, 1e-3),
    ),
    row_kind(
        "norm_partials", _launch_partials, _partials_arrays, _partials, both((8192, 1024), (8192, 4096)), (1e-4, 1e-3)
    ),
    row_kind(
        "norm_columns", _launch_columns, _columns_arrays, lambda xp, *inputs: tuple(y.sum(0) for y in _terms(*inputs)),
        both((4096, 1024), (4096, 4096)), (1e-4, 5e-3), block_m=32, block_n=64, num_warps=4,
    ),
    row_kind(
        "norm_columns_tall", _launch_columns, _columns_arrays, lambda xp, *inputs: tuple(y.sum(0) for y in _terms(*inputs)),
        both((4096, 2048),), (1e-4, 5e-3), block_m=128, block_n=16, num_warps=8,
    ),
    row_kind(
        "norm_columns_small", _launch_columns, _columns_arrays, lambda xp, *inputs: tuple(y.sum(0) for y in _terms(*inputs)),
        both((2048, 8192),), (1e-4, 5e-3), block_m=16, block_n=16, num_warps=4,
    ),
    row_kind(
        "sparsemax", _launch_sparsemax, _rows_arrays, _sparsemax,
        {"fp32": ((16384, 128), (8192, 512), (8192, 1024), (4096, 2048), (2048, 4096))}, (1e-5, 1e-5),
    ),
    row_kind(
        "welford_rows", _launch_welford_rows, _by_row, functools.partial(_variance, axis=1),
        both((32768, 256), (16384, 1000), (16384, 1024), (8192, 2048)), (1e-5, 1e-5),
    ),
    row_kind(
        "welford_loop", _launch_welford_loop, _rows_arrays, _normed,
        both((8192, 4096), (4096, 8192), (2048, 16384), (512, 50257)), (1e-4, 1e-4),
    ),
    row_kind(
        "welford_columns", _launch_welford_columns, _by_column, functools.partial(_variance, axis=0),
        both((4096, 4096), (1024, 8192)), (1e-5, 1e-5),
    ),
)  # fmt: skip
