"""wgmma of the GPU code generator: a whole product, all steps along K, as one piece of inline PTX.

The accumulators are operands tied to results, so that they stay where they are from trip to trip of a loop: ptxas moves none as long
as nothing uses them between the first instruction and the wait. Operands in shared memory are matrix descriptors (`layouts.wgmma`);
the part of one that depends on the warp is computed once, at the head of the kernel, and a step along K or M adds a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blocknb.codegen import gpu_control, gpu_roles
from blocknb.codegen.gpu_math import as_tf32, llvm_type
from blocknb.codegen.gpu_memory import word
from blocknb.ir.core import Op, Value, operands
from blocknb.language import types as t
from blocknb.language.ops import OPS
from blocknb.language.types import Buffer
from blocknb.layouts import wgmma
from blocknb.layouts.tables import MmaInstruction, log2
from blocknb.passes.tile.select_mma import instruction_of

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator

PTX_TYPES = {"fp16": "f16", "bf16": "bf16", "fp32": "tf32", "int8": "s8", "fp8e4nv": "e4m3", "fp8e5": "e5m2"}
ACCUMULATORS = {"fp32": "f32", "int32": "s32"}
SELDOM = 0x2B7E1516  # a number like any other
WORD = 0xFFFFFFFF
ADDRESSES = 0x3FFFF  # bits of a shared address that a descriptor takes


def dot(g: Generator, op: Op) -> None:
    Product(g, op).emit()


def in_order(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """A block's ops; what is pure and comes before a loop that leaves products under way, and is asked for behind it only, stands before
    their wait: nobody waits for it at the loop's beginning, and no register holds it meanwhile."""
    end = next((i for i, op in enumerate(ops) if op.name == "dot_wait"), 0)
    loops = (i for i, op in enumerate(ops[:end]) if op.name == "for" and {*op.results} & {*ops[end].args})
    if not (loop := max(loops, default=0)):
        return ops
    early: list[Op] = []
    moved: list[Op] = []
    needed = set(operands(ops[loop]))
    for op in reversed(ops[:loop]):
        if is_pure(op) and not {*op.results} & needed:
            moved.append(op)
        else:
            early.append(op)
            needed.update(operands(op))
    return (*reversed(early), *ops[loop:end], *reversed(moved), *ops[end:])


def is_pure(op: Op) -> bool:
    if op.name == "if":
        return all(OPS[x.name].pure or x.name == "yield" for block in op.blocks for x in block.ops)
    return OPS[op.name].pure and not op.blocks


def wait(g: Generator, op: Op) -> None:
    """Accumulators go through the wait, so that nothing uses them before it: it is no dependency that LLVM could see. What else is named
    is computed before, and operands that were read from registers are there until then, so that these are not given to others."""
    pending = op.attrs.get("pending", 0)
    kept = [] if pending else [("r", f"i32 {name}") for name in g.flying]
    summed = [i for i, value in enumerate(op.args) if is_summed(g, value)]
    for i, (value, result) in enumerate(zip(op.args, op.results, strict=True)):
        if i not in summed:
            g.set(result, g.regs(value))
            kept += early(g, value)
    if len(summed) < len(op.args):
        gpu_control.split_if(g, rare(g, [value for i, value in enumerate(op.args) if i not in summed]))
    for value, result in ((op.args[i], op.results[i]) for i in summed):
        names, kind = g.regs(value), llvm_type(value.type.dtype)
        count, letter = len(names), "f" if kind == "float" else "r"
        constraints = ",".join([*[f"={letter}"] * count, *map(str, range(count)), *(x for x, _ in kept), "~{memory}"])
        operands = ", ".join([f"{kind} {name}" for name in names] + [x for _, x in kept])
        aggregate, text = "{" + ", ".join([kind] * count) + "}", f"wgmma.wait_group.sync.aligned {pending};"
        got = g.emit(f'call {aggregate} asm sideeffect "{text}", "{constraints}"({operands}) #1')
        g.set(result, [g.emit(f"extractvalue {aggregate} {got}, {i}") for i in range(count)])
        kept = []
    if not pending:
        g.flying = []
    for some in dict.fromkeys(g.unset[value] for value in op.args if value in g.unset):
        results = [result for value, result in zip(op.args, op.results, strict=True) if g.unset.get(value) == some]
        gpu_control.set_to_zero(g, results, some)


def rare(g: Generator, values: Sequence[Value]) -> str:
    """A condition, one that seldom holds, for which all of the fewest registers of a tile of 32 bits are needed: left to itself ptxas
    waits first. Of two floats it is a single instruction."""
    value = min(reversed([value for value in values if value.type.dtype.bits == 32]), key=g.num_registers)
    kind, names, found = llvm_type(value.type.dtype), g.regs(value), ""
    if kind == "float" and len(names) == 2:
        return g.emit(f"fcmp oeq float {names[0]}, {g.emit(f'fneg float {names[1]}')}")
    for name in names:
        bits = g.emit(f"bitcast {kind} {name} to i32")
        found = g.emit(f"xor i32 {found}, {bits}") if found else bits
    return g.emit(f"icmp eq i32 {found}, {SELDOM}")


def is_summed(g: Generator, value: Value) -> bool:
    """Whether a value is the result of a product that may be under way, or of a loop that carries one."""
    made = g.defs.get(value)
    return made is not None and made.name in ("dot", "for")


def early(g: Generator, value: Value) -> list[tuple[str, str]]:
    """A tile's registers as operands of inline assembly: constraints, and types with names."""
    if value.type.dtype.bits == 16:
        return [("r", f"i32 {word(g, value, (i, i + 1))}") for i in range(0, g.num_registers(value), 2)]
    kind = llvm_type(value.type.dtype)
    return (
        [("f" if kind == "float" else "r", f"{kind} {name}") for name in g.regs(value)]
        if value.type.dtype.bits == 32
        else []
    )


class Product:
    """The text of one dot: operands are numbered accumulators out, accumulators in, A, B."""

    def __init__(self, g: Generator, op: Op):
        self.g, self.op = g, op
        self.instruction: MmaInstruction = instruction_of(op)
        self.a, self.b, self.c = op.args
        self.registers = self.c.type.layout.num_registers
        self.each = wgmma.ROWS * self.instruction.n // 128  # accumulators of an instruction
        self.fresh = self.is_zero(self.c)
        self.upper: dict[int, int] = {}  # by number of an operand
        self.lines: list[str] = []
        self.constraints: list[str] = []
        self.operands: list[str] = []

    def is_zero(self, value: Value) -> bool:
        made = self.g.defs.get(value)
        return made is not None and made.name == "const" and not made.attrs["value"]

    def emit(self) -> None:
        g, kind = self.g, llvm_type(self.c.type.dtype)
        letter = "f" if kind == "float" else "r"
        self.constraints = [f"={letter}"] * self.registers
        if not self.fresh:
            for i, name in enumerate(g.regs(self.c)):
                self.operand(str(i), f"{kind} {name}")
        a = self.words() if self.op.attrs["registers"] else self.descriptor(self.a, 0)
        b = self.descriptor(self.b, 1)
        trips = g.begun.get(self.c)
        self.write(a, b, None if trips is None else self.operand("r", f"i32 {trips}"))
        self.constraints.append("~{memory}")
        aggregate = "{" + ", ".join([kind] * self.registers) + "}"
        text = " ".join(["{", *self.lines, "}"])
        got = g.emit(
            f'call {aggregate} asm sideeffect "{text}", "{",".join(self.constraints)}"({", ".join(self.operands)}) #1'
        )
        g.set(self.op.result, [g.emit(f"extractvalue {aggregate} {got}, {i}") for i in range(self.registers)])

    def operand(self, constraint: str, text: str) -> int:
        """Adds an operand; its number in the text."""
        self.constraints.append(constraint)
        self.operands.append(text)
        return len(self.constraints) - 1

    # -- operands

    def words(self) -> list[int]:
        """The numbers of the 32-bit words of an A in registers, in the order of the instructions that take them."""
        g, value = self.g, self.a
        count, per = value.type.layout.num_registers, 32 // value.type.dtype.bits
        if self.op.attrs.get("crossed"):  # cut off to tf32 by the instruction, as B is
            names = [g.emit(f"bitcast float {name} to i32") for name in g.regs(value)]
        elif value.type.dtype == t.float32:
            names = [as_tf32(g, name) for name in g.regs(value)]
        else:
            names = [word(g, value, tuple(range(i, i + per))) for i in range(0, count, per)]
        if self.op.attrs.get("pending"):
            g.flying += names
        return [self.operand("r", f"i32 {name}") for name in names]

    def descriptor(self, value: Value, side: int) -> int:
        """The number of the operand that says where a warpgroup's part of a buffer starts and how it lies: the lower word of a descriptor,
        in which the address is; the upper one is a constant."""
        g, type = self.g, value.type
        warps = self.op.attrs["warps"]
        part = wgmma.part(type.shape[self.lies_as(side)], side, warps)
        lies = wgmma.describe(type.layout, type.dtype.bits, self.lies_as(side), part)
        assert lies is not None, "the verifier has seen the descriptor"
        split = [log2(warps[0] // wgmma.GROUP), log2(warps[1])]
        bits = [0] * 2 + [0] * sum(split)
        for i in range(split[side]):
            bits[2 + i + (split[0] if side else 0)] = self.place(type, side, part << i, 0)
        key = ("descriptor", g.offsets[value], tuple(bits), lies.fields)
        if key not in g.memo:
            with g.writing(g.entry, ""):
                base = g.emit("ptrtoint ptr addrspace(3) @shared to i32")
                start = g.emit(f"add i32 {base}, {g.offsets[value]}")
                if any(bits):
                    start = g.emit(f"add i32 {start}, {g.xor_bits((gpu_roles.uniform(g, '%warp'), bits))}")
                start = g.emit(f"lshr i32 {g.emit(f'and i32 {start}, {ADDRESSES}')}, 4")
                g.memo[key] = g.emit(f"or i32 {start}, {lies.fields & WORD}")
        name = g.memo[key]
        if slot := g.slots.get(value):
            name = g.emit(f"add i32 {name}, {g.emit(f'lshr i32 {slot}, 4')}")
        number = self.operand("r", f"i32 {name}")
        self.upper[number] = lies.fields >> 32
        return number

    def place(self, type: Buffer, side: int, mn: int, k: int) -> int:
        """Bytes from the start of a buffer."""
        return wgmma.place(type.layout, self.lies_as(side), mn, k) * type.dtype.bytes

    def lies_as(self, side: int) -> int:
        return wgmma.lies_as(side, self.op.attrs.get("turned", ()))

    # -- text

    def write(self, a: list[int] | int, b: int, trips: int | None) -> None:
        """The text, in which a first step reads no accumulators where they are none yet: of a fresh product, or while there were no
        `trips`."""
        row, lines = self.instruction, self.lines
        depth, blocks = self.b.type.shape[1 - self.lies_as(1)] // row.k, self.registers // self.each
        lines += [".reg .pred on, first;", ".reg .b32 xl, yl;", ".reg .b64 x, y;", "setp.eq.s32 on, 0, 0;"]
        lines.append(f"setp.ne.s32 first, {0 if trips is None else f'${trips}'}, 0;")
        skips = self.fresh or trips is not None
        lines.append("wgmma.fence.sync.aligned;")
        for step in range(depth):
            second = self.moved("y", b, self.place(self.b.type, 1, 0, step * row.k))
            for block in range(blocks):
                if isinstance(a, int):
                    first = self.moved("x", a, self.place(self.a.type, 0, block * wgmma.ROWS, step * row.k))
                else:
                    start = 4 * (block * depth + step)
                    first = "{" + ",".join(f"${n}" for n in a[start : start + 4]) + "}"
                self.issue(block, first, second, "first" if skips and step == 0 else "on")
        pending = self.op.attrs.get("pending", 0)
        lines += ["wgmma.commit_group.sync.aligned;", f"wgmma.wait_group.sync.aligned {pending};"]

    def moved(self, register: str, base: int, distance: int) -> str:
        """A descriptor whose address is `distance` bytes further."""
        self.lines.append(f"add.s32 {register}l, ${base}, {distance >> 4};")
        self.lines.append(f"mov.b64 {register}, {{{register}l, {self.upper[base]}}};")
        return register

    def issue(self, block: int, first: str, second: str, scale: str) -> None:
        row, kinds = self.instruction, [PTX_TYPES[x.type.dtype.name] for x in (self.a, self.b)]
        result = ACCUMULATORS[self.c.type.dtype.name]
        held = "{" + ",".join(f"${block * self.each + i}" for i in range(self.each)) + "}"
        more = [] if result == "s32" else ["1", "1"]
        if self.a.type.dtype in (t.float16, t.bfloat16):
            sides = [(x, side) for side, x in enumerate((self.a, self.b)) if isinstance(x.type, Buffer)]
            more += ["1" if self.is_mn_major(x.type, side) else "0" for x, side in sides]
        shape = row.name.removeprefix("wgmma.")
        self.lines.append(
            f"wgmma.mma_async.sync.aligned.{shape}.{result}.{kinds[0]}.{kinds[1]} {held}, {', '.join([first, second, scale, *more])};"
        )

    def is_mn_major(self, type: Buffer, side: int) -> bool:
        part = wgmma.part(type.shape[self.lies_as(side)], side, self.op.attrs["warps"])
        found = wgmma.describe(type.layout, type.dtype.bits, self.lies_as(side), part)
        assert found is not None
        return found.mn_major
