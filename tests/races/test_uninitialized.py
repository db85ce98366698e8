"""`checked="init"`: loads of elements that nothing has written, and stores of values that no load gave."""

from __future__ import annotations

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.runtime.uninitialized import _arrays
from blocknb.testing import uninitialized


@blocknb.kernel
def shift(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n, other=0.0) + 1, mask=i < n)


@blocknb.kernel
def masked_without_other(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2)


@blocknb.kernel
def masked_and_selected(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n)
    tl.store(out + i, tl.where(i < n, v, 0.0))


@blocknb.kernel
def masked_with_other(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n, other=0.0) * 2)


@blocknb.kernel
def masked_sum(x, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + tl.program_id(0), tl.sum(tl.load(x + i, mask=i < n)))


@blocknb.kernel
def masked_in_two_axes(x, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tile = tl.load(x + i[:, None] * B + i[None, :], mask=i[None, :] < n)
    tl.store(out + i[:, None] * B + i[None, :], tl.trans(tile) + tl.trans(tile), mask=i[None, :] < n)


@blocknb.kernel
def count_up(counts, B: tl.constexpr):
    tl.atomic_add(counts + tl.arange(0, B), 1)


def empty(n=100, dtype=np.float32):
    return uninitialized(np.empty(n, dtype))


def run(x, out, n=100, checked="init"):
    shift[(4,)](x, out, n, B=32, checked=checked)


@pytest.mark.parametrize("checked", ["init", "all", "race,init"])
def test_a_load_of_an_element_that_nothing_has_written_is_an_error(checked):
    x, out = empty(), np.zeros(100, np.float32)
    x[:70] = 1.0
    with pytest.raises(
        blocknb.UninitializedError, match="loads element 70 of `x`, which nothing has written"
    ) as caught:
        run(x, out, checked=checked)
    assert caught.value.program == (2, 0, 0)
    assert caught.value.index == 70
    assert caught.value.loc.line == shift.source.first_line + 3
    assert "30 such elements" in str(caught.value)


def test_stores_of_checked_kernels_and_of_the_host_count_as_writes():
    x, out = empty(), np.zeros(100, np.float32)
    run(np.ones(100, np.float32), x, 60)
    run(x, out, 60)
    with pytest.raises(blocknb.UninitializedError):
        run(x, out, 61)
    x[60:] = 0.0
    run(x, out)


@blocknb.kernel
def add_numbers(v, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(v + i, tl.load(v + i) + i)


def test_an_array_whose_size_in_bytes_was_taken_for_elements():
    """The sample memset_error of compute-sanitizer: only a quarter of the elements is set."""
    v = uninitialized(np.empty(64, np.int32))
    v.view(np.uint8)[:64] = 0
    with pytest.raises(blocknb.UninitializedError, match="loads element 16 of `v`") as caught:
        add_numbers[(2,)](v, B=32, checked="init")
    assert caught.value.loc.line == add_numbers.source.first_line + 3
    assert "48 such elements" in str(caught.value)


def test_stores_of_unchecked_kernels_count_as_writes():
    x = empty()
    run(np.ones(100, np.float32), x, checked=False)
    run(x, np.zeros(100, np.float32))


def test_a_kernel_may_store_the_poison():
    x, out = empty(), np.zeros(100, np.float32)
    poison = x[:1].copy()
    run(np.full(100, 1.0, np.float32), x)
    x[:] = poison  # the host cannot write it, a kernel has written before
    run(x, out)


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float64])
def test_elements_of_other_sizes(dtype):
    x, out = empty(100, dtype), np.zeros(100, dtype)
    x[:40] = 3
    run(x, out, 40)
    with pytest.raises(blocknb.UninitializedError) as caught:
        run(x, out)
    assert caught.value.index == 40


def test_views_and_atomics_are_checked():
    x = uninitialized(np.empty(100, np.int32))
    with pytest.raises(blocknb.UninitializedError, match="updates element 0 of `counts`"):
        count_up[(1,)](x[10:], B=32, checked="init")
    x[10:42] = 0
    count_up[(1,)](x[10:], B=32, checked="init")


def test_arrays_that_are_not_marked_are_not_accused():
    run(np.empty(100, np.float32), np.empty(100, np.float32))


def test_a_freed_array_is_forgotten(collect):
    x = empty()
    address = x.ctypes.data
    del x
    collect()
    assert not any(array.low == address for array in _arrays)


@pytest.mark.parametrize(
    ("array", "message"),
    [(np.empty((8, 8), np.float32)[:, 0], "contiguous"), (3, "not a int")],
)
def test_only_contiguous_arrays_are_marked(array, message):
    with pytest.raises(blocknb.LaunchError, match=message):
        uninitialized(array)


def test_a_store_of_masked_off_elements_without_other_is_an_error():
    x, out = np.ones(100, np.float32), np.zeros(128, np.float32)
    with pytest.raises(blocknb.UninitializedError, match="stores to element 100 of `out` a value that no load gave"):
        masked_without_other[(4,)](x, out, 100, B=32, checked="init")
    masked_without_other[(3,)](x, out, 100, B=32, checked="init")
    for right in (masked_and_selected, masked_with_other, masked_sum):
        right[(4,)](x, out, 100 if right is not masked_sum else 32, B=32, checked="init")


def test_masks_follow_tiles_of_two_axes():
    x, out = np.ones((16, 16), np.float32), np.zeros((16, 16), np.float32)
    masked_in_two_axes[(1,)](x, out, 16, B=16, checked="init")
    with pytest.raises(blocknb.UninitializedError) as caught:
        masked_in_two_axes[(1,)](x, out, 9, B=16, checked="init")
    assert caught.value.index == 9 * 16
