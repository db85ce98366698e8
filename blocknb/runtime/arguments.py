"""What a launch sees of its arguments: `describe(value)` gives a Kind, on which the compiler specialises, and the raw value.

A repeated launch must cost microseconds, so Kinds are interned: equal arguments give the very same object, and the key of a
launch plan is a tuple of identities. How a value is described depends on its Python type alone and is looked up by it: NumPy
arrays and torch CPU tensors are memory of the host, CuPy arrays, torch CUDA tensors and whatever offers
`__cuda_array_interface__` or DLPack memory of a GPU, taken where it lies without a copy. The one trick: NumPy needs a
microsecond to tell an array's address, reading its C struct a sixth of that (checked against NumPy's own word on import).
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.errors import LaunchError
from blocknb.language import types as t
from blocknb.language.constants import classes, like
from blocknb.runtime.descriptor import TensorDescriptor
from blocknb.runtime.interface import MockTensor, TensorWrapper

HOST = -1  # the device number of host memory; GPUs count from 0
ANYWHERE = -2  # a pointer without a word on where it points: it follows the other arguments


@dataclass(frozen=True, eq=False, slots=True)
class Kind:
    """What specialisation sees of an argument; interned, so equal kinds are the same object.

    `type` is a DType, Pointer, Descriptor or Tuple, None for a constant. `divisibility` is 16 or 1, of an integer also 8 or what
    `moduli` finds (of the value, of the address in bytes, or of the size of a descriptor's last axis). `device` is the GPU's number,
    HOST, or None for scalars. `readonly` arrays may not be stored through. `library` is "torch" for tensors that live on torch's
    stream. `constant` holds the value of a constant in a one-element tuple.
    """

    type: Any
    divisibility: int = 1
    device: int | None = None
    readonly: bool = False
    library: str = ""
    constant: tuple[Any, ...] = ()

    @property
    def is_pointer(self) -> bool:
        return isinstance(self.type, t.Pointer)

    def __str__(self) -> str:
        if self.type is None:
            return repr(self.constant[0])
        if isinstance(self.type, Tuple):
            return str(self.type)
        divisor = f":{self.divisibility}" if self.divisibility > 1 else ""
        if isinstance(self.type, t.Descriptor):
            return f"{self.type}{divisor}"
        star, dtype = ("*", self.type.element) if isinstance(self.type, t.Pointer) else ("", self.type)
        return f"{star}{dtype.name if dtype.is_float else dtype.short}{divisor}"


@dataclass(frozen=True, eq=False, slots=True)
class Tuple:
    """The type of a tuple of arguments: the Kinds of its elements, and its class, which is `tuple` or a namedtuple's."""

    parts: tuple[Kind, ...]
    made_by: Any = tuple

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.parts))}{',' * (len(self.parts) == 1)})"

    @property
    def structure(self) -> str:
        """Which classes its tuples are of, and how they stand in each other."""
        inner = (part.type.structure if isinstance(part.type, Tuple) else "" for part in self.parts)
        return f"{self.made_by.__qualname__}{getattr(self.made_by, '_fields', '')}({','.join(inner)})"

    @property
    def make(self) -> Callable[[Iterable[Any]], tuple]:
        return getattr(self.made_by, "_make", tuple)


@functools.cache
def tuple_kind(parts: tuple[Kind, ...], made_by: Any = tuple) -> Kind:
    """The Kind of a tuple of arguments of these Kinds."""
    return Kind(Tuple(parts, made_by), library="torch" if any(part.library == "torch" for part in parts) else "")


def flat(names: Iterable[str], kinds: Iterable[Kind], *columns: Iterable[Any]) -> Iterator[tuple]:
    """(name, Kind, and an element of each column) of every argument; in the place of a tuple those of its elements, which are called
    `x.0`, `x.1`, ..."""
    for name, kind, *cells in zip(names, kinds, *columns, strict=True):
        if isinstance(kind.type, Tuple):
            yield from flat([f"{name}.{i}" for i in range(len(kind.type.parts))], kind.type.parts, *cells)
        else:
            yield name, kind, *cells


def spelled(name: str) -> str:
    """The name of an argument or of a tuple's element as one writes it: x[0][1] for `x.0.1`."""
    first, *rest = name.split(".")
    return first + "".join(f"[{i}]" for i in rest)


@functools.cache
def pointer_kind(dtype: t.DType, aligned: bool, device: int, readonly: bool = False, library: str = "") -> Kind:
    """The Kind of an array of that dtype on that device, whose address is a multiple of 16 or not."""
    return Kind(t.Pointer(dtype), 16 if aligned else 1, device, readonly, library)


def scalar_kind(dtype: t.DType, divisible: bool = False) -> Kind:
    """The Kind of a number passed at run time."""
    return multiple_kind(dtype, 16 if divisible else 1)


def integer_kind(dtype: t.DType, value: int) -> Kind:
    """The Kind of an integer passed at run time: a multiple of 16, of 8 (16 bytes of 16-bit elements), or neither."""
    return multiple_kind(dtype, {0: 16, 8: 8}.get(value & 15, 1))


@functools.cache
def multiple_kind(dtype: t.DType, divisor: int) -> Kind:
    """The Kind of a number passed at run time, of which that is known to be a divisor."""
    return Kind(dtype, divisor)


@functools.cache
def descriptor_kind(type: t.Descriptor, divisible: bool, device: int | None, readonly: bool, library: str) -> Kind:
    """The Kind of a tensor descriptor, whose last size is a multiple of 16 or not."""
    return Kind(type, 16 if divisible else 1, device, readonly, library)


@functools.cache
def _constant(types: Any, value: Any, text: str) -> Kind:
    return Kind(None, constant=(value,))


def constant_kind(value: Any) -> Kind:
    """The Kind of a value fixed at compile time. Lists become tuples. Raises LaunchError for values that cannot be compared."""
    if type(value) is int:
        return _constant(int, value, "")
    value = _frozen(value)
    try:
        # 1, 1.0 and True are equal and so are 0.0 and -0.0, also inside tuples: types and text keep them apart.
        return _constant(classes(value), value, repr(value) if isinstance(value, (float, tuple)) else "")
    except TypeError:
        raise LaunchError(
            f"a value of type {type(value).__name__} cannot be a constant of a kernel",
            hint="pass a number, a string, a dtype or a tuple of those; arrays stand in tuples for parameters without tl.constexpr",
        ) from None


def _frozen(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return like(value, map(_frozen, value)) if isinstance(value, tuple) else tuple(map(_frozen, value))
    if isinstance(value, (set, frozenset)):  # `without={"coalesce"}`
        return tuple(sorted(map(_frozen, value), key=repr))
    if isinstance(value, np.generic):
        return value.item()
    return value.value if type(value).__name__ == "constexpr" else value


def plain(kind: Kind) -> Kind:
    """The Kind without what specialisation learnt from the value: for parameters of `do_not_specialize`."""
    if kind is ONE:
        return _INT32
    if kind.type is None:
        return kind
    if isinstance(kind.type, Tuple):
        return tuple_kind(tuple(map(plain, kind.type.parts)), kind.type.made_by)
    if isinstance(kind.type, t.Descriptor):
        return descriptor_kind(kind.type, False, kind.device, kind.readonly, kind.library)
    if isinstance(kind.type, t.Pointer):
        return pointer_kind(
            kind.type.element, False, HOST if kind.device is None else kind.device, kind.readonly, kind.library
        )
    return scalar_kind(kind.type)


def _given(kind: Kind) -> tuple[Kind, None]:
    return kind, None


ONE = constant_kind(1)
NONE = constant_kind(None)

# ---- numbers ------------------------------------------------------------------------------------------------------------

_INTEGERS = tuple(
    (tuple(integer_kind(d, low_bits) for low_bits in range(16)), lo, hi)
    for d, lo, hi in ((t.int32, -(2**31), 2**31), (t.int64, -(2**63), 2**63), (t.uint64, 0, 2**64))
)
_INT32, _BOOL, _FLOAT = map(scalar_kind, (t.int32, t.int1, t.float32))


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
    from blocknb.runtime import driver

    interface = value.__cuda_array_interface__
    address, readonly = interface["data"]
    driver.wait_for(interface.get("stream"))
    dtype = dtype_of(np.dtype(interface["typestr"]))
    if address % dtype.bytes:
        raise _misaligned(dtype.bytes - 1)
    return pointer_kind(dtype, address % 16 == 0, driver.device_of(address), bool(readonly)), address


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


def _reinterpreted(wrapper: TensorWrapper) -> tuple[Kind, int]:
    kind, address = describer(wrapper.base)(wrapper.base)
    place = HOST if kind.device is None else kind.device
    return pointer_kind(dtype_of(wrapper.dtype), address % 16 == 0, place, kind.readonly, kind.library), address


def _descriptor(desc: TensorDescriptor) -> tuple[Kind, tuple[int, ...]]:
    kind, address = describer(desc.base)(desc.base)
    type_ = desc.type(kind, address)
    found = descriptor_kind(type_, desc.shape[-1] % 16 == 0, kind.device, kind.readonly, kind.library)
    return found, (address, *desc.shape, *desc.strides[:-1])


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


def _mock(tensor: MockTensor) -> tuple[Kind, int]:
    return pointer_kind(dtype_of(tensor.dtype), True, ANYWHERE), 0


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
    MockTensor: _mock,
    TensorWrapper: _reinterpreted,
    TensorDescriptor: _descriptor,
}
_BY_NAME: dict[tuple[str, str], Describe] = {
    ("triton", "TensorDescriptor"): lambda d: _descriptor(
        TensorDescriptor(d.base, d.shape, d.strides, d.block_shape, d.padding)
    ),
    ("torch", "Tensor"): _torch,
    ("cupy", "ndarray"): _cupy,
    ("ml_dtypes", "bfloat16"): _numpy_scalar,
    **{("ml_dtypes", name): _numpy_scalar for name in t.FLOAT8_NAMES},
}


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
        if base in (np.ndarray, int, float, tuple, TensorDescriptor):
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
