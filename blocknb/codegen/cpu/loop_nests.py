"""A group of tile operations as one loop nest: rows outside, vectors inside.

The vector loop runs along the axis on which most bytes are contiguous. What is the same for a whole row, and every form of
`uniformity`, is worked out before it. The vector loop then comes in two parts: up to the least bound of all masks, several vectors
an iteration and without any mask, and the rest one vector at a time with masks. Reductions along the loop keep an accumulator for
each of the several vectors; along another axis they accumulate in their result. Results are written to scratch only if another
loop needs them, after everything else in an iteration, so that a result may take the place of an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from blocknb.codegen.cpu import memory, nontemporal_stores
from blocknb.codegen.cpu.elementwise import COSTS
from blocknb.codegen.cpu.fusion import Index, identity
from blocknb.codegen.cpu.mask_bounds import Padding, fill_read
from blocknb.codegen.cpu.memory import Buffer
from blocknb.codegen.cpu.reductions import Reduction
from blocknb.codegen.cpu.row_prefetch import Ahead
from blocknb.codegen.cpu.uniformity import VARYING, Kind, Kinds, Prefix, Progression, Stored, Uniform, Varying
from blocknb.codegen.cpu.vectors import Body, place, stored
from blocknb.codegen.scalar_math.register_types import register_bits
from blocknb.codegen.scalar_math.structured import counted
from blocknb.ir.core import Op, Value
from blocknb.language.ops import ATOMICS
from blocknb.language.types import Pointer

if TYPE_CHECKING:
    from blocknb.codegen.cpu.blocks import Emitter

Place = Callable[[Value, "int | None"], Buffer]
STREAM_COST = 6  # of groups that only load, change a little, and store
UNROLL_COST = 12  # vectors an iteration times the cost of one stay near this


class Group:
    """Emits one group: `ops` in program order over loops of sizes `shape`.

    `outputs` are the values to be written to scratch; `place(value, axis)` gives each its buffer, which had better run along `axis`.
    `ahead` are loads of other groups that this one fetches ahead for.
    """

    def __init__(
        self,
        emitter: Emitter,
        ops: Sequence[Op],
        shape: tuple[int, ...],
        outputs: Sequence[Value],
        place: Place,
        ahead: Sequence[Op] = (),
    ):
        self.e, self.code, self.program = emitter, emitter.code, emitter.program
        self.ops, self.shape = list(ops), shape
        self.members = {r for op in self.ops for r in op.results if op.name != "reduce"}
        self.axis = choose_axis(emitter, self.ops, shape, outputs)
        self.outputs = [(v, place(v, self.axis)) for v in outputs]
        self.size = shape[self.axis] if self.axis is not None else 1
        self.width = self._width()
        self.unroll = self._unroll()
        self.waits = self._cost() <= UNROLL_COST  # for memory, if for anything
        self.counters: dict[int, str] = {}
        self.reductions = {op: Reduction(self, op) for op in self.ops if op.name == "reduce"}
        self.ahead = Ahead(self, ahead)

    def _width(self) -> int:
        if any(op.name in ATOMICS for op in self.ops):
            return 1
        bits = [8]
        for op in self.ops:
            bits += [
                register_bits(v.type.dtype)
                for v in (*op.results, *op.args[op.name == "store" :])
                if not isinstance(v.type.dtype, Pointer)
            ]
        bits += [register_bits(v.type.dtype) for v, _ in self.outputs]
        vector = self.e.machine.vector_bytes
        if not self.outputs and self._cost() <= STREAM_COST and not any(op.name == "reduce" for op in self.ops):
            vector = min(vector, 32)  # memory keeps up with these, and 64-byte vectors measured up to 5 % slower
        width = vector * 8 // max(bits)
        panels = [b.panel[2] for _, b in self.outputs if b.panel]
        return min([width, self.size, *panels])

    def _cost(self) -> int:
        return sum(COSTS.get(op.name, 1) for op in self.ops) + len(self.outputs)

    def _unroll(self) -> int:
        if self.e.alias or "unroll" in self.e.off or any(op.name in ATOMICS for op in self.ops):
            return 1  # rarely used: arguments that overlap; or one at a time anyway
        cost = self._cost()
        if any(not r.can_unroll for r in (Reduction(self, op) for op in self.ops if op.name == "reduce")):
            return 1
        unroll = 4 if cost <= UNROLL_COST else 2 if cost <= 3 * UNROLL_COST else 1
        return max(1, min(unroll, self.size // self.width))

    # -- loops -----------------------------------------------------------------------------------------------------------

    def emit(self) -> None:
        self._note()
        for r in self.reductions.values():
            r.prepare()
        self.ahead.prepare()
        self._outer([loop for loop in range(len(self.shape)) if loop != self.axis])
        for r in self.reductions.values():
            r.done()

    def _note(self) -> None:
        """Says how each access is made."""
        for op in self.ops:
            if op.name not in ("load", "store") or self.axis is None:
                continue
            index = identity(op.args[0].type.shape)
            axis = f"axis {index.index(self.axis)}" if len(index) > 1 else "the block"
            if self.axis in self.e.contiguous(op):
                lanes = f"vectors of {self.width} {op.args[0].type.dtype.element}"
                self.e.notes(op, f"{lanes} along {axis}{f', {self.unroll} at a time' if self.unroll > 1 else ''}")
            elif (op, self.axis) in self.e.uniform:
                self.e.notes(op, f"one element for all of {axis}")
            else:
                what = "gathered" if op.name == "load" else "scattered"
                self.e.notes(op, f"{what} lane by lane: neighbours along {axis} are no neighbours in memory", "missed")

    def _outer(self, loops: list[int]) -> None:
        if not loops:
            self._row()
            return
        with counted(self.code.w, "0", str(self.shape[loops[0]]), 1) as counter:
            self.counters[loops[0]] = counter
            self._outer(loops[1:])

    def _row(self) -> None:
        for r in self.reductions.values():
            r.start_row()
        kinds = self._kinds(speculate="loop_versioning" not in self.e.off)
        if kinds.conditions:
            w = self.code.w
            fast, slow, done = w.fresh("straight"), w.fresh("wrapped"), w.fresh("row.done")
            holds = kinds.conditions[0]
            for condition in kinds.conditions[1:]:
                holds = self.code.binary("and", holds, condition, "i1", 1)
            w.branch(holds, fast, slow)
            w.place(fast)
            Row(self, kinds, False).emit()
            w.jump(done)
            w.place(slow)
            Row(self, self._kinds(speculate=False), False).emit()
            w.place(done)
        else:
            Row(self, kinds).emit()
        for r in self.reductions.values():
            r.end_row()

    def _kinds(self, speculate: bool) -> Kinds:
        kinds = Kinds(self.program, self.code, self.axis, self.size, self.counters, self.e.scalar, self.leaf, speculate)
        for op in self.ops:
            with self.code.w.at(self.e.location(op)):
                for a in self.program.operands(op):
                    kinds.of(a, identity(a.type.shape))
        for value, _ in self.outputs:
            kinds.of(value, identity(value.type.shape))
        return kinds

    def leaf(self, value: Value, index: Index) -> Kind:
        """A stored tile: made in this very group, or in scratch."""
        if value in self.members:
            return VARYING
        return stored(self.e, value, index, self.axis, self.counters)


class Row:
    """The vector loops of one row, with the kinds that hold in it; `alone` unless there is another form of it, for other kinds."""

    def __init__(self, group: Group, kinds: Kinds, alone: bool = True):
        self.alone = alone
        self.group, self.kinds, self.code, self.e = group, kinds, group.code, group.e
        self.masks: dict[Op, Kind | None] = {}
        self.bounds: list[str] = []
        self.unsafe: dict[Op, str] = {}
        self.places: dict[Value, tuple[str, int]] = {}
        self.ahead: list[tuple[str, int]] = []

    def emit(self) -> None:
        group, c = self.group, self.code
        for op in group.ops:
            if op.name in ("load", "store"):
                with c.w.at(self.e.location(op)):
                    self._prepare_access(op)
        for value, buffer in group.outputs:
            if buffer.panel is None:
                self.places[value] = place(self.e, buffer, identity(value.type.shape), group.axis, group.counters)
        self.ahead = group.ahead.bases(self)
        padding = Padding.find(self)
        end = padding.end if padding else self._end()
        fill_read(self, end)
        least = self._least(end) if padding else self._least()
        step = group.width * group.unroll
        full = least if least.isdigit() else c.binary("and", least, str(-step), "i64", 1)
        streams = nontemporal_stores.stores(self)
        begin = (
            self._two_ways(nontemporal_stores.worth(self, streams, least), least, full)
            if streams
            else self._vectors(full)
        )
        if not full.isdigit():
            with counted(c.w, begin, end, group.width, "tail") as position:
                Body(self, position, 0, False).emit()
        if padding:
            padding.leave()

    def _end(self) -> str:
        """Where the row ends: of one that only stores, where the masks of its stores do."""
        group, c = self.group, self.code
        masks = [self.masks.get(op) for op in group.ops if op.name == "store"]
        if "mask_bounds" in self.e.off or group.outputs or group.reductions:
            return str(group.size)
        if not masks or not all(isinstance(m, Prefix) for m in masks):
            return str(group.size)
        end, *others = dict.fromkeys(m.count for m in masks if isinstance(m, Prefix))
        for other in others:
            end = c.intrinsic("smax", "i64", 1, end, other)
        return c.intrinsic("smin", "i64", 1, end, str(group.size))

    def _vectors(self, stop: str, streaming: bool = False) -> str:
        """Several vectors an iteration, none of which a mask reaches into; returns `stop`."""
        group, c = self.group, self.code
        unroll = 1 if streaming else group.unroll
        with counted(c.w, "0", stop, group.width * unroll, "j") as position:
            for u in range(unroll):
                at = c.binary("add", position, str(u * group.width), "i64", 1) if u else position
                Body(self, at, u, True, streaming).emit()
        return stop

    def _two_ways(self, streaming: str, least: str, full: str) -> str:
        """The vectors past the cache, if the i1 says so, or through it; returns where they end."""
        w = self.code.w
        past, through, done, end = w.fresh("past"), w.fresh("through"), w.fresh("streamed"), w.slot("i64", "end")
        w.branch(streaming, past, through)
        w.place(past)
        w.do(f"store i64 {self._vectors(least, streaming=True)}, ptr {end}")
        w.jump(done)
        w.place(through)
        w.do(f"store i64 {self._vectors(full)}, ptr {end}")
        w.place(done)
        self.e.streams = True
        return w.value(f"load i64, ptr {end}")

    def _least(self, *more: str) -> str:
        """The position from which on a mask reaches into the row, or its size."""
        group, c = self.group, self.code
        bounds = [b for b in [*(p.count for p in self.kinds.prefixes()), *self.bounds, *more] if b != str(group.size)]
        least = str(group.size)
        for bound in bounds:
            least = c.intrinsic("smin", "i64", 1, least, bound)
        return c.intrinsic("smax", "i64", 1, least, "0") if bounds else least

    def _prepare_access(self, op: Op) -> None:
        """Loads what is the same for the row, checks what can be checked once, notes the mask."""
        mask_at = 1 if op.name == "load" else 2
        mask = self.kind(op.args[mask_at]) if len(op.args) > mask_at else None
        pointers = self.kind(op.args[0])
        uniform_owner = self._owner(op)
        if isinstance(mask, Uniform) and mask.text == "true":
            mask = None
        if (
            op.name == "load"
            and uniform_owner
            and isinstance(pointers, Uniform)
            and (mask is None or isinstance(mask, Uniform))
        ):
            other = self.kind(op.args[2]) if len(op.args) > 2 else None
            if other is None or isinstance(other, Uniform):
                value = memory.scalar_load(
                    self.e, op, pointers.text, mask.text if mask else None, other.text if other else None
                )
                self.kinds.memo[op.result, identity(op.result.type.shape)] = Uniform(value)
                return
        if isinstance(mask, Uniform):
            mask = self.kinds.as_prefix(mask)
            assert mask is not None
            self.bounds.append(mask.count)
        self.masks[op] = mask
        count = str(self.group.size)
        if isinstance(mask, Prefix):
            count = self.code.intrinsic("smin", "i64", 1, mask.count, count)
        if isinstance(pointers, Progression) and uniform_owner:
            if isinstance(mask, (Varying, Stored)) or self.e.checks.by_lane(op):
                self.unsafe[op] = self.e.checks.row_outside(op, pointers.base, pointers.step, count)
            else:
                self.e.checks.row(op, pointers.base, pointers.step, count)
        else:
            self.unsafe[op] = "true"

    def _owner(self, op: Op) -> bool:
        """Whether the bounds of an access are the same for the row; tells `checks` which."""
        guard = self.e.checks.guard(op)
        if guard is None or guard.carried is None:
            return True
        kind = self.kind(guard.carried)
        if not isinstance(kind, Uniform):
            return False
        self.e.checks.owners[op] = kind.text, 1
        return True

    def kind(self, value: Value) -> Kind:
        return self.kinds.of(value, identity(value.type.shape))


def choose_axis(e: Emitter, ops: Sequence[Op], shape: tuple[int, ...], extra: Sequence[Value]) -> int | None:
    """The loop along which most bytes are neighbours; the last one if there is no difference."""
    if not shape:
        return None

    def score(loop: int) -> tuple[float, int]:
        total = 0.0
        for op in ops:
            if op.name in ("load", "store") and loop in e.contiguous(op):
                total += op.args[0].type.dtype.element.bytes
            for a in op.args:
                total += e.scratch_contiguous(a, loop)
        return total * min(shape[loop], 8) + sum(e.scratch_contiguous(v, loop) for v in extra) * 8, loop

    return max(range(len(shape)), key=score)
