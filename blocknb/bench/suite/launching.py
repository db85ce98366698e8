"""`blocknb bench launch`: the host time of a launch of a tiny kernel with five arguments, for all peers in turn.

A measurement times a batch of launches and synchronizes with the GPU before and after it. A batch is shorter than the launch queue, so no
launch waits for the GPU. The bare driver call launches a kernel with prepared arguments and is the lower bound. blocknb and Triton have
further rows. They are a grid function, as in most code, and alternating launches of two specializations. Further ones pass the arrays as
one tuple, or launch an autotuned kernel after its tuning. Another row is a product with tensor descriptors, made once or for each launch.
The hardware needs each descriptor encoded as a tensor map.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import blocknb
import blocknb.language as bl
from blocknb.bench.suite.measure import one_line
from blocknb.bench.suite.triton_source import kernel_for_triton
from blocknb.errors import Unsupported
from blocknb.profile.timing import Timing, interleaved

BATCH = 200  # launches; the driver queues more than a thousand
ROUNDS = 25
N = 64
OURS = "blocknb"
Call = Callable[[], Any]
FLOOR, GOAL = 0.6, 0.4  # of Triton's time


@blocknb.kernel
def five_arguments(x, y, out, n, scale, BLOCK: bl.constexpr):  # type: ignore[no-untyped-def]
    offsets = bl.arange(0, BLOCK)
    inside = offsets < n
    total = bl.load(x + offsets, mask=inside) + bl.load(y + offsets, mask=inside) * scale
    bl.store(out + offsets, total, mask=inside)


@blocknb.kernel
def arrays_in_a_tuple(arrays, n, scale, BLOCK: bl.constexpr):  # type: ignore[no-untyped-def]
    offsets = bl.arange(0, BLOCK)
    inside = offsets < n
    total = bl.load(arrays[0] + offsets, mask=inside) + bl.load(arrays[1] + offsets, mask=inside) * scale
    bl.store(arrays[2] + offsets, total, mask=inside)


@blocknb.kernel
def through_descriptors(x, y, out, k, BLOCK: bl.constexpr):  # type: ignore[no-untyped-def]
    total = bl.zeros((BLOCK, BLOCK), bl.float32)
    for at in range(0, k, BLOCK):
        total = bl.dot(x.load([0, at]), y.load([at, 0]), total)
    out.store([0, 0], total.to(bl.float16))


_CUDA = r"""
extern "C" __global__ void five(const float* x, const float* y, float* out, int n, int scale) {
    if (threadIdx.x < n) out[threadIdx.x] = x[threadIdx.x] + y[threadIdx.x] * scale;
}
"""


def run(device: str = "") -> list[dict[str, Any]]:
    """Prints and returns microseconds per launch, by peer, or why a peer was not measured. `device` is "gpu", "cpu" or "" (the GPU if
    there is one). Raises KeyboardInterrupt if an interrupt ended the measurement."""
    from blocknb.runtime import machine

    device = device or ("gpu" if machine.has_gpu() else "cpu")
    if device == "gpu" and not machine.has_gpu():
        raise Unsupported("CuPy found no GPU on which to time launches", hint="blocknb bench launch --device cpu")
    makers, wait = (_gpu_calls(), _wait) if device == "gpu" else (_cpu_calls(), lambda: None)
    calls, missing = ready(makers)
    times = interleaved(calls, gpu=False, rounds=ROUNDS, warmup=1, cold=False, clock=lambda call: batch(call, wait))
    times.complete()
    rows = [row(name, timing, times[OURS]) for name, timing in times.items()] if OURS in times else []
    print(f"\nHost time of a launch with five arguments, {device.upper()}, batches of {BATCH}")
    print(f"  {'':<34}{'us':>8}{'quarter points':>18}{'ours / it':>12}")
    for one in rows:
        print(f"  {one['peer']:<34}{one['us']:>8.2f}{one['low']:>10.2f}-{one['high']:<7.2f}{one['ours / it']:>12.2f}")
    for name, why in missing.items():
        print(f"  {name} left out: {why}")
    if "Triton" in times and OURS in times:
        share = times[OURS].median / times["Triton"].median
        word = "goal" if share <= GOAL else "floor" if share <= FLOOR else "MISSED"
        print(f"  {word:<7}launch against Triton's: {share:.2f}; floor {FLOOR:g}, goal {GOAL:g}")
    return [*rows, *({"peer": name, "problem": why} for name, why in missing.items())]


def ready(makers: dict[str, Callable[[], Call]]) -> tuple[dict[str, Call], dict[str, str]]:
    """The calls that work, each called once, and the errors of the others."""
    calls, missing = {}, {}
    for name, make in makers.items():
        try:
            call = make()
            call()
            calls[name] = call
        except Exception as error:  # a peer's library may raise anything; the other peers are measured anyway
            missing[name] = one_line(error)
    return calls, missing


def batch(call: Call, wait: Call) -> float:
    """Milliseconds per call, measured over a batch."""
    wait()
    begin = time.perf_counter()
    for _ in range(BATCH):
        call()
    took = time.perf_counter() - begin
    wait()
    return took * 1e3 / BATCH


def row(name: str, timing: Timing, ours: Timing) -> dict[str, Any]:
    scale = 1e3
    return {
        "peer": name,
        "us": timing.median * scale,
        "low": timing.low * scale,
        "high": timing.high * scale,
        "ours / it": ours.median / timing.median,
    }


def _wait() -> None:
    import cupy

    cupy.cuda.runtime.deviceSynchronize()


def _launcher(kernel: Any, arrays: tuple[Any, ...], grid: Any = (1,), block: int = N) -> Call:
    x, y, out = arrays
    return lambda: kernel[grid](x, y, out, N, 3, BLOCK=block, num_warps=1)


def _ways(name: str, make: Callable[[], tuple[Any, tuple[Any, ...]]]) -> dict[str, Callable[[], Call]]:
    """The rows of a kernel, which `make` returns with its arrays."""

    def in_turn() -> Call:
        kernel, arrays = make()
        turns = itertools.cycle([_launcher(kernel, arrays, block=block) for block in (N, 2 * N)])
        return lambda: next(turns)()

    return {
        name: lambda: _launcher(*make()),
        f"{name}, grid function": lambda: _launcher(*make(), grid=lambda given: (-(-N // given["BLOCK"]),)),
        f"{name}, alternating specializations": in_turn,
    }


def _tuned(name: str, make: Callable[[], tuple[Any, Any, tuple[Any, ...]]]) -> dict[str, Callable[[], Call]]:
    """The rows of arrays in a tuple and of an autotuned kernel. `make` returns blocknb or triton, a function that gives a kernel in its
    language, and the arrays."""

    def in_a_tuple() -> Call:
        _, kernel_of, arrays = make()
        kernel = kernel_of(arrays_in_a_tuple)
        return lambda: kernel[(1,)](arrays, N, 3, BLOCK=N, num_warps=1)

    def autotuned() -> Call:
        package, kernel_of, (x, y, out) = make()
        configs = [package.Config({"BLOCK": block}, num_warps=1) for block in (N, 2 * N)]
        kernel = package.autotune(configs, key=["n"])(kernel_of(five_arguments))
        return lambda: kernel[(1,)](x, y, out, N, 3)

    return {f"{name}, arrays in a tuple": in_a_tuple, f"{name}, autotuned": autotuned}


def _described(name: str, make: Callable[[], tuple[Any, type]]) -> dict[str, Callable[[], Call]]:
    """The rows of products with tensor descriptors. `make` returns the kernel and the descriptor class."""

    def tensors() -> list[Any]:
        import torch

        return [torch.randn((N, N), device="cuda", dtype=torch.float16) for _ in range(3)]

    def beforehand() -> Call:
        kernel, described = make()
        given = [described.from_tensor(x, [N, N]) for x in tensors()]  # type: ignore[attr-defined]
        return lambda: kernel[(1,)](*given, N, BLOCK=N, num_warps=4)

    def each_time() -> Call:
        (kernel, described), arrays = make(), tensors()
        from_tensor = described.from_tensor  # type: ignore[attr-defined]
        return lambda: kernel[(1,)](*[from_tensor(x, [N, N]) for x in arrays], N, BLOCK=N, num_warps=4)

    return {f"{name}, descriptors": beforehand, f"{name}, new descriptors": each_time}


def _tritons() -> tuple[Any, type]:
    module = importlib.import_module("triton.tools.tensor_descriptor")
    return kernel_for_triton(through_descriptors), module.TensorDescriptor


def _gpu_calls() -> dict[str, Callable[[], Call]]:
    """The maker of each peer's call. blocknb and Triton get torch tensors; another row times blocknb with CuPy arrays."""
    import cupy

    own = tuple(cupy.random.standard_normal(N, dtype=cupy.float32) for _ in range(3))

    def tensors() -> tuple[Any, ...]:
        import torch

        return tuple(torch.randn(N, device="cuda") for _ in range(3))

    def raw() -> Any:
        return cupy.RawKernel(_CUDA, "five")

    def raw_kernel() -> Call:
        kernel, arguments = raw(), (*own, np.int32(N), np.int32(3))
        return lambda: kernel((1,), (N,), arguments)

    def driver() -> Call:
        from cupy_backends.cuda.api.driver import launchKernel

        kernel = raw()
        slots = [ctypes.c_void_p(a.data.ptr) for a in own] + [ctypes.c_int(N), ctypes.c_int(3)]
        table = (ctypes.c_void_p * 5)(*(ctypes.addressof(slot) for slot in slots))
        function, address = int(kernel.kernel.ptr), ctypes.addressof(table)

        def call(keep: Any = (kernel, slots, table)) -> None:
            launchKernel(function, 1, 1, 1, N, 1, 1, 0, 0, address, 0)

        return call

    def torch_add() -> Call:
        import torch

        x, y, out = tensors()
        return lambda: torch.add(x, y, alpha=3, out=out)

    def ours() -> tuple[Any, tuple[Any, ...]]:
        try:
            return five_arguments, tensors()
        except ImportError:
            return five_arguments, own

    return {
        **_ways(OURS, ours),
        f"{OURS}, CuPy arrays": lambda: _launcher(five_arguments, own),
        **_tuned(OURS, lambda: (blocknb, lambda kernel: kernel, ours()[1])),
        **_described(OURS, lambda: (through_descriptors, blocknb.TensorDescriptor)),
        **_ways("Triton", lambda: (kernel_for_triton(five_arguments), tensors())),
        **_tuned("Triton", lambda: (importlib.import_module("triton"), kernel_for_triton, tensors())),
        **_described("Triton", _tritons),
        "CuPy RawKernel": raw_kernel,
        "torch.add": torch_add,
        "driver call alone": driver,
    }


def _cpu_calls() -> dict[str, Callable[[], Call]]:
    arrays = tuple(np.random.default_rng().standard_normal(N).astype(np.float32) for _ in range(3))
    x, y, out = arrays

    def numba_call() -> Call:
        import numba

        @numba.njit
        def five(x, y, out, n, scale):  # type: ignore[no-untyped-def]
            for i in range(n):
                out[i] = x[i] + y[i] * scale

        return lambda: five(x, y, out, N, 3)

    def torch_add() -> Call:
        import torch

        a, b, c = (torch.from_numpy(array) for array in arrays)
        return lambda: torch.add(a, b, alpha=3, out=c)

    return {
        OURS: lambda: _launcher(five_arguments, arrays),
        **_tuned(OURS, lambda: (blocknb, lambda kernel: kernel, arrays)),
        "numpy.add": lambda: lambda: np.add(x, y, out=out),
        "numba": numba_call,
        "torch.add": torch_add,
    }
