"""Launches kernels on a GPU: loads machine code with CuPy's bindings of the driver API and starts it on the current stream.

CuPy manages memory, streams, events and contexts; where it is not installed, torch does. A launch with torch tensors runs on torch's
current stream, so neither library waits for the other. A `Launcher` prepares the kernel parameters and the launch configuration once per
plan. A launch then packs its arguments into a buffer and makes one driver call. After a fault of a kernel, the next driver call returns the
error and the context is lost. The message therefore names the kernels that were launched last.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import math
import re
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blocknb.errors import AccessError, KernelError, LaunchError, Unsupported
from blocknb.language.types import Pointer, int32, uint64
from blocknb.runtime import cuda, tensormaps
from blocknb.runtime.arguments import fp32_or_infinity
from blocknb.runtime.cta import launch_packed
from blocknb.runtime.dependent_launch import launch_dependent
from blocknb.runtime.launch_context import Grid
from blocknb.trace import Resources

if TYPE_CHECKING:
    from blocknb.runtime.compile import Compiled
    from blocknb.runtime.request import KernelCode

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_STATIC_SHARED_LIMIT = 48 * 1024  # bytes that a kernel may use without _MAX_DYNAMIC_SHARED
_FORMATS = {"i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q"}  # of `struct`, by the short name of a dtype
_FORMATS |= {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "f16": "e", "f32": "f", "f64": "d"}

#: The memory of the arguments of a launch. The first is the view into which it packs the addresses of tensor maps and its values. The
#: others are the address of the table of kernel parameters, and the memory of both.
Slots = tuple[memoryview, int, ctypes.Array]

#: The names of the kernels launched last.
_recent: collections.deque[str] = collections.deque(maxlen=3)


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel's machine code on a device, with its threads per CTA and its bytes of shared memory. `resident` is the number of resident
    CTAs of a persistent kernel, and 0 for other kernels. `function` keeps the module loaded."""

    function: Any
    name: str
    threads: int
    shared: int
    resident: int

    @property
    def address(self) -> int:
        return int(self.function.ptr)


class ArgumentBuffers:
    """Buffers into which launches pack their arguments. The driver copies the arguments during the call, so each concurrent launch needs
    its own. A launch takes one from `free` or makes one (`fresh`), and puts it back. `pack_into(slots[0], 0, *maps, *values)` packs
    the addresses of tensor maps and the values. `maps` encodes the tensor maps; it is None if the kernel has none."""

    def __init__(self, compiled: Compiled, device: int, types: Sequence[Any]):
        maps = len(compiled.code.maps)
        self.maps = tensormaps.Encoder(compiled, device) if maps else None
        self.fresh = functools.partial(_slots, len(types), maps)
        self.pack_into, self.free = _packer(types, maps), [self.fresh()]


class LaunchQueue:
    """The device of a launcher, and its current stream: `current(device)` returns that of CuPy or torch. `only_gpu`: there is no other
    GPU."""

    def __init__(self, device: int, library: str):
        self.device, self.library, self.current = device, library, cuda.current_stream(library)
        runtime = cuda.api().runtime
        self.current_device, self.only_gpu = runtime.getDevice, int(runtime.getDeviceCount()) == 1

    def handle(self) -> int:
        """The handle of the device's current stream."""
        stream = self.current(self.device)
        return stream if self.library == "torch" else stream.ptr


class Launcher:
    """Launches a compiled kernel on a device: `launcher(grid, raws, values)`. `positions` are the indices of the kernel's parameters in
    raws. The last `hidden` of them are the addresses and sizes that the compiler added.

    `fast_launch` reads the attributes to launch without this object. It does so only if `packs_unchanged`: no argument is converted.
    `launch` is the driver's call; `note` records the name of a launched kernel. A persistent kernel runs as many CTAs as are resident and
    gets the grid as three more arguments. `cluster` is the number of its CTAs that share a cluster. If the first axis of a grid is no
    multiple of it, the kernel runs without clusters. Otherwise a CTA would wait forever for the other one of its cluster.
    """

    def __init__(self, compiled: Compiled, device: int, positions: Sequence[int], library: str, hidden: int = 0):
        code, function = compiled.code, _load(compiled, device)
        self.cluster = code.cluster
        resident = _resident(function, code, device) // self.cluster * self.cluster if code.persistent else 0
        self.kernel = LoadedKernel(function, compiled.name, code.threads, code.shared_bytes, resident)
        types = [*(kind for _, kind in compiled.parameters), *[uint64] * hidden, *[int32] * 3 * code.persistent]
        self.positions, self.buffers = positions, ArgumentBuffers(compiled, device, types)
        self.queue, self.note = LaunchQueue(device, library), _recent.append
        self.launch = launch_dependent if code.launch_kind == "dependent" else cuda.driver_api().launchKernel
        if code.programs > 1:
            self.launch = launch_packed(self.launch, code.programs, _multiprocessors(device))
        self._convert = _converters(compiled)
        self.packs_unchanged = not self._convert and not hidden and self.cluster == 1
        self._without_clusters = functools.cache(lambda: without_clusters(compiled, device, positions, library, hidden))

    def __call__(self, grid: Grid, raws: Sequence[Any], values: Sequence[Any], retried: bool = False) -> None:
        kernel, buffers, queue = self.kernel, self.buffers, self.queue
        if grid[0] % self.cluster:
            self._without_clusters()(grid, raws, values)
            return
        if queue.current_device() != queue.device:
            with cuda.api().Device(queue.device):
                self(grid, raws, values)
            return
        packed = [raws[i] for i in self.positions]
        for i, to_bits in self._convert:
            packed[i] = to_bits(packed[i])
        if any(size > limit for size, limit in zip(grid, MAX_GRID, strict=True)):
            raise _too_large(grid, kernel.name)
        maps, _structs = ((), None) if buffers.maps is None else buffers.maps(packed)
        ctas = grid
        if kernel.resident:
            packed += grid
            ctas = _resident_ctas(grid, kernel)
        try:
            slots = buffers.free.pop()
        except IndexError:
            slots = buffers.fresh()
        try:
            handle = queue.handle()
            buffers.pack_into(slots[0], 0, *maps, *packed)
            self.launch(kernel.address, *ctas, kernel.threads, 1, 1, kernel.shared, handle, slots[1], 0)
        except OverflowError:
            self(grid, list(map(fp32_or_infinity, raws)), values)
        except Exception as error:
            if retried or "INVALID_CONTEXT" not in str(error):
                raise explain(error, kernel.name) from error
            cuda.api().runtime.free(0)  # makes the context current in this thread
            self(grid, raws, values, retried=True)
        buffers.free.append(slots)
        self.note(kernel.name)


def _resident(function: Any, code: KernelCode, device: int) -> int:
    """The number of CTAs of a kernel that are resident on a device at a time."""
    with cuda.api().Device(device):
        fitting = cuda.driver_api().occupancyMaxActiveBlocksPerMultiprocessor(
            int(function.ptr), code.threads, code.shared_bytes
        )
    return max(fitting, 1) * _multiprocessors(device)


def _multiprocessors(device: int) -> int:
    return int(cuda.api().Device(device).attributes["MultiProcessorCount"])


def _resident_ctas(grid: Grid, kernel: LoadedKernel) -> Grid:
    """The grid of CTAs of a persistent kernel that run the programs of a grid."""
    count = math.prod(grid)
    if count > MAX_GRID[0]:  # programs are counted in 32 bits
        raise LaunchError(f"the grid {grid} of {kernel.name} has {count} programs, more than the limit of 2^31 - 1")
    return min(count, kernel.resident), 1, 1


def without_clusters(compiled: Compiled, device: int, positions: Sequence[int], library: str, hidden: int) -> Launcher:
    """The launcher of the same kernel, compiled without clusters."""
    alone = compiled.with_options(num_ctas=None)
    found = {name: position for (name, _), position in zip(compiled.parameters, positions, strict=False)}
    own = [found[name] for name, _ in alone.parameters]
    return Launcher(alone, device, [*own, *positions[len(compiled.parameters) :]], library, hidden)


def _too_large(grid: Grid, name: str) -> LaunchError:
    limits = f"a GPU takes at most {MAX_GRID[0]} programs along the first axis and {MAX_GRID[1]} along the others"
    return LaunchError(f"the grid {grid} of {name} is too large: {limits}", hint="put the longest axis first")


def _packer(types: Sequence[Any], maps: int) -> Callable[..., None]:
    """Returns `pack_into(buffer, 0, *addresses, *values)`, which packs addresses of tensor maps and values into eight bytes each."""
    layout = f"<{maps}Q"
    for type_ in types:
        code = "Q" if isinstance(type_, Pointer) else _FORMATS.get(type_.short, "H")
        layout += f"{code}{8 - struct.calcsize('<' + code)}x"
    return struct.Struct(layout).pack_into


def _slots(count: int, maps: int) -> Slots:
    """Allocates slots for `count` values and `maps` tensor maps: first the table of kernel parameters, then the values."""
    memory = (ctypes.c_uint64 * max(count + maps + count, 1))()
    base = ctypes.addressof(memory)
    for i in range(count):
        memory[i] = base + 8 * (count + maps + i)
    return memoryview(memory).cast("B")[8 * count :], base, memory


def _converters(compiled: Compiled) -> list[tuple[int, Callable[[Any], Any]]]:
    """(index, function to bits) of each bf16 scalar, which `struct` cannot pack."""

    def bits(value: float) -> int:
        import ml_dtypes
        import numpy as np

        return int(np.asarray(value, ml_dtypes.bfloat16).view(np.uint16))

    return [(i, bits) for i, (_, type_) in enumerate(compiled.parameters) if getattr(type_, "name", "") == "bf16"]


def _load(compiled: Compiled, device: int) -> Any:
    """Loads the kernel on a device and returns its function, whose `ptr` is the handle. Without a cubin, the driver assembles the PTX."""
    with cuda.api().Device(device):
        module, begin = cuda.api().function.Module(), time.perf_counter()
        image = compiled.trace.artifacts.get("cubin") or compiled.trace.artifacts["ptx"].encode() + b"\0"
        try:
            module.load(image)
            function = module.get_function(compiled.code.entry)
            if compiled.code.shared_bytes > _STATIC_SHARED_LIMIT:
                cuda.driver_api().funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED, compiled.code.shared_bytes)
        except Exception as error:
            raise explain(error, compiled.name) from error
        compiled.trace.milliseconds["load"] = (time.perf_counter() - begin) * 1e3
        if "cubin" not in compiled.trace.artifacts:
            compiled.trace.resources = _resources(function, compiled)
        return function


def _resources(function: Any, compiled: Compiled) -> Resources:
    """The registers and stack that the driver reports, for code that it assembled itself."""
    get = cuda.driver_api().funcGetAttribute
    return Resources(
        registers=get(4, function.ptr),
        stack_bytes=get(3, function.ptr),
        shared_bytes=compiled.code.shared_bytes,
        threads=compiled.code.threads,
        programs=compiled.code.programs,
    )


def timed(device: int, library: str, start: Callable[[], None]) -> float:
    """Waits for the launches of `start` and returns their time in milliseconds, measured by events."""
    with cuda.api().Device(device):
        record, stream = cuda.api().runtime.eventRecord, LaunchQueue(device, library).handle()
        begin, end = cuda.api().Event(), cuda.api().Event()
        record(begin.ptr, stream)
        start()
        record(end.ptr, stream)
        try:
            end.synchronize()
            forget_launches()
            return cuda.api().get_elapsed_time(begin, end)
        except Exception as error:
            raise explain(error, _recent[-1] if _recent else "") from error


#: The meaning of driver errors after which the context is lost, by the end of the name of the error.
_FAULTS = {
    "ILLEGALADDRESS": "a program accessed memory outside of its arrays",
    "MISALIGNEDADDRESS": "a program accessed memory at an address that is not a multiple of the access size",
    "LAUNCHFAILED": "a kernel failed",
    "ILLEGALINSTRUCTION": "a kernel executed an illegal instruction",
    "LAUNCHTIMEOUT": "a kernel ran for longer than the driver allows",
    "HARDWARESTACKERROR": "a kernel ran out of stack",
    "INVALIDPC": "a kernel jumped to an invalid address",
    "ASSERT": "an assertion of a kernel failed",
}


def fault(error: BaseException) -> KernelError | None:
    """Returns the KernelError for an error of the driver, CuPy or torch after which the context is lost; None for other errors.

    The driver reports a fault at the next call, so only the names of earlier launches are known.
    """
    code = "ILLEGALADDRESS" if "illegal memory access" in str(error) else _code(error)
    if code not in _FAULTS:
        return None
    last, *others = list(dict.fromkeys(reversed(_recent))) or [""]
    message = f"{_FAULTS[code]} on the GPU"
    if last:
        message += f": the kernel launched last was `{last}`"
    if others:
        message += f", and {', '.join(f'`{name}`' for name in others)} may have been running as well"
    hint = (
        "the GPU context is lost: restart the notebook's kernel, then launch with checked=True (or "
        "%%blockkernel --checked), which skips such accesses and names their line and element"
    )
    return (AccessError if code.endswith("ADDRESS") else KernelError)(message, hint=hint)


def _code(error: BaseException) -> str:
    """ILLEGALADDRESS for CUDA_ERROR_ILLEGAL_ADDRESS of the driver or cudaErrorIllegalAddress of the runtime."""
    found = re.search(r"(?:CUDA_ERROR_|cudaError)(\w+)", str(error))
    return (found[1] if found else type(error).__name__).upper().replace("_", "")


def explain(error: Exception, name: str) -> KernelError:
    """Returns the KernelError for an error of the driver during the load, the launch or the run of a kernel."""
    if (found := fault(error)) is not None:
        return found
    if isinstance(error, MemoryError):
        return LaunchError(f"the GPU has too little free memory to launch {name}: {error}")
    if _code(error) in ("NOBINARYFORGPU", "INVALIDPTX", "UNSUPPORTEDPTXVERSION"):
        return Unsupported(
            f"the driver cannot load {name}: {error}", hint="pip install 'blocknb[toolchain]', or update the driver"
        )
    return KernelError(f"the driver refuses to launch {name}: {error}")


def forget_launches() -> None:
    """Forgets the launches so far, which have ended without a fault."""
    _recent.clear()
