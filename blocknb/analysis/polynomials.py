"""Emits uniform linear forms as code, and finds out which of them the host can compute before a launch.

The symbols of a uniform form (see `linear_forms`) are equal for all elements of a tile: scalars, loop iterations and iteration counts. A
value is *of the launch* if pure ops compute it from parameters and constants alone, so the host knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from blocknb.analysis import ranges
from blocknb.analysis.linear_forms import COUNT, ITERATION, VALUE, Form, Monomial, Symbol
from blocknb.analysis.sign_analysis import symbol_nonnegative
from blocknb.errors import CompilerBug
from blocknb.ir.build import Builder, emit_copy
from blocknb.ir.core import Op, Value
from blocknb.ir.traversal import postorder, reachable
from blocknb.ir.verify_roles import HOST
from blocknb.language import types as t

if TYPE_CHECKING:
    from blocknb.analysis.affine import Facts

Poly = Form
Scalar = int | Form  # a scalar of the launch

# -- scalars of the launch -------------------------------------------------------------------------------------------------


def of_launch(facts: Facts, value: Value) -> bool:
    """Whether pure ops that the host can compute make an integer or boolean scalar from parameters and constants alone."""

    def made_of(current: Value) -> tuple[Value, ...]:
        op = facts.definition.get(current)
        return () if op is None else op.args

    for current in reachable([value], made_of):
        if not current.type.is_scalar or current.type.is_pointer or not current.type.dtype.is_integer:
            return False
        op = facts.definition.get(current)
        if op is None and current in facts.argument:
            return False
        if op is not None and op.name not in HOST:
            return False
    return True


def known_before(facts: Facts, symbol: Symbol) -> bool:
    """Whether the host knows a symbol at launch."""
    return symbol.kind == VALUE and of_launch(facts, symbol.value)


def scalar(form: Form) -> Scalar:
    """A form of the launch, as an int if it is a constant."""
    return form if form.constant is None else form.constant


def at_top(builder: Builder, facts: Facts, value: Scalar, dtype: t.DType, made: dict[Value, Value]) -> Value:
    """Emits a scalar of the launch at the top of a function, where only the parameters are defined. `made` remembers the ops that were
    copied, for further calls."""
    if isinstance(value, int):
        return builder.const(value, dtype)

    def copied(x: Value) -> Value:
        for op in _slice(facts, x):
            if op.result not in made:
                emit_copy(op, builder, made)
        return made.get(x, x)

    return emit(builder, copied, value, dtype)


def _slice(facts: Facts, value: Value) -> list[Op]:
    """The ops that compute a value of the launch, operands before users."""

    def makers(values: Iterable[Value]) -> list[Op]:
        return [facts.definition[x] for x in values if x in facts.definition]

    return list(postorder(makers([value]), lambda op: makers(op.args)))


# -- arithmetic ------------------------------------------------------------------------------------------------------------


def quotient(form: Form, by: Form) -> Form | None:
    """form / by if `by` is a single term that divides every term, else None."""
    if len(by.terms) != 1:
        return None
    ((divisor, k),) = by.terms.items()
    found = {}
    for monomial, coefficient in form.terms.items():
        rest = without(monomial, divisor)
        if rest is None or coefficient % k:
            return None
        found[rest] = coefficient // k
    return Form(found, form.exact)


def without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    """The product without these factors; None if it lacks one of them."""
    rest = list(monomial)
    for symbol in factors:
        if symbol not in rest:
            return None
        rest.remove(symbol)
    return tuple(rest)


def nonnegative(facts: Facts, form: Form, positive: Collection[Symbol] = ()) -> bool:
    """Whether a uniform form is never negative. The test assumes that index arithmetic does not overflow and that divisors and the
    `positive` symbols are positive."""
    if ranges.interval(facts, form, ())[0] >= 0:
        return True
    return all(c >= 0 and all(s in positive or symbol_nonnegative(facts, s) for s in m) for m, c in form.terms.items())


def positive_in_loops(facts: Facts, op: Op) -> set[Symbol]:
    """The symbols that are positive at an op because the loops around it run at least one iteration. In `range(first, min(first +
    length, end), 64)` this is `length`."""
    found: set[Symbol] = set()

    def limits(end: Value) -> Sequence[Value]:
        made = facts.definition.get(end)
        return made.args if made is not None and made.name == "min" else ()

    for loop in facts.around(op):
        if loop.name == "for" and ranges.bounds(facts, loop.args[2])[0] > 0:
            lower = facts.integer(loop.args[0])
            for end in reachable([loop.args[1]], limits):
                far = facts.integer(end) - lower
                ((monomial, coefficient),) = far.terms.items() if len(far.terms) == 1 else (((), 0),)
                if len(monomial) == 1 and coefficient > 0:
                    found.add(monomial[0])
    return found


def by_index(facts: Facts, form: Form) -> Form:
    """Replaces the iteration numbers of `for` loops by their indices, wherever that needs no division."""
    loops = sorted({s for s in form.symbols() if s.kind == ITERATION and s.value.name == "for"}, reverse=True)
    for symbol in loops:  # inner loops first: their bounds may depend on outer loops
        moving = Form({m: c for m, c in form.terms.items() if symbol in m}, form.exact)
        step = facts.form(symbol.value.args[2])
        lower, index = facts.form(symbol.value.args[0]), symbol.value.blocks[0].args[0]
        times = quotient(moving, step * Form.symbol(symbol)) if step is not None else None
        if times is None or lower is None or any(symbol in m for m in times.terms):
            continue
        form = form - moving + times * (facts.opaque(index) - lower)
    return form


# -- ops -------------------------------------------------------------------------------------------------------------------


def emit(builder: Builder, get: Callable[[Value], Value], poly: Form, dtype: t.DType) -> Value:
    """Emits a uniform form as a scalar of a signed integer type at the builder's position. `get` maps each old value to its new one.
    The loops whose iterations occur must enclose the position. Raises CompilerBug for other symbols."""
    atoms: dict[Symbol, Value] = {}
    total = None
    for monomial, coefficient in sorted(
        poly.terms.items(), key=lambda item: max((s.number for s in item[0]), default=-1)
    ):
        product = None
        for symbol in monomial:
            if symbol not in atoms:
                atoms[symbol] = _atom(builder, get, symbol, dtype)
            product = atoms[symbol] if product is None else builder.value("mul", product, atoms[symbol])
        if product is None:
            product = builder.const(coefficient, dtype)
        elif coefficient != 1:
            product = builder.value("mul", product, builder.const(coefficient, dtype))
        total = product if total is None else builder.value("add", total, product)
    return builder.const(0, dtype) if total is None else total


def _atom(builder: Builder, get: Callable[[Value], Value], symbol: Symbol, dtype: t.DType) -> Value:
    def cast(value: Value) -> Value:
        return value if value.type.dtype == dtype else builder.value("cast", value, dtype=dtype)

    if symbol.kind == VALUE and symbol.value.type.is_scalar:
        return cast(get(symbol.value))
    if symbol.kind not in (ITERATION, COUNT) or symbol.value.name != "for":
        raise CompilerBug(f"{symbol} is no scalar of the program")
    lower, upper, step = (cast(get(a)) for a in symbol.value.args[:3])
    if symbol.kind == ITERATION:
        far = builder.value("sub", cast(get(symbol.value.blocks[0].args[0])), lower)
        return builder.value("div", far, step)
    return iteration_count(builder, lower, upper, step)  # `emittable` excludes loops with a negative step


def iteration_count(builder: Builder, lower: Value, upper: Value, step: Value) -> Value:
    """The number of iterations of a loop with these bounds and a positive step; all are scalars of one signed type."""
    dtype = lower.type.dtype
    far = builder.value("add", builder.value("sub", upper, lower), builder.value("sub", step, builder.const(1, dtype)))
    return builder.value("max", builder.value("div", far, step), builder.const(0, dtype))


def emittable(facts: Facts, poly: Form) -> bool:
    """Whether `emit` can emit a form."""
    for s in poly.symbols():
        if s.kind == VALUE and not s.value.type.is_scalar:
            return False
        if s.kind in (ITERATION, COUNT) and (s.value.name != "for" or ranges.bounds(facts, s.value.args[2])[0] <= 0):
            return False
    return all(s.kind in (VALUE, ITERATION, COUNT) for s in poly.symbols())
