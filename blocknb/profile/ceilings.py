"""The limits of a device, measured on it: memory, caches, shared memory, FP32, tensor cores.

`ceilings(device)` reads them from a file in the cache directory, or measures them (some seconds) and writes the file. They are the
roofs of the roofline model (Williams et al., 2009). Each limit records its spread and how it was measured: by a block program (see
`microbenchmarks`) or by a named library. The fastest of several ways counts, because no kernel may exceed a ceiling. A limit that
cannot be measured is listed with the reason.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from blocknb.errors import Unsupported
from blocknb.profile.timing import Timings, interleaved, llc_bytes
from blocknb.runtime import cache, cuda, machine
from blocknb.runtime.host import thread_count
from blocknb.runtime.kinds import HOST

VERSION = 4  # of the method: a new version invalidates old files
SIZE_LIMIT = 1 << 20  # bytes of a file
Clock = Callable[[Callable[[], Any]], float]


@dataclass(frozen=True)
class Ceiling:
    """One limit. `name`: memory (a copy), memory reads, memory writes, L2 cache, shared memory, cache, FP32, tensor fp16...; `unit`
    GB/s or TFLOP/s (of integers 10^12 operations); `low` and `high` are the quarter points of the measurement."""

    name: str
    unit: str
    value: float
    low: float
    high: float
    how: str


@dataclass(frozen=True)
class Ceilings:
    """The limits of a `device` (its name), `measured` at an ISO date. `missing`: (name, why) of what could not be measured."""

    device: str
    measured: str
    items: tuple[Ceiling, ...]
    missing: tuple[tuple[str, str], ...] = ()

    @property
    def age(self) -> float | None:
        """The seconds since the measurement; None for a date that cannot be read."""
        try:
            then = datetime.datetime.fromisoformat(self.measured)
        except ValueError:
            return None
        return (datetime.datetime.now(datetime.UTC) - then).total_seconds()

    def get(self, name: str) -> Ceiling | None:
        return next((item for item in self.items if item.name == name), None)

    def memory_ms(self, read: float, written: float) -> float | None:
        """The least milliseconds for reading and writing a number of bytes of memory; None where memory was not measured.

        DRAM needs time to switch between reads and writes, so the rate depends on the mix. The time per byte is interpolated linearly
        between the measurements of writes alone, a copy (half and half) and reads alone.
        """
        total, copied = read + written, self.get("memory")
        if copied is None or not total:
            return None
        share = read / total
        alone = self.get("memory reads" if share > 0.5 else "memory writes")
        weight = abs(2 * share - 1) if alone else 0.0
        per_byte = (1 - weight) / copied.value + (weight / alone.value if alone else 0.0)
        return total * per_byte * 1e-6


@dataclass(frozen=True)
class Sizes:
    """The sizes of the measurements: bytes of a copy, iterations of loops, edge of the matrices, and seconds per limit."""

    copy: int = 1 << 30
    iterations: int = 4096
    matrix: int = 8192
    seconds: float = 0.6
    rounds: int = 20


CPU_SIZES = Sizes(copy=1 << 28, iterations=2000, matrix=2048)


def ceilings(device: int = HOST, fresh: bool = False) -> Ceilings:
    """Returns the limits of a GPU by its number, or of the CPU. `fresh` measures them again. Raises LaunchError without such a GPU."""
    file = _file(device)
    if not fresh and (found := _read(file)) is not None:
        return found
    made = measure(device)
    _write(file, made)
    return made


def remeasured(device: int, old: Ceilings) -> Ceilings:
    """Measures the limits again because a launch exceeded one of the `old` ones. The higher of both rates counts and is kept: load on the
    machine makes a measurement too low, and nothing makes it too high."""
    fresh = measure(device)
    items = tuple(
        max([item, *(known for known in old.items if known.name == item.name)], key=lambda c: c.value)
        for item in fresh.items
    )
    lost = tuple(item for item in old.items if fresh.get(item.name) is None)
    found = replace(fresh, items=items + lost)
    _write(_file(device), found)
    return found


def known(device: int = HOST) -> Ceilings | None:
    """Returns the limits if they were measured before, else None."""
    return _read(_file(device))


def measure(device: int = HOST, sizes: Sizes | None = None, clock: Clock | None = None) -> Ceilings:
    """Measures all limits of a device. An interrupt skips the limits that are not measured yet."""
    gpu = device != HOST
    session = _Session(gpu, sizes or (Sizes() if gpu else CPU_SIZES), clock)
    with _current(device):
        for name, run in (_GPU if gpu else _CPU).items():
            session.attempt(name, run)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Ceilings(name_of(device), now, tuple(session.items), tuple(session.missing))


def name_of(device: int) -> str:
    """Returns the name of a device: "NVIDIA H200", or the CPU's model with the number of threads in use."""
    if device == HOST:
        threads = thread_count()
        return f"{_cpu_model()}, {threads} thread{'s' * (threads > 1)}"

    return str(cuda.api().runtime.getDeviceProperties(device)["name"].decode())


@functools.cache
def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# ---- measuring


@dataclass
class _Session:
    gpu: bool
    sizes: Sizes
    clock: Clock | None
    items: list[Ceiling] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
    cancelled: bool = False

    def attempt(self, name: str, run: Callable[[_Session, str], None]) -> None:
        if self.cancelled:
            self.missing.append((name, "interrupted"))
            return
        try:
            run(self, name)
        except KeyboardInterrupt:
            self.cancelled = True
            self.missing.append((name, "interrupted"))
        except Exception as error:  # without the library or the unit, the other limits are still useful
            self.missing.append((name, f"{type(error).__name__}: {error}".splitlines()[0]))

    def time(self, calls: Mapping[str, Callable[[], Any]], cold: bool = False) -> Timings:
        found = interleaved(
            calls,
            gpu=self.gpu,
            rounds=self.sizes.rounds,
            warmup=2,
            seconds=self.sizes.seconds,
            cold=cold,
            clock=self.clock,
        )
        self.cancelled |= found.cancelled
        return found

    def best(self, name: str, unit: str, work: Mapping[str, float], calls: Mapping[str, Callable[[], Any]]) -> None:
        """Records the fastest of several ways. `work` holds bytes or operations by way; a way's name describes it."""
        times = self.time(calls)
        if not times:
            raise KeyboardInterrupt
        per_ms = 1e-6 if unit == "GB/s" else 1e-9
        how = max(times, key=lambda way: work[way] / times[way].median)
        value, low, high = (work[how] * per_ms / t for t in (times[how].median, times[how].high, times[how].low))
        self.items.append(Ceiling(name, unit, value, low, high, how))


def _gpu_memory(session: _Session, name: str) -> None:
    import cupy

    from blocknb.profile.microbenchmarks import copy_kernel

    size = min(session.sizes.copy, cupy.cuda.runtime.memGetInfo()[0] // 4) // 4
    x, y = cupy.ones(size, cupy.float32), cupy.empty(size, cupy.float32)
    ways = {
        "a copy by CuPy (cudaMemcpy)": lambda: cupy.cuda.runtime.memcpyAsync(
            y.data.ptr, x.data.ptr, x.nbytes, 3, cupy.cuda.get_current_stream().ptr
        ),
        "a copy by a block program": lambda: copy_kernel[-(-size // 2048),](x, y, size, BLOCK=2048),
    }
    session.best(name, "GB/s", dict.fromkeys(ways, 2.0 * x.nbytes), ways)


def _gpu_one_way(session: _Session, name: str) -> None:
    import cupy

    from blocknb.profile.microbenchmarks import fill_kernel, read_kernel

    block, iterations = 2048, 16
    programs = min(session.sizes.copy, cupy.cuda.runtime.memGetInfo()[0] // 4) // (4 * block * iterations)
    x, out = cupy.ones(programs * block * iterations, cupy.float32), cupy.empty(programs, cupy.float32)
    if name == "memory reads":
        ways = {"a sum by a block program": lambda: read_kernel[programs,](x, out, BLOCK=block, ITERATIONS=iterations)}
    else:
        stream = cupy.cuda.get_current_stream().ptr
        ways = {
            "a fill by CuPy (cudaMemset)": lambda: cupy.cuda.runtime.memsetAsync(x.data.ptr, 0, x.nbytes, stream),
            "a fill by a block program": lambda: fill_kernel[programs * iterations,](x, BLOCK=block),
        }
    session.best(name, "GB/s", dict.fromkeys(ways, float(x.nbytes)), ways)


def _gpu_l2(session: _Session, name: str) -> None:
    import cupy

    from blocknb.profile.microbenchmarks import reread_kernel

    found = cupy.cuda.Device().attributes
    block, programs, iterations = 2048, found["MultiProcessorCount"] * 8, max(1, session.sizes.iterations // 4)
    blocks = max(1, min(16 << 20, found["L2CacheSize"] // 4) // (4 * block))
    x, out = cupy.ones(blocks * block, cupy.float32), cupy.empty(programs * block, cupy.float32)
    how = f"a block program that reads {x.nbytes >> 20} MiB repeatedly, bypassing L1"
    call = lambda: reread_kernel[programs,](x, out, blocks, iterations, BLOCK=block)  # noqa: E731
    session.best(name, "GB/s", {how: 4.0 * block * programs * iterations}, {how: call})


def _gpu_shared(session: _Session, name: str) -> None:
    import cupy

    from blocknb.profile.microbenchmarks import SHARED_READS, shared_kernel

    threads, programs, iterations = (
        128,
        cupy.cuda.Device().attributes["MultiProcessorCount"] * 32,
        session.sizes.iterations // 8,
    )
    out = cupy.empty(threads * programs, cupy.int32)
    how = "a block program whose threads read 16 bytes each, without bank conflicts"
    call = lambda: shared_kernel[programs,](out, iterations, THREADS=threads, num_warps=threads // 32)  # noqa: E731
    session.best(name, "GB/s", {how: 16.0 * SHARED_READS * threads * programs * iterations}, {how: call})


def _gpu_fp32(session: _Session, name: str) -> None:
    import cupy

    programs = cupy.cuda.Device().attributes["MultiProcessorCount"] * 16
    _fma(session, name, cupy, programs, 1024, "cuda", session.sizes.iterations // 4)


def _fma(session: _Session, name: str, arrays: Any, programs: int, block: int, kind: str, iterations: int) -> None:
    from blocknb.profile.microbenchmarks import FMA_CHAIN, fma_kernel

    chain = FMA_CHAIN[kind]
    x = arrays.full(programs * block, 0.5, arrays.float32)
    out = arrays.empty_like(x)
    how = "a block program of fused multiply-adds"
    ways = {how: lambda: fma_kernel[programs,](x, out, iterations, BLOCK=block, CHAIN=chain)}
    work = {how: 2.0 * chain * block * programs * iterations}
    if kind == "cpu":
        n = session.sizes.matrix
        a, b = (np.random.default_rng(0).random((n, n), np.float32) for _ in range(2))
        product, library = np.empty_like(a), f"NumPy's matmul, {n} x {n} ({_blas()})"
        ways[library] = lambda: np.matmul(a, b, out=product)
        work[library] = 2.0 * n**3
    session.best(name, "TFLOP/s", work, ways)


# name -> cudaDataType, cublasComputeType, bytes of an element
_PRODUCTS = {"fp16": (2, 68, 2), "bf16": (14, 68, 2), "tf32": (0, 77, 4)}


def _gpu_tensor(session: _Session, name: str) -> None:
    """cuBLAS through CuPy's binding, which takes bf16 without a dtype for it and tf32 without a global setting."""
    import cupy
    from cupy.cuda import device
    from cupy_backends.cuda.libs import cublas

    kind = name.split()[-1]
    dtype, compute, size = _PRODUCTS[kind]
    one, zero, handle = np.ones(1, np.float32), np.zeros(1, np.float32), device.get_cublas_handle()
    ways: dict[str, Callable[[], Any]] = {}
    work, kept = dict[str, float](), list[Any]()  # the calls hold addresses only
    for n in sorted({session.sizes.matrix // 2, session.sizes.matrix}):
        a, b, c = (cupy.random.standard_normal(n * n, dtype=cupy.float32) * 0.5 for _ in range(3))
        if size == 2:  # the upper halves of fp32 are bf16; fp16 is converted
            halves = lambda x: x.astype(cupy.float16) if kind == "fp16" else x.view(cupy.uint16)[1::2].copy()  # noqa: E731
            a, b, c = halves(a), halves(b), halves(c)
        how = f"cuBLAS matmul, {n} x {n} (gemmEx through CuPy, fp32 sums)"
        kept += [a, b, c]
        ways[how] = functools.partial(
            cublas.gemmEx, handle, 0, 0, n, n, n, one.ctypes.data, a.data.ptr, dtype, n, b.data.ptr, dtype, n,
            zero.ctypes.data, c.data.ptr, dtype, n, compute, -1,
        )  # fmt: skip
        work[how] = 2.0 * n**3
    before = cublas.getPointerMode(handle)
    cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_HOST)
    try:
        session.best(name, "TFLOP/s", work, ways)
        kept.clear()
    finally:
        cublas.setPointerMode(handle, before)


def _gpu_tensor_bytes(session: _Session, name: str) -> None:
    """8-bit operands, by a block program that multiplies tiles in shared memory; cuBLAS supports few combinations of them."""
    import cupy

    import blocknb.language as bl
    from blocknb.profile.microbenchmarks import PRODUCT, product_kernel

    form = bl.float8e4nv if name == "tensor fp8" else bl.int8
    if form is bl.float8e4nv and cupy.cuda.Device().compute_capability != "90":
        raise Unsupported("this GPU has no fp8 tensor cores that blocknb uses; it multiplies fp8 as fp16")
    (m, n, k), programs = PRODUCT, cupy.cuda.Device().attributes["MultiProcessorCount"] * 2
    iterations = max(1, session.sizes.iterations // 4)
    # As floats they are from -1.9 to 1.9.
    a, b = (
        cupy.random.randint(0, 64, size, cupy.uint8) | cupy.random.randint(0, 2, size, cupy.uint8) << 7
        for size in (m * k, n * k)
    )
    out = cupy.empty(programs * m * n, cupy.int32 if form is bl.int8 else cupy.float32)
    how = f"a block program that multiplies tiles in shared memory, {m} x {n} x {k}"
    options = {"M": m, "N": n, "K": k, "FORM": form, "num_warps": 8}
    call = lambda: product_kernel[programs,](a, b, out, iterations, **options)  # noqa: E731
    session.best(name, "TFLOP/s", {how: 2.0 * m * n * k * iterations * programs}, {how: call})


def _cpu_memory(session: _Session, name: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from blocknb.profile.microbenchmarks import copy_kernel, update_kernel

    size, threads, block = max(session.sizes.copy, 1 << 12) // 4, thread_count(), 16384
    x, y = np.ones(size, np.float32), np.zeros(size, np.float32)
    pairs = list(zip(np.array_split(y, threads), np.array_split(x, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        ways = {
            "a copy by a block program": lambda: copy_kernel[-(-size // block),](x, y, size, BLOCK=block),
            "an update in place by a block program": lambda: update_kernel[-(-size // block),](x, size, BLOCK=block),
            "copies by NumPy, one slice per thread": lambda: list(pool.map(lambda pair: np.copyto(*pair), pairs)),
        }
        session.best(name, "GB/s", dict.fromkeys(ways, 2.0 * x.nbytes), ways)


def _cpu_one_way(session: _Session, name: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from blocknb.profile.microbenchmarks import fill_kernel, read_kernel

    block, iterations, threads = 4096, 16, thread_count()
    programs = max(session.sizes.copy // (4 * block * iterations), 1)
    x, out = np.ones(programs * block * iterations, np.float32), np.empty(programs, np.float32)
    slices = np.array_split(x, threads)
    with ThreadPoolExecutor(threads) as pool:
        if name == "memory reads":
            ways: dict[str, Callable[[], Any]] = {
                "a sum by a block program": lambda: read_kernel[programs,](x, out, BLOCK=block, ITERATIONS=iterations),
                "sums by NumPy, one slice per thread": lambda: list(pool.map(np.sum, slices)),
            }
        else:
            ways = {
                "a fill by a block program": lambda: fill_kernel[programs * iterations,](x, BLOCK=block),
                "fills by NumPy, one slice per thread": lambda: list(pool.map(lambda part: part.fill(0), slices)),
            }
        session.best(name, "GB/s", dict.fromkeys(ways, float(x.nbytes)), ways)


def _cpu_cache(session: _Session, name: str) -> None:
    from blocknb.profile.microbenchmarks import reread_sum_kernel

    block, blocks, programs, iterations = 4096, 16, 4 * thread_count(), session.sizes.iterations
    x, out = np.ones(blocks * block, np.float32), np.empty(programs, np.float32)
    how = f"a block program that adds up {x.nbytes >> 10} KiB repeatedly on each thread"
    call = lambda: reread_sum_kernel[programs,](x, out, blocks, iterations, BLOCK=block)  # noqa: E731
    session.best(name, "GB/s", {how: 4.0 * block * programs * iterations}, {how: call})


def _cpu_fp32(session: _Session, name: str) -> None:
    _fma(session, name, np, 4 * thread_count(), 1024, "cpu", session.sizes.iterations * 5)


def _blas() -> str:
    config: Any = np.show_config(mode="dicts")
    found = config.get("Build Dependencies", {}).get("blas", {})
    return f"{found.get('name', 'its BLAS')} {found.get('version', '')}".strip()


_GPU: dict[str, Callable[[_Session, str], None]] = {
    "memory": _gpu_memory,
    "memory reads": _gpu_one_way,
    "memory writes": _gpu_one_way,
    "L2 cache": _gpu_l2,
    "shared memory": _gpu_shared,
    "FP32": _gpu_fp32,
    **{f"tensor {kind}": _gpu_tensor for kind in _PRODUCTS},
    "tensor int8": _gpu_tensor_bytes,
    "tensor fp8": _gpu_tensor_bytes,
}
_CPU: dict[str, Callable[[_Session, str], None]] = {
    "memory": _cpu_memory,
    "memory reads": _cpu_one_way,
    "memory writes": _cpu_one_way,
    "cache": _cpu_cache,
    "FP32": _cpu_fp32,
}


@contextlib.contextmanager
def _current(device: int) -> Iterator[None]:
    if device == HOST:
        yield
        return

    with cuda.cupy_for("a measurement of the ceilings of a GPU").cuda.Device(device):
        yield


# ---- keeping


def _file(device: int) -> str:
    """The file of a device in the cache's folder."""
    parts: tuple = (VERSION, name_of(device))
    if device == HOST:
        parts += (llc_bytes(), np.__version__)
    else:
        machine.properties(device)
        parts += (int(cuda.api().runtime.driverGetVersion()),)
    return f"ceilings/{cache.key(*parts)[:32]}.json"


_memory: dict[tuple[str, str], Ceilings] = {}


def _read(file: str) -> Ceilings | None:
    folder = cache.Cache()
    if found := _memory.get((folder.root, file)):
        return found
    try:
        data = json.loads(folder.read(file, SIZE_LIMIT) or b"")
        items = tuple(_checked(Ceiling(**item)) for item in data["items"])
        missing = tuple((str(name), str(why)) for name, why in data["missing"])
        return Ceilings(str(data["device"]), str(data["measured"]), items, missing)
    except (ValueError, KeyError, TypeError, RecursionError):  # no file yet, or one of another format: measure again
        return None


def _checked(item: Ceiling) -> Ceiling:
    """Raises TypeError for an item of other types than `measure` makes."""
    texts, numbers = (item.name, item.unit, item.how), (item.value, item.low, item.high)
    if all(isinstance(x, str) for x in texts) and all(isinstance(x, (int, float)) for x in numbers):
        return item
    raise TypeError(f"no ceiling: {item}")


def _write(file: str, made: Ceilings) -> None:
    if any(why == "interrupted" for _, why in made.missing):
        return
    folder = cache.Cache()
    _memory[folder.root, file] = made
    folder.write(file, json.dumps(asdict(made)).encode())  # the folder may be read-only; `_memory` keeps the limits
