"""Software prefetch for products: while a microkernel multiplies, the L2 cache fetches the tiles of the loop's next iteration.

A product in a loop copies its operands' tiles from the matrices, multiplies them, and goes on to the next tiles. The rows of a tile are
short and far apart, so the hardware prefetcher does not run ahead. Each copy would then wait for the last-level cache or the memory, which
idle during the multiplications. So the microkernel prefetches one cache line of the next tile every few steps of k. The prefetch assumes
that addresses advance by the same distance in each iteration, so it needs no analysis. A wrong address costs only the prefetch, which
cannot fault. Source of the technique: Mowry, Lam & Gupta, "Design and evaluation of a compiler algorithm for prefetching" (ASPLOS 1992).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from blocknb.codegen.cpu.buffers import CACHE_LINE
from blocknb.codegen.cpu.context import VersionContext, VersionPart
from blocknb.codegen.cpu.dataflow import Dataflow, identity, squeezed
from blocknb.codegen.cpu.fusion import FusionNode
from blocknb.codegen.cpu.row_prefetch import varies
from blocknb.codegen.cpu.uniformity import VARYING, AddressAnalysis, Strided, UniformityAnalysis
from blocknb.codegen.scalar_math.instructions import InstructionBuilder
from blocknb.codegen.scalar_math.register_types import register_type
from blocknb.ir.core import Block, Op

#: Bytes of a tile. A prefetch of a smaller one does not pay. Larger ones do not fit the L2 cache next to the tiles in use.
LEAST, MOST = 1 << 12, 1 << 19
LOADS = 2  # per product: its operands
STEPS = 4  # of k at least between two prefetches


class NextTile(NamedTuple):
    """The tile that the next iteration loads. It has the i64 address of its first row, the bytes between rows, its rows, and the cache
    lines per row."""

    address: str
    stride: str
    rows: int
    cache_lines: int


def plan(
    program: Dataflow, addresses: AddressAnalysis, nodes: Sequence[FusionNode], block: Block, taken: Collection[Op]
) -> dict[FusionNode, list[Op]]:
    """For which loads each product of a loop's body prefetches; `taken` are loads with a prefetch elsewhere."""
    holder = program.argument[block.args[0]][0] if block.args and block.args[0] in program.argument else None
    if holder is None or holder.name != "for":
        return {}
    found: dict[FusionNode, list[Op]] = {}
    loads: list[Op] = []
    for node in nodes:
        if node.is_group:
            loads += [
                op
                for op in node.ops
                if op.name == "load" and op not in taken and _is_profitable(program, addresses, op)
            ]
        elif node.ops[0].name == "dot" and loads:
            found[node], loads = loads[-LOADS:], []
    return found


def _is_profitable(program: Dataflow, addresses: AddressAnalysis, op: Op) -> bool:
    """Whether a load of a matrix has contiguous rows and differs in each iteration."""
    pointers = op.args[0]
    size = math.prod(pointers.type.shape) * pointers.type.dtype.element.bytes
    if len(squeezed(pointers.type.shape)) != 2 or not LEAST <= size <= MOST or not addresses.contiguous(op):
        return False
    return any(varies(program, leaf) for leaf, _ in program.leaves(pointers, identity(pointers.type.shape)))


class TilePrefetch(VersionPart):
    """Computes where the tiles of the next iteration begin."""

    def __init__(self, context: VersionContext):
        super().__init__(context)

    def tiles_of(self, op: Op) -> list[NextTile]:
        """The tiles that a product prefetches, which `plan` chose."""
        scope = self.tiles.scope
        node = scope.graph.node_of[op]
        found = [self._next(load, scope.graph.block) for load in scope.prefetches.get(node, ())]
        return [tile for tile in found if tile is not None]

    def _next(self, load: Op, block: Block) -> NextTile | None:
        """The next tile of a load, if its rows have a constant distance."""
        c, pointers = self.code, load.args[0]
        shape, size = squeezed(pointers.type.shape), pointers.type.dtype.element.bytes
        axis = max(self.addresses.contiguous(load))
        first, second = (self._row(load, axis, shape[axis], number) for number in ("0", "1"))
        if first is None or second is None:
            return None
        before, step = (c.w.slot("i64", name) for name in ("before", "step"))
        c.w.slots += [f"  store i64 0, ptr {slot}" for slot in (before, step)]
        # The first iteration comes after another program's last one: it takes the distance of that program.
        last = c.w.value(f"load i64, ptr {before}")
        known = c.w.value(f"icmp ne i64 {last}, 0")
        distance = c.select(known, c.i64("sub", first, last), "0", "i64", 1)
        distance = c.select(self._begins(block), c.w.value(f"load i64, ptr {step}"), distance, "i64", 1)
        c.w.do(f"store i64 {first}, ptr {before}")
        c.w.do(f"store i64 {distance}, ptr {step}")
        self.notes(load, "software prefetch: the product of this iteration fetches the next tile to the L2 cache")
        cache_lines = max(1, shape[axis] * size // CACHE_LINE)
        return NextTile(c.i64("add", first, distance), c.i64("sub", second, first), shape[1 - axis], cache_lines)

    def _row(self, load: Op, axis: int, size: int, number: str) -> str | None:
        """The i64 address at which a row of a load's tile begins."""
        pointers, speculate = load.args[0], self.options.uses("loop_versioning")
        forms = UniformityAnalysis(
            self.program, self.code, axis, size, {1 - axis: number}, self.scalars.of, lambda value, index: VARYING, speculate
        )  # fmt: skip
        form = forms.of_operand(pointers)
        return form.base if isinstance(form, Strided) and form.step == pointers.type.dtype.element.bytes else None

    def _begins(self, block: Block) -> str:
        """Whether this is the first iteration of the loop with this body."""
        counter = block.args[0]
        lower = self.program.argument[counter][0].args[0]
        kind = register_type(counter.type.dtype)
        return self.code.w.value(f"icmp eq {kind} {self.scalars.of(counter)}, {self.scalars.of(lower)}")


class PrefetchSchedule:
    """The prefetches of a microkernel that computes `tiles` register tiles, each in `depth` steps of k. All numbers are powers of two.

    A register tile takes `parts` parts of its steps, and prefetches at the start of each."""

    def __init__(self, code: InstructionBuilder, fetched: Sequence[NextTile], tiles: int, depth: int):
        self.code, self.fetched, self.tiles = code, fetched, tiles
        most = max((tile.rows * tile.cache_lines for tile in fetched), default=1)
        self.parts = max(1, min(most // tiles, depth // STEPS))
        self.parameters = "".join(f", i64 %next{i}, i64 %stride{i}" for i in range(len(fetched)))

    def fetch(self, number: str, part: str) -> None:
        """Prefetches the lines of a part of the register tile with this number."""
        c = self.code
        position = c.i64("add", c.i64("mul", number, str(self.parts)), part)
        for i, tile in enumerate(self.fetched):
            positions, lines = self.tiles * self.parts, tile.rows * tile.cache_lines
            each = max(1, lines // positions)
            for more in range(each):
                line = c.i64("udiv", position, str(max(1, positions // lines)))
                line = c.i64("add", c.i64("mul", line, str(each)), str(more))
                row, column = c.i64("udiv", line, str(tile.cache_lines)), c.i64("urem", line, str(tile.cache_lines))
                offset = c.i64("add", c.i64("mul", row, f"%stride{i}"), c.i64("mul", column, str(CACHE_LINE)))
                place = c.w.value(f"inttoptr i64 {c.i64('add', f'%next{i}', offset)} to ptr")
                c.w.do(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 2, i32 1)")
