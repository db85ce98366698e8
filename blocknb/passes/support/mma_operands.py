"""Shared-memory operands of wgmma: the choice of their buffers, and the place of the stores.

A matrix descriptor must be able to name the layout of the buffer (`layouts.wgmma`). Among such layouts, the module takes the one with the
fewest store instructions. An operand from outside of a loop is stored before the loop. A fence follows the stores, because wgmma reads
through the async proxy; `barriers` adds the barrier. Source: PTX ISA, "Async Proxy".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blocknb.ir.build import Builder
from blocknb.ir.core import Op, Value, walk
from blocknb.language import types as t
from blocknb.language.types import Tile
from blocknb.layouts import wgmma
from blocknb.layouts.shared import SharedLayout, row_major, swizzled_rows, vector_cost
from blocknb.layouts.tables import steps_at_once

StoreToBuffer = Callable[..., Value]


def from_shared(op: Op) -> list[int]:
    """The operands (0: A, 1: B) that a wgmma dot reads from shared memory; none for any other op."""
    if op.name != "dot" or not wgmma.is_name(op.attrs.get("instr", "")):
        return []
    return [1] if op.attrs["registers"] else [0, 1]


class OperandBuffers:
    """Stores operands. Dots in the same block or in inner blocks that read an operand in the same layout share one store.

    `store(value, layout, what, **attrs of alloc and local_store)` makes a buffer that holds a value.
    """

    def __init__(self, builder: Builder, store: StoreToBuffer):
        self.builder, self.store = builder, store
        #: The last key: whether rounded to tf32, None for the buffer of a conversion. No fence follows its store, so wgmma cannot read it.
        self.stored: list[dict[tuple[Value, SharedLayout, bool | None], Value]] = [{}]

    def open(self) -> None:
        """Enters a nested block."""
        self.stored.append({})

    def close(self) -> None:
        """Leaves a nested block. Operands stored in it may not be stored on other paths."""
        self.stored.pop()

    def before_loop(self, loop: Op, get: Callable[[Value], Value]) -> None:
        """Stores the operands of a loop's dots that the loop does not compute."""
        inside = {value for block in loop.blocks for op in walk(block) for value in op.results}
        inside.update(value for block in loop.blocks for value in block.args)
        inside.update(value for block in loop.blocks for op in walk(block) for b in op.blocks for value in b.args)
        wanted = []
        for block in loop.blocks:
            for op in walk(block):
                sides = [side for side in from_shared(op) if op.args[side] not in inside]
                wanted += [(op, side, get(op.args[side])) for side in sides]
        self.make(wanted)

    def lower(self, op: Op) -> tuple[Value, ...]:
        """The operands of a dot; buffers for those in shared memory."""
        found = dict(zip(from_shared(op), self.make([(op, i, op.args[i]) for i in from_shared(op)]), strict=True))
        return tuple(found.get(i, value) for i, value in enumerate(op.args))

    def plain(self, op: Op) -> list[Value]:
        """The buffers of the operands of a product by plain multiply-adds. Rows of A are swizzled. B is swizzled only if the code takes all
        of K at once. A loop along K moves from row to row of B by addition, which a swizzle does not allow."""
        buffers = []
        k = op.args[0].type.shape[1]
        whole = steps_at_once(op.result.type.layout.num_registers, k) == k
        for i, value in enumerate(op.args[:2]):
            kind = value.type
            layout = swizzled_rows(kind.shape, kind.dtype.bits) if whole or i == 0 else row_major(kind.shape)
            buffer = self.known(value, layout, False) or self.known(value, layout, None)
            if buffer is None:
                buffer = self.store(value, layout, f"dot operand {'ab'[i]}")
                self.stored[-1][value, layout, False] = buffer
            buffers.append(buffer)
        return buffers

    def known(self, value: Value, layout: SharedLayout, tf32: bool | None) -> Value | None:
        """The buffer in which an operand is stored already, rounded to tf32 or not, or by a conversion (None)."""
        key = value, layout, tf32
        return next((level[key] for level in self.stored if key in level), None)

    def make(self, wanted: Sequence[tuple[Op, int, Value]]) -> list[Value]:
        buffers, count = [], len(self.stored[-1])
        for op, side, value in wanted:
            layout, tf32 = choose(op, side, value.type), value.type.dtype == t.float32
            buffer = self.known(value, layout, tf32)
            if buffer is None:
                with self.builder.at(op):
                    buffer = self.store(value, layout, f"dot operand {'ab'[side]}", align=wgmma.ALIGNMENT, tf32=tf32)
                self.stored[-1][value, layout, tf32] = buffer
            buffers.append(buffer)
        if len(self.stored[-1]) > count:
            with self.builder.at(wanted[-1][0]):
                self.builder.op("fence")
        return buffers


def choose(op: Op, side: int, kind: Tile) -> SharedLayout:
    """The layout of a buffer for a tile in registers that takes the fewest store instructions."""
    bits, assigned = kind.dtype.bits, kind.layout
    assert assigned is not None
    candidates = wgmma.buffers(kind.shape, bits, side, wgmma.part(kind.shape[side], side, op.attrs["warps"]))
    return min(candidates, key=lambda layout: vector_cost(assigned, layout, bits))
