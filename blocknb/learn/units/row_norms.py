"""The exercise layernorm-1 of unit 6: mean, variance, weights and bias in one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocknb.learn.code_rules import assembles
from blocknb.learn.exercise import Blank, Case, Exercise, Mistake, Tolerance
from blocknb.learn.rules import bytes_at_most, no_race, stored_once
from blocknb.learn.units.row_cases import row_grid, rows_case

__all__ = ["layernorm_1"]

LAYERNORM = """@blocknb.kernel
def layernorm(x, weight, bias, out, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row + at, mask=inside, other=0.0)
    mean = tl.sum(values, axis=0) / columns
    away = tl.where(inside, values - mean, 0.0)
    variance = tl.sum(away * away, axis=0) / columns
    normed = away / tl.sqrt(variance + eps)
    w = tl.load(weight + at, mask=inside)
    b = tl.load(bias + at, mask=inside)
    tl.store(out + row + at, normed * w + b, mask=inside)
"""

_AWAY = "tl.where(inside, values - mean, 0.0)"
_NORMED = "away / tl.sqrt(variance + eps)"
_VARIANCE = "tl.sum(away * away, axis=0) / columns"


def _reference(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float, **_: Any) -> dict[str, Any]:
    x, weight, bias = (array.astype(np.float64) for array in (x, weight, bias))
    away = x - x.mean(axis=1, keepdims=True)
    return {"out": away / np.sqrt(x.var(axis=1, keepdims=True) + eps) * weight + bias}


def _case(name: str, rows: int, columns: int, values: str, eps: float) -> Case:
    given = rows_case(name, rows, columns, values, out="element").make

    def make(rng: np.random.Generator) -> dict[str, Any]:
        arguments = given(rng)
        weight = (1 + 0.5 * rng.standard_normal(columns)).astype(np.float32)
        bias = rng.standard_normal(columns).astype(np.float32)
        return {
            "x": arguments["x"],
            "weight": weight,
            "bias": bias,
            "out": arguments["out"],
            "columns": columns,
            "eps": eps,
            "BLOCK": arguments["BLOCK"],
        }

    return Case(name, make)


layernorm_1 = Exercise(
    name="layernorm-1",
    title="Write a layer norm in one kernel",
    task="""`x` is a matrix of fp32 numbers with `columns` columns. Its rows follow each other in memory.
`weight` and `bias` hold one fp32 number per column, and `eps` is a small number.
Program `i` computes row `i`. `BLOCK` is the smallest power of two that is not below `columns`.

Store `(x - mean) / sqrt(variance + eps) * weight + bias` in `out` (fp32, in the shape of `x`).
The mean and the variance are those of the row, and the variance is that of `np.var`. Load each element of `x` once.
In the cell, `row` is the index of the row's first element.""",
    cases=(
        _case("8x128", 8, 128, "normal", 1e-5),
        _case("50x100", 50, 100, "shifted", 0.5),
        _case("6x300 near 1000", 6, 300, "offset", 1e-3),
        _case("3x70 of equal numbers", 3, 70, "constant", 1e-2),
        _case("9x5", 9, 5, "negative", 1e-2),
    ),
    outputs=("out",),
    grid=row_grid,
    reference=_reference,
    rules=(stored_once, no_race, bytes_at_most(1, "x"), assembles),
    tolerance=Tolerance(additions=300, scale=40.0),
    solution=LAYERNORM,
    blanks=(Blank(6, 13, "load, mean, variance, weight and bias, store"),),
    hints=(
        "This is var-1 with four more lines. What do the masked lanes hold after you subtract the mean?",
        "Keep `away = tl.where(inside, values - mean, 0.0)`. The variance needs it, and the result needs it again.",
        "`away / tl.sqrt(variance + eps) * w + b`, where `w = tl.load(weight + at, mask=inside)` and `b` is loaded like it.",
    ),
    mistakes=(
        Mistake("masked lanes count in the variance: they hold 0 - mean", patch=(_AWAY, "values - mean")),
        Mistake(
            "masked lanes count in the mean: divide its sum by `columns`",
            patch=("tl.sum(values, axis=0) / columns", "tl.sum(values, axis=0) / BLOCK"),
        ),
        Mistake(
            "masked lanes count in the variance: divide by `columns`",
            patch=(_VARIANCE, "tl.sum(away * away, axis=0) / BLOCK"),
        ),
        Mistake(
            "it divides by columns - 1, which is the sample variance",
            patch=(_VARIANCE, "tl.sum(away * away, axis=0) / (columns - 1)"),
        ),
        Mistake("`eps` is missing: a row of equal numbers divides 0 by 0", patch=("variance + eps", "variance")),
        Mistake(
            "`eps` belongs inside of the square root", patch=("tl.sqrt(variance + eps)", "(tl.sqrt(variance) + eps)")
        ),
        Mistake(
            "the square root is missing: it divides by the variance",
            patch=("tl.sqrt(variance + eps)", "(variance + eps)"),
        ),
        Mistake("it multiplies by the square root: divide", patch=("away / tl", "away * tl")),
        Mistake("the mean is not subtracted from the result", patch=(_NORMED, "values / tl.sqrt(variance + eps)")),
        Mistake("the bias is added before the weight: multiply first", patch=("normed * w + b", "(normed + b) * w")),
        Mistake(
            "the weight is added to the bias: multiply by the weight, then add the bias",
            patch=("normed * w + b", "normed * (w + b)"),
        ),
        Mistake("the bias is missing", patch=("normed * w + b", "normed * w")),
        Mistake("the weight is missing", patch=("normed * w + b", "normed + b")),
        Mistake("weight and bias are exchanged", patch=("normed * w + b", "normed * b + w")),
        Mistake(
            "the whole row has one weight: load `weight + at`",
            patch=("tl.load(weight + at, mask=inside)", "tl.load(weight + tl.program_id(0) % columns)"),
        ),
        Mistake("`weight` has one row: its address has no `row`", patch=("weight + at", "weight + row + at")),
        Mistake(
            "the programs load `x` 2 times in lines 6 and 8: once is enough",
            patch=(_AWAY, "tl.where(inside, tl.load(x + row + at, mask=inside) - mean, 0.0)"),
        ),
        Mistake(
            "the store has no mask: it overwrites the next row", patch=("normed * w + b, mask=inside", "normed * w + b")
        ),
        Mistake(
            "the rows are `columns` elements apart, not `BLOCK`",
            patch=("tl.program_id(0) * columns", "tl.program_id(0) * BLOCK"),
        ),
        Mistake("it adds 1e-5, not the argument `eps`", patch=("variance + eps", "variance + 1e-5")),
    ),
    alternatives=(
        LAYERNORM.replace(_NORMED, "away * tl.rsqrt(variance + eps)"),
        LAYERNORM.replace(_AWAY, "(values - mean) * inside.to(tl.float32)"),
        LAYERNORM.replace(_AWAY, "values - mean").replace(
            "tl.sum(away * away", "tl.sum(tl.where(inside, away * away, 0.0)"
        ),
        LAYERNORM.replace("normed * w + b", "tl.fma(normed, w, b)"),
        LAYERNORM.replace(_NORMED, "1.0 / tl.sqrt(variance + eps)").replace(
            "normed * w + b", "away * (normed * w) + b"
        ),
        LAYERNORM.replace(_AWAY, "tl.where(inside, values, mean) - mean").replace(", axis=0", ""),
    ),
)
