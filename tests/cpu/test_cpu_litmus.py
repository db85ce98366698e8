"""Litmus tests on the CPU's threads: no forbidden outcome. The GPU has the same kernels in tests/gpu/test_litmus_gpu.py."""

from __future__ import annotations

import threading

import litmus
import numpy as np
import pytest

MANY = 2**31 - 1  # polls; more than the reader needs
PAIRS, RUNS = 16, 40


@pytest.fixture(autouse=True)
def six_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKNB_NUM_THREADS", "6")


def cells(count: int) -> np.ndarray:
    return np.zeros(count * litmus.GROUP, np.int32)


@pytest.mark.parametrize("scope", ["gpu", "sys"])
def test_acquire_and_release_forbid_load_buffering(scope):
    memory, seen, counts = cells(2 * PAIRS), np.zeros(2 * PAIRS, np.int32), np.zeros(1, np.int32)
    for epoch in range(1, RUNS + 1):
        litmus.load_buffering[(2 * PAIRS,)](memory, seen, epoch, LOAD="acquire", STORE="release", SCOPE=scope)
        assert np.all((seen == epoch) | (seen == epoch - 1))
        litmus.count_pairs[(1,)](seen, counts, epoch, PAIRS, BLOCK=PAIRS)
    assert counts[0] == 0


@pytest.mark.parametrize("sem", ["relaxed", "acq_rel"])
def test_store_buffering_shows_only_values_that_were_written(sem):
    memory, seen = cells(2 * PAIRS), np.zeros(2 * PAIRS, np.int32)
    for epoch in range(1, RUNS + 1):
        litmus.store_buffering[(2 * PAIRS,)](memory, seen, epoch, SEM=sem, SCOPE="gpu")
        assert np.all((seen == epoch) | (seen == epoch - 1))


def test_values_of_one_cell_never_decrease():
    memory, errors = cells(PAIRS), np.zeros(1, np.int32)
    for epoch in range(1, RUNS + 1):
        litmus.coherence[(2 * PAIRS,)](memory, errors, epoch, SCOPE="gpu")
    assert errors[0] == 0


def test_two_cells_do_not_both_end_with_first_writes():
    memory, seen, counts = cells(2 * PAIRS), np.zeros(2 * PAIRS, np.int32), np.zeros(1, np.int32)
    for epoch in range(1, RUNS + 1):
        litmus.two_plus_two_writes[(2 * PAIRS,)](memory, seen, epoch)
        litmus.count_first_writes[(1,)](memory, counts, epoch, PAIRS, BLOCK=PAIRS)
    assert counts[0] == 0


def test_readers_of_independent_writes_see_values_that_were_written():
    memory, seen = cells(2 * PAIRS), np.zeros(8 * PAIRS, np.int32)
    for epoch in range(1, RUNS + 1):
        litmus.independent_reads[(4 * PAIRS,)](memory, seen, epoch)
        read = seen.reshape(-1, 4, 2)[:, 2:]
        assert np.all((read == epoch) | (read == epoch - 1))


@pytest.mark.parametrize("scope", ["gpu", "sys"])
def test_a_message_passes_through_a_third_program(scope):
    data, flags, errors = np.zeros(64 * PAIRS, np.int32), cells(2 * PAIRS), np.zeros(1, np.int32)
    for epoch in range(1, RUNS + 1):
        litmus.causality[(3 * PAIRS,)](data, flags, errors, epoch, SIZE=64, SCOPE=scope)
    assert errors[0] == 0


@pytest.mark.parametrize("poll", ["acquire", "volatile", ".cv"])
def test_a_launch_reads_what_another_launch_stores_meanwhile(poll):
    data, flags, errors, counts = np.zeros(1024, np.int32), cells(1), np.zeros(1, np.int32), np.zeros(2, np.int32)
    arguments, constants = (data, flags, errors, counts), {"SIZE": 1024, "POLL": poll}
    litmus.writer.warmup(data, flags, 1, SIZE=1024, grid=(1,))
    litmus.reader.warmup(*arguments, 1, MANY, **constants, grid=(1,))
    for epoch in range(1, RUNS + 1):
        waiting = threading.Thread(target=lambda: litmus.reader[(1,)](*arguments, epoch, MANY, **constants))
        waiting.start()
        litmus.writer[(1,)](data, flags, epoch, SIZE=1024)
        waiting.join(60)
        assert not waiting.is_alive(), "the reader waits forever"
    assert errors[0] == 0
    assert counts[1] == 0, "the reader gave up"


def test_partial_tiles_are_complete_when_their_flags_are_up():
    parts, tiles = 4, 4
    partials, out = np.zeros(parts * tiles * 64, np.int32), np.zeros(tiles * 64, np.int32)
    flags, errors = cells(parts * tiles), np.zeros(1, np.int32)
    for epoch in range(1, RUNS + 1):
        litmus.stream_k[(parts * tiles,)](partials, flags, out, errors, epoch, PARTS=parts, SIZE=64)
    assert errors[0] == 0
