"""The pass `unroll`: which loops are unrolled, which only in part, and the notes for the others."""

from __future__ import annotations

import pytest
from frontend_helpers import ir, kernel
from short_kernels import counts, report, same, texts

import blocknb.language as bl


@kernel
def moving_sum(x, y, n, K: bl.constexpr, FACTOR: bl.constexpr):
    at = bl.program_id(0) * 64 + bl.arange(0, 64)
    total = bl.zeros((64,), bl.float32)
    for k in bl.range(0, K, loop_unroll_factor=FACTOR):
        total += bl.load(x + at + k) * (k + 1)
    bl.store(y + at, total, mask=at < n)


ARGUMENTS = {"x": "*f32", "y": "*f32", "n": "i32"}


def unrolled(K, FACTOR):
    return same(moving_sum, "simplify", "unroll", scalars=(100,), K=K, FACTOR=FACTOR, **ARGUMENTS)


def test_a_loop_of_few_iterations_and_ops_is_unrolled(golden):
    before, after, notes = unrolled(3, 1)
    assert (counts(before)["for"], counts(after)["for"]) == (1, 0)
    assert counts(after)["load"] == 3
    assert counts(after)["const"] <= counts(before)["const"] + 6
    golden("unroll/moving_sum.ir", report(before, after, "unroll", notes))


def test_a_copy_of_an_op_keeps_its_location_and_names_its_original():
    before, after, _ = unrolled(3, 1)
    (original,) = (op for op in before.ops() if op.name == "load")
    copies = [op for op in after.ops() if op.name == "load"]
    assert all(op.loc == original.loc and op.was == (original.id,) for op in copies)
    assert len({op.id for op in copies}) == 3


def test_a_longer_loop_is_unchanged():
    before, after, notes = unrolled(40, 1)
    assert after is before
    assert notes == []


@kernel
def squares(x, y, n, K: bl.constexpr, PRODUCTS: bl.constexpr):
    at = bl.arange(0, 16)[:, None] * 16 + bl.arange(0, 16)
    total = bl.zeros((16, 16), bl.float32)
    for k in bl.range(0, K):
        a = bl.load(x + k * 256 + at)
        b = bl.dot(a, a, input_precision="ieee") if PRODUCTS == 2 else a
        total = bl.dot(b, a, total, input_precision="ieee")
    bl.store(y + at, total)


@pytest.mark.parametrize(("iterations", "products", "loops"), [(3, 1, 0), (4, 1, 1), (1, 2, 0), (2, 2, 1), (3, 2, 1)])
def test_a_loop_with_many_products_is_not_unrolled(iterations, products, loops):
    arguments = {"x": "*f32", "y": "*f32", "n": "i32"}
    _, after, _ = same(squares, "simplify", "unroll", scalars=(100,), K=iterations, PRODUCTS=products, **arguments)
    assert counts(after).get("for", 0) == loops


@kernel
def pairs_of_products(x, y, STAGES: bl.constexpr, NARROW: bl.constexpr):
    at = bl.arange(0, 16)[:, None] * 16 + bl.arange(0, 16)
    total = bl.zeros((16, 16), bl.float32)
    for k in bl.range(0, 2, num_stages=STAGES):
        a = bl.load(x + k * 256 + at)
        b = bl.trans(a).to(bl.float16) if NARROW else bl.trans(a)
        total = bl.dot(b, b, total, input_precision="ieee")
        total = bl.dot(b, b, total, input_precision="ieee")
    bl.store(y + at, total)


@pytest.mark.parametrize(
    ("dtype", "stages", "narrow", "loops"),
    [
        ("f32", 2, False, 1),
        ("f32", 1, False, 0),  # nothing is staged
        ("f32", 2, True, 0),  # threads convert what they read from the stages
        ("f16", 2, True, 1),  # the cast changes nothing
    ],
)
def test_a_loop_of_four_products_is_unrolled_if_stages_gain_little(dtype, stages, narrow, loops):
    types = {"x": f"*{dtype}", "y": "*f32"}
    _, after, _ = same(pairs_of_products, "simplify", "unroll", STAGES=stages, NARROW=narrow, **types)
    assert counts(after).get("for", 0) == loops


@pytest.mark.parametrize("iterations", [8, 9, 11])
def test_an_unroll_factor_merges_iterations_and_adds_a_remainder_loop(iterations):
    _, after, notes = unrolled(iterations, 4)
    main, *rest = (op for op in after.ops() if op.name == "for")
    assert sum(op.name == "load" for op in main.blocks[0].ops) == 4
    assert len(rest) == (0 if iterations % 4 == 0 else 1 if iterations % 4 > 4 else len(rest))
    assert texts(notes)[0].startswith("4 iterations in one")


@kernel
def count_down(x, y, n, K: bl.constexpr):
    total = 0.0
    for i in bl.range(n, 0, -2, loop_unroll_factor=3):
        total += bl.load(x + i) * i
    bl.store(y + bl.program_id(0), total)


@pytest.mark.parametrize("n", [-3, 0, 1, 2, 5, 6, 7, 12, 13])
def test_an_unroll_factor_is_right_for_every_iteration_count_and_downwards(n):
    _, after, _ = same(count_down, "unroll", scalars=(n,), K=1, x="*f32", y="*f32", n="i32")
    assert counts(after)["for"] == 2


@kernel
def nested(x, y):
    total = 0.0
    for i in bl.range(0, 3):
        for j in bl.range(0, i):
            total += bl.load(x + i * 4 + j)
    bl.store(y + bl.program_id(0), total)


def test_an_inner_loop_whose_bounds_become_constants_is_unrolled_too():
    _, after, notes = same(nested, "unroll", x="*f32", y="*f32")
    assert (counts(after)["for"], counts(after)["load"]) == (0, 3)
    assert texts(notes) == [
        "unrolled: 3 iterations of 10 ops",
        "unrolled: 1 iteration of 3 ops",
        "unrolled: 2 iterations of 3 ops",
    ]


@kernel
def asked_in_vain(x, y, n, step):
    total = 0.0
    for i in bl.range(0, n, step, loop_unroll_factor=4):
        total += bl.load(x + i)
    bl.store(y + bl.program_id(0), total)


def test_a_note_explains_why_a_requested_unroll_is_impossible():
    before, after, notes = same(asked_in_vain, "unroll", scalars=(30, 3), x="*f32", y="*f32", n="i32", step="i32")
    assert after is before
    assert [(n.kind, n.text) for n in notes] == [("missed", "not unrolled: the step of the loop is not a constant")]


def test_without_unroll_the_loop_remains():
    """The pass changes this number: the loops that remain."""
    func = ir(moving_sum, K=4, FACTOR=1, **ARGUMENTS)
    assert counts(func)["for"] == 1
    assert counts(unrolled(4, 1)[1])["for"] == 0
