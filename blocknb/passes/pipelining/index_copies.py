"""Indices that place later copies: a loop loads a number, such as the column of a sparse block or a page, and a tile behind it.

The tile's copy runs ahead, so the index must arrive even earlier. It travels as the tiles do, by an asynchronous copy into a circular
buffer, in the group of a tile that is needed just as early. A register would have to be moved from iteration to iteration, and on NVIDIA
GPUs the move waits for the load.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.ir.build import Builder
from blocknb.ir.core import Op, Value
from blocknb.language.types import Buffer, Tile
from blocknb.layouts.linear import Layout
from blocknb.layouts.shared import row_major
from blocknb.passes.pipelining.later_iterations import LaterIterations


class IndexCopies:
    """Circular buffers for the results of loads of scalars and vectors, one each."""

    def __init__(self, builder: Builder, loads: Sequence[Op], stages: int, num_warps: int):
        self.builder, self.loads = builder, loads
        self.alone = Layout((1,), (), (0,) * 5, (0,) * (num_warps.bit_length() - 1))
        self.buffers = []
        for load in loads:
            shape = load.result.type.shape or (1,)
            with builder.at(load):
                kind = Buffer(load.result.type.dtype, shape, row_major(shape), stages=stages)
                self.buffers.append(builder.value("alloc", type=kind))
            self.buffers[-1].name = load.result.name

    def copy(self, stage: Value, later: LaterIterations, iteration: int) -> None:
        """Emits the copies of the indices of a later iteration into a stage. They precede the reads of another stage, as those of tiles
        do, so that one barrier per iteration suffices."""
        b = self.builder
        for load, buffer in zip(self.loads, self.buffers, strict=True):
            with b.at(load):
                operands = later.operands(load, iteration)[:2]
                if not load.result.type.shape:
                    operands = [b.value("splat", x, shape=(1,), layout=self.alone) for x in operands]
                b.op("copy_async", b.value("stage", buffer, stage), *operands, vec=1)

    def read(self, stage: Value) -> list[Value]:
        """The indices in a stage."""
        return [self.value(load, buffer, stage) for load, buffer in zip(self.loads, self.buffers, strict=True)]

    def value(self, load: Op, buffer: Value, stage: Value) -> Value:
        """The index of one load."""
        b, kind = self.builder, load.result.type
        with b.at(load):
            found = b.value("local_load", b.value("stage", buffer, stage), layout=kind.layout or self.alone)
            if kind.shape:
                return found
            one, other = Value(Tile(kind.dtype)), Value(Tile(kind.dtype))
            with b.block((one, other)) as opened:
                b.op("yield", b.value("or", one, other))
            return b.op("reduce", found, blocks=(opened.done,), axis=0).result
