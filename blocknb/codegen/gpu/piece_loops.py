"""Emits the consumers of streamed tiles (see the pass `strip_mining`), in a loop if the pieces differ only in their position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from blocknb.codegen.gpu.context import KernelContext, KernelPart
from blocknb.codegen.gpu.loops import OpenLoops
from blocknb.codegen.gpu.text import TextWriter
from blocknb.ir.core import Op, Value
from blocknb.passes.support.emission import RENAMING, made_for

T = TypeVar("T", int, tuple[int, ...])


class PieceLoops(KernelPart):
    """Emits consumers of streamed tiles. The attribute `piece` of a consumer is how many registers are computed at a time."""

    def __init__(self, context: KernelContext):
        super().__init__(context)
        self.streamed = context.emission.in_pieces

    def consume(self, op: Op, registers: Sequence[T], emit: Callable[[Sequence[T]], None]) -> None:
        """Emits a consumer without a result: calls `emit` for the registers (or accesses, tuples of registers) of each piece.

        If no operand is streamed, every register is a piece. It writes a loop over the pieces if they differ only in their position.
        """
        if "piece" not in op.attrs:
            for register in registers:
                emit([register])
            return
        per = registers[0]
        count = max(1, op.attrs["piece"] // (len(per) if isinstance(per, tuple) else 1))
        if not self.has_equal_pieces(op):
            for start in range(0, len(registers), count):
                with self.text.scope():
                    emit(registers[start : start + count])
            return
        with self.loop(op, 0, []):
            emit(registers[:count])

    def has_equal_pieces(self, op: Op) -> bool:
        """Whether adding to the index turns a piece into the next one. All tiles that are streamed for `op` must have one layout and rank
        one. They must be computed from indices, scalars and loads."""
        made, defs = made_for(op, self.streamed), self.streamed
        layouts = {v.type.layout for v in made}
        if len(layouts) != 1 or len((layout := next(iter(layouts))).shape) != 1:
            return False
        bases = [*layout.reg, *layout.lane, *layout.warp]
        if (
            any(a & b for i, a in enumerate(bases) for b in bases[:i])
            or len(layout.reg) < op.attrs["piece"].bit_length()
        ):
            return False
        operands = {x for v in made for x in defs[v].args} | set(op.args)
        moved = any(defs[v].name in RENAMING for v in made)
        return all(not x.type.shape or x in made for x in operands) and not moved

    @contextmanager
    def loop(self, op: Op, first: int, carried: Sequence[tuple[str, str]]) -> Iterator[PieceLoop]:
        """A loop over the pieces of `op` from number `first`. `carried`: the types and initial values that the loop carries."""
        values = made_for(op, self.streamed)
        bases = next(iter(values)).type.layout.reg[op.attrs["piece"].bit_length() - 1 :]
        made = PieceLoop(self.text, self.loops, bases, first, carried)
        with self.unknown(values), self.text.scope():
            made.begin()
            yield made
            made.end()

    @contextmanager
    def unknown(self, made: set[Value]) -> Iterator[None]:
        """Hides the known registers of streamed values inside the loop, so that each piece computes its own. A load that is not streamed
        may have computed some before, as its addresses."""
        tables: tuple[dict[Value, Any], ...] = (self.registers.names, self.registers.words)
        known = [table[value] for value in made for table in tables if value in table]
        before = [dict(names) for names in known]
        for names in known:
            names.clear()
        yield
        for names, old in zip(known, before, strict=True):
            names.update(old)


class PieceLoop:
    """A loop over pieces while it is emitted. `values`: the names of the carried values at the head of an iteration."""

    def __init__(
        self, text: TextWriter, loops: OpenLoops, bases: tuple[int, ...], first: int, carried: Sequence[tuple[str, str]]
    ):
        self.text, self.loops, self.bases, self.first, self.carried = text, loops, bases, first, carried
        self.counter, self.values = text.name(), [text.name() for _ in carried]
        self.following: Sequence[str] = ()

    def begin(self) -> None:
        """Writes the head."""
        text = self.text
        self.before, self.head, self.done = text.label, text.new_label("piece"), text.new_label("pieces.done")
        text.do(f"br label %{self.head}")
        text.start(self.head)
        self.sink, self.phis = text.sink, len(text.sink)
        self.loops.piece_offset = text.xor_bits((self.counter, self.bases))

    def leave(self, following: Sequence[str]) -> None:
        """Sets the carried values of the next iteration, and their names after the loop."""
        self.following = following

    def end(self) -> None:
        """Writes the branch back, and the phis at the head."""
        text, pieces = self.text, 1 << len(self.bases)
        self.loops.piece_offset = ""
        after = text.emit(f"add i32 {self.counter}, 1")
        more = text.emit(f"icmp ult i32 {after}, {pieces}")
        text.do(f"br i1 {more}, label %{self.head}, label %{self.done}")
        rows = [(self.counter, "i32", str(self.first), after)]
        rows += [(x, t, i, f) for x, (t, i), f in zip(self.values, self.carried, self.following, strict=True)]
        self.sink[self.phis : self.phis] = [
            f"  {name} = phi {kind} [ {initial}, %{self.before} ], [ {following}, %{text.label} ]"
            for name, kind, initial, following in rows
        ]
        text.start(self.done)
