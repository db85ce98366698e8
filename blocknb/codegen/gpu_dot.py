"""Matrix products of the GPU code generator: mma.sync on fragments in registers, or multiply-adds from shared memory.

The accumulator's and the operands' layouts put each fragment into consecutive registers in the order that the instruction names
them (`layouts.tables`), so that issuing is arithmetic on register numbers. Operands arrive as 32-bit words (ldmatrix gives them
that way) and go into the instruction as such. Without a tensor core, each thread walks along K, reads its rows of A and columns
of B from shared memory, and does the outer product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blocknb.codegen import gpu_async, gpu_math, gpu_wgmma
from blocknb.codegen.gpu_math import ElementType, as_tf32, llvm_type
from blocknb.codegen.gpu_memory import SharedAddress, memory_bits, word
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.layouts import wgmma
from blocknb.layouts.linear import Layout
from blocknb.layouts.tables import MmaInstruction
from blocknb.passes.tile.select_mma import instruction_named

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator

PTX_TYPES = {"fp16": "f16", "bf16": "bf16", "fp32": "f32", "int32": "s32", "int8": "s8"}
UNROLL = 4  # steps along K in one trip of the plain product's loop


def dot(g: Generator, op: Op) -> None:
    if op.name == "dot_wait":
        gpu_wgmma.wait(g, op)
    elif wgmma.is_name(op.attrs.get("instr", "")):
        gpu_wgmma.dot(g, op)
    elif "instr" in op.attrs:
        tensor_core(g, op, instruction_named(op.attrs["instr"]))
    else:
        multiply_add(g, op)


# -- tensor cores


def tensor_core(g: Generator, op: Op, instruction: MmaInstruction) -> None:
    a, b, c = op.args
    grids = [
        fragment_grid(x.type.layout, tile)
        for x, tile in (
            (a, (instruction.m, instruction.k)),
            (b, (instruction.k, instruction.n)),
            (c, (instruction.m, instruction.n)),
        )
    ]
    sizes = [instruction.fragment_registers(x) for x in "abc"]
    per_word = max(1, 32 // a.type.dtype.bits)
    accumulators = {place: [g.reg(c, start + i) for i in range(sizes[2])] for place, start in grids[2].items()}
    steps = sorted({k for _, k in grids[0]})
    asm = mma_text(op, instruction, sizes, per_word)

    for number, k in enumerate(steps, 1):
        if (
            g.postponed
        ):  # behind the fragments of this step, some of the copies for a later trip; none in the last two steps
            for m, n in accumulators:
                fragment(g, a, grids[0][m, k], sizes[0], per_word)
                fragment(g, b, grids[1][k, n], sizes[1], per_word)
            gpu_async.begin(g, -(-len(g.postponed) // max(1, len(steps) - 1 - number)))
        for (m, n), values in accumulators.items():
            left = fragment(g, a, grids[0][m, k], sizes[0], per_word)
            right = fragment(g, b, grids[1][k, n], sizes[1], per_word)
            accumulators[m, n] = issue(g, asm, values, left + right, llvm_type(c.type.dtype))
    names = [""] * c.type.layout.num_registers
    for place, start in grids[2].items():
        names[start : start + sizes[2]] = accumulators[place]
    g.set(op.result, names)


def fragment_grid(layout: Layout, tile: tuple[int, int]) -> dict[tuple[int, int], int]:
    """(row, column) of each fragment, counted within the warp's part of the matrix -> the first of its registers."""
    rows, columns = layout.dim_mask(0), layout.dim_mask(1)
    low_rows, low_columns = layout.dim_bits(0).start, layout.dim_bits(1).start
    found: dict[tuple[int, int], int] = {}
    for register, index in enumerate(layout.register_indices):
        row, column = (index & rows) >> low_rows, (index & columns) >> low_columns
        found.setdefault((row // tile[0], column // tile[1]), register)
    return found


def fragment(g: Generator, value: Value, start: int, size: int, per_word: int) -> list[str]:
    if value.type.dtype == t.float32:
        return [as_tf32(g, g.reg(value, start + i)) for i in range(size)]
    return [word(g, value, tuple(range(start + i, start + i + per_word))) for i in range(0, size, per_word)]


def mma_text(op: Op, instruction: MmaInstruction, sizes: list[int], per_word: int) -> str:
    operand = "tf32" if op.args[0].type.dtype == t.float32 else PTX_TYPES[op.args[0].type.dtype.name]
    accumulator = PTX_TYPES[op.args[2].type.dtype.name]
    counts = [sizes[2], sizes[0] // per_word, sizes[1] // per_word]
    groups, at = [], 0
    for count in counts:
        groups.append("{" + ",".join(f"${at + i}" for i in range(count)) + "}")
        at += count
    letter = "f" if accumulator == "f32" else "r"
    constraints = [f"={letter}"] * counts[0] + ["r"] * (counts[1] + counts[2]) + [str(i) for i in range(counts[0])]
    shape = instruction.name.split(".")[0]
    text = f"mma.sync.aligned.{shape}.row.col.{accumulator}.{operand}.{operand}.{accumulator} {', '.join(groups)}, {groups[0]};"
    return f'asm "{text}", "{",".join(constraints)}"'


def issue(g: Generator, asm: str, accumulators: list[str], operands: list[str], kind: str) -> list[str]:
    """One instruction; `convergent`, since the whole warp must issue it together."""
    n = len(accumulators)
    aggregate = "{" + ", ".join([kind] * n) + "}"
    args = ", ".join([*(f"i32 {x}" for x in operands), *(f"{kind} {x}" for x in accumulators)])
    got = g.emit(f"call {aggregate} {asm}({args}) #1")
    return [g.emit(f"extractvalue {aggregate} {got}, {i}") for i in range(n)]


# -- multiply-adds


def multiply_add(g: Generator, op: Op) -> None:
    """A loop along K; accumulators are its phis, and each trip does UNROLL outer products."""
    a, b, c = op.args
    layout, k = c.type.layout, a.type.shape[1]
    kind = llvm_type(c.type.dtype)
    rows, row_of = parts(layout, 0)
    columns, column_of = parts(layout, 1)
    unroll = min(UNROLL, k)
    initial, before = g.regs(c), g.label
    header, done = g.new_label("dot"), g.new_label("enddot")
    index, names = g.name(), [g.name() for _ in initial]
    left, right = PlainOperand(g, a, layout, 0), PlainOperand(g, b, layout, 1)
    g.do(f"br label %{header}")
    g.start(header)
    phis = g.open_chunk()
    g.open_chunk()
    following = list(names)
    for step in range(unroll):
        at = g.emit(f"add i32 {index}, {step}") if step else index
        xs = [widened(g, left.element(row, at), a.type.dtype, c.type.dtype) for row in rows]
        ys = [widened(g, right.element(column, at), b.type.dtype, c.type.dtype) for column in columns]
        for r in range(len(following)):
            following[r] = fused(g, xs[row_of[r]], ys[column_of[r]], following[r], c.type.dtype, kind)
    next_index = g.emit(f"add i32 {index}, {unroll}")
    more = g.emit(f"icmp slt i32 {next_index}, {k}")
    g.do(f"br i1 {more}, label %{header}, label %{done}")
    phis.append(f"  {index} = phi i32 [ 0, %{before} ], [ {next_index}, %{header} ]")
    for name, first, last in zip(names, initial, following, strict=True):
        phis.append(f"  {name} = phi {kind} [ {first}, %{before} ], [ {last}, %{header} ]")
    g.open_chunk()
    g.start(done)
    g.set(op.result, following)


def parts(layout: Layout, axis: int) -> tuple[list[int], list[int]]:
    """The distinct coordinates (register part only) that a thread has along an axis, and for each register which of them."""
    low = layout.dim_bits(axis).start
    coordinates = [(index & layout.dim_mask(axis)) >> low for index in layout.register_indices]
    distinct = sorted(set(coordinates))
    return distinct, [distinct.index(x) for x in coordinates]


class PlainOperand:
    """Elements of A[row, k] or B[k, column] in shared memory, addressed by the thread's part, a constant and k."""

    def __init__(self, g: Generator, buffer: Value, layout: Layout, axis: int):
        self.g, self.buffer, self.axis = g, buffer, axis
        self.extent = buffer.type.shape[1]  # row-major: elements from one row to the next
        self.low, self.mask = layout.dim_bits(axis).start, layout.dim_mask(axis)
        self.bytes = memory_bits(buffer.type.dtype) // 8
        stride = self.extent if axis == 0 else 1

        def place(bases: Sequence[int]) -> tuple[int, ...]:
            return tuple(((basis & self.mask) >> self.low) * stride for basis in bases)

        self.address = SharedAddress(g, buffer, place(layout.lane), place(layout.warp))
        self.stride = stride

    def element(self, coordinate: int, k: str) -> str:
        g, dtype = self.g, self.buffer.type.dtype
        base = self.address.pointer(coordinate * self.stride)
        step = 1 if self.axis == 0 else self.extent
        moved = g.emit(f"mul i32 {k}, {step * self.bytes}")
        pointer = g.emit(f"getelementptr i8, ptr addrspace(3) {base}, i32 {moved}")
        return g.emit(f"load {llvm_type(dtype)}, ptr addrspace(3) {pointer}, align {self.bytes}")


def widened(g: Generator, name: str, source: ElementType, result: ElementType) -> str:
    return gpu_math.cast(g, name, source, result)


def fused(g: Generator, x: str, y: str, accumulator: str, dtype: ElementType, kind: str) -> str:
    if dtype.is_float and dtype.bits >= 32:
        return g.call(kind, f"llvm.fma.f{dtype.bits}", (kind, x), (kind, y), (kind, accumulator))
    if dtype.is_float:
        wide = [gpu_math.cast(g, v, dtype, t.float32) for v in (x, y, accumulator)]
        return gpu_math.cast(g, g.call("float", "llvm.fma.f32", *(("float", v) for v in wide)), t.float32, dtype)
    return g.emit(f"add {kind} {g.emit(f'mul {kind} {x}, {y}')}, {accumulator}")
