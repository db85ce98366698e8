"""The bindings of CUDA: the library, the target of a device, the device of an address, and the current stream.

CuPy manages memory, streams, events and contexts. Launches with torch tensors use torch's current stream. Where CuPy is not installed,
torch stands in for it (`torch_cuda`).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from blocknb.errors import LaunchError, Unsupported
from blocknb.runtime import torch_cuda
from blocknb.target import Target, known


@functools.cache
def _cupy() -> ModuleType | None:
    """CuPy, or None where it is not installed. A failed import is kept, because it searches all of sys.path."""
    try:
        import cupy as module
    except ImportError:
        return None
    return module


def cupy() -> ModuleType:
    """CuPy. Raises LaunchError with the command that installs it."""
    if (module := _cupy()) is None:
        raise LaunchError(
            "launching on a GPU needs CuPy, or torch with CUDA for torch tensors",
            hint="pip install 'blocknb[cuda13]' (or blocknb[cuda12])",
        )
    return module


def cupy_for(what: str) -> ModuleType:
    """CuPy, for what torch does not offer: `what` begins the message of the LaunchError."""
    try:
        return cupy()
    except LaunchError as error:
        raise LaunchError(f"{what} needs CuPy, which is not installed", hint=error.hint) from None


def api() -> Any:
    """`cupy.cuda`; where CuPy is not installed, what launches use of it, made of torch and the driver (`torch_cuda.api`)."""
    try:
        return cupy().cuda
    except LaunchError:
        if not torch_cuda.available():
            raise
        return torch_cuda.api()


def driver_api() -> Any:
    """CuPy's bindings of the driver API, for loading modules and launching kernels; without CuPy those of `torch_cuda`."""
    try:
        cupy()
    except LaunchError:
        if not torch_cuda.available():
            raise
        return torch_cuda.driver_api()
    return importlib.import_module("cupy_backends.cuda.api.driver")


@functools.cache
def target(device: int) -> Target:
    """The target of a GPU: its own architecture, or else the newest one whose code runs on it. Raises Unsupported if there is none."""
    capability = int(api().Device(device).compute_capability)
    names = known()
    for name in (f"sm_{capability}a", f"sm_{capability}"):
        if name in names:
            return Target.parse(name)
    # CUDA C++ Programming Guide, "Binary Compatibility": a cubin runs on later minor versions, unless it is architecture-specific.
    older = [Target.parse(n) for n in names if n.startswith("sm_") and not n.endswith("a")]
    fitting = [t for t in older if t.capability // 10 == capability // 10 and t.capability < capability]
    if not fitting:
        raise Unsupported(
            f"GPU {device} has compute capability {capability / 10}, which no target supports",
            hint="the targets are " + ", ".join(names),
        )
    return max(fitting, key=lambda t: t.capability)


def device_of(address: int) -> int:
    """The number of the GPU that an address belongs to: the current one for address 0, which an empty array may have."""
    runtime = api().runtime
    return int(runtime.pointerGetAttributes(address).device if address else runtime.getDevice())


def wait_for(stream: int | None) -> None:
    """Makes the current stream wait for a stream of the CUDA array interface; None needs no wait."""
    if stream is not None:
        library = api()
        current = library.get_current_stream().ptr
        if stream != current:
            event = library.Event(disable_timing=True)
            library.runtime.eventRecord(event.ptr, stream)
            library.runtime.streamWaitEvent(current, event.ptr)


def current_stream(library: str) -> Callable[[int], Any]:
    """Returns a function from a device number to the current stream: an object with the handle as `ptr`; for "torch" the handle."""
    if library == "torch":
        import torch

        return torch._C._cuda_getCurrentRawStream
    return api().get_current_stream
