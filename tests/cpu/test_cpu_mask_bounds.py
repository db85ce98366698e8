"""Mask bounds: one loop nest writes a tile in scratch up to the row's end, and a nest with wider vectors reads it."""

import itertools
import re

import frontend_helpers
import numpy as np
import pytest
from native import compile_native, launch_native

import blocknb
import blocknb.language as tl
from blocknb import passes
from blocknb.codegen import cpu
from blocknb.frontend.parse import parse
from blocknb.target import Target


@blocknb.kernel
def above(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    codes = tl.load(x + i, mask=i < n, other=0.0).to(tl.int8)
    keep = codes > 2
    total = tl.sum(codes.to(tl.int32), 0).to(tl.int8)
    tl.store(out + i, codes - total, mask=keep)


def wrong_lengths(dtype, block, lengths, kernel=above):
    """The lengths for which codes and mask, written in narrow vectors and read in wide ones, differ from NumPy."""
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
def test_padding_for_wider_vectors_keeps_neighbouring_tiles(dtype):
    assert wrong_lengths(dtype, 64, [1, 4, 17, 31, 33, 63, 64]) == []


@pytest.mark.full
@pytest.mark.parametrize("block", [64, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_for_wider_vectors_keeps_neighbouring_tiles_at_every_length(dtype, block):
    assert wrong_lengths(dtype, block, range(1, block + 1)) == []


@frontend_helpers.kernel
def two_ends(x, y, n, m, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=1) + tl.load(x + BLOCK + i, mask=i < m, other=0)
    tl.store(y, tl.sum(v, axis=0))
    tl.store(y + 1, tl.max(v, axis=0))
    tl.store(y + 2 + i, v * 2 - tl.max(v, axis=0), mask=i < n)
    tl.store(y + BLOCK + 2 + i, v + tl.min(v, axis=0), mask=i < m + 7)


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_rows_with_two_masks_end_at_the_later_bound(dtype):
    block, lengths = 128, [-3, 0, 1, 16, 33, 64, 100, 127, 128, 200]
    rng = np.random.default_rng(2)
    x, y = rng.integers(2, 50, (2, 2 * block + 2)).astype(dtype)
    values = {"x": x, "y": y, "n": 1, "m": 1, "BLOCK": block}
    func = parse(two_ends.source, {p: frontend_helpers.argument(two_ends, p, value) for p, value in values.items()}, {})
    native, i = compile_native(func), np.arange(block)
    for n, m in itertools.product(lengths, lengths):
        v = np.where(i < n, x[:block], 1) + np.where(i < m, x[block : 2 * block], 0)
        expected = np.full_like(y, 99)
        expected[:2] = v.sum(), v.max()
        expected[2 : 2 + block][i < n] = (v * 2 - v.max())[i < n]
        expected[block + 2 :][i < m + 7] = (v + v.min())[i < m + 7]
        y[:] = 99
        launch_native(native, [{**values, "n": n, "m": m}[hint.name] for hint in func.hints], 1)
        np.testing.assert_array_equal(y, expected, err_msg=f"n = {n}, m = {m}")


@pytest.mark.parametrize(("target", "width"), [("cpu:x86-64-v4", 16), ("cpu:x86-64-v2", 4)])
def test_row_bound_is_the_later_mask_rounded_up_to_whole_vectors(target, width):
    """In LLVM text: max(0, min(max(n, m), 128)), rounded up to whole vectors, tested against the size of the tile."""
    parsed = Target.parse(target)
    func = frontend_helpers.ir(two_ends, x="*f32", y="*f32", n="i32", m="i32", BLOCK=128)
    text = cpu.generate(passes.run(func, parsed)[0], parsed).text
    steps = (
        r"(%\w+) = call i64 @llvm.smax.i64\(i64 %\w+, i64 %\w+\)",
        r"(%\w+) = call i64 @llvm.smin.i64\(i64 {0}, i64 128\)",
        r"(%\w+) = call i64 @llvm.smax.i64\(i64 {0}, i64 0\)",
        rf"(%\w+) = add i64 {{0}}, {width - 1}",
        rf"(%\w+) = and i64 {{0}}, -{width}",
        r"(%\w+) = icmp slt i64 {0}, 128",
    )
    lines, found = iter(line.split(", !dbg")[0].strip() for line in text.splitlines()), [""]
    for step in steps:
        matches = (re.fullmatch(step.format(*found), line) for line in lines)
        found = [next(match for match in matches if match)[1]]


@frontend_helpers.kernel
def by_views(x, y, n, BLOCK: tl.constexpr):
    """Readers of a padded tile: reshaped, flipped, inside a branch and a loop, after another padded tile."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    w = v * 2 + tl.sum(v, axis=0)
    square = tl.reshape(w, (8, BLOCK // 8))
    tl.store(y + i, w - tl.max(w, axis=0), mask=i < n)
    if n > 20:
        tl.store(y + BLOCK + i, w + 1)
    for k in range(2):
        tl.store(y + (2 + k) * BLOCK + i, tl.flip(w) + k)
    r, c = tl.arange(0, 8), tl.arange(0, BLOCK // 8)
    tl.store(y + 4 * BLOCK + c[None, :] * 8 + r[:, None], square + tl.sum(square, axis=1)[:, None])


@pytest.mark.parametrize("dtype", ["int32", "float64"])
def test_padding_is_written_for_readers_of_every_kind(dtype):
    block = 256
    rng = np.random.default_rng(4)
    x = rng.integers(2, 50, block).astype(dtype)
    y = np.zeros(5 * block, dtype)
    values = {"x": x, "y": y, "n": 1, "BLOCK": block}
    func = parse(by_views.source, {p: frontend_helpers.argument(by_views, p, value) for p, value in values.items()}, {})
    native, i = compile_native(func), np.arange(block)
    for n in (0, 3, 20, 21, 64, 150, 255, 256):
        v = np.where(i < n, x, 0)
        w = v * 2 + v.sum()
        square = w.reshape(8, -1)
        expected = np.full((5, block), 99, dtype)
        expected[0][:n] = (w - w.max())[:n]
        if n > 20:
            expected[1] = w + 1
        expected[2], expected[3] = w[::-1], w[::-1] + 1
        expected[4] = (square + square.sum(1, keepdims=True)).T.ravel()
        y[:] = 99
        launch_native(native, [{**values, "n": n}[hint.name] for hint in func.hints], 1)
        np.testing.assert_array_equal(y.reshape(5, block), expected, err_msg=f"n = {n}")
