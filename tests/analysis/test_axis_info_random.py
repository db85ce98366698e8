"""Axis info agrees with exhaustive evaluation of random kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_integer_programs import Evaluator, Maker, Undefined, integers, programs

from blocknb.analysis import affine
from blocknb.analysis.linear_forms import COUNT, DIM, ITERATION, Form

scalars = st.one_of(st.integers(-40, 200), st.sampled_from((0, 16, -16, 2**31 - 1, -(2**31), 2**20)))


def evaluate(form: Form, run: Evaluator, shape: tuple[int, ...]):
    """A form's value for every index of a tile, in Python integers."""
    total = np.zeros(shape, dtype=object)
    for monomial, coefficient in form.terms.items():
        term = np.full(shape, coefficient, dtype=object)
        for s in monomial:
            if s.kind == DIM:
                axis = [1] * len(shape)
                axis[s.number] = shape[s.number]
                term = term * np.arange(shape[s.number]).reshape(axis).astype(object)
            elif s.kind in (ITERATION, COUNT):
                term = term * (run.iterations if s.kind == ITERATION else run.counts)[s.value]
            else:
                term = term * placed(integers(run.environment[s.value]), s.axes, shape)
        total = total + term
    return total


def placed(array, axes: tuple[int, ...], shape: tuple[int, ...]):
    """An opaque tile with its axes where the form says they are."""
    kept = [i for i, a in enumerate(axes) if a >= 0]
    array = array.reshape([array.shape[i] for i in kept])
    order = sorted(range(len(kept)), key=lambda i: axes[kept[i]])
    array = np.transpose(array, order)
    full = [1] * len(shape)
    for i in order:
        full[axes[kept[i]]] = shape[axes[kept[i]]]
    return np.broadcast_to(array.reshape(full), shape)


def groups(array, axis: int, size: int):
    """The aligned groups along an axis as rows: [..., group, index in the group]."""
    moved = np.moveaxis(array, axis, -1)
    return moved.reshape((*moved.shape[:-1], -1, size))


def check(facts, run: Evaluator, value) -> None:
    array = np.asarray(run.environment[value])
    dtype = value.type.dtype
    whole = integers(array)
    if (found := facts.range(value)) is not None:
        assert found[0] <= whole.min() and whole.max() <= found[1], f"range of {value}"
    if (known := facts.truth(value)) is not None:
        assert np.all(array == known), f"truth of {value}"
    form = facts.form(value)
    assert dtype.kind != "bool" or form is None
    if form is not None and form.exact:
        assert np.all((evaluate(form, run, array.shape) - whole) % (1 << dtype.bits) == 0), (
            f"exact form {form} of {value}"
        )
    if not run.assumed:
        return
    if form is not None:
        assert np.all(evaluate(form, run, array.shape) == whole), f"form {form} of {value}"
        check_bounds(facts, run, value, whole)
    if dtype.kind != "bool":
        unit = dtype.element.bytes if value.type.is_pointer else 1
        every = facts.divisibility(value)
        assert np.all(whole * unit % every == 0), f"divisibility {every} of {value}"
    for axis, size in enumerate(array.shape):
        constant = facts.constancy(value, axis)
        assert size % constant == 0
        rows = groups(array, axis, constant)
        assert np.all(rows == rows[..., :1]), f"constancy {constant} of {value} along {axis}, {form}"
        if dtype.kind == "bool":
            continue
        counting = facts.contiguity(value, axis)
        assert size % counting == 0
        rows = groups(whole, axis, counting)
        assert np.all(rows == rows[..., :1] + np.arange(counting)), (
            f"contiguity {counting} of {value} along {axis}, {form}"
        )
        first = facts.divisibility(value, axis)
        assert np.all(rows[..., 0] * unit % first == 0), f"divisibility {first} of {value} along {axis}, {form}"
        if (stride := facts.stride(value, axis)) is not None and size > 1:
            expected = (
                stride
                if isinstance(stride, int)
                else np.take(evaluate(stride, run, array.shape), range(size - 1), axis)
            )
            assert np.all(np.diff(whole, axis=axis) == expected), f"stride {stride} of {value}"


def check_bounds(facts, run, value, whole) -> None:
    if (found := facts.bounds(value)) is not None:
        low, high = (evaluate(f, run, whole.shape) for f in found)
        assert np.all(low <= whole.min()) and np.all(high >= whole.max()), f"bounds {found} of {value}"


samples = st.lists(st.tuples(scalars, scalars, st.integers(0, 9)), min_size=2, max_size=3)


def check_every_fact(program, hints, samples) -> None:
    func = Maker(hints).func(program)
    facts = affine.analyze(func)
    for n, m, index in samples:
        n, m = (np.int32(x // h * h) for x, h in zip((n, m), hints, strict=True))
        try:
            Evaluator(func, (n, m, np.int64(0)), (index, index + 1, 3), lambda run, value: check(facts, run, value))
        except Undefined:
            continue


HINTS = st.sampled_from(((1, 1), (16, 1), (16, 16)))


@given(programs, HINTS, samples)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_fact_holds_for_every_element_of_every_value(program, hints, samples):
    check_every_fact(program, hints, samples)


@pytest.mark.full
@given(programs, HINTS, samples)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_fact_of_many_programs_holds(program, hints, samples):
    check_every_fact(program, hints, samples)
