"""Cases, the reference and the rule that the exercises on attention share (unit 11).

Each kind of numbers reveals a typical mistake. Low scores reveal a masked key that counts as 0. Large scores reveal an exponential that
overflows. Rising scores reveal a sum or a result that is not rescaled when the maximum grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from blocknb.learn.exercise import Case, CheckFinding, Rule
from blocknb.learn.running import Attempt

#: Queries and keys of a kind, from the generator and the numbers of queries, keys and columns.
KINDS: dict[str, Callable[[np.random.Generator, int, int, int], tuple[np.ndarray, np.ndarray]]] = {
    "normal": lambda rng, m, n, d: (2 * rng.standard_normal((m, d)), rng.standard_normal((n, d))),
    "low": lambda rng, m, n, d: (-2 - 2 * rng.random((m, d)), 2 + 2 * rng.random((n, d))),
    "large": lambda rng, m, n, d: (4 + 4 * rng.random((m, d)), 4 + 4 * rng.random((n, d))),
    "rising": lambda rng, m, n, d: (1 + rng.random((m, d)), _ramp(n) + 0.3 * rng.standard_normal((n, d))),
    "falling": lambda rng, m, n, d: (
        4 + 2 * rng.random((m, d)),
        3 * _ramp(n)[::-1] + 0.3 * rng.standard_normal((n, d)),
    ),
}


def _ramp(n: int) -> np.ndarray:
    """A column that grows from -1 to 1, so that the scores of 16 columns grow by about 12."""
    return np.linspace(-1, 1, n)[:, None]


def attention_case(kind: str, m: int, n: int | None = None, d: int = 16, **constants: Any) -> Case:
    """A case such as "low, 40 queries, 50 keys". The arrays are `q` (m, d), `k` and `v` (n, d), and `out` (m, d), all fp16 and row-major.
    The other arguments are the numbers M and N of queries and keys, `scale`, and the constants. Without `n` there are as many keys as
    queries, and no argument M."""
    keys = m if n is None else n

    def make(rng: np.random.Generator) -> dict[str, Any]:
        q, k = KINDS[kind](rng, m, keys, d)
        v = rng.standard_normal((keys, d)) + np.arange(d) % 3
        arrays = {name: value.astype(np.float16) for name, value in (("q", q), ("k", k), ("v", v))}
        sizes = {"N": keys} if n is None else {"M": m, "N": n}
        return {**arrays, "out": np.empty((m, d), np.float16), **sizes, "scale": d**-0.5, **constants, "D": d}

    return Case(f"{kind}, {m} queries, {keys} keys", make)


def attention64(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> dict[str, Any]:
    """Attention of each query over all keys in float64."""
    return {"out": _weighted(q.astype(np.float64) @ k.T.astype(np.float64) * scale, v)}


def causal64(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> dict[str, Any]:
    """Attention of query i over the keys 0 to i in float64."""
    scores = q.astype(np.float64) @ k.T.astype(np.float64) * scale
    return {"out": _weighted(np.where(np.tri(*scores.shape) > 0, scores, -np.inf), v)}


def _weighted(scores: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The means of the rows of `v`, weighted with the softmax of each row of scores."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    weighted: np.ndarray = powers / powers.sum(axis=1, keepdims=True) @ v.astype(np.float64)
    return weighted


def block_grid(q: np.ndarray, BM: int) -> tuple[int, ...]:
    """One program per BM queries."""
    return (-(-len(q) // BM),)


def _skips(made: Attempt) -> Iterator[CheckFinding]:
    seen = made.whole_footprint
    bm, bn, programs = made.given["BM"], made.given["BN"], seen.log.launch.programs
    loads = seen[made.parameter("k")].loads.accesses
    visited = sum(
        len(np.unique(np.stack([access.runs.programs, access.runs.iterations]), axis=1).T) for access in loads
    )
    idle = int((seen.log.executed - seen.log.active).sum())
    needed = sum(-(-(program + 1) * bm // bn) for program in range(programs))
    if visited > needed:
        text = f"the programs load {visited} blocks of keys, and {needed} of them hold a key that counts: end the loop earlier"
        yield CheckFinding(text, "rule", True)
    elif visited + idle / 2 > needed:  # a step loads keys and values
        text = f"{idle} loads have a mask that turns all lanes off: end the loop, and do not only mask its loads"
        yield CheckFinding(text, "rule", True)


skips_blocks = Rule("skips_blocks", "The programs load only blocks of keys that hold a key that counts.", _skips)
