"""Racy kernels with locks, tickets, messages, barriers and hand-overs that order too little."""

from __future__ import annotations

import blocknb.language as tl
from races.corpus import first_of_others, floats, ints, racy, zeros


@racy(6, "data", 0, lambda: {"data": ints(32), "lock": ints(1), "B": 32})
def lock_released_before_the_store(data, lock, B: tl.constexpr):
    p = data + tl.arange(0, B)
    while tl.atomic_cas(lock, 0, 1, sem="acquire") == 1:
        pass
    old = tl.load(p)
    tl.atomic_xchg(lock, 0, sem="release")
    tl.store(p, old + 1)  # race


@racy(6, "data", 0, lambda: {"data": ints(32), "lock": ints(1), "B": 32})
def lock_released_by_relaxed(data, lock, B: tl.constexpr):
    p = data + tl.arange(0, B)
    while tl.atomic_cas(lock, 0, 1, sem="acquire") == 1:
        pass
    tl.store(p, tl.load(p) + 1)  # race
    tl.atomic_xchg(lock, 0, sem="relaxed")


@racy(6, "data", 0, lambda: {"data": ints(32), "lock": ints(1), "B": 32})
def lock_taken_after_the_access(data, lock, B: tl.constexpr):
    p = data + tl.arange(0, B)
    tl.store(p, tl.program_id(0) + tl.zeros((B,), tl.int32))  # race
    while tl.atomic_cas(lock, 0, 1, sem="acquire") == 1:
        pass
    tl.atomic_xchg(lock, 0, sem="release")


@racy(6, "data", 0, lambda: {"data": ints(32), "lock": ints(8), "B": 32})
def a_lock_of_its_own(data, lock, B: tl.constexpr):
    p, mine = data + tl.arange(0, B), lock + tl.program_id(0)
    while tl.atomic_cas(mine, 0, 1, sem="acquire") == 1:
        pass
    tl.store(p, tl.load(p) + 1)  # race
    tl.atomic_xchg(mine, 0, sem="release")


@racy(6, "lock", 0, lambda: {"lock": ints(1), "data": ints(32), "B": 32})
def lock_released_by_a_plain_store(lock, data, B: tl.constexpr):
    p = data + tl.arange(0, B)
    while tl.atomic_cas(lock, 0, 1, sem="acq_rel") == 1:
        pass
    tl.store(p, tl.load(p) + 1)
    tl.store(lock, 0)  # race


@racy(6, "data", 0, lambda: {"data": ints(32), "lock": ints(1), "B": 32})
def lock_of_the_scope_cta(data, lock, B: tl.constexpr):
    p = data + tl.arange(0, B)
    while tl.atomic_cas(lock, 0, 1, sem="acquire") == 1:
        pass
    tl.store(p, tl.load(p) + 1)  # race
    tl.atomic_xchg(lock, 0, sem="release", scope="cta")


@racy(6, "data", 0, lambda: {"data": ints(32), "tickets": ints(2), "B": 32})
def ticket_served_by_relaxed(data, tickets, B: tl.constexpr):
    p = data + tl.arange(0, B)
    mine = tl.atomic_add(tickets, 1, sem="relaxed")
    while tl.atomic_add(tickets + 1, 0, sem="acquire") != mine:
        pass
    tl.store(p, tl.load(p) + 1)  # race
    tl.atomic_add(tickets + 1, 1, sem="relaxed")


@racy(6, "data", 0, lambda: {"data": ints(32), "tickets": ints(2), "B": 32})
def ticket_served_before_the_store(data, tickets, B: tl.constexpr):
    p = data + tl.arange(0, B)
    mine = tl.atomic_add(tickets, 1, sem="relaxed")
    while tl.atomic_add(tickets + 1, 0, sem="acquire") != mine:
        pass
    old = tl.load(p)
    tl.atomic_add(tickets + 1, 1, sem="release")
    tl.store(p, old + 1)  # race


@racy(2, "data", 0, lambda: {"data": ints(32), "flag": ints(1), "out": ints(32), "B": 32})
def flag_raised_by_relaxed(data, flag, out, B: tl.constexpr):
    i = tl.arange(0, B)
    if tl.program_id(0) == 0:
        tl.store(data + i, i)  # race
        tl.atomic_xchg(flag, 1, sem="relaxed")
    else:
        while tl.atomic_add(flag, 0, sem="acquire") == 0:
            pass
        tl.store(out + i, tl.load(data + i))  # race


@racy(2, "data", 0, lambda: {"data": ints(32), "flag": ints(1), "out": ints(32), "B": 32})
def flag_raised_before_the_data(data, flag, out, B: tl.constexpr):
    i = tl.arange(0, B)
    if tl.program_id(0) == 0:
        tl.atomic_xchg(flag, 1, sem="release")
        tl.store(data + i, i)  # race
    else:
        while tl.atomic_add(flag, 0, sem="acquire") == 0:
            pass
        tl.store(out + i, tl.load(data + i))  # race


@racy(2, "flag", 0, lambda: {"flag": ints(1), "data": ints(32), "out": ints(32), "B": 32})
def flag_raised_by_a_plain_store(flag, data, out, B: tl.constexpr):
    i = tl.arange(0, B)
    if tl.program_id(0) == 0:
        tl.store(data + i, i)
        tl.store(flag, 1)  # race
    else:
        while tl.load(flag, volatile=True) == 0:  # race
            pass
        tl.store(out + i, tl.load(data + i))


@racy(2, "data", 0, lambda: {"data": ints(32), "flag": ints(1), "out": ints(32), "B": 32})
def data_read_before_the_wait(data, flag, out, B: tl.constexpr):
    i = tl.arange(0, B)
    if tl.program_id(0) == 0:
        tl.store(data + i, i)  # race
        tl.atomic_xchg(flag, 1, sem="release")
    else:
        early = tl.load(data + i)  # race
        while tl.atomic_add(flag, 0, sem="acquire") == 0:
            pass
        tl.store(out + i, early)


@racy(2, "data", 0, lambda: {"data": ints(32), "flag": ints(1), "out": ints(32), "B": 32})
def message_read_after_a_relaxed_look(data, flag, out, B: tl.constexpr):
    i = tl.arange(0, B)
    if tl.program_id(0) == 0:
        tl.store(data + i, i)  # race
        tl.atomic_xchg(flag, 1, sem="release")
    else:
        seen = tl.atomic_add(flag, 0, sem="relaxed")
        tl.store(out + i, tl.load(data + i) * seen)  # race


@racy(2, "cells", 1, lambda: {"cells": ints(4), "out": ints(4), "count": ints(1), "P": 2}, True)
def grid_barrier_of_relaxed_arrivals(cells, out, count, P: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(cells + pid, pid)  # race
    tl.atomic_add(count, 1, sem="relaxed")
    while tl.load(count, volatile=True) < P:
        pass
    tl.store(out + pid, tl.load(cells + 1))  # race


@racy(2, "cells", 0, lambda: {"cells": ints(8), "count": ints(1), "out": ints(4), "P": 2}, True)
def second_round_without_a_barrier(cells, count, out, P: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(cells + pid, pid)
    tl.atomic_add(count, 1)
    while tl.load(count, volatile=True) < P:
        pass
    got = tl.load(cells + (pid + 1) % P)  # race
    tl.store(cells + pid, got)  # race


@racy(
    4,
    "partials",
    first_of_others,
    lambda: {"x": floats(64), "partials": zeros(4), "count": ints(1), "out": zeros(1), "B": 16},
)
def last_program_without_acquire(x, partials, count, out, B: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(partials + pid, tl.sum(tl.load(x + pid * B + tl.arange(0, B))))  # race
    if tl.atomic_add(count, 1, sem="release") == 3:
        tl.store(out, tl.sum(tl.load(partials + tl.arange(0, 4))))  # race


@racy(
    4,
    "partials",
    first_of_others,
    lambda: {"x": floats(64), "partials": zeros(4), "count": ints(1), "out": zeros(1), "B": 16},
)
def last_program_without_release(x, partials, count, out, B: tl.constexpr):
    pid = tl.program_id(0)
    tl.store(partials + pid, tl.sum(tl.load(x + pid * B + tl.arange(0, B))))  # race
    if tl.atomic_add(count, 1, sem="acquire") == 3:
        tl.store(out, tl.sum(tl.load(partials + tl.arange(0, 4))))  # race


@racy(4, "out", 0, lambda: {"x": floats(64), "out": zeros(16), "flags": ints(8), "B": 16})
def stream_k_without_fence(x, out, flags, B: tl.constexpr):
    pid, i = tl.program_id(0), tl.arange(0, B)
    part = tl.load(x + pid * B + i)
    if pid > 0:
        while tl.atomic_add(flags + pid - 1, 0, sem="acquire") == 0:
            pass
        part += tl.load(out + i)
    tl.store(out + i, part)  # race
    tl.atomic_xchg(flags + pid, 1, sem="relaxed")


@racy(4, "sums", 0, lambda: {"x": floats(64), "sums": zeros(4), "ready": ints(4), "out": zeros(64), "B": 16})
def look_back_without_release(x, sums, ready, out, B: tl.constexpr):
    pid, i = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + pid * B + i)
    before = 0.0
    if pid > 0:
        while tl.atomic_add(ready + pid - 1, 0, sem="acquire") == 0:
            pass
        before = tl.load(sums + pid - 1)  # race
    tl.store(sums + pid, before + tl.sum(v))  # race
    tl.atomic_xchg(ready + pid, 1, sem="relaxed")
    tl.store(out + pid * B + i, tl.cumsum(v) + before)
