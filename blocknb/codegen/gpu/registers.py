"""The registers of a thread: the LLVM values that hold its part of each tile, and the words in which they move through memory.

Registers are lazy. For an op on tiles the generator emits no code at first, only an empty *chunk* at the op's place in the text. When a
user reads a register, the generator writes the register's code into that chunk. So an address tile costs one address per 16-byte access,
dead code costs nothing, and LLVM gets a tenth of the text. Code in a chunk dominates all uses of the op, because the chunk has the op's
place.

A *word* is an integer of up to 32 bits (or 64, for wide elements) that holds neighbouring registers, the first one lowest. The generator
splits a word only if a user reads an element. Data that moves from global to shared memory, or from there into a tensor core, stays in
words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from blocknb.analysis.affine import Facts
from blocknb.codegen.gpu.casts import whole_pairs
from blocknb.codegen.gpu.element_types import element_register, llvm_type, memory_bits, num_registers
from blocknb.codegen.gpu.packed_conversions import PackedConversions
from blocknb.codegen.gpu.text import TextWriter
from blocknb.errors import CompilerBug
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.language.ops import named
from blocknb.layouts.convert import plan_in_warps

Compute = Callable[[Op, Value, int], str]  # writes one register of a lazy op and returns its name
Words = dict[tuple[int, ...], str]
ARRIVING = named("move") | {"load", "local_load"}  # ops that bring words


def word_bits(element_bits: int, count: int) -> int:
    """The width of the words in which `count` neighbouring elements travel."""
    return max(element_bits, min(32, element_bits * count))


def split_words(registers: Sequence[int], element_bits: int) -> list[tuple[int, ...]]:
    """The registers of one access, word by word."""
    per = max(1, word_bits(element_bits, len(registers)) // element_bits)
    return [tuple(registers[i : i + per]) for i in range(0, len(registers), per)]


class Registers:
    """The names of the registers and words of each value. `refetched`: values whose words each reader fetches again, namely tiles in pieces
    and rematerialized loads."""

    def __init__(
        self,
        text: TextWriter,
        facts: Facts,
        defs: Mapping[Value, Op],
        streamed: Set[Value],
        refetched: Set[Value],
        rounds_pairs: bool,
    ):
        self.text, self.facts, self.defs, self.streamed, self.refetched = text, facts, defs, streamed, refetched
        self.rounds_pairs = rounds_pairs  # whether one instruction rounds two fp32 to 16 bits
        self.names: dict[Value, dict[int, str]] = {}
        self.words: dict[Value, Words] = {}
        self.fetch: dict[Value, Callable[[tuple[int, ...]], None]] = {}  # fetches the given words
        self.lazy: dict[Value, tuple[Op, list[str] | None, str, Compute]] = {}  # op, chunk, debug location
        self.conversions = PackedConversions(self)
        self.equal: dict[Value, tuple[int, ...]] = {}  # of masks: for each register the first that is equal to it

    # -- registers

    def reg(self, value: Value, index: int = 0) -> str:
        """The LLVM value in a register of a tile (register 0 of a scalar), computed now unless it is known."""
        index = self.first_equal(value, index)
        known = self.names.setdefault(value, {})
        if index not in known:
            self.fill(value, index)
        return known[index]

    def element(self, value: Value, index: int) -> str:
        """The register of a value for register `index` of a tile; a scalar has only one."""
        return self.reg(value, element_register(value, index))

    def predicate(self, mask: Value | None, index: int) -> str:
        """The register of a mask; "" where there is no mask."""
        return self.element(mask, index) if mask is not None else ""

    def regs(self, value: Value) -> list[str]:
        """All registers of a value."""
        return [self.reg(value, r) for r in range(num_registers(value))]

    def set(self, value: Value, names: Sequence[str]) -> None:
        """Sets the names of a value's registers."""
        self.names[value] = dict(enumerate(names))

    def defer(self, op: Op, chunk: list[str] | None, compute: Compute) -> None:
        """Postpones an op. The generator later writes its registers into the chunk; without one (None), at the first use."""
        self.lazy[op.result] = op, chunk, self.text.dbg, compute

    def fill(self, value: Value, index: int) -> None:
        """Computes a register, after the registers that it depends on. The worklist replaces recursion: expressions are deeper than
        Python's stack. It is not `traversal.postorder`, because this is the hottest loop of the code generator."""
        text, todo = self.text, [(value, index)]
        while todo:
            value, index = todo[-1]
            if index in self.names.setdefault(value, {}):
                todo.pop()
                continue
            op, chunk, dbg, compute = self.lazy[value]
            missing = [(v, i) for v, i in self.operands(op, value, index) if i not in self.names.get(v, ())]
            if missing:
                todo += reversed(missing)
                continue
            saved, text.dbg = (text.sink, text.dbg), dbg  # not by `writing`: this is the hot path
            if chunk is not None:
                text.sink = chunk
            self.names[value][index] = name = compute(op, value, index)
            if chunk is None:
                text.remember(self.names[value], index, name)
            text.sink, text.dbg = saved

    def first_equal(self, value: Value, index: int) -> int:
        """The first register with the same value as register `index`. Masks are constant over groups of elements."""
        if value not in self.equal:
            self.equal[value] = ()
            if value in self.lazy and value.type.shape and value.type.dtype == t.int1 and value not in self.streamed:
                self.equal[value] = self.equal_registers(value)
        return self.equal[value][index] if self.equal[value] else index

    def equal_registers(self, value: Value) -> tuple[int, ...]:
        """For each register of a mask the first one that is equal to it."""
        layout, ignored = value.type.layout, 0
        for axis in range(len(layout.shape)):
            group = self.facts.constancy(value, axis)
            ignored |= (group - 1) << layout.dim_bits(axis).start
        first: dict[int, int] = {}
        return tuple(first.setdefault(place & ~ignored, r) for r, place in enumerate(layout.register_indices))

    def operands(self, op: Op, value: Value, index: int) -> list[tuple[Value, int]]:
        """The registers from which a register of a lazy op is computed."""
        return [(v, self.first_equal(v, i)) for v, i in self.sources(op, value, index)]

    def operand_names(self, op: Op, value: Value, index: int) -> tuple[str, ...]:
        """The names of the registers from which a register of a lazy op is computed. All of them exist."""
        return tuple(self.names[v][i] for v, i in self.operands(op, value, index))

    def sources(self, op: Op, value: Value, index: int) -> list[tuple[Value, int]]:
        """As `operands`, but equal registers of a mask stay separate."""
        match op.name:
            case "broadcast":
                return [(op.args[0], value.type.layout.broadcast_registers(op.args[0].type.shape)[index])]
            case "convert":
                renamed = plan_in_warps(
                    op.args[0].type.layout, value.type.layout, memory_bits(value.type.dtype)
                ).registers
                return (
                    [] if renamed is None else [(op.args[0], renamed[index])]
                )  # words that a shuffle moves have arrived
            case "part":
                return [self.source_of_part(value, index)]
            case name if name in ARRIVING:
                return []
        return [(arg, element_register(arg, index)) for arg in op.args]

    def source_of_part(self, part: Value, register: int) -> tuple[Value, int]:
        """The tile from which a `part` was taken, and the number that the part's register has in that tile."""
        op = self.defs[part]
        axis, index, count = (op.attrs[name] for name in ("axis", "index", "count"))
        return op.args[0], op.args[0].type.layout.part_registers(axis, index, count)[register]

    # -- words

    def arrive(self, op: Op, words: Words, value: Value | None = None) -> None:
        """Records the words that a load or a similar op has written, as its result or as `value`. A user that reads an element unpacks it
        at this place in the text."""
        value = op.result if value is None else value
        self.words[value] = words
        self.lazy[value] = op, self.text.open_chunk(), self.text.dbg, self.unpack
        self.text.open_chunk()

    def word(self, value: Value, registers: tuple[int, ...]) -> str:
        """An integer that holds these registers side by side, the first one lowest."""
        while (op := self.defs.get(value)) is not None and op.name == "part":
            registers = tuple(self.source_of_part(value, register)[1] for register in registers)
            value = op.args[0]
        known = self.words.setdefault(value, {})
        if registers not in known and (fetch := self.fetch.get(value)) is not None:
            fetch(registers)
        if registers in known:
            return known[registers]
        return self.text.remember(known, registers, self.pack(value, registers))

    def pack(self, value: Value, registers: tuple[int, ...]) -> str:
        """Writes a word from registers that exist as single elements."""
        text, dtype = self.text, value.type.dtype
        kind, bits = llvm_type(dtype), memory_bits(dtype)
        if dtype == t.int1:
            parts = [text.emit(f"zext i1 {self.reg(value, r)} to i8") for r in registers]
            kind = "i8"
        elif (source := self.rounded_source(value)) is not None and len(registers) == 2:
            return self.round_pair(source, registers, kind)
        elif (word := self.conversions.word(value, registers)) is not None:
            return word
        else:
            parts = [self.reg(value, r) for r in registers]
        if len(parts) == 1:
            return text.as_integer(parts[0], kind, bits)
        if dtype.is_fp8() and (pairs := whole_pairs(text, parts)) is not None:
            parts, kind, bits = pairs, "i16", 16
            if len(parts) == 1:
                return parts[0]
        vector, name = f"<{len(parts)} x {kind}>", "undef"
        for i, part in enumerate(parts):
            name = text.emit(f"insertelement {vector} {name}, {kind} {part}, i32 {i}")
        return text.emit(f"bitcast {vector} {name} to i{bits * len(parts)}")

    def rounded_source(self, value: Value) -> Value | None:
        """The fp32 tile that `value` rounds to 16 bits, if one instruction rounds a pair."""
        op = self.defs.get(value)
        if not self.rounds_pairs or op is None or op.name != "cast":
            return None
        halves = value.type.dtype in (t.float16, t.bfloat16) and op.args[0].type.dtype == t.float32
        return op.args[0] if halves else None

    def round_pair(self, source: Value, registers: tuple[int, ...], kind: str) -> str:
        """A word of two fp32 registers, rounded."""
        text = self.text
        low, high = (self.reg(source, r) for r in registers)
        pair = text.emit(f"insertelement <2 x float> undef, float {low}, i32 0")
        pair = text.emit(f"insertelement <2 x float> {pair}, float {high}, i32 1")
        halves = text.emit(f"fptrunc <2 x float> {pair} to <2 x {kind}>")
        return text.emit(f"bitcast <2 x {kind}> {halves} to i32")

    def unpack(self, op: Op, value: Value, index: int) -> str:
        """Extracts one element from its word."""
        text, words = self.text, self.words[value]
        if value in self.refetched and not any(index in registers for registers in words):
            self.fetch[value]((index,))
        dtype = value.type.dtype
        kind, bits = llvm_type(dtype), memory_bits(dtype)
        registers, name = next(((r, n) for r, n in words.items() if index in r), ((), ""))
        if not registers:
            raise CompilerBug(f"register {index} of {value} never arrived")
        if len(registers) > 1:
            element = "i8" if dtype == t.int1 else kind
            vector = f"<{len(registers)} x {element}>"
            key = ("vector", name, vector)
            if key not in text.memo:
                text.memo[key] = text.emit(f"bitcast i{bits * len(registers)} {name} to {vector}")
            piece = text.emit(f"extractelement {vector} {text.memo[key]}, i32 {registers.index(index)}")
            # LLVM would find a mask or shift of the words before they were fetched again, and keep its result.
            if bits == 16 and len(registers) == 2 and value not in self.refetched:
                text.halves[piece] = name, registers.index(index)
            return text.emit(f"trunc i8 {piece} to i1") if dtype == t.int1 else piece
        if dtype == t.int1:
            return text.emit(f"trunc i8 {name} to i1")
        return text.from_integer(name, kind, bits)
