"""Loop unrolling.

`static_range` requests it, and `loop_unroll_factor` requests a part of it. The pass also unrolls very short loops on its own, because
then their carried values need no registers of their own and their bodies simplify. The original loop follows a partly unrolled loop for
the remaining iterations. Copies keep the source location of their original, and name it in `was`. Source: Aho et al., "Compilers",
section 10.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blocknb.ir.build import Builder, Rebuild, clone, rebuild
from blocknb.ir.core import Block, Func, Op, Value, walk
from blocknb.passes.registry import tile_pass
from blocknb.passes.support.tile_views import VIEWS
from blocknb.passes.tile.simplify import tidy
from blocknb.target import Target
from blocknb.trace import Notes

FEW_ITERATIONS, FEW_OPS = 4, 32
#: The most products over all iterations: their tiles compete for registers, and straight code cannot be pipelined. Two iterations of two
#: products were slower unrolled, in the gradient of the WY representation of the delta rule.
FEW_PRODUCTS = 3
#: The same where pipelining gains little: with one stage, or if threads convert operands that they read from the stages. Two iterations of
#: two products of fp32 states were slower in a loop, in the gradient of gated linear attention.
UNSTAGED_PRODUCTS = 4
NESTED = 4
MANY_OPS = 1 << 14  # the most ops of an unrolled loop; more are slow to compile


@tile_pass(optional=True)
def unroll(func: Func, target: Target, notes: Notes) -> Func:
    """Unrolls loops whose number of iterations is known

    When: a loop comes from `static_range`, has `loop_unroll_factor=n`, or makes up to four iterations of a small body with few products.

    What: the body is repeated for each iteration, with the index as a constant. With a factor n, one iteration does the work of n, and a
    second loop does the rest.

    Why: carried values need no registers of their own, and indices that are constants simplify addresses.

    Limits: the bounds must be constants, for a factor the step. A loop is not unrolled into more than 16384 ops. If a requested unrolling
    is impossible, a note gives the reason.

    Before:

        %sum = for %k = 0 to 2 step 1 iter(%part = %zero) {
          %p = ptradd %x, %k : ptr<f32>
          %v = load %p : f32
          %next = add %part, %v : f32
          yield %next
        }

    After:

        %v0 = load %x : f32
        %s0 = add %zero, %v0 : f32
        %p1 = ptradd %x, %one : ptr<f32>
        %v1 = load %p1 : f32
        %sum = add %s0, %v1 : f32
    """
    for _ in range(NESTED):
        after = once(func, notes)
        if after is func:
            break
        func = tidy(after)
    return func


def once(func: Func, notes: Notes) -> Func:
    """Walks over the function once. Inner loops whose bounds depend on an unrolled index are unrolled in the next walk."""
    constants: dict[Value, int] = {op.result: op.attrs["value"] for op in func.ops() if op.name == "const"}

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.name != "for":
            return NotImplemented
        bounds = [constants[a] for a in op.args[:3] if a in constants]
        known = range(*bounds) if len(bounds) == 3 and bounds[2] else None
        iterations = None if known is None else len(known)
        factor = op.attrs.get("unroll_factor", 1)
        asked = bool(op.attrs.get("unroll")) or (iterations is not None and 1 < iterations <= factor)
        if known is None or iterations is None:
            if asked:
                notes(op, "not unrolled: the bounds of the loop are not constants", kind="missed")
            return partly(op, factor, constants.get(op.args[2]), rebuild, notes)
        size = sum(1 for _ in walk(op.blocks[0]))
        if not asked and iterations > 1 and not is_short(func, op, iterations):
            return partly(op, factor, constants.get(op.args[2]), rebuild, notes)
        if iterations * size > MANY_OPS:
            notes(op, f"not unrolled: {iterations} iterations of {size} ops are too much code", kind="missed")
            return NotImplemented
        notes(op, f"unrolled: {iterations} iteration{'s' if iterations != 1 else ''} of {size - 1} ops")
        body = rebuild.block(op.blocks[0])
        kind, carried = op.args[0].type, op.args[3:]
        for i in known:
            carried = copied(body, rebuild.builder, (rebuild.builder.const(i, kind), *carried))
        return carried

    after = rebuild(func, visit)
    return func if after.body.ops == func.body.ops else after


def is_short(func: Func, loop: Op, iterations: int) -> bool:
    """Whether the pass unrolls a loop on its own: few iterations of a small body with few products."""
    inside = list(walk(loop.blocks[0]))
    products = iterations * sum(x.name == "dot" for x in inside)
    unstaged = loop.attrs.get("num_stages", func.attrs.get("num_stages")) == 1 or narrows_operands(inside)
    most = UNSTAGED_PRODUCTS if unstaged else FEW_PRODUCTS
    return iterations <= FEW_ITERATIONS and len(inside) <= FEW_OPS and products <= most


def narrows_operands(inside: Sequence[Op]) -> bool:
    """Whether an operand of a product is loaded with more bytes per element than the product takes."""
    made = {op.result: op for op in inside if len(op.results) == 1}
    for dot in (op for op in inside if op.name == "dot"):
        for value in dot.args[:2]:
            while (op := made.get(value)) is not None and (op.name == "cast" or op.name in VIEWS):
                value = op.args[0]
            if op is not None and op.name == "load" and value.type.dtype.bytes > dot.args[0].type.dtype.bytes:
                return True
    return False


def copied(body: Block, builder: Builder, args: Sequence[Value]) -> tuple[Value, ...]:
    """Emits a copy of a loop's body for these block arguments; returns the values that it yields."""
    mapping = dict(zip(body.args, args, strict=True))
    clone(Block((), body.ops[:-1]), builder, mapping)
    return tuple(mapping.get(a, a) for a in body.terminator.args)


def partly(op: Op, factor: int, step: int | None, rebuild: Rebuild, notes: Notes) -> Any:
    """Emits a loop that does `factor` iterations in one, followed by the original loop for the rest."""
    if factor <= 1:
        return NotImplemented
    if not step:
        notes(op, "not unrolled: the step of the loop is not a constant", kind="missed")
        return NotImplemented
    attrs = {name: value for name, value in op.attrs.items() if name != "unroll_factor"}
    notes(op, f"{factor} iterations in one; the remaining iterations run in a loop after it")
    loop = op.replace(attrs=attrs, blocks=(rebuild.block(op.blocks[0]),))
    sign = rebuild.builder.const(1 if step > 0 else -1, op.args[2].type)
    return rebuild.builder.append(grouped(loop, factor, sign, rebuild.builder)).results


def grouped(loop: Op, factor: int, sign: Value, emit: Builder) -> Op:
    """Emits a loop over groups of `factor` iterations; returns the loop for the rest. `sign` is that of the step: 1 or -1."""
    (lower, upper, step), body = loop.args[:3], loop.blocks[0]

    def number(n: int) -> Value:
        return emit.const(n, lower.type)

    # Number of iterations: (upper - lower + step - sign) / step, truncating towards zero; then whole groups of `factor`.
    span = emit.value("sub", upper, lower)
    iterations = emit.value("div", emit.value("add", span, emit.value("sub", step, sign)), step)
    groups = emit.value("div", emit.value("max", iterations, number(0)), number(factor))
    stride = emit.value("mul", step, number(factor))
    middle = emit.value("add", lower, emit.value("mul", groups, stride))
    args = tuple(Value(a.type, a.name) for a in body.args)
    with emit.block(args) as opened:
        carried: Sequence[Value] = args[1:]
        for i in range(factor):
            index = args[0] if i == 0 else emit.value("add", args[0], emit.value("mul", step, number(i)))
            carried = copied(body, emit, (index, *carried))
        emit.op("yield", *carried)
    main = emit.op("for", lower, middle, stride, *loop.args[3:], blocks=(opened.done,), **loop.attrs)
    return loop.replace(args=(middle, upper, step, *main.results))
