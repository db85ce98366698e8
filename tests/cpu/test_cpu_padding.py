"""Rows that end before their tile does, where one loop nest writes a tile in scratch and a nest with wider vectors reads it."""

import numpy as np
import pytest

import blocknb
import blocknb.language as tl


@blocknb.kernel
def above(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    codes = tl.load(x + i, mask=i < n, other=0.0).to(tl.int8)
    keep = codes > 2
    total = tl.sum(codes.to(tl.int32), 0).to(tl.int8)
    tl.store(out + i, codes - total, mask=keep)


def wrong_lengths(dtype, block, lengths, kernel=above):
    """The lengths for which codes and mask, written in narrow vectors and read in wide ones, give another result than NumPy."""
    wrong = []
    for n in lengths:
        x = (np.arange(block) % 7).astype(dtype)
        codes = np.where(np.arange(block) < n, x, 0).astype(np.int8)
        expected = np.where(codes > 2, codes - codes.sum(dtype=np.int32).astype(np.int8), 99).astype(np.int8)
        out = np.full(block, 99, np.int8)
        kernel[(1,)](x, out, n, BLOCK=block)
        if not np.array_equal(out, expected):
            wrong.append(n)
    return wrong


DTYPES = ["float32", "float64", "int32", "int64", "float16"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_reader_with_wider_vectors_finds_the_tiles_around_the_padding_whole(dtype):
    assert wrong_lengths(dtype, 64, [1, 4, 17, 31, 33, 63, 64]) == []


@pytest.mark.full
@pytest.mark.parametrize("block", [64, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_reader_with_wider_vectors_finds_them_whole_at_every_length(dtype, block):
    assert wrong_lengths(dtype, block, range(1, block + 1)) == []
