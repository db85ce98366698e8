"""Describes the arguments of a launch: `describer(value)(value)` returns a Kind, on which the compiler specializes, and the raw value.

A table maps the Python type of a value to the function that describes it. NumPy arrays and torch CPU tensors are host memory. CuPy
arrays, torch CUDA tensors, and objects with `__cuda_array_interface__` or DLPack are device memory. Launches use all memory in place,
without a copy. `descriptor` and `interface` register the types of blocknb itself (`describe_by`).

NumPy takes a microsecond to return an array's address. A read from the `PyArrayObject` takes a sixth of that. Launches use it if a
check at import time finds the address at the expected offset.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from blocknb.errors import IntegerTooWide, LaunchError
from blocknb.language import types as t
from blocknb.runtime import cuda
from blocknb.runtime.kinds import (
    ANYWHERE,
    HOST,
    NONE,
    ONE,
    Kind,
    constant_kind,
    integer_kind,
    pointer_kind,
    scalar_kind,
    tuple_kind,
)

# ---- numbers ------------------------------------------------------------------------------------------------------------

_INTEGERS = tuple(
    (tuple(integer_kind(dtype, low_bits) for low_bits in range(16)), low, high)
    for dtype, low, high in ((t.int32, -(2**31), 2**31), (t.int64, -(2**63), 2**63), (t.uint64, 0, 2**64))
)
_BOOL, _FLOAT = map(scalar_kind, (t.int1, t.float32))
_FP32_OVERFLOW = 2.0**128 - 2.0**103  # the least float that rounds to infinity in fp32


def _kind(kind: Kind) -> tuple[Kind, None]:
    return kind, None


def _int(value: int) -> tuple[Kind, Any]:
    if value == 1:
        return ONE, value
    for kinds, low, high in _INTEGERS:
        if low <= value < high:
            return kinds[value & 15], value
    raise IntegerTooWide(f"the integer {value} does not fit in 64 bits")


def _float(value: float) -> tuple[Kind, Any]:
    return _FLOAT, value


def _bool(value: bool) -> tuple[Kind, Any]:
    return _BOOL, value


def fp32_or_infinity(value: Any) -> Any:
    """Returns infinity for a float beyond the range of fp32, and any other value unchanged. `struct` raises OverflowError instead."""
    return math.copysign(math.inf, value) if isinstance(value, float) and abs(value) >= _FP32_OVERFLOW else value


def _none(value: None) -> tuple[Kind, Any]:
    return NONE, None


def _constant(value: Any) -> tuple[Kind, Any]:
    return constant_kind(value), value


def _numpy_scalar(value: Any) -> tuple[Kind, Any]:
    dtype, raw = dtype_of(value.dtype), value.item() if isinstance(value, np.generic) else float(value)
    if dtype.is_fp8():  # kernels compute in fp32, which holds every fp8 number exactly
        return _FLOAT, raw
    if dtype.is_float or dtype.kind == "bool":
        return scalar_kind(dtype), raw
    return (ONE if raw == 1 else integer_kind(dtype, int(raw))), raw


# ---- arrays -------------------------------------------------------------------------------------------------------------


@functools.cache
def _dtype_by_name(name: str) -> t.DType:
    if name in t.BY_NAME:
        return t.BY_NAME[name]
    hint = None
    if name.startswith("complex"):
        hint = f"pass its real view: x.view(float{int(name.removeprefix('complex')) // 2})"
    elif name.startswith(("str", "bytes")):
        hint = "a kernel computes with numbers: encode the strings as numbers first"
    elif name in ("float128", "float96"):
        hint = "the widest float of a kernel has 64 bits: pass x.astype(numpy.float64)"
    elif name.startswith(("datetime", "timedelta")):
        hint = "pass the dates as integers: x.view(numpy.int64)"
    elif name == "object":
        hint = "a kernel cannot load Python objects: give the array a numeric dtype"
    raise LaunchError(
        f"a kernel cannot take an array of {name}",
        hint=hint or "the dtypes of kernels are " + ", ".join(d.name for d in t.DTYPES),
    )


def dtype_of(dtype: Any) -> t.DType:
    """Returns the DType for a dtype of NumPy, torch or another library. Raises LaunchError if there is none."""
    if isinstance(dtype, t.DType):
        return dtype
    if isinstance(dtype, np.dtype):
        if not dtype.isnative:
            raise LaunchError(
                f"the array has dtype {dtype.str!r}, which is not in the byte order of this machine",
                hint="pass x.astype(x.dtype.newbyteorder('='))",
            )
        return _dtype_by_name(dtype.name)
    return _dtype_by_name(str(dtype).removeprefix("torch."))


class MisalignedArray(LaunchError):
    """The address of an array is not a multiple of the size of an element."""


@functools.cache
def _array_kinds(dtype: Any, device: int, readonly: bool = False, library: str = "") -> tuple[int, Kind, Kind]:
    """Returns a mask of the address bits that must be zero, the Kind of an unaligned array, and that of an aligned one (16 bytes)."""
    known = dtype_of(dtype)
    unaligned, aligned = (pointer_kind(known, is_aligned, device, readonly, library) for is_aligned in (False, True))
    return known.bytes - 1, unaligned, aligned


def _array(kinds: tuple[int, Kind, Kind], address: int) -> tuple[Kind, int]:
    mask, unaligned, aligned = kinds
    if address & mask:
        message = f"the address of the array is not a multiple of the {mask + 1} bytes of an element"
        raise MisalignedArray(message, hint="pass x.copy(), which is aligned")
    return (unaligned if address & 15 else aligned), address


DATA_OFFSET = object.__basicsize__  # of `char *data` in a PyArrayObject, behind the object's header
read_pointer = ctypes.c_void_p.from_address


def _portable_address(array: np.ndarray) -> int:
    return array.ctypes.data


def direct_address(array: np.ndarray) -> int:
    """Reads an array's address from its PyArrayObject."""
    return read_pointer(id(array) + DATA_OFFSET).value or 0


_probe = np.zeros(3, np.int16)[1:]
numpy_address: Callable[[np.ndarray], int] = (
    direct_address
    if sys.implementation.name == "cpython" and direct_address(_probe) == _portable_address(_probe)
    else _portable_address
)


@functools.cache
def _writable_kinds(dtype: np.dtype) -> tuple[int, Kind, Kind]:
    return _array_kinds(dtype, HOST)


def describe_numpy(array: np.ndarray) -> tuple[Kind, int]:
    """Describes a NumPy array."""
    address = numpy_address(array)
    kinds = _writable_kinds(array.dtype) if array.flags.writeable else _array_kinds(array.dtype, HOST, True)
    if address & kinds[0]:
        return _array(kinds, address)  # raises
    return (kinds[1] if address & 15 else kinds[2]), address


def _masked(array: Any) -> tuple[Kind, int]:
    raise LaunchError(
        "a masked array consists of two arrays, and a kernel reads only one", hint="pass x.data and x.mask"
    )


def describe_torch(tensor: Any) -> tuple[Kind, int]:
    """Describes a torch tensor. Raises LaunchError for a tensor on another device, without memory, or with the negative bit."""
    device = tensor.get_device() if tensor.is_cuda else HOST
    if device == HOST and tensor.device.type != "cpu":
        raise LaunchError(f"a kernel cannot access a tensor on {tensor.device}", hint="pass x.cpu() or x.cuda()")
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:  # sparse and other tensors without one block of memory
        dense = str(tensor.layout) == "torch.strided"
        hint = (
            "in torch.func and torch.compile, launch it in an operator: @blocknb.torch_op"
            if dense
            else "pass x.to_dense()"
        )
        raise LaunchError(f"the tensor has no memory of its own: {error}", hint=hint) from None
    if tensor.is_neg():
        message = "the tensor is a view whose elements torch negates on access (its negative bit is set)"
        raise LaunchError(message, hint="pass x.resolve_neg()")
    return _array(_array_kinds(tensor.dtype, device, False, "torch"), address)


def describe_cupy(array: Any) -> tuple[Kind, int]:
    """Describes a CuPy array."""
    memory = array.data
    return _array(_array_kinds(array.dtype, memory.device_id), memory.ptr)


def _cuda_interface(value: Any) -> tuple[Kind, int]:
    interface = value.__cuda_array_interface__
    address, readonly = interface["data"]
    cuda.wait_for(interface.get("stream"))
    dtype = np.dtype(interface["typestr"])
    return _array(_array_kinds(dtype, cuda.device_of(address), bool(readonly)), address)


def _dlpack(value: Any) -> tuple[Kind, int]:
    device_type = int(value.__dlpack_device__()[0])
    if device_type == 1:
        return describe_numpy(np.from_dlpack(value))
    if device_type in (2, 13):  # CUDA and CUDA's managed memory
        try:
            import cupy
        except ImportError:
            cuda.api()  # raises unless torch has a GPU
            return describe_torch(sys.modules["torch"].from_dlpack(value))
        return describe_cupy(cupy.from_dlpack(value))
    raise LaunchError(
        f"a kernel cannot access DLPack memory of device type {device_type}", hint="pass a NumPy or CuPy array"
    )


def _data_pointer(value: Any) -> tuple[Kind, int]:
    """Describes an object with `.data_ptr()` and `.dtype`, such as a wrapper that reinterprets a tensor."""
    address, device = value.data_ptr(), getattr(value, "device", None)
    name, _, index = str(device).partition(":")  # torch's devices print as "cuda:0" and "cpu"
    numbers = {"None": ANYWHERE, "cpu": HOST, "cuda": int(index or 0)}
    if name not in numbers:
        raise LaunchError(
            f"a kernel cannot access memory on {device}", hint="pass an array of the CPU or of a CUDA GPU"
        )
    return pointer_kind(dtype_of(value.dtype), address % 16 == 0, numbers[name]), address


def _tuple(value: tuple) -> tuple[Kind, Any]:
    if not value:
        return constant_kind(value), None
    kinds, raws = [], []
    for i, element in enumerate(value):
        try:
            kind, raw = (DESCRIBE.get(type(element)) or describer(element))(element)
        except LaunchError as error:
            raise LaunchError(f"element {i}: {error.message}", error.loc, error.hint) from None
        kinds.append(kind)
        raws.append(raw)
    return tuple_kind(tuple(kinds), type(value) if hasattr(value, "_make") else tuple), raws


def _refuse(value: Any) -> tuple[Kind, Any]:
    name = type(value).__name__
    hint = "pass an array or a number"
    if isinstance(value, (list, dict, set, range)):
        hint = (
            "pass an array: numpy.asarray(...) for the CPU, cupy.asarray(...) for a GPU; or a tuple, whose elements are arguments; "
            "or annotate the parameter tl.constexpr"
        )
    elif isinstance(value, complex):
        hint = "pass its real and imaginary part"
    raise LaunchError(f"a {name} is neither an array nor a number", hint=hint)


# ---- dispatch by type ---------------------------------------------------------------------------------------------------

Describe = Callable[[Any], tuple[Kind, Any]]
DESCRIBE: dict[type, Describe] = {
    int: _int,
    float: _float,
    bool: _bool,
    type(None): _none,
    str: _constant,
    tuple: _tuple,
    np.ndarray: describe_numpy,
    t.DType: _constant,
    Kind: _kind,
}
_BY_NAME: dict[tuple[str, str], Describe] = {
    ("torch", "Tensor"): describe_torch,
    ("cupy", "ndarray"): describe_cupy,
    ("ml_dtypes", "bfloat16"): _numpy_scalar,
    **{("ml_dtypes", name): _numpy_scalar for name in t.FLOAT8_NAMES},
}
#: Types whose subclasses are described in the same way.
_INHERITED: set[type] = {np.ndarray, int, float, tuple}


def describe_by(
    type_: type, function: Describe, subclasses: bool = False, foreign: tuple[str, str] | None = None
) -> None:
    """Registers the function that describes values of a type, and with `subclasses` those of its subclasses. `foreign` names a class of
    another package, (package, class), whose values the function describes, too."""
    DESCRIBE[type_] = function
    if subclasses:
        _INHERITED.add(type_)
    if foreign is not None:
        _BY_NAME[foreign] = function


def describer(value: Any) -> Describe:
    """Returns the function that describes values of this type. The table keeps it for the next value."""
    type_ = type(value)
    if type_ not in DESCRIBE:
        DESCRIBE[type_] = _find(value)
    return DESCRIBE[type_]


def _find(value: Any) -> Describe:
    type_ = type(value)
    if "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray):
        return _masked
    for base in type_.__mro__:
        if found := _BY_NAME.get((base.__module__.split(".")[0], base.__name__)):
            return found
        if base in _INHERITED:
            return DESCRIBE[base]
    if isinstance(value, np.generic):
        return _numpy_scalar
    if hasattr(value, "__cuda_array_interface__"):
        return _cuda_interface
    if hasattr(value, "data_ptr") and hasattr(value, "dtype"):
        return _data_pointer
    if hasattr(value, "__dlpack__"):
        return _dlpack
    if type_.__name__ == "constexpr" or (callable(value) and (hasattr(value, "source") or hasattr(value, "__code__"))):
        return _constant
    return _refuse
