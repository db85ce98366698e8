"""Assigns the uniform terms of an address to the coordinates of a TMA box.

A term that the mask bounds belongs to the axis with that bound. Any other term belongs to the axis of the tile whose stride divides it. A
term may fit neither axis, but have a parameter as a factor, such as the stride of a batch or a head. It then gets a further axis of the
array.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blocknb.analysis.bounds import NOT_BOUNDS, Bounds
from blocknb.analysis.linear_forms import Form, Monomial
from blocknb.analysis.polynomials import known_before, nonnegative, quotient, without

if TYPE_CHECKING:
    from blocknb.analysis.affine import Facts


class NotABox(Exception):
    """Raised where an access is not a box. The message is a phrase for a note."""


@dataclass
class Outer:
    """A further axis of the array: its stride, the coordinate of the box, whether the mask keeps it non-negative, and the extent in the
    mask."""

    stride: Form
    at: Form
    checked: bool = False
    extent: Form | None = None


class CoordinateAssignment:
    """Assigns the uniform terms of an address: `coordinates` by axis of the tile, and the further axes `outer`."""

    def __init__(self, facts: Facts, strides: dict[int, Form], unit: int, bounds: Bounds):
        self.facts, self.strides, self.unit, self.bounds = facts, strides, unit, bounds
        self.coordinates: dict[int, Form] = {}
        self.outer: list[Outer] = []

    def assign(self, rest: Form) -> None:
        """Assigns every term of `rest`. Raises NotABox if the mask is not the bounds of an array."""
        for axis, counted in self.strides.items():
            self.coordinates[axis] = given = self.from_mask(axis)
            rest = rest - counted * given
        conditions = list(self.bounds.uniform)
        for condition in self.bounds.uniform:  # a coordinate that the mask keeps non-negative determines its own terms
            at = -condition - Form.of(1)
            if (stride := self.stride_of(at, rest)) is not None:
                self.outer.append(Outer(stride, at, checked=True))
                rest = rest - stride * at
                conditions.remove(condition)
        self.remaining(rest)
        for condition in conditions:
            if not any(self.bounded(outer, condition) for outer in self.outer):
                raise NotABox(NOT_BOUNDS)

    def remaining(self, rest: Form) -> None:
        """Assigns the terms that the mask does not determine. Terms that differ between programs come first."""
        left: dict[Monomial, Form] = {}
        of_launch: list[Form] = []
        for monomial, coefficient in rest.terms.items():
            term = Form({monomial: coefficient})
            own = tuple(s for s in monomial if not known_before(self.facts, s))
            factor = without(monomial, own)
            if not own or factor is None:
                of_launch.append(term)
            elif not self.added_to_an_axis(term, changing=True):
                left[factor] = left.get(factor, Form.of(0)) + term
        for factor, terms in left.items():
            stride = Form({factor: math.gcd(*terms.terms.values())})
            coordinate = quotient(terms, stride)
            assert coordinate is not None, "the stride is common to the terms"
            self.outer.append(Outer(stride, coordinate))
        for term in of_launch:
            if not self.added_to_an_axis(term, changing=False):
                if min(term.terms.values()) < 0:
                    raise NotABox("it may start before the array, and its mask has no lower bound")
                # The second index of an axis whose stride is the whole term.
                self.outer.append(Outer(term, Form.of(1)))

    def added_to_an_axis(self, term: Form, changing: bool) -> bool:
        """Whether an existing axis takes a term. A `changing` term differs between programs, so an axis whose mask lists such terms
        refuses it."""
        for axis, stride in self.strides.items():
            part = quotient(term, stride) if axis != self.unit and self.free(axis, changing) else None
            if part is not None and self.harmless(part):
                self.coordinates[axis] += part
                return True
        if not changing:
            for outer in self.outer:
                part = None if outer.checked else quotient(term, outer.stride)
                if part is not None and self.harmless(part):
                    outer.at += part
                    return True
        by_parameter = changing and any(known_before(self.facts, s) for s in term.symbols())
        if not self.free(self.unit, changing) or by_parameter or not self.harmless(term):
            return False
        self.coordinates[self.unit] += term
        return True

    def free(self, axis: int, changing: bool) -> bool:
        return axis not in self.bounds.lower and not (changing and axis in self.bounds.upper)

    def harmless(self, part: Form) -> bool:
        """Whether an existing axis may take a part. The part is then never negative, or has no parameter that could be the stride of its
        own axis."""
        return not any(known_before(self.facts, s) for s in part.symbols()) or nonnegative(self.facts, part)

    def stride_of(self, at: Form, rest: Form) -> Form | None:
        """A stride that the host knows at launch, such that `rest` holds all terms of the stride times `at`; None if there is none."""
        if not at.terms:
            return None
        first = Form(dict([next(iter(at.terms.items()))]))
        for monomial, coefficient in rest.terms.items():
            stride = quotient(Form({monomial: coefficient}), first)
            if stride is None or min(stride.terms.values()) < 0:
                continue
            known = all(known_before(self.facts, s) for s in stride.symbols())
            if known and all(rest.terms.get(m) == c for m, c in (stride * at).terms.items()):
                return stride
        return None

    def bounded(self, outer: Outer, condition: Form) -> bool:
        """Uses a condition as the extent of an outer axis; False if it does not fit."""
        extent = outer.at - condition
        if outer.extent not in (None, extent) or not all(known_before(self.facts, s) for s in extent.symbols()):
            return False
        outer.extent = extent
        return True

    def from_mask(self, axis: int) -> Form:
        """The part of an axis' coordinate that the mask states: all terms, or those that differ between programs."""
        if (lower := self.bounds.lower.get(axis)) is not None:
            return lower
        upper = self.bounds.upper.get(axis, Form.of(0))
        return upper.only(lambda m: not all(known_before(self.facts, s) for s in m))
