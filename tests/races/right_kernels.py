"""Kernels without a race, next to the racy ones: right locks, tickets, messages, atomics, persistent loops, updates in place."""

from __future__ import annotations

import numpy as np

import blocknb.language as tl
from races.corpus import floats, ints, right, zeros


@right(8, lambda: {"x": floats(250), "out": zeros(250), "n": 250, "B": 32})
def each_its_own_block(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)


@right(8, lambda: {"x": floats(256), "B": 32})
def elementwise_in_place(x, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + i, tl.load(x + i) * 2)


@right(4, lambda: {"x": floats(4, 64), "B": 64})
def softmax_in_place(x, B: tl.constexpr):
    row = x + tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(row)
    e = tl.exp(v - tl.max(v))
    tl.store(row, e / tl.sum(e))


@right(8, lambda: {"x": floats(256), "out": zeros(1), "B": 32})
def sum_by_atomics(x, out, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(out, tl.sum(tl.load(x + i)))


@right(8, lambda: {"x": floats(256), "out": zeros(1), "B": 32})
def sum_by_relaxed_atomics(x, out, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(out, tl.sum(tl.load(x + i)), sem="relaxed")


@right(8, lambda: {"x": floats(256), "counts": ints(17), "B": 32})
def histogram_by_atomics(x, counts, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(counts + tl.load(x + i).to(tl.int32), 1)


@right(8, lambda: {"x": floats(258), "out": zeros(256), "B": 32})
def stencil_to_another_array(x, out, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i) + tl.load(x + i + 1) + tl.load(x + i + 2))


@right((4, 4), lambda: {"x": floats(32, 32), "out": zeros(32, 32), "B": 8})
def transpose(x, out, B: tl.constexpr):
    r = tl.program_id(0) * B + tl.arange(0, B)
    c = tl.program_id(1) * B + tl.arange(0, B)
    tl.store(out + c[:, None] * 32 + r[None, :], tl.trans(tl.load(x + r[:, None] * 32 + c[None, :])))


@right(4, lambda: {"x": floats(32, 32), "B": 8})
def transpose_in_place_of_pairs_of_tiles(x, B: tl.constexpr):
    r = tl.program_id(0) * B + tl.arange(0, B)
    for j in range(4):
        if j >= tl.program_id(0):
            c = j * B + tl.arange(0, B)
            here, there = x + r[:, None] * 32 + c[None, :], x + c[:, None] * 32 + r[None, :]
            a, b = tl.load(here), tl.load(there)
            tl.debug_barrier()
            tl.store(here, tl.trans(b))
            tl.debug_barrier()
            tl.store(there, tl.trans(a))


@right((2, 2), lambda: {"a": floats(32, 64), "b": floats(64, 32), "c": zeros(32, 32), "B": 16})
def matmul(a, b, c, B: tl.constexpr):
    r = tl.program_id(0) * B + tl.arange(0, B)
    n = tl.program_id(1) * B + tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for k0 in range(0, 64, B):
        k = k0 + tl.arange(0, B)
        total += tl.dot(tl.load(a + r[:, None] * 64 + k[None, :]), tl.load(b + k[:, None] * 32 + n[None, :]))
    tl.store(c + r[:, None] * 32 + n[None, :], total)


@right((2, 2, 4), lambda: {"a": floats(32, 64), "b": floats(64, 32), "c": zeros(32, 32), "B": 16})
def split_k_by_atomics(a, b, c, B: tl.constexpr):
    r = tl.program_id(0) * B + tl.arange(0, B)
    n = tl.program_id(1) * B + tl.arange(0, B)
    k = tl.program_id(2) * B + tl.arange(0, B)
    product = tl.dot(tl.load(a + r[:, None] * 64 + k[None, :]), tl.load(b + k[:, None] * 32 + n[None, :]))
    tl.atomic_add(c + r[:, None] * 32 + n[None, :], product)


@right(3, lambda: {"x": floats(256), "out": zeros(256), "B": 32})
def persistent_loop(x, out, B: tl.constexpr):
    for block in range(tl.program_id(0), 8, tl.num_programs(0)):
        i = block * B + tl.arange(0, B)
        tl.store(out + i, tl.load(x + i) + 1)


@right(3, lambda: {"x": floats(256), "out": zeros(256), "next": ints(1), "B": 32})
def dynamic_schedule(x, out, next, B: tl.constexpr):
    block = tl.atomic_add(next, 1)
    while block < 8:
        i = block * B + tl.arange(0, B)
        tl.store(out + i, tl.load(x + i) + 1)
        block = tl.atomic_add(next, 1)


@right(8, lambda: {"out": np.zeros(255, np.float16), "B": 15})
def neighbours_of_16_bits(out, B: tl.constexpr):
    i = tl.arange(0, 16)
    tl.store(out + tl.program_id(0) * B + i, i.to(tl.float16), mask=i < B)


@right(8, lambda: {"out": np.zeros(64, np.int8)})
def neighbours_of_8_bits(out):
    tl.store(out + tl.program_id(0) * 3 + tl.arange(0, 2), tl.program_id(0).to(tl.int8))


@right(8, lambda: {"words": ints(8), "out": np.zeros(32, np.int8)})
def bytes_and_words(words, out):
    pid = tl.program_id(0)
    tl.store(words + pid, pid)
    tl.store(out + pid, pid.to(tl.int8))


@right(4, lambda: _neighbours())
def neighbouring_views(first, second, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(first + i, tl.load(second + i))


def _neighbours() -> dict:
    base = floats(128)
    return {"first": base[:64], "second": base[64:], "B": 16}


@right(4, lambda: _columns())
def interleaved_views(even, odd, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(even + 2 * i, tl.load(odd + 2 * i))


def _columns() -> dict:
    base = floats(64, 2)
    return {"even": base[:, 0], "odd": base[:, 1], "B": 16}


@right(6, lambda: {"data": ints(32), "lock": ints(1), "B": 32})
def lock(data, lock, B: tl.constexpr):
    p = data + tl.arange(0, B)
    while tl.atomic_cas(lock, 0, 1, sem="acquire") == 1:
        pass
    tl.store(p, tl.load(p) + 1)
    tl.atomic_xchg(lock, 0, sem="release")


@right(6, lambda: {"data": ints(32), "lock": ints(1), "B": 32})
def lock_of_the_tutorial(data, lock, B: tl.constexpr):
    p = data + tl.arange(0, B)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(p, tl.load(p) + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@right(6, lambda: {"data": ints(32), "lock": ints(1), "B": 32})
def lock_that_polls(data, lock, B: tl.constexpr):
    p = data + tl.arange(0, B)
    waiting = 1
    while waiting == 1:
        while tl.load(lock, volatile=True) == 1:
            pass
        waiting = tl.atomic_cas(lock, 0, 1, sem="relaxed")
    tl.store(p, tl.load(p) + 1)
    tl.atomic_xchg(lock, 0, sem="release")


@right(6, lambda: {"data": ints(32), "tickets": ints(2), "B": 32})
def ticket_lock(data, tickets, B: tl.constexpr):
    p = data + tl.arange(0, B)
    mine = tl.atomic_add(tickets, 1, sem="relaxed")
    while tl.atomic_add(tickets + 1, 0, sem="acquire") != mine:
        pass
    tl.store(p, tl.load(p) + 1)
    tl.atomic_add(tickets + 1, 1, sem="release")


@right(2, lambda: {"data": ints(32), "flag": ints(1), "out": ints(32), "B": 32})
def message(data, flag, out, B: tl.constexpr):
    i = tl.arange(0, B)
    if tl.program_id(0) == 0:
        tl.store(data + i, i)
        tl.atomic_xchg(flag, 1, sem="release")
    else:
        while tl.atomic_add(flag, 0, sem="acquire") == 0:
            pass
        tl.store(out + i, tl.load(data + i))


@right(2, lambda: {"data": ints(32), "flag": ints(1), "out": ints(32), "B": 32})
def message_by_a_volatile_poll(data, flag, out, B: tl.constexpr):
    i = tl.arange(0, B)
    if tl.program_id(0) == 0:
        tl.store(data + i, i)
        tl.atomic_xchg(flag, 1)
    else:
        while tl.load(flag, volatile=True) == 0:
            pass
        tl.store(out + i, tl.load(data + i))


@right(4, lambda: {"data": ints(32), "flags": ints(4), "out": ints(32), "B": 32})
def message_through_others(data, flags, out, B: tl.constexpr):
    pid, i = tl.program_id(0), tl.arange(0, B)
    if pid == 0:
        tl.store(data + i, i)
    else:
        while tl.atomic_add(flags + pid - 1, 0, sem="acquire") == 0:
            pass
        if pid == 3:
            tl.store(out + i, tl.load(data + i))
    tl.atomic_xchg(flags + pid, 1, sem="release")


@right(2, lambda: {"cells": ints(8), "out": ints(4), "count": ints(1), "P": 2}, True)
def grid_barrier(cells, out, count, P: tl.constexpr):
    pid = tl.program_id(0)
    for step in range(3):
        side = step % 2 * P
        tl.store(cells + side + pid, step)
        tl.atomic_add(count, 1)
        while tl.load(count, volatile=True) < (step + 1) * P:
            pass
        tl.store(out + pid, tl.load(cells + side + (pid + 1) % P))


@right(4, lambda: {"x": floats(64), "partials": zeros(4), "count": ints(1), "out": zeros(1), "B": 16})
def last_program_adds(x, partials, count, out, B: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(partials + pid, tl.sum(tl.load(x + pid * B + tl.arange(0, B))))
    if tl.atomic_add(count, 1) == 3:
        tl.store(out, tl.sum(tl.load(partials + tl.arange(0, 4))))
        tl.store(count, 0)


@right(4, lambda: {"x": floats(64), "out": zeros(16), "flags": ints(8), "B": 16})
def stream_k(x, out, flags, B: tl.constexpr):
    pid, i = tl.program_id(0), tl.arange(0, B)
    part = tl.load(x + pid * B + i)
    if pid > 0:
        while tl.atomic_add(flags + pid - 1, 0, sem="acquire") == 0:
            pass
        part += tl.load(out + i)
    tl.store(out + i, part)
    tl.atomic_xchg(flags + pid, 1, sem="release")


@right(4, lambda: {"x": floats(64), "sums": zeros(4), "ready": ints(4), "out": zeros(64), "B": 16})
def look_back(x, sums, ready, out, B: tl.constexpr):
    pid, i = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + pid * B + i)
    before = 0.0
    if pid > 0:
        while tl.atomic_add(ready + pid - 1, 0, sem="acquire") == 0:
            pass
        before = tl.load(sums + pid - 1)
    tl.store(sums + pid, before + tl.sum(v))
    tl.atomic_xchg(ready + pid, 1, sem="release")
    tl.store(out + pid * B + i, tl.cumsum(v) + before)


@right(4, lambda: {"out": zeros(64), "B": 16})
def block_pointers(out, B: tl.constexpr):
    place = tl.make_block_ptr(out, (60,), (1,), (tl.program_id(0) * B,), (B,), (0,))
    tl.store(place, tl.full((B,), 1.0, tl.float32), boundary_check=(0,))


@right(4, lambda: {"x": floats(64), "best": zeros(1), "B": 16})
def maximum_by_atomics(x, best, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_max(best, tl.max(tl.load(x + i)))


@right(4, lambda: {"index": np.arange(64, dtype=np.int32)[::-1].copy(), "out": zeros(64), "B": 16})
def scatter_of_a_permutation(index, out, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + tl.load(index + i), i.to(tl.float32))


@right(4, lambda: {"x": floats(64), "out": zeros(16), "B": 16})
def one_program_stores(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * B + i)
    tl.store(out + i, v, mask=(i >= 0) & (tl.program_id(0) == 2))


@right(4, lambda: {"seen": ints(1), "out": ints(4)})
def failing_swaps_beside_loads(seen, out):
    pid = tl.program_id(0)
    tl.store(out + pid, tl.load(seen) + tl.atomic_cas(seen, 7, 8, sem="relaxed"))
