"""gemm-1 and gemm-2: one program computes one tile of a matrix product, at once and in steps along K."""

from __future__ import annotations

from typing import Any

import numpy as np

from blocknb.learn.exercise import Blank, Case, Exercise, Mistake, Tolerance
from blocknb.learn.rules import no_race, stored_once
from blocknb.learn.units.matrix_cases import operands, patched, product, wide_range


def _whole(m: int, n: int, k: int) -> Case:
    def make(rng: np.random.Generator) -> dict[str, Any]:
        return {**operands(rng, m, n, k), "M": m, "N": n, "K": k}

    return Case(f"{m}x{n}, K={k}", make)


def _wide_whole(m: int, n: int, k: int) -> Case:
    return Case(
        f"large and small numbers, {m}x{n}, K={k}",
        lambda rng: {**wide_range(rng, m, n, k), "M": m, "N": n, "K": k},
    )


ONE_TILE = """\
@blocknb.kernel
def matmul(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + n[None, :])
    total = tl.dot(x, y)
    tl.store(c + m[:, None] * N + n[None, :], total)
"""

GEMM_1 = Exercise(
    "gemm-1",
    "Multiply two matrices that are one tile each",
    task="""\
`a` has `M` rows and `K` columns, `b` has `K` rows and `N` columns, all float32 and row-major. Store `a @ b` in `c`, with `M` rows and `N`
columns.

One program does all the work. `M`, `N` and `K` are constants and powers of two, so each matrix is one tile, and no mask is needed.
`tl.dot(x, y)` multiplies a tile of `M x K` with a tile of `K x N`.""",
    cases=(_whole(32, 32, 32), _whole(16, 64, 32), _whole(64, 16, 128), _whole(4, 8, 2), _wide_whole(16, 32, 16)),
    outputs=("c",),
    grid=lambda: (1,),
    reference=product,
    rules=(stored_once, no_race),
    solution=ONE_TILE,
    blanks=(
        Blank(4, 4, "the tile of a: M x K"),
        Blank(5, 5, "the tile of b: K x N"),
        Blank(6, 6, "their product: M x N"),
        Blank(7, 7, "store the product in c"),
    ),
    hints=(
        "How many elements does memory hold between `a[0, 0]` and `a[1, 0]`? And between `b[0, 0]` and `b[1, 0]`?",
        "A row of `a` has K elements, and a row of `b` and of `c` has N. The tile of `a` has the rows `m` and the columns `k`.",
        "`x = tl.load(a + m[:, None] * K + k[None, :])`. The lines of `b` and `c` have the same form, with `N`.",
    ),
    mistakes=(
        Mistake("a row of `a` has K elements: its row stride is K, not M", patch=("m[:, None] * K", "m[:, None] * M")),
        Mistake("a row of `a` has K elements: its row stride is K, not N", patch=("m[:, None] * K", "m[:, None] * N")),
        Mistake("a row of `b` has N elements: its row stride is N, not K", patch=("k[:, None] * N", "k[:, None] * K")),
        Mistake(
            "a row of `c` has N elements: its row stride is N, not K",
            patch=("c + m[:, None] * N", "c + m[:, None] * K"),
        ),
        Mistake(
            "a row of `c` has N elements: its row stride is N, not M",
            patch=("c + m[:, None] * N", "c + m[:, None] * M"),
        ),
        Mistake(
            "a row of `b` and a row of `c` have N elements: their row stride is N, not K",
            patches=(("k[:, None] * N", "k[:, None] * K"), ("c + m[:, None] * N", "c + m[:, None] * K")),
        ),
        Mistake(
            "the tile of `a` is transposed: rows of the tile are rows of `a`, m[:, None]",
            patch=("a + m[:, None] * K + k[None, :]", "a + m[None, :] * K + k[:, None]"),
        ),
        Mistake(
            "the addresses of `b` exchange rows and columns: k[:, None] * N + n[None, :]",
            patch=("k[:, None] * N + n[None, :]", "k[:, None] + n[None, :] * K"),
        ),
        Mistake(
            "the addresses of `a` exchange rows and columns: m[:, None] * K + k[None, :]",
            patch=("m[:, None] * K + k[None, :]", "m[:, None] + k[None, :] * M"),
        ),
        Mistake(
            "the store exchanges rows and columns: m[:, None] * N + n[None, :]",
            patch=("c + m[:, None] * N + n[None, :]", "c + m[:, None] + n[None, :] * M"),
        ),
        Mistake(
            "`*` multiplies elements of equal place: a matrix product needs tl.dot",
            patch=("tl.dot(x, y)", "tl.load(a + m[:, None] * K) * tl.load(b + n[None, :])"),
        ),
        *(
            Mistake(
                "the tiles are rounded to 16 bits: multiply the float32 tiles as they are",
                patch=("tl.dot(x, y)", f"tl.dot(x.to({dtype}), y.to({dtype}))"),
            )
            for dtype in ("tl.float16", "tl.bfloat16")
        ),
        Mistake(
            "the tiles are rounded to 16 bits: multiply the float32 tiles as they are",
            patches=(
                ("k[None, :])\n", "k[None, :]).to(tl.float16)\n"),
                ("N + n[None, :])\n    total", "N + n[None, :]).to(tl.float16)\n    total"),
            ),
        ),
        Mistake("the factors are exchanged: tl.dot(x, y) is x @ y", patch=("tl.dot(x, y)", "tl.dot(y, x)")),
        Mistake("the kernel multiplies `a` by itself: load `y` from `b`", patch=("tl.load(b", "tl.load(a")),
        Mistake(
            "the kernel stores nothing: end with tl.store",
            patch=("    tl.store(c + m[:, None] * N + n[None, :], total)\n", ""),
        ),
        Mistake("the addresses lack the row stride: m[:, None] * K", patch=("m[:, None] * K", "m[:, None]")),
        Mistake(
            "the store lacks the row stride: m[:, None] * N",
            patch=("c + m[:, None] * N", "c + m[:, None]"),
        ),
        Mistake(
            "the kernel stores a tile of `a`, not the product",
            source="""\
@blocknb.kernel
def matmul(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :])
    tl.store(c + m[:, None] * N + n[None, :], tl.sum(x, axis=1)[:, None] + tl.zeros((M, N), tl.float32))
""",
        ),
    ),
    alternatives=(
        patched(ONE_TILE, ("total = tl.dot(x, y)", "total = tl.dot(x, y, tl.zeros((M, N), tl.float32))")),
        patched(
            ONE_TILE,
            ("b + k[:, None] * N + n[None, :]", "b + n[:, None] + k[None, :] * N"),
            ("tl.dot(x, y)", "tl.dot(x, y.T)"),
        ),
        """\
@blocknb.kernel
def matmul(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    x = tl.load(a + tl.arange(0, M * K)).reshape(M, K)
    y = tl.load(b + tl.arange(0, K * N)).reshape(K, N)
    tl.store(c + tl.arange(0, M * N), tl.dot(x, y).reshape(M * N))
""",
        """\
@blocknb.kernel
def kernel(left, right, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr):
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(INNER):
        total += tl.load(left + row * INNER + k) * tl.load(right + k * COLUMNS + column)
    tl.store(out + row * COLUMNS + column, total)
""",
        """\
@blocknb.kernel
def matmul(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    x_at = tl.make_block_ptr(a, (M, K), (K, 1), (0, 0), (M, K), (1, 0))
    y_at = tl.make_block_ptr(b, (K, N), (N, 1), (0, 0), (K, N), (1, 0))
    z_at = tl.make_block_ptr(c, (M, N), (N, 1), (0, 0), (M, N), (1, 0))
    tl.store(z_at, tl.dot(tl.load(x_at), tl.load(y_at)))
""",
        """\
@blocknb.kernel
def matmul(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(c + m[None, :] * N + n[:, None], tl.trans(tl.dot(x, y)))
""",
    ),
    tolerance=Tolerance(),
)

LOOP = """\
@blocknb.kernel
def matmul(a, b, c, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], mask=k[None, :] < K, other=0.0)
        y = tl.load(b + k[:, None] * N + n[None, :], mask=k[:, None] < K, other=0.0)
        total = tl.dot(x, y, total)
    tl.store(c + m[:, None] * N + n[None, :], total)
"""


def _loop(m: int, n: int, k: int, bk: int) -> Case:
    def make(rng: np.random.Generator) -> dict[str, Any]:
        return {**operands(rng, m, n, k), "K": k, "M": m, "N": n, "BK": bk}

    return Case(f"{m}x{n}, K={k}", make)


def _wide_loop(m: int, n: int, k: int, bk: int) -> Case:
    return Case(
        f"large and small numbers, {m}x{n}, K={k}",
        lambda rng: {**wide_range(rng, m, n, k), "K": k, "M": m, "N": n, "BK": bk},
    )


GEMM_2 = Exercise(
    "gemm-2",
    "Walk along K in steps",
    task="""\
The product is still one tile of `M x N`, computed by one program. Now `K` is any number, so the tiles of `a` and `b` do not fit at once.

Walk along K in steps of `BK`. Each step loads `M x BK` elements of `a` and `BK x N` elements of `b`, and adds their product to `total`.
`tl.dot(x, y, total)` returns `total + x @ y`. `K` need not be a multiple of `BK`: lanes past the end must count as 0.""",
    cases=(
        _loop(32, 32, 64, 16),
        _loop(16, 64, 77, 32),
        _loop(64, 16, 130, 32),
        _loop(4, 8, 3, 4),
        _wide_loop(16, 32, 20, 16),
    ),
    outputs=("c",),
    grid=lambda: (1,),
    reference=product,
    rules=(stored_once, no_race),
    solution=LOOP,
    blanks=(
        Blank(6, 6, "the columns of a, and rows of b, of this step"),
        Blank(7, 7, "M x BK elements of a"),
        Blank(8, 8, "BK x N elements of b"),
        Blank(9, 9, "add this step's product"),
    ),
    hints=(
        "Which columns of `a` does the second step need, if BK is 16? What must change from step to step?",
        "`k` begins at `start`. The masks compare `k` with `K`, on both loads. The result of tl.dot must go back into `total`.",
        "`k = start + tl.arange(0, BK)`, `mask=k[None, :] < K` for `a`, `mask=k[:, None] < K` for `b`, `total = tl.dot(x, y, total)`",
    ),
    mistakes=(
        Mistake("only the last step counts: pass `total` to tl.dot", patch=("tl.dot(x, y, total)", "tl.dot(x, y)")),
        *(
            Mistake(
                "the tiles are rounded to 16 bits: multiply the float32 tiles as they are",
                patch=("total = tl.dot(x, y, total)", new),
            )
            for new in (
                "total = total + tl.dot(x.to(tl.float16), y.to(tl.float16))",
                "total = tl.dot(x.to(tl.float16), y.to(tl.float16), total)",
                "total = tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16), total)",
            )
        ),
        Mistake("every step loads the first tile again: k needs `start`", patch=("k = start + tl", "k = tl")),
        Mistake(
            "`b` does not advance: its rows are start + arange(BK)",
            patch=("b + k[:, None] * N", "b + tl.arange(0, BK)[:, None] * N"),
        ),
        Mistake(
            "`a` does not advance: its columns are start + arange(BK)",
            patch=("K + k[None, :], mask", "K + tl.arange(0, BK)[None, :], mask"),
        ),
        Mistake(
            "the load of `a` has no mask: the last step reads past its rows",
            patch=(", mask=k[None, :] < K, other=0.0", ""),
        ),
        Mistake(
            "the load of `b` has no mask: the last step reads past its end",
            patch=(", mask=k[:, None] < K, other=0.0", ""),
        ),
        Mistake(
            "the loads have no mask: the last step reads past the ends",
            patches=((", mask=k[None, :] < K, other=0.0", ""), (", mask=k[:, None] < K, other=0.0", "")),
        ),
        Mistake("masked lanes count as 1, not 0: other=0.0", patch=("other=0.0", "other=1.0")),
        Mistake("the loop takes steps of 1: range(0, K, BK)", patch=("range(0, K, BK)", "range(0, K)")),
        Mistake(
            "the loop leaves out the rest of K: range(0, K, BK)",
            patch=("range(0, K, BK)", "range(0, K // BK * BK, BK)"),
        ),
        Mistake(
            "`start` counts steps, not elements: multiply it by BK, or step by BK",
            patch=("range(0, K, BK)", "range(0, tl.cdiv(K, BK))"),
        ),
        Mistake("the loop begins at the second step: range(0, K, BK)", patch=("range(0, K, BK)", "range(BK, K, BK)")),
        Mistake(
            "the mask lets element K pass: k < K",
            patches=(("k[None, :] < K", "k[None, :] <= K"), ("k[:, None] < K", "k[:, None] <= K")),
        ),
        Mistake("the mask turns the last element off: k < K", patches=(("k[None, :] < K", "k[None, :] < K - 1"),)),
        Mistake(
            "`total` starts again in every step: set it to zero before the loop",
            patches=(
                ("    total = tl.zeros((M, N), tl.float32)\n    for", "    for"),
                ("        k = start", "        total = tl.zeros((M, N), tl.float32)\n        k = start"),
                (
                    "    tl.store(c + m[:, None] * N + n[None, :], total)",
                    "        tl.store(c + m[:, None] * N + n[None, :], total)",
                ),
            ),
        ),
        Mistake(
            "a row of `a` has K elements: its row stride is K, not BK", patch=("m[:, None] * K", "m[:, None] * BK")
        ),
        Mistake(
            "a row of `b` has N elements: its row stride is N, not BK", patch=("k[:, None] * N", "k[:, None] * BK")
        ),
        Mistake(
            "the old sum counts twice: `total = tl.dot(x, y, total)` adds it already",
            patch=("total = tl.dot", "total += tl.dot"),
        ),
        Mistake(
            "the masks are exchanged with the axes of the tiles",
            patches=(("mask=k[None, :] < K", "mask=m[:, None] < K"),),
        ),
    ),
    alternatives=(
        patched(LOOP, ("total = tl.dot(x, y, total)", "total += tl.dot(x, y)")),
        patched(LOOP, (", other=0.0", "")),
        """\
@blocknb.kernel
def matmul(a, b, c, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, BK)
    x_at, y_at = a + m * K + k[None, :], b + k[:, None] * N + n
    total = tl.zeros((M, N), tl.float32)
    for left in range(K, 0, -BK):
        total = tl.dot(tl.load(x_at, mask=k[None, :] < left, other=0.0), tl.load(y_at, mask=k[:, None] < left, other=0.0), total)
        x_at += BK
        y_at += BK * N
    tl.store(c + m * N + n, total)
""",
        """\
@blocknb.kernel
def matmul(a, b, c, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for step in range(tl.cdiv(K, BK)):
        k = step * BK + tl.arange(0, BK)
        inside = k < K
        x = tl.load(a + m[:, None] * K + k[None, :], mask=inside[None, :], other=0.0)
        y = tl.load(b + k[:, None] * N + n[None, :], mask=inside[:, None], other=0.0)
        total = tl.dot(x, y, total)
    tl.store(c + m[:, None] * N + n[None, :], total)
""",
        """\
@blocknb.kernel
def matmul(a, b, c, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    start = 0
    while start < K:
        k = tl.minimum(start + tl.arange(0, BK), K - 1)
        x = tl.load(a + m[:, None] * K + k[None, :])
        y = tl.load(b + k[:, None] * N + n[None, :])
        total = tl.dot(tl.where((start + tl.arange(0, BK) < K)[None, :], x, 0.0), y, total)
        start += BK
    tl.store(c + m[:, None] * N + n[None, :], total)
""",
        """\
@blocknb.kernel
def matmul(a, b, c, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    x_at = tl.make_block_ptr(a, (M, K), (K, 1), (0, 0), (M, BK), (1, 0))
    y_at = tl.make_block_ptr(b, (K, N), (N, 1), (0, 0), (BK, N), (1, 0))
    total = tl.zeros((M, N), tl.float32)
    for _ in range(0, K, BK):
        total = tl.dot(tl.load(x_at, boundary_check=(0, 1)), tl.load(y_at, boundary_check=(0, 1)), total)
        x_at = tl.advance(x_at, (0, BK))
        y_at = tl.advance(y_at, (BK, 0))
    m, n = tl.arange(0, M), tl.arange(0, N)
    tl.store(c + m[:, None] * N + n[None, :], total)
""",
    ),
    tolerance=Tolerance(),
)
