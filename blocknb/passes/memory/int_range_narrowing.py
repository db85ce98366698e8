"""Integer range narrowing: arithmetic of tiles on int64 becomes arithmetic on int32 where ranges prove that nothing is lost.

Kernels for long sequences compute indices in int64, because a product of a row and a stride may exceed 31 bits. The offsets within a tile
and the comparisons of a mask seldom do. A GPU has no 64-bit integer unit: an int64 takes two registers, and its addition or comparison two
instructions. MLIR's pass `arith-int-range-narrowing` and LLVM's CorrelatedValuePropagation do the first half of this. The second half, a
comparison with a bound that is made relative to the tile, is that of loop-bound splitting.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from blocknb.analysis import affine, ranges
from blocknb.ir.build import Rebuild
from blocknb.ir.core import Func, Op, Value
from blocknb.language import types as t
from blocknb.language.ops import named
from blocknb.language.types import Tile
from blocknb.passes.registry import gpu_pass
from blocknb.passes.tile.simplify import tidy
from blocknb.target import Target
from blocknb.trace import Notes

LIMIT = 1 << 30
FEWEST = 4  # comparisons per thread: for fewer, the bound relative to the tile costs more than they do
NARROW, WIDE = ranges.limits(t.int32), ranges.limits(t.int64)
ARITHMETIC = {"add", "sub", "mul", "min", "max", "and", "or", "xor", "neg", "abs"}
DIVISIONS = {"div", "rem"}
MOVES = named("view") | {"splat"}
ORDERINGS = {"lt", "le", "gt", "ge"}


def has_wide_integers(func: Func, target: Target) -> bool:
    """Whether some result of an op is an int64."""
    return any(is_wide(x) for op in func.ops() for x in op.results)


def is_wide(value: Value) -> bool:
    """Whether a value is an int64 or a tile of them."""
    return isinstance(value.type, Tile) and not value.type.is_pointer and value.type.dtype == t.int64


@gpu_pass(optional=True, applies=has_wide_integers)
def int_range_narrowing(func: Func, target: Target, notes: Notes) -> Func:
    """Computes 64-bit integers in 32 bits where ranges prove that they fit

    When: a kernel computes indices or masks in int64.

    What: arithmetic, offsets and divisions whose operands and results lie between -2^31 and 2^31 are done in int32. A tile is a scalar
    plus a small rest; if it is compared with a scalar bound, the scalar is subtracted from the bound, and only the rests are compared.

    Why: an int64 takes two registers and two instructions per addition or comparison, and a division of int64 takes about a hundred.

    Limits: ranges come from the grid, the loops' bounds, the types and the author's promises. Without one the int64 stays.

    Before:

        %r = cast %i : tile<64xi64, #a>      // %i = arange 0 64
        %t = splat %start : tile<64xi64, #a>
        %o = add %t, %r : tile<64xi64, #a>
        %n = splat %size : tile<64xi64, #a>
        %m = cmp lt %o, %n : tile<64xi1, #a>

    After:

        %d = sub %size, %start : i64
        %e = max %d, -1073741824 : i64
        %f = min %e, 1073741824 : i64
        %g = cast %f : i32
        %n = splat %g : tile<64xi32, #a>
        %m = cmp lt %i, %n : tile<64xi1, #a>
    """
    narrowing = RangeNarrowing(func)
    after = narrowing.run()
    if not narrowing.computed and not narrowing.compared:
        return func
    if narrowing.computed:
        notes(None, f"{narrowing.computed} operations on int64 are done in int32: their ranges fit")
    for op, text in narrowing.compared:
        notes(op, text)
    return tidy(after)


class Split(NamedTuple):
    """A tile of int64 as splat(uniform) + rest, where all numbers of the rest fit into int32."""

    uniform: Value
    rest: Value


class RangeNarrowing(Rebuild):
    """Rebuilds the function. `twins` has the int32 of the same number for new int64 values; `splits` their parts."""

    def __init__(self, func: Func):
        super().__init__(func, lambda op, _: self.step(op))
        self.facts = affine.analyze(func)
        self.originals = {op.id: op for op in func.ops()}
        self.made: dict[Value, Op] = {}
        self.twins: dict[Value, Value] = {}
        self.computed = 0
        self.compared: list[tuple[Op, str]] = []

    def step(self, op: Op) -> Any:
        for result in op.results:
            self.made[result] = op
        if op.name == "ptradd" and op.args[1].type.shape and (offset := self.twin(op.args[1])) is not None:
            self.keep(op.replace(args=(op.args[0], offset)))
            return op.results
        if len(op.results) != 1 or op.blocks:
            return NotImplemented
        if op.name == "cmp" and is_wide(op.args[0]):
            return self.comparison(op)
        if is_wide(op.result) and self.fits(op.result):
            return self.arithmetic(op)
        return NotImplemented

    # -- arithmetic

    def fits(self, value: Value) -> bool:
        return value in self.facts.home and ranges.within(ranges.bounds(self.facts, value), NARROW)

    def twin(self, value: Value) -> Value | None:
        """The int32 of the same number, if there is one or it costs nothing; else None."""
        if not is_wide(value):
            return None
        if (found := self.twins.get(value)) is not None:
            return found
        op = self.made.get(value)
        if op is None:
            return None
        if op.name == "const" and ranges.within((op.attrs["value"],) * 2, NARROW):
            return self.builder.const(op.attrs["value"], value.type.with_dtype(t.int32))
        if op.name == "cast" and op.args[0].type.dtype == t.int32:
            return op.args[0]
        return None

    def arithmetic(self, op: Op) -> Any:
        """Does an op in int32 if its operands have twins; its result has one then."""
        if op.name in DIVISIONS:
            low, high = ranges.bounds(self.facts, self.originals[op.id].args[1])
            if low <= 0 <= high:
                return NotImplemented
        elif op.name not in ARITHMETIC | MOVES | {"select"}:
            return NotImplemented
        first = 1 if op.name == "select" else 0
        twins = [self.twin(a) for a in op.args[first:]]
        if None in twins:
            return NotImplemented
        made = self.builder.value(op.name, *op.args[:first], *filter(None, twins), **op.attrs)
        made.name = op.result.name
        whole = self.builder.value("cast", made, dtype=t.int64)
        self.twins[whole] = made
        self.computed += op.name not in MOVES
        return [whole]

    # -- comparisons

    def comparison(self, op: Op) -> Any:
        """Compares in int32, if both sides have twins, or if one is a bound and the other one a scalar plus a small rest."""
        twins = [self.twin(a) for a in op.args]
        if None not in twins:
            self.computed += 1
            return [self.builder.value("cmp", *filter(None, twins), **op.attrs)]
        if not op.result.type.shape or op.attrs["pred"] not in ORDERINGS:
            return NotImplemented
        old = self.originals[op.id]
        if self.comparisons(old.result) < FEWEST:
            return NotImplemented
        for side in (0, 1):
            parts, bound = self.split(old.args[side]), self.uniform(old.args[1 - side])
            if parts is None or bound is None:
                continue
            limit = self.relative(bound, parts)
            rest = self.twin(self.get(parts.rest))
            if limit is None or rest is None:
                continue
            wide = self.builder.value("splat", limit, **shape_of(rest))
            pair = (rest, wide) if side == 0 else (wide, rest)
            made = self.builder.value("cmp", *pair, **op.attrs)
            self.compared.append(
                (op, "compares the offsets within the tile in int32, with the bound less the tile's start")
            )
            return [made]
        return NotImplemented

    def comparisons(self, mask: Value) -> int:
        """The comparisons of a thread for a mask, of which groups of elements are equal; FEWEST before there are layouts."""
        if mask.type.layout is None:
            return FEWEST
        equal = prod(self.facts.constancy(mask, axis) for axis in range(len(mask.type.shape)))
        return int(mask.type.layout.num_registers // equal)

    def split(self, value: Value) -> Split | None:
        """The parts of an original tile, as original values; None if its sum may wrap, or if it has no parts."""
        op = self.facts.definition.get(value)
        if op is None or op.name != "add":
            return None
        for one, other in (op.args, op.args[::-1]):
            scalar = self.uniform(one)
            if scalar is None or not self.fits(other):
                continue
            (a, b), (c, d) = ranges.bounds(self.facts, scalar), ranges.bounds(self.facts, other)
            if ranges.within((a + c, b + d), WIDE):
                return Split(scalar, other)
        return None

    def uniform(self, value: Value) -> Value | None:
        """The scalar that all elements of an original tile are."""
        op = self.facts.definition.get(value)
        return op.args[0] if op is not None and op.name == "splat" else None

    def relative(self, bound: Value, parts: Split) -> Value | None:
        """bound - uniform as an int32, clamped beyond the range of the rest; None if a difference may wrap.

        With x = uniform + rest, low <= x <= high: all bounds below low compare alike, and so do all above high. The limits are multiples of
        2^30, so that the difference keeps its divisibility, from which follows how many elements a mask treats alike."""
        start, rest, own = (ranges.bounds(self.facts, v) for v in (parts.uniform, parts.rest, bound))
        if not ranges.within(rest, (1 - LIMIT, LIMIT - 1)):
            return None
        low, high = (start[0] + rest[0]) // LIMIT * LIMIT - LIMIT, (start[1] + rest[1]) // LIMIT * LIMIT + LIMIT
        if not ranges.within((low, high), WIDE) or not ranges.within((low - start[1], high - start[0]), WIDE):
            return None
        value = self.get(bound)
        if not ranges.within((own[0] - start[1], own[1] - start[0]), WIDE):
            value, own = self.clamped(value, own, low, high)
        value = self.builder.value("sub", value, self.get(parts.uniform))
        value, _ = self.clamped(value, (own[0] - start[1], own[1] - start[0]), -LIMIT, LIMIT)
        return self.builder.value("cast", value, dtype=t.int32)

    def clamped(self, value: Value, own: ranges.Interval, low: int, high: int) -> tuple[Value, ranges.Interval]:
        """The scalar between low and high, and its range. A limit that its range keeps needs no instruction."""
        if own[0] < low:
            value = self.builder.value("max", value, self.builder.const(low, t.int64))
        if own[1] > high:
            value = self.builder.value("min", value, self.builder.const(high, t.int64))
        return value, (min(max(own[0], low), high), min(max(own[1], low), high))


def shape_of(value: Value) -> dict[str, Any]:
    """The attributes of a splat to the type of a tile."""
    found: dict[str, Any] = {"shape": value.type.shape}
    return found if value.type.layout is None else found | {"layout": value.type.layout}
