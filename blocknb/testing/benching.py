"""`do_bench`: how long a call takes, by Triton's method: a budget of milliseconds to warm up, one to repeat, a cold cache each time.

The call may be anything: kernels, torch, NumPy. Where it runs decides the clock, and is seen in its first run: kernels of ours say
on which device they were launched, other work tells by the arrays it returns, and what tells nothing is taken to run on the GPU where
there is one. On a GPU each repetition stands between two events, behind a write that fills the L2 cache; all are queued before the
first is waited for, so that the host's own time does not show. On a CPU the clock is read around each repetition.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blocknb.errors import LaunchError
from blocknb.runtime import machine
from blocknb.runtime.kinds import HOST
from blocknb.runtime.launch_context import recording_device, this_thread, unobserved

FLUSH_BYTES = 256 << 20  # as Triton; more than four times the L2 cache of an H200
MODES = ("min", "max", "mean", "median", "all")
GRAPH_RUNS = 10

Result = float | list[float]


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """Milliseconds that fn() takes: their mean, or what `return_mode` says ("min", "max", "mean", "median", "all").

    With `quantiles`, a list of these quantiles (a single number for one). `warmup` and `rep` are milliseconds spent on warming up
    and on measuring; fn runs at least six times. `grad_to_none`: tensors whose gradient is dropped before each run.
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
    """As do_bench, for GPUs: captures about `rep` milliseconds of calls as a CUDA graph and replays it ten times, so that the time
    of launching drops out; the L2 cache stays warm. Raises LaunchError without a GPU."""
    _check_mode(return_mode)
    if not machine.has_gpu():
        raise LaunchError("do_bench_cudagraph needs a GPU", hint="do_bench measures on the CPU, too")
    with unobserved():
        times = _graph_times(fn, rep, grad_to_none)
    return summarize(times, quantiles, return_mode)


def summarize(times: list[float], quantiles: Sequence[float] | None, return_mode: str) -> Any:
    """Times as the caller wants them: quantiles (linear interpolation) if given, else by mode."""
    if quantiles is not None:
        found = np.quantile(times, quantiles).tolist()
        return found[0] if len(found) == 1 else found
    if return_mode == "all":
        return times
    match return_mode:
        case "min":
            return min(times)
        case "max":
            return max(times)
        case "median":
            return statistics.median(times)
    return statistics.mean(times)


def _check_mode(mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"return_mode is {mode!r}; it is one of {', '.join(MODES)}")


# ---- where a call runs, and its clock -----------------------------------------------------------------------------------


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
    """Events on the stream that the call runs on: torch's current one if torch is at work, else CuPy's."""

    def __init__(self) -> None:
        import cupy

        self.runtime, self.new_event = cupy.cuda.runtime, cupy.cuda.Event
        self.elapsed = cupy.cuda.get_elapsed_time
        self.flush = cupy.empty(FLUSH_BYTES, cupy.uint8)

    def times(self, fn: Callable[[], Any], count: int, gradients: Sequence[Any] | None) -> list[float]:
        stream, size, address = current_stream(), self.flush.nbytes, self.flush.data.ptr
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
    """The handle of the current stream: torch's where torch uses the GPU and has another than the default one, else CuPy's."""
    import sys

    import cupy

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        stream = int(torch._C._cuda_getCurrentRawStream(torch.cuda.current_device()))
        if stream:
            return stream
    return int(cupy.cuda.get_current_stream().ptr)


def _drop(gradients: Sequence[Any] | None) -> None:
    for tensor in gradients or ():
        tensor.grad = None


# ---- graphs -------------------------------------------------------------------------------------------------------------


def _graph_times(fn: Callable[[], Any], rep: float, gradients: Sequence[Any] | None) -> list[float]:
    import sys

    import cupy

    torch: Any = sys.modules.get("torch")
    with_torch = torch is not None and torch.cuda.is_available()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        if with_torch:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
                return _captured(fn, rep, gradients, stream, torch)
        return _captured(fn, rep, gradients, stream, None)


def _captured(fn: Callable[[], Any], rep: float, gradients: Any, stream: Any, torch: Any) -> list[float]:
    """Captures on a stream that is the current one of CuPy and of torch, if there is torch, whose allocator must know."""
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
