"""Racy kernels without atomics that order anything: wrong addresses, updates in place, reductions without atomics.

Several are samples of compute-sanitizer (block_error, warp_error, sum reduction, suballocation) and textbook mistakes, written as block
programs. A program takes the place of a thread or a warp, and global memory that of shared memory.
"""

from __future__ import annotations

import numpy as np

import blocknb.language as tl
from races.corpus import floats, ints, racy, zeros


@racy(8, "out", 0, lambda: {"x": floats(256), "out": zeros(256), "B": 32})
def missing_program_id(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + i))  # race


@racy(8, "out", 0, lambda: {"x": floats(256), "out": zeros(1), "B": 32})
def sum_without_atomics(x, out, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    total = tl.load(out)
    tl.store(out, total + tl.sum(tl.load(x + i)))  # race


@racy(8, "out", 127, lambda: {"out": zeros(1024), "B": 128})
def stride_too_small(out, B: tl.constexpr):
    i = tl.program_id(0) * (B - 1) + tl.arange(0, B)
    tl.store(out + i, i.to(tl.float32))  # race


@racy(8, "x", 31, lambda: {"x": floats(256), "n": 256, "B": 32})
def stencil_in_place(x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    left = tl.load(x + i - 1, mask=i > 0, other=0.0)  # race
    tl.store(x + i, left + tl.load(x + i))  # race


@racy(8, "x", 32, lambda: {"x": floats(264), "B": 32})
def right_neighbour_in_place(x, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    right = tl.load(x + i + 1)  # race
    tl.store(x + i, right)  # race


@racy((4, 4), "x", 8, lambda: {"x": floats(32, 32), "B": 8})
def transpose_in_place(x, B: tl.constexpr):
    r = tl.program_id(0) * B + tl.arange(0, B)
    c = tl.program_id(1) * B + tl.arange(0, B)
    tile = tl.load(x + r[:, None] * 32 + c[None, :])  # race
    tl.store(x + c[:, None] * 32 + r[None, :], tl.trans(tile))  # race


@racy(4, "x", 0, lambda: {"x": floats(4, 64), "B": 64})
def normalize_by_the_first_row(x, B: tl.constexpr):
    i = tl.arange(0, B)
    first = tl.load(x + i)  # race
    row = x + tl.program_id(0) * B + i
    tl.store(row, tl.load(row) / (first + 1))  # race


@racy((4, 2), "x", 0, lambda: {"x": floats(4, 64), "B": 32})
def softmax_in_place_by_halves(x, B: tl.constexpr):
    row = x + tl.program_id(0) * 2 * B
    whole = tl.load(row + tl.arange(0, 2 * B))  # race
    i = tl.program_id(1) * B + tl.arange(0, B)
    half = tl.load(row + i)
    tl.store(row + i, tl.exp(half - tl.max(whole)) / tl.sum(tl.exp(whole - tl.max(whole))))  # race


@racy(8, "counts", 0, lambda: {"x": floats(256), "counts": ints(16), "B": 32})
def histogram_without_atomics(x, counts, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    bin = tl.load(x + i).to(tl.int32) % 4
    for b in range(4):
        n = tl.sum((bin == b).to(tl.int32))
        tl.store(counts + b, tl.load(counts + b) + n)  # race


@racy((2, 2, 4), "c", 0, lambda: {"a": floats(32, 64), "b": floats(64, 32), "c": zeros(32, 32), "B": 16})
def split_k_with_plain_adds(a, b, c, B: tl.constexpr):
    r = tl.program_id(0) * B + tl.arange(0, B)
    n = tl.program_id(1) * B + tl.arange(0, B)
    k = tl.program_id(2) * B + tl.arange(0, B)
    product = tl.dot(tl.load(a + r[:, None] * 64 + k[None, :]), tl.load(b + k[:, None] * 32 + n[None, :]))
    place = c + r[:, None] * 32 + n[None, :]
    tl.store(place, tl.load(place) + product)  # race


@racy(4, "out", 48, lambda: {"x": floats(256), "out": zeros(256), "n": 200, "B": 64})
def ragged_overlap(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * 48 + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n, other=0.0), mask=i < n)  # race


@racy(8, "out", 0, lambda: {"out": zeros(64), "B": 8})
def swapped_axes(out, B: tl.constexpr):
    i = tl.program_id(1) * B + tl.arange(0, B)
    tl.store(out + i, i.to(tl.float32))  # race


@racy((4, 4), "out", 0, lambda: {"out": zeros(256), "B": 16})
def grid_with_an_unused_axis(out, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, i.to(tl.float32))  # race


@racy(8, "found", 0, lambda: {"x": floats(256), "found": ints(1), "B": 32})
def flag_that_all_set(x, found, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    if tl.max(tl.load(x + i)) > 5:
        tl.store(found, tl.program_id(0))  # race


@racy(8, "out", 0, lambda: {"x": floats(256), "out": zeros(1), "B": 32})
def maximum_without_atomics(x, out, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out, tl.maximum(tl.load(out), tl.max(tl.load(x + i))))  # race


@racy(8, "out", 3, lambda: {"index": np.arange(256, dtype=np.int32) % 64 + 3, "out": zeros(80), "B": 32})
def scatter_with_equal_indices(index, out, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + tl.load(index + i), i.to(tl.float32))  # race


@racy(4, "x", 10, lambda: {"x": floats(256), "index": np.full(256, 10, np.int32), "B": 64})
def gather_in_place(x, index, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i, tl.load(x + tl.load(index + i)))  # race


@racy(8, "out", 0, lambda: {"x": floats(256), "out": zeros(256), "B": 32})
def second_phase_without_a_barrier(x, out, B: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i))  # race
    j = (7 - pid) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(out + j))  # race


@racy(8, "partial", 1, lambda: {"x": floats(256), "partial": zeros(8), "out": zeros(1), "B": 32})
def first_program_adds_the_partials(x, partial, out, B: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * B + tl.arange(0, B)
    tl.store(partial + pid, tl.sum(tl.load(x + i)))  # race
    if pid == 0:
        tl.store(out, tl.sum(tl.load(partial + tl.arange(0, 8))))  # race


@racy(8, "out", 31, lambda: {"x": floats(300), "out": zeros(300), "B": 32})
def halo_is_stored_twice(x, out, B: tl.constexpr):
    i = tl.program_id(0) * 31 + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i) * 2)  # race


@racy(4, "out", 0, lambda: {"out": zeros(64), "B": 16})
def block_pointer_without_offset(out, B: tl.constexpr):
    place = tl.make_block_ptr(out, (64,), (1,), (0,), (B,), (0,))
    tl.store(place, tl.full((B,), 1.0, tl.float32))  # race


@racy(4, "out", 0, lambda: {"x": floats(64, 64), "out": zeros(64), "B": 16})
def column_sums_of_row_blocks(x, out, B: tl.constexpr):
    r = tl.program_id(0) * B + tl.arange(0, B)
    c = tl.arange(0, 64)
    tl.store(out + c, tl.sum(tl.load(x + r[:, None] * 64 + c[None, :]), 0))  # race


@racy(64, "first", 1, lambda: {"x": ints(64), "first": ints(64), "second": ints(2), "WARP": 32})
def one_program_of_each_group_adds_its_partials(x, first, second, WARP: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(first + pid, tl.load(x + pid) + pid)  # race
    if pid % WARP == 0:
        tl.store(second + pid // WARP, tl.sum(tl.load(first + pid + tl.arange(0, WARP))))  # race


@racy(6, "out", 0, lambda: {"out": zeros(256), "B": 64})
def modulo_of_the_program(out, B: tl.constexpr):
    i = tl.program_id(0) % 4 * B + tl.arange(0, B)
    tl.store(out + i, i.to(tl.float32))  # race


@racy(8, "out", 0, lambda: {"out": np.zeros(256, np.int8), "B": 32})
def bytes_of_two_programs(out, B: tl.constexpr):
    i = tl.program_id(0) // 2 * B + tl.arange(0, B)
    tl.store(out + i, i.to(tl.int8))  # race


@racy(4, "view", 0, lambda: _overlapping())
def arrays_that_overlap(x, view, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i)  # race
    tl.store(view + i, v)  # race


def _overlapping() -> dict:
    base = floats(80)
    return {"x": base[:64], "view": base[16:], "B": 16}


@racy(4, "acc", 0, lambda: {"acc": zeros(4), "x": floats(64), "B": 16})
def atomics_and_a_plain_store(acc, x, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(acc, tl.sum(tl.load(x + i)))  # race
    if tl.program_id(0) == 3:
        tl.store(acc, 0.0)  # race


@racy(4, "acc", 0, lambda: {"acc": zeros(4), "out": zeros(4), "x": floats(64), "B": 16})
def sum_is_read_by_all(acc, out, x, B: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * B + tl.arange(0, B)
    tl.atomic_add(acc, tl.sum(tl.load(x + i)))  # race
    tl.store(out + pid, tl.load(acc))  # race


@racy(4, "acc", 0, lambda: {"acc": zeros(4), "x": floats(64), "B": 16})
def atomics_of_a_cta(acc, x, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(acc, tl.sum(tl.load(x + i)), scope="cta")  # race


@racy(8, "ring", 32, lambda: {"x": floats(256), "ring": zeros(256), "B": 32})
def reader_of_the_next_slot(x, ring, B: tl.constexpr):
    pid = tl.program_id(0)
    i = tl.arange(0, B)
    tl.store(ring + pid * B + i, tl.load(x + pid * B + i))  # race
    following = tl.load(ring + (pid + 1) * B + i, mask=i + pid * B < 224)  # race
    tl.store(x + pid * B + i, following)
