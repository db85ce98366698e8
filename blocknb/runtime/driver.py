"""The GPU side of a launch: loads machine code with CuPy's driver bindings and starts it on the stream the arrays live on.

Memory, streams, events and contexts stay CuPy's; torch tensors run on torch's current stream, so that neither library has to
wait for the other. A `Launcher` lays the arguments' slots, their addresses and the launch configuration out once per plan, so that a
launch packs numbers into a buffer and makes a single call. A fault on a GPU is reported by whatever call
comes next and takes the context with it; the message therefore names the kernel launched last, and those before it.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blocknb.errors import AccessError, KernelError, LaunchError, Unsupported
from blocknb.language.types import Pointer, int32, uint64
from blocknb.runtime import cuda, tensormaps
from blocknb.runtime.cta import packed
from blocknb.trace import Resources

if TYPE_CHECKING:
    from blocknb.runtime.compile import Compiled
    from blocknb.runtime.request import KernelCode

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_STATIC_SHARED_LIMIT = 48 * 1024  # what a kernel may use without asking
_FORMATS = {
    "i1": "?",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "f16": "e",
    "f32": "f",
    "f64": "d",
}

#: Where values of a launch are packed (the addresses of tensor maps first), the address of the table of its slots, and the memory, which
#: must outlive the plain address.
Slots = tuple[memoryview, int, ctypes.Array]

_recent: collections.deque[str] = collections.deque(maxlen=3)


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel's machine code on a device, as the driver launches it: the address of the function, its threads and bytes of shared memory,
    and of a persistent kernel how many CTAs are `resident` (0 for others). `function` keeps the module alive."""

    function: Any
    name: str
    threads: int
    shared: int
    resident: int

    @property
    def address(self) -> int:
        return int(self.function.ptr)


class ArgumentBuffers:
    """Where the arguments of launches are packed. The driver copies arguments during the call, from slots that nobody else may write
    meanwhile: whoever launches takes some from `free`, or makes some (`fresh`), and puts them back. `pack_into(slots[0], 0, *maps,
    *values)` packs the addresses of tensor maps and the values; `maps` gives the former, unless it is None."""

    def __init__(self, compiled: Compiled, device: int, types: Sequence[Any]):
        self.maps = tensormaps.Encoder(compiled, device) if compiled.code.maps else None
        self.fresh = functools.partial(_slots, len(types), len(compiled.code.maps))
        self.pack_into, self.free = _packer(types, len(compiled.code.maps)), [self.fresh()]


class LaunchQueue:
    """The device that a launcher launches on: its current stream (`current(device)`) as CuPy or torch has it, which device is current, and
    whether it is `alone`."""

    def __init__(self, device: int, library: str):
        self.device, self.library, self.current = device, library, cuda.current_stream(library)
        runtime = cuda.cupy().cuda.runtime
        self.current_device, self.alone = runtime.getDevice, int(runtime.getDeviceCount()) == 1

    def handle(self) -> int:
        """The current stream of the device, as the driver takes it."""
        stream = self.current(self.device)
        return stream if self.library == "torch" else stream.ptr


class Launcher:
    """Launches a compiled kernel on a device: `launcher(grid, raws, values)`. `positions` says where in raws the kernel's parameters
    lie, the last `hidden` of which are addresses and sizes behind its own.

    The attributes are for functions that launch by themselves (see `fast_launch`), which they may where a launcher is `plain`: its
    arguments are packed as they come. `launch` is the driver's call, and `note` takes the name of a kernel that was launched. A persistent
    kernel has as many CTAs as are resident, and the grid as further arguments.
    """

    def __init__(self, compiled: Compiled, device: int, positions: Sequence[int], library: str, hidden: int = 0):
        code, function = compiled.code, _load(compiled, device)
        resident = _resident(function, code, device) if code.persistent else 0
        self.kernel = LoadedKernel(function, compiled.name, code.threads, code.shared_bytes, resident)
        types = [*(kind for _, kind in compiled.parameters), *[uint64] * hidden, *[int32] * 3 * code.persistent]
        self.positions, self.buffers = positions, ArgumentBuffers(compiled, device, types)
        self.queue, self.note = LaunchQueue(device, library), _recent.append
        self.launch = cuda.driver_api().launchKernel
        if code.programs > 1:
            self.launch = packed(self.launch, code.programs, _multiprocessors(device))
        self._convert = _converters(compiled)
        self.plain = not self._convert and not hidden

    def __call__(
        self, grid: tuple[int, int, int], raws: Sequence[Any], values: Sequence[Any], retried: bool = False
    ) -> None:
        kernel, buffers, queue = self.kernel, self.buffers, self.queue
        if queue.current_device() != queue.device:
            with cuda.cupy().cuda.Device(queue.device):
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
        except OverflowError:  # a number beyond fp32 is infinite there
            self(grid, [_as_single(raw) for raw in raws], values)
        except Exception as error:
            if retried or "INVALID_CONTEXT" not in str(error):
                raise explain(error, kernel.name) from error
            cuda.cupy().cuda.runtime.free(0)  # makes the context current in a thread that is new to CUDA
            self(grid, raws, values, retried=True)
        buffers.free.append(slots)
        self.note(kernel.name)


def _resident(function: Any, code: KernelCode, device: int) -> int:
    """How many CTAs of a kernel a device runs at a time."""
    with cuda.cupy().cuda.Device(device):
        fitting = cuda.driver_api().occupancyMaxActiveBlocksPerMultiprocessor(
            int(function.ptr), code.threads, code.shared_bytes
        )
    return max(fitting, 1) * _multiprocessors(device)


def _multiprocessors(device: int) -> int:
    return int(cuda.cupy().cuda.Device(device).attributes["MultiProcessorCount"])


def _resident_ctas(grid: tuple[int, int, int], kernel: LoadedKernel) -> tuple[int, int, int]:
    """The CTAs of a persistent kernel that run the programs of a grid."""
    count = math.prod(grid)
    if count > MAX_GRID[0]:  # programs are counted in 32 bits
        message = f"the grid {grid} of {kernel.name} is too large: {count} programs, and 2^31 - 1 are the most"
        raise LaunchError(message)
    return min(count, kernel.resident), 1, 1


def _as_single(value: Any) -> Any:
    return math.copysign(math.inf, value) if isinstance(value, float) and abs(value) >= 2.0**128 else value


def _too_large(grid: tuple[int, int, int], name: str) -> LaunchError:
    limits = f"a GPU takes at most {MAX_GRID[0]} programs along the first axis and {MAX_GRID[1]} along the others"
    return LaunchError(f"the grid {grid} of {name} is too large: {limits}", hint="put the longest axis first")


def _packer(types: Sequence[Any], maps: int) -> Callable[..., None]:
    """How the addresses of tensor maps and values are packed, each into eight bytes: `pack_into(buffer, 0, *addresses, *values)`."""
    layout = f"<{maps}Q"
    for type_ in types:
        code = "Q" if isinstance(type_, Pointer) else _FORMATS.get(type_.short, "H")
        layout += f"{code}{8 - struct.calcsize('<' + code)}x"
    return struct.Struct(layout).pack_into


def _slots(count: int, maps: int) -> Slots:
    """Slots for the values of as many parameters, and behind them so many tensor maps: first the table, then the values."""
    memory = (ctypes.c_uint64 * max(count + maps + count, 1))()
    base = ctypes.addressof(memory)
    for i in range(count):
        memory[i] = base + 8 * (count + maps + i)
    return memoryview(memory).cast("B")[8 * count :], base, memory


def _converters(compiled: Compiled) -> list[tuple[int, Callable[[Any], Any]]]:
    """What struct cannot pack: bf16 scalars, which travel as their 16 bits."""

    def bits(value: float) -> int:
        import ml_dtypes
        import numpy as np

        return int(np.asarray(value, ml_dtypes.bfloat16).view(np.uint16))

    return [(i, bits) for i, (_, type_) in enumerate(compiled.parameters) if getattr(type_, "name", "") == "bf16"]


def _load(compiled: Compiled, device: int) -> Any:
    """The kernel as a CuPy Function on a device; a cubin if there is one, else PTX, which the driver then assembles."""
    import time

    with cuda.cupy().cuda.Device(device):
        module, begin = cuda.cupy().cuda.function.Module(), time.perf_counter()
        image = compiled.artifacts.get("cubin") or compiled.artifacts["ptx"].encode() + b"\0"
        try:
            module.load(image)
            function = module.get_function(compiled.code.entry)
            if compiled.code.shared_bytes > _STATIC_SHARED_LIMIT:
                cuda.driver_api().funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED, compiled.code.shared_bytes)
        except Exception as error:
            raise explain(error, compiled.name) from error
        compiled.trace.milliseconds["load"] = (time.perf_counter() - begin) * 1e3
        if "cubin" not in compiled.artifacts:
            compiled.trace.resources = _resources(function, compiled)
        return function


def _resources(function: Any, compiled: Compiled) -> Resources:
    """Registers and stack as the driver tells them; for code that ptxas did not see."""
    get = cuda.driver_api().funcGetAttribute
    return Resources(
        registers=get(4, function.ptr),
        stack_bytes=get(3, function.ptr),
        shared_bytes=compiled.code.shared_bytes,
        threads=compiled.code.threads,
        programs=compiled.code.programs,
    )


def timed(device: int, library: str, start: Callable[[], None]) -> float:
    """Milliseconds, by events, of what `start` launches; waits for it."""
    with cuda.cupy().cuda.Device(device):
        record, stream = cuda.cupy().cuda.runtime.eventRecord, cuda.stream_of(device, library)()
        begin, end = cuda.cupy().cuda.Event(), cuda.cupy().cuda.Event()
        record(begin.ptr, stream)
        start()
        record(end.ptr, stream)
        try:
            end.synchronize()
            settled()
            return cuda.cupy().cuda.get_elapsed_time(begin, end)
        except Exception as error:
            raise explain(error, _recent[-1] if _recent else "") from error


#: What an error of the driver says of a kernel that ran, by the end of its name. The context does not survive any of them.
_FAULTS = {
    "ILLEGALADDRESS": "a program accessed memory outside of its arrays",
    "MISALIGNEDADDRESS": "a program accessed memory at an address that is no multiple of the access",
    "LAUNCHFAILED": "a kernel failed",
    "ILLEGALINSTRUCTION": "a kernel met an instruction that the GPU does not know",
    "LAUNCHTIMEOUT": "a kernel ran for longer than the driver allows",
    "HARDWARESTACKERROR": "a kernel ran out of stack",
    "INVALIDPC": "a kernel lost its way",
    "ASSERT": "an assertion of a kernel failed",
}


def fault(error: BaseException) -> KernelError | None:
    """The KernelError for an error of the driver, of CuPy or of torch that says that a kernel broke the context; None for any other.

    The driver tells of a fault by whatever call comes next, so all that is known is which kernels were launched before.
    """
    code = _code(error).upper().replace("_", "")
    if "illegal memory access" in str(error):
        code = "ILLEGALADDRESS"
    if code not in _FAULTS:
        return None
    last, *others = list(dict.fromkeys(reversed(_recent))) or [""]
    message = f"{_FAULTS[code]} on the GPU"
    if last:
        message += f": the kernel launched last was `{last}`"
    if others:
        message += f", and {', '.join(f'`{name}`' for name in others)} may have been running as well"
    hint = (
        "the GPU context is lost for this process: restart the notebook's kernel, then launch with checked=True (or "
        "%%blockkernel --checked), which leaves such accesses out and names their line and element"
    )
    return (AccessError if code.endswith("ADDRESS") else KernelError)(message, hint=hint)


def _code(error: BaseException) -> str:
    """ILLEGAL_ADDRESS or IllegalAddress, as the driver's or the runtime's error is called."""
    found = re.search(r"(?:CUDA_ERROR_|cudaError)(\w+)", str(error))
    return found[1] if found else type(error).__name__


def explain(error: Exception, name: str) -> KernelError:
    """The KernelError for an error of the driver while the kernel of that name was loaded, launched or waited for."""
    if (found := fault(error)) is not None:
        return found
    if _code(error).upper().replace("_", "") in ("NOBINARYFORGPU", "INVALIDPTX", "UNSUPPORTEDPTXVERSION"):
        return Unsupported(
            f"the driver cannot load {name}: {error}", hint="pip install 'blocknb[toolchain]', or update the driver"
        )
    return KernelError(f"the driver refuses to launch {name}: {error}")


def settled() -> None:
    """What was launched so far has ended well."""
    _recent.clear()
