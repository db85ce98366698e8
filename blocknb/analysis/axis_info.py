"""Contiguity, divisibility and constancy along each axis of a tile (Triton's AxisInfo).

They are stated for aligned groups whose size is a power of two. For a value with a linear form they follow from its terms. A symbol of a
form, and a value without one (a mask, a float), has an `AxisInfo`, which follows from the op that made it. For example, `x % m` counts
on within groups as long as x does and both start at multiples of the group. A comparison is constant over a group within which its
difference cannot change sign.
"""

from __future__ import annotations

from typing import NamedTuple

from blocknb.analysis import ranges
from blocknb.analysis.facts import FunctionFacts
from blocknb.analysis.linear_forms import BIG, DIM, VALUE, Form, Symbol, power_of_two
from blocknb.analysis.operand_order import operands_first
from blocknb.analysis.reshaped_forms import pieces
from blocknb.analysis.sign_analysis import nonnegative
from blocknb.ir.core import Op, Value, is_volatile
from blocknb.language.ops import OPS, PRESERVING, named
from blocknb.language.types import Tile

RING = named("ring")
PROMISES = ("multiple_of", "max_contiguous", "max_constancy")


class AxisRuns(NamedTuple):
    """On an axis: aligned groups of `contiguity` count on from an element that `divisor` divides; groups of `constancy` are equal."""

    contiguity: int = 1
    divisor: int = 1
    constancy: int = 1


class AxisInfo(NamedTuple):
    """One AxisRuns per axis, and a power of two that divides every element."""

    groups: tuple[AxisRuns, ...]
    every: int = 1


# -- from forms ----------------------------------------------------------------------------------------------------------


def contiguity(facts: FunctionFacts, value: Value, axis: int) -> int:
    form, size = facts.form(value), value.type.shape[axis]
    return info(facts, value).groups[axis].contiguity if form is None else _form_contiguity(facts, form, axis, size)


def _form_contiguity(facts: FunctionFacts, form: Form, axis: int, size: int) -> int:
    constant = {m: min((_constancy_of(facts, s, axis, size) for s in m), default=size) for m in form.terms}
    best = 1
    for monomial, coefficient in form.terms.items():
        if coefficient == 1 and len(monomial) == 1 and axis in monomial[0].axes:
            rest = min((k for m, k in constant.items() if m is not monomial), default=size)
            best = max(best, min(_contiguity_of(facts, monomial[0], axis, size), rest))
    return best


def constancy(facts: FunctionFacts, value: Value, axis: int) -> int:
    form, size = facts.form(value), value.type.shape[axis]
    if form is None:
        return info(facts, value).groups[axis].constancy
    return min((_constancy_of(facts, s, axis, size) for s in form.symbols()), default=size)


def divisor(facts: FunctionFacts, value: Value, axis: int | None, group: int) -> int:
    """A power of two that divides the elements whose index along `axis` is a multiple of `group` (None: every element)."""
    form = facts.form(value)
    if form is not None:
        return form_divisor(facts, form, axis, group)
    known = info(facts, value)
    return known.every if axis is None else max(known.every, _at(known.groups[axis], group))


def form_divisor(facts: FunctionFacts, form: Form, axis: int | None, group: int) -> int:
    """The `divisor` of a form."""
    least = BIG
    for monomial, coefficient in form.terms.items():
        found = power_of_two(coefficient)
        for symbol in monomial:
            found *= _symbol_divisor(facts, symbol, axis, group)
        least = min(least, found)
    return least


def _symbol_divisor(facts: FunctionFacts, symbol: Symbol, axis: int | None, group: int) -> int:
    if symbol.kind == DIM:
        return group if symbol.number == axis else 1
    if symbol.kind != VALUE:
        return 1
    known = info(facts, symbol.value)
    if axis is None or axis not in symbol.axes:
        return known.every
    return max(known.every, _at(known.groups[symbol.axes.index(axis)], group))


def _at(group: AxisRuns, step: int) -> int:
    """A divisor of the elements at multiples of `step`, from the divisor of the first element of each group."""
    return group.divisor if step >= group.contiguity else min(group.divisor, step)


def _constancy_of(facts: FunctionFacts, symbol: Symbol, axis: int, size: int) -> int:
    if axis not in symbol.axes:
        return size
    return 1 if symbol.kind == DIM else info(facts, symbol.value).groups[symbol.axes.index(axis)].constancy


def _contiguity_of(facts: FunctionFacts, symbol: Symbol, axis: int, size: int) -> int:
    return size if symbol.kind == DIM else info(facts, symbol.value).groups[symbol.axes.index(axis)].contiguity


def sign_constancy(facts: FunctionFacts, form: Form, axis: int, size: int) -> int:
    """The largest group along an axis within which the sign of a form is constant. The form rises by less than a divisor of its start
    there."""
    group = size
    while group > 1:
        rise = 0
        for monomial, coefficient in form.terms.items():
            if all(_constancy_of(facts, s, axis, size) >= group for s in monomial):
                continue
            if coefficient < 0 or len(monomial) > 1 or _contiguity_of(facts, monomial[0], axis, size) < group:
                rise = BIG
                break
            rise += coefficient * (group - 1)
        if rise < form_divisor(facts, form, axis, group):
            break
        group //= 2
    return group


# -- from ops ------------------------------------------------------------------------------------------------------------


def info(facts: FunctionFacts, value: Value) -> AxisInfo:
    """The AxisInfo of a value without a form of its own: an opaque symbol, a boolean, a float."""
    memo = facts.memo.infos
    if value not in memo:
        for known in operands_first(facts, value, memo):
            ranges.bounds(facts, known)
            if known not in memo and (known is value or has_own_info(facts, known)):
                memo[known] = with_promises(_info(facts, known), facts.definition.get(known))
    info: AxisInfo = memo[value]
    return info


def has_own_info(facts: FunctionFacts, value: Value) -> bool:
    """Whether a value has no form of its own: forms of others may ask for its AxisInfo, where it is an opaque symbol."""
    form = facts.form(value)
    return form is None or any(symbol.value is value for symbol in form.symbols())


def with_promises(known: AxisInfo, op: Op | None) -> AxisInfo:
    """The analysis' result, strengthened by the author's `multiple_of`, `max_contiguous` and `max_constancy`."""
    if op is None or not any(name in op.attrs for name in PROMISES):
        return known
    if not known.groups:
        return known._replace(every=max(known.every, power_of_two(op.attrs.get("multiple_of", (1,))[0])))
    found, every = [], known.every
    for axis, group in enumerate(known.groups):
        multiple, counting, steady = (
            power_of_two((*op.attrs.get(name, ()), *(1,) * (axis + 1))[axis]) for name in PROMISES
        )
        size = op.result.type.shape[axis]
        made = AxisRuns(max(group.contiguity, min(counting, size)), 1, max(group.constancy, min(steady, size)))
        found.append(made._replace(divisor=max(_at(group, made.contiguity), multiple)))
        every = max(every, multiple if made.contiguity == 1 else 1)
    return AxisInfo(tuple(found), every)


def _info(facts: FunctionFacts, value: Value) -> AxisInfo:
    nothing = AxisInfo((AxisRuns(),) * len(value.type.shape))
    if value in facts.argument:
        return _carried(facts, value, nothing)
    op = facts.definition.get(value)
    if op is None:
        return AxisInfo((), facts.hints.get(value, 1) if not value.type.is_pointer else 1)
    match op.name:
        case "const" | "splat":
            every = snapshot(facts, op.args[0]).every if op.name == "splat" else 1
            return AxisInfo(tuple(AxisRuns(1, 1, n) for n in value.type.shape), every)
        case "promise":
            return snapshot(facts, op.args[0])
        case name if name in PRESERVING:
            return _moved(op, snapshot(facts, op.args[0]))
        case "local_load":
            return nothing if (source := facts.stored(value)) is None else snapshot(facts, source)
        case "if" | "for" | "while":
            return _of_control(facts, op, op.results.index(value))
        case "reduce":
            kept = zip(*(constancies(facts, a) for a in op.args), strict=True)
            found = [min(c) for i, c in enumerate(kept) if i != op.attrs["axis"]]
            return nothing if op.attrs.get("keep") else AxisInfo(tuple(AxisRuns(1, 1, k) for k in found))
        case "load" if not is_volatile(op):
            return _pointwise(facts, op, nothing)
    return _elementwise(facts, op, nothing) if OPS[op.name].kind == "elementwise" else nothing


def _of_control(facts: FunctionFacts, op: Op, i: int) -> AxisInfo:
    """The AxisInfo of the i-th result of a branch or loop."""
    match op.name:
        case "if":
            return _meet(*(snapshot(facts, block.terminator.args[i]) for block in op.blocks))
        case "for":
            return _meet(snapshot(facts, op.args[3 + i]), snapshot(facts, op.blocks[0].terminator.args[i]))
    return snapshot(facts, op.blocks[0].terminator.args[1 + i])


def constancies(facts: FunctionFacts, value: Value) -> list[int]:
    return [constancy(facts, value, axis) for axis in range(len(value.type.shape))]


def snapshot(facts: FunctionFacts, value: Value) -> AxisInfo:
    """The AxisInfo of any value, with a form or without."""
    found = []
    for axis in range(len(value.type.shape)):
        counting = contiguity(facts, value, axis)
        found.append(AxisRuns(counting, divisor(facts, value, axis, counting), constancy(facts, value, axis)))
    return AxisInfo(tuple(found), divisor(facts, value, None, 1))


def _meet(a: AxisInfo, b: AxisInfo) -> AxisInfo:
    """The AxisInfo that holds for both values."""
    found = []
    for x, y in zip(a.groups, b.groups, strict=True):
        counting = min(x.contiguity, y.contiguity)
        found.append(
            AxisRuns(
                counting,
                min(max(_at(x, counting), a.every), max(_at(y, counting), b.every)),
                min(x.constancy, y.constancy),
            )
        )
    return AxisInfo(tuple(found), min(a.every, b.every))


def _carried(facts: FunctionFacts, value: Value, nothing: AxisInfo) -> AxisInfo:
    """The AxisInfo of a loop-carried value, by induction: a guess that holds initially and is preserved by an iteration."""
    op, block, i = facts.argument[value]
    if op.name == "while" and block == 1:
        return snapshot(facts, op.blocks[0].terminator.args[i + 1])
    if (carried := facts.carried(value)) is None:
        return nothing
    guess = snapshot(facts, carried[0])
    for _ in range(6):
        if guess == nothing:
            break
        form = facts.form(value)
        with facts.supposing(value, form, info=guess):
            after = _meet(guess, snapshot(facts, carried[1]))
        if after == guess:
            return guess
        guess = after
    return nothing


def _moved(op: Op, x: AxisInfo) -> AxisInfo:
    """The AxisInfo of the result of a shape op."""
    old, new = op.args[0].type.shape, op.result.type.shape
    match op.name:
        case "convert":
            return x
        case "part":
            return x._replace(groups=tuple(_part(g, 1, n) for g, n in zip(x.groups, new, strict=True)))
        case "broadcast":
            return x._replace(
                groups=tuple(g if n == m else AxisRuns(1, 1, m) for g, n, m in zip(x.groups, old, new, strict=True))
            )
        case "trans":
            return x._replace(groups=tuple(x.groups[axis] for axis in op.attrs["perm"]))
        case "expand_dims":
            axis = op.attrs["axis"]
            return x._replace(groups=(*x.groups[:axis], AxisRuns(), *x.groups[axis:]))
    found = []
    cut = pieces(old, new)
    for axis in range(len(new)):
        group = None
        for piece in (p for p in cut if p.new == axis):
            part = _part(x.groups[piece.old], piece.old_weight, piece.size)
            group = part if group is None else _joined(group, part, piece.new_weight)
        found.append(group or AxisRuns())
    return x._replace(groups=tuple(found))


def _part(group: AxisRuns, weight: int, size: int) -> AxisRuns:
    """The runs of the piece of an axis whose steps have length `weight`."""
    if weight > 1:
        return AxisRuns(1, 1, min(max(group.constancy // weight, 1), size))
    counting = min(group.contiguity, size)
    return AxisRuns(counting, _at(group, counting), min(group.constancy, size))


def _joined(inner: AxisRuns, outer: AxisRuns, weight: int) -> AxisRuns:
    """The runs of an axis with this inner part (of size `weight`) and this outer part. Runs do not continue across the seam."""
    return inner._replace(constancy=inner.constancy if inner.constancy < weight else weight * outer.constancy)


def _pointwise(facts: FunctionFacts, op: Op, nothing: AxisInfo) -> AxisInfo:
    """Equal operands give equal results."""
    if not nothing.groups:
        return nothing
    kept = zip(*(constancies(facts, a) for a in op.args), strict=True)
    return AxisInfo(tuple(AxisRuns(1, 1, min(k)) for k in kept))


def _elementwise(facts: FunctionFacts, op: Op, nothing: AxisInfo) -> AxisInfo:
    plain, dtype = _pointwise(facts, op, nothing), op.result.type.dtype
    if op.name == "cmp":
        return _compared(facts, op, plain)
    if op.name == "select":
        return _selected(facts, op, plain)
    if not dtype.is_integer or dtype.kind == "bool" or not all(a.type.dtype.is_integer for a in op.args):
        return plain
    match op.name:
        case name if name in RING:
            return _wrapped(facts, facts.unwrapped(op), op.result.type, dtype.bits, plain)
        case "cast" if op.args[0].type.dtype.kind != "bool":
            # Only a value that may be negative gets here (unsigned from signed); it agrees modulo the source's width.
            bits = min(dtype.bits, op.args[0].type.dtype.bits)
            return _wrapped(facts, facts.form(op.args[0]), op.result.type, bits, plain)
        case "min" | "max":
            return _bounded(facts, op, plain)
        case "div" | "rem" | "shr" | "and":
            return _grouped(facts, op, plain)
    return plain


def _wrapped(facts: FunctionFacts, form: Form | None, type: Tile, bits: int, plain: AxisInfo) -> AxisInfo:
    """The info of a number kept modulo 2^bits: groups that start at multiples of their size do not wrap."""
    if form is None:
        return plain
    found, most = [], 1 << bits - 1
    for axis, size in enumerate(type.shape):
        counting = min(_form_contiguity(facts, form, axis, size), most)
        while counting > 1 and form_divisor(facts, form, axis, counting) < counting:
            counting //= 2
        steady = min((_constancy_of(facts, s, axis, size) for s in form.symbols()), default=size)
        found.append(
            AxisRuns(
                counting,
                min(form_divisor(facts, form, axis, counting), most),
                max(steady, plain.groups[axis].constancy),
            )
        )
    return AxisInfo(tuple(found), min(form_divisor(facts, form, None, 1), most))


def _compared(facts: FunctionFacts, op: Op, plain: AxisInfo) -> AxisInfo:
    """`a < b` is the sign of a - b, or the negated sign of b - a - 1. The other comparisons follow from these."""
    a, b = op.args
    x, y = facts.form(a), facts.form(b)
    if x is None or y is None or (a.type.is_pointer and facts.base(a) is not facts.base(b)):
        return plain
    if op.attrs["pred"] in ("eq", "ne"):
        return plain
    below = x - y if op.attrs["pred"] in ("lt", "ge") else y - x
    opposite = -below - Form.of(1)
    found = []
    for axis, group in enumerate(plain.groups):
        size = op.result.type.shape[axis]
        steady = max(sign_constancy(facts, f, axis, size) for f in (below, opposite))
        found.append(group._replace(constancy=max(group.constancy, steady)))
    return AxisInfo(tuple(found))


def _selected(facts: FunctionFacts, op: Op, plain: AxisInfo) -> AxisInfo:
    condition, a, b = op.args
    return _chosen(plain, constancies(facts, condition), snapshot(facts, a), snapshot(facts, b))


def _bounded(facts: FunctionFacts, op: Op, plain: AxisInfo) -> AxisInfo:
    """min and max choose by the sign of the difference."""
    a, b = op.args
    x, y = facts.form(a), facts.form(b)
    if x is None or y is None:
        return plain
    steady = [
        max(sign_constancy(facts, x - y, axis, size), sign_constancy(facts, y - x, axis, size))
        for axis, size in enumerate(op.result.type.shape)
    ]
    return _chosen(plain, steady, snapshot(facts, a), snapshot(facts, b))


def _chosen(plain: AxisInfo, steady: list[int], a: AxisInfo, b: AxisInfo) -> AxisInfo:
    """One of two values, the same one throughout groups of `steady`."""
    either = _meet(a, b)
    found = []
    for axis, (group, both) in enumerate(zip(plain.groups, either.groups, strict=True)):
        counting = min(steady[axis], both.contiguity)
        found.append(AxisRuns(counting, _at(both, counting), max(group.constancy, min(steady[axis], both.constancy))))
    return AxisInfo(tuple(found), either.every)


def _grouped(facts: FunctionFacts, op: Op, plain: AxisInfo) -> AxisInfo:
    """Division and remainder of runs with aligned starts by an aligned divisor; shifts and masks likewise."""
    a, b = op.args
    constant = facts.integer(b).constant
    modulus = (None if constant is None else _modulus(op, constant)) or 0
    if op.name in ("shr", "and") and not modulus:
        every = max(divisor(facts, a, None, 1), divisor(facts, b, None, 1)) if op.name == "and" else 1
        return plain._replace(every=every)
    floor = op.name in ("shr", "and") or nonnegative(facts, a, _single(facts.integer(b)))
    keeps = op.name == "rem" or (op.name == "and" and modulus > 0)
    found = []
    for axis, group in enumerate(plain.groups):
        step = min(contiguity(facts, a, axis), constancy(facts, b, axis)) if floor else 1
        while (
            step > 1
            and min(divisor(facts, a, axis, step), abs(modulus) if modulus else divisor(facts, b, axis, step)) < step
        ):
            step //= 2
        if not keeps:
            low = divisor(facts, b, axis, 1) if op.name == "and" else 1
            found.append(AxisRuns(1, low, max(step, group.constancy)))
            continue
        first = divisor(facts, a, axis, step)
        found.append(
            AxisRuns(step, first if op.name == "and" else min(first, divisor(facts, b, axis, step)), group.constancy)
        )
    return AxisInfo(tuple(found), _every(facts, op))


def _single(form: Form) -> Symbol | None:
    """The symbol, if the form consists of a single one."""
    if len(form.terms) == 1:
        ((monomial, coefficient),) = form.terms.items()
        return monomial[0] if len(monomial) == 1 and coefficient == 1 else None
    return None


def _every(facts: FunctionFacts, op: Op) -> int:
    """A divisor of every element of a quotient or remainder."""
    a, b = (divisor(facts, x, None, 1) for x in op.args)
    match op.name:
        case "rem":
            return min(a, b)
        case "and":
            return max(a, b)
        case "shr":
            return max(a >> (facts.integer(op.args[1]).constant or 0), 1)
    return 1


def _modulus(op: Op, constant: int) -> int | None:
    """2^k if the op divides by 2^k or takes the remainder by it, -2^k if it rounds down to a multiple of it, else None."""
    bits = op.result.type.dtype.bits
    match op.name:
        case "div" | "rem":
            return power_of_two(constant) if constant else None
        case "shr":
            return 1 << constant if 0 <= constant < bits - 1 else None
    if constant > 0 and constant & (constant + 1) == 0:
        return constant + 1
    if op.result.type.dtype.kind == "uint":
        constant -= 1 << bits
    return constant if constant < 0 and -constant & (-constant - 1) == 0 else None


def promised_multiple(op: Op | None, axis: int | None) -> int:
    """The author's `multiple_of` for a pointer's address in bytes; with an axis, for the first element of each contiguous group."""
    values = op.attrs.get("multiple_of", (1,)) if op is not None else (1,)
    at = axis or 0
    return power_of_two(values[at]) if at < len(values) else 1


def promised(facts: FunctionFacts, op: Op, form: Form) -> bool:
    """Whether the author promised more about an op's result than follows from its form."""
    # A promise about a pointer's multiples concerns the address; the form is only the offset.
    names = [name for name in PROMISES if name in op.attrs]
    if not names or (names == ["multiple_of"] and op.result.type.is_pointer):
        return False
    found = []
    for axis, size in enumerate(op.result.type.shape):
        counting = _form_contiguity(facts, form, axis, size)
        steady = min((_constancy_of(facts, s, axis, size) for s in form.symbols()), default=size)
        found.append(AxisRuns(counting, form_divisor(facts, form, axis, counting), steady))
    known = AxisInfo(tuple(found), form_divisor(facts, form, None, 1))
    return with_promises(known, op) != known
