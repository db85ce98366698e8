"""gemm-3 and gemm-4: a grid of tiles with ragged sizes, and an order of the tiles that saves memory traffic."""

from __future__ import annotations

from typing import Any

from blocknb.learn.exercise import Blank, Case, Exercise, Mistake, Tolerance
from blocknb.learn.rules import no_race, stored_once
from blocknb.learn.units.matrix_cases import patched, product, product_case, wide_range
from blocknb.learn.units.matrix_rules import tiles_fetched

GRID = """\
@blocknb.kernel
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        y = tl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        total = tl.dot(x, y, total)
    tl.store(c + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))
"""
X_MASK = "mask=(m[:, None] < M) & (k[None, :] < K)"
Y_MASK = "mask=(k[:, None] < K) & (n[None, :] < N)"
Z_MASK = "mask=(m[:, None] < M) & (n[None, :] < N)"
TILES: dict[str, Any] = {"BM": 32, "BN": 16, "BK": 16}

GEMM_3 = Exercise(
    "gemm-3",
    "Multiply matrices of any size",
    task="""\
`a` (`M x K`), `b` (`K x N`) and `c` (`M x N`) are float32, row-major, and of any size.

The grid has two axes: `cdiv(M, BM)` programs along axis 0 and `cdiv(N, BN)` along axis 1. Program `(i, j)` computes the tile of `c` with
the rows from `i * BM` on and the columns from `j * BN` on. It walks along K in steps of `BK`. No size need be a multiple of a tile.""",
    cases=(
        product_case(64, 32, 32, **TILES),
        product_case(40, 25, 21, **TILES),
        product_case(3, 5, 7, **TILES),
        product_case(20, 40, 17, BM=16, BN=32, BK=64),
        product_case(32, 16, 64, BM=16, BN=32, BK=32),
        Case(
            "large and small numbers, 20x17, K=20",
            lambda rng: {**wide_range(rng, 20, 17, 20), "M": 20, "N": 17, "K": 20, **TILES},
        ),
    ),
    outputs=("c",),
    grid=lambda M, N, BM, BN: (-(-M // BM), -(-N // BN)),
    reference=product,
    rules=(stored_once, no_race),
    solution=GRID,
    blanks=(
        Blank(3, 3, "the rows of this program's tile"),
        Blank(4, 4, "the columns of this program's tile"),
        Blank(5, 10, "the loop of gemm-2; now each load needs a mask for both of its axes", keep="total = ..."),
        Blank(11, 11, "store the tile, as far as it lies inside of c"),
    ),
    hints=(
        "Which rows and columns of `c` does program (1, 2) compute? Which of them exist if M = 70 and BM = 32?",
        "`m` comes from program_id(0) and BM, `n` from program_id(1) and BN. A mask of two axes is `(m[:, None] < M) & (k[None, :] < K)`.",
        "`m = tl.program_id(0) * BM + tl.arange(0, BM)`, the loop of gemm-2 with two-axis masks, and a store with "
        "`mask=(m[:, None] < M) & (n[None, :] < N)`",
    ),
    mistakes=(
        Mistake(
            "the sum is float16, so it loses digits and overflows: keep it in float32",
            patches=(
                ("tl.zeros((BM, BN), tl.float32)", "tl.zeros((BM, BN), tl.float16)"),
                ("total = tl.dot(x, y, total)", "total = (total + tl.dot(x, y)).to(tl.float16)"),
            ),
        ),
        Mistake("the load of `a` does not stop at row M: mask m < M, too", patch=(X_MASK, "mask=k[None, :] < K")),
        Mistake("the load of `a` does not stop at column K: mask k < K, too", patch=(X_MASK, "mask=m[:, None] < M")),
        Mistake("the load of `b` does not stop at row K: mask k < K, too", patch=(Y_MASK, "mask=n[None, :] < N")),
        Mistake("the load of `b` does not stop at column N: mask n < N, too", patch=(Y_MASK, "mask=k[:, None] < K")),
        Mistake("the load of `a` has no mask", patch=(f", {X_MASK}, other=0.0", "")),
        Mistake("the load of `b` has no mask", patch=(f", {Y_MASK}, other=0.0", "")),
        Mistake(
            "the store has no mask: the tiles at the edge store outside of `c`", patch=(f"total, {Z_MASK}", "total")
        ),
        Mistake(
            "the store does not stop at column N: it spills into the next row", patch=(Z_MASK, "mask=m[:, None] < M")
        ),
        Mistake("the store does not stop at row M", patch=(Z_MASK, "mask=n[None, :] < N")),
        Mistake(
            "the program ids are exchanged: axis 0 counts tiles of rows",
            patches=(
                ("program_id(0)", "program_id(2)"),
                ("program_id(1)", "program_id(0)"),
                ("program_id(2)", "program_id(1)"),
            ),
        ),
        Mistake(
            "every program computes the first columns: n needs program_id(1)", patch=("tl.program_id(1) * BN + ", "")
        ),
        Mistake("every program computes the first rows: m needs program_id(0)", patch=("tl.program_id(0) * BM + ", "")),
        Mistake("n uses program_id(0): columns come from axis 1", patch=("program_id(1)", "program_id(0)")),
        Mistake(
            "tiles overlap: the first row of a tile is program_id(0) * BM",
            patch=("program_id(0) * BM", "program_id(0)"),
        ),
        Mistake(
            "tiles overlap: the first column of a tile is program_id(1) * BN",
            patch=("program_id(1) * BN", "program_id(1)"),
        ),
        Mistake(
            "the columns use BM: the first column of a tile is program_id(1) * BN",
            patch=("program_id(1) * BN", "program_id(1) * BM"),
        ),
        Mistake(
            "a row of `a` has K elements: its row stride is K, not M",
            patch=("a + m[:, None] * K", "a + m[:, None] * M"),
        ),
        Mistake(
            "a row of `a` has K elements: its row stride is K, not BK",
            patch=("a + m[:, None] * K", "a + m[:, None] * BK"),
        ),
        Mistake(
            "a row of `b` has N elements: its row stride is N, not K",
            patch=("b + k[:, None] * N", "b + k[:, None] * K"),
        ),
        Mistake(
            "a row of `b` has N elements: its row stride is N, not BN",
            patch=("b + k[:, None] * N", "b + k[:, None] * BN"),
        ),
        Mistake(
            "a row of `c` has N elements: its row stride is N, not M",
            patch=("c + m[:, None] * N", "c + m[:, None] * M"),
        ),
        Mistake(
            "a row of `c` has N elements: its row stride is N, not K",
            patch=("c + m[:, None] * N", "c + m[:, None] * K"),
        ),
        Mistake("only the last step counts: pass `total` to tl.dot", patch=("tl.dot(x, y, total)", "tl.dot(x, y)")),
        Mistake("every step loads the first tile again: k needs `start`", patch=("k = start + tl", "k = tl")),
        Mistake("the loop takes steps of 1: range(0, K, BK)", patch=("range(0, K, BK)", "range(0, K)")),
        Mistake(
            "the steps overlap, so blocks of K count twice: range(0, K, BK)",
            patch=("range(0, K, BK)", "range(0, K, BK // 2)"),
        ),
        Mistake(
            "the old sum counts twice: `total = tl.dot(x, y, total)` adds it already",
            patch=("total = tl.dot", "total += tl.dot"),
        ),
        Mistake(
            "the loop leaves out the rest of K: range(0, K, BK)",
            patch=("range(0, K, BK)", "range(0, K // BK * BK, BK)"),
        ),
        Mistake("the masks use `|`: an element is inside if both axes are, `&`", patch=(" & ", " | ")),
        Mistake("the masks let one element too many pass: `<`, not `<=`", patches=(("] < ", "] <= "),)),
        Mistake("masked lanes count as 1, not 0: other=0.0", patch=("other=0.0", "other=1.0")),
        Mistake(
            "the kernel stores nothing: end with tl.store",
            patch=(f"    tl.store(c + m[:, None] * N + n[None, :], total, {Z_MASK})\n", ""),
        ),
        Mistake(
            "the store exchanges rows and columns: m[:, None] * N + n[None, :]",
            patch=("c + m[:, None] * N + n[None, :]", "c + n[None, :] * M + m[:, None]"),
        ),
    ),
    alternatives=(
        patched(GRID, (", other=0.0", "")),
        patched(GRID, ("total = tl.dot(x, y, total)", "total += tl.dot(x, y)")),
        """\
@blocknb.kernel
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = (tl.program_id(0) * BM + tl.arange(0, BM))[:, None]
    n = (tl.program_id(1) * BN + tl.arange(0, BN))[None, :]
    k = tl.arange(0, BK)
    x_at, y_at = a + m * K + k[None, :], b + k[:, None] * N + n
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        x = tl.load(x_at, mask=(m < M) & (k[None, :] < K - start), other=0.0)
        y = tl.load(y_at, mask=(k[:, None] < K - start) & (n < N), other=0.0)
        total = tl.dot(x, y, total)
        x_at += BK
        y_at += BK * N
    tl.store(c + m * N + n, total, mask=(m < M) & (n < N))
""",
        """\
@blocknb.kernel
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(tl.cdiv(K, BK)):
        k = step * BK + tl.arange(0, BK)
        x = tl.load(a + (m % M)[:, None] * K + k[None, :], mask=k[None, :] < K, other=0.0)
        y = tl.load(b + k[:, None] * N + (n % N)[None, :], mask=k[:, None] < K, other=0.0)
        total = tl.dot(x, y, total)
    tl.store(c + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))
""",
        """\
@blocknb.kernel
def inside(rows, columns, height, width):
    return (rows[:, None] < height) & (columns[None, :] < width)

@blocknb.kernel
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], mask=inside(m, k, M, K), other=0.0)
        y = tl.load(b + k[:, None] * N + n[None, :], mask=inside(k, n, K, N), other=0.0)
        total = tl.dot(x, y, total)
    tl.store(c + m[:, None] * N + n[None, :], total, mask=inside(m, n, M, N))
""",
        """\
@blocknb.kernel
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    x_at = tl.make_block_ptr(a, (M, K), (K, 1), (row, 0), (BM, BK), (1, 0))
    y_at = tl.make_block_ptr(b, (K, N), (N, 1), (0, column), (BK, BN), (1, 0))
    z_at = tl.make_block_ptr(c, (M, N), (N, 1), (row, column), (BM, BN), (1, 0))
    total = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        total = tl.dot(tl.load(x_at, boundary_check=(0, 1)), tl.load(y_at, boundary_check=(0, 1)), total)
        x_at = tl.advance(x_at, (0, BK))
        y_at = tl.advance(y_at, (BK, 0))
    tl.store(z_at, total, boundary_check=(0, 1))
""",
    ),
    tolerance=Tolerance(),
)

GROUPED = """\
@blocknb.kernel
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    pid = tl.program_id(0)
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = pid // (GROUP * across) * GROUP
    height = min(down - first, GROUP)
    inside = pid % (GROUP * across)
    row = first + inside % height
    column = inside // height
    m = row * BM + tl.arange(0, BM)
    n = column * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        y = tl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        total = tl.dot(x, y, total)
    tl.store(c + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))
"""
ORDER = """\
    first = pid // (GROUP * across) * GROUP
    height = min(down - first, GROUP)
    inside = pid % (GROUP * across)
    row = first + inside % height
    column = inside // height
"""

GEMM_4 = Exercise(
    "gemm-4",
    "Put the tiles in groups",
    task="""\
The product of gemm-3, with a grid of one axis: `cdiv(M, BM) * cdiv(N, BN)` programs. The kernel maps its program id to the `row` and the
`column` of a tile.

Number the tiles in groups of `GROUP` rows of tiles. Within a group, go down a column first, then to the next column. After the last
column the next group begins. The last group may have fewer rows.

The result must be right for every size. The check also counts the tiles that the first 132 programs load, for 96 x 96 tiles and `GROUP =
8`. It allows a third of those that they load in the order row by row.""",
    cases=(
        product_case(96, 80, 32, BM=16, BN=16, BK=32, GROUP=2),
        product_case(170, 75, 20, BM=16, BN=16, BK=16, GROUP=4),
        product_case(5, 3, 9, BM=16, BN=16, BK=16, GROUP=8),
        product_case(90, 130, 16, BM=32, BN=16, BK=16, GROUP=2),
    ),
    outputs=("c",),
    grid=lambda M, N, BM, BN: (-(-M // BM) * -(-N // BN),),
    reference=product,
    rules=(stored_once, no_race, tiles_fetched(1 / 3)),
    solution=GROUPED,
    blanks=(
        Blank(5, 5, "the first row of tiles of this program's group"),
        Blank(6, 6, "the rows of tiles that the group has; the last one may be shorter"),
        Blank(7, 7, "the number of this program within its group"),
        Blank(8, 8, "the row of its tile"),
        Blank(9, 9, "the column of its tile"),
    ),
    hints=(
        "Draw 3 x 4 tiles with GROUP = 2. Which numbers stand in the first column? Which programs make up the second group?",
        "A group has GROUP * across programs. Within it the number grows down a column of `height` tiles, then moves one column on.",
        "`first = pid // (GROUP * across) * GROUP`, `height = min(down - first, GROUP)`, `inside = pid % (GROUP * across)`, "
        "`row = first + inside % height`, `column = inside // height`",
    ),
    mistakes=(
        Mistake(
            "the last group has fewer rows: height = min(down - first, GROUP)",
            patch=("height = min(down - first, GROUP)", "height = GROUP"),
        ),
        Mistake(
            "row and column are exchanged within the group: the row changes first",
            patches=(
                ("row = first + inside % height", "row = first + inside // height"),
                ("column = inside // height", "column = inside % height"),
            ),
        ),
        Mistake(
            "tiles are in order row by row: within a group, go down a column first",
            patches=(
                ("row = first + inside % height", "row = first + inside // across"),
                ("column = inside // height", "column = inside % across"),
            ),
        ),
        Mistake(
            "tiles are in order row by row: within a group, go down a column first",
            patch=(ORDER, "    row, column = pid // across, pid % across\n"),
        ),
        Mistake(
            "tiles are in order column by column: a group has GROUP rows of tiles",
            patch=(ORDER, "    row, column = pid % down, pid // down\n"),
        ),
        Mistake(
            "the row lacks the first row of its group: first + inside % height",
            patch=("row = first + inside", "row = inside"),
        ),
        Mistake(
            "a group has GROUP * across programs, not GROUP * down",
            patch=("(GROUP * across)", "(GROUP * down)"),
        ),
        Mistake(
            "parentheses are missing: pid // (GROUP * across)",
            patch=("pid // (GROUP * across) * GROUP", "pid // GROUP * across * GROUP"),
        ),
        Mistake(
            "the group's number is not its first row: multiply it by GROUP",
            patch=("pid // (GROUP * across) * GROUP", "pid // (GROUP * across)"),
        ),
        *(  # with another spelling of the height, which is as common
            Mistake(says, patches=(("min(down - first, GROUP)", "tl.minimum(GROUP, down - first)"), *patches))
            for says, *patches in (
                (
                    "the row lacks the first row of its group: first + inside % height",
                    ("row = first + inside", "row = inside"),
                ),
                ("a group has GROUP * across programs, not GROUP * down", ("(GROUP * across)", "(GROUP * down)")),
                (
                    "the group's number is not its first row: multiply it by GROUP",
                    ("pid // (GROUP * across) * GROUP", "pid // (GROUP * across)"),
                ),
                (
                    "a group has GROUP * across programs: its number within the group is pid % (GROUP * across)",
                    ("inside = pid % (GROUP * across)", "inside = pid % GROUP"),
                ),
                (
                    "the groups hold columns of tiles: `first` belongs to the row, and the row changes first",
                    ("row = first + inside % height", "row = inside // height"),
                    ("column = inside // height", "column = first + inside % height"),
                ),
            )
        ),
        Mistake(
            "the number of the program within its group is missing: pid % (GROUP * across)",
            patch=("inside = pid % (GROUP * across)", "inside = pid"),
        ),
        Mistake(
            "down and across are exchanged: rows of tiles come from M",
            patch=("tl.cdiv(M, BM), tl.cdiv(N, BN)", "tl.cdiv(N, BN), tl.cdiv(M, BM)"),
        ),
        Mistake(
            "the numbers of tiles are rounded down: tl.cdiv",
            patch=("tl.cdiv(M, BM), tl.cdiv(N, BN)", "max(M // BM, 1), max(N // BN, 1)"),
        ),
        Mistake("the height is the larger one: min(down - first, GROUP)", patch=("min(down", "max(down")),
        Mistake(
            "the height must count the rows that are left: down - first",
            patch=("min(down - first, GROUP)", "min(down, GROUP)"),
        ),
        Mistake(
            "groups have one row: use GROUP",
            patch=("(GROUP * across) * GROUP\n    height = min(down - first, GROUP)", "across\n    height = 1"),
        ),
        Mistake(
            "the column divides by GROUP: the last group has `height` rows",
            patch=("inside // height", "inside // GROUP"),
        ),
        Mistake(
            "the row takes the remainder by GROUP: the last group has `height` rows",
            patch=("inside % height", "inside % GROUP"),
        ),
    ),
    alternatives=(
        patched(GROUPED, (ORDER, "    row, column = tl.swizzle2d(pid // across, pid % across, down, across, GROUP)\n")),
        patched(
            GROUPED,
            (
                ORDER,
                """\
    size = GROUP * across
    group = pid // size
    rest = pid - group * size
    height = tl.minimum(down - group * GROUP, GROUP)
    row = group * GROUP + rest % height
    column = rest // height
""",
            ),
        ),
        patched(
            GROUPED,
            (
                ORDER,
                """\
    size = GROUP * down
    first = pid // size * GROUP
    width = min(across - first, GROUP)
    column = first + pid % size % width
    row = pid % size // width
""",
            ),
        ),
        patched(
            GROUPED,
            ("row = first + inside % height", "column = inside // height"),
            ("    column = inside // height\n    m =", "    row = first + inside - column * height\n    m ="),
        ),
        patched(
            GROUPED,
            (
                ORDER,
                """\
    first = 0
    while pid >= GROUP * across:
        pid -= GROUP * across
        first += GROUP
    height = min(down - first, GROUP)
    row, column = first + pid % height, pid // height
""",
            ),
        ),
        patched(GROUPED, ("min(down - first, GROUP)", "tl.where(down - first < GROUP, down - first, GROUP)")),
    ),
    tolerance=Tolerance(),
)
