"""Control flow on the CPU: loops and branches, and what they carry.

A carried scalar has a stack slot, a carried tile one buffer for all iterations, its *home*. The initial value of a tile becomes its
home if that was its last use, and a new value is made in its home if nobody needs the old one any more; only otherwise is there a
copy. Loops of many trips look at the stop flag in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blocknb.codegen.cpu.fusion import identity
from blocknb.codegen.cpu.memory import Buffer
from blocknb.codegen.scalar_math import casts
from blocknb.codegen.scalar_math.register_types import register_type
from blocknb.ir.core import Op, Value
from blocknb.language import types as t

if TYPE_CHECKING:
    from blocknb.codegen.cpu.blocks import Emitter

POLL_ABOVE = 64  # loops of more trips than this look at the stop flag
Home = Buffer | str


def _carry(e: Emitter, op: Op, inits: Sequence[Value], types: Sequence[Any]) -> list[Home]:
    """Where carried values live: a buffer for a tile, a stack slot for a scalar; filled with the initial values."""
    homes: list[Home] = []
    moved: list[Value] = []
    for init, type in zip(inits, types, strict=True):
        if type.shape:
            buffer = e.take(init, [op])
            taken = (
                buffer is not None
                and buffer not in homes
                and inits.count(init) == 1
                and buffer.dtype == type.dtype
                and buffer.row_major()
            )
            if not taken:
                buffer = e.allocate(type.shape, type.dtype)
                e.copy(init, buffer)
            elif init in e.buffers:
                moved.append(init)
            assert buffer is not None
            e.hold(op, buffer)
            homes.append(buffer)
        else:
            slot = e.code.w.slot(register_type(type.dtype), "carried")
            e.code.w.do(f"store {register_type(type.dtype)} {e.scalar(init)}, ptr {slot}")
            homes.append(slot)
    for init in moved:  # only now: another initial value may be a view of it
        e.buffers.pop(init).holders.discard(init)
    return homes


def _enter(e: Emitter, values: Sequence[Value], homes: Sequence[Home]) -> None:
    """Values as their homes hold them now."""
    for value, home in zip(values, homes, strict=True):
        if isinstance(home, Buffer):
            e.hold(value, home)
        else:
            e.scalars[value] = e.code.w.value(f"load {register_type(value.type.dtype)}, ptr {home}")


def _assign(e: Emitter, values: Sequence[Value], homes: Sequence[Home]) -> None:
    """Writes all values to their homes, at once: none is overwritten before it has been read."""
    overwritten = {home.offset for home in homes if isinstance(home, Buffer)}
    moves: list[tuple[Value | Buffer, Buffer]] = []
    for value, home in zip(values, homes, strict=True):
        if not isinstance(home, Buffer) or e.buffers.get(value) is home:
            continue
        sources = {
            e.buffers[leaf].offset
            for leaf, _ in e.program.leaves(value, identity(value.type.shape))
            if leaf in e.buffers
        }
        if sources & overwritten:
            spare = e.temporary(value.type.shape, value.type.dtype)
            e.copy(value, spare)
            moves.append((spare, home))
        else:
            moves.append((value, home))
    for source, home in moves:
        if isinstance(source, Buffer):
            _copy_bytes(e, source, home)
        else:
            e.copy(source, home)
    for value, home in zip(values, homes, strict=True):
        if not isinstance(home, Buffer):
            e.code.w.do(f"store {register_type(value.type.dtype)} {e.scalar(value)}, ptr {home}")


def _copy_bytes(e: Emitter, source: Buffer, target: Buffer) -> None:
    a, b = e.buffer_base(target), e.buffer_base(source)
    e.code.w.do(f"call void @llvm.memcpy.p0.p0.i64(ptr align 64 {a}, ptr align 64 {b}, i64 {source.bytes}, i1 false)")


def _results(e: Emitter, op: Op, homes: Sequence[Home]) -> None:
    _enter(e, op.results, homes)
    for home in homes:
        if isinstance(home, Buffer):
            e.drop(op, home)


def _targets(
    e: Emitter, values: Sequence[Value], homes: Sequence[Home], arguments: Sequence[Value]
) -> dict[Value, tuple[Buffer, Value]]:
    """For each tile that a block yields once: the buffer it should be made in and the argument that lives there now."""
    found = {}
    for value, home, argument in zip(values, homes, arguments, strict=True):
        if isinstance(home, Buffer) and values.count(value) == 1:
            found[value] = (home, argument)
    return found


def for_loop(e: Emitter, op: Op) -> None:
    w, c = e.code.w, e.code
    body = op.blocks[0]
    counter_type = op.args[0].type.dtype
    lower, upper, step = (
        casts.cast(c, e.scalar(a), counter_type, t.int64, 1) if counter_type.bits < 64 else e.scalar(a)
        for a in op.args[:3]
    )
    homes = _carry(e, op, op.args[3:], [a.type for a in body.args[1:]])
    slot = w.slot("i64", "i")
    w.do(f"store i64 {lower}, ptr {slot}")
    head, inside, done = (w.fresh(s) for s in ("for", "for.body", "for.done"))
    w.place(head)
    counter = w.value(f"load i64, ptr {slot}")
    w.branch(_goes_on(e, counter, upper, step), inside, done)
    w.place(inside)
    if not _short(e, op):
        e.poll()
    e.scalars[body.args[0]] = casts.cast(c, counter, t.int64, counter_type, 1)
    _enter(e, body.args[1:], homes)
    yielded = body.terminator.args
    e.block(body, _targets(e, yielded, homes, body.args[1:]))
    _assign(e, yielded, homes)
    w.do(f"store i64 {w.value(f'add i64 {counter}, {step}')}, ptr {slot}")
    e.leave()
    w.jump(head)
    w.place(done)
    _results(e, op, homes)


def _goes_on(e: Emitter, counter: str, upper: str, step: str) -> str:
    c = e.code
    if step.lstrip("-").isdigit():
        return c.w.value(f"icmp {'sgt' if step.startswith('-') else 'slt'} i64 {counter}, {upper}")
    up, below, above = (
        c.w.value(f"icmp {p}")
        for p in (f"sgt i64 {step}, 0", f"slt i64 {counter}, {upper}", f"sgt i64 {counter}, {upper}")
    )
    return c.select(up, below, above, "i1", 1)


def _short(e: Emitter, op: Op) -> bool:
    bounds = [e.program.definition.get(a) for a in op.args[:3]]
    if any(b is None or b.name != "const" for b in bounds):
        return False
    lower, upper, step = (int(b.attrs["value"]) for b in bounds if b is not None)
    return step != 0 and (upper - lower) // step <= POLL_ABOVE


def while_loop(e: Emitter, op: Op) -> None:
    """Both blocks see the same homes; a condition that passes a value on unchanged costs nothing."""
    w = e.code.w
    test, body = op.blocks
    homes = _carry(e, op, op.args, [a.type for a in test.args])
    passed = test.terminator.args[1:]
    inner: list[Home] = []
    for value, type, i in zip(passed, [a.type for a in body.args], range(len(passed)), strict=True):
        if type.shape:
            same = i < len(test.args) and value is test.args[i]
            buffer = homes[i] if same else e.allocate(type.shape, type.dtype)
            assert isinstance(buffer, Buffer)
            e.hold((op, "inner"), buffer)
            inner.append(buffer)
        else:
            inner.append(w.slot(register_type(type.dtype), "carried"))
    head, inside, done = (w.fresh(s) for s in ("while", "while.body", "while.done"))
    w.place(head)
    e.poll()
    _enter(e, test.args, homes)
    e.block(test)
    _assign(e, passed, inner)
    condition = e.scalar(test.terminator.args[0])
    e.leave()
    w.branch(condition, inside, done)
    w.place(inside)
    _enter(e, body.args, inner)
    targets = _targets(e, body.terminator.args, homes, body.args) if len(body.args) == len(homes) else {}
    e.block(body, targets)
    _assign(e, body.terminator.args, homes)
    e.leave()
    w.jump(head)
    w.place(done)
    for home in homes:
        if isinstance(home, Buffer) and home not in inner:
            e.drop(op, home)
    _enter(e, op.results, inner)
    for home in inner:
        if isinstance(home, Buffer):
            home.holders.discard(op)
            e.drop((op, "inner"), home)


def conditional(e: Emitter, op: Op) -> None:
    w = e.code.w
    homes: list[Home] = []
    for result in op.results:
        if result.type.shape:
            buffer = e.allocate(result.type.shape, result.type.dtype)
            e.hold(op, buffer)
            homes.append(buffer)
        else:
            homes.append(w.slot(register_type(result.type.dtype), "chosen"))
    yes, no, done = (w.fresh(s) for s in ("if", "else", "endif"))
    w.branch(e.scalar(op.args[0]), yes, no)
    for label, block in ((yes, op.blocks[0]), (no, op.blocks[1])):
        w.place(label)
        e.block(block)
        _assign(e, block.terminator.args, homes)
        e.leave()
        w.jump(done)
    w.place(done)
    _results(e, op, homes)
