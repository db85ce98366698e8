"""How a launch describes its arguments: `describer(value)(value)` gives a Kind, on which the compiler specializes, and the raw value.

The Python type of a value alone decides which function describes it, so launches look that up in a table. NumPy arrays and torch CPU
tensors are host memory. CuPy arrays, torch CUDA tensors, and whatever offers `__cuda_array_interface__` or DLPack are device memory,
which is used in place, without a copy. Types of our own register their function (`describe_by`): see `descriptor` and `interface`.

NumPy takes a microsecond to return an array's address. Reading the `PyArrayObject` takes a sixth of that, so launches do it where a
check at import time shows that the address lies where it is expected.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from blocknb.errors import LaunchError
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


def _given(kind: Kind) -> tuple[Kind, None]:
    return kind, None


# ---- numbers ------------------------------------------------------------------------------------------------------------

_INTEGERS = tuple(
    (tuple(integer_kind(d, low_bits) for low_bits in range(16)), lo, hi)
    for d, lo, hi in ((t.int32, -(2**31), 2**31), (t.int64, -(2**63), 2**63), (t.uint64, 0, 2**64))
)
_BOOL, _FLOAT = map(scalar_kind, (t.int1, t.float32))


def _int(value: int) -> tuple[Kind, Any]:
    if value == 1:
        return ONE, value
    for kinds, low, high in _INTEGERS:
        if low <= value < high:
            return kinds[value & 15], value
    raise LaunchError(f"the integer {value} does not fit in 64 bits")


def _float(value: float) -> tuple[Kind, Any]:
    return _FLOAT, value


def _bool(value: bool) -> tuple[Kind, Any]:
    return _BOOL, value


def _none(value: None) -> tuple[Kind, Any]:
    return NONE, None


def _fixed(value: Any) -> tuple[Kind, Any]:
    return constant_kind(value), value


def _numpy_scalar(value: Any) -> tuple[Kind, Any]:
    dtype, raw = dtype_of(value.dtype), value.item() if isinstance(value, np.generic) else float(value)
    if dtype.is_fp8():  # nothing is computed in fp8, and fp32 holds the number
        return _FLOAT, raw
    if dtype.is_float or dtype.kind == "bool":
        return scalar_kind(dtype), raw
    return (ONE if raw == 1 else integer_kind(dtype, int(raw))), raw


# ---- arrays -------------------------------------------------------------------------------------------------------------


@functools.cache
def _named(name: str) -> t.DType:
    if name in t.BY_NAME:
        return t.BY_NAME[name]
    hint = None
    if name.startswith("complex"):
        hint = f"pass its real view: x.view(float{int(name.removeprefix('complex')) // 2})"
    elif name.startswith(("str", "bytes")):
        hint = "a kernel computes with numbers; turn the texts into some first"
    elif name in ("float128", "float96"):
        hint = "the widest float here has 64 bits: x.astype(numpy.float64)"
    elif name.startswith(("datetime", "timedelta")):
        hint = "pass the numbers behind the dates: x.view(numpy.int64)"
    elif name == "object":
        hint = "an array of Python objects has no elements a kernel could load; give it a dtype"
    raise LaunchError(
        f"there is no pointer to {name} in block programs",
        hint=hint or "the dtypes are " + ", ".join(d.name for d in t.DTYPES),
    )


def dtype_of(dtype: Any) -> t.DType:
    """The DType for NumPy's, torch's or anybody's dtype. Raises LaunchError, naming the dtype, when there is none."""
    if isinstance(dtype, t.DType):
        return dtype
    if isinstance(dtype, np.dtype):
        if not dtype.isnative:
            raise LaunchError(
                f"the elements of dtype {dtype.str!r} are stored in the byte order of another machine",
                hint="x.astype(x.dtype.newbyteorder('='))",
            )
        return _named(dtype.name)
    return _named(str(dtype).removeprefix("torch."))


@functools.cache
def _host_kinds(dtype: Any, readonly: bool) -> tuple[int, Kind, Kind]:
    """(the mask of address bits that must be zero, the Kind without and with alignment to 16 bytes) of host arrays."""
    known = dtype_of(dtype)
    return known.bytes - 1, pointer_kind(known, False, HOST, readonly), pointer_kind(known, True, HOST, readonly)


_WRITABLE: dict[np.dtype, tuple[int, Kind, Kind]] = {}


def _misaligned(mask: int) -> LaunchError:
    return LaunchError(
        f"its elements do not lie at multiples of their {mask + 1} bytes", hint="pass x.copy(), which is aligned"
    )


_ADDRESS_AT = object.__basicsize__  # PyArrayObject: the object's head, then `char *data`
_read_address = ctypes.c_void_p.from_address


def _plainly(array: np.ndarray) -> int:
    return array.ctypes.data


def _quickly(array: np.ndarray) -> int:
    return _read_address(id(array) + _ADDRESS_AT).value or 0


_probe = np.zeros(3, np.int16)[1:]
numpy_address: Callable[[np.ndarray], int] = (
    _quickly if sys.implementation.name == "cpython" and _quickly(_probe) == _plainly(_probe) else _plainly
)


def _numpy(array: np.ndarray) -> tuple[Kind, int]:
    address = numpy_address(array)
    if array.flags.writeable:
        kinds = _WRITABLE.get(array.dtype)
        if kinds is None:
            kinds = _WRITABLE[array.dtype] = _host_kinds(array.dtype, False)
    else:
        kinds = _host_kinds(array.dtype, True)
    if address & kinds[0]:
        raise _misaligned(kinds[0])
    return (kinds[1] if address & 15 else kinds[2]), address


def _masked(array: Any) -> tuple[Kind, int]:
    raise LaunchError(
        "a masked array is two arrays, and a kernel would not see the mask", hint="pass x.data and x.mask"
    )


@functools.cache
def _kinds(dtype: Any, device: int, library: str = "") -> tuple[int, Kind, Kind]:
    known = dtype_of(dtype)
    return (
        known.bytes - 1,
        pointer_kind(known, False, device, False, library),
        pointer_kind(known, True, device, False, library),
    )


def _torch(tensor: Any) -> tuple[Kind, int]:
    device = tensor.get_device() if tensor.is_cuda else HOST
    if device == HOST and tensor.device.type != "cpu":
        raise LaunchError(f"a tensor on {tensor.device} cannot be reached from the CPU or a CUDA GPU", hint="x.cpu()")
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:  # sparse and other tensors without one block of memory
        raise LaunchError(f"the tensor has no memory of its own: {error}") from None
    if tensor.is_neg():
        raise LaunchError(
            "the tensor is a view whose elements are negated when they are read", hint="pass x.resolve_neg()"
        )
    mask, plain, aligned = _kinds(tensor.dtype, device, "torch")
    if address & mask:
        raise _misaligned(mask)
    return (plain if address & 15 else aligned), address


def _cupy(array: Any) -> tuple[Kind, int]:
    memory = array.data
    address = memory.ptr
    mask, plain, aligned = _kinds(array.dtype, memory.device_id)
    if address & mask:
        raise _misaligned(mask)
    return (plain if address & 15 else aligned), address


def _cuda_interface(value: Any) -> tuple[Kind, int]:
    interface = value.__cuda_array_interface__
    address, readonly = interface["data"]
    cuda.wait_for(interface.get("stream"))
    dtype = dtype_of(np.dtype(interface["typestr"]))
    if address % dtype.bytes:
        raise _misaligned(dtype.bytes - 1)
    return pointer_kind(dtype, address % 16 == 0, cuda.device_of(address), bool(readonly)), address


def _dlpack(value: Any) -> tuple[Kind, int]:
    device_type = int(value.__dlpack_device__()[0])
    if device_type == 1:
        return _numpy(np.from_dlpack(value))
    if device_type in (2, 13):  # CUDA and CUDA's managed memory
        import cupy

        return _cupy(cupy.from_dlpack(value))
    raise LaunchError(
        f"DLPack memory of device type {device_type} can be reached neither from the CPU nor from a CUDA GPU"
    )


def _addressed(value: Any) -> tuple[Kind, int]:
    """Anything with `.data_ptr()` and `.dtype`: wrappers that reinterpret a tensor, strided buffers."""
    address, device = value.data_ptr(), getattr(value, "device", None)
    name, _, index = str(device).partition(":")  # torch's devices print as "cuda:0" and "cpu"
    places = {"None": ANYWHERE, "cpu": HOST, "cuda": int(index or 0)}
    if name not in places:
        raise LaunchError(f"memory on {device} can be reached neither from the CPU nor from a CUDA GPU")
    return pointer_kind(dtype_of(value.dtype), address % 16 == 0, places[name]), address


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
    str: _fixed,
    tuple: _tuple,
    np.ndarray: _numpy,
    t.DType: _fixed,
    Kind: _given,
}
_BY_NAME: dict[tuple[str, str], Describe] = {
    ("torch", "Tensor"): _torch,
    ("cupy", "ndarray"): _cupy,
    ("ml_dtypes", "bfloat16"): _numpy_scalar,
    **{("ml_dtypes", name): _numpy_scalar for name in t.FLOAT8_NAMES},
}
#: The types whose subclasses are described as they are.
_INHERITED: set[type] = {np.ndarray, int, float, tuple}


def describe_by(
    type_: type, function: Describe, subclasses: bool = False, foreign: tuple[str, str] | None = None
) -> None:
    """Registers the function that describes values of a type, and of its subclasses where they look alike. `foreign` names a class of
    another package, (package, class), whose values the function takes, too."""
    DESCRIBE[type_] = function
    if subclasses:
        _INHERITED.add(type_)
    if foreign is not None:
        _BY_NAME[foreign] = function


def describer(value: Any) -> Describe:
    """The function that describes values of this one's type; found once for each type."""
    type_ = type(value)
    found = DESCRIBE.get(type_)
    if found is None:
        found = DESCRIBE[type_] = _find(value)
    return found


def _find(value: Any) -> Describe:
    type_ = type(value)
    if isinstance(value, np.ma.MaskedArray) if "numpy.ma" in sys.modules else False:
        return _masked
    for base in type_.__mro__:
        if found := _BY_NAME.get((base.__module__.split(".")[0], base.__name__)):
            return found
        if base in _INHERITED:
            return DESCRIBE[base]
    if isinstance(value, np.generic):
        return _numpy_scalar
    for attribute, function in (
        ("__cuda_array_interface__", _cuda_interface),
        ("data_ptr", _addressed),
        ("__dlpack__", _dlpack),
    ):
        if hasattr(value, attribute) and (attribute != "data_ptr" or hasattr(value, "dtype")):
            return function
    if (
        type_.__name__ == "constexpr"
        or (hasattr(value, "source") and callable(value))
        or (callable(value) and hasattr(value, "__code__"))
    ):
        return _fixed
    return _refuse
