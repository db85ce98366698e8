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
from blocknb.layouts.tables import within_warp
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


class Warp:
    """Runs the instructions of scans and flips on 32 lanes at once."""

    def __init__(self) -> None:
        self.values = {"%lane": LANES.copy(), "%warp": np.zeros(32, np.int64), "%tid": LANES.copy()}

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
        if found := re.fullmatch(r"icmp (eq|ne) i32 (\S+), (\S+)", text):
            equal = self.value(found[2]) == self.value(found[3])
            return equal if found[1] == "eq" else ~equal
        if found := re.fullmatch(r"select i1 (\S+), i32 (\S+), i32 (\S+)", text):
            return np.where(*(self.value(found[i]) for i in (1, 2, 3)))
        if found := re.search(r"shfl\.sync\.(idx|bfly)\.i32\(i32 -1, i32 (\S+), i32 (\S+), i32 31\)", text):
            by = self.value(found[3])
            return self.value(found[2])[by if found[1] == "idx" else LANES ^ by]
        raise AssertionError(f"an instruction that is not expected here: {text}")


def execute(layout: Layout, build, *tiles: np.ndarray, text: list[str] | None = None) -> list[np.ndarray]:
    """The tiles that an op (made by `build(builder, operands)`) gives for int32 tiles in a layout of one warp.

    `text` receives the instructions."""
    operands = tuple(Value(Tile(t.int32, layout.shape, layout), f"x{i}") for i in range(len(tiles)))
    builder = Builder("test", 0)
    op: Op = build(builder, operands)
    func = Func("test", (), Block((), tuple(builder.finish())), level="memory", attrs={"num_warps": layout.num_warps})
    generator, warp = KernelGenerator(func, Target.parse("sm_90a")), Warp()
    for operand, tile in zip(operands, tiles, strict=True):
        names = [f"%{operand.name}.{r}" for r in range(layout.num_registers)]
        generator.registers.set(operand, names)
        held = tile.reshape(-1)[layout.indices()[0]]
        warp.values.update({name: held[:, r].astype(np.int64) for r, name in enumerate(names)})
    generator.blocks.op(op)
    lines = [*generator.text.entry, *(line for chunk in generator.text.chunks for line in chunk)]
    for line in lines:
        warp.run(line)
    if text is not None:
        text += lines
    results = []
    for result in op.results:
        held, places = np.stack([warp.value(name) for name in generator.registers.regs(result)], 1), result.type.layout
        flat = np.full(places.size, -1)
        flat[places.indices()[0]] = held
        np.testing.assert_array_equal(flat[places.indices()[0]], held, err_msg="replicas differ")
        results.append(flat.reshape(places.shape))
    return results


@st.composite
def layouts(draw) -> Layout:
    """A layout of one warp in which the bits of a tile of rank 1 to 3 are dealt to registers and lanes in any order."""
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
    scale, shift = (np.moveaxis(x, axis, 0)[:: -1 if reverse else 1] for x in (scale, shift))
    expected = [scale.copy(), shift.copy()]
    for i in range(1, len(scale)):
        expected[0][i] = expected[0][i - 1] * scale[i]
        expected[1][i] = expected[1][i - 1] * scale[i] + shift[i]
    for actual, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(actual, np.moveaxis(wanted[:: -1 if reverse else 1], 0, axis))


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
def test_layout_of_a_scan_keeps_its_axis_in_registers_and_lanes(layout, takes, data):
    """If some register bits become warp bits, `within_warp` restores a layout within warps; a layout within warps is unchanged."""
    count = min(sum(takes), len(layout.reg))
    spread = Layout(layout.shape, layout.reg[count:], layout.lane, layout.reg[:count])
    axis = data.draw(st.integers(0, len(layout.shape) - 1))
    found = within_warp(spread, axis)
    assert (found.shape, found.num_warps) == (spread.shape, spread.num_warps)
    assert not any(basis & found.dim_mask(axis) for basis in found.warp)
    assert within_warp(found, axis) == found


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
