"""Chooses the tensor-core instruction of every dot.

The instructions are rows of `layouts.tables.MMA_TABLE`, and on Hopper of `layouts.wgmma.WGMMA_TABLE`; a row fits when the target has
it, the element types match and the tile is no smaller than the instruction. The choice is left on the op: `instr` by name, `layout`
the accumulator's, `warps` how many split M and N; of wgmma also `registers`, where operand A does not come from shared memory but is
made of another product. Everything else about a dot (where operands live, how they get there) follows from these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blocknb.ir.build import Rebuild, rebuild
from blocknb.ir.core import Func, Op, Value, definitions, experimental
from blocknb.language import types as t
from blocknb.language.ops import ATOMICS, OPS
from blocknb.layouts import tables, wgmma
from blocknb.layouts.linear import Layout
from blocknb.target import Target
from blocknb.trace import Notes


def tensorcore(func: Func, target: Target, notes: Notes) -> Func:
    """Picks the tensor-core instruction of each dot, or says why there is none.

    Half-precision, bfloat16, int8 and (unless ieee precision is asked for) fp32 products go to mma.sync when the target has
    it; on Hopper, if asked for, to wgmma, which reads its operands from shared memory, and 8-bit floats too. Anything else, and
    tiles smaller than the instruction, are computed by fused multiply-adds from shared memory.
    """
    chained = operands_of_dots(func)
    hopper = Hopper(func) if target.arch == "sm_90a" and experimental(func) else None

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if hopper is not None and op.id in hopper.turned:
            notes(
                op,
                "loaded element by element: wgmma takes tf32 along K only, and so it is stored without bank conflicts",
            )
            rebuild.builder.append(op.replace(attrs={**op.attrs, "layout": hopper.turned[op.id], "vec": 1}))
            return op.results
        if op.name != "dot":
            return NotImplemented
        not_wide = ""
        if hopper is not None:
            made, not_wide = hopper.lower(op)
            if made is not None:
                rebuild.builder.append(made)
                notes(made, hopper.explain(made))
                return made.results
        instruction, why = choose(op, target)
        if instruction is None:
            notes(op, f"dot: plain multiply-adds, no tensor core: {why}", "missed")
            return NotImplemented
        a, _, c = (x.type for x in op.args)
        warps = tables.choose_warps(c.shape, func.attrs["num_warps"], instruction, rows_only=op.result in chained)
        layout = tables.accumulator(c.shape, instruction, warps)
        new = op.replace(
            attrs={**op.attrs, "instr": instruction.name, "layout": layout, "warps": warps}, origin="tensorcore"
        )
        rebuild.builder.append(new)
        count = instruction.instructions(c.shape[0], c.shape[1], a.shape[1])
        notes(
            new,
            f"dot: mma.sync.{instruction.name}, {count} a program ({warps[0]} x {warps[1]} warps over {c.shape[0]} x {c.shape[1]})"
            f"{not_wide}",
        )
        return new.results

    return rebuild(func, "tensorcore", visit)


class Hopper:
    """The choice of wgmma in one function."""

    def __init__(self, func: Func):
        self.num_warps, self.defs = func.attrs["num_warps"], definitions(func)
        self.products = made_of_dots(func)
        self.turned = dict(pair for op in func.ops() if op.name == "dot" for pair in self.loads_to_turn(op))

    def lower(self, op: Op) -> tuple[Op | None, str]:
        """The dot with its wgmma, or None and why not, as the end of a note."""
        op = op.replace(args=(*self.factors(op), op.args[2]))
        a, b, c = (x.type for x in op.args)
        if op.attrs.get("precision", "tf32") != "tf32":
            return None, ""
        row = wgmma.find(multiplied(a.dtype), multiplied(b.dtype), c.dtype.name)
        if row is None:
            return None, f"; there is no wgmma for {a.dtype} operands and a {c.dtype} accumulator"
        if why := wgmma.refusal(row, c.shape[0], c.shape[1], a.shape[1], self.num_warps):
            return None, f"; not wgmma: {why}"
        groups = wgmma.split(c.shape, self.num_warps)
        instruction = wgmma.columns(row, c.shape[1] // groups[1])
        attrs = {
            **op.attrs,
            "instr": instruction.name,
            "layout": wgmma.result_layout(c.shape, instruction, groups),
            "warps": (groups[0] * wgmma.GROUP, groups[1]),
            "registers": op.args[0] in self.products and groups[1] == 1,
        }
        return op.replace(attrs=attrs, origin="tensorcore"), ""

    def loads_to_turn(self, dot: Op) -> Iterator[tuple[int, Layout]]:
        """Loads of fp32 operands that lie in memory along M or N, and in the buffers for wgmma along K; each with a layout for that."""
        made, _ = self.lower(dot)
        for side, value in enumerate(dot.args[: 2 if made is not None else 0]):
            op, along_k = self.defs.get(value), 1 - side
            while op is not None and op.name == "trans":
                op, along_k = self.defs.get(op.args[0]), 1 - along_k
            if op is None or op.name != "load" or value.type.dtype != t.float32 or "layout" not in op.attrs:
                continue
            own = op.attrs["layout"]
            if (own.reg if op.attrs.get("vec", 1) > 1 else own.lane)[0] & own.dim_mask(1 - along_k):
                yield op.id, tables.crosswise(own.shape, 1 - along_k, self.num_warps)

    def factors(self, op: Op) -> list[Value]:
        """The operands to multiply: the 8-bit floats themselves, where a pass before made fp16 of them for want of an instruction."""
        sources = []
        for value in op.args[:2]:
            made = self.defs.get(value)
            narrowed = made is not None and made.name == "cast" and made.origin == "narrow"
            sources.append(made.args[0] if made is not None and narrowed else None)
        if all(x is not None and x.type.dtype in (t.float8e4nv, t.float8e5) for x in sources):
            return [x for x in sources if x is not None]
        return list(op.args[:2])

    def explain(self, op: Op) -> str:
        a, _, c = (x.type for x in op.args)
        instruction, warps = instruction_of(op), op.attrs["warps"]
        count = instruction.instructions(c.shape[0], c.shape[1], a.shape[1])
        where = "A from registers, B" if op.attrs["registers"] else "both operands"
        few = "; of a sum of 8-bit floats it keeps fewer digits than fp32 has" if a.dtype in t.FLOAT8 else ""
        return (
            f"dot: {instruction.name}, {count} a program ({warps[0]} x {warps[1]} warps over {c.shape[0]} x {c.shape[1]}), "
            f"{where} from shared memory{few}"
        )


def multiplied(dtype: t.DType) -> str:
    """The name under which the tables have an operand's type."""
    return "tf32" if dtype == t.float32 else dtype.name


def made_of_dots(func: Func) -> set[Value]:
    """Results of dots, and what elementwise ops make of them (attention's P)."""
    found: set[Value] = set()
    for op in func.ops():
        if op.name == "dot" or (OPS[op.name].kind == "elementwise" and any(x in found for x in op.args)):
            found.update(op.results)
    return found


def choose(op: Op, target: Target) -> tuple[tables.MmaInstruction | None, str]:
    """The instruction for a dot, or None and the reason as a phrase."""
    a, _, c = (x.type for x in op.args)
    operand = a.dtype.name
    if operand == "fp32":
        if op.attrs.get("precision", "tf32") != "tf32":
            return None, f"{op.attrs['precision']} precision was asked for"
        operand = "tf32"
    instruction = tables.find_mma(operand, c.dtype.name, target.capability)
    if instruction is None:
        return None, f"{target.arch} has no mma.sync for {operand} operands and a {c.dtype.name} accumulator"
    why = tables.mma_refusal(instruction, c.shape[0], c.shape[1], a.shape[1])
    return (None, why) if why else (instruction, "")


def operands_of_dots(func: Func) -> set[Value]:
    """Results of dots that reach the first operand of another dot through elementwise ops (attention's P)."""
    defs = definitions(func)
    found: set[Value] = set()

    def trace_back(value: Value, depth: int = 0) -> None:
        op = defs.get(value)
        if op is None or depth > 64:
            return
        if op.name == "dot":
            found.add(value)
        elif op.name not in ("load", *ATOMICS, "for", "while", "if", "reduce", "scan", "gather", "broadcast"):
            for arg in op.args:
                trace_back(arg, depth + 1)

    for op in func.ops():
        if op.name == "dot":
            trace_back(op.args[0])
    return found


def operand_layouts(op: Op) -> tuple[Layout | None, Layout | None]:
    """The fragment layouts of both operands of a dot whose instruction has been chosen; None for one that it takes from shared memory,
    which may come from any layout."""
    instruction = instruction_of(op)
    warps = op.attrs["warps"]
    a, b = op.args[0].type.shape, op.args[1].type.shape
    if instruction.warps > 1:
        groups = (warps[0] // instruction.warps, warps[1])
        return wgmma.register_layout(a, instruction, groups) if op.attrs["registers"] else None, None
    first, second = tables.operand_a(a, instruction, warps), tables.operand_b(b, instruction, warps)
    assert first is not None, "tensorcore chose an instruction that does not fit"
    assert second is not None, "tensorcore chose an instruction that does not fit"
    return first, second


def instruction_of(op: Op) -> tables.MmaInstruction:
    """The row of the table that a dot's instruction is. Raises KeyError."""
    name = op.attrs["instr"]
    if wgmma.is_name(name):
        a, b, c = (x.type.dtype for x in op.args)
        return wgmma.named(name, multiplied(a), multiplied(b), c.name)
    return instruction_named(name)


def instruction_named(name: str) -> tables.MmaInstruction:
    """The row of the table. Raises KeyError."""
    for row in tables.MMA_TABLE:
        if row.name == name:
            return row
    raise KeyError(name)
