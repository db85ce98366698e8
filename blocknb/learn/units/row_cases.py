"""Matrices for the exercises of units 4 and 6, whose programs compute rows.

Each Case draws its values afresh from the generator that the checker passes. Each kind of values reveals a typical mistake. Negative rows
reveal a masked lane that counts as 0. Large rows reveal an exponential that overflows. Offset rows reveal a sum of squares that cancels.
Constant rows are integers, so that their mean is exact in any order of the additions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from blocknb import next_power_of_2
from blocknb.learn.exercise import Case

__all__ = ["VALUES", "row_grid", "rows_case"]


def _falling(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Rows that begin near 200 and end near -200, so that the first block holds the maximum."""
    return np.linspace(200, -200, shape[1]) + rng.standard_normal(shape)


VALUES: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "negative": lambda rng, shape: -1 - 5 * rng.random(shape),
    "low": lambda rng, shape: -300 + 5 * rng.standard_normal(shape),
    "deep": lambda rng, shape: -1e6 * (1 + rng.random(shape)),
    "large": lambda rng, shape: 60 * rng.standard_normal(shape) + 150,
    "wide": lambda rng, shape: 80 * rng.standard_normal(shape),
    "offset": lambda rng, shape: 1000 + rng.standard_normal(shape),
    "shifted": lambda rng, shape: 3 + rng.standard_normal(shape),
    "ties": lambda rng, shape: rng.integers(-9, -5, shape),
    "constant": lambda rng, shape: np.repeat(rng.integers(1, 9, (shape[0], 1)), shape[1], 1),
    "falling": _falling,
    "rising": lambda rng, shape: _falling(rng, shape)[:, ::-1],
    "rising slowly": lambda rng, shape: np.linspace(0, 3, shape[1]) + 0.1 * rng.standard_normal(shape),
}


def rows_case(
    name: str,
    rows: int,
    columns: int,
    values: str = "normal",
    *,
    out: str = "row",
    dtype: Any = np.float32,
    more: Callable[[np.random.Generator], dict[str, Any]] | None = None,
    **constants: Any,
) -> Case:
    """A matrix `x` (rows, columns) of fp32 with values of a kind of VALUES, and an array `out` of `dtype`. If `out` is "row", it has one
    element per row; if it is "element", it has the shape of `x`. `columns` is an argument, and `BLOCK` the power of two that holds a row
    unless `constants` set it. `more` adds arguments."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        x = np.ascontiguousarray(VALUES[values](rng, (rows, columns)), dtype=np.float32)
        shape = (rows,) if out == "row" else x.shape
        given = {"x": x, "out": np.empty(shape, dtype)}
        given |= more(rng) if more is not None else {}
        return given | {"columns": columns} | ({"BLOCK": next_power_of_2(columns)} | constants)

    return Case(name, make)


def row_grid(x: np.ndarray, **_: Any) -> tuple[int, ...]:
    """One program per row."""
    return (len(x),)
