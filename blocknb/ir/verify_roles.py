"""Verifies warp-specialized functions and copy-engine ops. This module is a part of the verifier, for the memory level."""

from __future__ import annotations

from collections.abc import Callable

from blocknb.ir.core import Block, Func, Op, Value, operands, walk, within
from blocknb.ir.traversal import reachable
from blocknb.language.bulk import Barriers, TensorMap
from blocknb.language.ops import OPS, named
from blocknb.language.types import Buffer, Tile
from blocknb.layouts.shared import boxed

#: Ops that the host computes from parameters, for tensor maps.
HOST = named("host")
SIGNALS = named("mbarrier")
PRODUCES = named("producer")  # ops of both roles, besides scalars and control flow
ELECTED = named("producer_only")  # ops of the producer only
CONSUMER_ONLY = named("consumer_only")  # ops of the consumer warps only
LEAST_REGISTERS, MOST_REGISTERS = 24, 256
GROUP = 4  # warps of a warpgroup, the unit of register reallocation

Require = Callable[[bool, Op, str], None]


def check(func: Func, require: Require) -> None:
    """Calls `require(condition, op, message)` for each rule."""
    _Checks(func, require).run()


class _Checks:
    def __init__(self, func: Func, require: Require):
        self.func, self.require = func, require
        self.top = {value: op for op in func.body.ops for value in op.results}

    def run(self) -> None:
        parts = [op for op in self.func.ops() if op.name == "roles"]
        for op in self.func.ops():
            self.op(op)
        if not parts:
            for op in self.func.ops():
                self.require(op.name not in (*SIGNALS, "copy_bulk"), op, f"{op.name} without roles")
            return
        self.roles(parts[-1])

    def op(self, op: Op) -> None:
        """The rules of one op at any position."""
        match op.name:
            case "tensor_map":
                self.require(op.args[0] in self.func.params, op, "the pointer of a tensor map must be a parameter")
                self.require(self.at_top(op), op, "tensor maps must be made at the top level of the function")
                for value in op.args[1:]:
                    self.host(op, value)
            case "mbarriers":
                self.require(self.at_top(op), op, "mbarriers must be made at the top level of the function")
                total, offset = self.func.attrs.get("shared_bytes"), op.attrs.get("offset")
                if total is not None or offset is not None:
                    self.require(isinstance(offset, int) and offset >= 0, op, "mbarriers without an offset")
                    assert isinstance(offset, int)
                    self.require(
                        offset % Barriers.EACH == 0,
                        op,
                        f"mbarriers at offset {offset}, which is not a multiple of 8 bytes",
                    )
                    inside = isinstance(total, int) and offset + op.result.type.bytes <= total
                    self.require(inside, op, f"mbarriers at offset {offset} of {total} bytes of shared memory")
            case "copy_bulk":
                self.moved(op, op.args[0], op.args[1])
            case "store_bulk":
                self.moved(op, op.args[1], op.args[0])
            case "program_id":
                several = bool(self.func.attrs.get("persistent"))
                self.require(not several, op, "a CTA that runs several programs has no program id")
            case "cta_id" | "num_ctas":
                several = bool(self.func.attrs.get("persistent"))
                self.require(several, op, f"{op.name} in a function that is not persistent")
        for value in op.args:
            if isinstance(value.type, (Barriers, TensorMap)):
                self.require(value in self.top, op, f"%{value.name} comes by way of a loop or branch")

    def at_top(self, op: Op) -> bool:
        return self.top.get(op.result) is op

    def host(self, user: Op, value: Value) -> None:
        """Whether the host can compute a number when it launches the kernel."""
        if value in self.func.params:
            return
        op = self.top.get(value)
        self.require(op is not None, user, f"%{value.name} is made in a loop or branch, so the host cannot compute it")
        assert op is not None
        self.require(op.name in HOST, user, f"%{value.name} is made by {op.name}, which the host does not compute")
        for arg in op.args:
            self.host(user, arg)

    def moved(self, op: Op, buffer: Value, map: Value) -> None:
        """Checks that the layout of a buffer is that in which the copy engine places boxes."""
        kind, found, axes = map.type, buffer.type, op.attrs["axes"]
        inner = len(kind.box) - 1
        self.require(len(found.shape) == 2 and inner in axes, op, f"boxes of {kind} in {found}, along axes {axes}")
        width = kind.box[inner] * kind.dtype.bytes
        message = f"the copy engine moves rows of multiples of 16 bytes, not of {width}"
        self.require(width % 16 == 0 or found.shape[axes.index(inner)] == kind.box[inner] == 1, op, message)
        fits = not kind.swizzle or width == kind.swizzle
        self.require(fits, op, f"rows of {width} bytes under a swizzle of {kind.swizzle}")
        wanted = boxed(found.shape, kind.dtype.bits, axes.index(inner), kind.box[inner], kind.swizzle)
        self.require(
            found.layout == wanted, op, f"boxes of {kind} lie in a buffer as {wanted}, which has {found.layout}"
        )
        alloc = self.alloc(buffer)
        align = max(128, 8 * kind.swizzle)
        self.require(alloc is not None, op, f"%{buffer.name} comes by way of a loop or branch")
        assert alloc is not None
        given = alloc.attrs.get("align", 128)
        aligned = given % align == 0 and found.bytes % align == 0
        self.require(aligned, op, f"{found} at multiples of {given} bytes, not of {align}")

    def alloc(self, buffer: Value) -> Op | None:
        """The op that allocates the buffer, or the circular buffer of a stage."""
        if not hasattr(self, "made"):
            self.made = {op.results[0]: op for op in self.func.ops() if op.name in ("alloc", "stage")}
        op = self.made.get(buffer)
        while op is not None and op.name == "stage":
            op = self.made.get(op.args[0])
        return op

    # -- roles

    def roles(self, op: Op) -> None:
        ops = self.func.body.ops
        self.require(bool(ops) and op is ops[-1], op, "roles must be the last op of a function")
        consumers, producer = op.attrs["warps"]
        groups, wanted = op.attrs.get("consumer_groups", 1), self.func.attrs.get("num_warps", consumers)
        self.require(
            consumers == groups * wanted, op, f"{groups} x {wanted} warps of programs in consumer groups of {consumers}"
        )
        several = groups == 1 or bool(self.func.attrs.get("persistent"))
        self.require(several, op, f"{groups} consumer groups in a CTA that runs one program")
        if (registers := op.attrs.get("registers")) is not None:
            fine = all(n % 8 == 0 and LEAST_REGISTERS <= n <= MOST_REGISTERS for n in registers)
            self.require(
                fine, op, f"registers per thread must be multiples of 8 from {LEAST_REGISTERS} to {MOST_REGISTERS}"
            )
            groups = consumers % GROUP == 0 and producer % GROUP == 0
            self.require(groups, op, f"registers are reallocated per group of {GROUP} warps")
        for before in ops[:-1]:
            self.before(before)
        first, second = op.blocks
        for inner in walk(first):
            self.require(inner.name not in ELECTED, inner, f"consumer warps cannot execute {inner.name}")
            if inner.name in SIGNALS:
                self.require(
                    inner.args[0] in self.top, inner, "an mbarrier that is not made at the top level of the function"
                )
        for inner in walk(second):
            self.produces(inner)
        self.scalars(op, second)

    def before(self, op: Op) -> None:
        """Checks the ops before the roles, which all warps execute, even those without a part of a tile."""
        if op.name in ("barrier", "mbarriers"):
            return
        for inner in within(op):
            spec = OPS[inner.name]
            quiet = not spec.writes and spec.reads != "shared" and inner.name not in ("barrier", "asm")
            self.require(quiet, inner, f"{inner.name} before the roles, where the producer warps also run")

    def produces(self, op: Op) -> None:
        spec = OPS[op.name]
        allowed = op.name in PRODUCES or spec.kind in ("source", "elementwise", "shape")
        allowed = allowed or (spec.kind == "control" and op.name not in CONSUMER_ONLY and op.name != "roles")
        self.require(allowed and op.name not in CONSUMER_ONLY, op, f"a producer warp cannot execute {op.name}")
        for value in (*op.args, *op.results, *(x for block in op.blocks for x in block.args)):
            tile = isinstance(value.type, Tile) and value.type.shape != ()
            self.require(not tile, op, f"%{value.name} is a tile, but a producer warp has no tiles")
            if isinstance(value.type, Buffer) and op.name == "copy_bulk":
                alloc = self.alloc(value)
                at_top = alloc is not None and self.at_top(alloc)
                self.require(at_top, op, "a producer must fill buffers that are made at the top level of the function")

    def scalars(self, user: Op, producer: Block) -> None:
        """Checks that the producer's code depends only on scalars computed before the roles."""

        def made_of(value: Value) -> tuple[Value, ...]:
            return tuple(operands(self.top[value])) if value in self.top else ()

        for value in reachable((value for op in walk(producer) for value in op.args), made_of):
            for used in made_of(value):
                tile = isinstance(used.type, Tile) and used.type.shape != ()
                self.require(
                    not tile, user, f"the producer needs %{value.name}, which depends on the tile %{used.name}"
                )
