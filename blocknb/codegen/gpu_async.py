"""Asynchronous copies of the GPU code generator: cp.async from global to shared memory, past the registers, and slots of rings.

An instruction copies 4, 8 or 16 bytes for a thread, or writes as many zeros where a predicate says so: a mask costs nothing. What a
thread adds to a buffer's base, swizzle and all, is computed once in the entry block, and a slot of a ring adds one number to it, for
all instructions that differ by a constant.

The trick is when copies begin: not before the fragments that the first steps of a product read, as the program has it, but behind them,
so that the tensor cores have work as soon as the barrier is passed, and copies and their addresses are issued in its shade.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from blocknb.analysis.accesses import accesses
from blocknb.analysis.effects import mask_of
from blocknb.codegen import gpu_memory
from blocknb.ir.core import Func, Op, Value
from blocknb.language import types as t
from blocknb.language.ops import OPS
from blocknb.layouts import wgmma

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator


def emit(g: Generator, op: Op) -> None:
    match op.name:
        case "slot":
            slot(g, op)
        case "copy_async":
            copy(g, op)
        case "commit":
            postpone(g, lambda: g.call("void", "llvm.nvvm.cp.async.commit.group"))
        case "wait":
            g.call("void", "llvm.nvvm.cp.async.wait.group", ("i32", str(op.attrs["pending"])))


def moving(func: Func, defs: Mapping[Value, Op]) -> set[Value]:
    """The addresses of copies that are a scalar pointer, which moves from trip to trip, and offsets of 32 bits, which do not."""
    found = set()
    for op in func.ops():
        made = defs.get(op.args[1]) if op.name == "copy_async" else None
        if made is not None and made.name == "ptradd" and made.args[1].type.dtype == t.int32:
            base = defs.get(made.args[0])
            found |= {made.result} if base is not None and base.name == "splat" else set()
    return found


def unmoved(g: Generator, names: Sequence[str]) -> tuple[str, ...]:
    """Pointer and offset, where LLVM thinks that the offset may follow the pointer. Else it would keep 64 bits for every copy, and move
    them by an addition of two instructions; an offset of 32 bits is one register, and the address one instruction."""
    pointer, offset = names
    hidden = g.emit(f'call i32 asm "", "=r,0,l"(i32 {offset}, ptr addrspace(1) {pointer})')
    return pointer, hidden


def slot(g: Generator, op: Op) -> None:
    ring, index = op.args
    g.hurried = ring.type.slots < 3
    g.offsets[op.result] = g.offsets[ring]
    g.slots[op.result] = g.emit(f"mul nuw nsw i32 {g.reg(index)}, {ring.type.slot.bytes}")


def postpone(g: Generator, step: Callable[[], object]) -> None:
    """Does something now, or where the next product has room for it: a copy for a later trip is in no hurry, and before it fragments
    of this trip can be read. `Generator.op` sees to it that nothing is postponed past the end of a block, a wait or a barrier."""
    if not before_product(g):
        step()
        return
    dbg = g.dbg

    def later() -> None:
        with g.writing(g.sink, dbg):
            step()

    g.postponed.append(later)


def before_product(g: Generator) -> bool:
    """Whether mma.sync instructions come next, but for reads, arithmetic and copies. Where what is copied is wanted in the very next trip
    (a ring of two slots), it is in a hurry after all."""
    for op in islice(*g.following, None):
        if op.name == "dot":
            return "instr" in op.attrs and not wgmma.is_name(op.attrs["instr"]) and not g.hurried
        if op.name not in ("local_load", "copy_async", "commit") and not OPS[op.name].pure:
            return False
    return False


def begin(g: Generator, count: int) -> None:
    """Does as much of what is postponed."""
    for _ in range(count):
        g.postponed.pop(0)()


def copy(g: Generator, op: Op) -> None:
    buffer, pointer = op.args[:2]
    layout, mask, owner = pointer.type.layout, mask_of(op), g.owner(pointer.type.layout)
    size = buffer.type.dtype.bytes * op.attrs["vec"]
    where = gpu_memory.SharedAddress(g, buffer, layout.lane, layout.warp)

    def one(registers: tuple[int, ...]) -> None:
        g.accesses += 1
        target, source = (
            where.place(layout.register_indices[registers[0]]),
            gpu_memory.address(g, pointer, registers[0]),
        )
        issue(g, target, source, size, "true" if mask is None else g.reg(mask, registers[0]), owner)

    for registers in accesses(g.facts, op):
        postpone(g, partial(one, registers))


def issue(g: Generator, target: tuple[str, int], source: tuple[str, int], size: int, mask: str, owner: str) -> None:
    """One instruction, from and to an address with a constant; zeros where the mask is off. With an `owner` one of several threads
    with the same elements does it for all. A predicate says what is ignored: of a size ptxas would make one again."""
    operands, constraints = [f"ptr addrspace(3) {target[0]}", f"ptr addrspace(1) {source[0]}"], ["l", "l"]
    guard = ignored = ""
    if mask != "true":
        key = ("off", mask)
        if key not in g.memo:
            g.remember(g.memo, key, g.emit(f"xor i1 {mask}, true"))
        ignored = f", ${len(operands)}"
        operands.append(f"i1 {g.memo[key]}")
        constraints.append("b")
    if owner:
        guard = f"@${len(operands)} "
        operands.append(f"i1 {owner}")
        constraints.append("b")
    to, come = (f"[${i}+{distance}]" if distance else f"[${i}]" for i, (_, distance) in enumerate((target, source)))
    text = f"{guard}cp.async.{'cg' if size == 16 else 'ca'}.shared.global {to}, {come}, {size}{ignored};"
    g.do(f'call void asm sideeffect "{text}", "{",".join(constraints)}"({", ".join(operands)})')
