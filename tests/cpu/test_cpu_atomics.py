"""Atomics on the CPU: they are atomic between threads, give the bits of the op table, and can be checked and interrupted."""

from __future__ import annotations

import numpy as np
import pytest
from frontend_helpers import ir, kernel, launch
from test_cpu_safety import build, go, seconds_until_interrupted, violation

import blocknb.language as tl
from blocknb.errors import KernelError

SPECIAL = [0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45]


@kernel
def extremes(high, low, x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i % 10)
    tl.atomic_max(high + i, v, mask=i < 100)
    tl.atomic_min(low + i, v, mask=i < 100)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extrema_of_special_floats_have_the_same_bits_as_in_the_interpreter(dtype):
    def arguments():
        cells = np.repeat(np.array(SPECIAL, dtype), 10)
        return {"high": cells, "low": cells.copy(), "x": np.array(SPECIAL, dtype), "BLOCK": 128}

    expected, found = arguments(), arguments()
    launch(extremes, 1, **expected)
    go(extremes, 1, **found)
    for name in ("high", "low"):
        np.testing.assert_array_equal(found[name].view(np.uint8), expected[name].view(np.uint8))
    ordinary = ~np.isnan(expected["high"].reshape(10, 10))
    wanted = np.maximum(np.array(SPECIAL, dtype)[:, None], np.array(SPECIAL, dtype)[None, :])
    both = ordinary & ~np.isnan(wanted)
    np.testing.assert_array_equal(expected["high"].reshape(10, 10)[both], wanted[both])


@kernel
def meeting(cells, count, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.atomic_add(cells + i % 3, i.to(cells.dtype.element_ty))
    tl.atomic_add(count, 1, sem="relaxed")


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.float32, np.float64, np.float16])
def test_atomic_additions_of_many_threads_lose_nothing(monkeypatch, dtype):
    monkeypatch.setenv("BLOCKNB_NUM_THREADS", "6")
    programs = 3000 if dtype != np.float16 else 8
    cells, count = np.zeros(3, dtype), np.zeros(1, np.int32)
    go(meeting, programs, cells=cells, count=count, BLOCK=16)
    np.testing.assert_array_equal(cells.astype(np.float64), programs * np.array([45, 35, 40]))
    assert count[0] == programs


@kernel
def outside(x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.atomic_or(x + i, 1, mask=i < n)


def test_an_atomic_outside_the_array_is_reported():
    error = violation(outside, 1, x=np.zeros(10, np.int32), n=11, BLOCK=16)
    assert "updates element 10 of `x`, which has 10 elements" in str(error)
    assert "the mask tests `i < n`, which is true for this element" in str(error)


@kernel
def swapped_outside(x, at):
    tl.atomic_cas(x + at, 0, 1)


def test_swap_of_one_element_outside_the_array_is_reported():
    assert "updates element 40 of `x`" in str(violation(swapped_outside, 1, x=np.zeros(10, np.int32), at=40))


@kernel
def never_free(lock):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass


def test_waiting_for_a_lock_that_is_never_released_can_be_interrupted():
    native, values = build(never_free, lock=np.ones(1, np.int32))
    assert seconds_until_interrupted(native, values, 4) < 1


@kernel
def one(x, v):
    tl.atomic_max(x, v)


@kernel
def ordered(x):
    tl.atomic_add(x, 1, sem="strong")


@kernel
def scoped(x):
    tl.atomic_cas(x, 0, 1, scope="world")


@kernel
def no_pointer(n):
    tl.atomic_add(n, 1)


@kernel
def too_large(x, BLOCK: tl.constexpr):
    tl.atomic_add(x, tl.arange(0, BLOCK))


@pytest.mark.parametrize(
    ("k", "arguments", "message"),
    [
        (one, {"x": "*i16", "v": "i32"}, "`atomic_max` does not work on int16"),
        (one, {"x": "*i1", "v": "i32"}, "`atomic_max` does not work on int1"),
        (one, {"x": "*f16", "v": "f32"}, "`atomic_max` does not work on fp16"),
        (ordered, {"x": "*i32"}, "unknown sem 'strong'"),
        (scoped, {"x": "*i32"}, "unknown scope 'world'"),
        (no_pointer, {"n": "i32"}, "`atomic_add` needs a pointer, not int32"),
        (too_large, {"x": "*i32", "BLOCK": 8}, "`val` is a tile of shape"),
    ],
)
def test_unsupported_atomics_are_errors_at_their_line(k, arguments, message):
    with pytest.raises(KernelError) as caught:
        ir(k, **arguments)
    assert message in str(caught.value)
    assert caught.value.loc is not None
