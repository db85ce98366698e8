"""Loops for register prefetch: rows shared among programs, strips of a matrix, sums over columns, in widths from 8 to 32 bits."""

from __future__ import annotations

import numpy as np

import blocknb
import blocknb.language as bl
from kernels.base import case, integers, normal, poison, wide


@blocknb.kernel
def norm_gradient(x, weight, dy, rstd, dx, sums, stride, m, n, ROWS: bl.constexpr, BLOCK: bl.constexpr):
    """Programs share the rows, and keep the sums over them in registers."""
    columns = bl.arange(0, BLOCK)
    dweight = bl.zeros((BLOCK,), bl.float32)
    factor = bl.load(weight + columns, mask=columns < n, other=0.0).to(bl.float32)
    for first in range(bl.program_id(0) * ROWS, m, bl.num_programs(0) * ROWS):
        rows = first + bl.arange(0, ROWS)
        inside = (rows < m)[:, None] & (columns < n)[None, :]
        places = rows[:, None].to(bl.int64) * stride + columns[None, :]
        scale = bl.load(rstd + rows, mask=rows < m, other=0.0)[:, None]
        z = bl.load(x + places, mask=inside, other=0.0).to(bl.float32) * scale
        given = bl.load(dy + places, mask=inside, other=0.0).to(bl.float32)
        g = given * factor[None, :]
        bl.store(dx + places, (g - z * (bl.sum(g * z, axis=1) / n)[:, None]) * scale, mask=inside)
        dweight += bl.sum(given * z, axis=0)
    bl.store(sums + bl.program_id(0) * n + columns, dweight, mask=columns < n)


def _norm_reference(a):
    n, m = a["n"], a["m"]
    dx, sums = wide(a["dx"]), wide(a["sums"])
    z = wide(a["x"])[:m, :n] * wide(a["rstd"])[:m, None]
    given = wide(a["dy"])[:m, :n]
    g = given * wide(a["weight"])[:n]
    dx[:m, :n] = (g - z * (g * z).mean(1, keepdims=True)) * wide(a["rstd"])[:m, None]
    rows, programs = np.arange(m) // a["ROWS"], len(sums)
    for program in range(programs):
        sums[program] = (given * z)[rows % programs == program].sum(0)
    return {"dx": dx, "sums": sums}


def _norm_arguments(rng, m, n, dtype, rows, block):
    stride = n if n % 8 == 0 else n + 3
    shape = (m, stride)
    return {
        "x": normal(rng, shape, dtype), "weight": normal(rng, n, dtype), "dy": normal(rng, shape, dtype),
        "rstd": rng.uniform(0.5, 2, m).astype(np.float32), "dx": poison(shape, dtype), "sums": poison((3, n), np.float32),
        "stride": stride, "m": m, "n": n, "ROWS": rows, "BLOCK": block,
    }  # fmt: skip


for _name, _m, _n, _dtype, _rows, _block, _stages, _warps in (
    ("ahead_float16", 11, 512, np.float16, 1, 512, 2, 4),
    ("ahead_twice_float16", 20, 256, np.float16, 2, 256, 3, 4),
    ("ahead_ragged_float32", 7, 100, np.float32, 1, 128, 2, 2),
    ("ahead_few_rows", 2, 64, np.float32, 2, 64, 4, 1),
):
    case(
        _name, norm_gradient,
        lambda rng, m=_m, n=_n, dtype=_dtype, rows=_rows, block=_block: _norm_arguments(rng, m, n, dtype, rows, block),
        _norm_reference, grid=(3,), options={"num_stages": _stages, "num_warps": _warps},
        rtol=1e-5 if _dtype == np.float32 else 2e-3, atol=1e-5 if _dtype == np.float32 else 2e-3,
    )  # fmt: skip


@blocknb.kernel
def strips(x, marks, out, rows, columns, BLOCK: bl.constexpr, STAGES: bl.constexpr):
    """Loops from the last strip to the first with a moving pointer; bytes and flags are the masks."""
    i = bl.arange(0, 4)
    at = bl.arange(0, BLOCK)
    here = x + i[:, None] * columns + (columns - BLOCK) + at[None, :]
    total = bl.zeros((4, BLOCK), bl.int32)
    for start in bl.range(columns - BLOCK, -1, -BLOCK, num_stages=STAGES):
        marked = bl.load(marks + start + at)
        values = bl.load(here, mask=(i < rows)[:, None], other=1)
        total += bl.where(marked[None, :], values.to(bl.int32), -1)
        here -= BLOCK
    bl.store(out + i[:, None] * BLOCK + at[None, :], total)


def _strips_reference(a):
    x, block = a["x"].astype(np.int64).copy(), a["BLOCK"]
    x = np.concatenate([x, np.ones((4 - len(x), x.shape[1]), np.int64)])
    chosen = np.where(a["marks"][None, :], x, -1)
    return {"out": chosen.reshape(4, -1, block).sum(1)}


for _name, _count, _stages in (("ahead_strips", 5, 2), ("ahead_strips_twice", 4, 3), ("ahead_strip", 1, 3)):
    case(
        _name, strips,
        lambda rng, count=_count, stages=_stages: {
            "x": integers(rng, (3, count * 128), np.int8), "marks": rng.integers(0, 2, count * 128).astype(bool),
            "out": poison((4, 128), np.int32), "rows": 3, "columns": count * 128, "BLOCK": 128, "STAGES": stages,
        },
        _strips_reference, options={"num_warps": 2},
    )  # fmt: skip


@blocknb.kernel
def last_row(x, out, m, BLOCK: bl.constexpr):
    """The code after the loop also uses the words that were loaded last."""
    at = bl.arange(0, BLOCK)
    before = bl.load(x + at)
    total = bl.zeros((BLOCK,), bl.float32)
    for row in range(1, m):
        now = bl.load(x + row * BLOCK + at)
        total += (now - before).to(bl.float32) * row
        before = now
    bl.store(out + at, total)
    bl.store(out + BLOCK + at, before.to(bl.float32))


def _last_row_reference(a):
    x = wide(a["x"])
    steps = (x[1:].astype(np.float16) - x[:-1].astype(np.float16)).astype(np.float64)
    return {"out": np.stack([(steps * np.arange(1, len(x))[:, None]).sum(0), x[-1]])}


for _name, _rows, _options in (
    ("carried_row", 6, {}),
    ("ahead_carried_row", 6, {"num_stages": 2}),
    ("ahead_carried_row_twice", 5, {"num_stages": 3}),
):
    case(
        _name, last_row,
        lambda rng, rows=_rows: {
            "x": normal(rng, (rows, 512), np.float16), "out": poison((2, 512), np.float32), "m": rows, "BLOCK": 512,
        },
        _last_row_reference, options={"num_warps": 2, **_options}, rtol=1e-3, atol=1e-3,
    )  # fmt: skip
