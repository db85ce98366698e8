"""gemm-6, the goal of the course: the learner's own product, right against float64, on tensor cores, with products under way."""

from __future__ import annotations

from blocknb.learn.code_rules import no_spills
from blocknb.learn.exercise import Blank, Exercise, Mistake
from blocknb.learn.rules import no_race, stored_once
from blocknb.learn.units.matrix_cases import fraction_case, patched, product, product_case
from blocknb.learn.units.matrix_half import BODY, DOT, HALF_PRODUCTS, SIZES, X_MASK, Y_MASK, Z_MASK, tuned
from blocknb.learn.units.matrix_numbers import numbers_of_product
from blocknb.learn.units.matrix_rules import mma_utilization_at_least, multiplies_with

GRID_OF_TILES = "grid = lambda M, N, BM, BN: (blocknb.cdiv(M, BM) * blocknb.cdiv(N, BN),)\n"
GOAL = """\
@blocknb.kernel(num_warps=8, num_stages=4)
def matmul(a, b, c, M, N, K, BM: tl.constexpr = 128, BN: tl.constexpr = 256, BK: tl.constexpr = 64):
    GROUP: tl.constexpr = 8
    pid = tl.program_id(0)
    down, across = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = pid // (GROUP * across) * GROUP
    height = min(down - first, GROUP)
    inside = pid % (GROUP * across)
    row, column = first + inside % height, inside // height
    m, n = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        y = tl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        total = tl.dot(x, y, total)
    tl.store(c + m[:, None] * N + n[None, :], total.to(tl.float16), mask=(m[:, None] < M) & (n[None, :] < N))


grid = lambda M, N, BM, BN: (blocknb.cdiv(M, BM) * blocknb.cdiv(N, BN),)
"""
ORDER = """\
    first = pid // (GROUP * across) * GROUP
    height = min(down - first, GROUP)
    inside = pid % (GROUP * across)
    row, column = first + inside % height, inside // height
"""
START = """\
@blocknb.kernel
def matmul(a, b, c, M, N, K, BM: tl.constexpr = 64, BN: tl.constexpr = 64, BK: tl.constexpr = 32):
    ...


grid = lambda M, N, BM, BN: (1,)"""
TWO_AXES = "\n\ngrid = lambda M, N, BM, BN: (blocknb.cdiv(M, BM), blocknb.cdiv(N, BN))\n"
DESCRIBED = (
    """\
@blocknb.kernel(num_warps=8, num_stages=4)
def matmul(a, b, c, M, N, K, BM: tl.constexpr = 128, BN: tl.constexpr = 256, BK: tl.constexpr = 64):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    x_at = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    y_at = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    z_at = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(x_at.load([m, k]), y_at.load([k, n]), total)
    z_at.store([m, n], total.to(tl.float16))
"""
    + TWO_AXES
)


def plain(num_warps: int, num_stages: int, bm: int, bn: int, bk: int) -> str:
    """A product with a grid of two axes."""
    return tuned(num_warps, num_stages, bm, bn, bk) + TWO_AXES


GEMM_6 = Exercise(
    "gemm-6",
    "Write the whole product",
    task="""\
`a` (`M x K`), `b` (`K x N`) and `c` (`M x N`) are float16, row-major. Store `a @ b` in `c`, for every size; K and N are multiples of 8.

Everything is yours: the tiles, the order of the programs, the loop, the options, and the grid. The kernel's parameters are
`a, b, c, M, N, K`; give your constants default values. `grid` is a function that returns the numbers of programs.

The result must agree with float64. For sm_90a, tl.dot must become wgmma, and no register may spill. In the timeline's model of
4096 x 4096 x 4096, products must be under way for at least 70 % of the time.""",
    cases=(
        product_case(256, 256, 64, **SIZES),
        product_case(150, 88, 72, **SIZES),
        product_case(3, 8, 8, **SIZES),
        product_case(300, 520, 72, **SIZES),
        fraction_case(16, 16, 2000, 0.5),
    ),
    outputs=("c",),
    grid=None,
    reference=product,
    rules=(stored_once, no_race, multiplies_with(HALF_PRODUCTS), no_spills, mma_utilization_at_least(0.7)),
    solution=GOAL,
    blanks=(Blank(1, 20, keep=START),),
    hints=(
        "You have written all parts: the grid of gemm-4, the loop of gemm-3, the dtypes of half-1, the options of stages-1. Which order?",
        "Begin with gemm-4 in float16. Then choose a tile of at least 128 x 128, `num_warps=8`, and three or more stages.",
        "`@blocknb.kernel(num_warps=8, num_stages=4)`, `BM = 128`, `BN = 256`, `BK = 64`, and "
        "`grid = lambda M, N, BM, BN: (blocknb.cdiv(M, BM) * blocknb.cdiv(N, BN),)`",
    ),
    mistakes=(
        Mistake("a tile of 64 x 64 needs 4 clocks to be copied and 2 to be multiplied", source=plain(4, 3, 64, 64, 32)),
        Mistake("with one stage, copies and products take turns", source=plain(8, 1, 128, 256, 64)),
        Mistake("2 stages of copies do not cover the latency", source=plain(8, 2, 128, 128, 64)),
        Mistake("the accumulator takes 256 registers", source=plain(4, 3, 128, 256, 64)),
        Mistake("M = 32 is smaller than 64", source=plain(4, 3, 32, 256, 64)),
        Mistake(
            "the tiles that tl.dot gets are tf32 (k8)",
            source=tuned(
                8, 3, 128, 256, 32, patched(BODY, (DOT, "total = tl.dot(x.to(tl.float32), y.to(tl.float32), total)"))
            )
            + TWO_AXES,
        ),
        Mistake(
            "`total` is accumulated in fp16",
            source=tuned(
                8,
                3,
                128,
                256,
                64,
                patched(
                    BODY,
                    ("(BM, BN), tl.float32", "(BM, BN), tl.float16"),
                    (DOT, "total = tl.dot(x, y, total, out_dtype=tl.float16)"),
                ),
            )
            + TWO_AXES,
        ),
        Mistake("`c`[128:256, :] never stored", patch=(GRID_OF_TILES, "grid = lambda M, N, BM, BN: (1,)\n")),
        Mistake(
            "`c`[128:150, :] never stored",
            patch=(GRID_OF_TILES, "grid = lambda M, N, BM, BN: (max(1, M // BM * (N // BN)),)\n"),
        ),
        Mistake("`c`[:, 256:520] never stored", patch=(GRID_OF_TILES, TWO_AXES.lstrip("\n"))),
        Mistake(
            "`c`[:, 256:520] never stored",
            patch=(GRID_OF_TILES, "grid = lambda M, N, BM, BN: (blocknb.cdiv(M, BM),)\n"),
        ),
        *(
            Mistake(
                "the axes of the grid are exchanged: axis 0 counts tiles of rows",
                source=tuned(8, 4, bm, bn, 64) + "\n\ngrid = lambda M, N, BM, BN: (-(-N // BN), -(-M // BM))\n",
            )
            for bm, bn in ((128, 128), (128, 256))
        ),
        Mistake("only the last step counts: pass `total` to tl.dot", patch=(DOT, "total = tl.dot(x, y)")),
        Mistake("every step loads the first tile again: k needs `start`", patch=("k = start + tl", "k = tl")),
        Mistake(
            "the loads have no mask along K",
            patches=((X_MASK, "mask=m[:, None] < M, other=0.0"), (Y_MASK, "mask=n[None, :] < N, other=0.0")),
        ),
        Mistake("the store has no mask", patch=(f", {Z_MASK}", "")),
        Mistake(
            "a row of `b` has N elements: its row stride is N, not K",
            patch=("b + k[:, None] * N", "b + k[:, None] * K"),
        ),
        Mistake(
            "the loop leaves out the rest of K: range(0, K, BK)",
            patch=("range(0, K, BK)", "range(0, K // BK * BK, BK)"),
        ),
        Mistake(
            "the kernel stores nothing: end with tl.store",
            patch=(f"    tl.store(c + m[:, None] * N + n[None, :], total.to(tl.float16), {Z_MASK})\n", ""),
        ),
    ),
    alternatives=(
        plain(8, 3, 128, 256, 64),
        plain(8, 3, 128, 128, 64),
        plain(4, 3, 128, 128, 64),
        DESCRIBED,
        patched(
            DESCRIBED,
            ("BM: tl.constexpr = 128, BN: tl.constexpr = 256", "BM: tl.constexpr = 256, BN: tl.constexpr = 128"),
            ("num_stages=4", "num_stages=3"),
        ),
        patched(GOAL, (ORDER, "    row, column = tl.swizzle2d(pid // across, pid % across, down, across, GROUP)\n")),
        patched(GOAL, (GRID_OF_TILES, "def grid(M, N, BM, BN):\n    return -(-M // BM) * -(-N // BN)\n")),
    ),
    equivalent={
        f"GROUP: tl.constexpr = 8: 8 -> {other}": "the height of a group changes the time only" for other in (7, 9)
    },
    tolerance=2.0**-10,
    numbers=numbers_of_product,
)
