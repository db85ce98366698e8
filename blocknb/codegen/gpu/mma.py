"""Lowers matrix products to mma.sync on fragments in registers (PTX ISA: mma), and the parts that all dots share.

The layouts of the accumulator and the operands put each fragment into consecutive registers, in the order in which the instruction names
them (`layouts.tables`). So issuing is arithmetic on register numbers. Operands arrive as 32-bit words, as ldmatrix gives them, and go into
the instruction as such.
"""

from __future__ import annotations

from blocknb.codegen.gpu.async_copies import PostponedCopies
from blocknb.codegen.gpu.casts import as_tf32
from blocknb.codegen.gpu.context import KernelContext
from blocknb.codegen.gpu.element_types import llvm_type
from blocknb.codegen.gpu.fma_dot import FmaDot
from blocknb.codegen.gpu.registry import OpLowering, lowers
from blocknb.codegen.gpu.text import TextWriter
from blocknb.codegen.gpu.wgmma import WgmmaDot
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.layouts import wgmma
from blocknb.layouts.linear import Layout
from blocknb.layouts.tables import MmaInstruction, original_k
from blocknb.passes.tile.select_mma import instruction_of

PTX_TYPES = {"fp16": "f16", "bf16": "bf16", "fp32": "f32", "int32": "s32", "int8": "s8"}


class MatrixProducts(OpLowering):
    """Lowers dots: by the instruction that the IR names, else by multiply-adds."""

    def __init__(self, context: KernelContext, postponed: PostponedCopies, asynchronous: WgmmaDot):
        super().__init__(context)
        self.postponed, self.asynchronous, self.plain = postponed, asynchronous, FmaDot(context)

    @lowers("dot")
    def dot(self, op: Op) -> None:
        """Multiplies two matrices and adds a third."""
        instruction = op.attrs.get("instr", "")
        if wgmma.is_name(instruction):
            self.asynchronous.dot(op)
        elif instruction:
            self.tensor_core(op, instruction_of(op))
        else:
            self.plain.dot(op)

    def tensor_core(self, op: Op, instruction: MmaInstruction) -> None:
        """Issues mma.sync for each fragment of the accumulator and each step along K."""
        a, b, c = op.args
        m, n, k = instruction.m, instruction.n, instruction.k
        layouts = [x.type.layout for x in op.args]
        if run := op.attrs.get("run"):  # a renumbered K has the same fragments
            layouts[:2] = original_k(layouts[0], 1, run), original_k(layouts[1], 0, run)
        rows, columns, sums = map(fragment_grid, layouts, ((m, k), (k, n), (m, n)))
        sizes = [instruction.fragment_registers(x) for x in "abc"]
        per_word = max(1, 32 // a.type.dtype.bits)
        accumulators = {
            place: [self.registers.reg(c, start + i) for i in range(sizes[2])] for place, start in sums.items()
        }
        steps = sorted({k for _, k in rows})
        asm, kind = mma_text(op, instruction, sizes, per_word), llvm_type(c.type.dtype)
        for number, step in enumerate(steps, 1):
            if self.postponed.steps:  # after this step's fragments come some of the copies; none in the last two steps
                for row, column in accumulators:
                    self.fragment(a, rows[row, step], sizes[0], per_word)
                    self.fragment(b, columns[step, column], sizes[1], per_word)
                self.postponed.begin(-(-len(self.postponed.steps) // max(1, len(steps) - 1 - number)))
            for (row, column), values in accumulators.items():
                left = self.fragment(a, rows[row, step], sizes[0], per_word)
                right = self.fragment(b, columns[step, column], sizes[1], per_word)
                accumulators[row, column] = issue(self.text, asm, values, left + right, kind)
        names = [""] * c.type.layout.num_registers
        for place, start in sums.items():
            names[start : start + sizes[2]] = accumulators[place]
        self.registers.set(op.result, names)

    def fragment(self, value: Value, start: int, size: int, per_word: int) -> list[str]:
        """The 32-bit words of a fragment."""
        if value.type.dtype == t.float32:
            return [as_tf32(self.text, self.registers.reg(value, start + i)) for i in range(size)]
        return [
            self.registers.word(value, tuple(range(start + i, start + i + per_word))) for i in range(0, size, per_word)
        ]


def fragment_grid(layout: Layout, tile: tuple[int, int]) -> dict[tuple[int, int], int]:
    """The first register of each fragment by its (row, column), counted within the warp's part of the matrix."""
    rows, columns = layout.dim_mask(0), layout.dim_mask(1)
    low_rows, low_columns = layout.dim_bits(0).start, layout.dim_bits(1).start
    found: dict[tuple[int, int], int] = {}
    for register, index in enumerate(layout.register_indices):
        row, column = (index & rows) >> low_rows, (index & columns) >> low_columns
        found.setdefault((row // tile[0], column // tile[1]), register)
    return found


def mma_text(op: Op, instruction: MmaInstruction, sizes: list[int], per_word: int) -> str:
    """The inline PTX of an instruction with its constraints."""
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
    ptx = f"mma.sync.aligned.{shape}.row.col.{accumulator}.{operand}.{operand}.{accumulator} {', '.join(groups)}, {groups[0]};"
    return f'asm "{ptx}", "{",".join(constraints)}"'


def issue(text: TextWriter, asm: str, accumulators: list[str], operands: list[str], kind: str) -> list[str]:
    """Issues one instruction. It is `convergent`: the whole warp must issue it together."""
    args = ", ".join([*(f"i32 {x}" for x in operands), *(f"{kind} {x}" for x in accumulators)])
    return text.results(f"{asm}({args}) #1", [kind] * len(accumulators))
