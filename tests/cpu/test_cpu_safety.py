"""Safety on the CPU: bounds checks, interrupts, and overlapping arrays."""

import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from frontend_helpers import argument, kernel, parse
from native import compile_native, launch_native

import blocknb.language as tl
from blocknb.codegen.cpu.status import STATUS_WORDS, STOP
from blocknb.errors import AccessError
from blocknb.runtime import host


def build(k, checked=True, **arguments):
    func = parse(k.source, {n: argument(k, n, v) for n, v in arguments.items()}, {})
    native = compile_native(func, checked=checked)
    return native, [arguments[hint.name] for hint in func.hints]


def go(k, grid, **arguments):
    native, values = build(k, **arguments)
    launch_native(native, values, grid)


def violation(k, grid, **arguments) -> AccessError:
    with pytest.raises(AccessError) as caught:
        go(k, grid, **arguments)
    return caught.value


@kernel
def copy(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


def test_a_load_past_the_end_names_line_program_and_element():
    error = violation(copy, 4, x=np.zeros(900, np.float32), y=np.zeros(1000, np.float32), n=1000, BLOCK=256)
    assert (error.program, error.index) == ((3, 0, 0), 900)
    assert error.loc.line - copy.source.first_line == 3
    assert "loads element 900 of `x`" in error.message


def test_store_past_the_end_is_detected_before_it_happens():
    y = np.full(1010, 7, np.float32)
    error = violation(copy, 4, x=np.zeros(1000, np.float32), y=y[:990], n=1000, BLOCK=256)
    assert (error.program, error.index) == ((3, 0, 0), 990)
    assert "stores to element 990 of `y`" in error.message
    assert (y[990:] == 7).all()


def test_a_mask_that_covers_the_array_is_no_violation():
    x, y = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    go(copy, 4, x=x, y=y, n=1000, BLOCK=256)
    np.testing.assert_array_equal(x, y)


@kernel
def from_before(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i - 3))


def test_an_element_before_the_array_has_a_negative_index():
    error = violation(from_before, 1, x=np.zeros(64, np.float32), y=np.zeros(64, np.float32), BLOCK=16)
    assert error.index == -3


@kernel
def unchecked_block(x, y, BLOCK: tl.constexpr):
    block = tl.make_block_ptr(x, (10,), (1,), (8,), (BLOCK,), (0,))
    tl.store(y + tl.arange(0, BLOCK), tl.load(block))


def test_error_of_a_block_outside_its_array_suggests_boundary_check():
    error = violation(unchecked_block, 1, x=np.zeros(10, np.float32), y=np.zeros(8, np.float32), BLOCK=8)
    assert error.index == 10 and "boundary_check=(0, 1)" in error.hint


@kernel
def gather(x, index, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + tl.load(index + i)))


@pytest.mark.parametrize("position", [0, 5, 31, 63])
@pytest.mark.parametrize("element", [-1, 100, 2**40])
def test_a_gathered_index_is_checked_lane_by_lane(position, element):
    index = np.arange(64, dtype=np.int64)
    index[position] = element
    error = violation(gather, 1, x=np.zeros(100, np.float64), index=index, y=np.zeros(64), BLOCK=64)
    assert error.index == element


@kernel
def masked_by_data(x, keep, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=tl.load(keep + i) > 0))


def test_mask_loaded_from_memory_is_respected_and_checked():
    x, y, keep = np.ones(50, np.float32), np.full(64, np.nan, np.float32), np.zeros(64, np.int32)
    keep[:50:3] = 1
    go(masked_by_data, 1, x=x, keep=keep, y=y, BLOCK=64)
    np.testing.assert_array_equal(y, np.where(keep > 0, 1, 0))
    keep[57] = keep[60] = 1
    assert violation(masked_by_data, 1, x=x, keep=keep, y=y, BLOCK=64).index == 57


@kernel
def strided(x, y, step: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + 10 + i * step))


@pytest.mark.parametrize(("step", "first"), [(3, 10 + 3 * 14), (-1, -1), (-2, -2)])
def test_rows_with_a_stride_report_their_first_element_outside(step, first):
    error = violation(strided, 1, x=np.zeros(50, np.int16), y=np.zeros(32, np.int16), step=step, BLOCK=32)
    assert error.index == first


@kernel
def scalar(x, y, n):
    tl.store(y, tl.load(x + n))


def test_scalar_accesses_are_checked():
    assert violation(scalar, 1, x=np.zeros(8, np.float32), y=np.zeros(1, np.float32), n=8).index == 8


@kernel
def one_element_tiles(x, y, n):
    i = n + tl.arange(0, 1)
    tl.store(y + i, tl.load(x + i) + 1)


def test_tiles_of_one_element_are_checked():
    x, y = np.arange(8, dtype=np.float32), np.zeros(9, np.float32)
    go(one_element_tiles, 1, x=x, y=y, n=7)
    assert y[7] == 8
    assert violation(one_element_tiles, 1, x=x, y=y, n=8).index == 8
    error = violation(one_element_tiles, 1, x=x, y=y[:7], n=7)
    assert "stores to element 7 of `y`" in error.message


@kernel
def rows(x, y, m, n, stride, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    v = tl.load(x + i[:, None] * stride + j[None, :], mask=(i[:, None] < m) & (j[None, :] < n))
    tl.store(y + i[:, None] * N + j[None, :], v)


def test_matrices_are_checked_row_by_row():
    x, y = np.zeros(6 * 20, np.float32), np.zeros((8, 16), np.float32)
    go(rows, 1, x=x, y=y, m=6, n=16, stride=20, M=8, N=16)
    assert violation(rows, 1, x=x, y=y, m=7, n=16, stride=20, M=8, N=16).index == 120
    assert violation(rows, 1, x=x[:110], y=y, m=6, n=16, stride=20, M=8, N=16).index == 110


def test_checks_can_be_disabled():
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    native, values = build(copy, checked=False, x=x[:60], y=y, n=64, BLOCK=64)
    assert native.sites == ()
    launch_native(native, values, 1)
    np.testing.assert_array_equal(x, y)


def test_after_a_violation_the_kernel_still_works():
    x, y = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    native, values = build(copy, x=x, y=y, n=1000, BLOCK=256)
    for _ in range(3):
        with pytest.raises(AccessError):
            launch_native(native, [x[:10], *values[1:]], 4)
        launch_native(native, values, 4)
    np.testing.assert_array_equal(x, y)


# ---- arrays that overlap ------------------------------------------------------------------------------------------------


def test_a_shifted_view_of_the_input_may_be_the_output_within_a_block():
    data = np.arange(257, dtype=np.float32)
    expected = data.copy()
    expected[1:] = data[:-1]
    go(copy, 1, x=data[:-1], y=data[1:], n=256, BLOCK=256)
    np.testing.assert_array_equal(data, expected)


@kernel
def add_to(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


def test_input_and_output_may_be_one_array():
    data = np.arange(1000, dtype=np.float32)
    go(add_to, 8, x=data, y=data, n=1000, BLOCK=128)
    np.testing.assert_array_equal(data, 2 * np.arange(1000))


@kernel
def reverse(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + (BLOCK - 1 - i)))


def test_block_is_loaded_completely_before_it_is_stored():
    data = np.arange(256, dtype=np.int32)
    go(reverse, 1, x=data, BLOCK=256)
    np.testing.assert_array_equal(data, np.arange(256)[::-1])


# ---- interrupts ---------------------------------------------------------------------------------------------------------


@kernel
def endless(x):
    i = tl.load(x)
    while i < 1:
        i = i * 1
    tl.store(x, i)


@kernel
def endless_tile(x, BLOCK: tl.constexpr):
    v = tl.load(x + tl.arange(0, BLOCK))
    while tl.max(v, axis=0) < 1:
        v = v * 0
    tl.store(x + tl.arange(0, BLOCK), v)


@kernel
def very_long(x, n):
    total = 0
    for i in range(n):
        for j in range(n):
            total = (total ^ i) * 3 + j
    tl.store(x, total)


@pytest.mark.parametrize(
    ("k", "arguments"),
    [
        (endless, {"x": np.zeros(1, np.int32)}),
        (endless_tile, {"x": np.zeros(64, np.float32), "BLOCK": 64}),
        (very_long, {"x": np.zeros(1, np.int32), "n": 2**31 - 1}),
    ],
    ids=["while", "while_tile", "for"],
)
def test_an_interrupt_ends_a_kernel_within_a_second(k, arguments):
    native, values = build(k, **arguments)
    assert seconds_until_interrupted(native, values, 4) < 1


@kernel
def idle(x):
    tl.store(x, 1)


def test_the_grid_is_interrupted_between_programs():
    native, values = build(idle, x=np.zeros(1, np.int32))
    assert seconds_until_interrupted(native, values, 2**31 - 1) < 1


def test_an_interrupt_that_another_thread_receives_ends_the_launch():
    """Such a signal does not wake the main thread, which waits for the threads that run the kernel."""
    native, values = build(endless, x=np.zeros(1, np.int32))
    assert seconds_until_interrupted(native, values, 4, lambda: signal.raise_signal(signal.SIGINT)) < 1


def test_an_interrupt_that_drops_the_result_of_a_thread_ends_the_launch():
    class Interrupted(queue.SimpleQueue):
        def get(self, timeout):
            results.append(None)
            raise KeyboardInterrupt

    results, words = [], np.zeros(STATUS_WORDS, np.int64)
    with pytest.raises(KeyboardInterrupt):
        host._run_and_wait((), results, Interrupted(), 1, words.ctypes.data)
    assert words[STOP]


def seconds_until_interrupted(native, values, grid, send=lambda: os.kill(os.getpid(), signal.SIGINT)) -> float:
    """The seconds from the signal to the KeyboardInterrupt of a launch, in CPU time of the thread, which other processes do not change."""
    sent: list[float] = []

    def interrupt():
        sent.append(time.process_time())
        send()

    timer = threading.Timer(0.2, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            launch_native(native, values, grid)
        return (time.process_time() - sent[0]) / host.thread_count()
    finally:
        timer.cancel()
        timer.join()


# ---- threads ------------------------------------------------------------------------------------------------------------


def test_every_program_runs_once_with_any_number_of_threads(monkeypatch):
    @kernel
    def count(x, sx, sy):
        i = tl.program_id(0) + tl.program_id(1) * sx + tl.program_id(2) * sx * sy
        tl.store(x + i, tl.load(x + i) + 1)

    for threads in ("1", "2", "5"):
        monkeypatch.setenv("BLOCKNB_NUM_THREADS", threads)
        x = np.zeros(7 * 11 * 13, np.int32)
        native, values = build(count, x=x, sx=7, sy=11)
        for _ in range(20):
            launch_native(native, values, (7, 11, 13))
        assert (x == 20).all()


def test_concurrent_launches_from_many_threads_are_independent():
    arrays = [np.full(5000, i, np.float32) for i in range(8)]
    outs = [np.zeros(5000, np.float32) for _ in range(8)]
    native, _ = build(copy, x=arrays[0], y=outs[0], n=5000, BLOCK=128)

    def work(i):
        for _ in range(50):
            launch_native(native, [arrays[i], outs[i], 5000], 40)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((out == i).all() for i, out in enumerate(outs))


@kernel
def wait_for(x):
    i = 0
    while tl.load(x, volatile=True) < 1:
        i += 1


def test_an_endless_kernel_does_not_block_launches_of_other_threads():
    x, y = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    stuck, stuck_values = build(wait_for, x=(flag := np.zeros(1, np.int32)))
    thread = threading.Thread(target=launch_native, args=(stuck, stuck_values, 4))
    thread.start()
    try:
        native, values = build(copy, x=x, y=y, n=1000, BLOCK=256)
        native.may_loop = True  # so that it needs the pool
        launch_native(native, values, 4)
        np.testing.assert_array_equal(x, y)
        assert thread.is_alive()
    finally:
        flag[0] = 1
        thread.join(120)
    assert not thread.is_alive()


def test_a_grid_without_programs_launches_nothing():
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    native, values = build(copy, x=x, y=y, n=4, BLOCK=4)
    launch_native(native, values, (3, 0, 2))
    assert not y.any()
    launch_native(native, values, (1, 1, 1))
    assert y.all()


def test_thread_count_that_is_not_a_number_is_refused(monkeypatch):
    monkeypatch.setenv("BLOCKNB_NUM_THREADS", "many")
    with pytest.raises(host.LaunchError, match="BLOCKNB_NUM_THREADS"):
        host.thread_count()


def test_a_forked_process_can_launch():
    script = """
        import os, sys
        import numpy as np
        sys.path[:0] = sys.argv[1:]
        from test_cpu_safety import build, copy, launch_native
        x, y = np.arange(4096, dtype=np.float32), np.zeros(4096, np.float32)
        native, values = build(copy, x=x, y=y, n=4096, BLOCK=64)
        launch_native(native, values, 64)
        child = os.fork()
        if child == 0:
            native.program_ns = 0.0
            y[:] = 0
            launch_native(native, values, 64)
            os._exit(0 if (x == y).all() else 1)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    folders = [os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))]
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script), *folders], timeout=300, check=False)
    assert done.returncode == 0
