"""Blocks stream through a device: the order of copies, launches and events, overlap, and the bound on memory. The device is simulated."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import numpy as np
import pytest
from pretend_device import PretendDevice

from blocknb.arrays import in_flight
from blocknb.arrays.halo import EdgeSlices, HaloBlock, HaloPieces
from blocknb.arrays.streaming import Streamer
from blocknb.errors import LaunchError

N = 100  # elements of a block
F8 = np.dtype(np.float64)


def doubling(device: PretendDevice):
    def wrapper(x, out):
        np.multiply(x, 2, out=out)
        device.kernel(x, out)

    return wrapper


def adding(device: PretendDevice):
    def wrapper(x, y, out):
        out += x * y
        device.kernel(x, y, out)

    return wrapper


def test_a_block_is_copied_computed_and_copied_back_in_this_order() -> None:
    device = PretendDevice()
    x = np.arange(N, dtype=F8)
    found = Streamer(device, None).run(doubling(device), [x], (N,), F8)
    assert np.array_equal(found, 2 * x)
    first, kernel, last = device.log
    assert [first.kind, kernel.kind, last.kind] == ["in", "kernel", "out"]
    assert first.end <= kernel.begin and kernel.end <= last.begin
    assert len({first.stream, kernel.stream, last.stream}) == 3
    assert device.held == 0


def test_two_threads_use_two_streams_for_kernels_so_that_copies_overlap_them() -> None:
    device = PretendDevice()
    streamer, double, together = Streamer(device, None), doubling(device), threading.Barrier(2)

    def wrapper(x, out):
        together.wait(120)  # both tasks are in flight
        double(x, out)

    def task(k: int) -> np.ndarray:
        return streamer.run(wrapper, [np.full(N, k, F8)], (N,), F8)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(task, range(8)))
    assert [block[0] for block in found] == [2.0 * k for k in range(8)]
    assert len({one.stream for one in device.of("kernel")}) == 2
    assert device.finish < 0.8 * sum(one.end - one.begin for one in device.log)


def test_a_block_whose_bytes_do_not_fit_waits_for_another_one() -> None:
    device, limit = PretendDevice(), 2 * N * F8.itemsize
    streamer, wrapper, inside, most = Streamer(device, limit), doubling(device), [], []

    def counted(x, out):
        inside.append(1)
        most.append(len(inside))
        wrapper(x, out)
        inside.pop()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: streamer.run(counted, [np.full(N, k, F8)], (N,), F8), range(12)))
    assert device.peak == limit
    assert max(most) == 1


def test_a_block_that_never_fits_is_an_error() -> None:
    device = PretendDevice()
    with pytest.raises(LaunchError, match="smaller chunks"):
        Streamer(device, 100).run(doubling(device), [np.zeros(N)], (N,), F8)
    assert not device.log


def test_a_sum_copies_the_next_blocks_while_a_kernel_runs() -> None:
    device, rng = PretendDevice(), np.random.default_rng(0)
    terms = [tuple(rng.random((2, N))) for _ in range(6)]
    found = Streamer(device, None).accumulate(adding(device), terms, (N,), F8)
    expected = np.zeros(N)
    for x, y in terms:
        expected += x * y
    assert np.array_equal(found, expected)
    kernels, copies = device.of("kernel"), device.of("in")
    for k, kernel in enumerate(kernels):
        assert kernel.begin >= copies[2 * k + 1].end, "a kernel began before the copies of its blocks ended"
    assert all(copies[2 * k + 2].begin < kernels[k].end for k in range(5)), "no copy overlaps a kernel"
    assert device.of("out")[0].begin >= kernels[-1].end


def test_a_sum_holds_two_terms_and_its_result() -> None:
    device, size = PretendDevice(), N * F8.itemsize
    terms = [(np.ones(N), np.ones(N)) for _ in range(10)]
    Streamer(device, 5 * size).accumulate(adding(device), terms, (N,), F8)
    assert device.peak == 5 * size
    kernels, copies = device.of("kernel"), device.of("in")
    for k in range(2, 10):
        assert copies[2 * k].begin >= kernels[k - 2].end, "a buffer was used again while a kernel read it"
    with pytest.raises(LaunchError, match="more than the limit"):
        Streamer(device, 5 * size - 1).accumulate(adding(device), terms, (N,), F8)


def test_a_sum_keeps_the_pinned_memory_of_two_terms() -> None:
    device, alive, most = PretendDevice(), [0], [0]
    pinned = device.pinned

    def freed() -> None:
        alive[0] -= 1

    def counted(shape, dtype):
        found = pinned(shape, dtype)
        weakref.finalize(found, freed)
        alive[0] += 1
        most[0] = max(most[0], alive[0])
        return found

    device.pinned = counted  # type: ignore[method-assign]
    terms = [(np.ones(N), np.ones(N)) for _ in range(10)]
    Streamer(device, None).accumulate(adding(device), terms, (N,), F8)
    assert most[0] == 5  # and the result


def test_a_sum_without_terms_is_zero() -> None:
    assert not Streamer(PretendDevice(), None).accumulate(len, [], (3,), F8).any()


def test_an_error_of_a_wrapper_frees_the_memory_and_the_streams() -> None:
    device = PretendDevice()
    streamer = Streamer(device, 2 * N * F8.itemsize, tasks=1)

    def fails(x, out):
        raise LaunchError("no such grid")

    for _ in range(3):
        with pytest.raises(LaunchError, match="no such grid"):
            streamer.run(fails, [np.zeros(N)], (N,), F8)
    assert streamer.memory.used == 0
    assert np.array_equal(streamer.run(doubling(device), [np.ones(N)], (N,), F8), np.full(N, 2.0))


def test_the_error_of_a_wrapper_is_not_replaced_by_that_of_a_wait() -> None:
    device = PretendDevice()
    streamer = Streamer(device, None, tasks=1)
    synchronize, waits = device.synchronize, []

    def fails(x, out):
        raise LaunchError("no such grid")

    def broken(what):
        waits.append(what)
        raise RuntimeError("an illegal memory access was encountered")

    device.synchronize = broken  # type: ignore[method-assign]
    with pytest.raises(LaunchError, match="no such grid"):
        streamer.run(fails, [np.zeros(N)], (N,), F8)
    assert len(waits) == 3, "it waits for all streams"
    with pytest.raises(RuntimeError, match="illegal memory access"):
        streamer.run(doubling(device), [np.ones(N)], (N,), F8)
    device.synchronize = synchronize  # type: ignore[method-assign]
    assert np.array_equal(streamer.run(doubling(device), [np.ones(N)], (N,), F8), np.full(N, 2.0))


def test_a_block_that_is_not_contiguous_is_staged_once() -> None:
    device, x = PretendDevice(), np.arange(2 * N, dtype=F8)
    device.is_pinned = lambda block: True  # type: ignore[method-assign]
    streamer = Streamer(device, None)
    assert np.array_equal(streamer.run(doubling(device), [x[::2]], (N,), F8), 2 * x[::2])
    assert device.staged == 2  # the block and the result
    streamer.run(doubling(device), [x[:N]], (N,), F8)
    assert device.staged == 3  # the result


def test_the_result_of_pinned_blocks_is_pinned_and_no_other() -> None:
    device, x, made = PretendDevice(), np.arange(N, dtype=F8), []
    pinned = device.pinned

    def kept(shape, dtype):
        made.append(pinned(shape, dtype))
        return made[-1]

    device.pinned = kept  # type: ignore[method-assign]
    device.is_pinned = lambda block: block is x  # type: ignore[method-assign]
    streamer, y = Streamer(device, None), x.copy()
    assert streamer.run(doubling(device), [x], (N,), F8) is made[-1]
    assert streamer.accumulate(adding(device), [(x, x)], (N,), F8) is made[-1]
    for found in (
        streamer.run(doubling(device), [y], (N,), F8),
        streamer.accumulate(adding(device), [(x, x), (x, y)], (N,), F8),
    ):
        assert not any(found is one for one in made)


def framed(x: np.ndarray) -> HaloBlock:
    """The middle of x as a chunk of its own, and what is around it: one column is a number, and a row broadcasts."""
    rows, columns = x.shape
    middle, last = slice(1, rows - 1), slice(columns - 1, columns)
    frame = (
        ((slice(0, 1), slice(0, columns)), x[:1]),
        ((slice(rows - 1, rows), slice(0, columns)), x[-1:, :1]),
        ((middle, slice(0, 1)), x[middle, :1]),
        ((middle, last), 7.0),
    )
    return HaloBlock(x.shape, np.ascontiguousarray(x[1:-1, 1:-1]), (middle, slice(1, columns - 1)), frame)


@pytest.mark.parametrize("pinned", [False, True])
def test_a_chunk_with_a_halo_is_assembled_once(pinned: bool) -> None:
    device, x = PretendDevice(), np.arange(40, dtype=F8).reshape(5, 8)
    block = framed(x)
    device.is_pinned = lambda given: pinned and given is block.chunk  # type: ignore[method-assign]
    found = Streamer(device, 3 * x.nbytes).run(doubling(device), [block], x.shape, F8)
    expected = x.copy()
    expected[-1], expected[1:-1, -1] = x[-1, 0], 7
    assert np.array_equal(found, 2 * expected)
    assert device.staged == 2  # the block or its frame, and the result
    copied = [one.end - one.begin for one in device.of("in")]
    assert copied == ([block.chunk.size, x.size - block.chunk.size] if pinned else [x.size])
    assert len(device.of("place")) == (5 if pinned else 0)  # the chunk, and a band on each side
    assert all(kernel.begin >= device.of("place")[-1].end for kernel in device.of("kernel") if pinned)
    assert device.held == 0 and device.peak <= 3 * x.nbytes


@pytest.mark.parametrize("edges", ["reflect", "periodic", "nearest", 3.0])
def test_the_bands_are_the_frame(edges: str | float) -> None:
    x = np.random.default_rng(0).random((7, 5, 9))
    array, depths = da.from_array(x, chunks=((4, 3), (5,), (3, 6))), {0: 2, 1: 0, 2: 1}
    for index in np.ndindex(*array.numblocks):
        slices = EdgeSlices("slices", array)
        pieces = HaloPieces(slices, index, depths, dict.fromkeys(range(3), edges))
        spec = pieces.spec()
        found = {pieces.keys[0]: array.blocks[index].compute(scheduler="synchronous")}
        for key, (task, source) in slices.tasks().items():
            found[key] = task(array.blocks[source[1:]].compute(scheduler="synchronous"))
        block = spec.block([found[key] for key in pieces.keys])
        expected, again = (np.full(block.shape, np.nan) for _ in range(2))
        block.assembled(expected)
        again[block.inside] = block.chunk
        for region, parts in block.bands():
            for part, piece in parts:
                assert np.isnan(again[region][part]).all(), "an element is in two bands"
                again[region][part] = piece
        assert len(block.bands()) == 4
        assert np.array_equal(again, expected) and not np.isnan(again).any()


def test_four_tasks_have_streams_of_their_own() -> None:
    device, together = PretendDevice(), threading.Barrier(4)
    streamer, double = Streamer(device, None), doubling(device)

    def wrapper(x, out):
        together.wait(120)  # all four are in flight
        double(x, out)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: streamer.run(wrapper, [np.full(N, k, F8)], (N,), F8), range(4)))
    assert len({one.stream for one in device.of("kernel")}) == 4


def test_the_copies_of_a_direction_share_a_stream() -> None:
    device, together = PretendDevice(), threading.Barrier(4)
    streamer, double = Streamer(device, None), doubling(device)

    def wrapper(x, out):
        together.wait(120)  # four tasks are in flight
        double(x, out)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda k: streamer.run(wrapper, [np.full(N, k, F8)], (N,), F8), range(20)))
    assert [len({one.stream for one in device.of(kind)}) for kind in ("in", "out", "kernel")] == [1, 1, 4]


@pytest.mark.parametrize("out", [np.float64, np.float32])
def test_a_chunk_lands_in_a_result_that_has_room(out: type) -> None:
    device, x = PretendDevice(), np.arange(40, dtype=F8).reshape(5, 8)
    block = framed(x)
    device.is_pinned = lambda given: given is block.chunk  # type: ignore[method-assign]
    frame, result = x.nbytes - block.chunk.nbytes, block.chunk.size * np.dtype(out).itemsize
    apart = 0 if out is np.float64 else block.chunk.nbytes
    limit = x.nbytes + frame + result + apart

    def middle(given, found):
        found[...] = given[1:-1, 1:-1]
        device.kernel(given, found)

    shape = block.chunk.shape
    assert np.array_equal(Streamer(device, limit).run(middle, [block], shape, out), block.chunk.astype(out))
    assert device.peak == limit and device.held == 0
    with pytest.raises(LaunchError, match="more than the limit"):
        Streamer(device, limit - 1).run(middle, [block], shape, out)


def test_the_figures_show_bytes_and_times_of_copies_and_kernels() -> None:
    device = PretendDevice()
    in_flight.reset_totals()
    Streamer(device, None).run(doubling(device), [np.ones(N)], (N,), F8)
    found = in_flight.totals()
    assert (found.blocks, found.bytes_in, found.bytes_out) == (1, 8 * N, 8 * N)
    assert (found.copy_ms, found.compute_ms) == (2 * N, N)
    assert found.busy_ms > 0
