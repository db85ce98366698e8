"""Kernels whose programs synchronize by atomics: locks, tickets, message passing, last-program reductions.

Each is a litmus test: its result is wrong as soon as one update is lost or one read is stale. State carries over from launch to launch
(`epoch` counts them), so thousands of launches need no reset and a single check at the end.
"""

from __future__ import annotations

import blocknb
import blocknb.language as tl

SEMANTICS = (None, "acquire", "release", "acq_rel", "relaxed")


@blocknb.kernel
def triton_lock(data, lock, SEM: tl.constexpr):
    """Triton's test of `atomic_cas`: plain loads and stores of 128 elements under a lock, with each `sem`."""
    pointers = data + tl.arange(0, 128)
    while tl.atomic_cas(lock, 0, 1, SEM) == 1:
        pass
    tl.store(pointers, tl.load(pointers) + 1.0)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@blocknb.kernel
def lock(data, lock, SIZE: tl.constexpr):
    """A lock with acquire and release only. The data are read before the wait, so that a cache holds stale values."""
    pointers = data + tl.arange(0, SIZE)
    before = tl.load(pointers)
    while tl.atomic_cas(lock, 0, 1, sem="acquire") == 1:
        pass
    now = tl.load(pointers)
    tl.store(pointers, now + 1 + tl.where(before > now, 1 << 20, 0))
    tl.atomic_xchg(lock, 0, sem="release")


@blocknb.kernel
def volatile_lock(data, lock, SIZE: tl.constexpr):
    """Test and test-and-set: a volatile load polls, and a relaxed compare and swap takes the lock."""
    pointers = data + tl.arange(0, SIZE)
    before = tl.load(pointers)
    waiting = 1
    while waiting == 1:
        while tl.load(lock, volatile=True) == 1:
            pass
        waiting = tl.atomic_cas(lock, 0, 1, sem="relaxed")
    now = tl.load(pointers)
    tl.store(pointers, now + 1 + tl.where(before > now, 1 << 20, 0))
    tl.atomic_xchg(lock, 0, sem="release")


@blocknb.kernel
def ticket(data, tickets, SIZE: tl.constexpr, SEM: tl.constexpr):
    """A ticket lock: `tickets[0]` is the next ticket, `tickets[1]` the one that is served."""
    pointers = data + tl.arange(0, SIZE)
    mine = tl.atomic_add(tickets, 1, sem="relaxed")
    while tl.atomic_add(tickets + 1, 0, sem=SEM) != mine:
        pass
    tl.store(pointers, tl.load(pointers) + 1)
    tl.atomic_add(tickets + 1, 1, sem="release")


@blocknb.kernel(do_not_specialize=["epoch"])
def message(data, flags, errors, epoch, SIZE: tl.constexpr, POLL: tl.constexpr):
    """Even programs store `epoch` and raise a flag; each odd one, which has read the old data, waits for its flag and reads."""
    pid = tl.program_id(0)
    pointers = data + (pid // 2) * SIZE + tl.arange(0, SIZE)
    flag = flags + pid // 2
    if pid % 2 == 0:
        tl.store(pointers, tl.zeros((SIZE,), tl.int32) + epoch)
        tl.atomic_xchg(flag, epoch, sem="release")
    else:
        old = tl.load(pointers)
        if POLL == "volatile":
            while tl.load(flag, volatile=True) != epoch:
                pass
        elif POLL == "relaxed":
            while tl.atomic_add(flag, 0, sem="relaxed") != epoch:
                pass
        else:
            while tl.atomic_add(flag, 0, sem="acquire") != epoch:
                pass
        wrong = (tl.load(pointers) != epoch) | ((old != epoch) & (old != epoch - 1))
        tl.atomic_add(errors, tl.sum(wrong.to(tl.int32)), sem="relaxed")


@blocknb.kernel(do_not_specialize=["epoch"])
def last_program(partials, count, errors, epoch, PROGRAMS: tl.constexpr, SIZE: tl.constexpr):
    """Each program stores a row of partial sums; the last one to arrive adds them all."""
    pid = tl.program_id(0)
    row = tl.arange(0, SIZE)
    stale = tl.load(partials + ((pid + 1) % PROGRAMS) * SIZE + row)
    tl.store(partials + pid * SIZE + row, row + pid + epoch)
    arrived = tl.atomic_add(count, 1, sem="acq_rel")
    if arrived == PROGRAMS - 1:
        total = tl.zeros((SIZE,), tl.int32)
        for i in range(PROGRAMS):
            total += tl.load(partials + i * SIZE + row)
        expected = PROGRAMS * (row + epoch) + PROGRAMS * (PROGRAMS - 1) // 2
        wrong = tl.sum(((total != expected) | (stale > row + PROGRAMS + epoch)).to(tl.int32))
        tl.atomic_add(errors, wrong, sem="relaxed")
        tl.atomic_xchg(count, 0, sem="relaxed")


@blocknb.kernel(do_not_specialize=["epoch"])
def grid_barrier(cells, count, errors, epoch, PROGRAMS: tl.constexpr, ROUNDS: tl.constexpr):
    """Programs exchange values with their neighbours between barriers of the whole grid, which a volatile load polls."""
    pid = tl.program_id(0)
    neighbour = cells + (pid + 1) % PROGRAMS
    for i in range(ROUNDS):
        before = tl.load(neighbour)
        step = epoch * ROUNDS + i
        tl.store(cells + (step % 2) * PROGRAMS + pid, step)
        tl.atomic_add(count, 1)
        while tl.load(count, volatile=True) < (step + 1) * PROGRAMS:
            pass
        got = tl.load(neighbour + (step % 2) * PROGRAMS)
        tl.atomic_add(errors, (got != step).to(tl.int32) + (before > step).to(tl.int32), sem="relaxed")


@blocknb.kernel(do_not_specialize=["epoch"])
def weak_message(data, flags, seen, epoch):
    """Message passing by relaxed atomics alone: the reader sees either value, but the values of one location never decrease."""
    pid = tl.program_id(0)
    if pid % 2 == 0:
        tl.atomic_xchg(data + pid // 2, epoch, sem="relaxed")
        tl.atomic_xchg(flags + pid // 2, epoch, sem="relaxed")
    else:
        first = tl.atomic_add(data + pid // 2, 0, sem="relaxed")
        flag = tl.atomic_add(flags + pid // 2, 0, sem="relaxed")
        second = tl.atomic_add(data + pid // 2, 0, sem="relaxed")
        possible = (first >= epoch - 1) & (first <= second) & (second <= epoch) & (flag >= epoch - 1) & (flag <= epoch)
        tl.atomic_add(seen, tl.where(possible, 0, 1), sem="relaxed")
