"""Exercises of the tests: softmax and a matrix product, with small arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from blocknb.learn import Blank, Case, Exercise, Mistake, Tolerance, bytes_once, no_race, stored_once

Make = Callable[[np.random.Generator], dict[str, Any]]


def rows(m: int, n: int, block: int) -> Make:
    """Rows of negative numbers, so that a masked lane that counts as 0 is their maximum."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        x = (rng.standard_normal((m, n)) - 8).astype(np.float32)
        return {"x": x, "out": np.empty_like(x), "n": n, "BLOCK": block}

    return make


def softmax(x: np.ndarray) -> dict[str, np.ndarray]:
    wide = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return {"out": wide / wide.sum(axis=1, keepdims=True)}


SOFTMAX = Exercise(
    "softmax-0",
    "Compute the softmax of each row",
    task="`x` is a float32 matrix. Store the softmax of row `p` in row `p` of `out`, in program `p`.",
    cases=(Case("16x64", rows(16, 64, 64)), Case("10x50", rows(10, 50, 64)), Case("1x3", rows(1, 3, 16))),
    outputs=("out",),
    grid=lambda x: (len(x),),
    reference=softmax,
    rules=(stored_once, no_race, bytes_once),
    solution="""\
@blocknb.kernel
def softmax(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < n
    values = tl.load(x + row * n + lanes, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * n + lanes, powers / tl.sum(powers, axis=0), mask=inside)
""",
    blanks=(Blank(7, 8, "exponentials, their sum, and the store"),),
    hints=("What is the largest value?", "Subtract it before `tl.exp`.", "`tl.exp(values - tl.max(values, axis=0))`"),
    mistakes=(
        Mistake("masked lanes count as 0 in the maximum: other=-inf", patch=(', other=-float("inf")', "")),
        Mistake("the powers are not divided by their sum", patch=(" / tl.sum(powers, axis=0)", "")),
        Mistake("the sum is over the values, not the powers", patch=("tl.sum(powers", "tl.sum(values")),
        Mistake("every program works on row 0", patch=("row * n + ", "")),
    ),
    tolerance=1e-5,
)


def matrices(m: int, n: int, k: int, tile: int) -> Make:
    def make(rng: np.random.Generator) -> dict[str, Any]:
        a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
        sizes = {"M": m, "N": n, "K": k, "BM": tile, "BN": tile, "BK": tile}
        return {"a": a, "b": b, "c": np.empty((m, n), np.float32), **sizes}

    return make


GEMM = Exercise(
    "gemm-0",
    "Multiply two matrices",
    task="Store the product of the fp16 matrices `a` and `b` in the float32 matrix `c`.",
    cases=(Case("64x64x64", matrices(64, 64, 64, 32)), Case("40x33x70", matrices(40, 33, 70, 32))),
    outputs=("c",),
    grid=lambda M, N, BM, BN: (-(-M // BM), -(-N // BN)),
    reference=lambda a, b: {"c": a.astype(np.float64) @ b},
    rules=(stored_once, no_race),
    solution="""\
@blocknb.kernel
def gemm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        x = tl.load(a + i[:, None] * K + k[None, :], mask=(i[:, None] < M) & (k[None, :] < K), other=0.0)
        y = tl.load(b + k[:, None] * N + j[None, :], mask=(k[:, None] < K) & (j[None, :] < N), other=0.0)
        total += tl.dot(x, y)
    tl.store(c + i[:, None] * N + j[None, :], total, mask=(i[:, None] < M) & (j[None, :] < N))
""",
    blanks=(Blank(7, 10, "one trip along K"),),
    hints=("?", "?", "?"),
    mistakes=(
        Mistake("the last trip replaces the sum: total +=", patch=("total += tl.dot", "total = tl.dot")),
        Mistake("every trip loads the first tiles: add first", patch=("first + tl.arange", "tl.arange")),
        Mistake("a row of `b` has N elements, not K", patch=("k[:, None] * N", "k[:, None] * K")),
    ),
    tolerance=Tolerance(additions=70),
)  # fmt: skip
