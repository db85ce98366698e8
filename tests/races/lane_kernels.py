"""Kernels of which two lanes of one store have one address: with different values (an error) and with equal ones."""

from __future__ import annotations

import numpy as np

import blocknb
import blocknb.language as tl


@blocknb.kernel
def pairs(out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i // 2, i)


@blocknb.kernel
def rows_on_rows(out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i[:, None] * 0 + i[None, :], i[:, None] + i[None, :] * 0)


@blocknb.kernel
def indexed(index, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + tl.load(index + i), i.to(tl.float32))


@blocknb.kernel
def equal_values(out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i // 2, i // 2)


@blocknb.kernel
def masked_apart(out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i // 2, i, mask=i % 2 == 0)


@blocknb.kernel
def distinct_rows(out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i[:, None] * B + i[None, :], i[:, None] + i[None, :])


@blocknb.kernel
def nan_of_all(out, B: tl.constexpr):
    tl.store(out + tl.arange(0, B) * 0, tl.full((B,), float("nan"), tl.float32))


INTS = np.zeros(1024, np.int32)
#: By kernel: the arguments and the element.
COLLIDING = {
    pairs: ({"out": INTS, "B": 64}, 0),
    rows_on_rows: ({"out": INTS, "B": 16}, 0),
    indexed: ({"index": np.array([*range(31), 7], np.int32), "out": np.zeros(32, np.float32), "B": 32}, 7),
}
APART = {
    equal_values: {"out": INTS, "B": 64},
    masked_apart: {"out": INTS, "B": 64},
    distinct_rows: {"out": INTS, "B": 16},
    nan_of_all: {"out": np.zeros(4, np.float32), "B": 64},
}
