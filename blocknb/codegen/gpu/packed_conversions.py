"""Converts pairs of small integers to fp16 or bf16: two numbers in three instructions, without a conversion instruction.

Weights of 4 and 8 bits become operands of tensor cores, which read pairs of 16-bit floats. The fp16 number 1024 has ten zero bits at its
end. An integer v below 1024 in these bits makes 1024 + v, and a subtraction gives v without an error (bf16: 128 and seven bits). So one
`prmt` takes two fields from their words, one `lop3` masks them and adds the bits of 1024, and one `fma` subtracts. A field that does not
begin at bit 0 stays where it is: the `fma` divides by its power of two. Source: Kim et al., "Who Says Elephants Can't Run" (2022).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from blocknb.codegen.gpu.element_types import constant, element_register, llvm_type, memory_bits
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.language.ops import PRESERVING
from blocknb.layouts.convert import plan_in_warps

MOVES = PRESERVING | {"promise", "broadcast", "convert"}  # ops whose registers are registers of their operand
FLOAT = {"add": "fadd contract", "sub": "fsub contract", "mul": "fmul contract"}


class HalfFormat(NamedTuple):
    """A 16-bit float: `bits` zero bits at the end of the power of two `base`, whose encoding is `code`."""

    bits: int
    base: int
    code: int


FORMATS = {t.float16: HalfFormat(10, 1024, 0x6400), t.bfloat16: HalfFormat(7, 128, 0x4300)}


class IntegerField(NamedTuple):
    """An integer made of bits of an element: ((element >> shift) & mask ^ flip) - minus. `signed`: the mask's highest bit is a sign."""

    source: Value
    register: int
    shift: int
    mask: int
    flip: int = 0
    minus: int = 0
    signed: bool = False

    @property
    def plain(self) -> bool:
        """Whether it consists of bits alone."""
        return not self.flip and not self.minus

    def closed(self) -> IntegerField:
        """The same integer with a flipped sign bit instead of a sign."""
        if not self.signed:
            return self
        sign = (self.mask + 1) >> 1
        return self._replace(flip=self.flip ^ sign, minus=self.minus + sign, signed=False)

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest value that the bits allow."""
        field = self.closed()
        return -field.minus, field.mask - field.minus


class PackedConversions:
    """Writes pairs of 16-bit floats that are converted from integers, as words. `registers`: the Registers of the kernel."""

    def __init__(self, registers: Any):
        self.registers, self.text, self.defs = registers, registers.text, registers.defs
        self.converted: dict[Value, bool] = {}

    def word(self, value: Value, registers: tuple[int, ...]) -> str | None:
        """A word of two registers of a tile of 16-bit floats, if they are converted integers or sums and products with these."""
        if len(registers) != 2 or not self.is_converted(value):
            return None
        pair = self.pair(value, value, *registers)
        return None if pair is None else self.text.emit(f"bitcast {self.vector(value)} {pair} to i32")

    def halves(self, value: Value, first: int) -> tuple[str, str] | None:
        """Two neighbouring registers of such a tile as single elements."""
        if not self.is_converted(value):
            return None
        pair = self.pair(value, value, first, first + 1)
        if pair is None:
            return None
        low, high = (self.text.emit(f"extractelement {self.vector(value)} {pair}, i32 {i}") for i in range(2))
        return low, high

    def is_converted(self, value: Value) -> bool:
        """Whether integers that are converted to this type may reach a value."""
        if value not in self.converted:
            self.converted[value] = False
            op = self.defs.get(value)
            formats = FORMATS if self.registers.rounds_pairs else (t.float16,)  # sm_80 has the fma of bf16
            if op is None or value in self.registers.streamed or value.type.dtype not in formats:
                return False
            if op.name == "cast":
                found = op.args[0].type.dtype.kind in ("int", "uint")
            else:
                operands = op.args
                arithmetic = op.name in FLOAT and value.type.dtype == t.float16
                if op.name in ("add", "sub") and not arithmetic and self.integer_in(op.args[1], 0) is not None:
                    # In bf16, only the addition or subtraction of an integer counts, which has no error.
                    arithmetic, operands = True, op.args[:1]
                moves = op.name in MOVES or op.name == "select"
                found = (moves or arithmetic) and any(map(self.is_converted, operands))
            self.converted[value] = found
        return self.converted[value]

    @staticmethod
    def vector(value: Value) -> str:
        return f"<2 x {llvm_type(value.type.dtype)}>"

    def origin(self, value: Value, register: int) -> tuple[Value, int]:
        """The value and register that a register copies."""
        while (op := self.defs.get(value)) is not None:
            if op.name in MOVES and not self.changes_threads(op):
                value, register = self.registers.sources(op, value, register)[0]
            elif op.name == "select" and (chosen := self.number(op.args[0], register)) is not None:
                value = op.args[1 if chosen else 2]
                register = element_register(value, register)
            else:
                break
        return value, register

    @staticmethod
    def changes_threads(op: Op) -> bool:
        """Whether a conversion between layouts moves elements to other threads."""
        if op.name != "convert":
            return False
        source, result = op.args[0].type, op.result.type
        return plan_in_warps(source.layout, result.layout, memory_bits(result.dtype)).registers is None

    def number(self, value: Value, register: int) -> int | None:
        """The value of a register that is the same number in all threads and programs, such as an index on an axis of length two."""
        value, register = self.origin(value, element_register(value, register))
        op = self.defs.get(value)
        if op is None:
            return None
        if op.name == "const":
            found = op.attrs["value"]
            return int(found) if isinstance(found, bool | int) else None
        if op.name == "arange":
            layout = value.type.layout
            still = not any(layout.lane) and not any(layout.warp) and value not in self.registers.streamed
            return layout.register_indices[register] + op.attrs["start"] if still else None
        if op.name == "cmp" and op.attrs["pred"] in ("eq", "ne"):
            a, b = (self.number(x, register) for x in op.args)
            return None if a is None or b is None else (a == b) == (op.attrs["pred"] == "eq")
        return None

    # -- floats

    def pair(self, low_value: Value, high_value: Value, low: int, high: int) -> str | None:
        """Two converted registers as a vector of LLVM."""
        (a, low), (b, high) = self.origin(low_value, low), self.origin(high_value, high)
        first, second = self.defs.get(a), self.defs.get(b)
        if first is None or second is None or not (self.is_converted(a) and self.is_converted(b)):
            return None
        fields = self.whole(a, low), self.whole(b, high)
        if fields[0] is not None and fields[1] is not None:
            return self.floats(a, fields[0], fields[1])
        if first is not second or first.name not in FLOAT:
            return None
        made = []
        for x in first.args:
            registers = element_register(x, low), element_register(x, high)
            made.append(self.pair(x, x, *registers) if self.is_converted(x) else None)
        if made == [None, None]:
            return None
        operands = (name or self.plain(x, low, high) for name, x in zip(made, first.args, strict=True))
        return self.text.emit(f"{FLOAT[first.name]} {self.vector(a)} {', '.join(operands)}")

    def whole(self, value: Value, register: int) -> IntegerField | None:
        """The integer that a float is, if it is a converted one, or one plus or minus a constant that fp16 holds exactly."""
        value, register = self.origin(value, register)
        op = self.defs.get(value)
        if op is None or not self.is_converted(value):
            return None
        if op.name == "cast":
            return self.field(op.args[0], register)
        if op.name not in ("add", "sub") or (field := self.whole(op.args[0], register)) is None:
            return None
        constant = self.integer_in(op.args[1], register)
        if constant is None:
            return None
        number = constant * (1 if op.name == "sub" else -1)
        field = field.closed()._replace(minus=field.closed().minus + number)
        return field if max(map(abs, field.range)) <= FORMATS[value.type.dtype].base else None

    def integer_in(self, value: Value, register: int) -> int | None:
        """The integer that a constant float is; None for any other value."""
        made = self.defs.get(self.origin(value, element_register(value, register))[0])
        if made is None or made.name != "const" or made.attrs["value"] != int(made.attrs["value"]):
            return None
        return int(made.attrs["value"])

    def plain(self, value: Value, low: int, high: int) -> str:
        """Two registers of any tile as a vector."""
        registers = element_register(value, low), element_register(value, high)
        kind, vector = llvm_type(value.type.dtype), self.vector(value)
        names = [self.registers.reg(value, r) for r in registers]
        half = self.text.emit(f"insertelement {vector} undef, {kind} {names[0]}, i32 0")
        return self.text.emit(f"insertelement {vector} {half}, {kind} {names[1]}, i32 1")

    # -- integers

    def field(self, value: Value, register: int) -> IntegerField | None:
        """The integer in a register as bits of a loaded or computed element."""
        value, register = self.origin(value, element_register(value, register))
        op, dtype = self.defs.get(value), value.type.dtype
        if dtype.kind not in ("int", "uint") or value in self.registers.streamed:
            return None
        found = self.changed(op, register) if op is not None else None
        if found is not None:
            return found
        low, high = self.registers.facts.range(value) or (-1 << 63, 1 << 63)
        if dtype.bits > 8 and low >= 0 and high < 1024:
            return IntegerField(value, register, 0, (1 << high.bit_length()) - 1)
        if dtype.bits > 8 and low >= -512 and high < 512:
            return IntegerField(value, register, 0, 1023, signed=True)
        return IntegerField(value, register, 0, (1 << dtype.bits) - 1, signed=dtype.kind == "int")

    def changed(self, op: Op, register: int) -> IntegerField | None:
        """The result of a mask, shift, cast, sum or difference as bits of its operand; None for any other op."""
        if op.name not in ("and", "shr", "cast", "add", "sub") or op.args[0].type.dtype.kind not in ("int", "uint"):
            return None
        number = 0 if op.name == "cast" else self.number(op.args[1], register)
        if number is None or (number < 0 and op.name in ("and", "shr")):
            return None
        field = self.field(op.args[0], register)
        if field is None:
            return None
        match op.name:
            case "and" if field.plain and (not field.signed or number <= field.mask):
                return field._replace(mask=field.mask & number, signed=False)
            case "shr" if field.plain and field.mask >> number:
                return field._replace(shift=field.shift + number, mask=field.mask >> number)
            case "cast" | "add" | "sub":
                field = field.closed()
                field = field._replace(minus=field.minus + (number if op.name == "sub" else -number))
                dtype = op.result.type.dtype
                fits = dtype.get_int_min_value() <= field.range[0] and field.range[1] <= dtype.get_int_max_value()
                return field if fits else None
        return None

    def floats(self, value: Value, low: IntegerField, high: IntegerField) -> str | None:
        """Two integers as a vector of floats."""
        form, dtype = FORMATS[value.type.dtype], value.type.dtype
        places = [self.place(x.closed(), form) for x in (low, high)]
        if places[0] is None or places[1] is None:
            return self.signed_bytes(value, low.closed(), high.closed())
        (a, byte_a, bit_a), (b, byte_b, bit_b) = places[0], places[1]
        fields = (low.closed(), bit_a), (high.closed(), bit_b)
        mask, code = 0, 0
        factors: list[Any] = []
        terms: list[str] = []
        for i, (x, bit) in enumerate(fields):
            mask |= (x.mask << bit) << 16 * i
            code |= (form.code ^ x.flip << bit) << 16 * i
            factors.append(np.array(2.0**-bit, dtype.numpy).view(np.uint16))
            terms.append(f"{llvm_type(dtype)} {constant(-form.base * 2.0**-bit - x.minus, dtype)}")
        word = a if a == b and (byte_a, byte_b) == (0, 2) else self.two_bytes(a, b, byte_a, byte_b)
        masked = self.text.emit(f"and i32 {word}, {self.opaque(mask)}")
        vector = self.vector(value)
        bits = self.text.emit(f"bitcast i32 {self.text.emit(f'xor i32 {masked}, {code}')} to {vector}")
        if not bit_a and not bit_b:
            return self.text.emit(f"fadd {vector} {bits}, <{', '.join(terms)}>")
        suffix = {"half": "v2f16", "bfloat": "v2bf16"}[llvm_type(dtype)]
        factor = self.opaque(int(factors[0]) | int(factors[1]) << 16)
        operands = (vector, self.text.emit(f"bitcast i32 {factor} to {vector}")), (vector, f"<{', '.join(terms)}>")
        return self.text.call(vector, f"llvm.fma.{suffix}", (vector, bits), *operands)

    def signed_bytes(self, value: Value, low: IntegerField, high: IntegerField) -> str | None:
        """Two signed bytes as bf16, which has room for seven bits: 128 plus the lower seven bits, minus 128 or 256 by the sign.

        With the code of 128, the sign is the last bit of the exponent: it makes 256. So both terms are bits of the same word.
        """
        form = FORMATS[t.bfloat16]
        if value.type.dtype != t.bfloat16 or any((x.mask, x.minus) != (255, 128) for x in (low, high)):
            return None
        places = [self.place(x, FORMATS[t.float16]) for x in (low, high)]
        if places[0] is None or places[1] is None or places[0][2] or places[1][2]:
            return None
        (a, byte_a, _), (b, byte_b, _) = places[0], places[1]
        word = a if a == b and (byte_a, byte_b) == (0, 2) else self.two_bytes(a, b, byte_a, byte_b)
        vector, terms = self.vector(value), []
        for mask, given in ((0x7F, 0), (0x80, 0x80)):  # a sign that is not flipped is the flipped one's complement
            flips = [(x.flip ^ given) & mask for x in (low, high)]
            code = form.code << 16 | form.code | flips[1] << 16 | flips[0]
            masked = self.text.emit(f"and i32 {word}, {self.opaque(mask << 16 | mask)}")
            terms.append(self.text.emit(f"bitcast i32 {self.text.emit(f'xor i32 {masked}, {code}')} to {vector}"))
        return self.text.emit(f"fsub {vector} {terms[0]}, {terms[1]}")

    def opaque(self, number: int) -> str:
        """A number that the kernel loads from constant memory when it begins. An instruction has room for one constant, and the second one
        needs a register. If ptxas knows the number, it writes it into a register for each instruction."""
        name = f"@blocknb.bits{number}"
        self.text.declared[f"{name} = internal addrspace(4) externally_initialized constant i32 {number}, align 4"] = (
            None
        )
        load = f"load i32, ptr addrspace(4) {name}, align 4"
        return self.text.once(("bits", number), lambda: self.text.emit(load))

    def two_bytes(self, a: str, b: str, byte_a: int, byte_b: int) -> str:
        """A word with two bytes of one word and two of another one, from these bytes on."""
        second = (byte_b, min(byte_b + 1, 3))
        if a != b:
            second = second[0] + 4, second[1] + 4
        selector = byte_a | min(byte_a + 1, 3) << 4 | second[0] << 8 | second[1] << 12
        return self.text.call("i32", "llvm.nvvm.prmt", ("i32", a), ("i32", b), ("i32", str(selector)))

    def place(self, field: IntegerField, form: HalfFormat) -> tuple[str, int, int] | None:
        """The word of 32 bits that holds a field, its byte in there, and its first bit in this byte; None if the float has no room."""
        registers, value = self.registers, field.source
        byte, bit = divmod(field.shift, 8)
        length = field.mask.bit_length()
        if length > form.bits or value in registers.refetched:
            return None
        bits = value.type.dtype.bits
        if bits > 32:
            return None
        words = registers.words.get(value, {})
        held, name = next(((r, n) for r, n in words.items() if field.register in r), ((), ""))
        if not held:
            name, held = registers.reg(value, field.register), (field.register,)
        width = bits * len(held)
        if width > 32:
            return None
        if width < 32:
            name = self.text.emit(f"zext i{width} {name} to i32")
        if bit + length > form.bits:
            name, bit = self.text.emit(f"lshr i32 {name}, {bit}"), 0
        return name, held.index(field.register) * bits // 8 + byte, bit
