"""attn-1 and attn-2: attention of a block of queries, over all keys at once and over one block of keys after another."""

from __future__ import annotations

from blocknb.learn.code_rules import assembles
from blocknb.learn.exercise import Blank, Exercise, Mistake
from blocknb.learn.rules import no_race, stored_once
from blocknb.learn.units.attention_cases import attention64, attention_case, block_grid
from blocknb.learn.units.matrix_cases import patched

#: Results are means of numbers near 1 in fp16, and their weights are rounded to fp16.
NEAR = 2.0**-8

SHAPES = """`q` has `M` rows, one for each query. `k` and `v` have `N` rows, one for each key. `out` has the shape of `q`.
All have `D` columns, are fp16 and row-major. `D` is a constant and a power of two. Program `p` computes the rows from `p * BM` on."""

AT_ONCE = """@blocknb.kernel
def attention(q, k, v, out, M, N, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n, d = tl.arange(0, BN), tl.arange(0, D)
    queries = tl.load(q + m[:, None] * D + d[None, :], mask=m[:, None] < M, other=0.0)
    keys = tl.load(k + n[:, None] * D + d[None, :], mask=n[:, None] < N, other=0.0)
    values = tl.load(v + n[:, None] * D + d[None, :], mask=n[:, None] < N, other=0.0)
    scores = tl.dot(queries, tl.trans(keys)) * scale
    scores = tl.where(n[None, :] < N, scores, -float("inf"))
    powers = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    total = tl.sum(powers, axis=1)
    result = tl.dot(powers.to(tl.float16), values) / total[:, None]
    tl.store(out + m[:, None] * D + d[None, :], result, mask=m[:, None] < M)
"""

_SCORES = "tl.dot(queries, tl.trans(keys)) * scale"
_MASKED = '    scores = tl.where(n[None, :] < N, scores, -float("inf"))\n'
_POWERS = "tl.exp(scores - tl.max(scores, axis=1)[:, None])"
_RESULT = "tl.dot(powers.to(tl.float16), values) / total[:, None]"
_STORE = "    tl.store(out + m[:, None] * D + d[None, :], result, mask=m[:, None] < M)\n"

#: Mistakes that the kernels of all three exercises may hold.
COMMON = (
    Mistake("the scores are not scaled: multiply them by `scale`", patch=(_SCORES, "tl.dot(queries, tl.trans(keys))")),
    Mistake("the scores are divided by `scale`: multiply them by it", patch=("(keys)) * scale", "(keys)) / scale")),
    Mistake(
        "each program stores the block of program 0: add program_id to the rows",
        patch=("tl.program_id(0) * BM + tl", "tl"),
    ),
    Mistake(
        "the rows of a program begin at program_id * BM", patch=("tl.program_id(0) * BM + tl", "tl.program_id(0) + tl")
    ),
    Mistake("the second product takes the keys: it needs the values", patch=("tl.load(v +", "tl.load(k +")),
    Mistake("the first product takes the values: it needs the keys", patch=("tl.load(k +", "tl.load(v +")),
)

_ROWS = Mistake(
    "the rows of `out` end at M, not at N", patch=("result, mask=m[:, None] < M", "result, mask=m[:, None] < N")
)

ATTN_1 = Exercise(
    "attn-1",
    "Attention over all keys at once",
    task=f"""\
{SHAPES}
`BN` is a power of two that is not below `N`, so one block holds all keys.

Store `softmax(q @ k.T * scale) @ v` in `out`: the softmax of each row of scores, times the values. Lanes past the last key must not count.
The scores stay in registers.""",
    cases=(
        attention_case("normal", 64, 32, BM=32, BN=32),
        attention_case("low", 50, 21, BM=32, BN=32),
        attention_case("large", 40, 60, BM=16, BN=64),
        attention_case("normal", 3, 5, BM=16, BN=8),
    ),
    outputs=("out",),
    grid=block_grid,
    reference=attention64,
    rules=(stored_once, no_race, assembles),
    tolerance=NEAR,
    solution=AT_ONCE,
    blanks=(
        Blank(8, 9, "the scores of each query and each key, scaled; -inf past the last key", keep="scores = ..."),
        Blank(10, 10, "the exponentials of a stable softmax"),
        Blank(11, 11, "their sum for each query"),
        Blank(12, 12, "the values, weighted with the softmax"),
    ),
    hints=(
        "`queries` has BM x D elements, and `keys` has BN x D. How do you get BM x BN scores? Along which axis is a softmax taken?",
        "`tl.trans(keys)` is D x BN. A row of scores belongs to one query, so its maximum and its sum are along axis 1.",
        '`tl.where(n[None, :] < N, scores, -float("inf"))` after the scaled product. Then subtract `tl.max(scores, axis=1)[:, None]`.',
    ),
    mistakes=(
        *COMMON,
        Mistake("lanes past the last key count with the score 0: set their scores to -inf", patch=(_MASKED, "")),
        Mistake(
            "lanes past the last key count with the score 0: the masked score is -inf, not 0",
            patch=('-float("inf")', "0.0"),
        ),
        Mistake(
            "the exponential overflows: subtract the maximum of each row of scores", patch=(_POWERS, "tl.exp(scores)")
        ),
        Mistake(
            "the weights are not divided by their sum",
            patch=(_RESULT, "tl.dot(powers.to(tl.float16), values)"),
        ),
        Mistake(
            "the softmax is taken along the queries: a row of scores is along axis 1",
            patches=(
                (_POWERS, "tl.exp(scores - tl.max(scores, axis=0)[None, :])"),
                ("tl.sum(powers, axis=1)", "tl.sum(powers, axis=0)"),
                (_RESULT, "tl.dot((powers / total[None, :]).to(tl.float16), values)"),
            ),
        ),
        Mistake("the exponential has the wrong base: `tl.exp`, not `tl.exp2`", patch=("tl.exp(", "tl.exp2(")),
        Mistake(
            "the weights are divided by the largest one: divide by their sum", patch=("tl.sum(powers", "tl.max(powers")
        ),
        Mistake(
            "the weights are divided by the sum of the scores: sum the exponentials",
            patch=("tl.sum(powers", "tl.sum(tl.where(n[None, :] < N, scores, 0.0)"),
        ),
        Mistake(
            "the scores are the weights: the softmax is missing",
            patch=(_RESULT, "tl.dot(tl.where(n[None, :] < N, scores, 0.0).to(tl.float16), values)"),
        ),
        Mistake("it multiplies by the sum: divide by it", patch=("/ total[:, None]", "* total[:, None]")),
        _ROWS,
        Mistake("the kernel has no store to `out`: end with tl.store", patch=(_STORE, "")),
    ),
    alternatives=(
        patched(AT_ONCE, (_RESULT, "tl.dot((powers / total[:, None]).to(tl.float16), values)")),
        patched(AT_ONCE, ("tl.trans(keys)", "keys.T")),
        patched(
            AT_ONCE,
            (
                "k + n[:, None] * D + d[None, :], mask=n[:, None] < N",
                "k + n[None, :] * D + d[:, None], mask=n[None, :] < N",
            ),
            ("tl.trans(keys)", "keys"),
        ),
        patched(AT_ONCE, (_POWERS, "tl.exp2((scores - tl.max(scores, axis=1)[:, None]) * 1.4426950408889634)")),
        patched(AT_ONCE, (_MASKED, '    scores += tl.where(n < N, 0.0, -float("inf"))[None, :]\n')),
        patched(AT_ONCE, ('-float("inf")', "-1.0e6")),
        patched(
            AT_ONCE,
            (_POWERS, "tl.exp(scores - tl.max(scores, 1, keep_dims=True))"),
            ("result, mask", "result.to(tl.float16), mask"),
        ),
    ),
)

ONLINE = """@blocknb.kernel
def attention(q, k, v, out, M, N, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    queries = tl.load(q + m[:, None] * D + d[None, :], mask=m[:, None] < M, other=0.0)
    largest = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    result = tl.zeros((BM, D), tl.float32)
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        keys = tl.load(k + n[:, None] * D + d[None, :], mask=n[:, None] < N, other=0.0)
        values = tl.load(v + n[:, None] * D + d[None, :], mask=n[:, None] < N, other=0.0)
        scores = tl.dot(queries, tl.trans(keys)) * scale
        scores = tl.where(n[None, :] < N, scores, -float("inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        factor = tl.exp(largest - new_largest)
        powers = tl.exp(scores - new_largest[:, None])
        total = total * factor + tl.sum(powers, axis=1)
        result = result * factor[:, None] + tl.dot(powers.to(tl.float16), values)
        largest = new_largest
    result = result / total[:, None]
    tl.store(out + m[:, None] * D + d[None, :], result, mask=m[:, None] < M)
"""

_MAXIMUM = "tl.maximum(largest, tl.max(scores, axis=1))"
_TOTAL = "total * factor + tl.sum(powers, axis=1)"
_ADDED = "result * factor[:, None] + tl.dot(powers.to(tl.float16), values)"
_DIVIDED = "    result = result / total[:, None]\n"

#: Mistakes of a softmax over blocks of keys, which attn-2 and attn-3 share.
ONLINE_MISTAKES = (
    Mistake("the old sum is not rescaled when the maximum grows: total * factor", patch=("total * factor", "total")),
    Mistake(
        "the old result is not rescaled when the maximum grows: result * factor[:, None]",
        patch=("result * factor[:, None]", "result"),
    ),
    Mistake(
        "neither the old sum nor the old result is rescaled when the maximum grows",
        patches=(("total * factor", "total"), ("result * factor[:, None]", "result")),
    ),
    Mistake(
        "the factor is upside down: exp(largest - new_largest)",
        patch=("tl.exp(largest - new_largest)", "tl.where(largest > -1e30, tl.exp(new_largest - largest), 0.0)"),
    ),
    Mistake(
        "the exponential is missing in the factor",
        patch=("tl.exp(largest - new_largest)", "tl.where(largest > -1e30, largest - new_largest, 0.0)"),
    ),
    Mistake("`largest` is the maximum of the last block only", patch=(_MAXIMUM, "tl.max(scores, axis=1)")),
    Mistake("`largest` is never updated: it stays -inf", patch=("        largest = new_largest\n", "")),
    Mistake("the old sum is lost: add the new block to it", patch=(_TOTAL, "tl.sum(powers, axis=1)")),
    Mistake("the old result is lost: add the new block to it", patch=(_ADDED, "tl.dot(powers.to(tl.float16), values)")),
    Mistake("the result is not divided by the sum", patch=(_DIVIDED, "")),
    Mistake(
        "the result is divided by the sum in each step: divide once, after the loop",
        patches=((_DIVIDED, ""), (_ADDED, f"({_ADDED}) / total[:, None]")),
    ),
    Mistake(
        "the new block is rescaled, too: only the old result needs the factor",
        patch=(_ADDED, "(result + tl.dot(powers.to(tl.float16), values)) * factor[:, None]"),
    ),
    Mistake(
        "each step loads the first block of values: their addresses lack `start`",
        patch=("tl.load(v + n[:, None] * D", "tl.load(v + (n - start)[:, None] * D"),
    ),
    Mistake(
        "each step loads the first block of keys: their addresses lack `start`",
        patch=("tl.load(k + n[:, None] * D", "tl.load(k + (n - start)[:, None] * D"),
    ),
)

#: Other right ways to compute the lines of a step.
ONLINE_ALTERNATIVES: tuple[tuple[tuple[str, str], ...], ...] = (
    ((_ADDED, "tl.dot(powers.to(tl.float16), values, result * factor[:, None])"),),
    (
        ("        total = total", "        result *= factor[:, None]\n        total = total"),
        (_ADDED, "result + tl.dot(powers.to(tl.float16), values)"),
    ),
    ((_MAXIMUM, "tl.max(tl.maximum(scores, largest[:, None]), axis=1)"),),
    (("result / total[:, None]", "result * (1.0 / total)[:, None]"), ("tl.trans(keys)", "keys.T")),
    (('tl.full((BM,), -float("inf"), tl.float32)', "tl.full((BM,), -1.0e30, tl.float32)"),),
)

ATTN_2 = Exercise(
    "attn-2",
    "Attention over one block of keys after another",
    task=f"""\
{SHAPES}
`N` is any number, and a block has `BN` keys.

Store `softmax(q @ k.T * scale) @ v` in `out`. Walk along the keys once, in steps of `BN`. After each step, `total` and `result` must be
what they would be if no further keys came.""",
    cases=(
        attention_case("normal", 64, 96, BM=32, BN=32),
        attention_case("rising", 50, 70, BM=32, BN=16),
        attention_case("falling", 20, 70, BM=32, BN=16),
        attention_case("low", 33, 41, BM=16, BN=32),
        attention_case("large", 16, 50, BM=16, BN=16),
        attention_case("normal", 3, 5, BM=16, BN=8),
    ),
    outputs=("out",),
    grid=block_grid,
    reference=attention64,
    rules=(stored_once, no_race, assembles),
    tolerance=NEAR,
    solution=ONLINE,
    blanks=(
        Blank(15, 15, "the maximum of all scores so far, for each query"),
        Blank(16, 16, "what the old sum and the old result must be multiplied by"),
        Blank(17, 17, "the exponentials of this block"),
        Blank(18, 18, "the sum of all exponentials so far"),
        Blank(19, 19, "the weighted sum of all values so far"),
        Blank(20, 20, "the step to the next block"),
        Blank(21, 21, "what remains to do after the last block"),
    ),
    hints=(
        "A block holds a larger score than all before. By which factor is the old sum too large now? And the old result?",
        "It is online-1 with one maximum and one sum for each query. The result is a sum, too, so it needs the same factor.",
        "`factor = tl.exp(largest - new_largest)`. `total * factor` and `result * factor[:, None]` are the old sums.",
    ),
    mistakes=(
        *COMMON,
        *ONLINE_MISTAKES,
        _ROWS,
        Mistake(
            "lanes past the last key count with the score 0: set their scores to -inf",
            patch=('        scores = tl.where(n[None, :] < N, scores, -float("inf"))\n', ""),
        ),
        Mistake("the walk ends one block early", patch=("range(0, N, BN)", "range(0, N - BN, BN)")),
        Mistake("only the first block of keys is used", patch=("range(0, N, BN)", "range(0, 1, BN)")),
    ),
    alternatives=tuple(patched(ONLINE, *changes) for changes in ONLINE_ALTERNATIVES),
)
