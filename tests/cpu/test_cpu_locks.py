"""Locks, tickets, messages and last-program reductions among the threads of a CPU launch."""

from __future__ import annotations

import locks
import numpy as np
import pytest

RUNS, PROGRAMS = 40, 64


@pytest.fixture(autouse=True)
def six_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKNB_NUM_THREADS", "6")


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("sem", locks.SEMANTICS)
def test_lock_from_tritons_test_loses_no_update(sem, dtype):
    data, lock = np.zeros(128, np.float32), np.zeros(1, dtype)
    locks.triton_lock[(2000,)](data, lock, SEM=sem)
    assert np.all(data == 2000.0)


@pytest.mark.parametrize("kernel", [locks.lock, locks.volatile_lock], ids=["lock", "volatile_lock"])
def test_a_lock_loses_no_update(kernel):
    data, lock = np.zeros(64, np.int32), np.zeros(1, np.int32)
    for _ in range(RUNS):
        kernel[(PROGRAMS,)](data, lock, SIZE=64)
    assert np.all(data == RUNS * PROGRAMS)


@pytest.mark.parametrize("sem", ["acquire", "acq_rel", "relaxed"])
def test_a_ticket_lock_loses_no_update(sem):
    data, tickets = np.zeros(64, np.int32), np.zeros(2, np.int32)
    for _ in range(RUNS):
        locks.ticket[(PROGRAMS,)](data, tickets, SIZE=64, SEM=sem)
    assert np.all(data == RUNS * PROGRAMS)


@pytest.mark.parametrize("poll", ["acquire", "relaxed", "volatile"])
def test_a_message_is_read_completely(poll):
    data, flags, errors = np.zeros(PROGRAMS * 32, np.int32), np.zeros(PROGRAMS, np.int32), np.zeros(1, np.int32)
    for epoch in range(1, RUNS + 1):
        locks.message[(2 * PROGRAMS,)](data, flags, errors, epoch, SIZE=64 // 2, POLL=poll)
    assert errors[0] == 0 and np.all(data == RUNS)


def test_the_last_program_sees_all_partial_sums():
    partials, count, errors = np.zeros(PROGRAMS * 128, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
    for epoch in range(1, RUNS + 1):
        locks.last_program[(PROGRAMS,)](partials, count, errors, epoch, PROGRAMS=PROGRAMS, SIZE=128)
    assert errors[0] == 0 and count[0] == 0


def test_values_of_a_relaxed_counter_never_decrease():
    data, flags, seen = (np.zeros(PROGRAMS, np.int32) for _ in range(3))
    for epoch in range(1, RUNS + 1):
        locks.weak_message[(2 * PROGRAMS,)](data, flags, seen, epoch)
    assert seen[0] == 0
