"""Linear forms: index expressions as polynomials with integer coefficients over the symbols of a kernel.

A `Form` is a sum of integer coefficients times products of symbols. A symbol is an axis index of the tile (`Dim`), the iteration number
of a loop, or an opaque SSA value. An opaque tile lists the axes that index it, so expanding, broadcasting and transposing only rename
axes: `(rows % M)[:, None] * stride + cols[None, :]` stays a polynomial. LLVM's scalar evolution uses a similar form.

A form describes unbounded integers. Its `exact` flag is False once a value whose narrow arithmetic may have overflowed is widened or
added to a pointer. Until then, wrapping arithmetic agrees with the form modulo the width, so the flag survives addition and
multiplication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

DIM, ITERATION, COUNT, VALUE = range(4)
MAX_TERMS = 24
BIG = 1 << 30  # the divisibility of zero


class Symbol(NamedTuple):
    """An unknown. `kind` is DIM, ITERATION, COUNT or VALUE. For DIM, `number` is the axis. ITERATION is the iteration number of loop
    `value`, from zero, and COUNT the number of iterations of that loop.

    `axes[i]` is the axis of the tile that indexes axis i of an opaque tile, or -1 if that axis has size one; () for a uniform value.
    Symbols are equal if kind, number and axes are equal. Numbers are unique among values and loops.
    """

    kind: int
    number: int
    axes: tuple[int, ...] = ()
    value: Any = None

    @property
    def is_uniform(self) -> bool:
        """Whether the value is the same for every element of the tile."""
        return all(a < 0 for a in self.axes)

    def __str__(self) -> str:
        match self.kind:
            case 0:
                return f"d{self.number}"
            case 1:
                return f"iteration{self.number}"
            case 2:
                return f"iterations{self.number}"
        name = self.value.name or f"v{self.number}"
        return name if not self.axes else f"{name}[{', '.join(f'd{a}' if a >= 0 else '0' for a in self.axes)}]"


def Dim(axis: int) -> Symbol:
    """The index along an axis of the tile at hand."""
    return Symbol(DIM, axis, (axis,))


Monomial = tuple[Symbol, ...]


class Form:
    """A polynomial: `terms` maps sorted products of symbols to nonzero coefficients, the constant under (). Immutable."""

    __slots__ = ("exact", "terms")

    def __init__(self, terms: Mapping[Monomial, int], exact: bool = True):
        self.terms, self.exact = terms, exact

    @staticmethod
    def of(constant: int) -> Form:
        return Form({(): constant} if constant else {})

    @staticmethod
    def symbol(symbol: Symbol) -> Form:
        return Form({(symbol,): 1})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __add__(self, other: Form) -> Form:
        return self._combine(other, 1)

    def __sub__(self, other: Form) -> Form:
        return self._combine(other, -1)

    def _combine(self, other: Form, sign: int) -> Form:
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            total = terms.get(monomial, 0) + sign * coefficient
            if total:
                terms[monomial] = total
            else:
                del terms[monomial]
        return Form(terms, self.exact and other.exact)

    def __neg__(self) -> Form:
        return self.scaled(-1)

    def __mul__(self, other: Form) -> Form:
        if (k := other.constant) is not None:
            return self.scaled(k, other.exact)
        if (k := self.constant) is not None:
            return other.scaled(k, self.exact)
        terms: dict[Monomial, int] = {}
        for a, x in self.terms.items():
            for b, y in other.terms.items():
                monomial = tuple(sorted(a + b)) if a and b else a + b
                terms[monomial] = terms.get(monomial, 0) + x * y
        return Form({m: c for m, c in terms.items() if c}, self.exact and other.exact)

    def scaled(self, k: int, exact: bool = True) -> Form:
        return Form({m: c * k for m, c in self.terms.items()} if k else {}, self.exact and exact)

    def divided(self, k: int) -> Form | None:
        """The form over k when k divides every coefficient, else None."""
        if not k or any(c % k for c in self.terms.values()):
            return None
        return Form({m: c // k for m, c in self.terms.items()}, self.exact)

    def assumed(self) -> Form:
        """A copy of the form that is marked as not exact."""
        return Form(self.terms, False) if self.exact else self

    @property
    def constant(self) -> int | None:
        """The value when it is a constant, else None."""
        match len(self.terms):
            case 0:
                return 0
            case 1:
                return self.terms.get(())
        return None

    def symbols(self) -> Iterator[Symbol]:
        """The symbols of all terms, with repetitions."""
        for monomial in self.terms:
            yield from monomial

    def only(self, keep: Callable[[Monomial], bool]) -> Form:
        """The terms whose monomial is to be kept."""
        return Form({m: c for m, c in self.terms.items() if keep(m)}, self.exact)

    def uniform(self) -> Form:
        """The terms that are the same for every element of the tile."""
        return self.only(lambda monomial: all(s.is_uniform for s in monomial))

    def varying(self) -> Form:
        """The terms that differ among elements of the tile: `uniform() + varying()` is the form."""
        return self.only(lambda monomial: not all(s.is_uniform for s in monomial))

    def split(self, axis: int) -> tuple[Form, Form] | None:
        """(stride, rest) with form = stride * Dim(axis) + rest, neither varying along the axis; None when it is not linear there."""
        dim, stride, rest = Dim(axis), {}, {}
        for monomial, coefficient in self.terms.items():
            along = [s for s in monomial if axis in s.axes]
            if not along:
                rest[monomial] = coefficient
            elif along == [dim]:
                stride[tuple(s for s in monomial if s != dim)] = coefficient
            else:
                return None
        return Form(stride, self.exact), Form(rest, self.exact)

    def renamed(self, axes: Mapping[int, int]) -> Form:
        """The form with axes renamed; an axis missing from `axes` must not occur."""
        if not any(s.axes for m in self.terms for s in m):
            return self
        terms = {}
        for monomial, coefficient in self.terms.items():
            terms[tuple(sorted(_rename(s, axes) for s in monomial))] = coefficient
        return Form(terms, self.exact)

    def replaced(self, symbol: Symbol, value: Form) -> Form:
        """The form with `value` in the place of a symbol."""
        total = Form({m: c for m, c in self.terms.items() if symbol not in m}, self.exact)
        for monomial, coefficient in self.terms.items():
            if power := monomial.count(symbol):
                term = Form({tuple(s for s in monomial if s != symbol): coefficient})
                for _ in range(power):
                    term = term * value
                total = total + term
        return total

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        text = ""
        for monomial, c in sorted(self.terms.items(), key=lambda item: (len(item[0]) == 0, item[0])):
            factors = [str(s) for s in monomial]
            if abs(c) != 1 or not factors:
                factors.insert(0, str(abs(c)))
            text += (" - " if c < 0 else " + ") + "*".join(factors)
        return text[3:] if text.startswith(" + ") else "-" + text[3:]

    def __repr__(self) -> str:
        return f"Form({self}{'' if self.exact else ', assumed'})"


def common(a: Form | None, b: Form | None) -> Form | None:
    """The form of a value that is one of two with equal forms, exact if both are; None if the forms differ."""
    if a is None or a != b:
        return None
    return b if a.exact else a


def _rename(symbol: Symbol, axes: Mapping[int, int]) -> Symbol:
    if not symbol.axes:
        return symbol
    if symbol.kind == DIM:
        return Dim(axes[symbol.number])
    return symbol._replace(axes=tuple(axes[a] if a >= 0 else -1 for a in symbol.axes))


def power_of_two(n: int) -> int:
    """The largest power of two that divides n, at most BIG (which is also what divides zero)."""
    return min(n & -n, BIG) if n else BIG
