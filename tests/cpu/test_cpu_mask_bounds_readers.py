"""A row that ends before its tile is padded for readers that are no row loops: branches, loops, flips, scans."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import blocknb.language as tl
from blocknb import kernel
from blocknb.runtime import host


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scratch holds garbage, the same in each run."""
    plain = type(host._scratch).at_least

    def at_least(memory, size):
        address = plain(memory, size)
        ctypes.memset(address, 0xFF, size)
        return address

    monkeypatch.setattr(type(host._scratch), "at_least", at_least)


@kernel
def flipped(o, n):
    i = tl.arange(0, 128)
    m = i < n
    tl.store(o + i, tl.flip(m.to(tl.int32), 0), mask=m)


@kernel
def scanned(o, n):
    i = tl.arange(0, 128)
    m = i < n
    tl.store(o + i, tl.cumsum(m.to(tl.int32), 0, reverse=True), mask=m)


@kernel
def branched(o, n):
    i = tl.arange(0, 128)
    a = (i < n).to(tl.int32)
    if n > 1000:
        a = i
    tl.store(o + i, a)


@kernel
def chosen(o, n):
    i = tl.arange(0, 128)
    if n < 1000:
        a = (i < n).to(tl.int64)
    else:
        a = tl.full((128,), 1, tl.int64)
    tl.store(o + i, tl.sum(a, 0).to(tl.int32) + i)


@kernel
def looped(o, n):
    i = tl.arange(0, 128)
    a = tl.zeros((128,), tl.int32)
    for j in range(0, n, 128):
        a = (j + i < n).to(tl.int32)
    tl.store(o + i, a)


EXPECTED = {
    flipped: lambda i, m: np.where(m, m[::-1], 7),
    scanned: lambda i, m: np.where(m, m[::-1].cumsum()[::-1], 7),
    branched: lambda i, m: m,
    chosen: lambda i, m: i + m.sum(),
    looped: lambda i, m: m,
}


@pytest.mark.parametrize("run", EXPECTED, ids=lambda k: k.__name__)
def test_readers_that_are_not_row_loops_see_the_whole_tile(run) -> None:
    i = np.arange(128, dtype=np.int32)
    for n in (1, 9, 31, 32, 65, 127, 128):
        got = np.full(128, 7, np.int32)
        run[(1,)](got, n)
        np.testing.assert_array_equal(got, EXPECTED[run](i, (i < n).astype(np.int32)), err_msg=f"n = {n}")
