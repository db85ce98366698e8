"""All benchmarks of ready-made kernels, one definition each; `BENCHMARKS` holds them by name.

GPU shapes are those of transformers, plus some that are not powers of two. CPU shapes fit a small machine. The 1 GiB matrices in fp32
(32768 x 8192) are limited by memory bandwidth alone.
"""

from __future__ import annotations

from typing import Any

from blocknb.bench.suite import attention, decoding, kinds, products, row_kinds
from blocknb.bench.suite.definition import (
    Arrays,
    Make,
    Shape,
    SuiteBenchmark,
    over_blocks,
    over_rows,
    over_squares,
    over_warps,
)

EPS = 1e-5
P, SEED = 0.1, 20_25
GIB: Shape = (32768, 8192)
SOFTMAX_N = (256, 512, 781, 1024, 2048, 4096, 8192, 12672, 16384, 32768)
#: A few rows, and rows that begin between vectors of 16 bytes.
SOFTMAX_ODD: tuple[Shape, ...] = ((7, 6144), (7, 12672), (7, 18607), (1000, 18607))
NORM_N = (1024, 2048, 4096, 8192, 12672, 16384)
BACKWARD_N = (1024, 4096, 8192, 16384)


def by_n(columns: tuple[int, ...], *more: Shape) -> dict[str, tuple[Shape, ...]]:
    """Matrices of 4096 rows by numbers of columns, in fp32 and fp16, and `more` shapes in fp32."""
    shapes = tuple((4096, n) for n in columns)
    return {"fp32": (*shapes, *more), "fp16": shapes}


def both(*shapes: Shape) -> dict[str, tuple[Shape, ...]]:
    return {"fp32": shapes, "fp16": shapes}


# -- streams of elements


def _swiglu(xp: Any, gate: Any, up: Any) -> Any:
    return gate / (1 + xp.exp(-gate)) * up


def _rope_arrays(make: Make, positions: int, heads: int, width: int) -> tuple[Arrays, Arrays]:
    angles = make.normal(positions, width // 2, dtype="float32")
    tables = {"cosines": make.cast(make.xp.cos(angles)), "sines": make.cast(make.xp.sin(angles))}
    return {"x": make.normal(positions, heads, width), **tables}, {"out": make.poison(positions, heads, width)}


def _rope(xp: Any, x: Any, cosines: Any, sines: Any) -> Any:
    half = x.shape[2] // 2
    a, b, c, s = x[:, :, :half], x[:, :, half:], cosines[:, None], sines[:, None]
    return xp.concatenate([a * c - b * s, b * c + a * s], axis=2)


def _dropped(xp: Any, inputs: Arrays, outputs: Arrays) -> str:
    """Checks that each element is 0 or x / (1 - p), and that the share of zeros is within five standard deviations of p."""
    x, out = inputs["x"], outputs["out"]
    kept = out != 0
    n = 1
    for size in x.shape:
        n *= size
    if not bool((xp.abs(out - x / (1 - P))[kept] <= 2e-3 * xp.abs(x)[kept] + 1e-6).all()):
        return "an element is neither 0 nor x / (1 - p)"
    share, spread = 1 - float(kept.sum()) / n, (P * (1 - P) / n) ** 0.5
    zeros = float((x == 0).sum()) / n
    return "" if abs(share - P) <= 5 * spread + zeros + 1 / n else f"{share:.4f} of the elements are dropped, not {P}"


# -- rows


def _softmax(xp: Any, x: Any) -> Any:
    powers = xp.exp(x - xp.amax(x, axis=1, keepdims=True))
    return powers / xp.sum(powers, axis=1, keepdims=True)


def _normed(xp: Any, x: Any, centred: bool) -> tuple[Any, Any, Any]:
    """z, mean and rstd, columns (M, 1)."""
    mean = xp.mean(x, axis=1, keepdims=True) * centred
    z = x - mean
    rstd = 1 / xp.sqrt(xp.mean(z * z, axis=1, keepdims=True) + EPS)
    return z * rstd, mean, rstd


def _layer_norm(xp: Any, x: Any, weight: Any, bias: Any) -> Any:
    return _normed(xp, x, True)[0] * weight + bias


def _rms_norm(xp: Any, x: Any, weight: Any) -> Any:
    return _normed(xp, x, False)[0] * weight


def _kept(make: Make, x: Any, centred: bool) -> dict[str, Any]:
    """The row statistics that the forward pass keeps, fp32 vectors."""
    _, mean, rstd = _normed(make.xp, make.wide(x), centred)
    kept = {"mean": mean[:, 0], "rstd": rstd[:, 0]} if centred else {"rstd": rstd[:, 0]}
    return {name: make.cast(value, "float32") for name, value in kept.items()}


def _layer_norm_backward_arrays(make: Make, m: int, n: int) -> tuple[Arrays, Arrays]:
    x = make.normal(m, n)
    inputs = {"x": x, "weight": make.normal(n), "dy": make.normal(m, n), **_kept(make, x, True)}
    return inputs, {"dx": make.poison(m, n), "dweight": make.poison(n), "dbias": make.poison(n)}


def _layer_norm_backward(xp: Any, x: Any, weight: Any, dy: Any, mean: Any, rstd: Any) -> Any:
    z, g = (x - mean[:, None]) * rstd[:, None], dy * weight
    inner = g - xp.mean(g, axis=1, keepdims=True) - z * xp.mean(g * z, axis=1, keepdims=True)
    return inner * rstd[:, None], xp.sum(dy * z, axis=0), xp.sum(dy, axis=0)


def _rms_norm_backward_arrays(make: Make, m: int, n: int) -> tuple[Arrays, Arrays]:
    x = make.normal(m, n)
    inputs = {"x": x, "weight": make.normal(n), "dy": make.normal(m, n), **_kept(make, x, False)}
    return inputs, {"dx": make.poison(m, n), "dweight": make.poison(n)}


def _rms_norm_backward(xp: Any, x: Any, weight: Any, dy: Any, rstd: Any) -> Any:
    z, g = x * rstd[:, None], dy * weight
    return (g - z * xp.mean(g * z, axis=1, keepdims=True)) * rstd[:, None], xp.sum(dy * z, axis=0)


def _logsum(xp: Any, x: Any) -> Any:
    largest = xp.amax(x, axis=1, keepdims=True)
    return (xp.log(xp.sum(xp.exp(x - largest), axis=1, keepdims=True)) + largest)[:, 0]


def _rows(xp: Any, classes: Any) -> Any:
    """0, 1, 2, ... on the device of the classes."""
    return xp.cumsum(xp.ones_like(classes), 0) - 1


def _cross_entropy(xp: Any, x: Any, classes: Any) -> Any:
    logsumexp = _logsum(xp, x)
    return logsumexp - x[_rows(xp, classes), classes], logsumexp


def _cross_entropy_backward_arrays(make: Make, m: int, n: int) -> tuple[Arrays, Arrays]:
    x = make.normal(m, n)
    logsumexp = make.cast(_logsum(make.xp, make.wide(x)), "float32")
    inputs = {
        "x": x,
        "classes": make.integers_below(n, m),
        "dlosses": make.normal(m, dtype="float32"),
        "logsumexp": logsumexp,
    }
    return inputs, {"dx": make.poison(m, n)}


def _cross_entropy_backward(xp: Any, x: Any, classes: Any, dlosses: Any, logsumexp: Any) -> Any:
    gradient = xp.exp(x - logsumexp[:, None])
    gradient[_rows(xp, classes), classes] -= 1
    return gradient * dlosses[:, None]


_ELEMENTS = (1 << 26,)
_CPU_ELEMENTS = ((1 << 24,),)
_CPU_ROWS: tuple[Shape, ...] = ((4096, 1024), (4096, 781), (1024, 8192))
_MLP: tuple[Shape, ...] = ((4096, 4096), (4096, 11008), (4096, 14336))
_LOGITS: tuple[Shape, ...] = ((4096, 8192), (4096, 32000), (4096, 50257))

BENCHMARKS: dict[str, SuiteBenchmark] = {
    b.name: b
    for b in (
        SuiteBenchmark(
            "add", "add",
            lambda make, n: ({"x": make.normal(n), "y": make.normal(n)}, {"out": make.poison(n)}),
            lambda k, a, **c: k.add(a["x"], a["y"], a["out"], **c),
            lambda xp, x, y: x + y,
            both(_ELEMENTS), _CPU_ELEMENTS, over_blocks,
        ),
        SuiteBenchmark(
            "copy", "copies",
            lambda make, n: ({"x": make.normal(n)}, {"out": make.poison(n)}),
            lambda k, a, **c: k.copy(a["x"], a["out"], **c),
            lambda xp, x: x,
            both(_ELEMENTS), _CPU_ELEMENTS, over_blocks, {"fp32": (0.0, 0.0), "fp16": (0.0, 0.0)},
        ),
        SuiteBenchmark(
            "sum", "sums",
            lambda make, n: ({"x": make.normal(n)}, {"out": make.poison(1, dtype="float32")}),
            lambda k, a, **c: k.sum(a["x"], a["out"], **c),
            lambda xp, x: xp.sum(x).reshape(1),
            both(_ELEMENTS), _CPU_ELEMENTS, over_blocks,
            {"fp32": (1e-5, 0.2), "fp16": (1e-5, 0.2)},  # a sum near 0 of many numbers near 1; one missing number must show
        ),
        SuiteBenchmark(
            "softmax", "softmax",
            lambda make, m, n: ({"x": make.normal(m, n)}, {"out": make.poison(m, n)}),
            lambda k, a, **c: k.softmax(a["x"], a["out"], **c),
            _softmax,
            {dtype: (*shapes, *SOFTMAX_ODD) for dtype, shapes in by_n(SOFTMAX_N, GIB).items()},
            _CPU_ROWS, over_rows, {"fp32": (1e-5, 1e-9), "fp16": (1e-3, 1e-7)},
        ),
        SuiteBenchmark(
            "layer_norm", "norms",
            lambda make, m, n: (
                {"x": make.normal(m, n), "weight": make.normal(n), "bias": make.normal(n)}, {"out": make.poison(m, n)}
            ),
            lambda k, a, **c: k.layer_norm(a["x"], a["weight"], a["bias"], a["out"], eps=EPS, **c),
            _layer_norm,
            by_n(NORM_N, GIB), _CPU_ROWS, over_rows,
        ),
        SuiteBenchmark(
            "rms_norm", "norms",
            lambda make, m, n: ({"x": make.normal(m, n), "weight": make.normal(n)}, {"out": make.poison(m, n)}),
            lambda k, a, **c: k.rms_norm(a["x"], a["weight"], a["out"], eps=EPS, **c),
            _rms_norm,
            by_n(NORM_N, GIB), _CPU_ROWS, over_rows,
        ),
        SuiteBenchmark(
            "layer_norm_backward", "norm_gradients", _layer_norm_backward_arrays,
            lambda k, a, **c: k.layer_norm_backward(
                *(a[name] for name in ("x", "weight", "dy", "mean", "rstd", "dx", "dweight", "dbias")), **c
            ),
            _layer_norm_backward,
            by_n(BACKWARD_N), ((4096, 1024),), over_rows, {"fp32": (1e-4, 5e-4), "fp16": (2e-3, 5e-3)},
        ),
        SuiteBenchmark(
            "rms_norm_backward", "norm_gradients", _rms_norm_backward_arrays,
            lambda k, a, **c: k.rms_norm_backward(
                *(a[name] for name in ("x", "weight", "dy", "rstd", "dx", "dweight")), **c
            ),
            _rms_norm_backward,
            by_n(BACKWARD_N), ((4096, 1024),), over_rows, {"fp32": (1e-4, 5e-4), "fp16": (2e-3, 5e-3)},
        ),
        SuiteBenchmark(
            "cross_entropy", "cross_entropy",
            lambda make, m, n: (
                {"x": make.normal(m, n), "classes": make.integers_below(n, m)},
                {"losses": make.poison(m, dtype="float32"), "logsumexp": make.poison(m, dtype="float32")},
            ),
            lambda k, a, **c: k.cross_entropy(*(a[name] for name in ("x", "classes", "losses", "logsumexp")), **c),
            _cross_entropy,
            both(*_LOGITS), ((1024, 8192), (256, 50257)), over_rows,
        ),
        SuiteBenchmark(
            "cross_entropy_backward", "cross_entropy", _cross_entropy_backward_arrays,
            lambda k, a, **c: k.cross_entropy_backward(
                *(a[name] for name in ("x", "classes", "dlosses", "logsumexp", "dx")), **c
            ),
            _cross_entropy_backward,
            both(*_LOGITS), ((1024, 8192), (256, 50257)), over_rows,
        ),
        SuiteBenchmark(
            "swiglu", "elementwise",
            lambda make, m, n: ({"gate": make.normal(m, n), "up": make.normal(m, n)}, {"out": make.poison(m, n)}),
            lambda k, a, **c: k.swiglu(a["gate"], a["up"], a["out"], **c),
            _swiglu,
            both(*_MLP), ((1024, 11008),), over_blocks,
        ),
        SuiteBenchmark(
            "rope", "elementwise", _rope_arrays,
            lambda k, a, **c: k.rope(*(a[name] for name in ("x", "cosines", "sines", "out")), **c),
            _rope,
            both((8192, 32, 128), (16384, 16, 64)), ((2048, 32, 128),), over_warps,
            {"fp32": (2e-5, 2e-5), "fp16": (4e-3, 8e-3)},  # torch multiplies and adds in fp16
        ),
        SuiteBenchmark(
            "dropout", "elementwise",
            lambda make, n: ({"x": make.normal(n)}, {"out": make.poison(n)}),
            lambda k, a, **c: k.dropout(a["x"], a["out"], P, SEED, **c),
            None,
            both(_ELEMENTS), _CPU_ELEMENTS, over_blocks, check=_dropped,
        ),
        SuiteBenchmark(
            "transpose", "transpose",
            lambda make, m, n: ({"x": make.normal(m, n)}, {"out": make.poison(n, m)}),
            lambda k, a, **c: k.transpose(a["x"], a["out"], **c),
            lambda xp, x: x.T,
            both((8192, 8192), (4095, 8191)), ((4096, 4096),), over_squares, {"fp32": (0.0, 0.0), "fp16": (0.0, 0.0)},
        ),
        *products.BENCHMARKS,
        *attention.BENCHMARKS,
        *decoding.BENCHMARKS,
        *kinds.BENCHMARKS,
        *row_kinds.BENCHMARKS,
    )
}  # fmt: skip
