"""Instruction selection for matrix products: mma.sync for every dot that `select_wgmma` has left without an instruction.

The instructions are rows of `layouts.tables.MMA_TABLE`. A row fits if the target has it, the element types match, and the tile is no
smaller than the instruction. The op keeps the choice. `instr` names the instruction, and `layout` is that of the accumulator. `warps` has
the numbers of warps that split M and N. Source: PTX ISA, "Warp-level matrix instructions".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blocknb.ir.build import Rebuild, rebuild, revised
from blocknb.ir.core import Func, Op, Value, blocks, definitions, within
from blocknb.ir.traversal import backward_slice, reachable
from blocknb.language import types as t
from blocknb.language.ops import ATOMICS, REDUCTIONS, STRUCTURED
from blocknb.layouts import tables, wgmma
from blocknb.layouts.linear import Layout
from blocknb.passes.pipelining.stages import num_stages
from blocknb.passes.registry import gpu_pass
from blocknb.target import Target
from blocknb.trace import Notes

WIDENED = 4  # neighbours along K of 8-bit operands: 4 bytes, which one lane gets from ldmatrix
MOST_COLUMNS = 16  # of a product whose first operand is loaded into fragments
VECTOR = 16  # bytes per thread and copy
MOST_BITS = 8  # of an element of such an operand in memory
#: Ops after which a value no longer counts as the result of a product.
STOPS = ATOMICS | STRUCTURED | REDUCTIONS | {"load", "gather", "broadcast"}


@gpu_pass(optional=True)
def select_mma(func: Func, target: Target, notes: Notes) -> Func:
    """Selects the mma.sync instruction of every dot that has none yet

    When: the target has a tensor-core instruction for the operands: half precision, bfloat16, int8 and, unless the kernel asks for ieee
    precision, fp32.

    What: the dot gets an instruction, the layout of its accumulator, and the number of warps along M and N. Operands that are loaded as
    8-bit floats pass through shared memory as such, and each thread converts four neighbours along K.

    Why: tensor cores multiply many times as fast as fused multiply-adds.

    Limits: a dot of another type, or with a tile smaller than the instruction, is computed by fused multiply-adds from shared memory. A
    note gives the reason.

    Before:

        %c = dot %a, %b, %acc : tile<64x64xf32>
        %d = cast %c : tile<64x64xf16>
        store %p, %d

    After:

        %c = dot %a, %b, %acc {instr="m16n8k16", layout=#a, warps=(2, 2)} : tile<64x64xf32>
        %d = cast %c : tile<64x64xf16>
        store %p, %d
    """
    chained, direct = operands_of_dots(func), DirectOperands(func)

    def visit(op: Op, rebuild: Rebuild) -> Any:
        if op.id in direct.last:
            new = revised(op, attrs={**op.attrs, "scheduling_barrier": True})
            rebuild.builder.append(new)
            return new.results
        if op.name != "dot" or "instr" in op.attrs:
            return NotImplemented
        instruction, why = choose(op, target)
        if instruction is None:
            notes(op, f"dot: fused multiply-adds instead of tensor cores: {why}", "missed")
            return NotImplemented
        a, _, c = (x.type for x in op.args)
        loaded = direct.run(op)
        warps = tables.choose_warps(c.shape, func.attrs["num_warps"], instruction, rows_only=op.result in chained)
        if "stacked" in op.attrs:  # the frontend makes such a product for as many pairs of matrices as there are warps
            warps = func.attrs["num_warps"], 1
        layout = tables.accumulator(c.shape, instruction, warps)
        attrs = {**op.attrs, "instr": instruction.name, "layout": layout, "warps": warps}
        if run := loaded or direct.widened_run(op):
            attrs["run"] = run
        new = revised(op, attrs=attrs)
        rebuild.builder.append(new)
        count = instruction.instructions(c.shape[0], c.shape[1], a.shape[1])
        split = f"{warps[0]} x {warps[1]} warps over {c.shape[0]} x {c.shape[1]}"
        text = f"dot: mma.sync.{instruction.name}, {count} per program ({split})"
        if loaded:
            text += f"; each thread loads {loaded} neighbours of A along K into their fragments"
        elif run:
            text += f"; each thread has {run} neighbours along K, and converts them in registers"
        notes(new, text)
        return new.results

    return rebuild(func, visit)


class DirectOperands:
    """Finds the products of a function whose operand A each thread can load from global memory into its fragments. These operands are
    weights of 8 and 4 bits, which the thread converts after the load.

    Such a product waits for memory, not for the tensor cores, because it has few columns. Either its loop has no stages
    (`pipelining.stages`), so no copy to shared memory runs ahead. Or each warp multiplies matrices of its own, and reads the copies that it
    has made. Warps that share operand B read it from shared memory so often that wgmma is faster.
    """

    def __init__(self, func: Func):
        self.func, self.defs = func, definitions(func)
        loops = [op for op in func.ops() if op.name == "for"]
        self.stages = {op.id: num_stages(func, loop) for loop in loops for op in within(loop)}  # inner loops come last
        self.carried = {
            inner: first for loop in loops for inner, first in zip(loop.blocks[0].args[1:], loop.args[3:], strict=True)
        }
        self.last: set[int] = set()  # the ids of the last loads before such products; none may move behind a product
        for block in blocks(func.body):
            load = None
            for op in block.ops:
                if op.name == "load" and op.result.type.shape:
                    load = op
                elif op.name == "dot" and load is not None and self.run(op):
                    self.last.add(load.id)
                    load = None

    def run(self, dot: Op) -> int:
        """The neighbours along K that a thread loads at once: at least 4, or 0 for any other product."""
        a, _, c = (x.type for x in dot.args)
        if a.dtype.bits != 16 or c.dtype != t.float32 or c.shape[1] > MOST_COLUMNS or dot.id not in self.stages:
            return 0
        if self.staged(dot) and "stacked" not in dot.attrs:
            return 0
        load = next((load for load in self.source_loads(dot.args[0]) if holds_few_bits(load, a)), None)
        if load is None:
            return 0
        elements = min(load.attrs.get("vec", 1), load.attrs["layout"].contiguous_registers(1))
        run = elements * (a.shape[1] // load.result.type.shape[1])
        if self.staged(dot) and elements * load.result.type.dtype.bytes < VECTOR:
            return 0
        return run if 4 <= run <= a.shape[1] // 4 else 0

    def staged(self, dot: Op) -> bool:
        """Whether copies to shared memory run ahead in the loop of a product."""
        return self.stages[dot.id] > 1

    def widened_run(self, dot: Op) -> int:
        """The neighbours along K that a thread has of two loaded operands of 8-bit floats, converted to fp16: 4, or 0 for others.

        Shared memory then holds them as they were loaded, and ldmatrix reads pairs of them, if they are contiguous along K. The conversion
        takes one instruction per pair. Converted before, each element would pass through shared memory twice.
        """
        if dot.args[0].type.shape[1] < 4 * WIDENED or "stacked" in dot.attrs:
            return 0
        for along_k, value in zip((1, 0), dot.args[:2], strict=True):
            made = self.defs.get(value)
            if made is None or made.name != "cast" or made.args[0].type.dtype not in t.FLOAT8:
                return 0
            source = self.defs.get(made.args[0])
            while source is not None and source.name == "trans":
                source, along_k = self.defs.get(source.args[0]), 1 - along_k
            layout = source.attrs.get("layout") if source is not None and source.name == "load" else None
            if layout is None or len(layout.shape) != 2 or layout.contiguous_registers(along_k) < WIDENED:
                return 0
        return WIDENED

    def source_loads(self, value: Value) -> list[Op]:
        """The loads from which a value is computed. A value that a loop carries is computed as the first one."""

        def sources(value: Value) -> tuple[Value, ...]:
            op = self.defs.get(value)
            if op is None:
                return (self.carried[value],) if value in self.carried else ()
            return () if op.name == "load" or op.name in STRUCTURED else op.args

        found = (self.defs.get(x) for x in reachable([value], sources))
        return [op for op in found if op is not None and op.name == "load"]


def multiplied(dtype: t.DType) -> str:
    """The name of an operand's type in the tables."""
    return "tf32" if dtype == t.float32 else dtype.name


def choose(op: Op, target: Target) -> tuple[tables.MmaInstruction | None, str]:
    """The instruction for a dot, or None and the reason as a phrase."""
    a, _, c = (x.type for x in op.args)
    operand = a.dtype.name
    if operand == "fp32":
        if op.attrs.get("precision", "tf32") != "tf32":
            return None, f"the kernel asks for {op.attrs['precision']} precision"
        operand = "tf32"
    instruction = tables.find_mma(operand, c.dtype.name, target.capability)
    if instruction is None:
        return None, f"{target.arch} has no mma.sync for {operand} operands and a {c.dtype.name} accumulator"
    why = tables.mma_refusal(instruction, c.shape[0] // op.attrs.get("stacked", 1), c.shape[1], a.shape[1])
    return (None, why) if why else (instruction, "")


def holds_few_bits(load: Op, a: t.Tile) -> bool:
    """Whether a load brings all elements of an operand A in at most 8 bits each: one per element, or several in an integer."""
    kind, layout = load.result.type, load.attrs.get("layout")
    if layout is None or len(kind.shape) != 2 or kind.shape[0] != a.shape[0] or a.shape[1] % kind.shape[1]:
        return False
    single = kind.dtype.bits <= MOST_BITS or kind.dtype.kind in ("int", "uint")
    return single and kind.dtype.bits * kind.shape[1] <= MOST_BITS * a.shape[1]


def operands_of_dots(func: Func) -> set[Value]:
    """Results of dots that reach the first operand of another dot through elementwise ops (attention's P)."""
    firsts = [op.args[0] for op in func.ops() if op.name == "dot"]
    found = backward_slice(firsts, definitions(func), lambda op: op.name != "dot" and op.name not in STOPS)
    return {op.result for op in found if op.name == "dot"}


def operand_layouts(op: Op) -> tuple[Layout | None, Layout | None]:
    """The fragment layouts of both operands of a dot whose instruction has been chosen; None for an operand in shared memory, which may
    be stored from any layout."""
    instruction = instruction_of(op)
    warps = op.attrs["warps"]
    a, b = op.args[0].type.shape, op.args[1].type.shape
    if instruction.warps > 1:
        if not op.attrs["registers"]:
            return None, None
        layout = wgmma.register_layout(a, instruction, (warps[0] // instruction.warps, warps[1]))
        return wgmma.permuted_rows(layout) if op.attrs.get("permuted_rows") else layout, None
    first, second = tables.operand_a(a, instruction, warps), tables.operand_b(b, instruction, warps)
    if "stacked" in op.attrs:
        second = tables.stacked_operand_b(b, instruction, op.attrs["stacked"])
    assert first is not None, "tensorcore chose an instruction that does not fit"
    assert second is not None, "tensorcore chose an instruction that does not fit"
    if run := op.attrs.get("run"):
        return tables.neighbours_along_k(first, 1, run), tables.neighbours_along_k(second, 0, run)
    return first, second


def loaded_operands(op: Op) -> Iterator[tuple[int, Layout]]:
    """The operands (0: A, 1: B) of a dot that threads load into their fragments, with these layouts: each thread's neighbours along K come
    first."""
    for side, fragments in enumerate(operand_layouts(op) if "run" in op.attrs else ()):
        assert fragments is not None
        mask = fragments.dim_mask(1 - side)
        along_k = sorted((not x & mask, x) for x in fragments.reg)
        yield side, fragments.replace(reg=tuple(x for _, x in along_k))


def vectors_first(layout: Layout) -> Layout:
    """The layout with another order of registers: the longest run of neighbours along an axis comes first, as a load needs it."""

    def run(axis: int) -> list[int]:
        found, basis = [], 1 << layout.dim_bits(axis).start
        while basis in layout.reg and basis & layout.dim_mask(axis):
            found.append(basis)
            basis <<= 1
        return found

    first = max(map(run, range(len(layout.shape))), key=len)
    return layout.replace(reg=(*first, *sorted(x for x in layout.reg if x not in first)))


def instruction_of(op: Op) -> tables.MmaInstruction:
    """The table row of a dot's instruction. Raises KeyError."""
    name = op.attrs["instr"]
    if wgmma.is_name(name):
        a, b, c = (x.type.dtype for x in op.args)
        return wgmma.named(name, multiplied(a), multiplied(b), c.name)
    return tables.MMA_BY_NAME[name]
