"""CUDA where CuPy is not installed: devices, streams and memory are torch's, and the driver's library does the rest.

torch keeps the current device and the current streams, and its caching allocator owns the memory. torch has no functions that load a cubin
or launch a kernel. So ctypes calls those of the driver (CUDA Driver API, "Module Management" and "Execution Control"). This module offers
what launches use of CuPy under CuPy's names, so the runtime takes either library through `cuda.api()` and `cuda.driver_api()`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import weakref
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

_ADDRESS, _WORD, _INT, _SIZE = ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_size_t
#: The functions of the driver (cuda.h), with the types of their parameters.
_FUNCTIONS: Mapping[str, tuple[Any, ...]] = {
    "cuDeviceGetAttribute": (_ADDRESS, _INT, _INT),
    "cuDevicePrimaryCtxRetain": (_ADDRESS, _INT),
    "cuCtxSetCurrent": (_ADDRESS,),
    "cuCtxPushCurrent_v2": (_ADDRESS,),
    "cuCtxPopCurrent_v2": (_ADDRESS,),
    "cuCtxSynchronize": (),
    "cuDriverGetVersion": (_ADDRESS,),
    "cuModuleLoadData": (_ADDRESS, ctypes.c_char_p),
    "cuModuleGetFunction": (_ADDRESS, _ADDRESS, ctypes.c_char_p),
    "cuModuleUnload": (_ADDRESS,),
    "cuFuncSetAttribute": (_ADDRESS, _INT, _INT),
    "cuFuncGetAttribute": (_ADDRESS, _INT, _ADDRESS),
    "cuLaunchKernel": (_ADDRESS, *[_WORD] * 7, *[_ADDRESS] * 3),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_ADDRESS, _ADDRESS, _INT, _SIZE),
    "cuMemsetD8_v2": (_ADDRESS, ctypes.c_ubyte, _SIZE),
    "cuMemsetD8Async": (_ADDRESS, ctypes.c_ubyte, _SIZE, _ADDRESS),
    "cuMemcpy": (_ADDRESS, _ADDRESS, _SIZE),
    "cuMemcpyAsync": (_ADDRESS, _ADDRESS, _SIZE, _ADDRESS),
    "cuPointerGetAttribute": (_ADDRESS, _INT, _ADDRESS),
    "cuStreamSynchronize": (_ADDRESS,),
    "cuStreamIsCapturing": (_ADDRESS, _ADDRESS),
    "cuStreamWaitEvent": (_ADDRESS, _ADDRESS, _WORD),
    "cuEventCreate": (_ADDRESS, _WORD),
    "cuEventRecord": (_ADDRESS, _ADDRESS),
    "cuEventSynchronize": (_ADDRESS,),
    "cuEventElapsedTime": (_ADDRESS, _ADDRESS, _ADDRESS),
    "cuEventDestroy_v2": (_ADDRESS,),
}
#: CU_DEVICE_ATTRIBUTE_* by the names that CuPy gives them.
_ATTRIBUTES = {
    "MaxSharedMemoryPerBlockOptin": 97, "MaxRegistersPerBlock": 12, "MultiProcessorCount": 16, "WarpSize": 10, "ClockRate": 13,
    "MemoryClockRate": 36, "GlobalMemoryBusWidth": 37, "ComputeCapabilityMajor": 75, "ComputeCapabilityMinor": 76,
}  # fmt: skip
_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING


class CUDADriverError(RuntimeError):
    """An error of the driver, with the text of CuPy's class of the same name: "CUDA_ERROR_INVALID_VALUE: invalid argument"."""

    def __init__(self, status: int):
        self.status, texts = status, []
        for function in (library().cuGetErrorName, library().cuGetErrorString):
            text = ctypes.c_char_p()
            function(status, ctypes.byref(text))
            texts.append((text.value or b"unknown").decode())
        super().__init__(": ".join(texts))


def _checked(status: int) -> None:
    """Raises CUDADriverError unless the status of a call is CUDA_SUCCESS."""
    if status:
        raise CUDADriverError(status)


@functools.cache
def library() -> Any:
    """The driver's library. Its functions raise CUDADriverError, apart from those that name an error."""
    found = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    for name, types in _FUNCTIONS.items():
        function = getattr(found, name)
        function.argtypes, function.restype = types, _checked
    return found


def available() -> bool:
    """Whether the process has imported torch, and torch sees a GPU."""
    torch = sys.modules.get("torch")
    return hasattr(torch, "cuda") and hasattr(torch, "Tensor") and _sees_gpu()


@functools.cache
def _sees_gpu() -> bool:
    return bool(sys.modules["torch"].cuda.is_available())


def _torch() -> Any:
    return sys.modules["torch"]


def _answer(type_: Any, function: str, *arguments: Any) -> Any:
    """Calls a function whose first parameter is the address of its answer."""
    found = type_()
    getattr(library(), function)(ctypes.byref(found), *arguments)
    return found.value


# ---- devices and their contexts ------------------------------------------------------------------------------------------


@functools.cache
def _context(device: int) -> int:
    """The primary context of a device, which the CUDA runtime and so torch use."""
    _torch().cuda.init()
    return int(_answer(_ADDRESS, "cuDevicePrimaryCtxRetain", device))


@functools.cache
def _attributes(device: int) -> dict[str, int]:
    _context(device)  # initializes the driver
    return {name: int(_answer(_INT, "cuDeviceGetAttribute", which, device)) for name, which in _ATTRIBUTES.items()}


class TorchDevice:
    """A GPU. Inside `with`, it is the current one of torch, and its context is the current one of the thread."""

    def __init__(self, number: int):
        self.number, self.inside = number, _torch().cuda.device(number)

    def __enter__(self) -> TorchDevice:
        self.inside.__enter__()
        library().cuCtxSetCurrent(_context(self.number))
        return self

    def __exit__(self, *error: Any) -> None:
        self.inside.__exit__(*error)

    @property
    def attributes(self) -> dict[str, int]:
        """The attributes of the driver that blocknb reads, by CuPy's names."""
        return _attributes(self.number)

    @property
    def compute_capability(self) -> str:
        """ "90" for 9.0."""
        return f"{self.attributes['ComputeCapabilityMajor']}{self.attributes['ComputeCapabilityMinor']}"

    def synchronize(self) -> None:
        """Waits for all work of the device."""
        _torch().cuda.synchronize(self.number)

    def use(self) -> None:
        """Makes the device the current one of torch."""
        _torch().cuda.set_device(self.number)


# ---- modules, events, memory, streams ------------------------------------------------------------------------------------


def _unload(driver: Any, context: int, handle: int) -> None:
    """Unloads a module, unless a fault has destroyed its context."""
    with contextlib.suppress(CUDADriverError):
        driver.cuCtxPushCurrent_v2(context)
        driver.cuModuleUnload(handle)
        driver.cuCtxPopCurrent_v2(ctypes.byref(_ADDRESS()))


def _destroy(driver: Any, event: int) -> None:
    with contextlib.suppress(CUDADriverError):
        driver.cuEventDestroy_v2(event)


class Module:
    """Machine code on the current device; it is unloaded with the last of its functions."""

    def load(self, image: bytes) -> None:
        """Loads a cubin, or PTX that ends with a zero byte."""
        self.handle = _answer(_ADDRESS, "cuModuleLoadData", image)
        context = _context(_torch().cuda.current_device())
        weakref.finalize(self, _unload, library(), context, self.handle).atexit = False

    def get_function(self, name: str) -> Any:
        """A kernel; `ptr` is its handle."""
        ptr = _answer(_ADDRESS, "cuModuleGetFunction", self.handle, name.encode())
        return SimpleNamespace(ptr=ptr, module=self)


class Event:
    """An event of the current device; `ptr` is its handle."""

    def __init__(self, disable_timing: bool = False):
        library().cuCtxSetCurrent(_context(_torch().cuda.current_device()))  # a new thread has no context
        self.ptr = _answer(_ADDRESS, "cuEventCreate", _NO_TIMING if disable_timing else 0)
        weakref.finalize(self, _destroy, library(), self.ptr).atexit = False

    def synchronize(self) -> None:
        """Waits for the event."""
        library().cuEventSynchronize(self.ptr)


def get_elapsed_time(begin: Event, end: Event) -> float:
    """The milliseconds between two events."""
    return float(_answer(ctypes.c_float, "cuEventElapsedTime", begin.ptr, end.ptr))


def alloc(size: int) -> Any:
    """`size` bytes of the current device, from torch's allocator; `ptr` is the address."""
    torch = _torch()
    memory = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
    return SimpleNamespace(ptr=int(memory.data_ptr()), memory=memory)


def get_current_stream(device: int | None = None) -> Any:
    """torch's current stream of a device, by default the current one; `ptr` is its handle."""
    return SimpleNamespace(ptr=int(_torch().cuda.current_stream(device).cuda_stream))


# ---- what CuPy's modules hold --------------------------------------------------------------------------------------------


def _properties(device: int) -> dict[str, bytes]:
    found = _torch().cuda.get_device_properties(device)
    return {"name": found.name.encode(), "uuid": bytes.fromhex(str(found.uuid).replace("-", ""))}


def _is_capturing(stream: int) -> bool:
    status = _INT()
    library().cuStreamIsCapturing(stream, ctypes.byref(status))
    return status.value != 0


@functools.cache
def api() -> Any:
    """A stand-in for `cupy.cuda` with the names that launches use. The driver finds out where memory lies, so a copy ignores its kind."""
    torch, driver = _torch(), library()
    torch.cuda.init()
    device_of = functools.partial(_answer, _INT, "cuPointerGetAttribute", _DEVICE_ORDINAL)
    runtime = SimpleNamespace(
        memcpyHostToDevice=1,
        memcpyDeviceToHost=2,
        getDevice=torch._C._cuda_getDevice,
        getDeviceCount=torch.cuda.device_count,
        getDeviceProperties=_properties,
        driverGetVersion=functools.partial(_answer, _INT, "cuDriverGetVersion"),
        memGetInfo=torch.cuda.mem_get_info,
        free=lambda address: driver.cuCtxSetCurrent(
            _context(torch.cuda.current_device())
        ),  # launches free nothing else
        memcpy=lambda target, source, size, kind: driver.cuMemcpy(target, source, size),
        memcpyAsync=lambda target, source, size, kind, stream: driver.cuMemcpyAsync(target, source, size, stream),
        memset=driver.cuMemsetD8_v2,
        memsetAsync=driver.cuMemsetD8Async,
        pointerGetAttributes=lambda address: SimpleNamespace(device=device_of(address)),
        deviceSynchronize=driver.cuCtxSynchronize,
        streamSynchronize=driver.cuStreamSynchronize,
        streamIsCapturing=_is_capturing,
        streamWaitEvent=lambda stream, event: driver.cuStreamWaitEvent(stream, event, 0),
        eventRecord=driver.cuEventRecord,
    )
    return SimpleNamespace(
        runtime=runtime, Device=TorchDevice, Event=Event, alloc=alloc, get_current_stream=get_current_stream,
        get_elapsed_time=get_elapsed_time, function=SimpleNamespace(Module=Module),
    )  # fmt: skip


@functools.cache
def driver_api() -> Any:
    """A stand-in for CuPy's bindings of the driver with the names that launches use."""
    driver = library()
    return SimpleNamespace(
        CUDADriverError=CUDADriverError,
        launchKernel=driver.cuLaunchKernel,
        occupancyMaxActiveBlocksPerMultiprocessor=functools.partial(
            _answer, _INT, "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        ),
        funcSetAttribute=driver.cuFuncSetAttribute,
        funcGetAttribute=functools.partial(_answer, _INT, "cuFuncGetAttribute"),
    )
