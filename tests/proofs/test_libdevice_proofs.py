"""libdevice's functions of integers are proved against their definitions, for all operands of 32 and 64 bits.

The IR of a kernel that calls the function is compared with a definition in terms of the solver. The definitions do not share formulas with
the functions: a count adds the bits one by one, an average is computed with one bit more.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("z3")

import smt
import z3
from frontend_helpers import ir, kernel

import blocknb.language as bl
from blocknb.language import libdevice

Term = Any


@kernel
def one(x, out, F: bl.constexpr):
    bl.store(out, F(x))


@kernel
def two(x, y, out, F: bl.constexpr):
    bl.store(out, F(x, y))


@kernel
def three(x, y, z, out, F: bl.constexpr):
    bl.store(out, F(x, y, z))


def stored(name: str, types: str, result: str) -> tuple[Term, list[Term]]:
    """The term that a call of a function stores, and its operands."""
    names, function = types.split(), getattr(libdevice, name)
    made = {1: one, 2: two, 3: three}[len(names)]
    func = ir(made, **dict(zip("xyz", names, strict=False)), out=f"*{result}", F=function)
    translation = smt.Translator().translate(func)
    ((_, value, _),) = translation.stores
    return value[()], [translation.terms[p][()] for p in func.params[:-1]]


def bit(x: Term, i: int) -> Term:
    return z3.Extract(i, i, x)


def count(x: Term) -> Term:
    total = z3.BitVecVal(0, 32)
    for i in range(x.size()):
        total = total + z3.ZeroExt(31, bit(x, i))
    return total


def leading(x: Term) -> Term:
    found = z3.BitVecVal(x.size(), 32)
    for i in range(x.size()):
        found = z3.If(bit(x, i) == 1, z3.BitVecVal(x.size() - 1 - i, 32), found)
    return found


def first_set(x: Term) -> Term:
    found = z3.BitVecVal(0, 32)
    for i in reversed(range(x.size())):
        found = z3.If(bit(x, i) == 1, z3.BitVecVal(i + 1, 32), found)
    return found


def reversed_bits(x: Term) -> Term:
    return z3.Concat(*(bit(x, i) for i in range(x.size())))


def average(x: Term, y: Term, signed: bool, up: bool) -> Term:
    bits = x.size()
    total = smt.resized(x, bits + 2, signed) + smt.resized(y, bits + 2, signed) + int(up)
    return z3.Extract(bits, 1, total)


def permuted(x: Term, y: Term, s: Term) -> Term:
    """PTX ISA, prmt: each nibble of s selects a byte, or repeats its sign."""
    parts = []
    for i in range(4):
        nibble = z3.Extract(4 * i + 3, 4 * i, s)
        byte = z3.BitVecVal(0, 8)
        for j in range(8):
            source = x if j < 4 else y
            byte = z3.If(z3.Extract(2, 0, nibble) == j, z3.Extract(8 * (j % 4) + 7, 8 * (j % 4), source), byte)
        sign = z3.If(byte < 0, z3.BitVecVal(255, 8), z3.BitVecVal(0, 8))
        parts.append(z3.If(bit(nibble, 3) == 1, sign, byte))
    return z3.Concat(*reversed(parts))


def low24(x: Term, signed: bool) -> Term:
    return smt.resized(z3.Extract(23, 0, x), 32, signed)


def distance(x: Term, y: Term, z: Term, signed: bool) -> Term:
    less = x < y if signed else z3.ULT(x, y)
    return z3.If(less, y - x, x - y) + z


DEFINITIONS = {
    ("popc", "i32", "i32"): count,
    ("popc", "u32", "i32"): count,
    ("clz", "i32", "i32"): leading,
    ("clz", "i64", "i32"): leading,
    ("ffs", "i32", "i32"): first_set,
    ("ffs", "i64", "i32"): first_set,
    ("brev", "i32", "i32"): reversed_bits,
    ("brev", "i64", "i64"): reversed_bits,
    ("byte_perm", "i32 i32 i32", "i32"): permuted,
    ("mul24", "i32 i32", "i32"): lambda x, y: low24(x, True) * low24(y, True),
    ("mul24", "u32 u32", "u32"): lambda x, y: low24(x, False) * low24(y, False),
    ("sad", "i32 i32 u32", "i32"): lambda x, y, z: distance(x, y, z, True),
    ("sad", "u32 u32 u32", "u32"): lambda x, y, z: distance(x, y, z, False),
    ("hadd", "i32 i32", "i32"): lambda x, y: average(x, y, True, False),
    ("hadd", "u32 u32", "u32"): lambda x, y: average(x, y, False, False),
    ("rhadd", "i32 i32", "i32"): lambda x, y: average(x, y, True, True),
    ("rhadd", "u32 u32", "u32"): lambda x, y: average(x, y, False, True),
}


@pytest.mark.parametrize("case", DEFINITIONS, ids="-".join)
def test_functions_of_integers_agree_with_their_definitions(case):
    found, operands = stored(*case)
    assert smt.counterexample(found == DEFINITIONS[case](*operands)) is None


@pytest.mark.full
def test_the_count_of_64_bits_agrees_with_its_definition():
    found, (x,) = stored("popc", "i64", "i32")
    assert smt.counterexample(found == count(x)) is None


@pytest.mark.parametrize(("kind", "bits"), [("i32", 32), ("u32", 32)])
def test_mulhi_is_the_upper_half_of_the_product(kind, bits):
    """In integers: the functions correct an unsigned product by the operands where a factor is negative, modulo 2^32."""
    found, (x, y) = stored("mulhi", f"{kind} {kind}", kind)
    signed = kind == "i32"
    product = z3.BitVec("product", 2 * bits)  # of the operands as unsigned numbers
    unsigned = smt.resized(x, 2 * bits, False) * smt.resized(y, 2 * bits, False)
    found = z3.substitute(found, (unsigned, product))
    assert "product" in str(found), "the function multiplies in another way"
    # x * y as signed numbers is the unsigned product less 2^32 y where x < 0, and less 2^32 x where y < 0.
    correction = z3.If(x < 0, y, 0) + z3.If(y < 0, x, 0) if signed else z3.BitVecVal(0, bits)
    assert smt.counterexample(found == z3.Extract(2 * bits - 1, bits, product) - correction) is None


def test_halves_of_doubles_are_their_bits():
    (high, (x,)), (low, (y,)) = stored("double2hiint", "f64", "i32"), stored("double2loint", "f64", "i32")
    whole = z3.Concat(high, z3.substitute(low, (y, x)))
    number = z3.Not(z3.fpIsNaN(x))
    assert smt.counterexample(z3.fpBVToFP(whole, x.sort()) == x, [number]) is None
    joined, (upper, lower) = stored("hiloint2double", "i32 i32", "f64")
    assert smt.counterexample(joined == z3.fpBVToFP(z3.Concat(upper, lower), joined.sort())) is None
