"""Warp specialization of random products in loops of every kind gives NumPy's results, in any order of warps."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernels.base import Case, poison
from support import UNPLACED

import blocknb
import blocknb.language as bl
from blocknb.ir.core import Func

ORDERS = ("nn", "nt", "tn", "tt")


@blocknb.kernel
def block(x, step, rows, columns, m, n, TRANS: bl.constexpr):
    """A block of an (m, n) matrix, with zeros outside. With TRANS, memory holds the transposed matrix."""
    at = x + (columns[None, :] * step + rows[:, None] if TRANS else rows[:, None] * step + columns[None, :])
    return bl.load(at, mask=(rows[:, None] < m) & (columns[None, :] < n), other=0.0)


@blocknb.kernel
def put(x, step, rows, columns, m, n, total):
    """Stores a block of an (m, n) matrix."""
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    bl.store(x + rows[:, None] * step + columns[None, :], total.to(x.dtype.element_ty), mask=inside)


@blocknb.kernel
def plain(
    a,
    b,
    c,
    m,
    n,
    k,
    la,
    lb,
    lc,
    TA: bl.constexpr,
    TB: bl.constexpr,
    BM: bl.constexpr,
    BN: bl.constexpr,
    BK: bl.constexpr,
):
    rows, columns = bl.program_id(0) * BM + bl.arange(0, BM), bl.program_id(1) * BN + bl.arange(0, BN)
    total = bl.zeros((BM, BN), bl.int32 if a.dtype.element_ty == bl.int8 else bl.float32)
    for start in range(0, k, BK):
        inner = start + bl.arange(0, BK)
        x = block(a, la, rows, inner, m, k, TA)
        y = block(b, lb, inner, columns, k, n, TB)
        total = bl.dot(x, y, total)
    put(c, lc, rows, columns, m, n, total)


@blocknb.kernel
def nested(
    a,
    b,
    c,
    m,
    n,
    k,
    la,
    lb,
    lc,
    TA: bl.constexpr,
    TB: bl.constexpr,
    BM: bl.constexpr,
    BN: bl.constexpr,
    BK: bl.constexpr,
):
    """All columns of some rows in one program; every second time, the last inner loop is skipped."""
    rows = bl.program_id(0) * BM + bl.arange(0, BM)
    for column in range(0, n, BN):
        columns = column + bl.arange(0, BN)
        total = bl.zeros((BM, BN), bl.float32)
        if column // BN % 3 != 1:
            for start in range(0, k, BK):
                inner = start + bl.arange(0, BK)
                x = block(a, la, rows, inner, m, k, TA)
                y = block(b, lb, inner, columns, k, n, TB)
                total = bl.dot(x, y, total) * 0.5
        put(c, lc, rows, columns, m, n, total)


@blocknb.kernel
def twice(
    a,
    b,
    c,
    m,
    n,
    k,
    la,
    lb,
    lc,
    TA: bl.constexpr,
    TB: bl.constexpr,
    BM: bl.constexpr,
    BN: bl.constexpr,
    BK: bl.constexpr,
):
    """Two loops one after the other, the second over half of K; one tile is loaded once and used in both."""
    rows, columns = bl.program_id(0) * BM + bl.arange(0, BM), bl.program_id(1) * BN + bl.arange(0, BN)
    total = bl.zeros((BM, BN), bl.int32 if a.dtype.element_ty == bl.int8 else bl.float32)
    first = bl.arange(0, BK)
    once = block(b, lb, first, columns, k, n, TB)
    for start in range(0, k, BK):
        inner = start + bl.arange(0, BK)
        x = block(a, la, rows, inner, m, k, TA)
        total = bl.dot(x, once, total)
    for start in range(0, k // 2, BK):
        inner = start + bl.arange(0, BK)
        x = block(a, la, rows, inner, m, k, TA)
        y = block(b, lb, inner, columns, k, n, TB)
        total = bl.dot(x, y, total)
    put(c, lc, rows, columns, m, n, total)


def of_plain(a: np.ndarray, b: np.ndarray, x: dict[str, Any]) -> np.ndarray:
    return a @ b


def of_nested(a: np.ndarray, b: np.ndarray, x: dict[str, Any]) -> np.ndarray:
    total = np.zeros((x["m"], x["n"]))
    for start in range(0, x["k"], x["BK"]):
        part = slice(start, start + x["BK"])
        total = (total + a[:, part] @ b[part]) * 0.5
    left_out = np.arange(x["n"]) // x["BN"] % 3 == 1
    return np.where(left_out, 0.0, total)


def of_twice(a: np.ndarray, b: np.ndarray, x: dict[str, Any]) -> np.ndarray:
    size, k = x["BK"], x["k"]
    total = np.zeros((x["m"], x["n"]))
    for start in range(0, k, size):
        part = a[:, start : start + size]
        total += part @ b[:size][: part.shape[1]]
    half = min(k, -(-(k // 2) // size) * size)
    return total + a[:, :half] @ b[:half]


KERNELS = ((plain, of_plain), (nested, of_nested), (twice, of_twice))


def drawn(seed: int) -> tuple[Case, dict[str, Any]]:
    """A kernel, extents, tiles and options of a launch."""
    rng = random.Random(seed)
    kernel, reference = rng.choice(KERNELS)
    order, warps = rng.choice(ORDERS), rng.choice((4, 4, 8))
    dtype = np.dtype(rng.choice((np.float16, np.float16, ml_dtypes.bfloat16, np.float32, np.int8)))
    if kernel is nested and dtype == np.int8:
        dtype = np.dtype(np.float16)
    tile = rng.choice((64, 128)), rng.choice((16, 32, 64, 128)), rng.choice((16, 32, 64))
    m, n, k = (rng.choice((extent, 1, rng.randint(1, 2 * extent), 2 * extent)) for extent in tile)
    k = rng.choice((k, 0, rng.randint(1, 7) * tile[2], rng.randint(1, 5 * tile[2])))

    more = rng.choice((0, 3, -n % 4))

    def make(_: np.random.Generator) -> dict[str, Any]:
        values = np.random.default_rng(seed)
        found: dict[str, Any] = {}
        for name, step, (rows, columns) in zip("ab", ("la", "lb"), ((m, k), (k, n)), strict=True):
            shape = (rows, columns) if order["ab".index(name)] == "n" else (columns, rows)
            whole = values.integers(-4, 5, (max(1, shape[0]), -(-max(1, shape[1]) // 16) * 16)).astype(dtype)
            found |= {name: whole, step: whole.shape[1]}
        found |= {"c": poison((m, n + more), np.int32 if dtype == np.int8 else np.float32), "m": m, "n": n, "k": k}
        found |= {"lc": found["c"].shape[1], "TA": order[0] == "t", "TB": order[1] == "t"}
        return found | dict(zip(("BM", "BN", "BK"), tile, strict=True))

    def expected(x: dict[str, Any]) -> dict[str, np.ndarray]:
        a, b = (
            x[i].astype(np.float64).T if way == "t" else x[i].astype(np.float64)
            for i, way in zip("ab", order, strict=True)
        )
        a, b = a[:m, :k], b[:k, :n]
        c = x["c"].astype(np.float64)
        c[:, :n] = reference(a, b, x)
        return {"c": c}

    grid = (-(-m // tile[0]), 1 if kernel is nested else -(-n // tile[1]))
    options = {"num_warps": warps, "num_stages": rng.choice((None, 1, 2, 3, 4))}
    without = ("persistent_grid",) if rng.random() < 0.3 else ()
    case = Case(
        f"{kernel.__name__} {dtype} {order} {m}x{n}x{k} by {tile} {options} {without}",
        kernel,
        make,
        expected,
        grid,
        rtol=1e-5,
        atol=1e-3,
    )
    return case, {"without": without, **{name: x for name, x in options.items() if x is not None}}


def check(seed: int) -> Func:
    case, options = drawn(seed)
    arguments = case.make(np.random.default_rng(seed))
    func, stages = case.lower(arguments, "sm_90a", **options)
    for stage in stages:
        if stage.after is stage.before and stage.name != "barriers":
            continue
        if any(op.name == "roles" for op in stage.after.ops()):
            case.interpret(stage.after, arguments, implicit_barriers=stage.name in UNPLACED, seed=seed)
    return func


#: 355: an operand of one element per thread. 3, 20, 24: one stage, and products that could stay in flight in the next iteration.
@pytest.mark.parametrize("seeds", [(3, 7), (5, 355), (6, 12), (20, 24)], ids=str)
def test_random_warp_specialized_kernels_give_numpys_results(seeds: tuple[int, ...]) -> None:
    for seed in seeds:
        check(seed)


def test_most_random_kernels_are_warp_specialized() -> None:
    found = []
    for seed in range(12):
        case, options = drawn(seed)
        func, _ = case.lower(case.make(np.random.default_rng(seed)), "sm_90a", **options)
        found.append(any(op.name == "roles" for op in func.ops()))
    assert sum(found) > 6


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, 400, 10))
def test_many_random_warp_specialized_kernels(first: int) -> None:
    for seed in range(first, first + 10):
        check(seed)
