"""Tensor maps of a launch: 128 bytes that tell a GPU's copies of boxes (TMA) where an array lies, encoded by the driver from arguments.

What a map says is an expression over the arguments (`codegen.maps`); all expressions of a kernel are one Python function. The trick is
that a launch mostly has the arguments of an earlier one: the structs of the last few are kept by the values that they depend on, so
that a repeated launch costs a look into a dict. A struct is never changed, and whoever launches holds it until the driver has copied it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from blocknb.codegen import maps
from blocknb.codegen.maps import MapSpec
from blocknb.errors import LaunchError
from blocknb.runtime.arguments import spelled

if TYPE_CHECKING:
    from blocknb.runtime.compile import Compiled

BYTES, ALIGNMENT = 128, 64  # of a CUtensorMap
KEPT = 256  # launches, and maps, of which the structs are kept
_MAX_DIM, _MAX_STRIDE = 2**32, 2**40  # elements, and bytes (exclusive)
_LEAST_STRIDE = 16  # bytes, and a multiple of it
# CUtensorMapDataType by the dtype's short name; fp8 and bool are moved as bytes. CUtensorMapSwizzle by bytes.
_TYPES = {"i8": 0, "u8": 0, "i1": 0, "i16": 1, "u16": 1, "u32": 2, "i32": 3, "u64": 4, "i64": 5}
_TYPES |= {"f16": 6, "f32": 7, "f64": 8, "bf16": 9}
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_PLAIN, _PROMOTE_256, _FILL_ZERO = 0, 3, 0  # interleave, L2 promotion, what lies outside

#: The addresses of a launch's structs, and what keeps them alive.
Structs = tuple[tuple[int, ...], Any]


class Encoder:
    """The tensor maps of launches of a compiled kernel on a device. `reads` are the indices of the parameters that they depend on:
    `get(values of these)` gives the Structs of an earlier launch or None, `encode(*values)` makes them. Raises LaunchError."""

    def __init__(self, compiled: Compiled, device: int):
        self.specs, self.device, self.kernel = compiled.code.maps, device, compiled.name
        self.names = [name for name, _ in compiled.parameters]
        told = [(*spec.dims, *spec.strides) for spec in self.specs]
        read = {spec.base for spec in self.specs}.union(*(maps.parameters(e) for told_of in told for e in told_of))
        self.reads = sorted(read)
        names = [f"p{i}" for i in range(len(self.names))]
        shown = "".join(f"(p{s.base}, {_written(s.dims, names)}, {_written(s.strides, names)}), " for s in self.specs)
        known = {"quotient": maps.quotient, "remainder": maps.remainder}
        self._evaluate = eval(f"lambda {', '.join(f'p{i}' for i in self.reads)}: ({shown})", known)
        self._launches: dict[tuple[int, ...], Structs] = {}
        self._structs: dict[tuple, _Struct] = {}
        self._lock = threading.Lock()
        self.get = self._launches.get

    def __call__(self, values: Sequence[Any]) -> Structs:
        """The Structs for the values of all parameters."""
        key = tuple([values[i] for i in self.reads])
        return self.get(key) or self.encode(*key)

    def encode(self, *values: int) -> Structs:
        with self._lock:
            found = tuple(map(self._struct, range(len(self.specs)), self._evaluate(*values)))
            made = tuple(struct.address for struct in found), found
            return _kept(self._launches, values, made)

    def _struct(self, number: int, told: tuple[int, tuple[int, ...], tuple[int, ...]]) -> _Struct:
        if (found := self._structs.get((number, *told))) is not None:
            return found
        spec, (base, dims, strides) = self.specs[number], told
        made = _Struct()
        if base == 0 or min(dims) <= 0:
            # A map of an empty array there is none, and every box of it reads zeros: so do those of one zero.
            base, dims, strides = spare(self.device)[spec.stored], (1,) * len(dims), (0,) * len(strides)
        steps = [
            _LEAST_STRIDE if dim == 1 else stride * spec.dtype.bytes for dim, stride in zip(dims, strides, strict=False)
        ]
        self._check(spec, base, dims, steps)
        if status := _encode(made.address, spec, base, dims, steps):
            told_of = f"dims {dims}, strides {tuple(steps)} bytes, box {spec.box}, swizzle {spec.swizzle}"
            raise self._refused(spec, f"of {told_of}: the driver refuses a map of it (error {status})")
        return _kept(self._structs, (number, *told), made)

    def _check(self, spec: MapSpec, base: int, dims: Sequence[int], steps: Sequence[int]) -> None:
        if base % 16:
            raise self._refused(spec, "beginning at no multiple of 16 bytes")
        if max(dims) > _MAX_DIM:
            raise self._refused(spec, f"of {max(dims)} elements along an axis: 2^32 are the most")
        for step in steps:
            if not 0 <= step < _MAX_STRIDE or step % _LEAST_STRIDE:
                raise self._refused(spec, f"with a stride of {step} bytes: no multiple of 16 from 0 to 2^40")

    def _refused(self, spec: MapSpec, why: str) -> LaunchError:
        name = spelled(self.names[spec.base])
        return LaunchError(
            f"{self.kernel} moves boxes of `{name}` (TMA), which cannot be done with an array {why}",
            hint='without="specialize" leaves such copies out; arrays whose rows begin at multiples of 16 bytes can be copied so',
        )


def _written(expressions: Sequence[maps.Expression], names: Sequence[str]) -> str:
    return f"({''.join(f'{maps.python(e, names)}, ' for e in expressions)})"


def _kept(known: dict, key: tuple, value: Any) -> Any:
    """Files a value in place of the oldest."""
    if len(known) >= KEPT:
        del known[next(iter(known))]
    known[key] = value
    return value


class _Struct:
    """Memory for a tensor map."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(BYTES + ALIGNMENT)
        self.address = -(-ctypes.addressof(self.memory) // ALIGNMENT) * ALIGNMENT


def _encode(address: int, spec: MapSpec, base: int, dims: Sequence[int], steps: Sequence[int]) -> int:
    """Has the driver write a map of an array; its status, 0 if all is well. It counts axes from the innermost."""
    rank, longs, words = len(dims), ctypes.c_uint64, ctypes.c_uint32
    sizes, strides = (longs * rank)(*reversed(dims)), (longs * rank)(*reversed(steps))
    box, ones = (words * rank)(*reversed(spec.box)), (words * rank)(*[1] * rank)
    kind, swizzle = _TYPES.get(spec.dtype.short, 0), _SWIZZLES[spec.swizzle]
    encode = encode_tiled()
    return encode(
        address, kind, rank, base, sizes, strides, box, ones, _PLAIN, swizzle, _PROMOTE_256, _FILL_ZERO
    )  # fmt: skip


@functools.cache
def encode_tiled() -> Callable[..., int]:
    """The driver's cuTensorMapEncodeTiled, which CuPy does not offer."""
    try:
        function = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1").cuTensorMapEncodeTiled
    except AttributeError:
        message = "the driver knows no tensor maps, which this kernel was compiled to use"
        raise LaunchError(message, hint='update it to CUDA 12, or compile without="specialize"') from None
    address, word = ctypes.c_void_p, ctypes.c_uint32
    function.argtypes = (address, word, word, *[address] * 5, *[word] * 4)
    return function


@functools.cache
def spare(device: int) -> tuple[int, int, Any]:
    """For maps of empty arrays on a device: the address of a zero, of memory that nobody reads, and what keeps them."""
    from blocknb.runtime.driver import cupy

    cuda, room = cupy().cuda, 256
    with cuda.Device(device):
        memory = cuda.alloc(2 * room)
        cuda.runtime.memset(memory.ptr, 0, room)
        cuda.runtime.streamSynchronize(0)
    return memory.ptr, memory.ptr + room, memory
