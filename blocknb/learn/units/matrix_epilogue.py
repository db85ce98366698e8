"""gemm-5: a bias and a leaky ReLU at the end of a matrix product, while the result is still in registers."""

from __future__ import annotations

from typing import Any

from blocknb.learn.code_rules import assembles, no_spills
from blocknb.learn.exercise import Blank, Exercise, Mistake, Tolerance
from blocknb.learn.rules import no_race, stored_once
from blocknb.learn.units.matrix_cases import biased_product, patched, product_case
from blocknb.learn.units.matrix_rules import loaded_once_per_program

FUSED = """\
@blocknb.kernel
def matmul(a, b, bias, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        y = tl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        total = tl.dot(x, y, total)
    total += tl.load(bias + n, mask=n < N, other=0.0)[None, :]
    total = tl.where(total > 0, total, 0.01 * total)
    tl.store(c + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))
"""
BIAS = "    total += tl.load(bias + n, mask=n < N, other=0.0)[None, :]\n"
RELU = "    total = tl.where(total > 0, total, 0.01 * total)\n"
STORE = "    tl.store(c + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))\n"
TILES: dict[str, Any] = {"BM": 32, "BN": 16, "BK": 16}

GEMM_5 = Exercise(
    "gemm-5",
    "Add a bias and a leaky ReLU",
    task="""\
The product of gemm-3, followed by two steps that neural networks often need. `bias` has `N` elements, one for each column of `c`. Store

    c = leaky(a @ b + bias)        leaky(t) = t if t > 0, else 0.01 * t

in one kernel. The grid is that of gemm-3: axis 0 counts tiles of rows, axis 1 tiles of columns. `bias` is loaded once per program.""",
    cases=(
        product_case(64, 32, 32, bias=True, **TILES),
        product_case(40, 25, 21, bias=True, **TILES),
        product_case(3, 5, 7, bias=True, **TILES),
        product_case(20, 40, 33, bias=True, BM=16, BN=32, BK=16),
    ),
    outputs=("c",),
    grid=lambda M, N, BM, BN: (-(-M // BM), -(-N // BN)),
    reference=biased_product,
    rules=(stored_once, no_race, loaded_once_per_program("bias", axis=0), assembles, no_spills),
    solution=FUSED,
    blanks=(
        Blank(11, 11, "add the bias of each column"),
        Blank(12, 12, "leaky ReLU", keep="total = ..."),
    ),
    hints=(
        "`total` is a tile of BM x BN. Which elements of `bias` belong to its columns, and along which axis must they repeat?",
        "The bias comes after the loop: load `bias + n` with a mask, and turn it into a row with `[None, :]`. `tl.where` chooses elements.",
        "`total += tl.load(bias + n, mask=n < N, other=0.0)[None, :]`, then `total = tl.where(total > 0, total, 0.01 * total)`",
    ),
    mistakes=(
        Mistake(
            "the bias stands in the loop, so it is added once per step of K",
            patches=((BIAS, ""), ("total = tl.dot(x, y, total)\n", "total = tl.dot(x, y, total)\n    " + BIAS)),
        ),
        Mistake(
            "the leaky ReLU stands in the loop: it must see the whole sum",
            patches=(
                (BIAS + RELU, BIAS),
                ("total = tl.dot(x, y, total)\n", "total = tl.dot(x, y, total)\n    " + RELU),
            ),
        ),
        Mistake("the bias is added after the leaky ReLU: it comes first", patch=(BIAS + RELU, RELU + BIAS)),
        Mistake(
            "load it once, before or after the loop",
            patches=(
                ("        k = start", "        offsets = tl.load(bias + n, mask=n < N, other=0.0)\n        k = start"),
                ("    for start", "    offsets = tl.zeros((BN,), tl.float32)\n    for start"),
                (BIAS, "    total += offsets[None, :]\n"),
            ),
        ),
        Mistake("the bias is missing", patch=(BIAS, "")),
        Mistake("the leaky ReLU is missing", patch=(RELU, "")),
        Mistake(
            "the bias belongs to columns, not rows: [None, :]",
            patch=("bias + n, mask=n < N, other=0.0)[None, :]", "bias + m, mask=m < N, other=0.0)[:, None]"),
        ),
        Mistake(
            "the load of the bias has no mask: it reads past the end",
            patch=(", mask=n < N, other=0.0)[None, :]", ")[None, :]"),
        ),
        Mistake(
            "the bias repeats its first tile: use `n`, which has program_id(1)",
            patch=("bias + n, mask=n < N", "bias + tl.arange(0, BN), mask=n < N"),
        ),
        Mistake(
            "the bias is one number for all columns: load `bias + n`",
            patch=("tl.load(bias + n, mask=n < N, other=0.0)[None, :]", "tl.load(bias)"),
        ),
        Mistake(
            "negative numbers become 0: that is a ReLU, and a leaky one multiplies them by 0.01",
            patch=("0.01 * total", "0.0"),
        ),
        Mistake(
            "negative numbers become 0: that is a ReLU, and a leaky one multiplies them by 0.01",
            patch=("tl.where(total > 0, total, 0.01 * total)", "tl.maximum(total, 0.0)"),
        ),
        Mistake("the bias is added twice", patch=(BIAS, BIAS + BIAS)),
        Mistake(
            "the sides of tl.where are exchanged: negative numbers are multiplied by 0.01",
            patch=("total, 0.01 * total", "0.01 * total, total"),
        ),
        Mistake("the slope is 0.01, not 0.1", patch=("0.01", "0.1")),
        Mistake(
            "the minimum takes the wrong side: leaky(t) is the larger of t and 0.01 * t",
            patch=("tl.where(total > 0, total, 0.01 * total)", "tl.minimum(total, 0.01 * total)"),
        ),
        Mistake("negative numbers change their sign", patch=("0.01 * total", "-0.01 * total")),
        Mistake(
            "all numbers are multiplied by 0.01: only negative ones are",
            patch=("tl.where(total > 0, total, 0.01 * total)", "0.01 * total"),
        ),
        Mistake("the bias is subtracted", patch=("total += tl.load(bias", "total -= tl.load(bias")),
        Mistake("the store comes before the bias and the leaky ReLU", patch=(BIAS + RELU + STORE, STORE + BIAS + RELU)),
        Mistake(
            "the leaky ReLU has no effect: assign its result to `total`",
            patch=("total = tl.where", "positive = tl.where"),
        ),
        Mistake(
            "the bias is added in each step, because the sum begins with it in the loop",
            patches=(
                (BIAS, ""),
                ("tl.dot(x, y, total)", "tl.dot(x, y, total) + tl.load(bias + n, mask=n < N, other=0.0)[None, :]"),
            ),
        ),
    ),
    alternatives=(
        patched(FUSED, (RELU, "    total = tl.maximum(total, 0.01 * total)\n")),
        patched(
            FUSED,
            (BIAS, ""),
            (
                "tl.zeros((BM, BN), tl.float32)",
                "tl.zeros((BM, BN), tl.float32) + tl.load(bias + n, mask=n < N, other=0.0)[None, :]",
            ),
        ),
        patched(FUSED, (RELU, "    total = total * tl.where(total < 0, 0.01, 1.0)\n")),
        patched(
            FUSED,
            (", other=0.0)[None, :]", ")"),
            (RELU, "    if True:\n        total = tl.where(total >= 0, total, total * 0.01)\n"),
        ),
        "@blocknb.kernel\ndef leaky(t, SLOPE: tl.constexpr):\n    return tl.maximum(t, 0) + SLOPE * tl.minimum(t, 0)\n\n"
        + patched(FUSED, (RELU, ""), (STORE, STORE.replace("total,", "leaky(total, 0.01),"))),
        patched(
            FUSED,
            (
                BIAS,
                "    row = tl.load(bias + n, mask=n < N, other=0.0)\n"
                "    total = total + tl.broadcast_to(tl.expand_dims(row, 0), (BM, BN))\n",
            ),
        ),
    ),
    equivalent={"total > 0 -> total >= 0": "leaky(0) is 0 on both sides"},
    tolerance=Tolerance(additions=64, scale=64.0),
)
