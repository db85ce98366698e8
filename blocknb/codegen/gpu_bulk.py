"""Hopper's copy engine (TMA) and mbarriers in the GPU code generator.

A tensor map is a hidden parameter, which the host fills at launch: what it says of an array is read off the ops that compute its
operands, and of these the kernel's code keeps nothing. A box that is copied is one instruction of one thread; its bytes count for an
mbarrier, at which others wait. Addresses are numbers of 32 bits: a buffer's or an mbarrier's place is a constant of the instruction, and
a slot's or an index's part is worked out once for all that share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from blocknb.codegen import gpu_roles
from blocknb.codegen.gpu_memory import both
from blocknb.codegen.maps import MapSpec
from blocknb.errors import CompilerBug
from blocknb.ir.core import Op, Value
from blocknb.language.bulk import Barriers, TensorMap
from blocknb.language.types import Buffer
from blocknb.layouts import gf2

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator

OPS = (
    "tensor_map", "mbarriers", "expect", "await", "arrive", "copy_bulk", "store_bulk", "store_wait", "cta_id", "num_ctas", "team_id",
)  # fmt: skip
SLEEP = 10_000_000  # ns that a thread may sleep before it looks at an mbarrier again
GRID = ("%grid.x", "%grid.y", "%grid.z")


def emit(g: Generator, op: Op) -> None:
    match op.name:
        case "tensor_map":
            tensor_map(g, op)
        case "mbarriers":
            mbarriers(g, op)
        case "expect":
            where, distance = barrier(g, *op.args)
            text = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0+{distance}], {op.attrs['bytes']};"
            by_one(g, (text, [f"i32 {where}"], "r"))
        case "await":
            wait(g, op)
        case "arrive":
            arrive(g, op)
        case "copy_bulk":
            copy(g, op)
        case "store_bulk":
            store(g, op)
        case "store_wait":
            g.do(f'call void asm sideeffect "cp.async.bulk.wait_group.read {op.attrs["pending"]};", "~{{memory}}"() #1')
        case "team_id":
            g.set(op.result, [gpu_roles.team(g)])
        case "cta_id" | "num_ctas":
            g.set(op.result, [g.special("ctaid.x" if op.name == "cta_id" else "nctaid.x")])


def parameters(g: Generator) -> list[str]:
    """The hidden parameters: the launch's grid of a persistent kernel, and tensor maps."""
    grid = [f"i32 {name}" for name in GRID] if g.persistent else []
    return grid + [f'ptr byval([128 x i8]) align 64 "nvvm.grid_constant" %map{i}' for i in range(len(g.maps))]


# -- tensor maps


def tensor_map(g: Generator, op: Op) -> None:
    """Enters what the host is to encode. The result's name is that of the parameter."""
    kind, (base, *numbers) = op.attrs["type"], op.args
    rank, found = len(kind.box), [expression(g, x) for x in numbers]
    stored = any(user.name == "store_bulk" for user, _ in g.users.get(op.result, ()))
    dims, strides = tuple(found[:rank]), tuple(found[rank:])
    g.set(op.result, [f"%map{len(g.maps)}"])
    g.maps.append(MapSpec(g.func.params.index(base), kind.dtype, kind.box, kind.swizzle, dims, strides, stored))


def expression(g: Generator, value: Value) -> Any:
    """A number as the host computes it, of parameters and constants (see `maps`)."""
    if value in g.func.params:
        return ("arg", g.func.params.index(value))
    if (op := g.defs.get(value)) is None:
        raise CompilerBug(f"{value} of a tensor map is not known when the kernel is launched")
    match op.name:
        case "const":
            return int(op.attrs["value"])
        case "promise":
            return expression(g, op.args[0])
        case "neg":
            return ("sub", 0, expression(g, op.args[0]))
        case "cast":
            return ("cast", value.type.dtype.short, expression(g, op.args[0]))
        case "cmp":
            return (op.attrs["pred"], *(expression(g, x) for x in op.args))
        case "add" | "sub" | "mul" | "div" | "rem" | "min" | "max" | "select" as name:
            return (name, *(expression(g, x) for x in op.args))
    raise CompilerBug(f"an extent or stride of a tensor map is made by {op.name}", op.loc)


def boxes(type: Buffer, kind: TensorMap, axes: Sequence[int]) -> Iterator[tuple[dict[int, int], int]]:
    """The boxes of a buffer: how far each is along the map's axes, and its bytes from the buffer's start."""
    rows, columns = type.shape
    for row in range(0, rows, kind.box[axes[0]]):
        for column in range(0, columns, kind.box[axes[1]]):
            yield {axes[0]: row, axes[1]: column}, type.layout.offset(row * columns + column) * type.dtype.bytes


def coordinates(g: Generator, values: Sequence[Value], moved: dict[int, int]) -> list[str]:
    """Those of a box, inner axis first, as instructions have them."""
    names = [g.reg(v) for v in values]
    for axis, distance in moved.items():
        if distance:
            names[axis] = g.emit(f"add i32 {names[axis]}, {distance}")
    return names[::-1]


# -- mbarriers


def base(g: Generator) -> str:
    """The address of shared memory."""
    return g.once(("shared memory",), lambda: g.emit("ptrtoint ptr addrspace(3) @shared to i32"))


def barrier(g: Generator, barriers: Value, index: Value) -> tuple[str, int]:
    """The address of an mbarrier as a name and a constant."""
    made = g.defs.get(index)
    if made is not None and made.name == "const":
        return base(g), g.offsets[barriers] + Barriers.EACH * made.attrs["value"]
    number = g.reg(index)
    key = ("mbarrier", number)
    if key not in g.memo:
        distance = g.emit(f"shl nuw nsw i32 {number}, {Barriers.EACH.bit_length() - 1}")
        g.remember(g.memo, key, g.emit(f"add i32 {base(g)}, {distance}"))
    return g.memo[key], g.offsets[barriers]


def by_one(g: Generator, *instructions: tuple[str, Sequence[str], str], each: bool = False) -> None:
    """Instructions, as text, operands and their constraints, of one thread: that of a role which has just one, or the team's first, or
    that of `each` warp."""
    doing, done = g.new_label("one"), g.new_label("all")
    if not g.alone:
        who = "%lane" if each else "%tid" if g.in_team else gpu_roles.thread(g)
        first = g.once(("first", who), lambda: g.emit(f"icmp eq i32 {who}, 0"))
        g.do(f"br i1 {first}, label %{doing}, label %{done}")
        g.start(doing)
    for text, operands, constraints in instructions:
        g.do(f'call void asm sideeffect "{text}", "{",".join([*constraints, "~{memory}"])}"({", ".join(operands)})')
    if not g.alone:
        g.do(f"br label %{done}")
        g.start(done)


def mbarriers(g: Generator, op: Op) -> None:
    if op is next(x for x in g.func.body.ops if x.name == "mbarriers"):
        gpu_roles.fetch_maps(g)
    start, count = op.attrs["offset"], op.attrs["arrivals"]
    g.offsets[op.result] = start
    places = [start + Barriers.EACH * i for i in range(op.attrs["slots"])]
    lines = [f"mbarrier.init.shared::cta.b64 [$0+{place}], {count};" for place in places]
    by_one(g, (" ".join([*lines, "fence.mbarrier_init.release.cluster;"]), [f"i32 {base(g)}"], "r"))


def wait(g: Generator, op: Op) -> None:
    """Every thread waits: what it reads afterwards has been written."""
    where, distance = barrier(g, *op.args[:2])
    test = f"mbarrier.try_wait.parity.shared::cta.b64 over, [$0+{distance}], $1, {SLEEP};"
    text = f"{{ .reg .pred over; again: {test} @over bra done; bra again; done: }}"
    g.do(f'call void asm sideeffect "{text}", "r,r,~{{memory}}"(i32 {where}, i32 {g.reg(op.args[2])}) #1')


def arrive(g: Generator, op: Op) -> None:
    """One thread of a warp arrives, when all of its threads have come here."""
    where, distance = barrier(g, *op.args[:2])
    condition = g.reg(op.args[2]) if len(op.args) > 2 else ""
    if not g.alone:
        g.call("void", "llvm.nvvm.bar.warp.sync", ("i32", "-1"))
        condition = both(g, condition, g.once(("first lane",), lambda: g.emit("icmp eq i32 %lane, 0")))
    operands, constraints, guard = [f"i32 {where}"], ["r"], ""
    if condition not in ("", "true"):
        operands.append(f"i1 {condition}")
        constraints.append("b")
        guard = "@$1 "
    text = f"{guard}mbarrier.arrive.shared::cta.b64 _, [$0+{distance}];"
    g.do(f'call void asm sideeffect "{text}", "{",".join([*constraints, "~{memory}"])}"({", ".join(operands)})')


# -- copies


def of_warp(g: Generator, steps: Sequence[int]) -> str:
    """XOR of the steps over the set bits of the warp's number, as a number that ptxas knows to be the same in all of its lanes."""
    warp = gpu_roles.uniform(g, "%warp.raw")
    return g.once(("of warp", tuple(steps)), lambda: g.xor_bits((warp, steps)))


def place(g: Generator, buffer: Value) -> tuple[str, int]:
    """The address of a buffer, or of a slot of a ring, as a name and a constant."""
    start, slot = base(g), g.slots.get(buffer)
    if slot:
        key = ("slot", start, slot)
        if key not in g.memo:
            g.remember(g.memo, key, g.emit(f"add i32 {start}, {slot}"))
        start = g.memo[key]
    return start, g.offsets[buffer]


def copy(g: Generator, op: Op) -> None:
    buffer, map, barriers, index = op.args[:4]
    start, offset = place(g, buffer)
    signal, at = barrier(g, barriers, index)
    made: list[tuple[str, list[str], str]] = []
    for moved, distance in boxes(buffer.type, map.type, op.attrs["axes"]):
        names = coordinates(g, op.args[4:], moved)
        where = ", ".join(f"${3 + i}" for i in range(len(names)))
        form = f"cp.async.bulk.tensor.{len(names)}d.shared::cluster.global.mbarrier::complete_tx::bytes"
        text = f"{form} [$0+{offset + distance}], [$1, {{{where}}}], [$2+{at}];"
        operands = [f"i32 {start}", f"ptr {g.reg(map)}", f"i32 {signal}", *(f"i32 {x}" for x in names)]
        made.append((text, operands, "rlr" + "r" * len(names)))
    by_one(g, *made)


def store(g: Generator, op: Op) -> None:
    """Boxes of a buffer, and what makes a group of them; with a `layout` those of the warp at hand, as far from the first warp's as its
    number says."""
    map, buffer = op.args[:2]
    start, offset = place(g, buffer)
    layout, further = op.attrs.get("layout"), dict[int, str]()
    found = list(boxes(buffer.type, map.type, op.attrs["axes"]))
    if layout is not None:
        own, columns = gf2.Span((*layout.reg, *layout.lane)), buffer.type.shape[1]
        rows, across = op.attrs["axes"]
        found = [x for x in found if x[0][rows] * columns + x[0][across] in own]
        for axis, to in enumerate((rows, across)):
            steps = [(basis & layout.dim_mask(axis)) >> layout.dim_bits(axis).start for basis in layout.warp]
            further[to] = of_warp(g, steps) if any(steps) else ""
        places = [buffer.type.layout.offset(basis) * buffer.type.dtype.bytes for basis in layout.warp]
        start = g.emit(f"add i32 {start}, {of_warp(g, places)}")
    does, how = ("cp.reduce.async.bulk", ".add.tile") if op.attrs.get("adds") else ("cp.async.bulk", "")
    made: list[tuple[str, list[str], str]] = []
    for moved, distance in found:
        names = coordinates(g, op.args[2:], moved)
        for axis, more in further.items():
            if more:
                names[len(names) - 1 - axis] = g.emit(f"add i32 {names[len(names) - 1 - axis]}, {more}")
        where = ", ".join(f"${2 + i}" for i in range(len(names)))
        form = f"{does}.tensor.{len(names)}d.global.shared::cta{how}.bulk_group"
        text = f"{form} [$1, {{{where}}}], [$0+{offset + distance}];"
        operands = [f"i32 {start}", f"ptr {g.reg(map)}", *(f"i32 {x}" for x in names)]
        made.append((text, operands, "rl" + "r" * len(names)))
    by_one(g, *made, ("cp.async.bulk.commit_group;", [], ""), each=layout is not None)
