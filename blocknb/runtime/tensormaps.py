"""Tensor maps (CUtensorMap) of a launch: 128-byte descriptors of arrays, which the TMA engine reads.

The fields of a map are expressions over the arguments (`codegen.maps`), which the encoder evaluates for a launch.
The driver encodes a map from the results. Most launches repeat the arguments of an earlier launch, so the encoder caches the latest
structs by the values that they depend on. A repeated launch then costs one dict lookup. A struct is never changed, and the launch
holds it until the driver has copied it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from blocknb import forks
from blocknb.codegen import maps
from blocknb.codegen.maps import MapSpec
from blocknb.errors import LaunchError
from blocknb.runtime import cuda
from blocknb.runtime.kinds import spelled

if TYPE_CHECKING:
    from blocknb.runtime.compile import Compiled

BYTES, ALIGNMENT = 128, 64  # of a CUtensorMap
KEPT = 256  # launches, and maps, whose structs are cached
_MAX_DIM = 2**31  # elements: a map allows 2^32, but coordinates are int32
_MAX_STRIDE = 2**40  # bytes (exclusive)
_INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: a thread that has launched nothing yet
_LEAST_STRIDE = 16  # bytes, and a multiple of it
# CUtensorMapDataType by the dtype's short name; fp8 and bool are moved as bytes. CUtensorMapSwizzle by bytes.
_TYPES = {"i8": 0, "u8": 0, "i1": 0, "i16": 1, "u16": 1, "u32": 2, "i32": 3, "u64": 4, "i64": 5}
_TYPES |= {"f16": 6, "f32": 7, "f64": 8, "bf16": 9}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_PLAIN, _PROMOTE_256, _FILL_ZERO = 0, 3, 0  # interleave, L2 promotion, fill of elements out of bounds

#: The addresses of a launch's structs, and what keeps them alive.
Structs = tuple[tuple[int, ...], Any]


class Encoder:
    """Encodes the tensor maps of a compiled kernel's launches on a device.

    `reads` are the indices of the parameters that the maps depend on. `get(values)` returns the Structs of an earlier launch or None;
    `encode(*values)` makes them. Raises LaunchError for an array that no map can describe."""

    _lock: threading.Lock  # one for all encoders, since they share the array that replaces empty ones

    def __init__(self, compiled: Compiled, device: int):
        self.specs, names = compiled.code.maps, [name for name, _ in compiled.parameters]
        self._maps = [_Map(spec, spelled(names[spec.base]), compiled.name, device) for spec in self.specs]
        expressions = [e for spec in self.specs for e in (("arg", spec.base), *spec.dims, *spec.strides)]
        self.reads = sorted(frozenset().union(*map(maps.parameters, expressions)))
        positions = {parameter: place for place, parameter in enumerate(self.reads)}
        made = lambda expressions: [maps.evaluator(e, positions) for e in expressions]  # noqa: E731
        self._extents = [(made([("arg", spec.base)])[0], made(spec.dims), made(spec.strides)) for spec in self.specs]
        self._launches: dict[tuple[int, ...], Structs] = {}
        self.get = self._launches.get

    def __call__(self, values: Sequence[Any]) -> Structs:
        """Returns the Structs for the values of all parameters."""
        key = tuple([values[i] for i in self.reads])
        return self.get(key) or self.encode(*key)

    def encode(self, *values: int) -> Structs:
        """Encodes and caches the Structs for the values of the parameters in `reads`."""
        with self._lock:
            found = [one.struct(extent) for one, extent in zip(self._maps, self._evaluate(values), strict=True)]
            made = tuple([_place(struct) for struct in found]), found
            return _cached(self._launches, values, made)

    def _evaluate(self, values: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        """Yields (address, extents, strides) of each map's array."""
        for base, dims, strides in self._extents:
            yield base(values), tuple([dim(values) for dim in dims]), tuple([stride(values) for stride in strides])


forks.renewed(Encoder, _lock=threading.Lock)


def _cached(known: dict, key: tuple, value: Any) -> Any:
    """Caches a value; the oldest entry makes room."""
    if len(known) >= KEPT:
        del known[next(iter(known))]
    known[key] = value
    return value


_Struct = ctypes.c_uint64 * ((BYTES + ALIGNMENT) // 8)  # with room to begin at a multiple of 64 bytes


def _place(struct: Any) -> int:
    return -(-ctypes.addressof(struct) // ALIGNMENT) * ALIGNMENT


class _Map:
    """One tensor map of a kernel. Only the array's address, extents and strides vary; the driver counts axes from the innermost."""

    def __init__(self, spec: MapSpec, array: str, kernel: str, device: int):
        self.spec, self.array, self.kernel, self.device = spec, array, kernel, device
        self.structs: dict[tuple, Any] = {}
        self.rank, self.bytes, words = len(spec.box), spec.dtype.bytes, ctypes.c_uint32 * len(spec.box)
        self.dims, self.steps = ((ctypes.c_uint64 * self.rank)() for _ in range(2))
        self.box, self.ones = words(*reversed(spec.box)), words(*[1] * self.rank)
        self.kind, self.swizzle = _TYPES.get(spec.dtype.short, 0), _SWIZZLES[spec.swizzle]

    def struct(self, extent: tuple[int, tuple[int, ...], tuple[int, ...]]) -> Any:
        """Returns the struct for (the array's address, its extents, its strides in elements, outer to inner)."""
        if (found := self.structs.get(extent)) is not None:
            return found
        base, dims, strides = extent
        if base == 0 or min(dims) <= 0:
            # The driver encodes no map of an empty array. Boxes of one zero read zeros as well.
            base, dims, strides = (
                empty_array_memory(self.device)[self.spec.stored],
                (1,) * self.rank,
                (0,) * (self.rank - 1),
            )
        steps = [stride * self.bytes for stride in strides]
        if 1 in dims:  # the stride of an axis of one element has no meaning
            steps = [_LEAST_STRIDE if dim == 1 else step for dim, step in zip(dims, steps, strict=False)]
        self.check(base, dims, steps)
        self.dims[:], self.steps[: self.rank - 1] = list(reversed(dims)), list(reversed(steps))
        made = _Struct()
        arguments = (
            _place(made), self.kind, self.rank, base, self.dims, self.steps, self.box, self.ones, _PLAIN, self.swizzle,
            _PROMOTE_256, _FILL_ZERO,
        )  # fmt: skip
        if (status := encode_tiled()(*arguments)) == _INVALID_CONTEXT:
            cuda.api().runtime.free(0)  # makes the context current in this thread
            status = encode_tiled()(*arguments)
        if status:
            described = f"dims {dims}, strides {tuple(steps)} bytes, box {self.spec.box}, swizzle {self.spec.swizzle}"
            raise self.refused(f"of {described}: the driver returns error {status}")
        return _cached(self.structs, extent, made)

    def check(self, base: int, dims: Sequence[int], steps: Sequence[int]) -> None:
        if base & 15:
            raise self.refused("whose address is not a multiple of 16 bytes")
        if max(dims) > _MAX_DIM:
            raise self.refused(f"with an axis of {max(dims)} elements, more than 2^31")
        for step in steps:
            if step % _LEAST_STRIDE or not 0 <= step < _MAX_STRIDE:
                raise self.refused(f"with a stride of {step} bytes, which is not a multiple of 16 from 0 to 2^40")

    def refused(self, why: str) -> LaunchError:
        return LaunchError(
            f"{self.kernel} copies boxes of `{self.array}` by TMA, which does not support an array {why}",
            hint='align the rows to 16 bytes, or disable these copies with without="warp_specialization"',
        )


@functools.cache
def encode_tiled() -> Callable[..., int]:
    """The driver's cuTensorMapEncodeTiled, which CuPy does not offer."""
    try:
        function = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1").cuTensorMapEncodeTiled
    except AttributeError:
        message = "the driver does not support tensor maps, which this kernel uses"
        raise LaunchError(message, hint='update it to CUDA 12, or compile without="warp_specialization"') from None
    address, word = ctypes.c_void_p, ctypes.c_uint32
    function.argtypes = (address, word, word, *[address] * 5, *[word] * 4)
    return function


@functools.cache
def empty_array_memory(device: int) -> tuple[int, int, Any]:
    """For maps of empty arrays on a device: the address of a zero, an address for stores, and the owner of the memory."""
    library, room = cuda.api(), 256
    with library.Device(device):
        memory = library.alloc(2 * room)
        library.runtime.memset(memory.ptr, 0, room)
        library.runtime.streamSynchronize(0)
    return memory.ptr, memory.ptr + room, memory
