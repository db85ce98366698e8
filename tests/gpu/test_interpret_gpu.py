"""Interpreted launches on GPU arrays: they are copied to the host and back, and overlapping arrays share memory there."""

from __future__ import annotations

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.errors import AccessError

cupy = pytest.importorskip("cupy")


@blocknb.kernel
def shift(x, out, n):
    at = tl.arange(0, 16)
    tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def test_gpu_arrays_are_copied_to_the_host_and_back():
    x, out = cupy.arange(16, dtype=np.float32), cupy.zeros(16, np.float32)
    run = shift.interpret(1, watch=["at"])(x, out, 16)
    np.testing.assert_array_equal(cupy.asnumpy(out), np.arange(16) + 1)
    assert run["at"][0][1].tolist() == list(range(16))


def test_overlapping_views_share_memory_and_keep_strides():
    @blocknb.kernel
    def k(a, b):
        at = tl.arange(0, 4)
        tl.store(a + at * 2, -1.0)
        tl.store(b + at * 2, tl.load(b + at * 2) * 2)

    whole = cupy.arange(8, dtype=np.float32)
    k.interpret(1)(whole[::2], whole[::2])
    assert cupy.asnumpy(whole).tolist() == [-2, 1, -2, 3, -2, 5, -2, 7]


def test_stores_before_an_error_are_copied_back():
    x, out = cupy.arange(16, dtype=np.float32), cupy.zeros(16, np.float32)

    @blocknb.kernel
    def k(x, out):
        tl.store(out, 1.0)
        tl.store(out + 1, tl.load(x + 16))

    with pytest.raises(AccessError, match="element 16 of `x`, which has 16"):
        k.interpret(1)(x, out)
    assert float(out[0]) == 1


def test_torch_gpu_tensors_are_copied_to_the_host_and_back():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    x, out = torch.arange(16.0, device="cuda"), torch.zeros(16, device="cuda")
    shift.interpret(1)(x, out, 9)
    assert out.tolist() == [*range(1, 10), *[0] * 7]


def test_addresses_in_tables_point_to_the_copies():
    @blocknb.kernel
    def k(table, x, out):
        tl.store(out, tl.load(tl.load(table).to(tl.pointer_type(tl.float32)) + 3))

    x, out = cupy.arange(16, dtype=np.float32), cupy.zeros(1, np.float32)
    k.interpret(1)(cupy.array([x.data.ptr]), x, out)
    assert float(out[0]) == 3
