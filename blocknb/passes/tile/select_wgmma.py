"""Instruction selection for matrix products: wgmma, Hopper's asynchronous warpgroup instruction.

Four warps multiply together, and one or both operands come from shared memory (`layouts.wgmma` has the instructions). The op keeps the
choice as in `select_mma`. In addition, `registers` is set if operand A comes from registers, because another product computes it or it is
stored along the wrong axis. In the second case its rows are `permuted_rows`. Source: PTX ISA, "Asynchronous Warpgroup Level Matrix
Instructions".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blocknb.analysis.used_columns import UsedColumns
from blocknb.ir.build import Rebuild, rebuild, revised
from blocknb.ir.core import Func, Op, Value, definitions
from blocknb.language import types as t
from blocknb.language.ops import OPS
from blocknb.layouts import tables
from blocknb.layouts import wgmma as table
from blocknb.layouts.linear import Layout
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.invariant_operands import kept_in_registers
from blocknb.passes.tile.select_mma import DirectOperands, instruction_of, multiplied
from blocknb.passes.tile.simplify import tidy
from blocknb.target import Target
from blocknb.trace import Notes

MOST_HELD = 144  # registers per thread for results and an operand: more would spill if the kernel does other work


def applies(func: Func, target: Target) -> bool:
    return target.arch == "sm_90a" and any(op.name == "dot" for op in func.ops())


@gpu_pass(optional=True, applies=applies)
def select_wgmma(func: Func, target: Target, notes: Notes) -> Func:
    """Selects wgmma for every dot whose tile is large enough

    When: the target is sm_90a, and a dot has at least 64 rows. Its operands are fp16, bf16, int8 or 8-bit floats, or fp32 unless the kernel
    asks for ieee precision.

    What: four warps multiply together. Both operands come from shared memory, or the first one from registers, if another product computes
    it or it is fp32 stored along M. Columns at the end of the result that no op uses are left out, as `tl.split` may leave some.

    Why: wgmma reads an operand from shared memory once for four warps, and runs while the warps do other work.

    Limits: a note says why a dot is refused. `select_mma` takes the dots that are left. From shared memory, fp32 is multiplied along K
    only.

    Before:

        %c = dot %a, %b, %acc : tile<64x128xf32>
        %d = cast %c : tile<64x128xf16>

    After:

        %c = dot %a, %b, %acc {instr="wgmma.m64n128k16", layout=#a, warps=(4, 1),
                               registers=False} : tile<64x128xf32>
        %d = cast %c : tile<64x128xf16>
    """
    choice = WgmmaSelection(func)

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.id in choice.transposed:
            text = "loads single elements: wgmma reads tf32 along K only, and this layout stores the transpose without bank conflicts"
            notes(op, text)
            rebuild.builder.append(op.replace(attrs={**op.attrs, "layout": choice.transposed[op.id], "vec": 1}))
            return op.results
        if op.name != "dot":
            return NotImplemented
        made, why = choice.lower(op)
        if made is None:
            notes(op, f"dot: not wgmma: {why}", "missed")
            return NotImplemented
        rebuild.builder.append(made)
        notes(made, choice.explain(made))
        return made.results

    return tidy(rebuild(func, visit))  # the casts of 8-bit floats may now be unused


class WgmmaSelection:
    """Selects wgmma for the dots of one function."""

    def __init__(self, func: Func):
        self.num_warps, self.defs = func.attrs["num_warps"], definitions(func)
        self.products, self.direct = made_of_dots(func), DirectOperands(func)
        self.kept = self.products | kept_in_registers(func, self.products)
        self.along_m = {op.id for op in func.ops() if op.name == "dot" and self.transposed_load(op.args[0], 0)}
        self.used = UsedColumns(func)
        self.transposed = dict(pair for op in func.ops() if op.name == "dot" for pair in self.loads_to_transpose(op))

    def lower(self, op: Op) -> tuple[Op | None, str]:
        """The dot with its wgmma, or None and the reason against it, as a phrase."""
        op = op.replace(args=(*self.factors(op), op.args[2]))
        a, b, c = (x.type for x in op.args)
        if op.attrs.get("stacked"):
            return None, "each warp multiplies matrices of its own"
        if op.attrs.get("precision", "tf32") != "tf32":
            return None, f"the kernel asks for {op.attrs['precision']} precision"
        row = table.find(multiplied(a.dtype), multiplied(b.dtype), c.dtype.name)
        if self.direct.run(op):
            return None, "its loop has no stages, and A is loaded into the fragments of mma.sync"
        if row is None:
            return None, f"it does not multiply {a.dtype} into a {c.dtype} accumulator"
        if why := table.refusal(row, c.shape[0], c.shape[1], a.shape[1], self.num_warps):
            return None, why
        groups = table.split(c.shape, self.num_warps)
        instruction = table.columns(row, c.shape[1] // groups[1])
        layout = table.result_layout(c.shape, instruction, groups)
        held = layout.num_registers + table.register_layout(a.shape, instruction, groups).num_registers
        crossed = op.id in self.along_m and groups[1] == 1 and held <= MOST_HELD
        attrs = {
            **op.attrs,
            "instr": instruction.name,
            "layout": table.permuted_rows(layout) if crossed else layout,
            "warps": (groups[0] * table.GROUP, groups[1]),
            "registers": crossed or (op.args[0] in self.kept and groups[1] == 1),
        }
        if crossed:
            attrs["permuted_rows"] = True
        used = table.least_columns(row, self.used.of(op))
        if groups[1] == 1 and used < c.shape[1]:
            attrs["columns"] = used
        return revised(op, attrs=attrs), ""

    def loads_to_transpose(self, dot: Op) -> Iterator[tuple[int, Layout]]:
        """The loads of fp32 operands that are contiguous along M or N in memory, but along K in the buffers for wgmma; each with a
        layout for the transposition."""
        made, _ = self.lower(dot)
        if made is None:
            return
        for side in range(made.attrs["registers"], 2):
            if found := self.transposed_load(dot.args[side], side):
                op, along_k = found
                yield op.id, tables.crosswise(op.attrs["layout"].shape, along_k, self.num_warps)

    def transposed_load(self, value: Value, side: int) -> tuple[Op, int] | None:
        """The load of an fp32 operand that is contiguous along M or N in memory, and that axis of it; None for any other operand."""
        op, along_k = self.defs.get(value), 1 - side
        while op is not None and (op.name == "trans" or (side == 1 and computed(op))):
            along_k = 1 - along_k if op.name == "trans" else along_k
            op = self.defs.get(op.args[0])
        if op is None or op.name != "load" or value.type.dtype != t.float32 or "layout" not in op.attrs:
            return None
        own = op.attrs["layout"]
        side_by_side = (*(own.reg if op.attrs.get("vec", 1) > 1 else ()), *own.lane)
        return (op, 1 - along_k) if side_by_side[0] & own.dim_mask(1 - along_k) else None

    def factors(self, op: Op) -> list[Value]:
        """The operands to multiply: the original 8-bit floats if `dtype_legalization` has cast them to fp16 for want of an instruction."""
        sources = []
        for value in op.args[:2]:
            made = self.defs.get(value)
            narrowed = made is not None and made.name == "cast" and made.origin == "dtype_legalization"
            sources.append(made.args[0] if made is not None and narrowed else None)
        if all(x is not None and x.type.dtype in (t.float8e4nv, t.float8e5) for x in sources):
            return [x for x in sources if x is not None]
        return list(op.args[:2])

    def explain(self, op: Op) -> str:
        a, _, c = (x.type for x in op.args)
        instruction, warps = instruction_of(op), op.attrs["warps"]
        count = instruction.instructions(c.shape[0], c.shape[1], a.shape[1])
        cut = " (cut off to tf32, not rounded)" if op.attrs.get("permuted_rows") else ""
        where = f"A from registers{cut}, B" if op.attrs["registers"] else "both operands"
        n, used = c.shape[1], op.attrs.get("columns", c.shape[1])
        unused = f"; nothing uses the last {n - used} columns, which it leaves out" if used < n else ""
        few = "; sums of 8-bit floats keep fewer digits than fp32" if a.dtype in t.FLOAT8 else ""
        return (
            f"dot: {instruction.name}, {count} per program ({warps[0]} x {warps[1]} warps over {c.shape[0]} x {c.shape[1]}), "
            f"{where} from shared memory{few}{unused}"
        )


def made_of_dots(func: Func) -> set[Value]:
    """Results of dots, and values computed from them by elementwise ops, arms of an `if` and loops (attention's P, sometimes masked)."""
    found: set[Value] = set()
    while True:
        count = len(found)
        for op in func.ops():
            if op.name == "dot" or (OPS[op.name].kind == "elementwise" and any(x in found for x in op.args)):
                found.update(op.results)
            elif op.name == "if":
                for result, *ends in zip(op.results, *(block.terminator.args for block in op.blocks), strict=True):
                    found.update([result] if any(x in found for x in ends) else [])
            elif op.name == "for":
                (body,) = op.blocks
                for result, inner, end in zip(op.results, body.args[1:], body.terminator.args, strict=True):
                    found.update([result, inner] if end in found else [])
        if len(found) == count:
            return found


def computed(op: Op) -> bool:
    """Whether `dtype_legalization` made the op to convert its first operand."""
    return op.origin == "dtype_legalization" and OPS[op.name].kind == "elementwise"
