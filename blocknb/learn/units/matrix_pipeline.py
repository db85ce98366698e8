"""stages-1, descriptor-1 and wave-1: copies that run ahead of the products, tensor descriptors, and rounds of tiles."""

from __future__ import annotations

from typing import Any

from blocknb.learn.code_rules import assembles, no_spills
from blocknb.learn.exercise import Blank, Exercise, Mistake, Tolerance
from blocknb.learn.rules import no_race, stored_once
from blocknb.learn.units.matrix_cases import biased_product, patched, product, product_case
from blocknb.learn.units.matrix_half import (
    BODY,
    DOT,
    HALF_PRODUCTS,
    TUNED_CASES,
    X_MASK,
    Y_MASK,
    Z_MASK,
    head,
    tuned,
    two_axes,
)
from blocknb.learn.units.matrix_rules import (
    mma_utilization_at_least,
    multiplies_with,
    rounds_busy,
    uses_descriptors,
    warps_among,
    work_per_element,
)

STAGES_1 = Exercise(
    "stages-1",
    "Keep products under way",
    task="""\
The product of half-1 copies one tile, multiplies it, copies the next one, and so on. In the timeline's model for an H100 products are
under way for a fifth of the time.

Change the constants and `num_stages` until it is at least 70 % for 4096 x 4096 x 4096. `num_stages` is the number of iterations whose
tiles are in shared memory at the same time. Nothing may spill, and the grid stays as it is.""",
    cases=TUNED_CASES,
    outputs=("c",),
    grid=two_axes,
    reference=product,
    rules=(stored_once, no_race, no_spills, mma_utilization_at_least(0.7)),
    solution=tuned(8, 3, 128, 128, 64),
    blanks=(Blank(1, 2, keep=head(8, 1, 128, 128, 32)),),
    hints=(
        "In the timeline, what happens between two products? How long does a copy take, and how long the product of one step?",
        "A copy takes about 700 clocks to arrive. The product of 128 x 128 x 32 takes 256. "
        "How many copies must be on their way during that time?",
        "`num_stages=3` with `BK = 64`, or `num_stages=4` with `BK = 32`",
    ),
    mistakes=(
        Mistake("with one stage, copies and products take turns", source=tuned(8, 1, 128, 128, 64)),
        Mistake("with one stage, copies and products take turns", source=tuned(8, 1, 128, 256, 64)),
        Mistake("2 stages of copies do not cover the latency", source=tuned(8, 2, 128, 128, 32)),
        Mistake("3 stages of copies do not cover the latency", source=tuned(8, 3, 128, 128, 32)),
        Mistake("2 stages of copies do not cover the latency", source=tuned(8, 2, 128, 128, 64)),
        Mistake("2 stages of copies do not cover the latency", source=tuned(8, 2, 128, 256, 64)),
        Mistake("3 stages of copies do not cover the latency", source=tuned(8, 3, 128, 128, 16)),
        Mistake(
            "a tile of 64 x 128 needs 6 clocks to be copied and 4 to be multiplied", source=tuned(4, 4, 64, 128, 64)
        ),
        Mistake("a tile of 64 x 64 needs 4 clocks to be copied and 2 to be multiplied", source=tuned(4, 4, 64, 64, 64)),
        Mistake("the registers do not suffice", source=tuned(4, 3, 128, 256, 64)),
        Mistake(
            "only the last step counts: pass `total` to tl.dot",
            source=tuned(8, 3, 128, 128, 64, patched(BODY, (DOT, "total = tl.dot(x, y)"))),
        ),
        Mistake(
            "the loads have lost their masks",
            source=tuned(8, 3, 128, 128, 64, patched(BODY, (f", {X_MASK}", ""), (f", {Y_MASK}", ""))),
        ),
    ),
    alternatives=(
        tuned(8, 4, 128, 128, 32),
        tuned(8, 4, 128, 128, 64),
        tuned(8, 3, 128, 256, 64),
        tuned(8, 4, 128, 256, 64),
        tuned(8, 5, 128, 128, 32),
        tuned(4, 3, 128, 128, 64),
    ),
    tolerance=Tolerance(),
)

DESCRIBED = """\
@blocknb.kernel
def matmul(a, b, bias, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    x_at = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    y_at = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    z_at = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(x_at.load([row, k]), y_at.load([k, column]), total)
    n = column + tl.arange(0, BN)
    total += tl.load(bias + n, mask=n < N, other=0.0)[None, :]
    total = tl.where(total > 0, total, 0.01 * total)
    z_at.store([row, column], total.to(tl.float16))
"""
POINTERS = """\
@blocknb.kernel
def matmul(a, b, bias, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
""" + patched(
    BODY,
    (
        "    tl.store(",
        """\
    total += tl.load(bias + n, mask=n < N, other=0.0)[None, :]
    total = tl.where(total > 0, total, 0.01 * total)
    tl.store(""",
    ),
)
D_TILES: dict[str, Any] = {"dtype": "float16", "most": 2, "bias": True, "BM": 64, "BN": 32, "BK": 32}

DESCRIPTOR_1 = Exercise(
    "descriptor-1",
    "Describe the matrices",
    task="""\
The task of gemm-5 in float16: `c = leaky(a @ b + bias)`, with the same grid of two axes. Load the tiles of `a` and `b`, and store that of
`c`, by tensor descriptors, without a mask of your own.

`tl.make_tensor_descriptor(a, [rows, columns], [row stride, 1], [tile rows, tile columns])` describes a matrix. `x_at.load([row, column])`
loads the tile that begins at this element; `z_at.store([row, column], tile)` stores one. What lies outside of the matrix loads as 0, and
is not stored. `K` and `N` are multiples of 8, which descriptors of float16 need. The bias may stay a tl.load.""",
    cases=(
        product_case(128, 64, 64, **D_TILES),
        product_case(70, 40, 48, **D_TILES),
        product_case(3, 8, 8, **D_TILES),
        product_case(40, 88, 104, dtype="float16", most=2, bias=True, BM=32, BN=64, BK=32),
    ),
    outputs=("c",),
    grid=two_axes,
    reference=biased_product,
    rules=(stored_once, no_race, assembles, uses_descriptors),
    solution=DESCRIBED,
    blanks=(
        Blank(4, 4, "a: M x K, in tiles of BM x BK"),
        Blank(5, 5, "b: K x N, in tiles of BK x BN"),
        Blank(6, 6, "c: M x N, in tiles of BM x BN"),
        Blank(9, 9, "add the product of the two tiles at k"),
        Blank(13, 13, "store the tile"),
    ),
    hints=(
        "What does a descriptor need to know about `a`: its shape, its strides, the shape of a tile. "
        "Which of them change from step to step?",
        "The tile of `a` begins at [row, k], that of `b` at [k, column]. Both count elements, not tiles.",
        "`x_at = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])`, and in the loop "
        "`total = tl.dot(x_at.load([row, k]), y_at.load([k, column]), total)`",
    ),
    mistakes=(
        Mistake("the shape of `a` is [M, K], not [K, M]", patch=("a, [M, K]", "a, [K, M]")),
        Mistake("the shape of `b` is [K, N], not [N, K]", patch=("b, [K, N]", "b, [N, K]")),
        Mistake("the shape of `c` is [M, N], not [N, M]", patch=("c, [M, N]", "c, [N, M]")),
        Mistake(
            "the row stride of `a` is K, the length of its rows", patch=("a, [M, K], [K, 1]", "a, [M, K], [BK, 1]")
        ),
        Mistake("the row stride of `b` is N, the length of its rows", patch=("b, [K, N], [N, 1]", "b, [K, N], [K, 1]")),
        Mistake("the row stride of `c` is N, the length of its rows", patch=("c, [M, N], [N, 1]", "c, [M, N], [K, 1]")),
        Mistake("the coordinates of `a` are exchanged: [row, k]", patch=("x_at.load([row, k])", "x_at.load([k, row])")),
        Mistake(
            "the coordinates of `b` are exchanged: [k, column]",
            patch=("y_at.load([k, column])", "y_at.load([column, k])"),
        ),
        Mistake(
            "the coordinates of the store are exchanged: [row, column]",
            patch=("z_at.store([row, column]", "z_at.store([column, row]"),
        ),
        Mistake(
            "coordinates count elements, not tiles: multiply the program ids by BM and BN",
            patch=("tl.program_id(0) * BM, tl.program_id(1) * BN", "tl.program_id(0), tl.program_id(1)"),
        ),
        Mistake(
            "every step loads the first tile again: the coordinates need k",
            patches=(("[row, k]", "[row, 0]"), ("[k, column]", "[0, column]")),
        ),
        Mistake("`b` does not advance: its tile begins at [k, column]", patch=("[k, column]", "[0, column]")),
        Mistake(
            "the loop counts tiles, and coordinates count elements: step by BK",
            patch=("range(0, K, BK)", "range(tl.cdiv(K, BK))"),
        ),
        Mistake("only the last step counts: pass `total` to tl.dot", patch=(", total)\n    n", ")\n    n")),
        Mistake("the tile of `a` is BM x BK", patch=("[BM, BK]", "[BM, BN]")),
        Mistake("the kernel makes 0 tensor descriptors", source=POINTERS),
        Mistake(
            "`c` is stored by tl.store: call `store` of its descriptor",
            patch=(
                "z_at.store([row, column], total.to(tl.float16))",
                f"m = row + tl.arange(0, BM)\n    tl.store(c + m[:, None] * N + n[None, :], total.to(tl.float16), {Z_MASK})",
            ),
        ),
        Mistake("the bias is missing", patch=("    total += tl.load(bias + n, mask=n < N, other=0.0)[None, :]\n", "")),
        Mistake("the leaky ReLU is missing", patch=("    total = tl.where(total > 0, total, 0.01 * total)\n", "")),
        Mistake(
            "the kernel stores nothing: end with the store of the descriptor",
            patch=("    z_at.store([row, column], total.to(tl.float16))\n", ""),
        ),
    ),
    alternatives=(
        patched(DESCRIBED, (", total)\n    n", ")\n    n"), ("total = tl.dot", "total += tl.dot")),
        patched(DESCRIBED, ("x_at.load([row, k])", "tl.load_tensor_descriptor(x_at, [row, k])")),
        patched(
            DESCRIBED,
            ("    n = column + tl.arange(0, BN)\n", "    bias_at = tl.make_tensor_descriptor(bias, [N], [1], [BN])\n"),
            ("tl.load(bias + n, mask=n < N, other=0.0)[None, :]", "bias_at.load([column])[None, :]"),
        ),
        patched(
            DESCRIBED,
            ("tl.where(total > 0, total, 0.01 * total)", "tl.maximum(total, 0.01 * total)"),
            ("for k in range(0, K, BK):\n", "for step in range(tl.cdiv(K, BK)):\n        k = step * BK\n"),
        ),
        patched(
            DESCRIBED,
            (
                "        total = tl.dot(x_at.load([row, k]), y_at.load([k, column]), total)\n",
                "        x = x_at.load([row, k])\n        y = y_at.load([k, column])\n        total = tl.dot(x, y, total)\n",
            ),
            ("total.to(tl.float16)", "total.to(c.dtype.element_ty)"),
        ),
    ),
    equivalent={
        "total > 0 -> total >= 0": "leaky(0) is 0 on both sides",
        "for k in range(0, K, BK): 0 -> -1": "range(-1, K, BK) covers the same k: a descriptor loads 0 at column -1",
    },
    tolerance=Tolerance(additions=128, scale=4.0),
)

EXCHANGED = patched(
    BODY, ("program_id(0)", "program_id(2)"), ("program_id(1)", "program_id(0)"), ("program_id(2)", "program_id(1)")
)
WAVE_1 = Exercise(
    "wave-1",
    "Choose a tile for 132 multiprocessors",
    task="""\
`c` has 2304 x 2304 elements, and the GPU has 132 multiprocessors. With tiles of 128 x 256 there are 162 tiles: 30 multiprocessors get two
tiles, the others one, and then wait. They are busy for 61 % of the time.

Choose BM and BN (powers of two) so that it is more than 85 %, if every tile takes the same time. A tile must do at least 40 multiply-adds
per loaded element, `BM * BN / (BM + BN)`, and become wgmma without spills. Set `num_warps` to 4 or 8.""",
    cases=TUNED_CASES,
    outputs=("c",),
    grid=two_axes,
    reference=product,
    rules=(
        stored_once,
        no_race,
        rounds_busy(0.85, 2304),
        work_per_element(40),
        multiplies_with(HALF_PRODUCTS),
        no_spills,
        warps_among(4, 8),
    ),
    solution=tuned(4, 3, 128, 64, 64),
    blanks=(Blank(1, 2, keep=head(8, 3, 128, 256, 64)),),
    hints=(
        "How many tiles does the busiest multiprocessor get? What would all of them do in that time?",
        "Tiles of BM x BN make cdiv(2304, BM) * cdiv(2304, BN) tiles. "
        "Divide by 132, and round up: that is the time. Try it for smaller tiles.",
        "648 tiles of 128 x 64 take five rounds, and 5 * 132 = 660: 98 %. `BM = 128`, `BN = 64`",
    ),
    mistakes=(
        Mistake("162 tiles of 128 x 256 are 2 for the busiest", source=tuned(8, 4, 128, 256, 64)),
        Mistake("162 tiles of 256 x 128 are 2 for the busiest", source=tuned(8, 3, 256, 128, 64)),
        Mistake("324 tiles of 128 x 128 are 3 for the busiest", source=tuned(8, 3, 128, 128, 64)),
        Mistake("324 tiles of 64 x 256 are 3 for the busiest", source=tuned(4, 3, 64, 256, 64)),
        Mistake("324 tiles of 256 x 64 are 3 for the busiest", source=tuned(8, 3, 256, 64, 64)),
        Mistake("81 tiles of 256 x 256 are 1 for the busiest", source=tuned(8, 2, 256, 256, 32)),
        Mistake("a tile of 64 x 64 does 32.0 multiply-adds per loaded element", source=tuned(4, 3, 64, 64, 64)),
        Mistake("a tile of 64 x 32 does 21.3 multiply-adds per loaded element", source=tuned(4, 3, 64, 32, 64)),
        Mistake("a tile of 32 x 256 does 28.4 multiply-adds per loaded element", source=tuned(4, 3, 32, 256, 64)),
        Mistake("it takes 4 warps together", source=tuned(2, 3, 128, 64, 64)),
        Mistake("the kernel has num_warps=16, and 4 or 8 is asked for", source=tuned(16, 3, 64, 128, 64)),
        *(
            Mistake(
                "the axes of the grid are exchanged: axis 0 counts tiles of rows",
                source=tuned(4, 3, bm, bn, 64, EXCHANGED),
            )
            for bm, bn in ((64, 128), (128, 64))
        ),
        Mistake("the store has lost its mask", source=tuned(4, 3, 128, 64, 64, patched(BODY, (f", {Z_MASK}", "")))),
    ),
    alternatives=(
        tuned(4, 3, 64, 128, 64),
        tuned(8, 3, 128, 64, 64),
        tuned(4, 4, 128, 64, 64),
        tuned(4, 2, 64, 128, 64),
        tuned(4, 3, 128, 64, 32),
    ),
    tolerance=Tolerance(),
)
