"""The common parts of the exercises on vectors: cases, the grid, and the mistakes with the indices of a block."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocknb import cdiv
from blocknb.learn.exercise import Case, Mistake

Arrays = dict[str, Any]
SIZES = {
    "4096 elements": (4096, 1024),
    "10000 elements": (10_000, 1024),
    "130 elements": (130, 64),
    "5 elements": (5, 16),
}


def vector(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_normal(n).astype(np.float32)


def vectors(*inputs: str, **more: Any) -> tuple[Case, ...]:
    """Cases with the input vectors `inputs`, an output `out`, their length `n` and a `BLOCK`: a friendly, a ragged and a tiny one."""

    def case(n: int, block: int) -> Any:
        def make(rng: np.random.Generator) -> Arrays:
            return {
                **{name: vector(rng, n) for name in inputs},
                "out": np.empty(n, np.float32),
                **more,
                "n": n,
                "BLOCK": block,
            }

        return make

    return tuple(Case(name, case(*size)) for name, size in SIZES.items())


def one_axis(x: Any, BLOCK: int, **_: Any) -> tuple[int, ...]:
    """As many programs as there are blocks of `BLOCK` elements in `x`."""
    return (cdiv(x.size, BLOCK),)


#: Mistakes with the indices of a block. They apply to every solution that has the line `at = pid * BLOCK + tl.arange(0, BLOCK)`.
INDICES = "at = pid * BLOCK + tl.arange(0, BLOCK)"
WRONG_INDICES = (
    Mistake(
        "the program number is missing: every program works on the first block",
        patch=(INDICES, "at = tl.arange(0, BLOCK)"),
    ),
    Mistake(
        "`pid` is not multiplied by BLOCK: the blocks of neighbouring programs overlap",
        patch=(INDICES, "at = pid + tl.arange(0, BLOCK)"),
    ),
    Mistake("`pid` is multiplied by n instead of BLOCK", patch=(INDICES, "at = pid * n + tl.arange(0, BLOCK)")),
    Mistake(
        "the indices count bytes: `x + at` already counts elements, so do not multiply by 4",
        patch=(INDICES, "at = 4 * (pid * BLOCK + tl.arange(0, BLOCK))"),
    ),
    Mistake("the blocks start one element too late", patch=(INDICES, "at = pid * BLOCK + tl.arange(0, BLOCK) + 1")),
)
#: Other ways to write the same indices and the same mask.
RIGHT_INDICES = (
    (INDICES, "at = tl.arange(0, BLOCK) + BLOCK * pid"),
    (INDICES, "start = pid * BLOCK\n    at = start + tl.arange(0, BLOCK)"),
    (INDICES, "at = tl.arange(0, BLOCK)\n    at += pid * BLOCK"),
)
