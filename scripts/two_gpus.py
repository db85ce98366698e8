"""Measures blocknb on a Dask cluster with a worker per GPU: tuning, a sweep, and arrays of 8 times the memory that a limit allows.

    python scripts/two_gpus.py                    # everything, on two GPUs of this machine (dask_cuda.LocalCUDACluster)
    python scripts/two_gpus.py arrays --rounds 5  # one part: tune, sweep or arrays
    python scripts/two_gpus.py --cpu --small      # tries the script on two CPU workers, in seconds

`tune` compares plain `tune` in this process with `tune(client=...)`: same candidates, empty caches, then warm ones. `sweep` runs a
benchmark on every worker. `arrays` streams arrays through each worker within `--limit`, and compares the time with a bound. The bound is
the time of the link or of the kernel, each measured alone, whichever is longer. The time of the link is that of copies of pinned chunks,
without kernels and without Dask. For chunks that are not pinned, copies on the host by four threads of the worker count instead, if they
take longer. All workers measure these at once. Each part prints its results when it has them. The exit status is 1 if a part failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import block_workloads as bw  # noqa: E402

import blocknb  # noqa: E402
import blocknb.language as tl  # noqa: E402
from blocknb.arrays import streaming  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the parts, and returns the exit status."""
    parser = argparse.ArgumentParser(description="Measures tuning, sweeps and large arrays on a worker per GPU.")
    parser.add_argument("parts", nargs="*", metavar="PART", help="tune, sweep or arrays; all by default")
    parser.add_argument("--cpu", action="store_true", help="use two CPU workers instead of GPUs")
    parser.add_argument(
        "--small", action="store_true", help="use sizes that take seconds on a CPU; the times mean nothing"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=4, help="threads per worker")
    parser.add_argument("--limit", default="", help='the memory of blocks in flight per worker, "1 GiB" by default')
    parser.add_argument("--rounds", type=int, default=2, help="runs of each array after the first one")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    paths = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # for the workers
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
    """The candidates: 6 small ones, else 72."""
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
    heads, length, width = (2, 128, 16) if small else (1, 131072, 64)
    kind = xp.float32 if small else xp.float16
    q, k, v = (
        xp.random.default_rng(n).standard_normal((heads, length, width), dtype=xp.float32).astype(kind)
        for n in range(3)
    )
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
    touch[1,](bw.xp_of(cpu).zeros(1, "float32"))


def tune(options: Any) -> None:
    """Compares plain tuning with tuning on the cluster."""
    xp, rows = bw.xp_of(options.cpu), {}
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
                print(
                    f"{name}, {caches} caches: {seconds:.2f} s, {kinds}; best {found.best}, {best:.4g} ms", flush=True
                )
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


def on_workers(client: Any, shape: tuple[int, ...], dtype: str, pinned: bool, grid: tuple[int, ...]) -> Any:
    """A Dask array of chunks of one shape, in the memory of the workers: each has the same number of them along the first axis."""
    import dask.array as da
    from distributed import wait

    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    parts = np.empty(grid, object)
    for number, place in enumerate(np.ndindex(*grid)):
        owner = workers[place[0] * len(workers) // grid[0]]
        parts[place] = client.submit(bw.chunk, number, shape, dtype, pinned, workers=[owner], pure=False)
    wait(list(parts.flat))
    arrays = np.empty(grid, object)
    for place, part in np.ndenumerate(parts):
        arrays[place] = da.from_delayed(part, shape, dtype)
    return client.persist(da.block(arrays.tolist()))


def graph(one: bw.Workload, options: Any, arrays: list[Any], limit: int) -> Any:
    """The Dask array of a workload."""
    given = {"limit": limit, "device": None if options.cpu else "cuda"}
    if one.name == "product":
        return blocknb.contraction("bik,bkj->bij", bw.product, *arrays, dtype="float32", **given)
    if one.name == "stencil":
        return blocknb.map_overlap(bw.stencil, *arrays, depth=1, boundary="reflect", **given)
    if one.name == "histogram":
        counts = {"axis": (0, 1), "shape": bw.BINS, "dtype": "int32", "split_every": 16}
        return blocknb.reduction(bw.histogram, bw.add_counts, *arrays, **counts, **given)
    return blocknb.map_blocks(bw.softmax, *arrays, **given)


def arrays_of(one: bw.Workload, client: Any, options: Any, pinned: bool) -> list[Any]:
    """The arrays of a workload, on the workers."""
    if one.name == "product":
        batches = options.workers * one.tasks // one.outs
        grids = (batches, 1, one.outs), (batches, one.outs, 1)
        return [on_workers(client, shape, one.dtypes[0], pinned, g) for shape, g in zip(one.shapes, grids, strict=True)]
    return [
        on_workers(
            client,
            one.out if one.name == "stencil" else one.shapes[0],
            "float32",
            pinned,
            (options.workers * one.tasks, 1),
        )
    ]


def totals(reset: bool = False) -> Any:
    """The figures of this worker."""
    from blocknb.arrays import in_flight

    found = in_flight.totals()
    if reset:
        in_flight.reset_totals()
    return found


def arrays(options: Any) -> None:
    """Runs each workload on pinned chunks and on others, and prints a line of figures for each.

    Raises RuntimeError at the end if a workload failed, gave a wrong result or held more than the limit.
    """
    from dask.utils import parse_bytes

    limit = int(parse_bytes(options.limit or ("256 KiB" if options.small else "1 GiB")))
    failed = []
    with client_of(options) as client:
        for pinned in (False,) if options.cpu else (True, False):
            given: list[Any] = []
            for one in bw.workloads(limit, options.cpu):
                try:
                    if not given or one.name == "product":  # the others have the same array
                        given.clear()
                        given = arrays_of(one, client, options, pinned)
                    measure(one, client, options, limit, pinned, given)
                except Exception:  # another workload may still run
                    traceback.print_exc()
                    failed.append(f"{one.name}, chunks {'pinned' if pinned else 'not pinned'}")
    if failed:
        raise RuntimeError(f"failed: {'; '.join(failed)}")


def measure(one: bw.Workload, client: Any, options: Any, limit: int, pinned: bool, given: list[Any]) -> None:
    """Runs a workload some times on arrays of the workers, and prints the figures of the fastest run after the first one."""
    from distributed import wait

    kernel = max(everywhere(client, bw.kernel_ms, one, options.cpu).values())
    link = memory = 0.0
    if not options.cpu:
        link = max(everywhere(client, bw.link_ms, one).values())
        threads = min(options.threads, streaming.TASKS)
        memory = 0.0 if pinned else max(everywhere(client, bw.memory_ms, one, threads).values())
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
    copies, kernels = max(f.copy_ms for f in figures), max(f.compute_ms for f in figures)
    together = max((f.copy_ms + f.compute_ms) / f.busy_ms for f in figures)
    print(
        f"{one.name}, chunks {'pinned' if pinned else 'not pinned'}: {sum(x.nbytes for x in given) / 1e9:.2f} GB in, "
        f"{moved / 1e9:.2f} GB moved in {seconds:.3f} s (runs {', '.join(f'{s:.3f}' for s, _ in runs)}); "
        f"peak {peak / 2**20:.0f} of {limit / 2**20:.0f} MiB\n"
        f"  per worker: busy {busy:.1f} ms; copies {copies:.1f} ms, kernels {kernels:.1f} ms, "
        f"their sum is {together:.2f} times the busy time\n"
        f"  alone, per launch: link {link:.3f} ms, memory {memory:.3f} ms, kernel {kernel:.3f} ms; "
        f"bound {bound:.1f} ms = {bound / busy:.0%} of the busy time, {bound / seconds / 10:.0f} % of all the time",
        flush=True,
    )
    if peak > limit:
        raise RuntimeError(f"{one.name} holds {peak} bytes, more than the limit")


def checked(one: bw.Workload, result: Any, given: Sequence[Any]) -> float:
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
