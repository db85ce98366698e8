"""`do_bench`: times a call by Triton's method, with a time budget for warm-up and one for repetitions, and a cold cache each time.

The call may launch kernels or use any library. Its first run decides the clock: launches of blocknb kernels record their device, and the
returned arrays show the device of other work. A call that shows no device counts as GPU work if there is a GPU. On a GPU, each repetition
lies between two events, after a write that fills the L2 cache. The host waits only after it has queued all repetitions, so its own time
does not count. On a CPU, the clock is read before and after each repetition.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from blocknb.errors import LaunchError
from blocknb.runtime import machine
from blocknb.runtime.kinds import HOST
from blocknb.runtime.launch_context import recording_device, this_thread, unobserved

FLUSH_BYTES = 256 << 20  # as in Triton; more than four times the L2 cache of an H200
MODES: dict[str, Callable[[list[float]], Any]] = {
    "min": min, "max": max, "mean": statistics.mean, "median": statistics.median, "all": list,
}  # fmt: skip
GRAPH_RUNS = 10


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """The time of fn() in milliseconds, reduced by `return_mode`: "min", "max", "mean", "median", or "all" for a list.

    With `quantiles`, returns a list of these quantiles instead (a single number for one). `warmup` and `rep` are the milliseconds for the
    warm-up and for the measurement; fn runs at least six times. The gradients of the tensors in `grad_to_none` are dropped before each
    run. Raises ValueError for another `return_mode`.
    """
    _check_mode(return_mode)
    with unobserved():
        clock = _first_run(fn)
        estimate = max(statistics.mean(clock.times(fn, 5, None)), 1e-4)
        for _ in range(max(1, int(warmup / estimate))):
            fn()
        times = clock.times(fn, max(1, int(rep / estimate)), grad_to_none)
    return summarize(times, quantiles, return_mode)


def do_bench_cudagraph(
    fn: Callable[[], Any],
    rep: float = 20,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Times a call without the launch overhead: captures about `rep` milliseconds of calls as a CUDA graph, and replays it ten times.

    Arguments are those of do_bench. The L2 cache stays warm. Raises LaunchError without a GPU.
    """
    _check_mode(return_mode)
    if not machine.has_gpu():
        raise LaunchError("do_bench_cudagraph needs a GPU", hint="do_bench also measures on a CPU")
    with unobserved():
        times = _graph_times(fn, rep, grad_to_none)
    return summarize(times, quantiles, return_mode)


@contextlib.contextmanager
def cuda_graph_without_gc(*args: Any, **kwargs: Any) -> Iterator[Any]:
    """`torch.cuda.graph(...)` without garbage collection during the capture: a collection frees memory, which breaks a capture."""
    import torch

    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(*args, **kwargs) as graph:
            yield graph
    finally:
        if collects:
            gc.enable()


def summarize(times: list[float], quantiles: Sequence[float] | None, return_mode: str) -> Any:
    """The quantiles of the times (by linear interpolation) if requested, otherwise the times reduced by `return_mode`."""
    if quantiles is not None:
        found = np.quantile(times, quantiles).tolist()
        return found[0] if len(found) == 1 else found
    return MODES[return_mode](times)


def _check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"return_mode must be one of {', '.join(MODES)}, not {mode!r}")


# ---- the device of a call, and its clock --------------------------------------------------------------------------------


def _first_run(fn: Callable[[], Any]) -> _HostClock | _GpuClock:
    """Runs the call once and chooses the clock."""
    with recording_device():
        result = fn()
    return _GpuClock() if machine.has_gpu() and _on_gpu(this_thread.device, result) else _HostClock()


def _on_gpu(launched: int | None, result: Any) -> bool:
    if launched is not None:
        return launched != HOST
    for value in result if isinstance(result, (tuple, list)) else (result,):
        if isinstance(value, np.ndarray):
            return False
        if hasattr(value, "is_cuda"):
            return bool(value.is_cuda)
    return True


class _HostClock:
    def times(self, fn: Callable[[], Any], count: int, gradients: Sequence[Any] | None) -> list[float]:
        found = []
        for _ in range(count):
            _drop(gradients)
            begin = time.perf_counter()
            fn()
            found.append((time.perf_counter() - begin) * 1e3)
        return found


class _GpuClock:
    """Measures with events on the stream of the call (see `current_stream`)."""

    def __init__(self) -> None:
        from blocknb.runtime import cuda

        library = cuda.api()
        self.runtime, self.new_event, self.elapsed = library.runtime, library.Event, library.get_elapsed_time
        self.flush = library.alloc(FLUSH_BYTES)

    def times(self, fn: Callable[[], Any], count: int, gradients: Sequence[Any] | None) -> list[float]:
        stream, size, address = current_stream(), FLUSH_BYTES, self.flush.ptr
        begins, ends = ([self.new_event() for _ in range(count)] for _ in range(2))
        for begin, end in zip(begins, ends, strict=True):
            _drop(gradients)
            self.runtime.memsetAsync(address, 0, size, stream)
            self.runtime.eventRecord(begin.ptr, stream)
            fn()
            self.runtime.eventRecord(end.ptr, stream)
        self.runtime.deviceSynchronize()
        return [float(self.elapsed(begin, end)) for begin, end in zip(begins, ends, strict=True)]


def current_stream() -> int:
    """The handle of the current stream: torch's if torch uses the GPU and its stream is not the default one, otherwise CuPy's.

    Without CuPy it is always torch's."""
    import sys

    from blocknb.runtime import cuda

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        stream = int(torch._C._cuda_getCurrentRawStream(torch.cuda.current_device()))
        if stream:
            return stream
    return int(cuda.api().get_current_stream().ptr)


def _drop(gradients: Sequence[Any] | None) -> None:
    for tensor in gradients or ():
        tensor.grad = None


# ---- graphs -------------------------------------------------------------------------------------------------------------


def _graph_times(fn: Callable[[], Any], rep: float, gradients: Sequence[Any] | None) -> list[float]:
    import sys

    from blocknb.runtime import cuda

    cupy = cuda.cupy_for("do_bench_cudagraph")

    torch: Any = sys.modules.get("torch")
    with_torch = torch is not None and torch.cuda.is_available()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        if with_torch:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
                return _captured(fn, rep, gradients, stream, torch)
        return _captured(fn, rep, gradients, stream, None)


def _captured(fn: Callable[[], Any], rep: float, gradients: Any, stream: Any, torch: Any) -> list[float]:
    """Captures calls on a stream that is current in CuPy and, if it is loaded, in torch. torch's allocator must know of the capture."""
    import cupy

    fn()
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()

    def measured(call: Callable[[], Any], count: int) -> float:
        begin.record(stream)
        for _ in range(count):
            call()
        end.record(stream)
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(begin, end))

    for tensor in gradients or ():
        tensor.detach_()
        tensor.requires_grad_(True)
        tensor.grad = None
    estimate = max(measured(fn, 5) / 5, 1e-3)
    repeat = max(1, int(rep / estimate))

    def calls() -> None:
        for _ in range(repeat):
            _drop(gradients)
            fn()

    if torch is not None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            calls()
        return [measured(graph.replay, 1) / repeat for _ in range(GRAPH_RUNS)]
    stream.begin_capture()
    calls()
    captured = stream.end_capture()
    return [measured(lambda: captured.launch(stream), 1) / repeat for _ in range(GRAPH_RUNS)]
