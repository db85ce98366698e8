"""Scans and flips within a warp, without a GPU: NumPy runs the straight-line LLVM text of one warp, one element per lane."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocknb.codegen.gpu.generator import KernelGenerator
from blocknb.ir.build import Builder
from blocknb.ir.core import Block, Func, Op, Value
from blocknb.language import types as t
from blocknb.language.types import Tile
from blocknb.layouts.linear import Layout
from blocknb.layouts.tables import for_scan
from blocknb.passes.support.scans_of_warps import all_totals
from blocknb.target import Target

LANES = np.arange(32)
OPERATIONS = {
    "add": np.add,
    "mul": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshr": np.right_shift,
    "shl": np.left_shift,
}
COMPARISONS = {"eq": np.equal, "ne": np.not_equal, "sgt": np.greater, "slt": np.less}


class Warp:
    """Runs the instructions of scans and flips on 32 lanes at once."""

    def __init__(self, number: int = 0) -> None:
        self.values = {"%lane": LANES.copy(), "%warp": np.full(32, number), "%tid": LANES + 32 * number}

    def value(self, name: str) -> np.ndarray:
        if name in ("true", "false"):
            return np.full(32, name == "true")
        return self.values[name] if name.startswith("%") else np.full(32, int(name))

    def run(self, line: str) -> None:
        match = re.match(r"\s*(%\S+) = (.*?)(, !dbg .*)?$", line)
        assert match, line
        name, text, _ = match.groups()
        self.values[name] = self.compute(text)

    def compute(self, text: str) -> np.ndarray:
        if found := re.fullmatch(r"(\w+) i\d+ (\S+), (\S+)", text):
            operation, a, b = found.groups()
            return OPERATIONS[operation](self.value(a), self.value(b))
        if found := re.fullmatch(r"icmp (eq|ne|sgt|slt) i32 (\S+), (\S+)", text):
            return COMPARISONS[found[1]](self.value(found[2]), self.value(found[3]))
        if found := re.fullmatch(r"select i1 (\S+), i32 (\S+), i32 (\S+)", text):
            return np.where(*(self.value(found[i]) for i in (1, 2, 3)))
        if found := re.search(r"shfl\.sync\.(idx|bfly)\.i32\(i32 -1, i32 (\S+), i32 (\S+), i32 31\)", text):
            by = self.value(found[3])
            return self.value(found[2])[by if found[1] == "idx" else LANES ^ by]
        raise AssertionError(f"an instruction that is not expected here: {text}")


def execute(layout: Layout, build, *tiles: np.ndarray, text: list[str] | None = None) -> list[np.ndarray]:
    """The tiles that an op (made by `build(builder, operands)`) gives for int32 tiles in a layout of one warp.

    `text` receives the instructions."""
    found = in_warp(0, build, *((layout, tile) for tile in tiles), text=text)
    results = []
    for held, places in found:
        flat = np.full(places.size, -1)
        flat[places.indices()[0]] = held
        np.testing.assert_array_equal(flat[places.indices()[0]], held, err_msg="replicas differ")
        results.append(flat.reshape(places.shape))
    return results


def in_warp(
    number: int, build, *given: tuple[Layout, np.ndarray], text: list[str] | None = None
) -> list[tuple[np.ndarray, Layout]]:
    """The registers (lanes, registers) that an op's results have in a warp, and their layouts."""
    operands = tuple(Value(Tile(t.int32, layout.shape, layout), f"x{i}") for i, (layout, _) in enumerate(given))
    builder = Builder("test", 0)
    op: Op = build(builder, operands)
    func = Func(
        "test", (), Block((), tuple(builder.finish())), level="memory", attrs={"num_warps": given[0][0].num_warps}
    )
    generator, warp = KernelGenerator(func, Target.parse("sm_90a")), Warp(number)
    for operand, (layout, tile) in zip(operands, given, strict=True):
        names = [f"%{operand.name}.{r}" for r in range(layout.num_registers)]
        generator.registers.set(operand, names)
        held = tile.reshape(-1)[layout.indices()[number]]
        warp.values.update({name: held[:, r].astype(np.int64) for r, name in enumerate(names)})
    generator.blocks.op(op)
    lines = [*generator.text.entry, *(line for chunk in generator.text.chunks for line in chunk)]
    for line in lines:
        warp.run(line)
    if text is not None:
        text += lines
    return [
        (np.stack([warp.value(name) for name in generator.registers.regs(result)], 1), result.type.layout)
        for result in op.results
    ]


@st.composite
def layouts(draw) -> Layout:
    """A layout of one warp. It deals the bits of a tile of rank 1 to 3 to registers and lanes in any order."""
    shape = tuple(1 << draw(st.integers(0, 4)) for _ in range(draw(st.integers(1, 3))))
    bits = draw(st.permutations([1 << i for i in range(int(np.prod(shape)).bit_length() - 1)]))
    lanes = [*bits[: draw(st.integers(0, 5))]]
    registers = [basis for basis in bits if basis not in lanes]
    lanes = draw(st.permutations(lanes + [0] * (5 - len(lanes))))
    return Layout(shape, tuple(registers), tuple(lanes), ())


def affine(builder: Builder, args: tuple) -> tuple:
    """(a, b) then (c, d) is x -> c (a x + b) + d: associative, and the order matters."""
    a, b, c, d = args
    return builder.value("mul", a, c), builder.value("add", builder.value("mul", b, c), d)


def scanned(scale: np.ndarray, shift: np.ndarray, axis: int, reverse: bool) -> list[np.ndarray]:
    """The scan of `affine` by a loop."""
    scale, shift = (np.moveaxis(x, axis, 0)[:: -1 if reverse else 1] for x in (scale, shift))
    expected = [scale.copy(), shift.copy()]
    for i in range(1, len(scale)):
        expected[0][i] = expected[0][i - 1] * scale[i]
        expected[1][i] = expected[1][i - 1] * scale[i] + shift[i]
    return [np.moveaxis(x[:: -1 if reverse else 1], 0, axis) for x in expected]


@given(layouts(), st.data())
@settings(max_examples=150, deadline=None)
def test_a_scan_in_any_layout_of_a_warp_combines_in_order(layout, data):
    axis, reverse = data.draw(st.integers(0, len(layout.shape) - 1)), data.draw(st.booleans())
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    scale, shift = rng.integers(-1, 2, layout.shape), rng.integers(-9, 10, layout.shape)

    def build(builder, operands):
        args = tuple(Value(Tile(t.int32), name) for name in "abcd")
        with builder.block(args) as block:
            builder.op("yield", *affine(builder, args))
        attrs = {"reverse": True} if reverse else {}
        return builder.op("scan", *operands, blocks=(block.done,), axis=axis, **attrs)

    found = execute(layout, build, scale, shift)
    for actual, wanted in zip(found, scanned(scale, shift, axis, reverse), strict=True):
        np.testing.assert_array_equal(actual, wanted)


@given(layouts(), st.integers(1, 3), st.data())
@settings(max_examples=25, deadline=None)
def test_a_scan_over_warps_starts_each_warp_at_the_total_of_those_before(layout, across, data):
    """The reduction to the totals and the scan that takes them run in one warp after the other, as the IR joins them."""
    axis, reverse = data.draw(st.integers(0, len(layout.shape) - 1)), data.draw(st.booleans())
    low, count = layout.dim_bits(axis).stop, 1 << across
    shape = (*layout.shape[:axis], layout.shape[axis] * count, *layout.shape[axis + 1 :])
    moved = [tuple((b >> low << low + across) | (b & ((1 << low) - 1)) for b in x) for x in (layout.reg, layout.lane)]
    layout = Layout(shape, *moved, tuple(1 << low + i for i in range(across)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    scale, shift = rng.integers(-1, 2, shape), rng.integers(-9, 10, shape)
    attrs = {"axis": axis, "keep": count, "scan": 7} | ({"reverse": True} if reverse else {})

    def build(name, **more):
        def made(builder, operands):
            args = tuple(Value(Tile(t.int32), x) for x in "abcd")
            with builder.block(args) as block:
                builder.op("yield", *affine(builder, args))
            return builder.op(name, *operands, blocks=(block.done,), **attrs, **more)

        return made

    gathered, partial = all_totals(layout, axis, count), layout.slice_partial(axis)
    totals = [np.full(partial.size, 99) for _ in range(2)]
    for warp in range(count):
        found = in_warp(warp, build("reduce", layout=partial), (layout, scale), (layout, shift))
        for total, (held, places) in zip(totals, found, strict=True):
            total[places.indices()[warp]] = held
            np.testing.assert_array_equal(total[places.indices()[warp]], held, err_msg="replicas differ")
    results = [np.full(layout.size, 99) for _ in range(2)]
    for warp in range(count):
        given = [(layout, scale), (layout, shift), *((gathered, x.reshape(gathered.shape)) for x in totals)]
        for result, (held, places) in zip(results, in_warp(warp, build("scan"), *given), strict=True):
            result[places.indices()[warp]] = held
    for result, expected in zip(results, scanned(scale, shift, axis, reverse), strict=True):
        np.testing.assert_array_equal(result.reshape(shape), expected)


@pytest.mark.parametrize("registers", [0, 2])
def test_a_noncommutative_reduction_gives_every_lane_one_result(registers):
    size = 32 << registers
    low = [1 << i for i in range(registers + 5)]
    layout = Layout((2, size), (*low[:registers], size), tuple(low[registers:]), ())
    rng = np.random.default_rng(0)
    scale, shift = rng.integers(-1, 2, (2, size)), rng.integers(-9, 10, (2, size))

    def build(builder, operands):
        args = tuple(Value(Tile(t.int32), name) for name in "abcd")
        with builder.block(args) as block:
            builder.op("yield", *affine(builder, args))
        return builder.op("reduce", *operands, blocks=(block.done,), axis=1)

    _, found = execute(layout, build, scale, shift)
    expected = np.zeros(2, int)
    for i in range(size):
        expected = expected * scale[:, i] + shift[:, i]
    np.testing.assert_array_equal(found, expected)


@given(layouts(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_flip_in_any_layout_of_a_warp_exchanges_distant_elements(layout, data):
    axis = data.draw(st.integers(0, len(layout.shape) - 1))
    size = layout.shape[axis]
    mask = data.draw(st.integers(0, size - 1))
    tile = np.arange(layout.size).reshape(layout.shape)
    (found,) = execute(layout, lambda builder, x: builder.op("flip", *x, axis=axis, mask=mask), tile)
    np.testing.assert_array_equal(found, np.take(tile, np.arange(size) ^ mask, axis))


@given(layouts(), st.lists(st.booleans(), min_size=1, max_size=3), st.data())
@settings(max_examples=100, deadline=None)
def test_layout_of_a_scan_gives_each_warp_a_consecutive_part_of_a_line(layout, takes, data):
    """If some register bits become warp bits, `for_scan` moves them off the axis or to its end; such a layout is unchanged."""
    count = min(sum(takes), len(layout.reg))
    spread = Layout(layout.shape, layout.reg[count:], layout.lane, layout.reg[:count])
    axis = data.draw(st.integers(0, len(layout.shape) - 1))
    found = for_scan(spread, axis)
    assert (found.shape, found.num_warps) == (spread.shape, spread.num_warps)
    assert found.parts_by_warp(axis) is not None
    assert for_scan(found, axis) == found


@pytest.mark.parametrize("size", [32, 512])
def test_row_scan_needs_two_combines_per_element_and_few_for_the_lanes(size):
    layout = Layout(
        (size,), tuple(1 << i for i in range(size.bit_length() - 6)), tuple(size >> 5 << i for i in range(5)), ()
    )

    def build(builder, operands):
        args = (Value(Tile(t.int32), "a"), Value(Tile(t.int32), "b"))
        with builder.block(args) as block:
            builder.op("yield", builder.value("add", *args))
        return builder.op("scan", *operands, blocks=(block.done,), axis=0)

    text: list[str] = []
    (found,) = execute(layout, build, np.ones(size, int), text=text)
    assert sum(" add " in line for line in text) <= 2 * (size // 32) + 9
    np.testing.assert_array_equal(found, np.arange(1, size + 1))
