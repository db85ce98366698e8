"""Translates straight-line LLVM text of scalars into terms of the solver, with its poison and undefined behaviour.

The formulas of `codegen.scalar_math` and of the two code generators are text, so the proofs read that text. A value is a term and the
condition under which it is poison. A float also has its bits where it came from bits, because NaNs lose them. Inline PTX is translated for
the instructions whose meaning the PTX ISA defines for all operands: shifts and conversions. Source: LLVM Language Reference.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import z3
from smt import FLOATS, ROUND, Term, Untranslated, extremum, quotient, remainder, resized, saturated, times

SORTS = {"half": FLOATS["fp16"], "bfloat": FLOATS["bf16"], "float": FLOATS["fp32"], "double": FLOATS["fp64"]}
BINARY = {"add", "sub", "mul", "and", "or", "xor", "shl", "lshr", "ashr", "sdiv", "udiv", "srem", "urem"}
FLOAT_BINARY = {"fadd": z3.fpAdd, "fsub": z3.fpSub, "fmul": z3.fpMul, "fdiv": z3.fpDiv}
ORDERED = {"eq": z3.fpEQ, "lt": z3.fpLT, "le": z3.fpLEQ, "gt": z3.fpGT, "ge": z3.fpGEQ}
FLAGS = {"contract", "nsw", "nuw", "exact", "nnan", "reassoc"}
SIGNED = {"slt": "lt", "sle": "le", "sgt": "gt", "sge": "ge"}
LINE = re.compile(r"\s*(%[\w.]+) = (.*)")
CALL = re.compile(r"(?:tail )?call (\S+) @([\w.]+)\((.*)\)")
ASM = re.compile(r'call (\S+) asm "([^"]*)", "[^"]*"\((.*)\)')


@dataclass(frozen=True)
class Register:
    """A value of LLVM: its term, when it is poison, and a float's bits if they are known."""

    term: Term
    poison: Term
    bits: Term | None = None


def of(term: Term, *operands: Register, bits: Term | None = None) -> Register:
    """A result that is poison if an operand is."""
    return Register(term, z3.Or(*(x.poison for x in operands)) if operands else z3.BoolVal(False), bits)


def unknown(name: str, type: str) -> Register:
    """An operand of any bits."""
    if type in SORTS:
        bits = z3.BitVec(name, sum(SORTS[type]))
        return of(z3.fpBVToFP(bits, z3.FPSort(*SORTS[type])), bits=bits)
    return of(z3.BitVec(name, int(type[1:])))


class LlvmTranslator:
    """Registers of one function by name. `undefined` collects the conditions of undefined behaviour, `equations` what new unknowns obey."""

    def __init__(self, helpers: dict[str, str] | None = None):
        self.helpers = helpers or {}
        self.undefined: list[Term] = []
        self.equations: list[Term] = []
        self.count = 0

    def run(self, lines: Sequence[str], registers: dict[str, Register]) -> dict[str, Register]:
        """The registers after the lines, which have no branches."""
        registers = dict(registers)
        for line in lines:
            if match := LINE.fullmatch(line.rstrip()):
                registers[match[1]] = self.instruction(match[2], registers)
            elif line.strip() and not line.strip().endswith(":"):
                raise Untranslated(line)
        return registers

    def operand(self, text: str, type: str, registers: dict[str, Register]) -> Register:
        text = text.strip()
        if text.startswith("%"):
            return registers[text]
        if type in SORTS:
            return of(self.number(text, type))
        words = {"true": 1, "false": 0, "zeroinitializer": 0}
        return of(z3.BitVecVal(words[text] if text in words else int(text), int(type[1:])))

    def number(self, text: str, type: str) -> Term:
        """A float literal: decimal, or the bits of a double in hexadecimal."""
        sort = z3.FPSort(*SORTS[type])
        if text == "zeroinitializer":
            return z3.fpZero(sort, False)
        if text[:3] in ("0xH", "0xR"):
            return z3.simplify(z3.fpBVToFP(z3.BitVecVal(int(text[3:], 16), 16), sort))
        value = struct.unpack("<d", struct.pack("<Q", int(text, 16)))[0] if text.startswith("0x") else float(text)
        if value != value:
            return z3.fpNaN(sort)
        if value in (float("inf"), float("-inf")):
            return z3.fpInfinity(sort, value < 0)
        return z3.FPVal(value, sort)

    def bits(self, x: Register, type: str) -> Term:
        """A float's bits. A NaN made by arithmetic has any bits of a NaN."""
        if x.bits is not None:
            return x.bits
        self.count += 1
        found = z3.BitVec(f"bits{self.count}", sum(SORTS[type]))
        self.equations.append(z3.fpBVToFP(found, z3.FPSort(*SORTS[type])) == x.term)
        return found

    # -- instructions

    def instruction(self, text: str, registers: dict[str, Register]) -> Register:
        text = re.sub(r", !dbg !\d+", "", text)
        if match := ASM.match(text):
            return self.assembly(match[1], match[2], self.listed(match[3], registers))
        if match := CALL.match(text):
            return self.call(match[1], match[2], self.listed(match[3], registers))
        name, *words = text.split()
        words = [w for w in words if w not in FLAGS]
        if name == "select":
            condition, a, b = self.listed(text.removeprefix("select "), registers)
            chosen = condition.term == 1
            known = a.bits is not None and b.bits is not None
            poison = z3.Or(condition.poison, z3.If(chosen, a.poison, b.poison))
            return Register(z3.If(chosen, a.term, b.term), poison, z3.If(chosen, a.bits, b.bits) if known else None)
        if " to " in text:
            source, value, _, target = words
            return self.conversion(name, self.operand(value, source, registers), source, target)
        if name in ("icmp", "fcmp"):
            predicate, type, *rest = words
            a, b = (self.operand(x, type, registers) for x in " ".join(rest).split(","))
            compare = _integers if name == "icmp" else _floats
            return of(z3.If(compare(predicate, a.term, b.term), z3.BitVecVal(1, 1), z3.BitVecVal(0, 1)), a, b)
        type, *rest = words
        found = [self.operand(x, type, registers) for x in " ".join(rest).split(",")]
        if name == "fneg":
            flipped = self.bits(found[0], type) ^ z3.BitVecVal(1 << sum(SORTS[type]) - 1, sum(SORTS[type]))
            return of(z3.fpNeg(found[0].term), found[0], bits=flipped)
        if name in FLOAT_BINARY:
            return of(FLOAT_BINARY[name](ROUND, found[0].term, found[1].term), *found)
        if name in BINARY:
            return self.binary(name, *found)
        raise Untranslated(text)

    def listed(self, text: str, registers: dict[str, Register]) -> list[Register]:
        """Operands with their types."""
        pairs = (x.strip().rsplit(" ", 1) for x in text.split(","))
        return [self.operand(value, type.split()[0], registers) for type, value in pairs]

    def binary(self, name: str, a: Register, b: Register) -> Register:
        x, y, size = a.term, b.term, a.term.size()
        if name in ("shl", "lshr", "ashr"):
            made = {"shl": x << y, "lshr": z3.LShR(x, y), "ashr": x >> y}[name]
            return Register(made, z3.Or(a.poison, b.poison, z3.UGE(y, size)))
        if name.endswith(("div", "rem")):
            self.undefined += [y == 0, b.poison]
            if name[0] == "s":
                self.undefined.append(z3.And(x == 1 << size - 1, y == -1))
            made = quotient if name.endswith("div") else remainder
            return of(made(x, y, name[0] == "s"), a, b)
        return of({"add": x + y, "sub": x - y, "mul": times(x, y), "and": x & y, "or": x | y, "xor": x ^ y}[name], a, b)

    def conversion(self, name: str, x: Register, source: str, target: str) -> Register:
        sort = z3.FPSort(*SORTS[target]) if target in SORTS else None
        match name:
            case "zext" | "sext" | "trunc":
                return of(resized(x.term, int(target[1:]), name == "sext"), x)
            case "bitcast" if sort is None:
                return of(self.bits(x, source) if source in SORTS else x.term, x)
            case "bitcast":
                bits = self.bits(x, source) if source in SORTS else x.term
                return of(z3.fpBVToFP(bits, sort), x, bits=bits)
            case "fpext" | "fptrunc":
                return of(z3.fpFPToFP(ROUND, x.term, sort), x)
            case "sitofp" | "uitofp":
                return of((z3.fpSignedToFP if name[0] == "s" else z3.fpUnsignedToFP)(ROUND, x.term, sort), x)
        raise Untranslated(name)

    def call(self, type: str, name: str, args: list[Register]) -> Register:
        x, y = args[0].term, args[-1].term
        root, *rest = name.removeprefix("llvm.").split(".")
        if name in self.helpers:
            return self.helper(name, args)
        match root:
            case "umin" | "umax" | "smin" | "smax":
                less = z3.ULT(x, y) if root[0] == "u" else x < y
                return of(z3.If(less, x, y) if root.endswith("min") else z3.If(less, y, x), *args)
            case "abs":
                return of(z3.If(x < 0, -x, x), args[0])
            case "fabs":
                size = sum(SORTS[type])
                return of(z3.fpAbs(x), args[0], bits=self.bits(args[0], type) & z3.BitVecVal((1 << size - 1) - 1, size))
            case "fptosi" | "fptoui":
                return of(saturated(x, int(type[1:]), root == "fptosi"), args[0])
            case "maximumnum" | "minimumnum":
                return of(extremum(root == "maximumnum", False, x, y), *args)
            case "maximum" | "minimum":
                return of(extremum(root == "maximum", True, x, y), *args)
            case "nvvm" if (
                rest[-1] == "rz"
            ):  # PTX ISA, cvt: saturates; NaN gives 0, or 2^(bits - 1) of fp64 or to 64 bits
                return self.converted(args[0], int(type[1:]), "u" not in rest[0], rest[0][0] == "d" or type == "i64")
        raise Untranslated(name)

    def helper(self, name: str, args: list[Register]) -> Register:
        """A call of a function whose definition the code has written."""
        head, *lines = [line for line in self.helpers[name].splitlines() if line.strip()]
        names = re.findall(r"%[\w.]+", head.split("(", 1)[1])
        ending = next(line for line in lines if line.strip().startswith("ret "))
        body = [line for line in lines[: lines.index(ending)] if line.strip() != "entry:"]
        inner = self.run(body, dict(zip(names, args, strict=True)))
        _, type, value = ending.split()
        return self.operand(value, type, inner)

    def assembly(self, type: str, text: str, args: list[Register]) -> Register:
        """An instruction of PTX."""
        name, *modifiers = text.split()[0].split(".")
        x = args[0].term
        match name, modifiers:
            case (("shl" | "shr"), _):  # PTX ISA, shl and shr: counts beyond the width are clamped to it
                count, bits = resized(args[1].term, x.size(), False), x.size()
                if name == "shl":
                    return of(x << count, *args)
                assert bits >= 32
                return of(x >> count if modifiers[0][0] == "s" else z3.LShR(x, count), *args)
            case "cvt", ["rzi", target, source]:
                bits = int(target[1:])
                made = self.converted(args[0], bits, target[0] == "s", source == "f64" or bits == 64)
                return of(resized(made.term, int(type[1:]), target[0] == "s"), made)
        raise Untranslated(text)

    def converted(self, x: Register, bits: int, signed: bool, marked: bool) -> Register:
        """PTX's conversion of a float to an integer."""
        nan = z3.BitVecVal(1 << bits - 1 if marked else 0, bits)
        return of(z3.If(z3.fpIsNaN(x.term), nan, saturated(x.term, bits, signed)), x)


def _integers(predicate: str, a: Term, b: Term) -> Term:
    if predicate in SIGNED:
        return {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[SIGNED[predicate]]
    unsigned = {"ult": z3.ULT, "ule": z3.ULE, "ugt": z3.UGT, "uge": z3.UGE}
    return unsigned[predicate](a, b) if predicate in unsigned else (a == b if predicate == "eq" else a != b)


def _floats(predicate: str, a: Term, b: Term) -> Term:
    unordered = z3.Or(z3.fpIsNaN(a), z3.fpIsNaN(b))
    if predicate in ("uno", "ord"):
        return unordered if predicate == "uno" else z3.Not(unordered)
    kind, relation = predicate[0], predicate[1:]
    plain = z3.And(z3.Not(unordered), z3.Not(z3.fpEQ(a, b))) if relation == "ne" else ORDERED[relation](a, b)
    return z3.Or(unordered, plain) if kind == "u" else plain
