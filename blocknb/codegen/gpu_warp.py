"""Movement within a warp, for the GPU code generator: shuffles between layouts and reductions over registers and lanes.

A value of any type travels as 32-bit words. What a conversion shuffles, and what each lane publishes, is planned by
`layouts.convert`; reductions are trees over a thread's registers and butterflies over the lanes, so that every lane has the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from blocknb.codegen import gpu_stream
from blocknb.codegen.gpu_math import ElementType, cast, constant, llvm_type
from blocknb.codegen.gpu_memory import as_integer, memory_bits
from blocknb.errors import CompilerBug
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.layouts.convert import Select, plan

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator

CHAIN = 8  # products that a thread adds up one after another; sums side by side hide that each waits for the one before


def shuffled(g: Generator, name: str, dtype: ElementType, exchange: Callable[[str], str]) -> str:
    """A value of any type through an exchange of 32-bit words."""
    kind, bits = llvm_type(dtype), dtype.bits
    if bits == 64:
        whole = as_integer(g, name, kind, 64)
        low = exchange(g.emit(f"trunc i64 {whole} to i32"))
        high = exchange(g.emit(f"trunc i64 {g.emit(f'lshr i64 {whole}, 32')} to i32"))
        wide = g.emit(f"shl i64 {g.emit(f'zext i32 {high} to i64')}, 32")
        joined = g.emit(f"or i64 {wide}, {g.emit(f'zext i32 {low} to i64')}")
        if kind.startswith("ptr"):
            return g.emit(f"inttoptr i64 {joined} to {kind}")
        return joined if kind == "i64" else g.emit(f"bitcast i64 {joined} to {kind}")
    whole = as_integer(g, name, kind, bits)
    moved = exchange(whole if bits == 32 else g.emit(f"zext i{bits} {whole} to i32"))
    narrow = moved if bits == 32 else g.emit(f"trunc i32 {moved} to i{bits}")
    return narrow if kind == f"i{bits}" else g.emit(f"bitcast i{bits} {narrow} to {kind}")


def butterfly(g: Generator, name: str, dtype: ElementType, mask: int) -> str:
    def exchange(word: str) -> str:
        return g.call(
            "i32", "llvm.nvvm.shfl.sync.bfly.i32", ("i32", "-1"), ("i32", word), ("i32", str(mask)), ("i32", "31")
        )

    return shuffled(g, name, dtype, exchange)


def from_lane(g: Generator, name: str, dtype: ElementType, lane: str) -> str:
    """What the lane of that number holds under this name."""

    def exchange(word: str) -> str:
        return g.call("i32", "llvm.nvvm.shfl.sync.idx.i32", ("i32", "-1"), ("i32", word), ("i32", lane), ("i32", "31"))

    return shuffled(g, name, dtype, exchange)


def shuffle(g: Generator, op: Op) -> None:
    """A layout conversion within each warp, as `layouts.convert` planned it."""
    source, dtype = op.args[0], op.result.type.dtype
    steps = plan(source.type.layout, op.attrs["layout"], memory_bits(dtype)).shuffle
    assert steps is not None, "only shuffles come here"
    published = select(g, g.regs(source), dtype, steps.before)
    lane = g.thread_index(steps.lane, steps.warp)
    arrived = []
    for step in steps.rounds:
        if not step.moves:
            arrived.append(published[step.source])
        elif steps.is_butterfly:
            arrived.append(butterfly(g, published[step.source], dtype, step.flip))
        else:
            source_lane = g.emit(f"xor i32 {lane}, {step.flip}") if step.flip else lane
            arrived.append(from_lane(g, published[step.source], dtype, source_lane))
    g.set(op.result, select(g, arrived, dtype, steps.after))


def select(g: Generator, names: list[str], dtype: ElementType, stages: Sequence[Select]) -> list[str]:
    """Swaps registers r and r ^ flip in the threads that a stage names."""
    kind = llvm_type(dtype)
    for stage in stages:
        parity = g.thread_index(
            [stage.lane_mask >> i & 1 for i in range(5)],
            [stage.warp_mask >> i & 1 for i in range((g.func.attrs["num_warps"] - 1).bit_length())],
        )
        swap = g.emit(f"icmp ne i32 {parity}, 0")
        names = [
            g.emit(f"select i1 {swap}, {kind} {names[r ^ stage.flip]}, {kind} {names[r]}") for r in range(len(names))
        ]
    return names


# -- reductions


def reduce(g: Generator, op: Op) -> None:
    """Registers as a tree, lanes as butterflies; what warps hold stays apart (the pass `lower_conversions` made that explicit)."""
    layout, axis = op.args[0].type.layout, op.attrs["axis"]
    _, lanes, warps = layout.axis_bits(axis)
    if warps and "keep" not in op.attrs:
        raise CompilerBug("a reduction across warps reached code generation", op.loc)
    results = []
    for value in within_threads(g, op, layout.slice_registers(axis)):
        for bit in range(5):
            if lanes >> bit & 1:
                other = tuple(butterfly(g, x, a.type.dtype, 1 << bit) for x, a in zip(value, op.args, strict=True))
                value = combined(g, op, *in_order(g, op, bit, value, other))
        results.append(value)
    for i, result in enumerate(op.results):
        g.set(result, [value[i] for value in results])


def within_threads(g: Generator, op: Op, targets: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Reduces the registers of each target as a tree of neighbours, targets in order."""
    found: dict[int, list[tuple[str, ...]]] = {}

    def collect(registers: Sequence[int]) -> dict[int, list[tuple[str, ...]]]:
        parts: dict[int, list[tuple[str, ...]]] = {}
        for register in registers:
            parts.setdefault(targets[register], []).append(tuple(g.reg(x, register) for x in op.args))
        return parts

    piece = gpu_stream.piece_of(g.func)
    if (narrow := narrow_operand(g, op)) is not None:
        for register, target in enumerate(targets):
            found.setdefault(target, []).append((g.reg(narrow, register),))
        found = {target: by_pairs(g, op, narrow, parts) for target, parts in found.items()}
    elif not any(x in g.streamed for x in op.args):
        found = collect(range(len(targets)))
    elif gpu_stream.has_equal_pieces(g, op):
        yield reduced_in_loop(g, op, lambda: tree(g, op, collect(range(piece))[0]))
        return
    else:
        for start in range(0, len(targets), piece):
            with gpu_stream.forgetting(g):
                for target, values in collect(range(start, min(start + piece, len(targets)))).items():
                    found.setdefault(target, []).append(tree(g, op, values))
    for target in sorted(found):
        yield tree(g, op, found[target])


def narrow_operand(g: Generator, op: Op) -> Value | None:
    """The 16-bit floats that an op has the maximum (or minimum) of after widening them, where two at a time are compared as they are."""
    maker = maker_of(g, op.args[0])
    if len(op.args) > 1 or maker is None or maker.name != "cast" or g.target.capability < 80:
        return None
    (combine, *others), source = op.blocks[0].ops, maker.args[0]
    if combine.name not in ("min", "max") or combine.attrs.get("nan") or len(others) > 1:
        return None
    if set(combine.args) != set(op.blocks[0].args):
        return None
    pairs = source.type.dtype in (t.float16, t.bfloat16) and op.args[0].type.dtype == t.float32
    axis = op.args[0].type.layout.axis_bits(op.attrs["axis"])[0]
    return source if pairs and axis and not {source, op.args[0]} & g.streamed else None


def maker_of(g: Generator, value: Value) -> Op | None:
    """The op that makes a tile's registers: what only gives its axes another order leaves them where they are."""
    maker = g.defs.get(value)
    while maker is not None and maker.name in ("reshape", "trans"):
        maker = g.defs.get(maker.args[0])
    return maker


def by_pairs(g: Generator, op: Op, narrow: Value, parts: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The extreme of 16-bit floats, then widened: two comparisons an instruction."""
    kind = llvm_type(narrow.type.dtype)
    pairs = []
    for (low,), (high,) in zip(parts[::2], parts[1::2], strict=True):
        half = g.emit(f"insertelement <2 x {kind}> poison, {kind} {low}, i32 0")
        pairs.append(g.emit(f"insertelement <2 x {kind}> {half}, {kind} {high}, i32 1"))
    function, suffix = f"llvm.{op.blocks[0].ops[0].name}imumnum", "f16" if kind == "half" else "bf16"
    while len(pairs) > 1:
        both = zip(pairs[::2], pairs[1::2], strict=True)
        pairs = [
            g.call(f"<2 x {kind}>", f"{function}.v2{suffix}", *((f"<2 x {kind}>", x) for x in pair)) for pair in both
        ]
    low, high = (g.emit(f"extractelement <2 x {kind}> {pairs[0]}, i32 {i}") for i in range(2))
    found = g.call(kind, f"{function}.{suffix}", (kind, low), (kind, high))
    return [(cast(g, found, narrow.type.dtype, t.float32),)]


def reduced_in_loop(g: Generator, op: Op, piece: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    """The pieces of a big tile of rank one, reduced one after another; the first stands before the loop."""
    with gpu_stream.forgetting(g):
        first = piece()
    kinds = [llvm_type(x.type.dtype) for x in op.args]
    with gpu_stream.loop(g, op, 1, list(zip(kinds, first, strict=True))) as pieces:
        total = combined(g, op, tuple(pieces.values), piece())
        pieces.leave(total)
    return total


def tree(g: Generator, op: Op, parts: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Neighbours are combined, then neighbouring results; a sum of products begins with chains of multiply-adds."""
    count = max(2, len(parts) // CHAIN)
    if len(parts) > count and _sums_products(g, op):
        chains = parts[:count]
        for i, part in enumerate(parts[count:]):
            chains[i % count] = combined(g, op, chains[i % count], part)
        parts = chains
    while len(parts) > 1:
        parts = [combined(g, op, parts[i], parts[i + 1]) for i in range(0, len(parts), 2)]
    return parts[0]


def _sums_products(g: Generator, op: Op) -> bool:
    """Whether an op is the sum of products in fp32 or fp64, of which most are one instruction with its sum."""
    maker = maker_of(g, op.args[0])
    single = len(op.args) == 1 and [inner.name for inner in op.blocks[0].ops[:-1]] == ["add"]
    return single and maker is not None and maker.name == "mul" and op.args[0].type.dtype in (t.float32, t.float64)


def in_order(g: Generator, op: Op, bit: int, own: tuple, other: tuple) -> tuple[tuple, tuple]:
    """The two sides of a butterfly, the lower lane's first, so that both lanes get one result whatever the combine is.

    A combine of one op is commutative and needs no order."""
    if len(op.blocks[0].ops) == 2:
        return own, other
    key = ("upper", bit)
    if key not in g.memo:
        with g.writing(g.entry, ""):
            g.memo[key] = g.emit(f"icmp ne i32 {g.emit(f'and i32 %lane, {1 << bit}')}, 0")
    kinds = [llvm_type(x.type.dtype) for x in op.args]
    sides = []
    for yes, no in ((other, own), (own, other)):
        chosen = zip(kinds, yes, no, strict=True)
        sides.append(tuple(g.emit(f"select i1 {g.memo[key]}, {kind} {a}, {kind} {b}") for kind, a, b in chosen))
    return sides[0], sides[1]


def combined(g: Generator, op: Op, a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """The combine block on two sets of values."""
    block = op.blocks[0]
    names = dict(zip(block.args, (*a, *b), strict=True))
    for inner in block.ops[:-1]:
        if inner.name == "const":
            names[inner.result] = constant(inner.attrs["value"], inner.result.type.dtype)
        else:
            names[inner.result] = g.elementwise(inner, tuple(names[x] if x in names else g.reg(x) for x in inner.args))
    return tuple(names[x] for x in block.terminator.args)
