"""Twelve pairs of stages, versions, targets and settings: the sentences name each change that matters, and no op is matched wrongly.

The expected sentences were written from the IR of both sides. The ids of ops, which the matching of two compilations does not read, judge
the matching: equal sources give equal ids in the front end.
"""

from __future__ import annotations

import pytest
from pairs import compared, stage_pair, told, trace

from blocknb.ir_diff import Matching, sentences
from blocknb.ir_diff.compilations import match_front_ends, origins
from blocknb.ir_diff.sentence_writer import is_arithmetic, is_structural

STAGES = {
    "coalesce": (
        ("softmax_781", "sm_90a", "coalesce"),
        [
            "1 load accesses 1 element per instruction",
            "1 store accesses 1 element per instruction",
            "2 ops got the layout `#a`",
        ],
    ),
    "pipelining": (
        ("matmul_float16", "sm_80", "software_pipelining"),
        [
            "2 loads became `copy_async` into circular buffers of 3 stages; the copies of the first 2 iterations stand before the loop",
            "2 buffers have 3 stages instead of 1, 24576 bytes together",
            "synchronization inserted: 3 `commit`, 2 `wait`",
            "2 `local_store` removed",
            "2 `local_load` read the results of `stage`",
            "the loop carries 2 more values: `read` and `write`",
        ],
    ),
    "warp specialization": (
        ("boxed_fp16", "sm_90a", "warp_specialization"),
        [
            "2 loads became `copy_bulk` (TMA) into circular buffers of 8 stages, in the producer warps",
            "the warps have roles: 8 consumer warps in 2 groups compute, 1 producer warp copies; both roles run 22 ops",
            "2 buffers have 8 stages instead of 1, 49152 bytes together",
            "2 buffers have 2 stages instead of 1, 32768 bytes together",
            "1 dot may stay in flight, 1 at a time",
            "synchronization inserted: 3 `mbarriers`, 3 `arrive`, 1 `await`, 1 `dot_wait`",
            "synchronization removed: 1 fence",
            "1 barrier inserted",
            "the loop carries 3 more values: `stage`, `parity` and `before`",
        ],
    ),
    "simplify": (
        ("boxed_fp16", "sm_90a", "simplify"),
        [
            "46 ops moved out of the loop at line 116: 10 `cast`, 7 `splat`, 6 `broadcast`, 5 `expand_dims`, 4 `mul`, 4 `add`, and 10 more",
            "49 ops were merged with an equal op: 13 `cast`, 9 `arange`, 8 `const`, 6 `splat`, 3 `expand_dims`, 3 `add`, and 7 more",
        ],
    ),
    "layouts": (
        ("matmul_float16", "sm_80", "layout_assignment"),
        [
            "the IR is at the level “distributed”: every tile has a layout",
            "3 `convert` added",
            "55 ops got a layout, 15 layouts in all: `#p` for 8, `#i` for 7, `#l` for 7, `#b` for 6, …",
            "10 ops have copies for other layouts, 22 in all: 5 `splat`, 2 `arange`, 2 `add`, 1 `cmp`",
            "1 store reads the results of `convert`",
        ],
    ),
    "conversions": (
        ("softmax_781", "sm_90a", "lower_conversions"),
        [
            "2 `reduce` became 2 steps each: within a warp, and across warps",
            "2 tiles are stored to shared memory, and 2 read from there",
            "2 buffers in shared memory added: 32 bytes",
        ],
    ),
    "barriers": (
        ("matmul_float16", "sm_80", "barriers"),
        [
            "1 barrier inserted before the `copy_async` at line 48",
            "1 barrier inserted before the `local_store` at line 47",
            "1 barrier inserted before the `local_load` at line 47",
        ],
    ),
    "TMA stores": (
        ("boxed_fp16", "sm_90a", "tma_store"),
        [
            "2 stores became `store_bulk` (TMA): the copy engine writes the tile from shared memory",
            "2 buffers in shared memory removed: 32768 bytes",
            "2 `local_load` removed",
            "synchronization inserted: 1 `store_wait`",
        ],
    ),
    "unrolling": (
        ("unrolled", "sm_90a", "unroll"),
        ["the loop at line 48 was unrolled 4 times: 5 ops have 4 copies each"],
    ),
}
COMPILATIONS = {
    "a changed BLOCK": (
        ("softmax_781", "sm_90a", {}),
        ("softmax_781", "sm_90a", {"BLOCK": 2048}),
        [
            "1 load of 2048xf32 instead of 1024xf32",
            "7 values have another type: 2 `ptradd`, 1 `cmp`, 1 `const`, 1 `sub`, 1 `exp`, 1 `div`",
        ],
    ),
    "a changed loop": (
        ("first_rows", "sm_90a", {}),
        ("second_rows", "sm_90a", {}),
        ["the loop runs with the step 2 instead of 1", "2 ops of arithmetic were added: 1 `const`, 1 `mul`"],
    ),
    "two targets": (
        ("matmul_float16", "sm_80", {}),
        ("matmul_float16", "sm_90a", {}),
        [
            "1 dot uses the instruction `wgmma.m64n64k16` instead of `m16n8k16`",
            "1 dot may stay in flight, 1 at a time",
            "synchronization inserted: 1 fence, 1 `dot_wait`",
            "3 `local_load` removed",
            "1 barrier removed before the `local_store` at line 47",
        ],
    ),
    "num_stages": (
        ("matmul_float16", "sm_80", {"num_stages": 2}),
        ("matmul_float16", "sm_80", {"num_stages": 4}),
        [
            "2 buffers have 4 stages instead of 2, 32768 bytes together",
            "the kernel has 4 stages instead of 2",
            "1 `wait` has `in_flight` = 2 instead of 0",
        ],
    ),
}


def of(name: str) -> tuple[Matching, bool, list[str]]:
    """A pair by name: its matching, whether two compilations are compared, and the sentences that must be there."""
    if name in STAGES:
        pair, expected = STAGES[name]
        return stage_pair(*pair), False, expected
    (a, target_a, left), (b, target_b, right), expected = COMPILATIONS[name]
    return compared(trace(a, target_a, **left), trace(b, target_b, **right)), True, expected


NAMES = [*STAGES, *COMPILATIONS]


def test_there_are_twelve_pairs_and_more():
    assert len(NAMES) >= 12


@pytest.mark.parametrize("name", NAMES)
def test_the_sentences_name_every_change_that_matters(name):
    matching, compared, expected = of(name)
    found = told(matching, compared)
    assert [text for text in expected if text not in found] == [], "\n".join(found)


@pytest.mark.parametrize("name", NAMES)
def test_every_notable_op_that_differs_is_in_a_sentence(name):
    matching, compared, _ = of(name)
    found = sentences(matching, compared)
    before, after = ({id for s in found for id in getattr(s, side)} for side in ("before", "after"))
    untold = []
    for match in matching.of_kind("added", "removed", "replaced", "duplicated", "merged"):
        sides = ((matching.before, match.before, before), (matching.after, match.after, after))
        for side, ids, told_ids in sides:
            inside = [i for i in ids if side.ops[i].parent < 0 or side.ops[side.ops[i].parent].op.name != "reduce"]
            names = {i: side.ops[i].op.name for i in inside}
            untold += [
                (i, n) for i, n in names.items() if not is_arithmetic(n) and not is_structural(n) and i not in told_ids
            ]
    assert untold == []


@pytest.mark.parametrize("name", STAGES)
def test_no_op_of_a_stage_is_matched_against_its_id_or_its_provenance(name):
    matching, _, _ = of(name)
    wrong = []
    for match in matching.matches:
        for old in match.before:
            for new in match.after:
                a, b = matching.op_before(old), matching.op_after(new)
                same_place = (a.name, a.loc) == (b.name, b.loc)
                related = old == new or old in b.was or (same_place and new not in matching.before.ops)
                if not related and match.kind in ("kept", "moved", "changed", "duplicated"):
                    wrong.append((match.kind, old, new))
    assert wrong == []
    both = set(matching.before.ops) & set(matching.after.ops)
    assert both and all(matching.counterpart[id] == id for id in both)


@pytest.mark.parametrize("name", [name for name in COMPILATIONS if name != "a changed loop"])
def test_no_op_of_two_compilations_of_one_source_is_matched_against_its_id(name):
    (a, target_a, left), (b, target_b, right), _ = COMPILATIONS[name]
    one, two = trace(a, target_a, **left), trace(b, target_b, **right)
    front = match_front_ends(one, two)
    assert len(front) == len([*one.stages[0].after.ops()]) and all(old == new for old, new in front.items())
    matching = compared(one, two)
    roots = origins(one), origins(two)
    wrong = [(x, y) for x, y in matching.counterpart.items() if roots[0][x] != roots[1][y]]
    assert matching.counterpart and wrong == []


def test_no_op_of_a_changed_source_is_matched_with_an_op_of_another_line():
    one, two = trace("first_rows"), trace("second_rows")
    front = match_front_ends(one, two)
    lines = [
        {op.id: op.loc.line - made.first_line for op in made.stages[0].after.ops() if op.loc} for made in (one, two)
    ]
    names = [{op.id: op.name for op in made.stages[0].after.ops()} for made in (one, two)]
    wrong = [(a, b) for a, b in front.items() if lines[0][a] != lines[1][b] or names[0][a] != names[1][b]]
    assert wrong == []
    assert len(front) == len(names[0])  # the first version has no op without a counterpart
