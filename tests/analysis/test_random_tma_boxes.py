"""TMA boxes of random accesses: a tile with random start, base, strides and mask lies where its box puts it, if it has one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tma_box_helpers import after, boxes, check_same

import blocknb
import blocknb.language as bl
from blocknb.analysis.tma_boxes import TmaBox

ROWS = ("0", "pid", "pid + 16", "halves", "iterations", "index", "backwards", "m", "wrapped")
COLUMNS = ("0", "y", "iterations", "index", "y + 16", "carried")
BASES = ("x", "x + 64", "batch", "batch, fixed", "batch and head", "batch behind", "far")
MASKS = ("", "m", "n", "m and n", "inside", "left", "m - 1", "batch", "unsigned")


@blocknb.kernel
def tiles(
    x, out, m, n, s, t, low, high, ROW: bl.constexpr, COLUMN: bl.constexpr, BASE: bl.constexpr, MASK: bl.constexpr,
    STRIDE: bl.constexpr, STEP: bl.constexpr, FLIP: bl.constexpr,
):  # fmt: skip
    pid, y, z = bl.program_id(0), bl.program_id(1), bl.program_id(2)
    s = STRIDE if STRIDE else s
    down, along = bl.arange(0, 16), bl.arange(0, 16)
    carried = y * 16
    for i in range(low, high, STEP):
        iteration = (i - low) // STEP
        row = 0
        if ROW == "pid" or ROW == "wrapped":
            row = pid * 16
        elif ROW == "pid + 16":
            row = pid * 16 + 16
        elif ROW == "halves":
            row = pid // 2 * 16 + pid % 2
        elif ROW == "iterations":
            row = iteration * 16
        elif ROW == "index":
            row = i + pid
        elif ROW == "backwards":
            row = high - i
        elif ROW == "m":
            row = m
        column = 0
        if COLUMN == "y":
            column = y * 16
        elif COLUMN == "iterations":
            column = iteration * 16
        elif COLUMN == "index":
            column = i * 2 + 16 * y
        elif COLUMN == "y + 16":
            column = 16 * (y + 1)
        elif COLUMN == "carried":
            column = carried
        base = x
        if BASE == "x + 64":
            base = x + 64
        elif BASE == "batch":
            base = x + z * t
        elif BASE == "batch, fixed":
            base = x + z * 1024
        elif BASE == "batch and head":
            base = x + (z // 2) * (2 * t) + z % 2 * t
        elif BASE == "batch behind":
            base = x + t * (z + 1)
        elif BASE == "far":
            base = x + z.to(bl.int64) * s * 64
        rows, columns = row + down, column + along
        if ROW == "wrapped":
            rows = rows % m
        mask = None
        if MASK == "m":
            mask = rows[:, None] < m
        elif MASK == "n":
            mask = n > columns[None, :]
        elif MASK == "m and n":
            mask = (rows < m)[:, None] & (columns[None, :] < n)
        elif MASK == "inside":
            mask = (rows >= 0)[:, None] & (columns < n)[None, :] & ((rows < m)[:, None] & (0 <= columns)[None, :])
        elif MASK == "left":
            mask = (along < n - column)[None, :] & (down < m - row)[:, None]
        elif MASK == "m - 1":
            mask = (rows <= m - 1)[:, None]
        elif MASK == "batch":
            mask = ((rows < m)[:, None] & (columns < n)[None, :]) & (z < m // 16)
        elif MASK == "unsigned":
            mask = rows.to(bl.uint32)[:, None] < max(m, 0).to(bl.uint32)
        if FLIP:
            tile = base + rows[None, :] * s + columns[:, None]
            value = bl.load(tile, mask=mask if mask is None else mask.T)
        else:
            value = bl.load(base + rows[:, None] * s + columns[None, :], mask=mask)
        bl.store(out + down[:, None] * 16 + along[None, :], value)
        carried += 16


def draw(rng: np.random.Generator) -> dict[str, Any]:
    one = {name: str(rng.choice(choices)) for name, choices in zip(CHOICES, (ROWS, COLUMNS, BASES, MASKS), strict=True)}
    stride = int(rng.choice([0, 0, 64, 128]))
    low, step = int(rng.choice([0, 0, 3])), int(rng.choice([1, 2]))
    numbers = {
        "m": int(rng.integers(2, 50)),
        "n": int(rng.integers(2, 60)),
        "s": 96,
        "t": 4096,
        "low": low,
        "high": low + 4,
    }
    return one | numbers | {"STRIDE": stride, "STEP": step, "FLIP": bool(rng.integers(2))}


CHOICES = ("ROW", "COLUMN", "BASE", "MASK")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 40))])
def test_random_tiles_have_the_addresses_of_their_boxes(seed: int) -> None:
    rng, count = np.random.default_rng(seed), Counter()
    for _ in range(12):
        arguments = {"x": np.zeros(60000, np.float16), "out": np.zeros(256, np.float16)} | draw(rng)
        func = after(tiles, arguments)
        found = boxes(func)[0]
        count[isinstance(found, TmaBox)] += 1
        try:
            check_same(func, arguments, (3, 2, 3))
        except AssertionError as error:
            error.add_note(f"{ {n: v for n, v in arguments.items() if n not in ('x', 'out')} }: {found}")
            raise
    assert count[True] >= 4, "the choices are to give boxes often"
