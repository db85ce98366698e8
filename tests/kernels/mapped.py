"""User functions with control flow on each element: map_elementwise, and combine functions that branch and loop."""

from __future__ import annotations

import numpy as np

import blocknb
import blocknb.language as bl
from kernels.base import case, integers, normal, poison, wide


@blocknb.kernel
def selu(v, alpha):
    if v > 0:
        return v
    return alpha * (bl.exp(v) - 1)


@blocknb.kernel
def steps_to_one(n):
    steps = 0
    while n > 1 and steps < 200:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps, n == 1


@blocknb.kernel
def own_sum(values, count, least):
    """Loads in a loop of data-dependent length, and in a branch."""
    total = 0.0
    for i in range(count):
        total += bl.load(values + i)
    if total < least:
        total = bl.load(values + count) * 2
    return total


@blocknb.kernel
def swap_up(a0, a1, b0, b1):
    low, high = (a0, a1) if a0 < a1 else (a1, a0)
    return low, high, b0 + b1, b0 - b1


@blocknb.kernel
def mapped(x, counts, y, steps, sums, pairs, alpha, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    v = bl.load(x + i)
    bl.store(y + i, bl.map_elementwise(selu, v, alpha))
    number, ended = bl.map_elementwise(steps_to_one, i + 1)
    bl.store(steps + i, bl.where(ended, number, -1))
    bl.store(sums + i, bl.map_elementwise(own_sum, x, bl.load(counts + i), 0.5))
    square = bl.reshape(v, (4, BLOCK // 4))
    a, b = bl.map_elementwise(swap_up, square, square * 2, pack=2)
    place = bl.reshape(i, (4, BLOCK // 4))
    bl.store(pairs + place, a)
    bl.store(pairs + BLOCK + place, b)


def _collatz(n):
    steps = 0
    while n > 1:
        n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
    return steps


def _mapped_reference(a):
    x, counts = wide(a["x"]), a["counts"]
    sums = np.array([x[:c].sum() for c in counts])
    v = x[:64].reshape(32, 2)
    return {
        "y": np.where(x[:64] > 0, x[:64], a["alpha"] * (np.exp(x[:64]) - 1)),
        "steps": np.array([_collatz(n) for n in range(1, 65)]),
        "sums": np.where(sums < 0.5, x[counts] * 2, sums),
        "pairs": np.concatenate(
            [np.sort(v, 1).ravel(), (2 * np.stack([v[:, 0] + v[:, 1], v[:, 0] - v[:, 1]], 1)).ravel()]
        ),
    }


case(
    "mapped",
    mapped,
    lambda rng: {
        "x": normal(rng, 80),
        "counts": integers(rng, 64, np.int32, 0, 70),
        "y": poison(64, np.float32),
        "steps": poison(64, np.int32),
        "sums": poison(64, np.float32),
        "pairs": poison(128, np.float32),
        "alpha": 1.75,
        "BLOCK": 64,
    },
    _mapped_reference,
    rtol=2e-5,
    atol=2e-5,
)


@blocknb.kernel
def divisor(a, b):
    while b != 0:
        a, b = b, a % b
    return a


@blocknb.kernel
def is_better(a, b):
    if a != a:
        return False
    return (a > b) if b == b else True


@blocknb.kernel
def later_larger(value_a, index_a, value_b, index_b):
    """The larger value, or the later of equal ones; NaN is below everything."""
    if value_a == value_b:
        later = index_a > index_b
    else:
        later = is_better(value_a, value_b)
    if later:
        return value_a, index_a
    else:
        return value_b, index_b


@blocknb.kernel
def combining(x, n, best, at, running, common, chain, ROWS: bl.constexpr, COLUMNS: bl.constexpr):
    row, column = bl.arange(0, ROWS), bl.arange(0, COLUMNS)
    place = row[:, None] * COLUMNS + column[None, :]
    v, numbers = bl.load(x + place), bl.load(n + place)
    index = bl.broadcast_to(column[None, :], (ROWS, COLUMNS))
    value, where = bl.reduce((v, index), 1, later_larger)
    bl.store(best + row, value)
    bl.store(at + row, where)
    scanned, _ = bl.associative_scan((v, index), 1, later_larger)
    bl.store(running + place, scanned)
    bl.store(common + column, bl.reduce(numbers, 0, divisor))
    bl.store(chain + place, bl.associative_scan(numbers, 1, divisor, reverse=True))


def _combining_reference(a):
    x, n = wide(a["x"]), a["n"]
    filled = np.where(np.isnan(x), -np.inf, x)
    return {
        "best": filled.max(1),
        "at": x.shape[1] - 1 - filled[:, ::-1].argmax(1),
        "running": np.maximum.accumulate(filled, 1),
        "common": np.gcd.reduce(n, 0),
        "chain": np.gcd.accumulate(n[:, ::-1], 1)[:, ::-1],
    }


def _with_nans(rng):
    x = np.round(normal(rng, (8, 64)) * 2).astype(np.float32)
    x[:, 1:][rng.random((8, 63)) < 0.2] = np.nan
    return x


case(
    "combining",
    combining,
    lambda rng: {
        "x": _with_nans(rng),
        "n": 12 * integers(rng, (8, 64), np.int32, 1, 40),
        "best": poison(8, np.float32),
        "at": poison(8, np.int32),
        "running": poison((8, 64), np.float32),
        "common": poison(64, np.int32),
        "chain": poison((8, 64), np.int32),
        "ROWS": 8,
        "COLUMNS": 64,
    },
    _combining_reference,
)
