"""Litmus tests on a GPU: a lock loses no update, and no read after an acquire is stale. `--full` runs each 10,000 times."""

from __future__ import annotations

import locks
import pytest

cupy = pytest.importorskip("cupy")

PROGRAMS = 264  # two per multiprocessor of the largest GPUs, so that all run concurrently


@pytest.fixture
def runs(request: pytest.FixtureRequest) -> int:
    return 10_000 if request.config.getoption("--full") else 300


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("sem", locks.SEMANTICS)
def test_lock_from_tritons_test_loses_no_update(sem, dtype, runs):
    data, lock = cupy.zeros(128, cupy.float32), cupy.zeros(1, dtype)
    for _ in range(max(1, runs // 100)):
        locks.triton_lock[(2000,)](data, lock, SEM=sem)
    assert cupy.all(data == 2000.0 * max(1, runs // 100)), data


@pytest.mark.parametrize("sem", locks.SEMANTICS)
@pytest.mark.parametrize("num_warps", [1, 8])
def test_lock_from_tritons_test_loses_no_update_with_other_numbers_of_warps(sem, num_warps, runs):
    data, lock = cupy.zeros(128, cupy.float32), cupy.zeros(1, cupy.int32)
    for _ in range(max(1, runs // 100)):
        locks.triton_lock[(2000,)](data, lock, SEM=sem, num_warps=num_warps)
    assert cupy.all(data == 2000.0 * max(1, runs // 100)), data


@pytest.mark.parametrize("kernel", [locks.lock, locks.volatile_lock], ids=["lock", "volatile_lock"])
@pytest.mark.parametrize(("size", "num_warps"), [(32, 1), (100 + 28, 4), (1024, 8)])
def test_a_lock_loses_no_update(kernel, size, num_warps, runs):
    data, lock = cupy.zeros(size, cupy.int32), cupy.zeros(1, cupy.int32)
    for _ in range(runs):
        kernel[(PROGRAMS,)](data, lock, SIZE=size, num_warps=num_warps)
    assert cupy.all(data == runs * PROGRAMS), data


@pytest.mark.parametrize("sem", ["acquire", "acq_rel", "relaxed"])
@pytest.mark.parametrize(("size", "num_warps"), [(32, 1), (512, 4)])
def test_a_ticket_lock_loses_no_update(sem, size, num_warps, runs):
    data, tickets = cupy.zeros(size, cupy.int32), cupy.zeros(2, cupy.int32)
    for _ in range(runs):
        locks.ticket[(PROGRAMS,)](data, tickets, SIZE=size, SEM=sem, num_warps=num_warps)
    assert cupy.all(data == runs * PROGRAMS), data


@pytest.mark.parametrize("poll", ["acquire", "relaxed", "volatile"])
@pytest.mark.parametrize(("size", "num_warps"), [(32, 1), (1024, 4)])
def test_a_message_is_read_completely(poll, size, num_warps, runs):
    data, flags = cupy.zeros(PROGRAMS // 2 * size, cupy.int32), cupy.zeros(PROGRAMS // 2, cupy.int32)
    errors = cupy.zeros(1, cupy.int32)
    for epoch in range(1, runs + 1):
        locks.message[(PROGRAMS,)](data, flags, errors, epoch, SIZE=size, POLL=poll, num_warps=num_warps)
    assert int(errors[0]) == 0


@pytest.mark.parametrize(("programs", "size", "num_warps"), [(7, 32, 1), (132, 256, 4), (1000, 128, 4)])
def test_the_last_program_sees_all_partial_sums(programs, size, num_warps, runs):
    partials, count = cupy.zeros(programs * size, cupy.int32), cupy.zeros(1, cupy.int32)
    errors = cupy.zeros(1, cupy.int32)
    for epoch in range(1, runs + 1):
        locks.last_program[(programs,)](
            partials, count, errors, epoch, PROGRAMS=programs, SIZE=size, num_warps=num_warps
        )
    assert int(errors[0]) == 0


def test_a_barrier_of_the_grid_orders_plain_accesses(runs):
    rounds = 5
    cells, count, errors = cupy.zeros(2 * PROGRAMS, cupy.int32), cupy.zeros(1, cupy.int32), cupy.zeros(1, cupy.int32)
    for epoch in range(runs // rounds):
        locks.grid_barrier[(PROGRAMS,)](cells, count, errors, epoch, PROGRAMS=PROGRAMS, ROUNDS=rounds)
    assert int(errors[0]) == 0


def test_relaxed_atomics_give_only_outcomes_that_ptx_allows(runs):
    data, flags, seen = (cupy.zeros(PROGRAMS // 2, cupy.int32) for _ in range(3))
    for epoch in range(1, runs + 1):
        locks.weak_message[(PROGRAMS,)](data, flags, seen, epoch)
    assert int(seen[0]) == 0
