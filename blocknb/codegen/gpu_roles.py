"""Roles in the GPU code generator: the team of a program, and a warp of which one thread copies for it.

A warp finds its role by its number, which is one value for all of its lanes, so the branch is uniform and so may addresses be behind it.
The team's warps come first, and its barriers are named: they count the team's threads and nobody else's. The producer is a single
thread, elected once, so that nothing in its loops has to ask who does it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blocknb.ir.core import Block, Func, Op, walk

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator

TEAM_BARRIER = 1  # the number of the team's barrier; 0 is the CTA's
SHARED_OF_SM, OF_EACH = 228 << 10, 1 << 10  # bytes, and what each CTA costs beside its own
SCHEDULERS = 4  # of a multiprocessor
REGISTERS = 1 << 14  # of each of its schedulers
SPARE = 40  # registers of a thread beside those of products
MANY = 64  # of products: from there on ptxas has to be told to be sparing with the rest


def find(func: Func) -> Op | None:
    """The op that gives the warps roles, if there is one: it stands at a function's top."""
    return next((op for op in func.body.ops if op.name == "roles"), None)


def threads(func: Func) -> int:
    """Threads of a CTA along its x axis."""
    found = find(func)
    return 32 * (func.attrs["num_warps"] if found is None else sum(found.attrs["warps"]))


def resident(g: Generator, threads: int) -> int:
    """How many CTAs a multiprocessor shall have room for, of a kernel with roles; 0: nobody asks. Two, where they fit: one computes while
    the other begins or ends. Registers that are shared out are all of a multiprocessor's; small products leave room unasked."""
    found = find(g.func)
    if found is None:
        return 0
    if found.attrs.get("registers") or 2 * (g.func.attrs.get("shared_bytes", 0) + OF_EACH) > SHARED_OF_SM:
        return 1
    blocks = (block for op in walk(found.blocks[0]) if op.name == "for" for block in op.blocks)
    held = max((sum(map(held_by, own(block))) for block in blocks), default=0)
    together = -(-2 * threads // (32 * SCHEDULERS))  # warps of two CTAs that share a scheduler
    return 2 if MANY <= held <= REGISTERS // (32 * together) - SPARE else 1


def own(block: Block) -> Iterator[Op]:
    """The ops of a block and of the branches in it, but not of loops."""
    for op in block.ops:
        yield op
        for inner in op.blocks if op.name == "if" else ():
            yield from own(inner)


def held_by(op: Op) -> int:
    """Registers of a thread for what a product adds up, and for what bytes are read that 16 bits are made of before it."""
    if op.name == "dot":
        return op.result.type.layout.num_registers
    if op.name == "local_load" and op.args[0].type.dtype.bits == 8:
        return op.result.type.layout.num_registers // 2
    return 0


def emit(g: Generator, op: Op) -> None:
    (team, producer), (warps, more), registers = op.blocks, op.attrs["warps"], op.attrs.get("registers")
    labels = [g.new_label(x) for x in ("team", "producer", "done")]
    warp = uniform(g, "%warp.raw")
    g.do(f"br i1 {g.emit(f'icmp ult i32 {warp}, {warps}')}, label %{labels[0]}, label %{labels[1]}")
    g.start(labels[0])
    share_out(g, registers, 0)
    g.open_chunk()
    g.in_team = True
    g.block(team)
    g.in_team = False
    g.do(f"br label %{labels[2]}")
    g.open_chunk()
    g.start(labels[1])
    share_out(g, registers, 1)
    produce(g, producer, warp if more > 1 else "", warps, labels[2])
    g.open_chunk()
    g.start(labels[2])


def share_out(g: Generator, registers: tuple[int, int] | None, role: int) -> None:
    """Takes or gives registers of a role's threads."""
    if registers is not None:
        way, who = (("inc", "the team"), ("dec", "the producer"))[role]
        text = f"setmaxnreg.{way}.sync.aligned.u32 {registers[role]}; // from here: {who}"
        g.do(f'call void asm sideeffect "{text}", "~{{memory}}"() #1')


def fetch_maps(g: Generator) -> None:
    """The producer's first thread asks for its tensor maps while another one makes mbarriers: the first copy waits for them."""
    found = find(g.func)
    if found is None:
        return
    own, others = g.new_label("maps"), g.new_label("fetched")
    first = g.emit(f"icmp eq i32 {thread(g)}, {32 * found.attrs['warps'][0]}")
    g.do(f"br i1 {first}, label %{own}, label %{others}")
    g.start(own)
    for map in dict.fromkeys(g.reg(op.args[1]) for op in walk(found.blocks[1]) if op.name == "copy_bulk"):
        g.do(f'call void asm sideeffect "prefetch.tensormap [$0];", "l,~{{memory}}"(ptr {map})')
    g.do(f"br label %{others}")
    g.start(others)


def produce(g: Generator, block: Block, warp: str, first: int, done: str) -> None:
    elected = g.emit(f"extractvalue {{i32, i1}} {g.call('{i32, i1}', 'llvm.nvvm.elect.sync', ('i32', '-1'))}, 1")
    if warp:
        elected = g.emit(f"and i1 {elected}, {g.emit(f'icmp eq i32 {warp}, {first}')}")
    label = g.new_label("copy")
    g.do(f"br i1 {elected}, label %{label}, label %{done}")
    g.start(label)
    g.open_chunk()
    g.alone = True
    g.block(block)
    g.alone = False
    g.do(f"br label %{done}")


def teams(func: Func) -> int:
    """How many teams a CTA has."""
    found = find(func)
    return 1 if found is None else found.attrs.get("teams", 1)


def is_alone(func: Func) -> bool:
    """Whether a CTA's teams have a multiprocessor's registers for themselves, or take turns with its tensor cores."""
    found = find(func)
    return found is not None and bool(found.attrs.get("registers") or found.attrs.get("teams", 1) > 1)


def thread(g: Generator) -> str:
    """The number of a thread in its CTA: where there are several teams, `%tid` is that in its team."""
    return "%tid.raw" if g.teams > 1 else "%tid"


def team(g: Generator) -> str:
    """The number of the team that a thread is of."""
    shift = (g.func.attrs["num_warps"]).bit_length() - 1
    return g.once(("team",), lambda: g.emit(f"lshr i32 {uniform(g, '%warp.raw')}, {shift}"))


def uniform(g: Generator, name: str) -> str:
    """A number that is the same in all lanes of a warp, as one that ptxas knows to be so: it goes to a uniform register."""
    all_lanes = (("i32", "-1"), ("i32", name), ("i32", "0"), ("i32", "31"))
    return g.once(("uniform", name), lambda: g.call("i32", "llvm.nvvm.shfl.sync.idx.i32", *all_lanes))


def barrier(g: Generator) -> None:
    """All threads of the program wait for each other: of a CTA with roles, those of the team."""
    if g.func.attrs["num_warps"] == 1:  # a CTA may have several such programs
        g.call("void", "llvm.nvvm.bar.warp.sync", ("i32", "-1"))
    elif g.in_team:
        count, number = str(32 * g.func.attrs["num_warps"]), str(TEAM_BARRIER)
        if g.teams > 1:
            number = g.once(("team barrier",), lambda: g.emit(f"add i32 {team(g)}, {TEAM_BARRIER}"))
        g.call("void", "llvm.nvvm.barrier.cta.sync.aligned.count", ("i32", number), ("i32", count))
    else:
        g.call("void", "llvm.nvvm.barrier.cta.sync.aligned.all", ("i32", "0"))
