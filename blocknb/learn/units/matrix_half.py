"""half-1, fit-1 and dot-1: half precision with fp32 sums, a tile that leaves room for a second program, and the instruction of Hopper."""

from __future__ import annotations

from typing import Any

from blocknb.learn.code_rules import assembles, no_spills
from blocknb.learn.exercise import Blank, Exercise, Mistake, Tolerance
from blocknb.learn.rules import no_race, stored_once
from blocknb.learn.units.matrix_cases import fraction_case, patched, product, product_case
from blocknb.learn.units.matrix_rules import multiplies_with, room_for, work_per_element

X_MASK = "mask=(m[:, None] < M) & (k[None, :] < K), other=0.0"
Y_MASK = "mask=(k[:, None] < K) & (n[None, :] < N), other=0.0"
Z_MASK = "mask=(m[:, None] < M) & (n[None, :] < N)"
BODY = f"""\
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], {X_MASK})
        y = tl.load(b + k[:, None] * N + n[None, :], {Y_MASK})
        total = tl.dot(x, y, total)
    tl.store(c + m[:, None] * N + n[None, :], total.to(tl.float16), {Z_MASK})
"""
HALF = "@blocknb.kernel\ndef matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):\n" + BODY
ZERO, DOT = "total = tl.zeros((BM, BN), tl.float32)", "total = tl.dot(x, y, total)"
#: The beginning of the instructions that multiply fp16 and add in fp32, in PTX.
HALF_PRODUCTS = "wgmma.mma_async.sync.aligned.*k16.f32.f16.f16"


def head(num_warps: int, num_stages: int, bm: int, bn: int, bk: int) -> str:
    """The first two lines of a kernel whose answer is its options and the default values of its constants."""
    return (
        f"@blocknb.kernel(num_warps={num_warps}, num_stages={num_stages})\n"
        f"def matmul(a, b, c, M, N, K, BM: tl.constexpr = {bm}, BN: tl.constexpr = {bn}, BK: tl.constexpr = {bk}):"
    )


def tuned(num_warps: int, num_stages: int, bm: int, bn: int, bk: int, body: str = BODY) -> str:
    """A whole kernel with these options and constants."""
    return f"{head(num_warps, num_stages, bm, bn, bk)}\n{body}"


SIZES: dict[str, Any] = {"dtype": "float16", "most": 2}
HALF_TILES: dict[str, Any] = {**SIZES, "BM": 64, "BN": 32, "BK": 16}
TUNED_CASES = (
    product_case(256, 256, 128, **SIZES),
    product_case(300, 520, 70, **SIZES),
    product_case(3, 5, 7, **SIZES),
    fraction_case(16, 16, 2000, 0.5),  # shows a loop that ends early for large K, and a sum in float16
)


def two_axes(M: int, N: int, BM: int, BN: int) -> tuple[int, int]:
    """The grid of gemm-3: tiles of rows and tiles of columns."""
    return -(-M // BM), -(-N // BN)


HALF_1 = Exercise(
    "half-1",
    "Multiply in fp16, and add in fp32",
    task="""\
`a`, `b` and `c` are float16 now; shapes, grid and ragged sizes are those of gemm-3.

Multiply the float16 tiles as they are, so that the tensor cores can take them. Keep the sum in float32, and round it once, to float16,
when you store it. A sum in float16 would lose digits with every step, and the error would grow with K.""",
    cases=(
        product_case(128, 96, 80, **HALF_TILES),
        fraction_case(130, 75, 50, -1, **HALF_TILES),
        product_case(3, 5, 7, **HALF_TILES),
        fraction_case(16, 16, 2000, 0.5, BM=64, BN=32, BK=64),
    ),
    outputs=("c",),
    grid=two_axes,
    reference=product,
    rules=(stored_once, no_race, assembles, multiplies_with(HALF_PRODUCTS)),
    solution=HALF,
    blanks=(
        Blank(5, 5, "the sum: which dtype?"),
        Blank(10, 10, "add the product of x and y"),
        Blank(11, 11, "round the sum, and store it"),
    ),
    hints=(
        "float16 has 11 significant bits. What is 2048 + 1 in float16?",
        "The dtype of the sum is set where it begins, in tl.zeros. It becomes float16 only in the store: `total.to(tl.float16)`.",
        "`total = tl.zeros((BM, BN), tl.float32)`, `total = tl.dot(x, y, total)`, and a store of `total.to(tl.float16)`",
    ),
    mistakes=(
        Mistake(
            "the sum is float16, so it loses digits in every step: begin with tl.zeros((BM, BN), tl.float32)",
            patches=((ZERO, ZERO.replace("32", "16")), (DOT, "total = tl.dot(x, y, total, out_dtype=tl.float16)")),
        ),
        Mistake(
            "each product is rounded to float16, and the sum is float16, too",
            patches=((ZERO, ZERO.replace("32", "16")), (DOT, "total += tl.dot(x, y).to(tl.float16)")),
        ),
        Mistake(
            "the sum is rounded to float16 in every step: round it once, in the store",
            patch=(DOT, "total = tl.dot(x, y, total).to(tl.float16).to(tl.float32)"),
        ),
        Mistake(
            "the tiles that tl.dot gets are tf32 (k8)",
            patch=("tl.dot(x, y, total)", "tl.dot(x.to(tl.float32), y.to(tl.float32), total)"),
        ),
        Mistake(
            "the tiles are converted to bfloat16, which has fewer digits",
            patch=("tl.dot(x, y, total)", "tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16), total)"),
        ),
        Mistake(
            "the tiles are rounded to 8 bits",
            patch=("tl.dot(x, y, total)", "tl.dot(x.to(tl.float8e5), y.to(tl.float8e5), total)"),
        ),
        Mistake("only the last step counts: pass `total` to tl.dot", patch=(DOT, "total = tl.dot(x, y)")),
        Mistake(
            "the old sum counts twice: `total = tl.dot(x, y, total)` adds it already",
            patch=(DOT, DOT.replace("=", "+=", 1)),
        ),
        Mistake("the product is transposed: tl.dot(x, y) is x @ y", patch=(DOT, "total += tl.trans(tl.dot(x, y))")),
        Mistake(
            "the sum is rounded to an integer: the store converts to float16",
            patch=("total.to(tl.float16)", "total.to(tl.int32).to(tl.float16)"),
        ),
        Mistake("the store has no mask", patch=(f", {Z_MASK}", "")),
        Mistake(
            "the loads have no mask along K",
            patches=((X_MASK, "mask=m[:, None] < M, other=0.0"), (Y_MASK, "mask=n[None, :] < N, other=0.0")),
        ),
        Mistake(
            "the kernel stores nothing: end with tl.store",
            patch=(f"    tl.store(c + m[:, None] * N + n[None, :], total.to(tl.float16), {Z_MASK})\n", ""),
        ),
    ),
    alternatives=(
        patched(HALF, ("total.to(tl.float16)", "total")),
        patched(HALF, (DOT, "total += tl.dot(x, y)")),
        patched(HALF, (DOT, "total = tl.dot(x, y, total, out_dtype=tl.float32)")),
        patched(HALF, ("total.to(tl.float16)", "total.to(c.dtype.element_ty)")),
        patched(HALF, (ZERO, "total = tl.full((BM, BN), 0, tl.float32)"), (", other=0.0", "")),
        patched(HALF, (DOT, "total = tl.dot(x, y, acc=total)"), ("total.to(tl.float16)", "tl.cast(total, tl.float16)")),
    ),
    tolerance=2.0**-10,
)

SLOW_BODY = patched(BODY, (DOT, "total = tl.dot(x.to(tl.float32), y.to(tl.float32), total)"))
FIT = tuned(8, 3, 128, 128, 32)
FIT_1 = Exercise(
    "fit-1",
    "Make room for a second program",
    task="""\
The product of half-1, with tiles of 128 x 256 and three stages. A multiprocessor of an H100 has 64 K registers and 227 KB of shared
memory, and holds one such program. While it stores its result, the tensor cores wait.

Change the constants BM, BN and BK and the options `num_warps` and `num_stages`, and nothing else, until two programs fit. A tile must
still do at least 50 multiply-adds per loaded element, `BM * BN / (BM + BN)`, and tl.dot must become wgmma. No register may spill to
memory.""",
    cases=TUNED_CASES,
    outputs=("c",),
    grid=two_axes,
    reference=product,
    rules=(
        stored_once,
        no_race,
        work_per_element(50),
        multiplies_with(HALF_PRODUCTS),
        no_spills,
        room_for(2),
    ),
    solution=FIT,
    blanks=(Blank(1, 2, keep=head(8, 3, 128, 256, 64)),),
    hints=(
        "Which resource is the limit now: registers or shared memory? The Resources tab names it.",
        "A tile of 128 x 256 keeps 32 K sums in registers, half of all. With 128 x 128 there is room for two. "
        "Stages times BK make the shared memory.",
        "`num_warps=8, num_stages=3`, `BM = 128`, `BN = 128`, `BK = 32`",
    ),
    mistakes=(
        Mistake("the registers are full", source=tuned(8, 2, 128, 256, 64)),
        Mistake("the registers are full", source=tuned(8, 1, 128, 256, 32)),
        Mistake("the registers are full", source=tuned(8, 3, 256, 128, 64)),
        Mistake("the registers are full", source=tuned(4, 3, 128, 128, 64)),
        Mistake("the shared memory is full", source=tuned(8, 4, 128, 128, 64)),
        Mistake("the shared memory is full", source=tuned(8, 3, 128, 128, 128)),
        Mistake("a tile of 64 x 64 does 32.0 multiply-adds per loaded element", source=tuned(4, 2, 64, 64, 64)),
        Mistake("a tile of 128 x 64 does 42.7 multiply-adds per loaded element", source=tuned(8, 2, 128, 64, 32)),
        Mistake("a tile of 32 x 256 does 28.4 multiply-adds per loaded element", source=tuned(4, 2, 32, 256, 32)),
        Mistake("it takes 4 warps together", source=tuned(2, 2, 128, 128, 32)),
        Mistake("it takes 4 warps together", source=tuned(1, 2, 64, 256, 16)),
        Mistake("the tiles that tl.dot gets are tf32 (k8)", source=tuned(8, 2, 128, 128, 32, SLOW_BODY)),
        Mistake("the masks are gone", source=tuned(8, 3, 128, 128, 32, patched(BODY, (f", {Z_MASK}", "")))),
        Mistake(
            "the loop ends after two steps: walk along all of K",
            source=tuned(8, 3, 128, 128, 64, patched(BODY, ("range(0, K, BK)", "range(0, 2 * BK, BK)"))),
        ),
    ),
    alternatives=(
        tuned(8, 2, 128, 128, 32),
        tuned(8, 4, 128, 128, 32),
        tuned(8, 2, 128, 128, 64),
        tuned(8, 3, 128, 128, 64),
        tuned(8, 3, 128, 128, 16),
    ),
    tolerance=Tolerance(),
)

WIDE = "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16"
DOT_1 = Exercise(
    "dot-1",
    "Get the widest instruction",
    task="""\
The kernel multiplies float16 matrices, but `tl.dot` becomes many small instructions. Change the constants, `num_warps`, and the line of
`tl.dot`, until the notes of `select_wgmma` say `wgmma.m64n256k16` for sm_90a: 64 x 256 x 16 multiply-adds with one instruction.

Read the note after each change. It says why the compiler did not take a larger instruction. No register may spill to memory.""",
    cases=(
        *TUNED_CASES,
        fraction_case(70, 75, 50, -1),
    ),
    outputs=("c",),
    grid=two_axes,
    reference=product,
    rules=(stored_once, no_race, multiplies_with(WIDE), no_spills),
    solution=tuned(4, 3, 64, 256, 64),
    blanks=(
        Blank(1, 2, keep=head(8, 3, 32, 256, 64)),
        Blank(10, 10, keep="total = tl.dot(x.to(tl.float32), y.to(tl.float32), total)"),
    ),
    hints=(
        "The first note says `not wgmma`, and a number. Which constant must change? Then read the next note: what does k8 tell you?",
        "wgmma takes at least 64 rows. Operands in fp32 make k8, operands in fp16 make k16. "
        "Eight warps split 64 x 256 into two halves of 128 columns.",
        "`num_warps=4`, `BM = 64`, `BN = 256`, and `total = tl.dot(x, y, total)`",
    ),
    mistakes=(
        Mistake("M = 32 is smaller than 64", source=tuned(4, 3, 32, 256, 64)),
        Mistake("the tiles that tl.dot gets are tf32 (k8)", source=tuned(4, 3, 64, 256, 32, SLOW_BODY)),
        Mistake("one instruction covers 128 columns (n128)", source=tuned(8, 3, 64, 256, 64)),
        Mistake("one instruction covers 128 columns (n128)", source=tuned(4, 3, 64, 128, 64)),
        Mistake("one instruction covers 128 columns (n128)", source=tuned(8, 3, 128, 128, 64)),
        Mistake("one instruction covers 64 columns (n64)", source=tuned(8, 3, 256, 64, 64)),
        Mistake("it takes 4 warps together", source=tuned(2, 3, 64, 256, 32)),
        Mistake("it takes 4 warps together", source=tuned(1, 3, 64, 256, 16)),
        Mistake("the accumulator takes 256 registers", source=tuned(4, 3, 128, 256, 64)),
        Mistake(
            "the tiles that tl.dot gets are bf16 (k16)",
            source=tuned(
                4, 3, 64, 256, 64, patched(BODY, (DOT, "total = tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16), total)"))
            ),
        ),
        *(
            Mistake(
                "the sum is float16, so it loses digits in every step: keep it in float32",
                source=tuned(
                    num_warps,
                    3,
                    bm,
                    256,
                    64,
                    patched(
                        BODY,
                        (ZERO, ZERO.replace("32", "16")),
                        (DOT, "total = tl.dot(x, y, total, out_dtype=tl.float16)"),
                    ),
                ),
            )
            for num_warps, bm in ((4, 64), (8, 128))
        ),
        *(
            Mistake(
                "a factor is rounded to bfloat16, which has fewer digits",
                source=tuned(4, 3, 64, 256, 64, patched(BODY, (DOT, f"total = tl.dot({factors}, total)"))),
            )
            for factors in ("x, y.to(tl.bfloat16).to(tl.float16)", "x.to(tl.bfloat16).to(tl.float16), y")
        ),
        Mistake(
            "the kernel asks for ieee precision",
            source=tuned(
                4,
                3,
                64,
                256,
                32,
                patched(
                    BODY, (DOT, "total = tl.dot(x.to(tl.float32), y.to(tl.float32), total, input_precision='ieee')")
                ),
            ),
        ),
        Mistake(
            "only the last step counts: pass `total` to tl.dot",
            source=tuned(4, 3, 64, 256, 64, patched(BODY, (DOT, "total = tl.dot(x, y)"))),
        ),
    ),
    alternatives=(
        tuned(8, 3, 128, 256, 64),
        tuned(4, 2, 64, 256, 32),
        tuned(8, 2, 128, 256, 32),
        tuned(4, 3, 64, 256, 64, patched(BODY, (DOT, "total += tl.dot(x, y)"))),
        tuned(4, 4, 64, 256, 16),
        tuned(8, 4, 128, 256, 64),
    ),
    tolerance=2.0**-10,
)
