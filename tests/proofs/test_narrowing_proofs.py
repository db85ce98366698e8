"""int_range_narrowing is proved for all operands: arithmetic, divisions, and comparisons with a bound that is relative to the tile.

The solver compares a small function before and after the pass. Bounds are unknown words of 64 bits, so differences may wrap.
"""

from __future__ import annotations

import pytest

pytest.importorskip("z3")

import smt

from blocknb.ir.build import Builder
from blocknb.ir.core import Block, Func, Hint, Op, Value
from blocknb.language import types as t
from blocknb.language.types import Pointer, Tile
from blocknb.passes.memory.int_range_narrowing import RangeNarrowing

SIZE = 4
WORD, LONG = Tile(t.int32), Tile(t.int64)


def function(b: Builder, value: Value, *params: Value) -> Func:
    """The function that stores a value."""
    pointer = Value(Tile(Pointer(value.type.dtype)), "p")
    at = b.value("splat", pointer, shape=value.type.shape) if value.type.shape else pointer
    b.op("store", at, value)
    names = (*params, pointer)
    return Func("f", names, Block((), b.finish()), hints=tuple(Hint(p.name) for p in names))


def narrowed(func: Func) -> tuple[Func, RangeNarrowing]:
    """The function after the pass; it must be equal for all operands."""
    narrowing = RangeNarrowing(func)
    after = narrowing.run()
    assert smt.difference(func, after) is None
    return after, narrowing


def wide_ops(func: Func, name: str) -> list[Op]:
    return [op for op in func.ops() if op.name == name and op.args[0].type.dtype == t.int64]


def offsets(b: Builder) -> Value:
    return b.value("cast", b.value("arange", start=0, end=SIZE), dtype=t.int64)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize("pred", ["lt", "le", "gt", "ge"])
def test_a_mask_with_any_bound_compares_offsets_in_the_tile(pred, unknown, swapped):
    b, bound = Builder("test"), Value(LONG if unknown else WORD, "bound")
    pid = b.value("cast", b.value("program_id", axis=0), dtype=t.int64)
    start = b.value("mul", pid, b.const(64, t.int64))
    at = b.value("add", b.value("splat", start, shape=(SIZE,)), offsets(b))
    limit = bound if unknown else b.value("cast", bound, dtype=t.int64)
    sides = (at, b.value("splat", limit, shape=(SIZE,)))
    func = function(b, b.value("cmp", *(sides[::-1] if swapped else sides), pred=pred), bound)
    after, narrowing = narrowed(func)
    assert len(narrowing.compared) == 1 and not wide_ops(after, "cmp")


def test_a_mask_whose_start_is_any_number_stays_as_it_is():
    b, start, bound = Builder("test"), Value(LONG, "start"), Value(LONG, "bound")
    at = b.value("add", b.value("splat", start, shape=(SIZE,)), offsets(b))
    func = function(b, b.value("cmp", at, b.value("splat", bound, shape=(SIZE,)), pred="lt"), start, bound)
    after, narrowing = narrowed(func)
    assert not narrowing.compared and wide_ops(after, "cmp")


BOUNDED = ("add", "sub", "mul", "min", "max", "and", "or", "xor", "div", "rem")


def bounded(b: Builder, x: Value, name: str) -> Value:
    """A number with a range, from an unknown word. A solver takes minutes for divisions of more than a few unknown bits."""
    if name in ("div", "rem"):
        return b.value("sub", b.value("and", x, b.const(15, t.int32)), b.const(8, t.int32))
    # bit operations have ranges for natural numbers
    return b.value("rem", b.value("program_id", axis=0) if name in ("or", "xor") else x, b.const(1000, t.int32))


@pytest.mark.parametrize("name", BOUNDED)
def test_arithmetic_whose_result_fits_is_done_in_32_bits(name):
    b, x = Builder("test"), Value(WORD, "x")
    small = b.value("cast", bounded(b, x, name), dtype=t.int64)
    other = b.value("add", offsets(b), b.const(3, Tile(t.int64, (SIZE,))))
    value = b.value(name, b.value("splat", small, shape=(SIZE,)), other)
    after, narrowing = narrowed(function(b, value, x))
    assert narrowing.computed >= 2 and not wide_ops(after, name)


@pytest.mark.parametrize("name", ["neg", "abs"])
def test_negation_fits_unless_the_operand_may_be_the_least_number(name):
    for divisor, fits in ((1000, True), (None, False)):
        b, x = Builder("test"), Value(WORD, "x")
        word = x if divisor is None else b.value("rem", x, b.const(divisor, t.int32))
        value = b.value(name, b.value("cast", word, dtype=t.int64))
        after, _ = narrowed(function(b, value, x))
        assert bool(wide_ops(after, name)) != fits


@pytest.mark.parametrize("name", ["add", "sub", "mul"])
def test_arithmetic_that_may_exceed_32_bits_stays(name):
    b, x, y = Builder("test"), Value(WORD, "x"), Value(WORD, "y")
    value = b.value(name, *(b.value("cast", v, dtype=t.int64) for v in (x, y)))
    after, _ = narrowed(function(b, value, x, y))
    assert wide_ops(after, name)


@pytest.mark.parametrize("name", ["div", "rem"])
def test_a_division_stays_if_its_divisor_may_be_zero(name):
    b, x = Builder("test"), Value(WORD, "x")
    pid = b.value("cast", b.value("program_id", axis=0), dtype=t.int64)
    value = b.value(name, pid, b.value("cast", b.value("rem", x, b.const(8, t.int32)), dtype=t.int64))
    after, _ = narrowed(function(b, value, x))
    assert wide_ops(after, name)
