"""Lowers wgmma: a whole product, all steps along K, is one piece of inline PTX (PTX ISA: wgmma.mma_async).

The accumulators are operands tied to results, so they stay in their registers from iteration to iteration. ptxas moves no accumulator if no
instruction uses one between the first wgmma and the wait. Operands in shared memory are matrix descriptors (`layouts.wgmma`). The part of a
descriptor that depends on the warp is computed once, at the head of the kernel. A step along K or M adds a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blocknb.codegen.gpu.context import KernelContext
from blocknb.codegen.gpu.element_types import llvm_type, num_registers
from blocknb.codegen.gpu.loop_operands import RegisterOperands
from blocknb.codegen.gpu.mma_state import MmaState
from blocknb.codegen.gpu.phis import Phis
from blocknb.codegen.gpu.registry import OpLowering, lowers
from blocknb.codegen.gpu.scheduling import split_in_flight
from blocknb.ir.core import Op, Value, operands
from blocknb.language import types as t
from blocknb.language.ops import OPS
from blocknb.language.types import Buffer
from blocknb.layouts import wgmma
from blocknb.layouts.tables import MmaInstruction, log2
from blocknb.passes.tile.select_mma import instruction_of

PTX_TYPES = {"fp16": "f16", "bf16": "bf16", "fp32": "tf32", "int8": "s8", "fp8e4nv": "e4m3", "fp8e5": "e5m2"}
ACCUMULATORS = {"fp32": "f32", "int32": "s32"}
RARE_BITS = 0x2B7E1516  # an arbitrary number
WORD = 0xFFFFFFFF
ADDRESSES = 0x3FFFF  # bits of a shared address that a descriptor takes


class WgmmaDot(OpLowering):
    """Writes asynchronous MMAs and the waits for them."""

    def __init__(self, context: KernelContext, state: MmaState):
        super().__init__(context)
        self.state, self.phis = state, Phis(self.text, self.registers)
        self.held = RegisterOperands(context, state)

    def dot(self, op: Op) -> None:
        """Writes a product, which is in flight until a wait if the op says so."""
        made = self.defs.get(op.args[2])
        zero_accumulators = made is not None and made.name == "const" and not made.attrs["value"]
        asm = WgmmaText(op, zero_accumulators)
        if not zero_accumulators:
            asm.tie([self.registers.regs(asm.c)[i] for i in asm.live])
        a = self.words(asm) if op.attrs["registers"] else self.descriptor(asm, asm.a, 0)
        b = self.descriptor(asm, asm.b, 1)
        count = self.state.unset_while_zero.get(asm.c)
        asm.write(a, b, None if count is None else asm.operand("r", f"i32 {count}"))
        asm.constraints.append("~{memory}")
        ptx = " ".join(["{", *asm.lines, "}"])
        found = self.results(ptx, asm.kind, len(asm.live), asm.constraints, asm.operands)
        self.registers.set(op.result, merged(self.registers.regs(asm.c), asm.live, found))

    def results(
        self, ptx: str, kind: str, count: int, constraints: Sequence[str], operands: Sequence[str]
    ) -> list[str]:
        """Writes inline PTX whose results are the registers of a tile."""
        call = f'asm sideeffect "{ptx}", "{",".join(constraints)}"({", ".join(operands)}) #1'
        return self.text.results(call, [kind] * count)

    # -- operands

    def words(self, asm: WgmmaText) -> list[int]:
        """The numbers of the 32-bit words of an A in registers, in the order of the instructions that take them."""
        names = self.held.words(asm.op)
        if asm.op.attrs.get("in_flight"):
            self.state.in_flight += names
        return [asm.operand("r", f"i32 {name}") for name in names]

    def descriptor(self, asm: WgmmaText, value: Value, side: int) -> int:
        """The operand number of the matrix descriptor for a warpgroup's part of a buffer. It is the lower word of a descriptor, which has
        the address; the upper word is a constant."""
        text, type, offset = self.text, value.type, self.buffers.offsets[value]
        lies, bits = asm.described(type, side), asm.warp_bits(type, side)

        def lower() -> str:
            base = text.emit("ptrtoint ptr addrspace(3) @shared to i32")
            start = text.emit(f"add i32 {base}, {offset}")
            if any(bits):
                start = text.emit(f"add i32 {start}, {text.xor_bits((self.threads.uniform('%warp'), bits))}")
            start = text.emit(f"lshr i32 {text.emit(f'and i32 {start}, {ADDRESSES}')}, 4")
            return text.emit(f"or i32 {start}, {lies.fields & WORD}")

        name = text.once(("descriptor", offset, tuple(bits), lies.fields), lower)
        if stage := self.buffers.stages.get(value):
            name = text.emit(f"add i32 {name}, {text.emit(f'lshr i32 {stage}, 4')}")
        number = asm.operand("r", f"i32 {name}")
        asm.upper[number] = lies.fields >> 32
        return number

    # -- waits

    @lowers("dot_wait")
    def wait(self, op: Op) -> None:
        """Waits for wgmma. Accumulators are operands and results of the wait: LLVM sees no other dependency on it. Other arguments are
        computed before the wait. Operands that wgmma reads from registers are kept until then."""
        pending, state = op.attrs.get("in_flight", 0), self.state
        kept = [] if pending else [("r", f"i32 {name}") for name in state.in_flight]
        pairs = list(zip(op.args, op.results, strict=True))
        summed = [(value, result) for value, result in pairs if self.is_summed(value)]
        early = [(value, result) for value, result in pairs if not self.is_summed(value)]
        for value, result in early:
            self.registers.set(result, self.registers.regs(value))
            kept += self.operands(value)
        if early:
            split_in_flight(self.text, self.rarely_true([value for value, _ in early]))
        for value, result in summed:
            self.registers.set(result, self.waited(value, pending, kept))
            kept = []
        if not pending:
            state.in_flight = []
            self.held.use()
        for iterated in dict.fromkeys(state.unset_unless[value] for value in op.args if value in state.unset_unless):
            self.phis.zero_unless([result for x, result in pairs if state.unset_unless.get(x) == iterated], iterated)

    def waited(self, value: Value, pending: int, kept: Sequence[tuple[str, str]]) -> list[str]:
        """An accumulator after the wait until at most `pending` groups are in flight. Operands that are `kept` live until then."""
        names, kind, live = self.registers.regs(value), llvm_type(value.type.dtype), self.live(value)
        count, letter = len(live), "f" if kind == "float" else "r"
        constraints = [*[f"={letter}"] * count, *map(str, range(count)), *(x for x, _ in kept), "~{memory}"]
        operands = [f"{kind} {names[i]}" for i in live] + [x for _, x in kept]
        found = self.results(f"wgmma.wait_group.sync.aligned {pending};", kind, count, constraints, operands)
        return merged(names, live, found)

    def live(self, value: Value) -> Sequence[int]:
        """The registers of an accumulator that products compute."""
        made = self.defs.get(value)
        while made is not None and made.name == "for":
            value = made.blocks[0].terminator.args[made.results.index(value)]
            made = self.defs.get(value)
        if made is None or made.name != "dot":
            return range(num_registers(value))
        return computed_registers(made)

    def rarely_true(self, values: Sequence[Value]) -> str:
        """A condition that seldom holds and needs all registers of a 32-bit tile, the one with the fewest. Without it ptxas waits before it
        computes the tile. For two floats it is a single instruction."""
        text, tiles = self.text, [value for value in values if value.type.dtype.bits == 32]
        value = min(reversed(tiles), key=num_registers)
        kind, names, found = llvm_type(value.type.dtype), self.registers.regs(value), ""
        if kind == "float" and len(names) == 2:
            return text.emit(f"fcmp oeq float {names[0]}, {text.emit(f'fneg float {names[1]}')}")
        for name in names:
            bits = text.emit(f"bitcast {kind} {name} to i32")
            found = text.emit(f"xor i32 {found}, {bits}") if found else bits
        return text.emit(f"icmp eq i32 {found}, {RARE_BITS}")

    def is_summed(self, value: Value) -> bool:
        """Whether a value is the result of a dot that may be in flight, or of a loop that carries one."""
        made = self.defs.get(value)
        return made is not None and made.name in ("dot", "for")

    def operands(self, value: Value) -> list[tuple[str, str]]:
        """A tile's registers as operands of inline PTX: constraints, and types with names."""
        if value.type.dtype.bits == 16:
            return [("r", f"i32 {self.registers.word(value, (i, i + 1))}") for i in range(0, num_registers(value), 2)]
        if value.type.dtype.bits != 32:
            return []
        kind = llvm_type(value.type.dtype)
        return [("f" if kind == "float" else "r", f"{kind} {name}") for name in self.registers.regs(value)]


def ops_around_mma(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """The ops of a block in the order of the text. A pure op may stand before a loop that leaves wgmma in flight. If the loop does not need
    it, it moves below the loop, above the wait. So the loop begins earlier, and no register holds the result meanwhile."""
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
    """Whether an op may move: it is pure, or a branch of pure ops."""
    if op.name == "if":
        return all(OPS[x.name].pure or x.name == "yield" for block in op.blocks for x in block.ops)
    return OPS[op.name].pure and not op.blocks


def computed_registers(dot: Op) -> list[int]:
    """The registers of a product's result that it computes: those of its first `columns` columns."""
    each = wgmma.ROWS * instruction_of(dot).n // 128
    live = wgmma.ROWS * dot.attrs.get("columns", instruction_of(dot).n) // 128
    return [i for i in range(dot.result.type.layout.num_registers) if i % each < live]


def merged(names: Sequence[str], live: Sequence[int], found: Sequence[str]) -> list[str]:
    """The registers of a tile of which those at `live` have new names."""
    result = list(names)
    for i, name in zip(live, found, strict=True):
        result[i] = name
    return result


class WgmmaText:
    """The inline PTX of one dot. The operands are numbered: accumulators out, accumulators in, A, B. With `zero_accumulators` they begin as
    zeros; `upper` are the upper words of descriptors by the number of the operand."""

    def __init__(self, op: Op, zero_accumulators: bool):
        self.op, self.zero_accumulators = op, zero_accumulators
        self.instruction: MmaInstruction = instruction_of(op)
        self.a, self.b, self.c = op.args
        self.kind = llvm_type(self.c.type.dtype)
        self.count = self.c.type.layout.num_registers
        self.live = computed_registers(op)
        self.each = len(self.live) // self.blocks  # accumulators of an instruction
        self.upper: dict[int, int] = {}
        self.lines: list[str] = []
        self.constraints = ["=f" if self.kind == "float" else "=r"] * len(self.live)
        self.operands: list[str] = []

    @property
    def blocks(self) -> int:
        """The instructions of a warpgroup per step along K: one for each 64 rows."""
        return self.count * 128 // (wgmma.ROWS * self.instruction.n)

    def operand(self, constraint: str, text: str) -> int:
        """Adds an operand and returns its number."""
        self.constraints.append(constraint)
        self.operands.append(text)
        return len(self.constraints) - 1

    def tie(self, names: Sequence[str]) -> None:
        """Ties the accumulators to the results."""
        for i, name in enumerate(names):
            self.operand(str(i), f"{self.kind} {name}")

    # -- operands in shared memory

    def described(self, type: Buffer, side: int) -> Any:
        """The descriptor of a warpgroup's part of a buffer (`wgmma.describe`)."""
        part = wgmma.part(type.shape[self.storage_side(side)], side, self.op.attrs["warps"])
        found = wgmma.describe(type.layout, type.dtype.bits, self.storage_side(side), part)
        assert found is not None, "the verifier has seen the descriptor"
        return found

    def warp_bits(self, type: Buffer, side: int) -> list[int]:
        """How many bytes each bit of the warp's number moves a warpgroup's part of a buffer by."""
        warps = self.op.attrs["warps"]
        part = wgmma.part(type.shape[self.storage_side(side)], side, warps)
        split = [log2(warps[0] // wgmma.GROUP), log2(warps[1])]
        bits = [0] * 2 + [0] * sum(split)
        for i in range(split[side]):
            bits[2 + i + (split[0] if side else 0)] = self.place(type, side, part << i, 0)
        return bits

    def place(self, type: Buffer, side: int, mn: int, k: int) -> int:
        """How many bytes an element lies from the start of a buffer."""
        return wgmma.place(type.layout, self.storage_side(side), mn, k) * type.dtype.bytes

    def storage_side(self, side: int) -> int:
        """The side of a product for which the buffer of an operand is laid out: the other one if it is transposed."""
        return wgmma.storage_side(side, self.op.attrs.get("transposed", ()))

    # -- instructions

    def write(self, a: list[int] | int, b: int, count: int | None) -> None:
        """Writes the instructions. The first step does not read the accumulators if they are unset. They are unset if they are a constant
        zero, or while the operand number `count`, the number of finished iterations, is 0."""
        row, lines = self.instruction, self.lines
        depth, blocks = self.b.type.shape[1 - self.storage_side(1)] // row.k, self.blocks
        lines += [".reg .pred on, first;", ".reg .b32 xl, yl;", ".reg .b64 x, y;", "setp.eq.s32 on, 0, 0;"]
        lines.append(f"setp.ne.s32 first, {0 if count is None else f'${count}'}, 0;")
        skips = self.zero_accumulators or count is not None
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
        pending = self.op.attrs.get("in_flight", 0)
        lines += ["wgmma.commit_group.sync.aligned;", f"wgmma.wait_group.sync.aligned {pending};"]

    def moved(self, register: str, base: int, distance: int) -> str:
        """Writes a descriptor whose address is `distance` bytes further."""
        self.lines.append(f"add.s32 {register}l, ${base}, {distance >> 4};")
        self.lines.append(f"mov.b64 {register}, {{{register}l, {self.upper[base]}}};")
        return register

    def issue(self, block: int, first: str, second: str, scale: str) -> None:
        """Writes one instruction."""
        row, kinds = self.instruction, [PTX_TYPES[x.type.dtype.name] for x in (self.a, self.b)]
        result = ACCUMULATORS[self.c.type.dtype.name]
        held = "{" + ",".join(f"${block * self.each + i}" for i in range(self.each)) + "}"
        more = [] if result == "s32" else ["1", "1"]
        if self.a.type.dtype in (t.float16, t.bfloat16):
            sides = [(x, side) for side, x in enumerate((self.a, self.b)) if isinstance(x.type, Buffer)]
            more += ["1" if self.described(x.type, side).mn_major else "0" for x, side in sides]
        shape = f"m{wgmma.ROWS}n{self.op.attrs.get('columns', row.n)}k{row.k}"
        self.lines.append(
            f"wgmma.mma_async.sync.aligned.{shape}.{result}.{kinds[0]}.{kinds[1]} {held}, {', '.join([first, second, scale, *more])};"
        )
