"""Functions of integers within promised bounds, and what the range analysis says about them as claims for the solver.

`claims` asks the analysis about every value of a function. The answers are its bounds, the truth of a comparison, and its linear form. If
that form is exact, it agrees with the value modulo the width. Each answer becomes a term that must hold for all operands within the
promised bounds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import smt
import z3
from peephole_terms import BINARY, INTEGERS

from blocknb.analysis import affine, ranges
from blocknb.analysis.linear_forms import DIM, VALUE, Form
from blocknb.ir.build import Builder
from blocknb.ir.core import Block, Func, Hint, Value
from blocknb.language import types as t
from blocknb.language.ops import PREDICATES, TypeRule
from blocknb.language.types import Tile

Bounds = tuple[int | None, int | None]
#: Promised bounds: none, one-sided, of each sign, across zero, a single number, and close to the ends of 8 bits.
SIGNED: tuple[Bounds, ...] = (
    (None, None),
    (0, None),
    (0, 10),
    (-5, 7),
    (1, 100),
    (-128, -1),
    (5, 5),
    (100, 127),
    (-3, 0),
)
UNSIGNED: tuple[Bounds, ...] = ((None, None), (0, 10), (1, 100), (200, 255), (7, 7), (128, None))
Emit = Callable[[Builder, Sequence[Value]], Value]
Named = tuple[str, Func]


def promised(dtype: Any) -> tuple[Bounds, ...]:
    return SIGNED if dtype.kind == "int" else UNSIGNED


def function(params: Sequence[tuple[Any, Bounds]], emit: Emit) -> Func | None:
    """A function whose parameters have these dtypes and bounds; None if the op table refuses it."""
    values = tuple(Value(Tile(dtype), f"x{i}") for i, (dtype, _) in enumerate(params))
    b = Builder("test")
    try:
        emit(b, values)
    except TypeRule:
        return None
    hints = tuple(Hint(v.name, 1, *bounds) for v, (_, bounds) in zip(values, params, strict=True))
    return Func("f", values, Block((), b.finish()), hints=hints)


def of_two(dtype: Any) -> Iterator[Named]:
    """Each op of two operands, and each comparison, for each pair of promised bounds."""
    for name, one, two in product((*BINARY, *PREDICATES), promised(dtype), promised(dtype)):
        op, attrs = ("cmp", {"pred": name}) if name in PREDICATES else (name, {})
        made = function([(dtype, one), (dtype, two)], lambda b, x: b.value(op, *x, **attrs))
        if made is not None:
            yield f"{name} {dtype} {one} {two}", made


def of_constant(dtype: Any) -> Iterator[Named]:
    """Each op with a constant operand, for each promised bound."""
    bits = dtype.bits
    numbers = [0, 1, 2, 3, 7, 8, bits - 1, bits, (1 << bits - 2), *([-1, -2, -8] if dtype.kind == "int" else [])]
    for name, bounds, c in product((*BINARY, *PREDICATES), promised(dtype), dict.fromkeys(numbers)):
        op, attrs = ("cmp", {"pred": name}) if name in PREDICATES else (name, {})
        made = function([(dtype, bounds)], lambda b, x: b.value(op, x[0], b.const(c, dtype), **attrs))
        if made is not None:
            yield f"{name} {dtype} {bounds} {c}", made


def of_one(dtype: Any) -> Iterator[Named]:
    """Unary ops, casts, and selects."""
    for bounds in promised(dtype):
        for name in ("neg", "not", "abs"):
            made = function([(dtype, bounds)], lambda b, x: b.value(name, x[0]))
            if made is not None:
                yield f"{name} {dtype} {bounds}", made
        for target in (*INTEGERS, t.int1):
            made = function([(dtype, bounds)], lambda b, x: b.value("cast", x[0], dtype=target))
            if made is not None:
                yield f"cast {dtype} {target} {bounds}", made
        for other in promised(dtype):
            made = function(
                [(t.int1, (None, None)), (dtype, bounds), (dtype, other)], lambda b, x: b.value("select", *x)
            )
            if made is not None:
                yield f"select {dtype} {bounds} {other}", made


def chains(seed: int, count: int, dtypes: Sequence[Any] = (t.int32, t.uint8, t.int8, t.int64)) -> Iterator[Named]:
    """Random chains of five ops, casts, tiles and comparisons over a parameter with promised bounds, a program id and an arange."""
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        dtype = draw.choice(dtypes)
        bounds = draw.choice(promised(dtype))
        made = function([(dtype, bounds)], lambda b, x: _chain(draw, b, x[0]))
        if made is not None:
            yield f"chain {seed} {number} {dtype} {bounds}", made


def _chain(draw: random.Random, b: Builder, x: Value) -> Value:
    values = [x, b.value("program_id", axis=0), b.value("arange", start=draw.choice((0, 2)), end=draw.choice((4, 6)))]
    if values[-1].type.shape[0] not in (2, 4):
        values.pop()
    for _ in range(5):
        value = draw.choice(values[-3:])
        kind = value.type.dtype
        low, high = ranges.limits(kind)
        constant = b.const(min(max(draw.choice((0, 1, 2, 3, 4, 5, 8, 16, 64, 100, -1, -4)), low), high), value.type)
        same = [v for v in values if v.type == value.type]
        other = constant if draw.random() < 0.7 else draw.choice(same)
        match draw.randrange(8):
            case 0:
                made = b.value("cast", value, dtype=draw.choice((t.int8, t.uint8, t.int16, t.int32, t.uint32, t.int64)))
            case 1 if not value.type.shape:
                made = b.value("splat", value, shape=(4,))
            case 2:
                known = b.value("cmp", value, other, pred=draw.choice(PREDICATES))
                made = b.value("select", known, value, draw.choice([constant, *same]))
            case 3 if not value.type.shape:  # the same sum, narrow and wide
                wide = t.int64 if smt.is_signed(kind) else t.uint64
                narrow = b.value("cast", b.value("add", value, constant), dtype=wide)
                sums = [narrow, b.value("add", *(b.value("cast", x, dtype=wide) for x in (value, constant)))]
                known = b.value("cmp", value, other, pred=draw.choice(PREDICATES))
                made = b.value("select", known, *sums)
            case _:
                made = b.value(
                    draw.choice(("add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr")),
                    value,
                    other,
                )
        values.append(made)
    value = values[-1]
    return b.value("cmp", value, b.const(draw.choice((0, 1, 4, 100)), value.type), pred=draw.choice(PREDICATES))


def claims(func: Func) -> tuple[list[tuple[str, Any]], list[Any]]:
    """The answers of the range analysis about every value, as claims with a text, and the assumptions."""
    facts, translation = affine.analyze(func), smt.Translator().translate(func)
    found: list[tuple[str, Any]] = []
    for value, terms in translation.terms.items():
        dtype = value.type.dtype
        if value.type.is_pointer or not dtype.is_integer:
            continue
        if dtype.kind == "bool":
            if (known := facts.truth(value)) is not None:
                found += [(f"{value} is {known}", smt.holds(x) == known) for x in terms.ravel()]
            continue
        low, high = ranges.bounds(facts, value)
        if (low, high) != ranges.limits(dtype):
            found += [(f"{value} in {low, high}", within(x, low, high, dtype)) for x in terms.ravel()]
        form = facts.form(value)
        if form is not None and form.exact:
            polynomial = evaluated(form, translation, value)
            if polynomial is not None:
                found += [(f"{value} = {form}", a == b) for a, b in zip(terms.ravel(), polynomial.ravel(), strict=True)]
    return found, translation.assumptions


def within(x: Any, low: int, high: int, dtype: Any) -> Any:
    """low <= x <= high, without wrap-around."""
    wide = smt.resized(x, 80, smt.is_signed(dtype))
    return z3.And(wide >= low, wide <= high)


def evaluated(form: Form, translation: smt.Translation, value: Value) -> np.ndarray | None:
    """A form modulo the width of a value, per element; None if it has symbols of loops."""
    shape, bits = value.type.shape, value.type.dtype.bits
    total = smt.full(shape, z3.BitVecVal(0, bits))
    for monomial, coefficient in form.terms.items():
        term = smt.full(shape, z3.BitVecVal(coefficient, bits))
        for symbol in monomial:
            if symbol.kind == DIM:
                factor = np.empty(shape, object)
                for index in np.ndindex(*shape):
                    factor[index] = z3.BitVecVal(index[symbol.number], bits)
            elif symbol.kind == VALUE:
                source, signed = translation.terms[symbol.value], smt.is_signed(symbol.value.type.dtype)
                factor = np.empty(shape, object)
                for index in np.ndindex(*shape):
                    at = tuple(0 if a < 0 else index[a] for a in symbol.axes)
                    factor[index] = smt.resized(source[at], bits, signed)
            else:
                return None
            term = smt.mapped(lambda a, b: a * b, term, factor)
        total = smt.mapped(lambda a, b: a + b, total, term)
    return total


def refutation(func: Func, limit: int = smt.LIMIT) -> tuple[str | None, int]:
    """The first wrong answer of the analysis with operands that show it (None: all are right), and the number of answers."""
    found, assumptions = claims(func)
    if not found:
        return None, 0
    if (shown := smt.counterexample(z3.And(*(claim for _, claim in found)), assumptions, limit)) is None:
        return None, len(found)
    wrong = [text for text, claim in found if smt.counterexample(claim, assumptions, limit) is not None]
    return f"{wrong[0]} is wrong: {shown}", len(found)
