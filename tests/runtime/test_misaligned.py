"""Arrays whose elements are not aligned: the kernel runs on copies, and what it stores comes back."""

from __future__ import annotations

import numpy as np
import pytest
from support import misaligned

import blocknb
import blocknb.language as tl


@blocknb.kernel
def twice(x, out, n, BLOCK: tl.constexpr = 64):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.device_assert(at < 128)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


X = np.arange(100, dtype=np.float32)


@pytest.mark.parametrize("repetition", range(3))
def test_a_launch_on_misaligned_arrays_stores_to_them(repetition) -> None:
    x, out = misaligned(X), misaligned(np.zeros_like(X))
    compiled = twice[2,](x, out, 100)
    np.testing.assert_array_equal(out, X * 2)
    np.testing.assert_array_equal(x, X)
    assert "copied `x`, `out`" in compiled.trace.stages[0].notes[-1].text


def test_a_read_only_input_and_an_aligned_output() -> None:
    x, out = misaligned(X), np.zeros_like(X)
    x.flags.writeable = False
    twice[2,](x, out, 100)
    np.testing.assert_array_equal(out, X * 2)


def test_a_store_to_a_read_only_array_is_refused_as_for_aligned_arrays() -> None:
    out = misaligned(X)
    out.flags.writeable = False
    with pytest.raises(blocknb.LaunchError, match="read-only"):
        twice[2,](X, out, 100)


def test_an_array_that_is_passed_twice_stays_one_array() -> None:
    x = misaligned(X)
    twice[2,](x, x, 100)
    np.testing.assert_array_equal(x, X * 2)


def test_arrays_that_overlap_are_refused() -> None:
    x = misaligned(X)
    with pytest.raises(blocknb.LaunchError, match="not a multiple of the 4 bytes"):
        twice[2,](x[:-1], x[1:], 99)


def test_after_an_error_the_array_has_what_the_programs_stored_before() -> None:
    out = misaligned(np.zeros_like(X))
    with pytest.raises(blocknb.DeviceAssertionFailed):
        twice[3,](X, out, 100)
    assert out.any()
