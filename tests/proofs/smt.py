"""Translates IR into terms of the SMT solver z3, so that it proves two functions equal for all operands (translation validation).

The meaning of each op is that of the op table. Integers wrap, and quotients are truncated, and 0 for a divisor of zero. Shifts by the width
or more move every bit out. A tile is a NumPy array of terms, so shape ops are NumPy's. A load is an unknown per element; it keeps its
unknowns as long as it keeps its id. Floats are z3's IEEE numbers, which have one NaN. So equal means equal to the bit, except for a NaN's
payload. `test_translators.py` compares every op with the op table on extreme and random numbers. Source: Lopes et al., "Alive2: Bounded
Translation Validation for LLVM" (PLDI 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import z3

from blocknb.ir.core import Block, Func, Op, Value
from blocknb.language import semantics
from blocknb.language.ops import OPS
from blocknb.language.types import Pointer

Term = Any
ROUND, TRUNCATE = z3.RNE(), z3.RTZ()
LIMIT = 100_000_000  # of z3's resource counter, about 20 seconds: a busy machine does not change the answer
#: The bits of the exponent and of the significand, with the hidden one.
FLOATS = {"fp16": (5, 11), "bf16": (8, 8), "fp32": (8, 24), "fp64": (11, 53)}


class Untranslated(Exception):
    """The translator does not know an op or a dtype."""


def sort(dtype: Any) -> Any:
    """The sort of one element: bits for integers, bools and pointers, an IEEE number for floats."""
    if isinstance(dtype, Pointer):
        return z3.BitVecSort(64)
    if not dtype.is_float:
        return z3.BitVecSort(dtype.bits)
    if dtype.name not in FLOATS:
        raise Untranslated(f"dtype {dtype}")
    return z3.FPSort(*FLOATS[dtype.name])


def is_signed(dtype: Any) -> bool:
    return not isinstance(dtype, Pointer) and dtype.kind == "int"


def literal(value: Any, dtype: Any) -> Term:
    """A constant of the IR as a term."""
    kind = sort(dtype)
    if isinstance(dtype, Pointer) or not dtype.is_float:
        return z3.BitVecVal(int(value), kind.size())
    number = float(semantics.constant(value, dtype))
    if np.isnan(number):
        return z3.fpNaN(kind)
    if number == 0 or np.isinf(number):
        zero_or_infinity = z3.fpZero if number == 0 else z3.fpInfinity
        return zero_or_infinity(kind, bool(np.signbit(number)))
    return z3.FPVal(number, kind)


def bit(condition: Term) -> Term:
    """A truth value as a bool of the IR."""
    return z3.If(condition, z3.BitVecVal(1, 1), z3.BitVecVal(0, 1))


def holds(value: Term) -> Term:
    """A bool of the IR as a truth value."""
    return value == z3.BitVecVal(1, 1)


def resized(x: Term, bits: int, signed: bool) -> Term:
    """The bits that represent the same integer in another width, or its lowest bits."""
    if bits <= x.size():
        return x if bits == x.size() else z3.Extract(bits - 1, 0, x)
    return (z3.SignExt if signed else z3.ZeroExt)(bits - x.size(), x)


def saturated(x: Term, bits: int, signed: bool) -> Term:
    """A float truncated to an integer: the nearest one that the type has, 0 for NaN."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    least, beyond = (_power(n, x.sort()) for n in (low, high + 1))
    number = (z3.fpToSBV if signed else z3.fpToUBV)(TRUNCATE, x, z3.BitVecSort(bits))
    return z3.If(
        z3.fpIsNaN(x),
        z3.BitVecVal(0, bits),
        z3.If(
            z3.fpGEQ(x, beyond),
            z3.BitVecVal(high, bits),
            z3.If(z3.fpLEQ(z3.fpRoundToIntegral(TRUNCATE, x), least), z3.BitVecVal(low, bits), number),
        ),
    )


def _power(n: int, kind: Any) -> Term:
    """A power of two, or zero, as a float; infinity if the format ends below."""
    return z3.simplify(z3.fpToFP(ROUND, z3.RealVal(n), kind)) if n else z3.fpZero(kind, False)


def cast(x: Term, source: Any, target: Any) -> Term:
    """The op `cast`."""
    if source == target:
        return x
    if target.kind == "bool":
        return bit(z3.Not(z3.fpIsZero(x)) if source.is_float else x != 0)
    if source.is_float:
        if not target.is_float:
            return saturated(x, target.bits, target.kind == "int")
        return z3.fpFPToFP(ROUND, x, sort(target))
    if target.is_float:
        return (z3.fpSignedToFP if is_signed(source) else z3.fpUnsignedToFP)(ROUND, x, sort(target))
    return resized(x, target.bits, is_signed(source))


def compared(pred: str, a: Term, b: Term, dtype: Any) -> Term:
    """The op `cmp`, as a truth value."""
    if not isinstance(dtype, Pointer) and dtype.is_float:
        functions = {"lt": z3.fpLT, "le": z3.fpLEQ, "gt": z3.fpGT, "ge": z3.fpGEQ, "eq": z3.fpEQ}
        return z3.Not(z3.fpEQ(a, b)) if pred == "ne" else functions[pred](a, b)
    if pred in ("eq", "ne"):
        return a == b if pred == "eq" else a != b
    if is_signed(dtype):
        return {"lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[pred]
    return {"lt": z3.ULT, "le": z3.ULE, "gt": z3.UGT, "ge": z3.UGE}[pred](a, b)


@contextmanager
def opaque_quotients(least_bits: int) -> Iterator[None]:
    """Makes quotients and products of at least that width unknown functions, of which only the results for 1 and -1 are known.

    What holds for all such functions holds for division. Proofs about guards around a division need no more, and a solver cannot prove
    that two circuits of 64-bit dividers agree.
    """
    global _opaque
    _opaque = least_bits
    try:
        yield
    finally:
        _opaque = 1 << 30


_opaque = 1 << 30  # the least width of opaque quotients


def quotient(a: Term, b: Term, signed: bool) -> Term:
    """The truncated quotient by a divisor other than zero; that of the least number by -1 wraps."""
    if a.size() < _opaque:
        return a / b if signed else z3.UDiv(a, b)
    return _opaque_function(f"quotient {signed}", a, b, signed)


def times(a: Term, b: Term) -> Term:
    """The product, which wraps."""
    return a * b if a.size() < _opaque else _opaque_function("product", a, b, True)


def _opaque_function(name: str, a: Term, b: Term, signed: bool) -> Term:
    """An unknown function that is `a` for b = 1, and `-a` for b = -1."""
    result = z3.Function(f"{name} {a.size()}", a.sort(), a.sort(), a.sort())(a, b)
    return z3.If(b == 1, a, z3.If(b == -1, -a, result) if signed else result)


def remainder(a: Term, b: Term, signed: bool) -> Term:
    """The remainder of the truncated quotient."""
    if a.size() < _opaque:
        return z3.SRem(a, b) if signed else z3.URem(a, b)
    return a - times(quotient(a, b, signed), b)


def integer(op: Op, dtype: Any, args: Sequence[Term]) -> Term:
    """An op on integers or bools."""
    signed, bits = dtype.kind == "int", dtype.bits
    a, b = args[0], args[-1]
    zero = z3.BitVecVal(0, bits)
    match op.name:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return times(a, b)
        case "div":
            return z3.If(b == zero, zero, quotient(a, b, signed))
        case "rem":
            return z3.If(b == zero, zero, remainder(a, b, signed))
        case "min" | "max":
            first = compared("lt" if op.name == "min" else "gt", a, b, dtype)
            return z3.If(first, a, b)
        case "mulhi":
            wide = times(resized(a, 2 * bits, signed), resized(b, 2 * bits, signed))
            return z3.Extract(2 * bits - 1, bits, wide)
        case "and":
            return a & b
        case "or":
            return a | b
        case "xor":
            return a ^ b
        case "shl":
            return a << b
        case "shr":
            return a >> b if signed else z3.LShR(a, b)
        case "neg":
            return -a
        case "not":
            return ~a
        case "abs":
            return z3.If(a < zero, -a, a) if signed else a
    raise Untranslated(op.name)


def floating(op: Op, dtype: Any, args: Sequence[Term]) -> Term:
    """An op on floats, rounded once to the dtype. A transcendental function is an unknown function."""
    a, b = args[0], args[-1]
    match op.name:
        case "add":
            return z3.fpAdd(ROUND, a, b)
        case "sub":
            return z3.fpSub(ROUND, a, b)
        case "mul":
            return z3.fpMul(ROUND, a, b)
        case "div":
            return z3.fpDiv(ROUND, a, b)
        case "fma":
            return z3.fpFMA(ROUND, *args)
        case "neg":
            return z3.fpNeg(a)
        case "abs":
            return z3.fpAbs(a)
        case "floor":
            return z3.fpRoundToIntegral(z3.RTN(), a)
        case "ceil":
            return z3.fpRoundToIntegral(z3.RTP(), a)
        case "sqrt":
            return z3.fpSqrt(ROUND, a)
        case "min" | "max":
            return extremum(op.name == "max", bool(op.attrs.get("nan")), a, b)
        case "rem":
            raise Untranslated("rem of floats")  # z3's remainder is IEEE's, which rounds the quotient to nearest
    name = f"{op.name} {dtype} {sorted(op.attrs.items())}"
    return z3.Function(name, *(x.sort() for x in args), sort(dtype))(*args)


def extremum(largest: bool, nan: bool, a: Term, b: Term) -> Term:
    """IEEE 754-2019 maximumNumber and minimumNumber; with `nan`, maximum and minimum. -0 is below +0."""
    first = z3.fpGT(a, b) if largest else z3.fpLT(a, b)
    zeros = z3.And(z3.fpIsZero(a), z3.fpIsZero(b))
    of_zeros = z3.If(z3.fpIsNegative(b) if largest else z3.fpIsNegative(a), a, b)
    number = z3.If(zeros, of_zeros, z3.If(first, a, b))
    if nan:
        return z3.If(z3.fpIsNaN(a), a, z3.If(z3.fpIsNaN(b), b, number))
    return z3.If(z3.fpIsNaN(a), b, z3.If(z3.fpIsNaN(b), a, number))


def elementwise(op: Op, args: Sequence[Term]) -> Term:
    """An elementwise op on single elements."""
    dtype, target = op.args[0].type.dtype, op.result.type.dtype
    match op.name:
        case "cast":
            return cast(args[0], dtype, target)
        case "bitcast":
            if dtype == target:
                return args[0]
            raw = z3.fpToIEEEBV(args[0]) if not isinstance(dtype, Pointer) and dtype.is_float else args[0]
            is_float = not isinstance(target, Pointer) and target.is_float
            return z3.fpBVToFP(raw, sort(target)) if is_float else raw
        case "cmp":
            return bit(compared(op.attrs["pred"], args[0], args[1], dtype))
        case "select":
            return z3.If(holds(args[0]), args[1], args[2])
        case "promise":
            return args[0]
        case "ptradd":
            return moved(op, args)
    if isinstance(dtype, Pointer):
        raise Untranslated(f"{op.name} of pointers")
    return floating(op, dtype, args) if dtype.is_float else integer(op, dtype, args)


def moved(op: Op, args: Sequence[Term]) -> Term:
    """The op `ptradd`."""
    size, offset = op.result.type.dtype.element.bytes, op.args[1].type.dtype
    steps = resized(args[1], 128, is_signed(offset))
    distance = steps * size
    if op.attrs.get("saturate"):
        most = z3.BitVecVal(semantics.FARTHEST // size * size, 128)
        distance = z3.If(distance > most, most, z3.If(distance < -most, -most, distance))
    return args[0] + resized(distance, 64, True)


Tiles = np.ndarray  # of terms, with the shape of the tile


@dataclass
class Translation:
    """The terms of every value of a function, and its stores."""

    terms: dict[Value, Tiles] = field(default_factory=dict)
    stores: list[tuple[Tiles, Tiles, Tiles | None]] = field(default_factory=list)
    assumptions: list[Term] = field(default_factory=list)


class Translator:
    """Translates functions that share parameters and loads, so that their terms can be compared."""

    def __init__(self) -> None:
        self.unknowns: dict[Any, Tiles] = {}
        self.made: Translation = Translation()

    def translate(self, func: Func) -> Translation:
        """The terms of a function. The bounds and divisors that its parameters promise are assumptions."""
        self.made = Translation()
        for i, param in enumerate(func.params):
            self.made.terms[param] = self.unknown(("param", i), param)
            if func.hints:
                self.promised(func.hints[i], param)
        self.block(func.body)
        return self.made

    def promised(self, hint: Any, param: Value) -> None:
        term, dtype = self.made.terms[param][()], param.type.dtype
        if not z3.is_bv(term):
            return
        bits = term.size()
        for pred, bound in (("ge", hint.least), ("le", hint.most)):
            if bound is not None:
                self.made.assumptions.append(compared(pred, term, z3.BitVecVal(bound, bits), dtype))
        if hint.divisibility > 1:
            self.made.assumptions.append(z3.URem(term, z3.BitVecVal(hint.divisibility, bits)) == 0)

    def unknown(self, key: Any, value: Value) -> Tiles:
        """The unknowns for a value, the same for equal keys."""
        if key not in self.unknowns:
            made = np.empty(value.type.shape, object)
            for index in np.ndindex(*value.type.shape):
                made[index] = z3.Const(f"{key} {index}", sort(value.type.dtype))
            self.unknowns[key] = made
        return self.unknowns[key]

    def block(self, block: Block) -> list[Tiles]:
        """Translates the ops of a block; returns the operands of its terminator."""
        for op in block.ops:
            args = [self.made.terms[a] for a in op.args]
            if op.name == "yield":
                return args
            results = self.op(op, args)
            self.made.terms.update(zip(op.results, results, strict=True))
        return []

    def op(self, op: Op, args: list[Tiles]) -> Sequence[Tiles]:
        if OPS[op.name].kind == "elementwise":
            return [mapped(lambda *terms: elementwise(op, terms), *args)]
        shape = op.results[0].type.shape if op.results else ()
        match op.name:
            case "const":
                return [full(shape, literal(op.attrs["value"], op.result.type.dtype))]
            case "splat":
                return [full(shape, args[0][()])]
            case "broadcast":
                return [np.broadcast_to(args[0], shape)]
            case "reshape" | "expand_dims":
                return [args[0].reshape(shape)]
            case "trans":
                return [args[0].transpose(op.attrs["perm"])]
            case "arange":
                numbers = range(op.attrs["start"], op.attrs["end"])
                return [np.array([z3.BitVecVal(i, 32) for i in numbers], object)]
            case "program_id" | "num_programs":
                return [self.launch(op)]
            case "load" if len(args) == 1:
                return [self.unknown(("load", op.id), op.result)]
            case "store":
                self.made.stores.append((args[0], args[1], args[2] if len(args) > 2 else None))
                return []
            case "if":
                condition = holds(args[0][()])
                arms = [self.block(block) for block in op.blocks]
                return [mapped(lambda a, b: z3.If(condition, a, b), *pair) for pair in zip(*arms, strict=True)]
        raise Untranslated(op.name)

    def launch(self, op: Op) -> Tiles:
        """A program id or a number of programs, which a launch limits to 2^31 - 1."""
        term = self.unknown((op.name, op.attrs["axis"]), op.result)
        least = 0 if op.name == "program_id" else 1
        most = (1 << 31) - 2 + least
        self.made.assumptions.append(z3.And(term[()] >= least, term[()] <= most))
        return term


def full(shape: tuple[int, ...], term: Term) -> Tiles:
    made = np.empty(shape, object)
    made.fill(term)
    return made


def mapped(function: Callable[..., Term], *tiles: Tiles) -> Tiles:
    """A function of terms on each element of tiles of one shape."""
    made = np.empty(tiles[0].shape, object)
    for index in np.ndindex(*tiles[0].shape):
        made[index] = function(*(tile[index] for tile in tiles))
    return made


def pairs(before: Translation, after: Translation) -> Iterator[tuple[Term, Term]]:
    """The terms that must be equal: addresses, values and masks of the stores."""
    assert len(before.stores) == len(after.stores), "a store was added or removed"
    for one, other in zip(before.stores, after.stores, strict=True):
        for a, b in zip(one, other, strict=True):
            assert (a is None) == (b is None), "a mask was added or removed"
            if a is not None:
                yield from zip(a.ravel(), b.ravel(), strict=True)


def counterexample(claim: Term, assumptions: Sequence[Term] = (), limit: int = LIMIT) -> str | None:
    """None if the claim holds for all unknowns; else the numbers for which it does not. Raises TimeoutError if z3 gives up."""
    if z3.is_true(z3.simplify(claim)):
        return None
    solver = z3.Solver()
    solver.set("rlimit", limit)
    solver.add(*assumptions, z3.Not(claim))
    answer = solver.check()
    if answer == z3.unsat:
        return None
    if answer == z3.unknown:
        raise TimeoutError(f"z3 gave up: {solver.reason_unknown()}")
    return str(solver.model())


def difference(before: Func, after: Func, limit: int = LIMIT) -> str | None:
    """None if both functions store the same for all operands; else operands for which they do not."""
    translator = Translator()
    one, other = translator.translate(before), translator.translate(after)
    claims = [a == b for a, b in pairs(one, other)]
    return counterexample(z3.And(*claims), [*one.assumptions, *other.assumptions], limit)
