"""Register prefetch: loads are issued some iterations early, and access nothing that the original program does not access.

Arrays end where the last iteration ends, and no kernel here has an unnecessary mask. So a superfluous early load is an AccessError.
"""

from __future__ import annotations

import numpy as np
import pytest
import seeds
from kernels.base import parameters
from register_prefetch_helpers import (
    ITERATION_COUNTS,
    floats,
    kernel,
    loops,
    only,
    parsed,
    pipelined,
    refused,
    rows,
    shared_rows,
    texts,
)
from short_kernels import report
from support import check_pipeline

import blocknb.language as bl
from blocknb.errors import AccessError
from blocknb.ir import interp
from blocknb.ir.core import walk
from blocknb.passes.tile import register_prefetch
from blocknb.target import Target

# -- loops over rows ---------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2, each=["stages", "iterations"])
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("iterations", ITERATION_COUNTS)
def test_a_loop_loads_its_first_rows_early_and_each_iteration_a_later_one(iterations, stages):
    arguments = {"x": floats(iterations, 64), "out": floats(iterations, 64), "first": 0, "last": iterations, "step": 1}
    stage = pipelined(rows, {**arguments, "B": 64, "STAGES": stages})
    assert texts(stage, "info")[0].startswith(f"pipelined: loaded {stages - 1} iteration")
    assert "before stores to out, assumed to be other arrays" in texts(stage, "info")[0]


@pytest.mark.sampled(2, each=["stages", "first"])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize(
    ("first", "last", "step"), [(6, -1, -1), (5, -1, -3), (0, 7, 3), (7, 7, 2), (0, 5, -1), (4, 6, 9)]
)
def test_steps_of_either_sign_load_nothing_beyond_the_last_iteration(first, last, step, stages):
    arguments = {"x": floats(7, 64), "out": floats(7, 64), "first": first, "last": last, "step": step}
    seen = sorted(range(first, last, step))
    low, high = (seen[0], seen[-1] + 1) if seen else (0, 0)
    if low == 0:  # then the arrays can end with the last row that is read
        arguments |= {name: arguments[name][:high].copy() for name in ("x", "out")}
    pipelined(rows, {**arguments, "B": 64, "STAGES": stages})


@pytest.mark.parametrize("m", ITERATION_COUNTS)
def test_programs_that_share_rows_load_only_their_own_rows(m):
    arguments = {"x": floats(m, 50), "out": floats(m, 50), "m": m, "n": 50, "B": 64}
    stage = pipelined(shared_rows, arguments, 3, num_stages=2)
    if m == 1:  # a launch makes this value a constant if it may
        assert stage.after is stage.before
        assert texts(stage, "missed") == ["not pipelined: the loop makes one iteration at most"]
    else:
        assert len(texts(stage, "info")) == 1


def test_golden_ir_of_a_softmax(golden):
    stage = only(shared_rows, {"x": floats(5, 50), "out": floats(5, 50), "m": 5, "n": 50, "B": 64}, num_stages=2)
    golden(
        "register_prefetch/shared_rows.ir", report(stage.before, stage.after, "register_prefetch", list(stage.notes))
    )


@pytest.mark.parametrize("stages", [2, 3])
def test_early_load_without_its_guard_is_out_of_bounds(stages, monkeypatch):
    monkeypatch.setattr(
        register_prefetch.LaterIterations,
        "goes_on",
        lambda iterations, iteration: iterations.builder.const(True, bl.int1),
    )
    arguments = {"x": floats(5, 64), "out": floats(5, 64), "first": 0, "last": 5, "step": 1, "B": 64, "STAGES": stages}
    func = only(rows, arguments).after
    with pytest.raises(AccessError):
        interp.run(func, parameters(func, arguments), 1)


@pytest.mark.parametrize(("m", "grid"), [(0, 1), (2, 3)])
def test_load_before_the_loop_without_its_guard_is_out_of_bounds(m, grid, monkeypatch):
    goes_on = register_prefetch.LaterIterations.goes_on
    monkeypatch.setattr(
        register_prefetch.LaterIterations,
        "goes_on",
        lambda iterations, iteration: (
            goes_on(iterations, iteration) if iteration else iterations.builder.const(True, bl.int1)
        ),
    )
    arguments = {"x": floats(m, 50), "out": floats(m, 50), "m": m, "n": 50, "B": 64}
    func = only(shared_rows, arguments, num_stages=2).after
    with pytest.raises(AccessError):
        interp.run(func, parameters(func, arguments), grid)


@kernel
def halves(x, scales, out, m, ROWS: bl.constexpr, B: bl.constexpr):
    """Several 16-bit rows per iteration, and one number per row."""
    columns = bl.arange(0, B)
    total = bl.zeros((B,), bl.float32)
    for first in range(0, m, ROWS):
        rows = first + bl.arange(0, ROWS)
        inside = (rows < m)[:, None]
        values = bl.load(x + rows[:, None] * B + columns[None, :], mask=inside, other=0.0).to(bl.float32)
        total += bl.sum(values * bl.load(scales + rows, mask=rows < m, other=0.0)[:, None], axis=0)
    bl.store(out + columns, total)


@pytest.mark.sampled(2, each=["stages", "m"])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("m", [0, 3, 4, 9, 16])
def test_tiles_of_several_16_bit_rows_are_prefetched(m, stages):
    arguments = {
        "x": floats(m, 128).astype(np.float16),
        "scales": floats(m),
        "out": floats(128),
        "m": m,
        "ROWS": 4,
        "B": 128,
    }
    stage = pipelined(halves, arguments, num_stages=stages)
    assert len(texts(stage, "info")) == 2


# -- addresses ---------------------------------------------------------------------------------------------------------


@kernel
def walking(x, out, n, B: bl.constexpr, ADVANCE: bl.constexpr):
    at = bl.arange(0, B)
    here = x + at
    offsets = at
    total = bl.zeros((B,), bl.float32)
    for _ in range(n):
        total += bl.load(here) * bl.load(x + offsets)
        here += B
        offsets += ADVANCE * B
    bl.store(out + at, total)


@pytest.mark.sampled(3, each=["stages", "without", "n"])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("without", [(), ("pointers",), ("pointers", "simplify")])
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_carried_pointers_are_advanced_for_early_loads(n, without, stages):
    arguments = {"x": floats(n, 64), "out": floats(64), "n": n, "B": 64, "ADVANCE": 1}
    func = parsed(walking, arguments, num_warps=2, num_stages=stages)
    _, made = check_pipeline(func, parameters(func, arguments), 1, without=without)
    stage = next(stage for stage in made if stage.name == "register_prefetch")
    assert len(texts(stage, "info")) == 2


@kernel
def listed(x, index, out, n, B: bl.constexpr):
    at = bl.arange(0, B)
    for i in range(n):
        row = bl.load(index + i)
        bl.store(out + i * B + at, bl.load(x + row * B + at))


@pytest.mark.parametrize("n", [0, 1, 4])
def test_an_index_is_prefetched_but_not_the_load_through_it(n):
    index = seeds.rng().integers(0, 3, n).astype(np.int32)
    arguments = {"x": floats(3, 64), "index": index, "out": floats(n, 64), "n": n, "B": 64}
    stage = pipelined(listed, arguments, num_stages=2)
    assert texts(stage, "missed") == ["not pipelined: its address was loaded in the loop"]
    assert len(texts(stage, "info")) == 1


@kernel
def jumping(x, out, n, B: bl.constexpr):
    """The next address depends on the data at this one."""
    at = bl.arange(0, B)
    place = 0
    total = bl.zeros((B,), bl.float32)
    for _ in range(n):
        values = bl.load(x + place * B + at)
        total += values
        place = (place + bl.sum((values > 0).to(bl.int32), 0)) % 3
    bl.store(out + at, total)


def test_an_address_that_depends_on_loaded_data_is_not_prefetched():
    refused(
        jumping, {"x": floats(3, 64), "out": floats(64), "n": 5, "B": 64}, "its address is made by a reduce in the loop"
    )


@kernel
def again(x, w, out, n, B: bl.constexpr):
    at = bl.arange(0, B)
    for i in range(n):
        bl.store(out + i * B + at, bl.load(w + at) * i)


def test_loop_invariant_loads_are_not_prefetched():
    arguments = {"x": floats(1), "w": floats(64), "out": floats(3, 64), "n": 3, "B": 64}
    refused(again, arguments, "it reads the same place in every iteration")


# -- other shapes of control flow ----------------------------------------------------------------------------------------


@kernel
def until(x, out, n, B: bl.constexpr):
    at = bl.arange(0, B)
    i = 0
    total = bl.zeros((B,), bl.float32)
    while i < n:
        total += bl.load(x + i * B + at)
        i += 1
    bl.store(out + at, total)


def test_a_while_loop_has_no_stages():
    arguments = {"x": floats(3, 64), "out": floats(64), "n": 3, "B": 64}
    func = parsed(until, arguments, num_stages=3)
    assert not register_prefetch.applies(func, Target.parse("sm_90a"))


@kernel
def until_found(x, out, n, B: bl.constexpr):
    """A loop with the effect of `break`: iterations after the match do nothing. The array ends there, too."""
    at = bl.arange(0, B)
    found = False
    for i in range(n):
        if not found:
            values = bl.load(x + i * B + at)
            bl.store(out + i * B + at, values)
            found = bl.max(values, 0) > 9
        else:
            found = True


def test_a_load_that_an_iteration_may_skip_is_not_prefetched():
    x = floats(3, 64)
    x[2, 5] = 10
    refused(until_found, {"x": x, "out": floats(3, 64), "n": 9, "B": 64}, "an iteration may skip it")


@kernel
def nest(x, w, out, m, k, B: bl.constexpr, OUTER: bl.constexpr, INNER: bl.constexpr):
    at = bl.arange(0, B)
    for row in bl.range(0, m, num_stages=OUTER):
        total = bl.load(w + row * B + at)
        for i in bl.range(0, k, num_stages=INNER):
            total += bl.load(x + (row * k + i) * B + at)
        bl.store(out + row * B + at, total)


@pytest.mark.sampled(2, each=["outer", "inner", "m", "k"])
@pytest.mark.parametrize(("outer", "inner"), [(2, 2), (1, 2), (2, 1), (3, 3)])
@pytest.mark.parametrize(("m", "k"), [(0, 3), (3, 0), (1, 1), (3, 4)])
def test_nested_loops_prefetch_independently(m, k, outer, inner):
    arguments = {"x": floats(m * k, 64), "w": floats(m, 64), "out": floats(m, 64), "m": m, "k": k, "B": 64}
    stage = pipelined(nest, {**arguments, "OUTER": outer, "INNER": inner})
    assert len(texts(stage, "info")) == (outer > 1) + (inner > 1)


@kernel
def online(x, out, n, ROWS: bl.constexpr, B: bl.constexpr):
    rows = bl.program_id(0) * ROWS + bl.arange(0, ROWS)
    most = bl.full((ROWS,), -float("inf"), bl.float32)
    total = bl.zeros((ROWS,), bl.float32)
    for start in range(0, n, B):
        at = start + bl.arange(0, B)
        values = bl.load(x + rows[:, None] * n + at[None, :], mask=(at < n)[None, :], other=-float("inf"))
        higher = bl.maximum(most, bl.max(values, 1))
        total = total * bl.exp(most - higher) + bl.sum(bl.exp(values - higher[:, None]), 1)
        most = higher
    bl.store(out + rows, most + bl.log(total))


@pytest.mark.sampled(2, each=["stages", "n"])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("n", [7, 32, 33, 100])
def test_long_rows_in_blocks_are_prefetched(n, stages):
    stage = pipelined(online, {"x": floats(8, n), "out": floats(8), "n": n, "ROWS": 4, "B": 32}, 2, num_stages=stages)
    assert len(texts(stage, "info")) == 1


@kernel
def product(a, b, out, k, B: bl.constexpr):
    i, j = bl.arange(0, 16)[:, None], bl.arange(0, 16)[None, :]
    total = bl.zeros((16, 16), bl.float32)
    for start in range(0, k, B):
        at = start + bl.arange(0, B)
        total = bl.dot(bl.load(a + i * k + at[None, :]), bl.load(b + at[:, None] * 16 + j), total)
    bl.store(out + i * 16 + j, total)


def test_loops_with_products_are_left_to_software_pipelining():
    half = np.float16
    arguments = {
        "a": floats(16, 64).astype(half),
        "b": floats(64, 16).astype(half),
        "out": floats(16, 16),
        "k": 64,
        "B": 16,
    }
    assert pipelined(product, arguments, num_stages=2).notes == ()
    refused(product, arguments, "whose operands are left for asynchronous copies", target="sm_75")


# -- checked mode ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", ITERATION_COUNTS)
def test_checked_loads_are_checked_in_the_iteration_that_needs_them(m):
    """The report about rows beyond the array comes from the iteration that reads them, not from the early load."""
    arguments = {"x": floats(m, 64), "out": floats(m, 64), "first": 0, "last": m, "step": 1, "B": 64, "STAGES": 2}
    pipelined(rows, arguments, checked=True)
    arguments |= {"last": m + 1, "out": floats(m + 1, 64)}
    stage = only(rows, arguments, checked=True)
    given = parameters(stage.after, arguments)
    with pytest.raises(AccessError) as caught:
        interp.run(stage.after, given, 1)
    assert "x" in caught.value.message
    np.testing.assert_allclose(given[1][:m], arguments["x"] - arguments["x"].max(1, keepdims=True, initial=-9))


def test_the_loads_of_the_loop_are_its_first_ops():
    func = only(shared_rows, {"x": floats(2, 50), "out": floats(2, 50), "m": 2, "n": 50, "B": 64}, num_stages=2).after
    names = [op.name for op in walk(loops(func)[0].blocks[0])]
    assert names.index("load") < names.index("reduce")
