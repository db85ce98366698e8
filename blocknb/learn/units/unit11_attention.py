"""Unit 11, Attention: two products and a softmax in one kernel, over blocks of keys, causal, and what its timeline waits for."""

from __future__ import annotations

from blocknb.learn.exercise import Prediction, Unit
from blocknb.learn.units.attention_causal import ATTN_3
from blocknb.learn.units.attention_kernels import ATTN_1, ATTN_2
from blocknb.learn.units.attention_model import attention_timeline
from blocknb.profile.timeline import H200

UNIT = Unit(11, "Attention", 60)


def step_clocks(queries: int, keys: int, columns: int) -> tuple[int, int]:
    """The clocks of the two products of a step, and those of its exponentials, on a multiprocessor of an H100."""
    return 2 * queries * keys * columns // H200.product, queries * keys // H200.special


def points_of_stages(fewer: int, more: int) -> int:
    """The percentage points by which more stages raise the share of products in the timeline of attn-2."""
    found = [attention_timeline(BM=128, BN=128, D=64, num_warps=8, num_stages=stages) for stages in (fewer, more)]
    return round(100 * (found[1].busy - found[0].busy))


_STEP = "A program has a block of 128 queries, and takes steps of 128 keys. "

ATTN_4_CLOCKS = Prediction(
    "attn-4-clocks",
    "Count the clocks of a step",
    question=f"""\
{_STEP}`D` is 64. On one multiprocessor of an H100, the tensor cores do 2048 multiply-adds per clock, and the units for exponentials do 16
exponentials per clock.

How many clocks do the two products of one step take together? And the exponentials of its scores? Answer with two numbers: `(products,
exponentials)`.""",
    answer=lambda: step_clocks(128, 128, 64),
    wrong=(
        (
            (512, 1024),
            "A step has two products of 128 * 128 * 64 multiply-adds: of queries and keys, and of weights and values.",
        ),
        ((1024, 512), "There are 128 * 128 scores, and 16 exponentials per clock."),
        ((1024, 8), "Each query has 128 scores in this step, so there are 128 * 128 exponentials, not 128."),
        ((1024, 65536), "The exponential is taken of the scores, which are 128 x 128. `D` plays no part in it."),
        (
            (1024, 8192),
            "The exponential is taken of the scores, which are 128 x 128, not of the 128 x 64 queries and keys twice.",
        ),
        ((16, 1024), "A product of 128 x 64 with 64 x 128 has 128 * 128 * 64 multiply-adds."),
        ((2048, 1024), "2 * 128 * 128 * 64 multiply-adds divided by 2048 per clock: a multiply-add counts once."),
    ),
    hints=(
        "How many multiply-adds has the product of 128 x 64 with 64 x 128? How many scores are there?",
        "The second product is 128 x 128 with 128 x 64: just as many multiply-adds. There are 128 * 128 scores.",
        "2 * 128 * 128 * 64 / 2048, and 128 * 128 / 16.",
    ),
    reveals="Timeline",
)

ATTN_4_STAGES = Prediction(
    "attn-4-stages",
    "Predict what more stages bring",
    question=f"""\
{_STEP}You have seen the timeline with one stage and with two.

By how many percentage points does the share of the products rise, from two stages to four? Look at the rows of `k` and `v` first: does a
product still wait for a copy?""",
    answer=lambda: points_of_stages(2, 4),
    wrong=(
        (
            lambda: points_of_stages(1, 2),
            "So much came from the second stage. With two, no product waits for a copy any more.",
        ),
        (
            5,
            "With two stages, the keys and values are there before the product needs them. A copy that comes even earlier helps nobody.",
        ),
        (
            10,
            "With two stages, the keys and values are there before the product needs them. A copy that comes even earlier helps nobody.",
        ),
        (45, "Twice as many stages do not make products run twice as long: look at what stands between them."),
        (-5, "More stages take more shared memory, but still fit. Nothing gets slower."),
    ),
    hints=(
        "In the row of the products, which row is busy in each gap?",
        "The copies of the next step have arrived long before its products begin. The consumers compute the softmax in the gap.",
        "More stages hide the latency of copies only, and it is hidden already.",
    ),
    reveals="Timeline",
)

ATTN_4_HEAD = Prediction(
    "attn-4-head",
    "Predict what a longer row brings",
    question=f"""\
{_STEP}Now `D` is 128 instead of 64.

By which factor do the clocks of the two products of a step change? And the clocks of its exponentials? Answer with two numbers:
`(products, exponentials)`.""",
    answer=lambda: tuple(
        new // old for new, old in zip(step_clocks(128, 128, 128), step_clocks(128, 128, 64), strict=True)
    ),
    wrong=(
        ((2, 2), "There are still 128 x 128 scores, so the exponentials stay as they are."),
        ((1, 1), "Each score is a sum of `D` products, and each row of the result has `D` elements."),
        ((4, 1), "Each of the two products has twice as many multiply-adds, so both together have twice as many, too."),
        ((1, 2), "The order of the answer is (products, exponentials)."),
        ((4, 2), "Each product has `D` once in its sizes, and the scores do not have it at all."),
    ),
    hints=(
        "Which of the sizes 128 x 128 x D belong to a product? Which belong to the scores?",
        "A product has 128 * 128 * D multiply-adds. The scores are 128 x 128 for any D.",
        "Twice the multiply-adds, and as many exponentials as before.",
    ),
    reveals="Timeline",
)

EXERCISES = (ATTN_1, ATTN_2, ATTN_3, ATTN_4_CLOCKS, ATTN_4_STAGES, ATTN_4_HEAD)
