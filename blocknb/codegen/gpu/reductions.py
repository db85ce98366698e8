"""Lowers reductions: trees over a thread's registers, then butterflies over the lanes, so that every lane has the result.

The results of the warps stay apart; the IR combines them through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from blocknb.codegen.gpu.casts import cast
from blocknb.codegen.gpu.context import KernelContext
from blocknb.codegen.gpu.element_types import llvm_type
from blocknb.codegen.gpu.math import ElementwiseMath, Values
from blocknb.codegen.gpu.piece_loops import PieceLoops
from blocknb.codegen.gpu.registry import OpLowering, lowers
from blocknb.codegen.gpu.rematerialization import Rematerializer
from blocknb.codegen.gpu.scan import Scans
from blocknb.codegen.gpu.warp_shuffles import butterfly, from_lane
from blocknb.errors import CompilerBug
from blocknb.ir.core import Op, Value
from blocknb.language import types as t

MANY_LANES = 3  # lane bits from which one more shuffle costs less than the selects of all steps
CHAIN = 8  # products that a thread adds one after another; several chains hide the latency of each


class Reductions(OpLowering):
    """Lowers reductions."""

    def __init__(
        self,
        context: KernelContext,
        math: ElementwiseMath,
        pieces: PieceLoops,
        rematerializer: Rematerializer,
        scans: Scans,
    ):
        super().__init__(context)
        self.math, self.pieces, self.rematerializer, self.scans = math, pieces, rematerializer, scans

    @lowers("reduce")
    def reduce(self, op: Op) -> None:
        """Combines the elements along an axis that a warp holds."""
        if "scan" in op.attrs:
            self.scans.totals(op)
            return
        layout, axis = op.args[0].type.layout, op.attrs["axis"]
        _, lanes, warps = layout.axis_bits(axis)
        if warps and "keep" not in op.attrs:
            raise CompilerBug("a reduction across warps reached code generation", op.loc)
        results = [
            self.within_warp(op, lanes, value) for value in self.within_threads(op, layout.slice_registers(axis))
        ]
        for i, result in enumerate(op.results):
            self.registers.set(result, [value[i] for value in results])
        self.rematerializer.reduced(op)

    def within_warp(self, op: Op, lanes: int, value: Values) -> Values:
        """Combines the values of the lanes that differ in these bits, so that all of them have the result.

        A combine block of one op is commutative, and any lane is right. Another block needs the values of the lower lane first. Over few
        lanes, each lane selects the sides. Over many, only the lowest lane gets them in order, and the others take its result."""
        kinds = [x.type.dtype for x in op.args]
        commutes, many = len(op.blocks[0].ops) == 2, lanes.bit_count() >= MANY_LANES
        for bit in (bit for bit in range(5) if lanes >> bit & 1):
            other = tuple(butterfly(self.text, x, kind, 1 << bit) for x, kind in zip(value, kinds, strict=True))
            sides = (value, other) if commutes or many else self.in_order(op, bit, value, other)
            value = self.math.combined(op, *sides)
        if commutes or not many:
            return value
        lowest = self.text.once(("lowest lane", lanes), lambda: self.text.emit(f"and i32 %lane, {31 & ~lanes}"))
        return tuple(from_lane(self.text, x, kind, lowest) for x, kind in zip(value, kinds, strict=True))

    def within_threads(self, op: Op, targets: Sequence[int]) -> Iterator[Values]:
        """Reduces the registers of each target (a register of the result) as a tree of neighbours, targets in order."""
        found: dict[int, list[Values]] = {}

        def collect(registers: Sequence[int]) -> dict[int, list[Values]]:
            parts: dict[int, list[Values]] = {}
            for register in registers:
                parts.setdefault(targets[register], []).append(tuple(self.registers.reg(x, register) for x in op.args))
            return parts

        if (narrow := self.narrow_operand(op)) is not None:
            for register, target in enumerate(targets):
                found.setdefault(target, []).append((self.registers.reg(narrow, register),))
            found = {target: self.by_pairs(op, narrow, parts) for target, parts in found.items()}
        elif (piece := op.attrs.get("piece")) is None:
            found = collect(range(len(targets)))
        elif self.pieces.has_equal_pieces(op):
            yield self.reduced_in_loop(op, lambda: self.tree(op, collect(range(piece))[0]))
            return
        else:
            for start in range(0, len(targets), piece):
                with self.text.scope():
                    for target, values in collect(range(start, min(start + piece, len(targets)))).items():
                        found.setdefault(target, []).append(self.tree(op, values))
        for target in sorted(found):
            yield self.tree(op, found[target])

    def narrow_operand(self, op: Op) -> Value | None:
        """The 16-bit tile whose widened floats a maximum or minimum reduces, if the hardware can compare pairs of the 16-bit floats
        directly."""
        maker = self.maker_of(op.args[0])
        if len(op.args) > 1 or maker is None or maker.name != "cast" or self.target.capability < 80:
            return None
        (combine, *others), source = op.blocks[0].ops, maker.args[0]
        if combine.name not in ("min", "max") or combine.attrs.get("nan") or len(others) > 1:
            return None
        if set(combine.args) != set(op.blocks[0].args):
            return None
        pairs = source.type.dtype in (t.float16, t.bfloat16) and op.args[0].type.dtype == t.float32
        axis = op.args[0].type.layout.axis_bits(op.attrs["axis"])[0]
        return source if pairs and axis and not {source, op.args[0]} & self.registers.streamed else None

    def maker_of(self, value: Value) -> Op | None:
        """The op that computes a tile's registers. Ops that only reorder its axes leave the registers as they are."""
        maker = self.registers.defs.get(value)
        while maker is not None and maker.name in ("reshape", "trans"):
            maker = self.registers.defs.get(maker.args[0])
        return maker

    def by_pairs(self, op: Op, narrow: Value, parts: list[Values]) -> list[Values]:
        """The extreme of 16-bit floats, two comparisons per instruction, then widened."""
        kind = llvm_type(narrow.type.dtype)
        pairs = []
        for (low,), (high,) in zip(parts[::2], parts[1::2], strict=True):
            half = self.text.emit(f"insertelement <2 x {kind}> poison, {kind} {low}, i32 0")
            pairs.append(self.text.emit(f"insertelement <2 x {kind}> {half}, {kind} {high}, i32 1"))
        function, suffix = f"llvm.{op.blocks[0].ops[0].name}imumnum", "f16" if kind == "half" else "bf16"
        while len(pairs) > 1:
            both = zip(pairs[::2], pairs[1::2], strict=True)
            pairs = [
                self.text.call(f"<2 x {kind}>", f"{function}.v2{suffix}", *((f"<2 x {kind}>", x) for x in pair))
                for pair in both
            ]
        low, high = (self.text.emit(f"extractelement <2 x {kind}> {pairs[0]}, i32 {i}") for i in range(2))
        found = self.text.call(kind, f"{function}.{suffix}", (kind, low), (kind, high))
        return [(cast(self.text, found, narrow.type.dtype, t.float32),)]

    def reduced_in_loop(self, op: Op, piece: Callable[[], Values]) -> Values:
        """Reduces the pieces of a streamed tile of rank one in a loop. The first piece is reduced before the loop."""
        with self.text.scope():
            first = piece()
        kinds = [llvm_type(x.type.dtype) for x in op.args]
        with self.pieces.loop(op, 1, list(zip(kinds, first, strict=True))) as loop:
            total = self.math.combined(op, tuple(loop.values), piece())
            loop.leave(total)
        return total

    def tree(self, op: Op, parts: list[Values]) -> Values:
        """Combines neighbours, then neighbouring results. A sum of products begins with chains of multiply-adds."""
        count = max(2, len(parts) // CHAIN)
        if len(parts) > count and self.sums_products(op):
            chains = parts[:count]
            for i, part in enumerate(parts[count:]):
                chains[i % count] = self.math.combined(op, chains[i % count], part)
            parts = chains
        while len(parts) > 1:
            parts = [self.math.combined(op, parts[i], parts[i + 1]) for i in range(0, len(parts), 2)]
        return parts[0]

    def sums_products(self, op: Op) -> bool:
        """Whether an op sums products in fp32 or fp64: a multiply-add is one instruction."""
        maker = self.maker_of(op.args[0])
        single = len(op.args) == 1 and [inner.name for inner in op.blocks[0].ops[:-1]] == ["add"]
        return single and maker is not None and maker.name == "mul" and op.args[0].type.dtype in (t.float32, t.float64)

    def in_order(self, op: Op, bit: int, own: Values, other: Values) -> tuple[Values, Values]:
        """The two sides of a butterfly, the lower lane's first, so that both lanes get the same result."""
        upper = self.text.once(
            ("upper", bit), lambda: self.text.emit(f"icmp ne i32 {self.text.emit(f'and i32 %lane, {1 << bit}')}, 0")
        )
        kinds = [llvm_type(x.type.dtype) for x in op.args]
        sides = []
        for yes, no in ((other, own), (own, other)):
            chosen = zip(kinds, yes, no, strict=True)
            sides.append(tuple(self.text.emit(f"select i1 {upper}, {kind} {a}, {kind} {b}") for kind, a, b in chosen))
        return sides[0], sides[1]
