"""Scans and moves along an axis in the front end: the emitted ops, and errors for wrong arguments."""

from __future__ import annotations

import re

import numpy as np
import pytest
from frontend_helpers import evaluate, failure, kernel, place, text

import blocknb.language as tl
from blocknb.errors import TypeMismatch


@kernel
def running(out):
    v = tl.arange(0, 8)
    tl.store(out + v, tl.cumsum(v, reverse=True))


def test_cumsum_is_a_scan_with_one_add():
    assert "scan %v {axis=0, reverse=true} add" in text(running, out="*i32").replace("True", "true")
    np.testing.assert_array_equal(evaluate(running, np.int32, (8,)), np.arange(8)[::-1].cumsum()[::-1])


@kernel
def narrow(out):
    v = tl.arange(0, 8).to(tl.int8)
    tl.static_assert(tl.cumsum(v).dtype == tl.int32)
    tl.static_assert(tl.cumprod(v.to(tl.uint8)).dtype == tl.uint32)
    tl.static_assert(tl.cumsum(v.to(tl.bfloat16)).dtype == tl.bfloat16)
    tl.static_assert(tl.cumsum(v, dtype=tl.int64).dtype == tl.int64)
    tl.static_assert(tl.flip(v).dtype == tl.int8)
    tl.static_assert(tl.sort(v > 3).dtype == tl.int1)


def test_narrow_numbers_are_summed_in_32_bits():
    text(narrow, out="*i32")


@kernel
def bad_axis(out):
    tl.cumsum(tl.arange(0, 8), 1)


@kernel
def bad_scalar(out, n):
    tl.cumsum(n)


@kernel
def bad_index(out):
    v = tl.arange(0, 8)
    tl.gather(v, v * 0.5, 0)


@kernel
def bad_shape(out):
    v = tl.zeros((4, 8), tl.float32)
    tl.gather(v, tl.zeros((8, 8), tl.int32), 1)


@kernel
def bad_split(out):
    tl.split(tl.zeros((4, 4), tl.float32))


@kernel
def bad_topk(out):
    tl.topk(tl.zeros((8,), tl.float32), 3)


@kernel
def bad_stack(out):
    tl.dot(tl.zeros((2, 16, 16), tl.float16), tl.zeros((4, 16, 16), tl.float16))


@pytest.mark.parametrize(
    ("bad", "message", "carets"),
    [
        (bad_axis, "a tile with 1 axis has no axis 1", "1"),
        (bad_scalar, "a scalar has no axis to scan along", "n"),
        (bad_index, "indices must be integers, not fp32", "v * 0.5"),
        (bad_shape, r"the index has shape \(8, 8\) for a source of shape \(4, 8\)", "tl.zeros((8, 8), tl.int32)"),
        (bad_split, "split takes a tile whose last axis has size two", None),
        (bad_topk, "k is a power of two, at most the axis's size", None),
        (bad_stack, "2 matrices against 4", "tl.zeros((4, 16, 16), tl.float16)"),
    ],
    ids=lambda x: getattr(getattr(x, "source", None), "name", None),
)
def test_invalid_argument_is_reported_at_its_place(bad, message, carets):
    arguments = {"n": "i32"} if bad is bad_scalar else {}
    error = failure(bad, TypeMismatch, out="*f32", **arguments)
    assert re.search(message, error.message)
    if carets is not None:
        assert place(bad, error)[1] == carets


@kernel
def _greater_pair(a, i, b, j):
    if tl.zeros((1,), a.dtype).dtype.is_floating():  # an op whose result only a type reads
        tl.static_assert(a.dtype.is_floating())
    first = a > b
    return tl.where(first, a, b), tl.where(first, i, j)


@kernel
def greatest(out):
    v = tl.arange(0, 8)
    _, index = tl.reduce((((v * 5) % 8).to(tl.float32), v), 0, _greater_pair)
    tl.store(out, index)


def test_a_combine_function_may_make_tiles_that_it_does_not_use():
    assert evaluate(greatest, np.int32, (1,))[0] == (np.arange(8) * 5 % 8).argmax()
