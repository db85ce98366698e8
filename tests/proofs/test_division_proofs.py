"""Divisions by invariants, positions in a grid, iteration counts and whole-tile remainders are proved for all 32-bit operands.

The proof takes the ops that the passes emit. Multiplications and divisions of two unknown words are equations of integers
(`smt_integers`). A lemma helps the solver with remainders: the estimated quotient is right or one less, which is proved first.
"""

from __future__ import annotations

import pytest

pytest.importorskip("z3")

import smt
import z3
from smt_integers import IntegerTranslator

from blocknb.analysis import affine
from blocknb.analysis.polynomials import iteration_count
from blocknb.ir.build import Builder
from blocknb.ir.core import Block, Func, Hint, Op, Value
from blocknb.language import types as t
from blocknb.language.types import Pointer, Tile
from blocknb.passes.support.division_by_invariant import InvariantDivisions, along_axes
from blocknb.passes.tile.simplify import rounds

WORD = Tile(t.int32)


def emitted(name: str, signed: bool) -> tuple[Op, tuple[Op, ...], Value]:
    """A division by a parameter, the ops that replace it, and their result."""
    d, b = Value(WORD, "d"), Builder("test")
    pid = b.value("program_id", axis=0)
    b.value(name, b.value("mul", pid, pid) if signed else pid, d)  # a product may have wrapped to a negative number
    func = Func("f", (d,), Block((), b.finish()))
    divisions = InvariantDivisions(func, affine.analyze(func))
    op, made = func.body.ops[-1], Builder("test", first_id=func.next_id)
    divisions.prepare(made)
    result = divisions.emit(made, lambda value: value, op)
    assert result is not None and bool(divisions.signed) == signed
    return op, made.finish(), result


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("name", ["div", "rem"])
def test_division_by_an_invariant_is_right_for_all_dividends_and_divisors(name, signed):
    op, ops, result = emitted(name, signed)
    (estimate,) = (each for each in ops if each.name == "mulhi")
    (product,) = (each for each in ops if each.name == "mul")
    word, size = estimate.args[0], product.args[1]
    q, r = z3.Ints("q r")  # the quotient and the remainder of the magnitudes

    # The lemma: the estimate is the quotient, or one less.
    full = translated(op, ops, signed, {})
    exact = [full.terms[word] == q * full.terms[size] + r, r >= 0, r < full.terms[size], q >= 0]
    high = full.terms[estimate.result]
    assert refuted(z3.And(high != q, high != q - 1), *full.equations, *exact)

    # With either estimate the ops give the quotient or the remainder. The reciprocal no longer matters.
    for number in (q, q - 1):
        rest = translated(op, ops, signed, {estimate.result: number, estimate.args[1]: z3.Int("reciprocal")})
        n, d = (rest.terms[value] for value in op.args)
        magnitudes = [
            rest.terms[word] == z3.If(n < 0, -n, n),
            rest.terms[size] == z3.If(d == 0, 1, z3.If(d < 0, -d, d)),
        ]
        for magnitude in magnitudes:
            assert refuted(z3.Not(magnitude), *rest.equations)
        exact = [rest.terms[word] == q * rest.terms[size] + r, r >= 0, r < rest.terms[size], q >= 0, number >= 0]
        truncated = z3.If(n < 0, -r, r) if name == "rem" else z3.If((n < 0) == (d < 0), q, -q)
        expected = rest.wrapped(z3.If(d == 0, 0, truncated), t.int32)
        assert refuted(rest.terms[result] != expected, *rest.equations, *magnitudes, *exact)


def translated(op: Op, ops: tuple[Op, ...], signed: bool, given: dict[Value, object]) -> IntegerTranslator:
    """The terms of the emitted ops; the values of `given` have these terms instead."""
    translator = IntegerTranslator(given)
    dividend = translator.free(op.args[0], "n")
    translator.free(op.args[1], "d")
    if not signed:
        translator.equations.append(dividend >= 0)
    for each in ops:
        translator.op(each)
    return translator


def refuted(claim: object, *equations: object) -> bool:
    """Whether no numbers satisfy the claim and the equations. Raises TimeoutError if the solver gives up."""
    solver = z3.Solver()
    solver.set("rlimit", 3 * smt.LIMIT)
    solver.add(*equations, claim)
    answer = solver.check()
    if answer == z3.unknown:
        raise TimeoutError(solver.reason_unknown())
    return answer == z3.unsat


@pytest.mark.parametrize("most", [1, 8, 1 << 30])
@pytest.mark.parametrize("name", ["div", "rem"])
def test_division_by_a_likely_power_of_two_is_right(name, most):
    m, b = Value(WORD, "m"), Builder("test")
    pid = b.value("program_id", axis=0)
    limit = b.value("load", b.const(0, Tile(Pointer(t.int32))))  # not known before the launch
    result = b.value(name, pid, b.value("min", limit, b.const(most, t.int32)))
    func = Func("f", (m,), Block((), b.finish()))
    divisions = InvariantDivisions(func, affine.analyze(func))
    made = Builder("test", first_id=func.next_id)
    for op in func.body.ops[:-1]:
        made.append(op)
    replaced = divisions.emit(made, lambda value: value, func.body.ops[-1])
    assert replaced is not None and divisions.likely
    translator = smt.Translator()
    before = translator.translate(func).terms[result][()]
    after = translator.translate(func.replace(body=Block((), made.finish())))
    assert smt.counterexample(before == after.terms[replaced][()], after.assumptions) is None


def test_a_program_finds_its_position_along_each_axis_of_the_grid():
    x, y, b = Value(WORD, "x"), Value(WORD, "y"), Builder("test")
    pid = b.value("program_id", axis=0)
    found = along_axes(b, pid, x, y)
    (branch,) = (op for op in b.finish() if op.name == "if")
    for along_x in (True, False):  # the branch is taken if the program lies in the first row
        translator = IntegerTranslator({})
        program, wide, high = (translator.free(v, name) for v, name in ((pid, "pid"), (x, "x"), (y, "y")))
        for op in b.finish():
            if op.name == "if":
                arm = op.blocks[0 if along_x else 1]
                for inner in arm.ops[:-1]:
                    translator.op(inner)
                translator.terms.update(
                    zip(op.results, (translator.terms[v] for v in arm.terminator.args), strict=True)
                )
            elif op.name != "program_id":
                translator.op(op)
        column, row, layer = (translator.terms[v] for v in found)
        launched = [program >= 0, wide > 0, high > 0, (program < wide) == along_x]
        place = z3.And(column >= 0, column < wide, row >= 0, row < high, layer >= 0)
        assert refuted(z3.Not(place), *translator.equations, *launched)
        rest = translator.terms[branch.results[1]]
        assert refuted(program != rest * wide + column, *translator.equations, *launched)
        assert refuted(rest != layer * high + row, *translator.equations, *launched)


def test_the_iteration_count_is_that_of_a_range_without_overflow():
    bounds, b = [Value(WORD, name) for name in ("lower", "upper", "step")], Builder("test")
    count = iteration_count(b, *bounds)
    translator = IntegerTranslator({})
    lower, upper, step = (translator.free(v, v.name) for v in bounds)
    for op in b.finish():
        translator.op(op)
    found = translator.terms[count]
    last = lower + (found - 1) * step
    right = z3.If(lower >= upper, found == 0, z3.And(found > 0, last < upper, last + step >= upper))
    small = [upper - lower + step - 1 < 1 << 31, upper - lower >= -(1 << 31), step > 0]
    assert refuted(z3.Not(right), *translator.equations, *small)


@pytest.mark.parametrize(("size", "divisor"), [(4, 4), (4, 16), (8, 8)])
def test_a_remainder_of_whole_tiles_is_exact_for_divided_starts_and_moduli_that_are_positive(size, divisor):
    start, modulus, b = Value(WORD, "start"), Value(WORD, "modulus"), Builder("test")
    at = b.value("add", b.value("splat", start, shape=(size,)), b.value("arange", start=0, end=size))
    value = b.value("rem", at, b.value("splat", modulus, shape=(size,)))
    pointer = Value(Tile(Pointer(t.int32)), "p")
    b.op("store", b.value("splat", pointer, shape=(size,)), value)
    hints = (Hint("start", divisor, 0), Hint("modulus", divisor, 1), Hint("p"))  # as the analyses of addresses assume
    before = Func("f", (start, modulus, pointer), Block((), b.finish()), hints=hints)
    after = rounds(before, {}, None)
    assert next(op for op in after.ops() if op.name == "rem").result.type == WORD  # of the scalar, once
    assert smt.difference(before, after) is None


def test_an_offset_that_saturates_moves_a_pointer_by_its_number_or_by_the_farthest():
    for element in (t.int8, t.float64):
        pointer, offset, b = Value(Tile(Pointer(element)), "p"), Value(Tile(t.int64), "x"), Builder("test")
        moved = b.value("ptradd", pointer, offset, saturate=True)
        terms = smt.Translator().translate(Func("f", (pointer, offset), Block((), b.finish()))).terms
        start, steps, end = (terms[v][()] for v in (pointer, offset, moved))
        distance = smt.resized(steps, 128, True) * element.bytes
        near = z3.And(distance <= 1 << 62, distance >= -(1 << 62))
        far = smt.resized(end, 128, False) - smt.resized(start, 128, False)
        assert smt.counterexample(z3.Implies(near, z3.Extract(63, 0, far - distance) == 0)) is None
        # An array has at most 2^60 bytes, and addresses 2^61: a pointer that is moved beyond them does not wrap around into them.
        inside = [z3.ULT(start, 1 << 61), z3.Not(near)]
        assert smt.counterexample(z3.UGE(end, 1 << 61), inside) is None
