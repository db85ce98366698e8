"""Litmus tests on a GPU: no outcome that the memory model of docs/design/memory_order.md forbids. `--full` runs each 10,000 times."""

from __future__ import annotations

import litmus
import pytest

cupy = pytest.importorskip("cupy")

PAIRS = 132  # so that all programs run concurrently
POLLS = 2_000  # more than a millisecond, while a launch from Python takes tens of microseconds
TRIALS = 20  # launches after which a GPU that runs no two launches at once is known


@pytest.fixture
def runs(request: pytest.FixtureRequest) -> int:
    return 10_000 if request.config.getoption("--full") else 300


def zeros(count: int):
    return cupy.zeros(count, cupy.int32)


@pytest.mark.parametrize("num_warps", [1, 4])
@pytest.mark.parametrize("scope", ["gpu", "sys"])
def test_acquire_and_release_forbid_load_buffering(scope, num_warps, runs):
    memory, seen, counts = zeros(2 * PAIRS * litmus.GROUP), zeros(2 * PAIRS), zeros(1)
    for epoch in range(1, runs + 1):
        litmus.load_buffering[(2 * PAIRS,)](
            memory, seen, epoch, LOAD="acquire", STORE="release", SCOPE=scope, num_warps=num_warps
        )
        litmus.count_pairs[(1,)](seen, counts, epoch, PAIRS, BLOCK=256)
    assert int(counts[0]) == 0


def test_relaxed_load_buffering_shows_only_values_that_were_written(runs):
    memory, seen, impossible = zeros(2 * PAIRS * litmus.GROUP), zeros(2 * PAIRS), zeros(1)
    for epoch in range(1, runs + 1):
        litmus.load_buffering[(2 * PAIRS,)](memory, seen, epoch, LOAD="relaxed", STORE="relaxed", SCOPE="gpu")
        impossible += ((seen != epoch) & (seen != epoch - 1)).any()
    assert int(impossible[0]) == 0


@pytest.mark.parametrize("sem", ["relaxed", "acq_rel"])
def test_store_buffering_shows_only_values_that_were_written(sem, runs):
    """Both programs may read the old value: acquire and release do not forbid it."""
    memory, seen, impossible = zeros(2 * PAIRS * litmus.GROUP), zeros(2 * PAIRS), zeros(1)
    for epoch in range(1, runs + 1):
        litmus.store_buffering[(2 * PAIRS,)](memory, seen, epoch, SEM=sem, SCOPE="gpu")
        impossible += ((seen != epoch) & (seen != epoch - 1)).any()
    assert int(impossible[0]) == 0


@pytest.mark.parametrize("scope", ["gpu", "sys"])
def test_values_of_one_cell_never_decrease(scope, runs):
    memory, errors = zeros(PAIRS * litmus.GROUP), zeros(1)
    for epoch in range(1, runs + 1):
        litmus.coherence[(2 * PAIRS,)](memory, errors, epoch, SCOPE=scope)
    assert int(errors[0]) == 0


def test_two_cells_do_not_both_end_with_first_writes(runs):
    memory, seen, counts = zeros(2 * PAIRS * litmus.GROUP), zeros(2 * PAIRS), zeros(1)
    for epoch in range(1, runs + 1):
        litmus.two_plus_two_writes[(2 * PAIRS,)](memory, seen, epoch)
        litmus.count_first_writes[(1,)](memory, counts, epoch, PAIRS, BLOCK=256)
    assert int(counts[0]) == 0


def test_readers_of_independent_writes_see_values_that_were_written(runs):
    """The two readers may disagree about the order of the writes."""
    groups = PAIRS // 2
    memory, seen, impossible = zeros(2 * groups * litmus.GROUP), zeros(8 * groups), zeros(1)
    for epoch in range(1, runs + 1):
        litmus.independent_reads[(4 * groups,)](memory, seen, epoch)
        read = seen.reshape(-1, 4, 2)[:, 2:]
        impossible += ((read != epoch) & (read != epoch - 1)).any()
    assert int(impossible[0]) == 0


@pytest.mark.parametrize("scope", ["gpu", "sys"])
@pytest.mark.parametrize(("size", "num_warps"), [(32, 1), (1024, 4)])
def test_a_message_passes_through_a_third_program(size, num_warps, scope, runs):
    groups = PAIRS // 2
    data, flags, errors = zeros(groups * size), zeros(2 * groups * litmus.GROUP), zeros(1)
    for epoch in range(1, runs + 1):
        litmus.causality[(3 * groups,)](data, flags, errors, epoch, SIZE=size, SCOPE=scope, num_warps=num_warps)
    assert int(errors[0]) == 0


@pytest.mark.parametrize("poll", ["acquire", "volatile", ".cv"])
@pytest.mark.parametrize(("size", "num_warps"), [(32, 1), (1024, 4)])
def test_a_launch_reads_what_another_launch_stores_meanwhile(size, num_warps, poll, runs):
    """Two streams: the reader's launch never stores to the data, and still must not load them as constants (ld.global.nc)."""
    programs = 32  # so that the writer has room beside the readers that wait for it
    data, flags, errors, counts = zeros(programs * size), zeros(programs * litmus.GROUP), zeros(1), zeros(2)

    def read(epoch: int) -> None:
        litmus.reader[(programs,)](data, flags, errors, counts, epoch, POLLS, SIZE=size, POLL=poll, num_warps=num_warps)

    waiting, storing = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    # Both are loaded first: CUDA cannot load a kernel while another one waits for it (CUDA programming guide, lazy loading).
    litmus.writer[(programs,)](data, flags, 1, SIZE=size, num_warps=num_warps)
    read(1)
    cupy.cuda.Device().synchronize()
    for epoch in range(2, runs + 2):
        with waiting:
            read(epoch)
        with storing:
            litmus.writer[(programs,)](data, flags, epoch, SIZE=size, num_warps=num_warps)
        waiting.synchronize()
        storing.synchronize()
        if epoch == TRIALS and not int(counts[0]):
            break
    assert int(errors[0]) == 0
    waited, gave_up = map(int, counts.get())
    if waited < programs * (epoch - 1) // 10:  # other processes use the GPU in turns with this one
        pytest.skip(f"{waited} of {programs * (epoch - 1)} programs waited for the other launch, and {gave_up} gave up")


@pytest.mark.parametrize(("parts", "size", "num_warps"), [(2, 32, 1), (4, 512, 4), (8, 1024, 8)])
def test_partial_tiles_are_complete_when_their_flags_are_up(parts, size, num_warps, runs):
    tiles = PAIRS // parts
    partials, out = zeros(parts * tiles * size), zeros(tiles * size)
    flags, errors = zeros(parts * tiles * litmus.GROUP), zeros(1)
    for epoch in range(1, runs + 1):
        litmus.stream_k[(parts * tiles,)](
            partials, flags, out, errors, epoch, PARTS=parts, SIZE=size, num_warps=num_warps
        )
    assert int(errors[0]) == 0
