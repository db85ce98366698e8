"""Names and behaviours that Triton has had since 3.7."""

from __future__ import annotations

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.errors import KernelError


@blocknb.kernel
def shapes(x, out):
    i = tl.arange(0, 4)
    column = tl.unsqueeze(tl.load(x + i), 1)
    tl.static_assert(column.shape == (4, 1))
    tl.store(out + i, tl.squeeze(column, -1))


def test_squeeze_undoes_unsqueeze():
    x, out = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
    shapes[(1,)](x, out)
    assert out.tolist() == x.tolist()


@blocknb.kernel
def squeezes_two(x):
    tl.store(x, tl.sum(tl.squeeze(tl.zeros((2, 4), tl.int32), 0)))


def test_squeeze_refuses_an_axis_of_another_size():
    with pytest.raises(KernelError, match="size one"):
        squeezes_two[(1,)](np.zeros(1, np.int32))


@blocknb.kernel
def best(x, out, N: tl.constexpr, K: tl.constexpr, LARGEST: tl.constexpr):
    found = tl.topk(tl.load(x + tl.arange(0, N)), K, descending=LARGEST)
    tl.store(out + tl.arange(0, K), found)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("n", "k"), [(8, 1), (16, 4), (64, 64)])
def test_topk_takes_the_largest_or_the_smallest(n, k, largest):
    x, out = np.random.default_rng(n).permutation(n).astype(np.float32), np.zeros(k, np.float32)
    best[(1,)](x, out, N=n, K=k, LARGEST=largest)
    assert out.tolist() == sorted(x.tolist(), reverse=largest)[:k]


@blocknb.kernel
def polls(flags, out, WAIT: tl.constexpr):
    i = tl.arange(0, 4)
    tl.store(out + i, tl.atomic_poll(flags + i, 7, timeout_ns=WAIT).to(tl.int32))
    tl.store(out + 4, tl.atomic_poll(flags, 7, sem="relaxed", timeout_ns=WAIT).to(tl.int32))


def test_atomic_poll_looks_once_or_waits():
    flags, out = np.array([7, 1, 7, 2], np.int32), np.zeros(5, np.int32)
    polls[(1,)](flags, out, WAIT=0)
    assert out.tolist() == [1, 0, 1, 0, 1]
    assert flags.tolist() == [7, 1, 7, 2]
    polls[(1,)](np.full(4, 7, np.int32), out, WAIT=None)
    assert out.tolist() == [1] * 5


@blocknb.kernel
def hands_over(flag, data, out):
    if tl.program_id(0) == 0:
        tl.store(data, 42)
        tl.debug_barrier()
        tl.atomic_xchg(flag, 1, sem="release")
    else:
        tl.atomic_poll(flag, 1)
        tl.store(out, tl.load(data))


def test_atomic_poll_waits_for_a_program_with_a_lower_id():
    flag, data, out = (np.zeros(1, np.int32) for _ in range(3))
    hands_over[(2,)](flag, data, out)
    assert out.tolist() == [42]


@blocknb.kernel
def indices(x, out):
    v = tl.load(x + tl.arange(0, 4))
    tl.store(out, tl.argmin(v, 0))
    tl.store(out + 1, tl.argmax(v, 0))


@pytest.mark.parametrize(
    ("x", "found"),
    [
        ([1, np.nan, 3, 2], [0, 2]),
        ([np.nan, 1, 3, 2], [1, 2]),
        ([np.nan] * 4, [0, 0]),
        ([2, 1, 1, np.nan], [1, 0]),
        ([3, np.nan, 3, np.nan], [0, 0]),
    ],
)
def test_a_nan_loses_in_argmin_and_argmax_compiled_and_interpreted(x, found):
    for launch in (indices[(1,)], indices.interpret((1,))):
        out = np.zeros(2, np.int32)
        launch(np.array(x, np.float32), out)
        assert out.tolist() == found


def test_options_of_the_amd_back_end_are_ignored():
    x, out = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
    shapes[(1,)](x, out, matrix_instr_nonkdim=16, waves_per_eu=2, kpack=1)
    assert out.tolist() == x.tolist()


def test_a_dtype_is_made_from_its_name():
    assert tl.dtype("fp16") == tl.float16
    assert tl.dtype("int32").is_int_signed()
    assert tl.dtype.SINT_TYPES == ["int8", "int16", "int32", "int64"]
    assert "fp8e5" in tl.dtype.FP_TYPES
    with pytest.raises(ValueError, match="no dtype is named 'fp12'"):
        tl.dtype("fp12")
