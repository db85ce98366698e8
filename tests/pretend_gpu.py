"""Simulated GPUs: a driver that records launches, and arrays at addresses that are never read.

Kernels are really compiled. A launch is checked as the driver checks it (the current device is the function's, the thread has a context)
and takes its time. Its end is recorded with the arguments as they are in memory then. So is a tensor map (a TensorMap in place of the
driver's 128 bytes).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from blocknb.language.types import Pointer
from blocknb.runtime import cuda, driver, reports, tensormaps
from blocknb.runtime.compile import Compiled
from blocknb.target import Target

_FORMATS = {"fp32": "f", "fp64": "d", "int32": "i", "int64": "q", "int1": "?"}
_addresses = itertools.count(1 << 40, 4096)


@dataclass(frozen=True)
class Launched:
    """A launch received by the driver: `arguments` by the names of the kernel's run-time parameters."""

    compiled: Compiled
    device: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    stream: int
    arguments: dict[str, Any]
    said: tuple[int, ...] = ()  # the report's address, and of each extent the lowest one and how many
    programs: tuple[int, ...] = ()  # of a persistent grid
    maps: tuple[TensorMap, ...] = ()


@dataclass(frozen=True)
class TensorMap:
    """The fields of an encoded tensor map: axes from outer to inner, strides in bytes."""

    address: int
    kind: int
    swizzle: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]

    FORM = struct.Struct("<QBBB5Q5Q5H")

    def pack(self) -> bytes:
        rank = len(self.dims)
        numbers = [n for axis in (self.dims, self.strides, self.box) for n in (*axis, *[0] * (5 - len(axis)))]
        return self.FORM.pack(self.address, self.kind, self.swizzle, rank, *numbers).ljust(tensormaps.BYTES, b"\0")

    @classmethod
    def unpack(cls, data: bytes) -> TensorMap:
        address, kind, swizzle, rank, *numbers = cls.FORM.unpack_from(data)
        return cls(
            address, kind, swizzle, *(tuple(numbers[i : i + n]) for i, n in ((0, rank), (5, rank - 1), (10, rank)))
        )


class CupyArray:
    """A CuPy array, as far as launches use it."""

    def __init__(self, dtype: Any = np.float32, offset: int = 0, device: int = 0):
        self.dtype, self.data = np.dtype(dtype), SimpleNamespace(ptr=next(_addresses) + offset, device_id=device)
        self.shape, self.strides, self.size = (64,), (self.dtype.itemsize,), 64

    @property
    def address(self) -> int:
        return self.data.ptr


CupyArray.__module__, CupyArray.__name__ = "cupy", "ndarray"


class TorchTensor:
    """A torch tensor, as far as launches use it. `negated`: a view whose elements are negated when they are read."""

    def __init__(self, dtype: Any = np.float32, offset: int = 0, device: int = 0, negated: bool = False):
        self.dtype, self.address, self._device, self.negated = (
            np.dtype(dtype),
            next(_addresses) + offset,
            device,
            negated,
        )
        self.is_cuda, self.is_cpu, self.device, self.shape = True, False, f"cuda:{device}", (64,)
        self.layout = "torch.strided"

    def get_device(self) -> int:
        return self._device

    def is_neg(self) -> bool:
        return self.negated

    def data_ptr(self) -> int:
        if self.address < 0:
            raise RuntimeError("cannot access data pointer of a tensor that doesn't have storage")
        return self.address


TorchTensor.__module__, TorchTensor.__name__ = "torch", "Tensor"


class _Thread(threading.local):
    device, context = 0, True


class PretendGpu:
    """`launches` in the order of their ends. `streams` are the current ones by library, which a test may change; `failures` are raised
    instead of the next launches; `calls` counts the calls of the driver."""

    def __init__(self, count: int):
        self.count, self.launches, self.failures = count, list[Launched](), list[Exception]()
        self.streams = {"": 7, "torch": 9}
        self.functions: list[tuple[Compiled, int]] = []
        self.calls = {"getDevice": 0, "free": 0, "encode": 0}
        self.resident = 1  # CTAs of a kernel that a multiprocessor holds
        self.zeros: list[int] = []  # memory that was set to zero
        self.thread, self.seconds = _Thread(), 0.0
        runtime = SimpleNamespace(
            getDevice=self.get_device,
            getDeviceCount=lambda: count,
            free=self.free,
            memset=lambda address, value, size: self.zeros.append(address),
            memsetAsync=lambda address, value, size, stream: self.zeros.append(address),
            memcpyAsync=lambda target, source, size, kind, stream: ctypes.memset(
                target, 0, size
            ),  # kernels do not print
            streamSynchronize=lambda stream: None,
            streamIsCapturing=lambda stream: False,
        )
        cuda = SimpleNamespace(runtime=runtime, Device=self.device_of, alloc=self.alloc)
        self.cupy = SimpleNamespace(cuda=cuda)

    def alloc(self, size: int) -> Any:
        return SimpleNamespace(ptr=next(_addresses))

    def device_of(self, device: int) -> Any:
        found = self.on(device)
        found.attributes = {"MultiProcessorCount": 132}  # type: ignore[attr-defined]
        return found

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        before, self.thread.device = self.thread.device, device
        try:
            yield
        finally:
            self.thread.device = before

    def get_device(self) -> int:
        self.calls["getDevice"] += 1
        return self.thread.device

    def free(self, address: int) -> None:
        self.calls["free"] += 1
        self.thread.context = True

    def load(self, compiled: Compiled, device: int) -> Any:
        self.functions.append((compiled, device))
        return SimpleNamespace(ptr=len(self.functions) - 1)

    def current_stream(self, library: str) -> Any:
        if library == "torch":
            return lambda device: self.streams["torch"] + 100 * device
        return lambda device: SimpleNamespace(ptr=self.streams[""] + 100 * device)

    def launch(self, function: int, x: int, y: int, z: int, *rest: int) -> None:
        *block, shared, stream, address, extra = rest
        if self.failures:
            raise self.failures.pop(0)
        compiled, device = self.functions[function]
        if not self.thread.context:
            raise RuntimeError("CUDA_ERROR_INVALID_CONTEXT: invalid device context")
        if self.thread.device != device:
            raise RuntimeError("CUDA_ERROR_INVALID_HANDLE: invalid resource handle")
        assert extra == 0
        if self.seconds:
            time.sleep(self.seconds)  # other threads run, as during the driver's call
        table = iter(ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p)))

        def value(form: str) -> Any:
            return struct.unpack_from(f"<{form}", ctypes.string_at(next(table), 8))[0]

        arguments = {n: value("Q" if isinstance(t, Pointer) else _FORMATS[t.name]) for n, t in compiled.parameters}
        said = tuple(value("Q") for _ in range(compiled.code.reports + 2 * len(compiled.code.extents)))
        programs = tuple(value("i") for _ in range(3 * bool(compiled.code.persistent)))
        maps = tuple(TensorMap.unpack(ctypes.string_at(next(table), tensormaps.BYTES)) for _ in compiled.code.maps)
        launched = Launched(compiled, device, (x, y, z), tuple(block), shared, stream, arguments, said, programs, maps)
        self.launches.append(launched)

    def occupancy(self, function: int, threads: int, shared: int) -> int:
        compiled, device = self.functions[function]
        assert (threads, shared, device) == (compiled.code.threads, compiled.code.shared_bytes, self.thread.device)
        return self.resident

    def encode(
        self, at: int, kind: int, rank: int, address: int, dims: Any, strides: Any, box: Any, steps: Any, *rest: int
    ) -> int:
        """cuTensorMapEncodeTiled: 1 if the driver would refuse the map."""
        self.calls["encode"] += 1
        interleave, swizzle, promotion, fill = rest
        assert (interleave, promotion, fill, set(steps[:rank])) == (0, 3, 0, {1})
        found = TensorMap(
            address,
            kind,
            swizzle,
            *(tuple(reversed(a[:n])) for a, n in ((dims, rank), (strides, rank - 1), (box, rank))),
        )
        wrong = at % 64 or not address or address % 16 or not all(0 < n <= 2**32 for n in found.dims)
        if (
            wrong
            or not all(n < 2**40 and n % 16 == 0 for n in found.strides)
            or not all(0 < n <= 256 for n in found.box)
        ):
            return 1
        ctypes.memmove(at, found.pack(), tensormaps.BYTES)
        return 0


def pretend(monkeypatch: Any, count: int = 1) -> PretendGpu:
    """Replaces the driver by `count` simulated GPUs until the end of the test."""
    gpu = PretendGpu(count)
    monkeypatch.setattr(cuda, "cupy", lambda: gpu.cupy)
    api = SimpleNamespace(launchKernel=gpu.launch, occupancyMaxActiveBlocksPerMultiprocessor=gpu.occupancy)
    monkeypatch.setattr(cuda, "driver_api", lambda: api)
    monkeypatch.setattr(tensormaps, "encode_tiled", lambda: gpu.encode)
    monkeypatch.setattr(reports, "_buffers", {})
    tensormaps.empty_array_memory.cache_clear()
    monkeypatch.setattr(driver, "_load", gpu.load)
    monkeypatch.setattr(cuda, "current_stream", gpu.current_stream)
    monkeypatch.setattr(cuda, "target", lambda device: Target.parse("sm_90a"))
    return gpu
