"""Software prefetch: while one program computes, the cache fetches the rows that the next program will load, or that later stores write.

A kernel over rows loads a row, computes for a while, and stores it, so the memory idles half of the time. A row is too short for the
hardware prefetcher to run far ahead, and too long for out-of-order execution to reach the next one. So a later loop nest prefetches
the row of the next program, preferably a nest that accesses no arrays. The prefetch assumes that addresses advance by the same distance
each time, so it needs no analysis. A wrong address costs only the prefetch, which cannot fault. Source of the technique: Callahan,
Kennedy & Porterfield, "Software prefetching" (ASPLOS 1991).

A nest that writes a tile from scratch memory to short rows of an array waits for each line that it stores to. It prefetches them for
writing, some rows ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from blocknb.codegen.cpu.buffers import LINE
from blocknb.codegen.cpu.builder import KernelBuilder
from blocknb.codegen.cpu.dataflow import PLAIN_ACCESSES, Dataflow, identity
from blocknb.codegen.cpu.fusion import FusionNode
from blocknb.codegen.cpu.nests import LoopNest, cost
from blocknb.codegen.cpu.uniformity import AddressAnalysis, Strided, UniformityAnalysis
from blocknb.codegen.cpu.vectors import VectorBody
from blocknb.ir.core import Op, Value
from blocknb.trace import Notes

#: Bytes of a tile: the hardware prefetches smaller ones, and larger ones would evict the data in use.
LEAST, MOST = 512, 1 << 17
LOADS = 3  # per block: the memory serves no more streams well
COST = 3  # the least cost of a nest that has time for prefetches
ROWS_AHEAD = 2  # how far a store's rows are prefetched
LEAST_ROWS = 8 * ROWS_AHEAD  # of a store: the last rows prefetch lines that the nest does not write
STORED = range(256, 4096 + 1)  # bytes of a store's row: the hardware prefetches the lines of longer ones


class NextRow(NamedTuple):
    """A row to prefetch: its i64 address, the bytes of an element, and whether the row will be stored."""

    address: str
    element: int
    stored: bool = False


def plan(program: Dataflow, addresses: AddressAnalysis, nodes: Sequence[FusionNode]) -> dict[FusionNode, list[Op]]:
    """Which nests of a block prefetch, and for which loads."""
    best: dict[tuple[int, ...] | None, FusionNode] = {}  # of the later nodes, by shape: the nest that has most time
    hosts: list[tuple[Op, FusionNode]] = []
    for node in reversed(nodes):
        if node.is_group and node.shape in best:
            hosts += [(op, best[node.shape]) for op in reversed(node.ops) if op.name == "load"]
        if cost(node.ops) >= COST and (node.shape not in best or _idle_rank(node) >= _idle_rank(best[node.shape])):
            best[node.shape] = node
    found: dict[FusionNode, list[Op]] = {}
    chosen = (pair for pair in reversed(hosts) if _is_profitable(program, addresses, pair[0]))
    for op, host in islice(chosen, LOADS):
        found.setdefault(host, []).append(op)
    return found


def _is_profitable(program: Dataflow, addresses: AddressAnalysis, op: Op) -> bool:
    """Whether a load is contiguous, its address is known before its loops, and it differs each time."""
    pointers = op.args[0]
    size = math.prod(pointers.type.shape) * pointers.type.dtype.element.bytes
    if not LEAST <= size <= MOST or not addresses.contiguous(op):
        return False
    leaves = [leaf for leaf, _ in program.leaves(pointers, identity(pointers.type.shape))]
    return any(varies(program, leaf) for leaf in leaves)


def varies(program: Dataflow, scalar: Value) -> bool:
    """Whether a scalar of an address is computed, so that it may differ between programs or iterations."""
    op = program.definition.get(scalar)
    return scalar not in program.func.params and (op is None or op.name != "const")


def _idle_rank(node: FusionNode) -> tuple[bool, int]:
    """Ranks nests by their idle memory time: those that access no array come first, then those that compute more."""
    return all(op.name not in PLAIN_ACCESSES for op in node.ops), cost(node.ops)


class RowPrefetch:
    """The prefetches of one loop nest. `steps` has, for each access, how far the prefetched address lies from this one, in bytes."""

    def __init__(self, ops: Sequence[Op], code: KernelBuilder, notes: Notes):
        self.ops, self.code, self.notes = ops, code, notes
        self.steps: dict[Op, str] = {}

    def prepare(self, forms_at_origin: Callable[[], UniformityAnalysis]) -> None:
        """Before all loops: stores the address at which the tile begins, for the next program or iteration."""
        c = self.code
        for op in self.ops:
            pointers = op.args[0]
            form = forms_at_origin().of_operand(pointers)
            if not isinstance(form, Strided) or form.step != pointers.type.dtype.element.bytes:
                continue
            slot = c.w.slot("i64", "before")
            c.w.slots.append(f"  store i64 0, ptr {slot}")
            before = c.w.value(f"load i64, ptr {slot}")
            c.w.do(f"store i64 {form.base}, ptr {slot}")
            step = c.i64("sub", form.base, before)
            self.steps[op] = c.select(c.w.value(f"icmp eq i64 {before}, 0"), "0", step, "i64", 1)
            self.notes(op, "software prefetch: the next program or iteration finds its row in the cache")

    def prepare_stores(self, nest: LoopNest, forms_of_row: Callable[[str], UniformityAnalysis]) -> None:
        """Before all loops: computes the distance between rows that the nest stores from scratch memory."""
        rows = [size for loop, size in enumerate(nest.shape) if loop != nest.axis]
        if nest.axis is None or len(rows) != 1 or rows[0] < LEAST_ROWS or any(op.name == "load" for op in nest.ops):
            return
        for op in nest.ops:
            element = op.args[0].type.dtype.element.bytes if op.name == "store" else 0
            if nest.size * element not in STORED:
                continue
            first, second = (forms_of_row(number).of_operand(op.args[0]) for number in "01")
            if isinstance(first, Strided) and isinstance(second, Strided) and first.step == second.step == element:
                distance = self.code.i64("sub", second.base, first.base)
                self.steps[op] = self.code.i64("mul", distance, str(ROWS_AHEAD))
                self.notes(op, f"software prefetch: fetches the lines of the row {ROWS_AHEAD} rows ahead")

    def next_rows(self, forms: UniformityAnalysis) -> list[NextRow]:
        """The rows to prefetch while this row is computed. A row that wraps around is not contiguous, and has no prefetches."""
        found = []
        for op, step in self.steps.items():
            if isinstance(form := forms.of_operand(op.args[0]), Strided):
                found.append(NextRow(self.code.i64("add", form.base, step), form.step, op.name == "store"))
        return found

    def fetch(self, rows: Sequence[NextRow], body: VectorBody) -> None:
        """Prefetches the cache lines of one vector."""
        c = self.code
        for base, size, stored in rows:
            length = body.width * size
            if (length < LINE and body.number % (LINE // length)) or (stored and body.streaming):
                continue
            at = c.i64("add", base, c.i64("mul", body.position, str(size)))
            for line in range(0, length, LINE):
                place = c.pointer(c.i64("add", at, str(line)) if line else at)
                c.w.do(f"call void @llvm.prefetch.p0(ptr {place}, i32 {int(stored)}, i32 3, i32 1)")
