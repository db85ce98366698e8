"""Outputs of a changed kernel: holes and stale values are wrong although the user's array holds the right ones; rounding is not."""

from __future__ import annotations

import numpy as np
import pytest
from observed import observed

import blocknb
import blocknb.language as tl
from blocknb.profile.outputs import SAME, PoisonedOutputs
from blocknb.runtime.prepared_launch import prepare


@blocknb.kernel
def twice(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, (tl.load(x + at, mask=at < n) * 2).to(out.dtype.element_ty), mask=at < n)


@blocknb.kernel
def above(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) > 0, mask=at < n)


@blocknb.kernel
def add_to(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(out + at, mask=at < n) + tl.load(x + at, mask=at < n), mask=at < n)


@blocknb.kernel
def summed(x, out, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + at, mask=at < n, other=0.0)
    tl.store(out, tl.sum(total, axis=0))


def judged(kernel, x, out, **constants):
    """The judgement on other constants, after a launch with BLOCK=128 and a grid that covers 1000 elements."""
    made = observed(lambda: kernel[8,](x, out, 1000, BLOCK=128)).latest
    before = out.copy()
    copies = PoisonedOutputs(made.snapshot, made.compiled.stored, made.compiled.loaded)
    given = copies.copies.arguments
    found = copies.compare_launches(prepare(kernel, (8,), {**given, **constants}), prepare(kernel, (8,), given))
    np.testing.assert_array_equal(out, before)
    return found


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        (twice, np.float32),
        (twice, np.float16),
        (twice, np.float64),
        (twice, np.int32),
        (twice, np.uint8),
        (above, np.bool_),
    ],
)
def test_a_hole_is_wrong_although_the_array_holds_the_right_value(kernel, dtype):
    out = np.zeros(1000, dtype)
    found = judged(kernel, np.ones(1000, np.float32), out, BLOCK=64)
    assert found.right is False and found.text.startswith("49 % of `out` differs from the result of the cell’s kernel")
    assert "49 % is not written" in found.text
    assert judged(kernel, np.ones(1000, np.float32), out, BLOCK=256).right


def test_an_array_that_is_updated_in_place_begins_with_its_own_values():
    found = judged(add_to, np.ones(1000, np.float32), np.zeros(1000, np.float32), BLOCK=64)
    assert found.right is False and "not written" not in found.text
    assert judged(add_to, np.ones(1000, np.float32), np.zeros(1000, np.float32), BLOCK=512).text == SAME


def test_one_array_as_input_and_output_is_not_poisoned():
    x = np.ones(1000, np.float32)
    assert judged(twice, x, x, BLOCK=256).right


def test_another_order_of_additions_is_right():
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    assert judged(summed, x, np.zeros(1, np.float32), BLOCK=64).right


def test_a_kernel_that_differs_from_itself_decides_nothing():
    x, out = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    made = observed(lambda: twice[8,](x, out, 1000, BLOCK=128)).latest
    copies = PoisonedOutputs(made.snapshot, made.compiled.stored, made.compiled.loaded)
    target = copies.copies.arguments["out"]
    numbers = iter(range(10))

    def launch() -> None:
        target[:] = next(numbers)

    found = copies.compare_launches(launch, launch)
    assert found.right is None and "two launches of the cell’s kernel differ" in found.text
