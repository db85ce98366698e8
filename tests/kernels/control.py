"""Control flow, helper functions, scalars and grids."""

from __future__ import annotations

import numpy as np

import blocknb
import blocknb.language as bl
from kernels.base import case, normal, poison, wide


@blocknb.kernel
def gelu(v):
    inner = 0.7978845608 * (v + 0.044715 * v * v * v)
    return 0.5 * v * (1 + bl.tanh(inner)), inner


@blocknb.kernel
def helper_and_tuple(x, y, n, scale, BLOCK: bl.constexpr, POWER: bl.constexpr = 3):
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    v = bl.load(x + i, mask=i < n)
    value, inner = gelu(v)
    for k in bl.static_range(POWER):
        value = value * scale + k
    bl.store(y + i, value + inner, mask=i < n)


def _helper_reference(a):
    v = wide(a["x"])
    inner = 0.7978845608 * (v + 0.044715 * v**3)
    value = 0.5 * v * (1 + np.tanh(inner))
    for k in range(3):
        value = value * a["scale"] + k
    return {"y": value + inner}


case(
    "helper_and_tuple",
    helper_and_tuple,
    lambda rng: {"x": normal(rng, 333), "y": poison(333, np.float32), "n": 333, "scale": 0.75, "BLOCK": 128},
    _helper_reference,
    grid=(3,),
    rtol=2e-5,
    atol=2e-5,
)


@blocknb.kernel
def newton_root(x, y, steps, n, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    v = bl.load(x + i, mask=i < n, other=1.0)
    guess = v * 0.5 + 0.5
    count = 0
    while bl.max(bl.abs(guess * guess - v), axis=0) > 1e-3:
        guess = 0.5 * (guess + v / guess)
        count += 1
    bl.store(y + i, guess, mask=i < n)
    bl.store(steps, count)


def _newton_reference(a):
    v = np.ones(128, np.float32)
    v[:100] = a["x"]
    guess, count = v * np.float32(0.5) + np.float32(0.5), 0
    while np.max(np.abs(guess * guess - v)) > np.float32(1e-3):
        guess, count = np.float32(0.5) * (guess + v / guess), count + 1
    return {"y": np.sqrt(wide(a["x"])), "steps": np.array([count])}


case(
    "newton_root",
    newton_root,
    lambda rng: {
        "x": rng.uniform(0.5, 9, 100).astype(np.float32),
        "y": poison(100, np.float32),
        "steps": poison(1, np.int32),
        "n": 100,
        "BLOCK": 128,
    },
    _newton_reference,
    rtol=1e-3,
)


@blocknb.kernel
def branches(x, y, n, BLOCK: bl.constexpr):
    pid = bl.program_id(0)
    if pid == 3:
        return
    i = pid * BLOCK + bl.arange(0, BLOCK)
    v = bl.load(x + i, mask=i < n)
    if pid % 2 == 0:
        v = v * 2.0
    elif n > 100:
        v = v - 1.0
    else:
        v = -v
    bl.store(y + i, v if pid < 2 else v + 0.5, mask=i < n)


def _branches_reference(a):
    y = wide(a["y"])
    for pid in (0, 1, 2):
        part = slice(pid * 64, min((pid + 1) * 64, 250))
        v = wide(a["x"])[part]
        v = v * 2 if pid % 2 == 0 else v - 1
        y[part] = v if pid < 2 else v + 0.5
    return {"y": y}


case(
    "branches",
    branches,
    lambda rng: {"x": normal(rng, 250), "y": poison(250, np.float32), "n": 250, "BLOCK": 64},
    _branches_reference,
    grid=(4,),
)


@blocknb.kernel
def piece(v, pid, n, limit: bl.constexpr):
    """Returns a tile and a scalar from several places, each with code after it."""
    if pid > 0:
        if pid == 1:
            return v * 2.0, 1
        if pid > n:
            return -v, pid
        v = v + 1.0
    else:
        if n > limit:
            return bl.where(v > 0, v, 0.0), n
        v = v - 1.0
    if limit > 0:
        if bl.max(v, axis=0) > limit:
            return v / 2.0, 2
    if pid % 3 == 0:
        if n % 2 == 0:
            v = v * 3.0
        else:
            return v, 3
    else:
        if n % 3 == 0:
            return v + 5.0, 5
    scaled = v * 0.25
    if pid % 2 == 0:
        if bl.sum(scaled, axis=0) > 0:
            return scaled, 7
    return scaled + v, n + pid


@blocknb.kernel
def returns_in_inner_arms(x, y, z, sizes, rows, BLOCK: bl.constexpr, LIMIT: bl.constexpr):
    pid = bl.program_id(0)
    i = bl.arange(0, BLOCK)
    at = y + pid * BLOCK
    if pid >= rows:
        if pid == rows:
            return
        bl.store(at + i, i)
        if pid > rows + 1:
            if LIMIT > 0:
                return
        at = z + pid
    else:
        if pid == 3:
            bl.store(at + i, 3.0)
            if bl.load(sizes + pid) > 0:
                return
            at += 1
        n = bl.load(sizes + pid)
        v, m = piece(bl.load(x + pid * BLOCK + i), pid, n, LIMIT)
        bl.store(at + i, v, mask=i < BLOCK - 1)
        if m > 4:
            return
        at = z + pid
        if m == 3:
            at += rows + 3
    bl.store(at, pid)


def _piece_reference(v, pid, n, limit):
    if pid > 0:
        if pid == 1:
            return v * 2, 1
        if pid > n:
            return -v, pid
        v = v + 1
    else:
        if n > limit:
            return np.maximum(v, 0), n
        v = v - 1
    if v.max() > limit:
        return v / 2, 2
    if pid % 3 == 0:
        if n % 2:
            return v, 3
        v = v * 3
    elif n % 3 == 0:
        return v + 5, 5
    if pid % 2 == 0 and v.sum() > 0:
        return v * 0.25, 7
    return v * 1.25, n + pid


def _returns_reference(a):
    x, y, z = wide(a["x"]), wide(a["y"]), wide(a["z"])
    rows, block = a["rows"], a["BLOCK"]
    y[rows + 1 :] = np.arange(block)
    z[rows + 1] = rows + 1
    for pid in range(rows):
        at = pid * block
        if pid == 3:
            y[pid] = 3
            if a["sizes"][pid] > 0:
                continue
            at += 1
        v, m = _piece_reference(x[pid], pid, a["sizes"][pid], a["LIMIT"])
        y.reshape(-1)[at : at + block - 1] = v[:-1]
        if m <= 4:
            z[pid + (rows + 3 if m == 3 else 0)] = pid
    return {"y": y, "z": z}


for _i, _sizes in enumerate(((4, 0, 9, -3, 10, 6, 7, 9), (0, 1, 1, 2, 8, 5, 12, 3))):
    case(
        f"returns_in_inner_arms{_i or ''}",
        returns_in_inner_arms,
        lambda rng, sizes=_sizes: {
            "x": rng.uniform(-1, np.arange(8)[:, None] % 4 + 0.1, (8, 32)).astype(np.float32),
            "y": poison((11, 32), np.float32),
            "z": poison(22, np.float32),
            "sizes": np.array(sizes, np.int32),
            "rows": 8,
            "BLOCK": 32,
            "LIMIT": 3,
        },
        _returns_reference,
        grid=(11,),
    )


@blocknb.kernel
def scalars(x, total, last, n):
    acc = 0.0
    for i in range(n - 1, -1, -1):
        acc = acc * 0.5 + bl.load(x + i)
    bl.store(total, acc)
    k = 0
    while k * k < n and bl.load(x + k) > -10.0:
        k += 1
    bl.store(last, k)


def _scalars_reference(a):
    acc = 0.0
    for v in wide(a["x"])[::-1]:
        acc = acc * 0.5 + v
    return {"total": np.array([acc]), "last": np.array([8])}


case(
    "scalars",
    scalars,
    lambda rng: {"x": normal(rng, 57), "total": poison(1, np.float32), "last": poison(1, np.int64), "n": 57},
    _scalars_reference,
)


@blocknb.kernel
def grid_of_three(out, sx, sy):
    x, y, z = bl.program_id(0), bl.program_id(1), bl.program_id(2)
    bl.store(out + z * sx * sy + y * sx + x, x + 10 * y + 100 * z + 1000 * bl.num_programs(2))


case(
    "grid_of_three", grid_of_three, lambda rng: {"out": poison((4, 3, 2), np.int32), "sx": 2, "sy": 3},
    lambda a: {"out": np.fromfunction(lambda z, y, x: x + 10 * y + 100 * z + 4000, (4, 3, 2))}, grid=(2, 3, 4),
)  # fmt: skip


@blocknb.kernel
def scramble(out, seed, n, BLOCK: bl.constexpr):
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    h = i.to(bl.uint32) * 2654435761 + seed
    for _ in range(3):
        h = h ^ (h >> 16)
        h = h * 2246822519
    bl.store(out + i, (h >> 8).to(bl.float32) * (1.0 / 16777216.0), mask=i < n)


def _scramble_reference(a):
    h = np.arange(200, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(a["seed"])
    for _ in range(3):
        h = h ^ (h >> np.uint32(16))
        h = h * np.uint32(2246822519)
    return {"out": wide(h >> np.uint32(8)) / 16777216}


case(
    "scramble",
    scramble,
    lambda rng: {"out": poison(200, np.float32), "seed": 12345, "n": 200, "BLOCK": 128},
    _scramble_reference,
    grid=(2,),
)


@blocknb.kernel
def promises(x, y, first, n, BLOCK: bl.constexpr):
    """Hints on values that keep none: an index, a loop-carried value, and a pointer in a branch."""
    bl.assume((first >= 0) & (n <= 1000) & (n > 0))
    i = bl.arange(0, BLOCK)
    total = bl.zeros((BLOCK,), bl.float32)
    for start in range(first, n, BLOCK):
        start = bl.multiple_of(start, 16)
        total += bl.load(x + start + i, mask=start + i < n)
    at, end = first + 16, x
    while at < n:
        at = bl.multiple_of(at, 16)
        if at > 100:
            end = bl.multiple_of(x + 64, 16)
            total += bl.load(bl.max_contiguous(bl.multiple_of(end + i, 16), BLOCK))
        at = at * 2
    bl.store(y + i, total + bl.load(end + i))


def _promises_reference(a):
    x, n = wide(a["x"]), a["n"]
    total, at, end = np.zeros(64), a["first"] + 16, 0
    for start in range(a["first"], n, 64):
        row = np.zeros(64)
        row[: max(0, min(64, n - start))] = x[start : min(start + 64, n)]
        total += row
    while at < n:
        if at > 100:
            end, total = 64, total + x[64:128]
        at *= 2
    return {"y": total + x[end : end + 64]}


case(
    "promises",
    promises,
    lambda rng: {"x": normal(rng, 500), "y": poison(64, np.float32), "first": 48, "n": 410, "BLOCK": 64},
    _promises_reference,
    rtol=2e-5,
    atol=2e-5,
)
