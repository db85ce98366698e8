"""Measures blocknb on a Dask cluster with a worker per GPU: tuning, a sweep, and arrays of 8 times the memory that a limit allows.

    python scripts/two_gpus.py                    # everything, on two GPUs of this machine (dask_cuda.LocalCUDACluster)
    python scripts/two_gpus.py arrays --rounds 5  # one part: tune, sweep or arrays
    python scripts/two_gpus.py --cpu --small      # tries the script on two CPU workers, in seconds

`tune` compares plain `tune` in this process with `tune(client=...)`: same candidates, empty caches, then warm ones. `sweep` runs a benchmark
of copies on every worker. `arrays` streams arrays through each worker within `--limit`, and compares the time with a bound: the slower of
the link and the kernel, each measured alone. The link is what copies of pinned chunks take without kernels and without Dask. For chunks that
are not pinned it is that, or what the threads of the worker take to copy the same memory on the host, whichever is slower. All of these run
on all workers at once. Each part prints its results when it has them. The exit status is 1 if a part failed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import blocknb  # noqa: E402
import blocknb.language as tl  # noqa: E402

TIMES = 8  # the array has so many times the memory that all workers may use
PIECES = 8  # blocks with their results that fit into the limit at once
BINS = 256


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts, and returns the exit status."""
    parser = argparse.ArgumentParser(description="Measures tuning, sweeps and large arrays on a worker per GPU.")
    parser.add_argument("parts", nargs="*", metavar="PART", help="tune, sweep or arrays; all by default")
    parser.add_argument("--cpu", action="store_true", help="use two CPU workers instead of GPUs")
    parser.add_argument("--small", action="store_true", help="use sizes that take seconds on a CPU; the times mean nothing")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=4, help="threads per worker")
    parser.add_argument("--limit", default="", help='the memory of blocks in flight per worker, "1 GiB" by default')
    parser.add_argument("--rounds", type=int, default=2, help="runs of each array after the first one")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    status = 0
    for name in options.parts or PARTS:
        began = time.perf_counter()
        print(f"\n# {name}", flush=True)
        try:
            PARTS[name](options)
        except Exception:  # another part may still run
            traceback.print_exc()
            status = 1
        print(f"({name}: {time.perf_counter() - began:.0f} s)", flush=True)
    return status


@contextmanager
def client_of(options: Any) -> Iterator[Any]:
    """A client of a new cluster with a worker per GPU, or with CPU workers."""
    import dask
    from distributed import Client, LocalCluster

    shared = {"threads_per_worker": options.threads, "dashboard_address": None}
    with dask.config.set({"distributed.scheduler.work-stealing": False}):  # chunks stay where they are
        if options.cpu:
            made = LocalCluster(n_workers=options.workers, processes=True, memory_limit=0, **shared)
        else:
            from dask_cuda import LocalCUDACluster

            made = LocalCUDACluster(n_workers=options.workers, memory_limit=None, device_memory_limit=None, **shared)
        with made, Client(made) as client:
            client.wait_for_workers(options.workers, timeout=60)
            for worker, device in everywhere(client, device_name).items():
                print(f"{worker}: {device}", flush=True)
            yield client


def everywhere(client: Any, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Calls a function in a task on all workers at once. Returns the results by worker."""
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    tasks = {w: client.submit(function, *arguments, workers=[w], pure=False) for w in workers}
    return {worker: task.result() for worker, task in tasks.items()}


def device_name() -> str:
    """The name of the device of this process, and its number of CPUs."""
    from blocknb.cpus import cpu_count
    from blocknb.profile import machines

    return f"{machines.own_device()[1]}, {cpu_count()} CPUs"


def xp_of(cpu: bool) -> Any:
    """NumPy or CuPy."""
    if cpu:
        return np
    import cupy

    return cupy


# ---- tuning


@blocknb.kernel
def attention(q, k, v, out, length, scale, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    head = tl.program_id(1) * length * D
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    at = tl.arange(0, D)
    query = tl.load(q + head + rows[:, None] * D + at[None, :])
    most = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    found = tl.zeros((BLOCK_M, D), tl.float32)
    for start in range(0, length, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        scores = tl.dot(query, tl.load(k + head + columns[None, :] * D + at[:, None])) * scale
        larger = tl.maximum(most, tl.max(scores, 1))
        powers = tl.exp2(scores - larger[:, None])
        shrink = tl.exp2(most - larger)
        total = total * shrink + tl.sum(powers, 1)
        values = tl.load(v + head + columns[:, None] * D + at[None, :])
        found = tl.dot(powers.to(values.dtype), values, found * shrink[:, None])
        most = larger
    tl.store(out + head + rows[:, None] * D + at[None, :], (found / total[:, None]).to(out.dtype.element_ty))


def attention_configs(small: bool) -> list[Any]:
    """The candidates: 6 on a CPU, else 72."""
    if small:
        return [blocknb.Config({"BLOCK_M": m, "BLOCK_N": n}) for m in (16, 32) for n in (16, 32, 64)]
    return [
        blocknb.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
        for m in (64, 128, 256)
        for n in (32, 64, 128)
        for warps in (4, 8)
        for stages in (1, 2, 3, 4)
    ]


def tuned(xp: Any, small: bool, client: Any = None) -> tuple[float, Any]:
    """Tunes attention once, and keeps no choice. Returns the seconds, and the table of trials."""
    heads, length, width = (2, 128, 16) if small else (16, 16384, 64)
    kind = xp.float32 if small else xp.float16
    q, k, v = (xp.random.default_rng(n).standard_normal((heads, length, width), dtype=xp.float32).astype(kind) for n in range(3))
    tuner = blocknb.autotune(attention_configs(small), key=["length"], cache_results=False)(attention)
    out, scale = xp.empty_like(q), width**-0.5 * 1.4426950408889634
    began = time.perf_counter()
    found = tuner.tune(
        q, k, v, out, length, scale, D=width, grid=lambda c: (length // c["BLOCK_M"], heads), client=client
    )
    return time.perf_counter() - began, found


@blocknb.kernel
def touch(x):
    tl.store(x, 1.0)


def ready(cpu: bool) -> None:
    """Starts the compiler and the device of this process, so that no measurement includes it."""
    touch[1,](xp_of(cpu).zeros(1, "float32"))


def tune(options: Any) -> None:
    """Compares plain tuning with tuning on the cluster."""
    xp, rows = xp_of(options.cpu), {}
    for name in ("one device", "cluster"):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["BLOCKNB_CACHE_DIR"] = folder  # workers inherit it
            from blocknb.runtime import cache

            cache.shared.cache_clear()
            ready(options.cpu)
            if name == "one device":
                rows[name] = [tuned(xp, options.small) for _ in range(2)]
            else:
                from blocknb.runtime import compile as compiler

                compiler.forget()
                with client_of(options) as client:
                    everywhere(client, ready, options.cpu)
                    rows[name] = [tuned(xp, options.small, client) for _ in range(2)]
            for caches, (seconds, found) in zip(("empty", "warm"), rows[name], strict=True):
                best = min(t.median for t in found.trials if t.config is found.best)
                kinds = ", ".join(f"{s} {n}" for s, n in sorted(statuses(found).items()))
                print(f"{name}, {caches} caches: {seconds:.2f} s, {kinds}; best {found.best}, {best:.4g} ms", flush=True)
    for number, caches in enumerate(("empty", "warm")):
        one, several = (rows[name][number][0] for name in rows)
        print(f"{caches} caches: {one:.2f} s / {several:.2f} s = {one / several:.2f} times as fast", flush=True)


def statuses(found: Any) -> dict[str, int]:
    """How many trials have which status."""
    counts: dict[str, int] = {}
    for trial in found.trials:
        counts[trial.status] = counts.get(trial.status, 0) + 1
    return counts


# ---- a sweep


def sweep(options: Any) -> None:
    """Runs the benchmark `add` on every worker, one after another, and prints a table with a row per worker and size."""
    from blocknb.bench import cluster
    from blocknb.bench.rows import show
    from blocknb.bench.suite.runner import BenchOptions
    from blocknb.profile import machines

    shapes = ("2^12", "2^14") if options.small else ("2^20", "2^24", "2^27")
    bench = BenchOptions(shapes=shapes, peers=("NumPy" if options.cpu else "CuPy",), dtypes=("fp32",), rounds=5)
    with client_of(options) as client:
        found = {}
        for device in machines.devices(client):
            status, results, said = machines.run_on(client, device, cluster.measured, ["add"], bench)
            found[f"{device.name}, {device.worker.rpartition(':')[2]}"] = results
            if status:
                raise RuntimeError(said)
    show("All workers", cluster.tidy(found))


# ---- arrays larger than the limit


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
def product_kernel(a, b, out, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = out + rows[:, None] * n + columns[None, :]
    total = tl.load(at)
    for start in range(0, k, BLOCK_K):
        ks = start + tl.arange(0, BLOCK_K)
        left = tl.load(a + rows[:, None] * k + ks[None, :])
        total = tl.dot(left, tl.load(b + ks[:, None] * n + columns[None, :]), total)
    tl.store(at, total)


def product(a, b, out):
    """Adds the products of matrices, whose sizes are multiples of the tiles, to `out`."""
    m, n, k = a.shape[1], b.shape[2], a.shape[2]
    large = m % 128 == 0 and n % 256 == 0
    sizes = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64} if large else {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}
    grid = m // sizes["BLOCK_M"], n // sizes["BLOCK_N"]
    for one in range(len(a)):
        product_kernel[grid](a[one], b[one], out[one], n, k, **sizes, num_warps=8 if large else 4)


def softmax(x, out):
    from blocknb.kernels.softmax import softmax as rows_of

    rows_of(x, out)


@dataclass(frozen=True)
class Workload:
    """A function of Dask arrays. `shapes` are the blocks that a launch of `wrapper` reads, `out` is what it writes, and `outs` the number of
    launches for each copy of `out` to the host. `tasks` are the launches per worker."""

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
    rows, tasks = size // columns, TIMES * PIECES
    half = "float32" if cpu else "float16"
    block = limit // 4 // PIECES // np.dtype(half).itemsize  # of each factor; a task holds two of both, and its result
    k = 1 << max((block.bit_length() - 1) // 2, 4)
    edge = max(block // k // 16 * 16, 16)
    terms = 4 if cpu else PIECES  # a CPU holds all terms at once
    return [
        Workload("softmax", softmax, ((rows, columns),), (rows, columns), ("float32", "float32"), 1, tasks),
        Workload("stencil", stencil, ((rows + 2, columns + 2),), (rows, columns), ("float32", "float32"), 1, tasks),
        Workload("histogram", histogram, ((rows, columns),), (BINS,), ("float32", "int32"), 1, tasks),
        Workload("product", product, ((1, edge, k), (1, k, edge)), (1, edge, edge), (half, "float32"), terms, 2 * tasks),
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


def on_workers(client: Any, shape: tuple[int, ...], dtype: str, pinned: bool, grid: tuple[int, ...]) -> Any:
    """A Dask array of chunks of one shape, in the memory of the workers: each has the same number of them along the first axis."""
    import dask.array as da
    from distributed import wait

    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    parts = np.empty(grid, object)
    for number, place in enumerate(np.ndindex(*grid)):
        owner = workers[place[0] * len(workers) // grid[0]]
        parts[place] = client.submit(chunk, number, shape, dtype, pinned, workers=[owner], pure=False)
    wait(list(parts.flat))
    arrays = np.empty(grid, object)
    for place, part in np.ndenumerate(parts):
        arrays[place] = da.from_delayed(part, shape, dtype)
    return client.persist(da.block(arrays.tolist()))


def graph(one: Workload, options: Any, arrays: list[Any], limit: int) -> Any:
    """The Dask array of a workload."""
    given = {"limit": limit, "device": None if options.cpu else "cuda"}
    if one.name == "product":
        return blocknb.contraction("bik,bkj->bij", product, *arrays, dtype="float32", **given)
    if one.name == "stencil":
        return blocknb.map_overlap(stencil, *arrays, depth=1, boundary="reflect", **given)
    if one.name == "histogram":
        counts = {"axis": (0, 1), "shape": BINS, "dtype": "int32", "split_every": 16}
        return blocknb.reduction(histogram, add_counts, *arrays, **counts, **given)
    return blocknb.map_blocks(softmax, *arrays, **given)


def arrays_of(one: Workload, client: Any, options: Any, pinned: bool) -> list[Any]:
    """The arrays of a workload, on the workers."""
    if one.name == "product":
        batches = options.workers * one.tasks // one.outs
        grids = (batches, 1, one.outs), (batches, one.outs, 1)
        return [
            on_workers(client, shape, one.dtypes[0], pinned, g) for shape, g in zip(one.shapes, grids, strict=True)
        ]
    return [on_workers(client, one.out if one.name == "stencil" else one.shapes[0], "float32", pinned, (options.workers * one.tasks, 1))]


def totals(reset: bool = False) -> Any:
    """The figures of this worker."""
    from blocknb.arrays import in_flight

    found = in_flight.totals()
    if reset:
        in_flight.reset_totals()
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
    """The milliseconds per launch of the copies on the host alone, by all threads of the worker: into pinned memory, and of the result."""
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


def arrays(options: Any) -> None:
    """Runs each workload on pinned chunks and on others, and prints a line of figures for each."""
    from dask.utils import parse_bytes

    limit = int(parse_bytes(options.limit or ("256 KiB" if options.small else "1 GiB")))
    with client_of(options) as client:
        for pinned in (False,) if options.cpu else (True, False):
            given: list[Any] = []
            for one in workloads(limit, options.cpu):
                try:
                    if not given or one.name == "product":  # the others have the same array
                        given.clear()
                        given = arrays_of(one, client, options, pinned)
                    measure(one, client, options, limit, pinned, given)
                except Exception:  # another workload may still run
                    traceback.print_exc()


def measure(one: Workload, client: Any, options: Any, limit: int, pinned: bool, given: list[Any]) -> None:
    """Runs a workload some times on arrays of the workers, and prints the figures of the fastest run after the first one."""
    from distributed import wait

    kernel = max(everywhere(client, kernel_ms, one, options.cpu).values())
    link = memory = 0.0
    if not options.cpu:
        link = max(everywhere(client, link_ms, one).values())
        memory = 0.0 if pinned else max(everywhere(client, memory_ms, one, options.threads).values())
    runs = []
    for _ in range(1 + options.rounds):
        client.run(totals, True)
        began = time.perf_counter()
        result = client.persist(graph(one, options, given, limit))
        wait(result)
        seconds = time.perf_counter() - began
        if (error := checked(one, result, given)) > 1e-3:
            raise RuntimeError(f"{one.name}: the result differs by {error}")
        del result
        runs.append((seconds, list(client.run(totals).values())))
    seconds, figures = min(runs[1:], key=lambda run: run[0])
    moved = sum(f.bytes_in + f.bytes_out for f in figures)
    busy = max(f.busy_ms for f in figures)
    bound = max(link, memory, kernel) * one.tasks
    peak = max(f.peak for f in figures)
    print(
        f"{one.name}, chunks {'pinned' if pinned else 'not pinned'}: {sum(x.nbytes for x in given) / 1e9:.2f} GB in, {moved / 1e9:.2f} GB moved "
        f"in {seconds:.3f} s (runs {', '.join(f'{s:.3f}' for s, _ in runs)}); peak {peak / 2**20:.0f} of {limit / 2**20:.0f} MiB\n"
        f"  per worker: busy {busy:.1f} ms; copies {max(f.copy_ms for f in figures):.1f} ms, kernels {max(f.compute_ms for f in figures):.1f} ms, "
        f"their sum is {max((f.copy_ms + f.compute_ms) / f.busy_ms for f in figures):.2f} times the busy time\n"
        f"  alone, per launch: link {link:.3f} ms, memory {memory:.3f} ms, kernel {kernel:.3f} ms; "
        f"bound {bound:.1f} ms = {bound / busy:.0%} of the busy time, {bound / seconds / 10:.0f} % of all the time",
        flush=True,
    )
    if peak > limit:
        raise RuntimeError(f"{one.name} holds {peak} bytes, more than the limit")


def checked(one: Workload, result: Any, given: Sequence[Any]) -> float:
    """The largest error of a few elements of the result."""
    if one.name == "histogram":
        return float(abs(int(result.sum().compute()) - given[0].size))
    if one.name == "softmax":
        return float(abs(result[-5:].sum(axis=1, dtype="float64") - 1).max().compute())
    if one.name == "stencil":
        x, middle = given[0][-4:-1, :5].astype("float64").compute(), np.s_[1:-1]
        expected = x[:-2, middle] + x[2:, middle] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * x[1:-1, middle]
        return float(np.abs(result[-3:-2, 1:4].compute() - expected).max())
    a, b = (array.astype("float64") for array in (given[0][-1, :2], given[1][-1, :, :3]))
    expected = a.compute() @ b.compute()
    return float(np.abs(result[-1, :2, :3].compute() / expected - 1).max())


PARTS: dict[str, Callable[[Any], None]] = {"tune": tune, "sweep": sweep, "arrays": arrays}

if __name__ == "__main__":
    sys.exit(main())
