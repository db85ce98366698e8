"""What `two_gpus.py` streams through GPUs: softmax, a stencil, a histogram and a product on blocks, and the bounds of their times.

Workers import this module by its name. `kernel_ms` measures one launch without its copies. `link_ms` measures its copies between pinned
memory and the GPU alone, and `memory_ms` its copies on the host alone.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import blocknb
import blocknb.language as tl

TIMES = 8  # the size of the array over the memory that all workers may use
PIECES = 8  # blocks with their results that fit into the limit at once
BINS = 256


def xp_of(cpu: bool) -> Any:
    """NumPy or CuPy."""
    if cpu:
        return np
    import cupy

    return cupy


@blocknb.kernel
def stencil_kernel(x, out, rows, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < columns
    middle = x + (row + 1) * stride + at + 1
    total = tl.load(middle - 1, mask=inside) + tl.load(middle + 1, mask=inside)
    total += tl.load(middle - stride, mask=inside) + tl.load(middle + stride, mask=inside)
    tl.store(out + row * columns + at, total - 4 * tl.load(middle, mask=inside), mask=inside)


def stencil(x, out):
    rows, columns = out.shape
    grid = rows, blocknb.cdiv(columns, 1024)
    stencil_kernel[grid](x, out, rows, columns, x.strides[0] // x.itemsize, BLOCK=1024)


@blocknb.kernel
def histogram_kernel(x, out, n, BINS: tl.constexpr, BLOCK: tl.constexpr, LOOPS: tl.constexpr):
    counts = tl.zeros((BINS,), tl.int32)
    for step in range(LOOPS):
        at = (tl.program_id(0) * LOOPS + step) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        values = (tl.load(x + at, mask=inside, other=0.0) * BINS).to(tl.int32)
        counts += tl.histogram(tl.minimum(values, BINS - 1), BINS, mask=inside)
    tl.atomic_add(out + tl.arange(0, BINS), counts)


def histogram(x, out):
    out.fill(0)
    grid = blocknb.cdiv(x.size, 1024 * 64)
    histogram_kernel[grid,](x, out, x.size, BINS=BINS, BLOCK=1024, LOOPS=64)


@blocknb.kernel
def add_counts_kernel(x, out, count, BINS: tl.constexpr):
    at = tl.arange(0, BINS)
    total = tl.load(x + at)
    for k in range(1, count):
        total += tl.load(x + k * BINS + at)
    tl.store(out + at, total)


def add_counts(partials, out):
    add_counts_kernel[1,](partials, out, len(partials), BINS=BINS)


@blocknb.kernel
def product_kernel(a, b, out, n, k, a_row, b_row, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = out + rows[:, None] * n + columns[None, :]
    total = tl.load(at)
    for start in range(0, k, BLOCK_K):
        ks = start + tl.arange(0, BLOCK_K)
        left = tl.load(a + rows[:, None] * a_row + ks[None, :])
        total = tl.dot(left, tl.load(b + ks[:, None] * b_row + columns[None, :]), total)
    tl.store(at, total)


def product(a, b, out):
    """Adds the products of matrices, whose sizes are multiples of the tiles, to `out`."""
    m, n, k = a.shape[1], b.shape[2], a.shape[2]
    large = m % 128 == 0 and n % 256 == 0
    sizes = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64} if large else {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}
    rows = [x.strides[1] // x.itemsize for x in (a, b)]
    grid = m // sizes["BLOCK_M"], n // sizes["BLOCK_N"]
    for one in range(len(a)):
        product_kernel[grid](a[one], b[one], out[one], n, k, *rows, **sizes, num_warps=8 if large else 4)


def softmax(x, out):
    from blocknb.kernels.softmax import softmax as rows_of

    rows_of(x, out)


@dataclass(frozen=True)
class Workload:
    """A function of Dask arrays. `shapes` are the blocks that a launch of `wrapper` reads, and `out` is what it writes. `outs` is the
    number of launches for each copy of `out` to the host, `tasks` the number of launches per worker."""

    name: str
    wrapper: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    out: tuple[int, ...]
    dtypes: tuple[str, str]
    outs: int
    tasks: int

    @property
    def bytes_in(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes) * np.dtype(self.dtypes[0]).itemsize

    @property
    def bytes_out(self) -> int:
        return int(np.prod(self.out)) * np.dtype(self.dtypes[1]).itemsize


def workloads(limit: int, cpu: bool) -> list[Workload]:
    """The workloads, whose arrays have TIMES times the limit per worker: PIECES blocks fit into the limit at once."""
    size = limit // PIECES // 4  # elements of a block of fp32
    columns = 1 << (size.bit_length() // 2)
    rows = size // columns
    rows -= max(rows // 1000, 1)  # so that blocks with a halo fit as well
    tasks = TIMES * PIECES + TIMES * PIECES // 32
    half = "float32" if cpu else "float16"
    block = limit // 4 // PIECES // np.dtype(half).itemsize  # of each factor; a task holds two of both, and its result
    k = 1 << max((block.bit_length() - 1) // 2, 4)
    edge = max(block // k // 16 * 16, 16)
    terms = 4 if cpu else PIECES  # a CPU holds all terms at once
    return [
        Workload("softmax", softmax, ((rows, columns),), (rows, columns), ("float32", "float32"), 1, tasks),
        Workload("stencil", stencil, ((rows + 2, columns + 2),), (rows, columns), ("float32", "float32"), 1, tasks),
        Workload("histogram", histogram, ((rows, columns),), (BINS,), ("float32", "int32"), 1, tasks),
        Workload(
            "product",
            product,
            ((1, edge, k), (1, k, edge)),
            (1, edge, edge),
            (half, "float32"),
            terms,
            2 * TIMES * PIECES,
        ),
    ]


def pinned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    import cupyx

    return cupyx.empty_pinned(shape, dtype)


def chunk(number: int, shape: tuple[int, ...], dtype: str, pinned: bool) -> np.ndarray:
    """A chunk of random numbers from 0 to 1 on the worker."""
    found = (pinned_empty if pinned else np.empty)(shape, dtype)
    flat = found.reshape(-1)
    numbers = np.random.default_rng(number).random(min(flat.size, 1 << 16), dtype=np.float32)
    for start in range(0, flat.size, numbers.size):
        part = flat[start : start + numbers.size]
        part[...] = numbers[: part.size]
    return found


def kernel_ms(one: Workload, cpu: bool) -> float:
    """The milliseconds of one launch on arrays of the device: the median of 9."""
    xp = xp_of(cpu)
    given = [xp.random.default_rng(0).random(shape, dtype=xp.float32).astype(one.dtypes[0]) for shape in one.shapes]
    out, times = xp.zeros(one.out, one.dtypes[1]), []
    for _ in range(11):
        if cpu:
            began = time.perf_counter()
            one.wrapper(*given, out)
            times.append((time.perf_counter() - began) * 1e3)
        else:
            events = [xp.cuda.Event() for _ in range(2)]
            events[0].record()
            one.wrapper(*given, out)
            events[1].record()
            events[1].synchronize()
            times.append(xp.cuda.get_elapsed_time(*events))
    return statistics.median(times[2:])


def link_ms(one: Workload) -> float:
    """The milliseconds per launch of the copies from and to pinned memory alone, in both directions at once."""
    import cupy

    count = 4 * one.outs
    host_in, host_out = (pinned_empty((max(n, 1),), "uint8") for n in (one.bytes_in, one.bytes_out))
    here, there = (cupy.empty(array.shape, "uint8") for array in (host_in, host_out))
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]

    def copies() -> float:
        began = time.perf_counter()
        for n in range(count):
            here.data.copy_from_host_async(host_in.ctypes.data, host_in.nbytes, streams[0])
            if n % one.outs == 0:
                there.data.copy_to_host_async(host_out.ctypes.data, host_out.nbytes, streams[1])
        for stream in streams:
            stream.synchronize()
        return (time.perf_counter() - began) * 1e3 / count

    copies()
    return statistics.median(copies() for _ in range(5))


def memory_ms(one: Workload, threads: int) -> float:
    """The milliseconds per launch of the copies on the host alone, by a number of threads: into pinned memory, and of the result. The
    least of three."""
    return min(_memory_ms(one, threads) for _ in range(3))


def _memory_ms(one: Workload, threads: int) -> float:
    count = 4 if one.outs == 1 else one.outs

    def work() -> None:
        source, staged = np.ones(one.bytes_in, "uint8"), pinned_empty((one.bytes_in,), "uint8")
        result = pinned_empty((one.bytes_out,), "uint8")
        np.copyto(staged, source)
        result.fill(1)
        start.wait()
        kept = []
        for n in range(count):
            np.copyto(staged, source)
            if n % one.outs == 0:
                kept.append(result.copy())
        end.wait()

    start, end = (threading.Barrier(threads + 1) for _ in range(2))
    for _ in range(threads):
        threading.Thread(target=work, daemon=True).start()
    start.wait(60)
    began = time.perf_counter()
    end.wait(60)
    return (time.perf_counter() - began) * 1e3 / count / threads
