"""CuPy's bindings to CUDA: the library itself, a device's target, on which device an address lies, and streams.

Memory, streams, events and contexts stay CuPy's; torch tensors run on torch's current stream.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from blocknb.errors import LaunchError, Unsupported
from blocknb.target import Target, known


@functools.cache
def cupy() -> ModuleType:
    """CuPy, or a LaunchError that says how to get it."""
    try:
        import cupy as module
    except ImportError:
        raise LaunchError(
            "launching on a GPU needs CuPy, which is not installed",
            hint="pip install 'blocknb[cuda13]' (or blocknb[cuda12])",
        ) from None
    return module


@functools.cache
def driver_api() -> ModuleType:
    """CuPy's bindings of the driver API, which launch kernels and load modules."""
    cupy()
    return importlib.import_module("cupy_backends.cuda.api.driver")


@functools.cache
def target(device: int) -> Target:
    """The target of a GPU: its own architecture, or the newest known one of its generation that its code runs on."""
    capability = int(cupy().cuda.Device(device).compute_capability)
    names = known()
    for name in (f"sm_{capability}a", f"sm_{capability}"):
        if name in names:
            return Target.parse(name)
    # Machine code runs on later chips of the same major version, unless it is architecture-specific.
    older = [Target.parse(n) for n in names if n.startswith("sm_") and not n.endswith("a")]
    fitting = [t for t in older if t.capability // 10 == capability // 10 and t.capability < capability]
    if not fitting:
        raise Unsupported(
            f"GPU {device} has compute capability {capability / 10}, for which there is no target",
            hint="known: " + ", ".join(names),
        )
    return max(fitting, key=lambda t: t.capability)


def device_of(address: int) -> int:
    """The GPU on which an address lies."""
    return (
        int(cupy().cuda.runtime.pointerGetAttributes(address).device)
        if address
        else int(cupy().cuda.runtime.getDevice())
    )


def wait_for(stream: int | None) -> None:
    """Has CuPy's current stream wait for a stream of the CUDA array interface (None: nothing to wait for)."""
    if stream is not None:
        current = cupy().cuda.get_current_stream().ptr
        if stream != current:
            event = cupy().cuda.Event(disable_timing=True)
            cupy().cuda.runtime.eventRecord(event.ptr, stream)
            cupy().cuda.runtime.streamWaitEvent(current, event.ptr)


def current_stream(library: str) -> Callable[[int], Any]:
    """A function of a device's number that gives its current stream: CuPy's Stream, or torch's handle where torch's tensors take part."""
    if library == "torch":
        import torch

        return torch._C._cuda_getCurrentRawStream
    return cupy().cuda.get_current_stream


def stream_of(device: int, library: str) -> Callable[[], int]:
    """A function that gives the current stream (its handle) of CuPy, or of torch where torch's tensors take part."""
    current = current_stream(library)
    return functools.partial(current, device) if library == "torch" else lambda: current(device).ptr
