"""Epilogue subtiling: a large result is stored subtile by subtile through one small buffer.

A tensor core gives each thread pairs of neighbours, but memory is fastest with 16 bytes per thread and rows of 128 bytes. A conversion
through shared memory lies between the two. For a whole tile it takes as much shared memory as the operands of several steps along K. So
this pass stores the tile in subtiles that are one row of 128 bytes wide. A subtile is a subset of each thread's registers, so extracting it
costs nothing. If every warp stores its own rows (`layout_assignment` arranges that), warps do not wait for each other. CUTLASS calls the
subtile EpilogueTile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blocknb.analysis import affine
from blocknb.analysis.affine import Facts
from blocknb.analysis.effects import effects
from blocknb.ir.build import Rebuild, rebuild
from blocknb.ir.core import Block, Func, Op, Users, Value, definitions, is_volatile, uses
from blocknb.language.ops import OPS
from blocknb.layouts import convert, tables, wgmma
from blocknb.layouts.linear import Layout, format_shape
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.conversions_after_loops import kept_in_warps
from blocknb.target import Target
from blocknb.trace import Notes

ROW = 128  # bytes per row of a subtile
SMALL = 32 * 1024  # bytes of a tile that is stored whole, if warps have to synchronise


@gpu_pass(optional=True)
def epilogue_subtiling(func: Func, target: Target, notes: Notes) -> Func:
    """Stores large tiles in subtiles of 128 bytes per row

    When: a tile goes through shared memory on its way to a store, as the result of a product does.

    What: the pass splits the tile into subtiles, which use one small buffer one after another. Each thread has its part of each subtile in
    its registers. If the program loads a tile only to combine it with the result, it loads the same subtiles, each while it stores the
    previous one.

    Why: a buffer for the whole tile would take the shared memory that the operands of later iterations need.

    Limits: each thread must hold a part of every subtile. Tiles up to 32 KB that warps can only store together stay whole.

    Before:

        %y = convert %c : tile<64x128xf16, #b>
        store %p, %y

    After:

        %c0 = part %c {axis=1, index=0, count=2} : tile<64x64xf16, #c>
        %y0 = convert %c0 : tile<64x64xf16, #d>
        %p0 = part %p {axis=1, index=0, count=2} : tile<64x64xptr<f16>, #d>
        store %p0, %y0
        %c1 = part %c {axis=1, index=1, count=2} : tile<64x64xf16, #c>
        %y1 = convert %c1 : tile<64x64xf16, #d>
        %p1 = part %p {axis=1, index=1, count=2} : tile<64x64xptr<f16>, #d>
        store %p1, %y1
    """
    func = converted_last(converted_in_arms(func))
    found = find(func)
    gone = {id: store for store in found.values() for id in store.made}

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.id in found:
            found[op.id].emit(rebuild, notes)
            return ()
        return op.results if op.id in gone else NotImplemented

    return rebuild(func, visit) if found else func


def converted_in_arms(func: Func) -> Func:
    """Moves the conversion of a tile to its only store, if the store is in an arm of a branch that the conversion precedes.

    Programs that take the other arm then do not convert, and the pass can split the store.
    """
    facts, users = affine.analyze(func), uses(func)
    moved: dict[int, Op] = {}  # by the id of the store
    for op in func.ops():
        made = facts.definition.get(op.args[1]) if op.name == "store" else None
        if made is None or made.name != "convert" or len(users[made.result]) > 1:
            continue
        around, home = facts.parent[op], facts.parent[made]
        while around is not None and around is not home and around.name == "if":
            around = facts.parent[around]
        if around is home and facts.parent[op] is not home:
            moved[op.id] = made
    gone = {made.id for made in moved.values()}

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.id in gone:
            return op.results
        if op.id not in moved:
            return NotImplemented
        b, made = rebuild.builder, moved[op.id]
        with b.at(made):
            value = b.value("convert", rebuild.get(made.args[0]), layout=made.attrs["layout"])
        value.name = made.result.name
        args = [value if x is made.result else rebuild.get(x) for x in op.args]
        b.op("store", *args, **op.attrs)
        return ()

    return rebuild(func, visit) if moved else func


def converted_last(func: Func) -> Func:
    """Moves the conversion of a large tile after its transposes and narrowing casts, just before the store. The conversion then moves only
    the bytes that the program stores."""
    users, makers = uses(func), definitions(func)
    first: set[int] = set()  # conversions, by op id
    last: dict[int, tuple[Op, ...]] = {}  # by the id of the op at the store: the conversion and all ops after it
    for op in func.ops():
        made, chain = makers.get(op.args[1]) if op.name == "store" else None, list[Op]()
        while made is not None and may_come_first(made) and len(users[made.result]) == 1:
            chain.insert(0, made)
            made = makers.get(made.args[0])
        if not chain or made is None or made.name != "convert" or len(users[made.result]) > 1:
            continue
        if made.result.type.size * made.result.type.dtype.bits // 8 > SMALL:
            first.update((made.id, *(x.id for x in chain[:-1])))
            last[chain[-1].id] = (made, *chain)

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.id in first:
            return op.results
        if op.id not in last:
            return NotImplemented
        b, (made, *chain) = rebuild.builder, last[op.id]
        value = rebuild.get(made.args[0])
        for x in chain:
            with b.at(x):
                value = b.value(x.name, value, **x.attrs)
            value.name = x.result.name
        with b.at(made):
            return [b.value("convert", value, layout=op.result.type.layout)]

    return rebuild(func, visit) if last else func


def may_come_first(op: Op) -> bool:
    """Whether an op may move before the conversion of its operand: it is free, or it narrows the type."""
    if op.name == "cast":
        return op.result.type.dtype.bits < op.args[0].type.dtype.bits
    return op.name == "trans"


def find(func: Func) -> dict[int, SubtiledStore]:
    """The stores of a distributed Func that the pass splits, by op id."""
    facts, users, kept = affine.analyze(func), uses(func), kept_in_warps(func)
    found: dict[int, SubtiledStore] = {}
    for op in func.ops():
        made = facts.definition.get(op.args[1]) if op.name == "store" else None
        if made is None or made.name != "convert" or made.result in kept or len(users[made.result]) > 1:
            continue
        if (cut := parts(op, made)) is not None:
            home = facts.parent[op]
            block = func.body if home is None else next(b for b in home.blocks if op in b.ops)
            found[op.id] = SubtiledStore(op, made, *cut, block, facts, users)
    return found


class SubtiledStore:
    """A store that is split into `count` parts along an axis. `made`, by op id and in order, holds the ops that are emitted for each part.
    They are the conversion, and all ops from the loads of tiles that are combined with the result."""

    def __init__(self, op: Op, last: Op, axis: int, count: int, block: Block, facts: Facts, users: Users):
        self.op, self.last, self.axis, self.count, self.facts = op, last, axis, count, facts
        self.made: dict[int, Op] = {}
        place = {x: i for i, x in enumerate(block.ops)}
        tree: dict[Op, None] = {}
        for x in reversed(block.ops[: place[op]]):
            alone = len(x.results) == 1 and all(user is op or user in tree for user, _ in users.get(x.result, ()))
            if (
                alone
                and users.get(x.result)
                and self.may_be_cut(x)
                and (x.name != "load" or self.may_move(x, block, place))
            ):
                tree[x] = None
        waiting: set[Value] = set()  # values computed from loaded tiles
        for x in reversed(tree):
            if x is last or x.name == "load" or any(value in waiting for value in x.args):
                waiting.add(x.result)
                self.made[x.id] = x

    def may_be_cut(self, op: Op) -> bool:
        kind = op.result.type
        if kind.shape != self.last.result.type.shape or not can_part(kind.layout, self.axis, self.count):
            return False
        # The ops that the pass can compute for one part.
        return op.name in ("convert", "load") or OPS[op.name].kind == "elementwise"

    def may_move(self, load: Op, block: Block, place: Mapping[Op, int]) -> bool:
        """Whether a load may move to the store. No op in between may write arrays, and the store may write the loaded array only where it
        was loaded."""
        if is_volatile(load):
            return False
        for op in block.ops[place[load] + 1 : place[self.op]]:
            found = effects(op)
            if found.orders or found.may_hang or "global" in found.writes:
                return False
        roots = [self.facts.root(op.args[0]) for op in (load, self.op)]
        return load.args[0] is self.op.args[0] or (None not in roots and roots[0] is not roots[1])

    def emit(self, rebuild: Rebuild, notes: Notes) -> None:
        """Emits all parts. The loads of a part come before the store of the previous part."""
        b, done = rebuild.builder, [dict[Value, Value]() for _ in range(self.count)]
        results = {op.result for op in self.made.values()}
        early = [op for op in self.made.values() if op.name == "load" and not results & set(op.args)]

        def part(value: Value, index: int) -> Value:
            if not value.type.shape:
                return rebuild.get(value)
            if value not in done[index]:
                taken = b.value("part", rebuild.get(value), axis=self.axis, index=index, count=self.count)
                done[index][value] = taken
                taken.name = value.name
            return done[index][value]

        def emit_copy(op: Op, index: int) -> None:
            attrs = dict(op.attrs)
            if op.name == "convert":
                attrs["layout"] = attrs["layout"].part(self.axis, self.count)
            with b.at(op):
                done[index][op.result] = new = b.value(op.name, *(part(x, index) for x in op.args), **attrs)
            new.name = op.result.name

        for index in range(self.count):
            for op in early:
                for ahead in range(index + 1 if index else 0, min(index + 2, self.count)):
                    emit_copy(op, ahead)
            for op in self.made.values():
                if op not in early:
                    emit_copy(op, index)
            args = [part(x, index) for x in self.op.args]
            stored = b.op("store", *args, **self.op.attrs, split_of=self.op.id)
            if not index:
                notes(stored, explain(self.last, args[1].type.layout, self.count, len(early)))


def parts(store: Op, made: Op) -> tuple[int, int] | None:
    """The axis along which a converted tile is split and the number of parts; None for a tile that is stored whole."""
    source, target, kind = made.args[0].type.layout, made.attrs["layout"], made.result.type
    bits = max(8, kind.dtype.bits)
    if convert.plan(source, target, bits).kind != "shared":
        return None
    near = convert.within_warps(source, target)
    if not near and kind.size * bits // 8 <= SMALL:
        return None
    first = target.reg[0] if target.reg and store.attrs.get("vec", 1) > 1 else target.lane[0]
    fast = next((axis for axis in range(len(kind.shape)) if first & target.dim_mask(axis)), -1)
    ways = [(range(len(kind.shape))[fast], kind.shape[fast] * bits // 8 // ROW)]
    if len(kind.shape) == 2:  # warps that hold complete rows only together can store some rows at a time
        ways.append((1 - ways[0][0], kind.size * bits // 8 // ROW**2))
    for axis, count in ways:
        while count > 1 and not all(can_part(layout, axis, count) for layout in (source, target)):
            count //= 2
        if count > 1:
            return axis, count
    return None


def products(func: Func) -> set[Layout]:
    """The layouts of wgmma products, which warps should store by themselves. For mma.sync an H200 gains nothing."""
    found = (op.attrs for op in func.ops() if op.name == "dot" and "instr" in op.attrs)
    return {attrs["layout"] for attrs in found if wgmma.is_name(attrs["instr"])}


def by_warp(op: Op, product: Layout, own: Layout) -> Layout:
    """The layout for an access to a product's tile. Warps keep their elements, so that no warp waits for another. This requires vectors as
    wide as in `own`, and rows of at least half of ROW bytes. Otherwise it is `own`."""
    first = own.reg[0] if own.reg and op.attrs.get("vec", 1) > 1 else own.lane[0]
    fast = next((axis for axis in range(len(own.shape)) if first & own.dim_mask(axis)), None)
    if fast is None:
        return own
    vec, bytes = op.attrs.get("vec", 1), op.args[0].type.dtype.element.bytes
    found = tables.stored_by_warp(product, fast, vec, ROW // bytes)
    return found if found is not None and found.consecutive(fast, vec) * bytes >= ROW // 2 else own


def can_part(layout: Layout, axis: int, count: int) -> bool:
    try:
        layout.part(axis, count)
    except ValueError:
        return False
    return True


def explain(made: Op, layout: Layout, count: int, loads: int) -> str:
    source, kind = made.args[0].type.layout, made.result.type
    size = layout.size * kind.dtype.bytes
    piece = source.part(next(i for i, n in enumerate(layout.shape) if n != kind.shape[i]), count)
    if convert.plan(piece, layout, max(8, kind.dtype.bits)).kind == "shared":
        whose = "each warp its own" if convert.within_warps(piece, layout) else "all warps together"
        how = f"through {size} bytes of shared memory, {whose}"
    else:
        how = "by shuffles within warps"
    more = f"; {loads} tile{'s' if loads > 1 else ''} loaded in such parts" if loads else ""
    return f"store: in {count} parts of {format_shape(layout.shape)}, {how}{more}"
