"""Sinking: values that only one store uses are computed at that store, access by access.

A row that a kernel holds while it reduces it leaves few registers, and registers decide how many programs share an SM. After the last
reduction a kernel scales the row, loads weights and adds a bias. If each statement is emitted where it stands, its whole tile is ready
before the next statement begins. ptxas moves little, so it then needs registers for two or three tiles. So arithmetic between a reduction
and one store sinks to that store (`emit="at_use"`). A load on that way takes the store's mask when all of its elements end there: one set
of predicates is enough. Kernels of several rows that share weights would need more registers this way, so they are left alone.

Compilers call it code sinking: LLVM's `Sink` moves an instruction to the block of its use, and this pass to the access of its use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blocknb.analysis import affine
from blocknb.analysis.accesses import accesses
from blocknb.analysis.effects import mask_of
from blocknb.ir.build import Rebuild, rebuild, revised
from blocknb.ir.core import Block, Func, Op, Value, blocks, is_volatile, uses
from blocknb.ir.traversal import reachable
from blocknb.language.ops import OPS, infer
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.emission import AT_USE, IN_PIECES, emitted, with_attributes
from blocknb.passes.support.note_text import at_line
from blocknb.target import Target
from blocknb.trace import Notes

KINDS = ("elementwise", "shape")
MANY = 16  # registers of a thread's part of a tile from which a note says why it is held


def applies(func: Func, target: Target) -> bool:
    """Whether a block stores a tile after a reduction."""
    return {"reduce", "store"} <= {op.name for op in func.ops()}


@gpu_pass(optional=True, applies=applies)
def sinking(func: Func, target: Target, notes: Notes) -> Func:
    """Computes values that only one store uses at that store, one access at a time

    When: arithmetic stands between the last reduction and a store of a row, and nothing else uses its results.

    What: the code generator computes the value access by access, and then issues the stores. A load of weights on the way takes the mask
    of the store if that is stricter.

    Why: each statement of a kernel would otherwise fill registers for the whole row, and ptxas moves little code. Fewer registers allow
    more programs per SM.

    Limits: the pass skips tiles of several rows, because weights that the rows share would raise the register pressure. A value with a
    second use is computed where it stands; a note names that use.

    Before:

        %s = reduce %x {axis=0} add : f32
        %all = splat %s : tile<1024xf32, #a>
        %w = load %q, %inside : tile<1024xf32, #a>
        %z = div %x, %all : tile<1024xf32, #a>
        %y = mul %z, %w : tile<1024xf32, #a>
        store %p, %y, %inside

    After:

        %s = reduce %x {axis=0} add : f32
        %all = splat %s {emit="at_use"} : tile<1024xf32, #a>
        %w = load %q, %inside : tile<1024xf32, #a>
        %z = div %x, %all {emit="at_use"} : tile<1024xf32, #a>
        %y = mul %z, %w {emit="at_use"} : tile<1024xf32, #a>
        store %p, %y, %inside
    """
    plan = StoreSinking(func, notes)
    func = with_attributes(func, {op: {"emit": AT_USE} for op in plan.values.values()}) if plan.values else func
    return with_masks(func, plan.masks) if plan.masks else func


class StoreSinking:
    """For a memory-level Func: the `values` that are computed at their store, with their ops. `masks` has the masks of stores that loads
    take over, by the id of the load."""

    def __init__(self, func: Func, notes: Notes):
        self.facts, self.users, self.streamed = affine.analyze(func), uses(func), emitted(func, IN_PIECES)
        self.notes = notes
        self.values: dict[Value, Op] = {}
        self.masks: dict[int, Value] = {}
        self.kept: set[Op] = set()  # whose second use a note names
        for block in blocks(func.body):
            self.visit(block)

    def visit(self, block: Block) -> None:
        """Looks at the stores of a block."""
        place = {op: i for i, op in enumerate(block.ops)}
        made = {result: op for op in block.ops for result in op.results}
        after = -1  # the last reduction
        for op, i in place.items():
            if op.name == "reduce":
                after = i
            if op.name != "store" or after < 0 or any(x in self.streamed for x in op.args):
                continue
            if sum(size > 1 for size in op.args[0].type.shape) == 1:
                self.follow(op, after, place, made)

    def follow(self, store: Op, after: int, place: Mapping[Op, int], made: Mapping[Value, Op]) -> None:
        """Marks what is computed after a reduction for this store alone."""
        count = len(self.values)
        for value in reachable([store.args[1]], lambda value: made[value].args if value in self.values else ()):
            op = made.get(value)
            if op is None or place[op] < after or not value.type.shape:
                continue
            if len(self.users[value]) > 1:
                self.explain_second_use(value, op, store)
            elif op.name == "load":
                self.take_mask(op, store, place, made)
            elif can_sink(op) and value not in self.streamed:
                self.values[value] = op
        if (found := len(self.values) - count) and (held := store.args[1].type.layout.num_registers) > 1:
            each = len(accesses(self.facts, store)[0])
            ops = f"{found} operation{'s' if found > 1 else ''}"
            self.notes(store, f"computes {ops} of its value here, for {each} of {held} registers of a thread at a time")

    def explain_second_use(self, value: Value, op: Op, store: Op) -> None:
        """Notes why a tile that takes many registers is computed where it stands."""
        if op in self.kept:
            return
        other = next((user for user, _ in self.users[value] if user is not store), None)
        held = value.type.layout.num_registers
        if other is None or not can_sink(op) or OPS[op.name].has("uniform") or value.type.dtype.bits < 8 or held < MANY:
            return
        self.kept.add(op)
        text = f"{held} registers a thread: also used{at_line(other)}, so it is computed here"
        self.notes(op, f"{text}; with one use it would be computed access by access at the store", "missed")

    def take_mask(self, load: Op, store: Op, place: Mapping[Op, int], made: Mapping[Value, Op]) -> None:
        """Gives a load the mask of the store if that is stricter."""
        mask, wanted = mask_of(load), mask_of(store)
        if mask is None or wanted is None or is_volatile(load) or not wanted.type.shape:
            return
        maker = made.get(wanted)
        if maker is None or place[maker] > place[load] or not self.implies(wanted, mask, made):
            return
        if wanted is mask or reshaped_type(wanted, mask) != mask.type:
            return
        if accesses(self.facts, load) == accesses(self.facts, store):
            self.masks[load.id] = wanted
            self.notes(load, f"takes the mask of the store{at_line(store)}, which is stricter: one set of predicates")

    def implies(self, wanted: Value, mask: Value, made: Mapping[Value, Op]) -> bool:
        """Whether `wanted` is `mask`, perhaps in another shape of as many elements, and more conditions."""

        def conditions(value: Value) -> Sequence[Value]:
            op = made.get(value)
            same = op is not None and op.name == "expand_dims" and value.type.size == mask.type.size
            return op.args if op is not None and (op.name == "and" or same) else ()

        return any(value is mask for value in reachable([wanted], conditions))


def can_sink(op: Op) -> bool:
    """Whether an op computes its registers one by one."""
    return OPS[op.name].pure and OPS[op.name].kind in KINDS and len(op.results) == 1


def reshaped_type(wanted: Value, mask: Value) -> Any:
    """The type of a mask in the shape of another one; None if they differ in size."""
    if wanted.type.size != mask.type.size:
        return None
    return infer("reshape", (wanted.type,), {"shape": mask.type.shape})[0]


def with_masks(func: Func, masks: Mapping[int, Value]) -> Func:
    """The function in which loads, by id, take other masks, reshaped if need be."""

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.id not in masks:
            return NotImplemented
        pointer, mask, *other = op.args
        wanted = masks[op.id]
        if wanted.type != mask.type:
            wanted = rebuild.builder.value("reshape", wanted, shape=mask.type.shape)
        return rebuild.keep(revised(op, args=(pointer, wanted, *other))).results

    return rebuild(func, visit)
