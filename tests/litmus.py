"""Litmus tests as kernels: small programs whose combined result shows in which order memory accesses took effect.

Programs work in pairs, or in groups of four. Each launch raises the values of its cells from `epoch - 1` to `epoch`, so "old" and "new"
are known without a reset. Programs write what they have read to `seen`, and `count_*` adds up the forbidden combinations in a second
launch. `FORBIDDEN` and `ALLOWED` name the outcomes, as PTX's memory model has them (PTX ISA, "Memory Consistency Model"; Lustig et al.,
"A Formal Analysis of the NVIDIA PTX Memory Consistency Model", ASPLOS 2019). tests/locks.py has locks, tickets and hand-overs.
"""

from __future__ import annotations

import blocknb
import blocknb.language as tl

GROUP = 32  # cells per pair, so that pairs do not share a line

#: By kernel: the outcomes that no run may show.
FORBIDDEN = {
    "load_buffering": "acquire, release: both programs read the new value, each before the other has written it",
    "coherence": "a program reads a new value of a cell and then an old one, or a write of its own is lost to its earlier one",
    "two_plus_two_writes": "acq_rel exchanges: both cells end with the value of the write that came first in its program",
    "causality": "acquire, release: the third program sees the flag of the second, but not the data of the first",
    "reader": "a reader that saw the flag reads old data, although its launch only loads the array",
    "stream_k": "the program that waits for the flags of others misses one of their partial tiles",
}
#: By kernel: outcomes that are allowed, and counted for information only.
ALLOWED = {
    "store_buffering": "both programs read the old value: nothing but fence.sc forbids it, and the language has no such fence",
    "independent_reads": "two readers see the writes of two programs in opposite orders: PTX is not multi-copy atomic",
    "weak_load_buffering": "relaxed: both programs read the new value",
}


@blocknb.kernel(do_not_specialize=["epoch"])
def store_buffering(cells, seen, epoch, SEM: tl.constexpr, SCOPE: tl.constexpr):
    """Each program of a pair writes its own cell and reads the other's."""
    pid = tl.program_id(0)
    own = cells + pid * 32
    other = cells + (pid ^ 1) * 32
    tl.atomic_xchg(own, epoch, sem=SEM, scope=SCOPE)
    tl.store(seen + pid, tl.atomic_add(other, 0, sem=SEM, scope=SCOPE))


@blocknb.kernel(do_not_specialize=["epoch"])
def load_buffering(cells, seen, epoch, LOAD: tl.constexpr, STORE: tl.constexpr, SCOPE: tl.constexpr):
    """Each program of a pair reads the other's cell and writes its own."""
    pid = tl.program_id(0)
    got = tl.atomic_add(cells + (pid ^ 1) * 32, 0, sem=LOAD, scope=SCOPE)
    tl.atomic_xchg(cells + pid * 32, epoch, sem=STORE, scope=SCOPE)
    tl.store(seen + pid, got)


@blocknb.kernel(do_not_specialize=["epoch"])
def coherence(cells, errors, epoch, SCOPE: tl.constexpr):
    """Even programs write a cell twice (CoWW); odd ones read it three times, with values that never decrease (CoRR). Both read their
    own last write, or a later one (CoWR)."""
    pid = tl.program_id(0)
    cell = cells + (pid // 2) * 32
    if pid % 2 == 0:
        tl.atomic_max(cell, 2 * epoch - 1, sem="relaxed", scope=SCOPE)
        tl.atomic_max(cell, 2 * epoch, sem="relaxed", scope=SCOPE)
        own = tl.atomic_add(cell, 0, sem="relaxed", scope=SCOPE)
        tl.atomic_add(errors, tl.where(own == 2 * epoch, 0, 1), sem="relaxed")
    else:
        a = tl.atomic_add(cell, 0, sem="relaxed", scope=SCOPE)
        b = tl.atomic_add(cell, 0, sem="relaxed", scope=SCOPE)
        c = tl.load(cell, volatile=True)
        possible = (2 * epoch - 2 <= a) & (a <= b) & (b <= c) & (c <= 2 * epoch)
        tl.atomic_add(errors, tl.where(possible, 0, 1), sem="relaxed")


@blocknb.kernel(do_not_specialize=["epoch"])
def two_plus_two_writes(cells, seen, epoch):
    """2+2W: x = 1, y = 2 against y = 1, x = 2. The results of the exchanges are used, so they acquire, too."""
    pid = tl.program_id(0)
    own = cells + pid * 32
    other = cells + (pid ^ 1) * 32
    first = tl.atomic_xchg(own, 2 * epoch - 1, sem="acq_rel")
    second = tl.atomic_xchg(other, 2 * epoch, sem="acq_rel")
    tl.store(seen + pid, first + second)


@blocknb.kernel(do_not_specialize=["epoch"])
def independent_reads(cells, seen, epoch):
    """IRIW: two programs of four write a cell each; the others read both, in opposite orders."""
    pid = tl.program_id(0)
    role = pid % 4
    x = cells + (pid // 4) * 64
    y = x + 32
    if role == 0:
        tl.atomic_xchg(x, epoch, sem="release")
    elif role == 1:
        tl.atomic_xchg(y, epoch, sem="release")
    elif role == 2:
        tl.store(seen + pid * 2, tl.atomic_add(x, 0, sem="acquire"))
        tl.store(seen + pid * 2 + 1, tl.atomic_add(y, 0, sem="acquire"))
    else:
        tl.store(seen + pid * 2, tl.atomic_add(y, 0, sem="acquire"))
        tl.store(seen + pid * 2 + 1, tl.atomic_add(x, 0, sem="acquire"))


@blocknb.kernel(do_not_specialize=["epoch"])
def causality(data, flags, errors, epoch, SIZE: tl.constexpr, SCOPE: tl.constexpr):
    """WRC and ISA2: the first of three programs stores data and a flag. The second waits for the flag and raises another, for which the
    third waits before it reads the data."""
    pid = tl.program_id(0)
    role = pid % 3
    rows = data + (pid // 3) * SIZE + tl.arange(0, SIZE)
    first = flags + (pid // 3) * 64
    second = first + 32
    if role == 0:
        tl.store(rows, tl.zeros((SIZE,), tl.int32) + epoch)
        tl.atomic_xchg(first, epoch, sem="release", scope=SCOPE)
    elif role == 1:
        while tl.atomic_add(first, 0, sem="acquire", scope=SCOPE) != epoch:
            pass
        tl.atomic_xchg(second, epoch, sem="release", scope=SCOPE)
    else:
        old = tl.load(rows)
        while tl.atomic_add(second, 0, sem="acquire", scope=SCOPE) != epoch:
            pass
        wrong = (tl.load(rows) != epoch) | ((old != epoch) & (old != epoch - 1))
        tl.atomic_add(errors, tl.sum(wrong.to(tl.int32)), sem="relaxed")


@blocknb.kernel(do_not_specialize=["epoch"])
def writer(data, flags, epoch, SIZE: tl.constexpr):
    """Stores rows of data and raises a flag for each."""
    pid = tl.program_id(0)
    tl.store(data + pid * SIZE + tl.arange(0, SIZE), tl.zeros((SIZE,), tl.int32) + epoch)
    tl.atomic_xchg(flags + pid * 32, epoch, sem="release")


@blocknb.kernel(do_not_specialize=["epoch", "polls"])
def reader(data, flags, errors, counts, epoch, polls, SIZE: tl.constexpr, POLL: tl.constexpr):
    """Reads rows before and after it waits for their flags. Its launch only loads `data`, which another launch stores meanwhile.

    Nothing promises that the other launch runs at the same time, so a program gives up after so many polls. `counts[0]` counts programs
    that waited and then saw their flag, `counts[1]` those that gave up.
    """
    pid = tl.program_id(0)
    rows = data + pid * SIZE + tl.arange(0, SIZE)
    flag = flags + pid * 32
    old = tl.load(rows)
    n = 0
    if POLL == "volatile":
        while (tl.load(flag, volatile=True) != epoch) & (n < polls):
            n += 1
    elif POLL == ".cv":
        while (tl.load(flag, cache_modifier=".cv") != epoch) & (n < polls):
            n += 1
    else:
        while (tl.atomic_add(flag, 0, sem="acquire") != epoch) & (n < polls):
            n += 1
    wrong = ((tl.load(rows) != epoch) & (n < polls)) | ((old != epoch) & (old != epoch - 1))
    tl.atomic_add(errors, tl.sum(wrong.to(tl.int32)), sem="relaxed")
    tl.atomic_add(counts, tl.where((n > 0) & (n < polls), 1, 0), sem="relaxed")
    tl.atomic_add(counts + 1, tl.where(n >= polls, 1, 0), sem="relaxed")


@blocknb.kernel(do_not_specialize=["epoch"])
def stream_k(partials, flags, out, errors, epoch, PARTS: tl.constexpr, SIZE: tl.constexpr):
    """The hand-over of stream-K: each program of a tile stores a partial tile and raises its flag; the last one by its number waits for
    the others' flags, which started before it, and adds their parts."""
    pid = tl.program_id(0)
    part = pid % PARTS
    row = tl.arange(0, SIZE)
    own = row + part + epoch
    tile = pid // PARTS
    if part < PARTS - 1:
        tl.store(partials + pid * SIZE + row, own)
        tl.atomic_xchg(flags + pid * 32, epoch, sem="release")
    else:
        stale = tl.load(partials + tile * PARTS * SIZE + row)
        total = own
        for i in range(PARTS - 1):
            while tl.atomic_add(flags + (tile * PARTS + i) * 32, 0, sem="acquire") != epoch:
                pass
            total += tl.load(partials + (tile * PARTS + i) * SIZE + row)
        expected = PARTS * (row + epoch) + PARTS * (PARTS - 1) // 2
        tl.store(out + tile * SIZE + row, total)
        wrong = (total != expected) | (stale > row + epoch)
        tl.atomic_add(errors, tl.sum(wrong.to(tl.int32)), sem="relaxed")


@blocknb.kernel(do_not_specialize=["pairs"])
def count_pairs(seen, counts, value, pairs, BLOCK: tl.constexpr):
    """Adds to `counts[0]` the pairs of which both programs have read `value`."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(seen + 2 * at, mask=at < pairs, other=value + 9)
    b = tl.load(seen + 2 * at + 1, mask=at < pairs, other=value + 9)
    both = (a == value) & (b == value)
    tl.atomic_add(counts, tl.sum(both.to(tl.int32)))


@blocknb.kernel(do_not_specialize=["pairs", "epoch"])
def count_first_writes(cells, counts, epoch, pairs, BLOCK: tl.constexpr):
    """Adds to `counts[0]` the pairs both of whose cells hold the value of the first write of a program."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(cells + 64 * at, mask=at < pairs, other=0)
    y = tl.load(cells + 64 * at + 32, mask=at < pairs, other=0)
    both = (x == 2 * epoch - 1) & (y == 2 * epoch - 1)
    tl.atomic_add(counts, tl.sum(both.to(tl.int32)))
