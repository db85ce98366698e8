"""Conversions of tiles next to products: where they go, and which loads of a recurrence are issued early."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.base import Case, poison

import blocknb
import blocknb.language as bl
from blocknb import passes
from blocknb.ir.core import Func, Op
from blocknb.layouts import convert, shared
from blocknb.layouts.linear import Layout
from blocknb.target import Target
from blocknb.trace import Stage


def check(kernel: Any, func: Func, arguments: dict[str, Any], **expected: np.ndarray) -> None:
    """Runs a Func of a kernel in the interpreter, and compares what it wrote."""
    Case(kernel.__name__, kernel, dict, lambda _: expected).interpret(func, arguments)


def case(kernel: Any) -> Case:
    return Case(kernel.__name__, kernel, dict, lambda _: {})


def texts(stages: tuple[Stage, ...], name: str) -> list[str]:
    return [note.text for stage in stages if stage.name == name for note in stage.notes]


def after(stages: tuple[Stage, ...], name: str) -> Func:
    return next(stage.after for stage in stages if stage.name == name)


def conversions(func: Func, element_bits: int = 0) -> list[Op]:
    """The conversions that move data, of elements of so many bits or of any."""
    found = [op for op in func.ops() if op.name == "convert"]
    moving = [op for op in found if convert.plan(op.args[0].type.layout, op.attrs["layout"], 32).registers is None]
    return [op for op in moving if element_bits in (0, op.result.type.dtype.bits)]


# -- recurrences: the state of a loop is an operand of its first product


@blocknb.kernel
def recurrence(w, v, k, g, out, steps, K: bl.constexpr, V: bl.constexpr, BT: bl.constexpr):
    inner, columns = bl.arange(0, K), bl.arange(0, V)
    state = bl.zeros((K, V), bl.float32)
    for step in bl.range(0, steps):
        rows = step * BT + bl.arange(0, BT)
        expected = bl.dot(bl.load(w + rows[:, None] * K + inner[None, :]), state.to(bl.float16))
        change = bl.load(v + rows[:, None] * V + columns[None, :]) - expected
        change *= bl.load(g + rows)[:, None]
        keys = bl.load(k + rows[:, None] * K + inner[None, :])
        state = bl.dot(bl.trans(keys), change.to(bl.float16), state)
    bl.store(out + inner[:, None] * V + columns[None, :], state)


def recurrent(steps: int = 3, size: int = 64, values: int = 32, rows: int = 64) -> dict[str, Any]:
    rng, length = np.random.default_rng(0), steps * rows
    w, k = (rng.integers(-1, 2, (length, size)).astype(np.float16) / 8 for _ in range(2))
    v = rng.integers(-2, 3, (length, values)).astype(np.float16)
    g = (rng.integers(1, 3, length) / 2).astype(np.float32)
    arrays = {"w": w, "v": v, "k": k, "g": g, "out": poison((size, values), np.float32)}
    return {**arrays, "steps": steps, "K": size, "V": values, "BT": rows}


def expected_state(x: dict[str, Any]) -> np.ndarray:
    state = np.zeros((x["K"], x["V"]), np.float32)
    for step in range(x["steps"]):
        at = slice(step * x["BT"], (step + 1) * x["BT"])
        w, v, k = (x[name][at].astype(np.float32) for name in "wvk")
        change = (v - w @ state.astype(np.float16).astype(np.float32)) * x["g"][at, None]
        state = state + k.T @ change.astype(np.float16).astype(np.float32)
    return state


@pytest.mark.parametrize(("target", "copies"), [("sm_90a", "warp_specialization"), ("sm_80", "software_pipelining")])
def test_a_tile_that_is_combined_with_a_product_is_copied_as_its_operands_are(target: str, copies: str):
    arguments = recurrent()
    func, stages = case(recurrence).lower(arguments, target, num_warps=4, num_stages=2)
    copied = [text for text in texts(stages, copies) if text.startswith("pipelined: copied")]
    assert sum("stages of 8192 bytes" in text for text in copied) == 2, "w and k"
    assert sum("stages of 4096 bytes" in text for text in copied) == 1, "v"
    check(recurrence, func, arguments, out=expected_state(arguments))


def test_the_line_of_a_loop_with_two_products_is_loaded_one_iteration_ahead():
    arguments = recurrent()
    _, stages = case(recurrence).lower(arguments, "sm_90a", num_warps=4, num_stages=2)
    assert texts(stages, "register_prefetch") == ["pipelined: loaded 1 iteration ahead, in 16 registers per thread"]


def test_a_prefetched_line_counts_the_copies_that_the_columns_of_a_product_need():
    """The state takes 128 registers, and so does the change. 64 elements of a line take 16 of a thread."""
    arguments = recurrent(size=128, values=128, rows=128)
    _, stages = case(recurrence).lower(arguments, "sm_90a", num_warps=4, num_stages=2)
    (text,) = texts(stages, "register_prefetch")
    assert "it takes 32 registers per thread" in text


@blocknb.kernel
def both_operands(q, k, out, steps, B: bl.constexpr):
    rows = bl.arange(0, B)
    at = rows[:, None] * B + rows[None, :]
    query, total = bl.load(q + at), bl.zeros((B, B), bl.float32)
    for step in bl.range(0, steps):
        keys = bl.load(k + step * B * B + at)
        total = bl.dot(keys, bl.dot(query, keys).to(bl.float16), total)
    bl.store(out + at, total)


def test_two_conversions_of_a_tile_read_one_buffer_so_that_it_is_copied_ahead():
    """As operand A and as operand B the tile has two layouts. Stored twice, it would be used twice, and could not be copied."""
    rng = np.random.default_rng(0)
    q, k = (rng.integers(-2, 3, (rows, 64)).astype(np.float16) for rows in (64, 192))
    arguments = {"q": q, "k": k, "out": poison((64, 64), np.float32), "steps": 3, "B": 64}
    func, stages = case(both_operands).lower(arguments, "sm_90a", num_warps=2, num_stages=2)
    assert sum(text.startswith("pipelined: copied") for text in texts(stages, "software_pipelining")) == 1
    keys = k.reshape(3, 64, 64).astype(np.float32)
    check(both_operands, func, arguments, out=sum(key @ (q.astype(np.float32) @ key) for key in keys))


# -- results of products


@blocknb.kernel
def product(a, b, c, bias, scale, iterations: bl.constexpr, LOOP: bl.constexpr, BIAS: bl.constexpr):
    rows, columns, inner = bl.arange(0, 64)[:, None], bl.arange(0, 64), bl.arange(0, 64)
    total = bl.zeros((64, 64), bl.float32)
    if LOOP:
        for step in bl.range(0, iterations):
            x = bl.load(a + rows * 64 * iterations + step * 64 + inner[None, :])
            total = bl.dot(x, bl.load(b + (step * 64 + inner[:, None]) * 64 + columns[None, :]), total)
    else:
        total = bl.dot(bl.load(a + rows * 64 + inner[None, :]), bl.load(b + inner[:, None] * 64 + columns[None, :]))
    if BIAS:
        total *= bl.load(bias + rows * 64 + columns[None, :])
    bl.store(c + rows * 64 + columns[None, :], total * scale)


def product_of(iterations: int, loop: bool, bias: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((64, 64 * iterations), (64 * iterations, 64)))
    arrays = {"a": a, "b": b, "c": poison((64, 64), np.float32), "bias": np.full((64, 64), 3, np.float32)}
    return {**arrays, "scale": 2.0, "iterations": iterations, "LOOP": loop, "BIAS": bias}


def multiplied(arguments: dict[str, Any]) -> np.ndarray:
    a, b = (arguments[name].astype(np.float32) for name in "ab")
    return a @ b


@pytest.mark.parametrize("loop", [False, True])
def test_a_result_goes_through_shared_memory_unless_a_loop_fills_it(loop: bool):
    """The shuffles of a tile of 64 x 64 floats cost 128 selects per thread. A loop keeps shared memory for its stages."""
    arguments = product_of(8 if loop else 1, loop)
    func, stages = case(product).lower(arguments, "sm_90a", num_warps=4, num_stages=3)
    assert len(conversions(after(stages, "layout_assignment"), 32)) == 1
    assert len(conversions(after(stages, "lower_conversions"), 32)) == loop
    check(product, func, arguments, c=2 * multiplied(arguments))


def test_a_tile_of_floats_outside_of_loops_is_loaded_in_the_layout_of_the_product():
    arguments = product_of(1, loop=False, bias=True)
    func, stages = case(product).lower(arguments, "sm_90a", num_warps=4)
    assigned = after(stages, "layout_assignment")
    (converted,) = conversions(assigned, 32)
    (layout,) = {op.result.type.layout for op in assigned.ops() if op.name == "dot"}
    assert converted.args[0].type.layout == layout, "only the result is converted"
    assert [op.result.type.layout for op in assigned.ops() if op.name == "load"][-1] == layout
    check(product, func, arguments, c=6 * multiplied(arguments))


# -- prices


def test_only_selects_whose_results_are_published_count():
    """Lane l needs register l % 8 of its own thread: a tree of 4, 2 and 1 selects, not three stages of eight."""
    source = Layout((32,), (1, 2, 4), (0, 0, 0, 8, 16), ())
    target = Layout((32,), (), (1, 2, 4, 8, 16), ())
    steps = convert.plan_in_warps(source, target, 32).shuffle
    assert steps is not None and len(steps.before) == 3 and len(steps.rounds) == 1
    assert steps.num_selects == 4 + 2 + 1


# -- sorted lines


@blocknb.kernel
def sorted_sums(x, out, N: bl.constexpr, STEPS: bl.constexpr):
    """Adds 16 rows, and compares the sums with their neighbours at falling distances."""
    at = bl.arange(0, N)
    line = bl.sum(bl.load(x + bl.arange(0, 16)[:, None] * N + at[None, :]), 0)
    for i in bl.static_range(STEPS):
        pairs = bl.reshape(line, (2**i, 2, N // 2 ** (i + 1)))
        right = bl.arange(0, 2)[None, :, None]
        low = bl.broadcast_to(bl.sum(pairs * (1 - right), 1)[:, None, :], pairs.shape)
        high = bl.broadcast_to(bl.sum(pairs * right, 1)[:, None, :], pairs.shape)
        low, high = bl.reshape(low, (N,)), bl.reshape(high, (N,))
        line = bl.where(low > high, low + high - line, line)
    bl.store(out + at, line)


def test_each_thread_holds_one_element_of_a_line_that_is_compared_step_by_step():
    """The result of the sum has copies in the threads of all rows. The comparisons would repeat their arithmetic."""
    x = np.random.default_rng(0).integers(-50, 50, (16, 64)).astype(np.float32)
    arguments = {"x": x, "out": poison((64,), np.float32), "N": 64, "STEPS": 6}
    func, stages = case(sorted_sums).lower(arguments, "sm_90a", num_warps=2)
    lines = [op.result.type.layout for op in after(stages, "layout_assignment").ops() if op.name == "select"]
    assert len(lines) == 6 and all(layout.num_registers == 1 for layout in lines)
    line = x.sum(0)
    for i in range(6):
        pairs = line.reshape(2**i, 2, -1)
        low, high = (np.repeat(pairs[:, side : side + 1], 2, axis=1).ravel() for side in range(2))
        line = np.where(low > high, low + high - line, line)
    check(sorted_sums, func, arguments, out=line)


@blocknb.kernel
def converted_operand(x, w, out, copy, M: bl.constexpr, N: bl.constexpr):
    """Stores operand B along its columns, which converts it, before the product reads it."""
    m, n = bl.arange(0, M), bl.arange(0, N)
    operand = bl.load(w + n[:, None] * N + n[None, :])
    bl.store(copy + n[:, None] + n[None, :] * N, operand)
    result = bl.dot(bl.load(x + m[:, None] * N + n[None, :]), operand)
    bl.store(out + m[:, None] * N + n[None, :], result)


def test_wgmma_reads_no_buffer_of_a_conversion(monkeypatch):
    """That buffer may start anywhere, and no fence follows its store."""
    monkeypatch.setattr(convert, "choose_shared", lambda source, *_, **__: shared.swizzled(source.shape, 16))
    half = np.ones((128, 64), np.float16)
    arguments = {"x": half, "w": half[:64], "out": poison((128, 64), np.float32), "copy": half[:64], "M": 128, "N": 64}
    stages = passes.run(case(converted_operand).parse(arguments, num_warps=4), Target.parse("sm_90a"))[1]
    func = after(stages, "lower_conversions")
    allocations = {op.result: op for op in func.ops() if op.name == "alloc"}
    (product,) = (op for op in func.ops() if op.name == "dot")
    assert all(allocations[x].attrs.get("align") for x in product.args[:2])
