"""attn-3: causal attention, where a query sees no later key, and programs skip the blocks of keys that none of their queries sees."""

from __future__ import annotations

from blocknb.learn.code_rules import assembles
from blocknb.learn.exercise import Blank, Exercise, Mistake
from blocknb.learn.rules import no_race, stored_once
from blocknb.learn.units.attention_cases import attention_case, block_grid, causal64, skips_blocks
from blocknb.learn.units.attention_kernels import COMMON, NEAR, ONLINE, ONLINE_ALTERNATIVES, ONLINE_MISTAKES
from blocknb.learn.units.matrix_cases import patched

_END = "tl.minimum(N, (tl.program_id(0) + 1) * BM)"
_SEEN = "n[None, :] <= m[:, None]"
_MASKED = f'        scores = tl.where({_SEEN}, scores, -float("inf"))\n'

CAUSAL = patched(
    ONLINE,
    ("out, M, N,", "out, N,"),
    ("m[:, None] < M", "m[:, None] < N"),
    ("    for start in range(0, N, BN):\n", f"    end = {_END}\n    for start in range(0, end, BN):\n"),
    ("n[None, :] < N", _SEEN),
)

_LOOP = CAUSAL[CAUSAL.index("    for start") : CAUSAL.index("    result = result / total")]
#: A loop over the blocks that all queries of the program see, without a mask, and one over the blocks at the diagonal.
_TWO_LOOPS = patched(
    CAUSAL,
    (
        _LOOP,
        "    full = tl.program_id(0) * BM // BN * BN\n"
        + patched(_LOOP, (_MASKED, ""), ("range(0, end", "range(0, full"))
        + patched(_LOOP, ("range(0, end", "range(full, end")),
    ),
)
_WHILE = patched(
    CAUSAL,
    ("    for start in range(0, end, BN):\n", "    start = 0\n    while start < end:\n"),
    ("        largest = new_largest\n", "        largest = new_largest\n        start += BN\n"),
)

ATTN_3 = Exercise(
    "attn-3",
    "Causal attention that skips blocks",
    task="""\
There are `N` queries, and as many keys. Query `i` sees the keys 0 to `i` only. All arrays are fp16, row-major, and have `D` columns.
Program `p` computes the rows from `p * BM` on. A block has `BN` keys, and `BN` may differ from `BM`.

Store the attention of each query over the keys that it sees. End the loop where no query of the program sees a key any more.
So programs with small numbers take few steps, and all programs together about half of them.""",
    cases=(
        attention_case("normal", 128, BM=32, BN=16),
        attention_case("rising", 75, BM=16, BN=32),
        attention_case("falling", 70, BM=32, BN=16),
        attention_case("low", 41, BM=16, BN=16),
        attention_case("normal", 5, BM=16, BN=8),
    ),
    outputs=("out",),
    grid=block_grid,
    reference=causal64,
    rules=(stored_once, no_race, skips_blocks, assembles),
    tolerance=NEAR,
    solution=CAUSAL,
    blanks=(
        Blank(9, 9, "the key after the last one that a query of this program sees"),
        Blank(15, 15, "-inf for the keys that a query does not see"),
    ),
    hints=(
        "Program 2 has BM = 32. Which is its last query, and which keys does this query see? And its first query?",
        "The last query of program p is (p + 1) * BM - 1, and it sees keys up to its own number. The mask compares such numbers.",
        f"`end = {_END}`, and `tl.where({_SEEN}, ...)`",
    ),
    mistakes=(
        *COMMON,
        *ONLINE_MISTAKES,
        Mistake("hold a key that counts: end the loop earlier", patch=(_END, "N")),
        Mistake(
            "each query sees all keys up to the end of its block: compare the numbers of keys and queries",
            patch=(_SEEN, f"n[None, :] < {_END}"),
        ),
        Mistake("a query sees its own key, too: `<=`, not `<`", patch=(_SEEN, "n[None, :] < m[:, None]")),
        Mistake(
            "the mask is the wrong way round: a query sees no later key", patch=(_SEEN, "n[None, :] >= m[:, None]")
        ),
        Mistake(
            "the mask compares places in the block: `n` needs `start`, and `m` the number of the program",
            patch=(_SEEN, "(n - start)[None, :] <= (m - tl.program_id(0) * BM)[:, None]"),
        ),
        Mistake(
            "the loop ends before the block of the program's own keys",
            patch=(_END, "tl.minimum(N, tl.program_id(0) * BM)"),
        ),
        Mistake(
            "the loop ends after one block per program: blocks of keys have BN keys",
            patch=(_END, "tl.minimum(N, (tl.program_id(0) + 1) * BN)"),
        ),
        Mistake("the masked score is -inf, not 0", patch=(_MASKED, _MASKED.replace('-float("inf")', "0.0"))),
        Mistake(
            "the loop begins at the program's own keys: earlier keys count, too",
            patch=("range(0, end, BN)", "range(tl.program_id(0) * BM // BN * BN, end, BN)"),
        ),
    ),
    alternatives=(
        _TWO_LOOPS,
        _WHILE,
        *(patched(CAUSAL, *changes) for changes in ONLINE_ALTERNATIVES),
        patched(CAUSAL, (_END, "(tl.program_id(0) + 1) * BM")),
        patched(CAUSAL, (_SEEN, "m[:, None] >= n[None, :]"), (_END, "tl.minimum((tl.program_id(0) + 1) * BM, N)")),
    ),
)
