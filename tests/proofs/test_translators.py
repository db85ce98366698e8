"""The translator of IR agrees with the op table: on extreme and random numbers each op gives the NumPy meaning of its row."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("z3")

import smt
import z3
from peephole_terms import FLOATS, INTEGERS, PREDICATES, binaries, constants

from blocknb.ir.build import Builder
from blocknb.ir.core import Op, Value
from blocknb.language import semantics
from blocknb.language import types as t
from blocknb.language.ops import OPS
from blocknb.language.types import Tile

SEEDED = {False: 12, True: 40}  # random operands per op and dtype, in a quick run and with --full


@pytest.fixture
def seeded(request: pytest.FixtureRequest) -> int:
    return SEEDED[request.config.getoption("--full")]


def agrees(op: Op, numbers: list[Any]) -> None:
    """Checks one op on numbers: the row of the op table, and the translator's term."""
    arrays = [semantics.constant(n, arg.type.dtype) for n, arg in zip(numbers, op.args, strict=True)]
    dtype = op.result.type.dtype
    assert OPS[op.name].numpy is not None
    expected = OPS[op.name].numpy(op.attrs, dtype, *arrays)
    number = float(expected) if dtype.is_float else int(expected)
    terms = [smt.literal(a[()], arg.type.dtype) for a, arg in zip(arrays, op.args, strict=True)]
    found = z3.simplify(smt.elementwise(op, terms))
    wanted = z3.simplify(smt.literal(number, dtype))
    assert z3.is_true(z3.simplify(found == wanted)), f"{op.name} {op.attrs} {numbers}: {found}, not {wanted}"


def operands(dtype: Any, count: int, draw: random.Random, seeded: int) -> list[list[Any]]:
    """Pairs of extreme numbers, and random ones."""
    some = constants(dtype)
    found = [[draw.choice(some) for _ in range(count)] for _ in range(seeded)]
    for _ in range(seeded):
        if dtype.is_float:
            exponent = draw.uniform(*{"fp16": (-26, 17)}.get(dtype.name, (-140, 130)))
            found.append([draw.uniform(-2, 2) * 2.0**exponent for _ in range(count)])
        elif dtype.kind != "bool":
            low = -(1 << dtype.bits - 1) if dtype.kind == "int" else 0
            found.append([draw.randrange(low, low + (1 << dtype.bits)) for _ in range(count)])
    return found


def made(name: str, dtypes: list[Any], **attrs: Any) -> Op:
    return Builder("test").op(name, *(Value(Tile(d)) for d in dtypes), **attrs)


@pytest.mark.parametrize("dtype", [t.int1, *INTEGERS, *FLOATS], ids=str)
def test_ops_of_two_operands_mean_what_the_op_table_says(dtype, seeded):
    draw = random.Random(str(dtype))
    for _, name, attrs in binaries(dtype):
        op = made(name, [dtype, dtype], **attrs)
        for numbers in operands(dtype, 2, draw, seeded):
            agrees(op, numbers)


@pytest.mark.parametrize("dtype", [t.int1, *INTEGERS, *FLOATS], ids=str)
def test_unary_ops_and_selects_mean_what_the_op_table_says(dtype, seeded):
    draw = random.Random(str(dtype))
    names = ["neg", "abs", *(("floor", "ceil", "sqrt") if dtype.is_float else ("not",))]
    for name in ["not"] if dtype.kind == "bool" else names:
        op = made(name, [dtype])
        for numbers in operands(dtype, 1, draw, seeded):
            agrees(op, numbers)
    op = made("select", [t.int1, dtype, dtype])
    for numbers in operands(dtype, 2, draw, seeded):
        agrees(op, [draw.random() < 0.5, *numbers])


@pytest.mark.parametrize("source", [t.int1, *INTEGERS, *FLOATS], ids=str)
def test_casts_mean_what_the_op_table_says(source, seeded):
    draw = random.Random(str(source))
    for target in (t.int1, *INTEGERS, *FLOATS):
        op = made("cast", [source], dtype=target)
        for numbers in operands(source, 1, draw, seeded):
            agrees(op, numbers)


def test_the_solver_finds_an_operand_for_which_two_terms_differ():
    x = z3.BitVec("x", 8)
    assert smt.counterexample(x + 1 > x) == "[x = 127]"
    assert smt.counterexample(x / 2 == x >> 1) is not None  # a quotient is truncated, a shift rounds down
    half, zero = z3.FP("h", z3.FPSort(5, 11)), z3.fpZero(z3.FPSort(5, 11), False)
    assert smt.counterexample(z3.fpAdd(smt.ROUND, half, zero) == half) is not None  # -0 + 0 is 0


def test_every_predicate_is_translated():
    for pred in PREDICATES:
        agrees(made("cmp", [t.int8, t.int8], pred=pred), [3, 3])
    assert np.signbit(float(semantics.constant(-0.0, t.float16)))
