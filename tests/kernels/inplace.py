"""Kernels that write arrays which they read: elements of other threads, in a later iteration, and in a loop's condition."""

from __future__ import annotations

import numpy as np

import blocknb
import blocknb.language as bl
from kernels.base import case, normal, wide


@blocknb.kernel
def sliding(x, iterations, BLOCK: bl.constexpr):
    for i in range(iterations):
        pointers = x + i + bl.arange(0, BLOCK)
        bl.store(pointers, bl.load(pointers) * 0.5 + i)


def _sliding_reference(a):
    x = wide(a["x"])
    for i in range(a["iterations"]):
        x[i : i + a["BLOCK"]] = x[i : i + a["BLOCK"]] * 0.5 + i
    return {"x": x}


case("sliding", sliding, lambda rng: {"x": normal(rng, 300), "iterations": 9, "BLOCK": 256}, _sliding_reference)


@blocknb.kernel
def overlapping_rows(x, ROWS: bl.constexpr, COLUMNS: bl.constexpr):
    pointers = x + bl.arange(0, ROWS)[:, None] + bl.arange(0, COLUMNS)[None, :]
    bl.store(pointers, bl.load(pointers) * 2)


case(
    "overlapping_rows",
    overlapping_rows,
    lambda rng: {"x": normal(rng, 95), "ROWS": 32, "COLUMNS": 64},
    lambda a: {"x": wide(a["x"]) * 2},
)


@blocknb.kernel
def limit_in_memory(limit, x, BLOCK: bl.constexpr):
    at = bl.arange(0, BLOCK)
    i = 0
    while i < bl.load(limit):
        bl.store(x + (BLOCK - 1 - at), bl.load(x + at) + i)
        i += 1
    bl.store(limit, -i)


def _limit_reference(a):
    x = wide(a["x"])
    for i in range(int(a["limit"][0])):
        x = x[::-1] + i
    return {"x": x, "limit": -a["limit"]}


case(
    "limit_in_memory",
    limit_in_memory,
    lambda rng: {"limit": np.array([5], np.int32), "x": normal(rng, 256), "BLOCK": 256},
    _limit_reference,
)


@blocknb.kernel
def repeated_places(x, BLOCK: bl.constexpr, PLACES: bl.constexpr):
    pointers = x + bl.arange(0, BLOCK) % PLACES
    bl.store(pointers, bl.load(pointers) + 1)


case(
    "repeated_places",
    repeated_places,
    lambda rng: {"x": normal(rng, 64), "BLOCK": 256, "PLACES": 64},
    lambda a: {"x": wide(a["x"]) + 1},
)
