"""Pointers as values: selected, carried, loaded from memory, moved back and forth."""

from __future__ import annotations

import numpy as np

import blocknb
import blocknb.language as bl
from kernels.base import case, normal, poison, wide


@blocknb.kernel
def chosen_pointers(x, y, out, bias, n, flip, BLOCK: bl.constexpr, HAS_BIAS: bl.constexpr):
    """Selects pointers by element, by a scalar and by an `if`; a missing array is None at compile time."""
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    p = bl.where(i % 3 == 0, x + i, y + i)
    v = bl.load(p, mask=i < n)
    base = x if HAS_BIAS else y
    if flip > 0:
        other = x + n - 1
        step = -1
    else:
        other = base
        step = 1
    v += bl.load(other + i * step, mask=i < n)
    if bias is not None:
        v += bl.load(bias + i, mask=i < n)
    q = bl.where(flip > 0, x, y)
    bl.store(out + i, v * bl.load(q + 1), mask=i < n)


def _chosen_reference(a):
    i = np.arange(a["n"])
    x, y = wide(a["x"]), wide(a["y"])
    flip = a["flip"] > 0
    return {"out": (np.where(i % 3 == 0, x, y) + (x[::-1] if flip else y)) * (x if flip else y)[1]}


for _flip in (0, 7):
    case(
        f"chosen_pointers_{_flip}", chosen_pointers,
        lambda rng, f=_flip: {"x": normal(rng, 200), "y": normal(rng, 200), "out": poison(200, np.float32), "bias": None,
                              "n": 200, "flip": f, "BLOCK": 64, "HAS_BIAS": False},
        _chosen_reference, grid=(4,),
    )  # fmt: skip


@blocknb.kernel
def walking_pointers(x, out, row, n, D: bl.constexpr, BLOCK: bl.constexpr):
    """Loops that carry pointers forwards, backwards, and in both directions."""
    x += bl.program_id(0) * row
    i = bl.arange(0, BLOCK)
    p = x + i
    acc = bl.zeros((BLOCK,), bl.float32)
    for _ in range(n // D):
        acc += bl.load(p)
        p += D
    q = p - i
    k = 0
    while k < n // D:
        q -= D
        acc = acc * 0.5 + bl.load(q + i)
        if k == 1:
            q += 0
        k += 1
    bl.store(out + bl.program_id(0) * BLOCK + i.to(bl.uint32), acc)


def _walking_reference(a):
    acc = np.zeros((3, 16))
    for k in range(4):
        acc += wide(a["x"])[:, k * 8 : k * 8 + 16]
    for k in range(3, -1, -1):
        acc = acc * 0.5 + wide(a["x"])[:, k * 8 : k * 8 + 16]
    return {"out": acc}


case(
    "walking_pointers", walking_pointers,
    lambda rng: {"x": normal(rng, (3, 40)), "out": poison((3, 16), np.float32), "row": 40, "n": 32, "D": 8, "BLOCK": 16},
    _walking_reference, grid=(3,),
)  # fmt: skip


@blocknb.kernel
def grouped_product(
    tables, sizes, groups, a0, b0, c0, a1, b1, c1, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr
):
    """Products of several sizes; programs share the tiles of all, and a table holds the addresses of the arrays."""
    tile, done = bl.program_id(0), 0
    for g in range(groups):
        m, n, k = bl.load(sizes + 3 * g), bl.load(sizes + 3 * g + 1), bl.load(sizes + 3 * g + 2)
        tiles_n = bl.cdiv(n, BN)
        count = bl.cdiv(m, BM) * tiles_n
        while tile >= done and tile < done + count:
            a = bl.load(tables + 3 * g).to(bl.pointer_type(bl.float16))
            b = bl.load(tables + 3 * g + 1).to(bl.pointer_type(bl.float16))
            c = bl.load(tables + 3 * g + 2).to(bl.pointer_type(bl.float32))
            at = tile - done
            rows = at // tiles_n * BM + bl.arange(0, BM)
            columns = at % tiles_n * BN + bl.arange(0, BN)
            inner = bl.arange(0, BK)
            pa = a + rows[:, None] * k + inner[None, :]
            pb = b + inner[:, None] * n + columns[None, :]
            acc = bl.zeros((BM, BN), bl.float32)
            for kk in range(0, k, BK):
                ma = (rows[:, None] < m) & (inner[None, :] < k - kk)
                mb = (inner[:, None] < k - kk) & (columns[None, :] < n)
                acc = bl.dot(bl.load(pa, mask=ma), bl.load(pb, mask=mb), acc)
                pa += BK
                pb += BK * n
            inside = (rows[:, None] < m) & (columns[None, :] < n)
            bl.store(c + rows[:, None] * n + columns[None, :], acc, mask=inside)
            tile += bl.num_programs(0)
        done += count


SIZES = np.array([[40, 32, 24], [17, 50, 33]], np.int32)


def _grouped_arguments(rng):
    made = {"tables": np.zeros(6, np.int64), "sizes": SIZES.copy(), "groups": 2}
    for g, (m, n, k) in enumerate(SIZES):
        made |= {f"a{g}": normal(rng, (m, k), np.float16), f"b{g}": normal(rng, (k, n), np.float16)}
        made[f"c{g}"] = poison((m, n), np.float32)
    return made | {"BM": 16, "BN": 16, "BK": 16}


case(
    "grouped_product", grouped_product, _grouped_arguments,
    lambda a: {f"c{g}": wide(a[f"a{g}"]) @ wide(a[f"b{g}"]) for g in range(2)},
    grid=(3,), rtol=1e-3, atol=1e-3, addresses={"tables": ("a0", "b0", "c0", "a1", "b1", "c1")},
)  # fmt: skip


@blocknb.kernel
def table_of_pointers(table, out, last, x, y, z, w, n, BLOCK: bl.constexpr):
    """Loads one element of each of several arrays through a tile of loaded pointers, and stores to each."""
    t = bl.arange(0, 4)
    bases = bl.load(table + t).to(bl.pointer_type(bl.float32))
    i = bl.arange(0, BLOCK)
    v = bl.load(bases[:, None] + i[None, :], mask=(i < n)[None, :])
    bl.store(out + i, bl.sum(v, 0), mask=i < n)
    bl.store(bases + n, t.to(bl.float32))
    bl.atomic_add(bases + n, bl.full((4,), 1.0, bl.float32))
    address = bl.load(table + 3)
    bl.store(last, (address.to(bl.pointer_type(bl.float32)) + 2).to(bl.int64) - address)


case(
    "table_of_pointers", table_of_pointers,
    lambda rng: {"table": np.zeros(4, np.int64), "out": poison(30, np.float32), "last": poison(1, np.int64),
                 **{name: normal(rng, 31) for name in "xyzw"}, "n": 30, "BLOCK": 32},
    lambda a: {"out": sum(wide(a[name])[:30] for name in "xyzw"), "last": np.array([8]),
               **{name: np.append(wide(a[name])[:30], t + 1) for t, name in enumerate("xyzw")}},
    addresses={"table": ("x", "y", "z", "w")},
)  # fmt: skip
