"""The types of block programs: dtypes, pointers, tiles and shared buffers, and the promotion of dtypes.

Every value of a kernel is a `Tile`: an element type and a shape of powers of two. Layout assignment adds a layout, which maps threads
to elements. Scalars are tiles of rank 0, so one table of operations serves both. Promotion follows Triton: Python numbers are weak.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from blocknb import forks
from blocknb.language.float8 import FORMATS

MAX_TILE_ELEMENTS = 1 << 20


class TypeQueries:
    """Triton's query methods of types, which kernels call at compile time: `x.dtype.is_floating()`, `ptr.dtype.is_ptr()`.

    Each dtype has its own query, too: `is_fp16()`, `is_int32()`... The loop after `DTYPES` defines them.
    """

    kind: str
    bits: int

    @property
    def scalar(self) -> Any:
        return self

    @property
    def value(self) -> Any:
        """The dtype itself. Kernels read `.value` of a dtype that is passed as a constexpr."""
        return self

    @property
    def primitive_bitwidth(self) -> int:
        return self.bits

    @property
    def int_bitwidth(self) -> int:
        return self.bits

    @property
    def itemsize(self) -> int:
        return max(self.bits, 8) // 8

    def is_ptr(self) -> bool:
        return self.kind == "pointer"

    def is_block(self) -> bool:
        return False

    def is_floating(self) -> bool:
        return self.kind == "float"

    def is_standard_floating(self) -> bool:
        """A float of at least 16 bits."""
        return self.kind == "float" and self.bits > 8

    def is_fp8(self) -> bool:
        return self.kind == "float" and self.bits == 8

    def is_bool(self) -> bool:
        return self.kind == "bool"

    def is_int(self) -> bool:
        return self.kind in ("bool", "int", "uint")

    def is_int_signed(self) -> bool:
        return self.kind == "int"

    def is_int_unsigned(self) -> bool:
        return self.kind in ("bool", "uint")

    def is_void(self) -> bool:
        return self.kind == "void"

    def is_const(self) -> bool:
        """Whether it is a pointer that stores may not use: the kernel's parameter is annotated with `tl.const`."""
        return getattr(self, "const", False)

    @staticmethod
    def is_dtype(name: str) -> bool:
        return name in BY_NAME

    def get_int_max_value(self) -> int:
        """The largest integer of the type."""
        return (1 << self.bits - (self.kind == "int")) - 1

    def get_int_min_value(self) -> int:
        """The smallest integer of the type."""
        return -(1 << self.bits - 1) if self.kind == "int" else 0

    @property
    def fp_mantissa_width(self) -> int:
        """The number of bits of a float's fraction, without the implicit one."""
        return FLOAT_FIELDS[getattr(self, "name", "")][0]

    @property
    def exponent_bias(self) -> int:
        return FLOAT_FIELDS[getattr(self, "name", "")][1]


@dataclass(frozen=True)
class DType(TypeQueries):
    """An element type. `name` is Triton's, `short` the one in IR text, `kind` one of bool, int, uint, float; `bits` its width.

    Every element has at least one byte in memory. A dtype of four bits (e2m1) would have two elements per byte. It needs a format in
    `float8.FORMATS`, and a change wherever `bytes` is the distance between elements: pointers, buffers, layouts of shared memory,
    tensor maps. Today `tl.dot_scaled` takes e2m1 as uint8 with two elements per byte (`microscaling`).
    """

    name: str
    short: str = ""
    kind: str = ""
    bits: int = 0

    def __post_init__(self) -> None:
        """Completes a dtype that is named alone, as in Triton: `tl.dtype("fp16")`. Raises ValueError for an unknown name."""
        if not self.short:
            known = next((d for d in DTYPES if d.name == self.name), None)
            if known is None:
                raise ValueError(f"no dtype is named {self.name!r}; the names are {', '.join(d.name for d in DTYPES)}")
            for field_name in ("short", "kind", "bits"):
                object.__setattr__(self, field_name, getattr(known, field_name))

    def __repr__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers and for bool."""
        return self.kind != "float"

    @property
    def is_signed(self) -> bool:
        return self.kind == "int"

    @property
    def bytes(self) -> int:
        """Bytes of an element in memory (a bool takes one)."""
        return max(self.bits, 8) // 8

    @cached_property
    def numpy(self) -> np.dtype:
        """The NumPy dtype that holds the elements. bf16 and fp8 use ml_dtypes.

        No library has e4b15, so NumPy holds its bits as uint8, and a constant of it in the IR is its bits.
        """
        if self.name in FORMATS or self.name == "bf16":
            name = FORMATS[self.name].numpy if self.name in FORMATS else "bfloat16"
            return np.dtype(getattr(forks.imported("ml_dtypes"), name) if name else np.uint8)
        return np.dtype(
            {"bool": "bool", "int": "int%d", "uint": "uint%d", "float": "float%d"}[self.kind].replace(
                "%d", str(self.bits)
            )
        )


def _integers(kind: str, prefix: str) -> list[DType]:
    return [DType(f"{kind}{bits}", f"{prefix}{bits}", kind, bits) for bits in (8, 16, 32, 64)]


int1 = DType("int1", "i1", "bool", 1)
int8, int16, int32, int64 = _integers("int", "i")
uint8, uint16, uint32, uint64 = _integers("uint", "u")
float8e4nv, float8e5, float8e4b15, float8e4b8, float8e5b16 = (
    DType(name, name.replace("fp8", "f8"), "float", kind.bits) for name, kind in FORMATS.items()
)
FLOAT8 = (float8e4nv, float8e5, float8e4b15, float8e4b8, float8e5b16)
float16 = DType("fp16", "f16", "float", 16)
bfloat16 = DType("bf16", "bf16", "float", 16)
float32 = DType("fp32", "f32", "float", 32)
float64 = DType("fp64", "f64", "float", 64)

void = DType("void", "void", "void", 0)
#: Bits of the fraction, and the bias of the exponent.
FLOAT_FIELDS = {
    "fp16": (10, 15),
    "bf16": (7, 127),
    "fp32": (23, 127),
    "fp64": (52, 1023),
    **{name: (kind.mantissa, kind.bias) for name, kind in FORMATS.items()},
}

DTYPES = (
    *(int1, int8, int16, int32, int64, uint8, uint16, uint32, uint64),
    *FLOAT8,
    *(float16, bfloat16, float32, float64),
)


#: Triton's lists of the names of dtypes: `tl.dtype.SINT_TYPES`.
for _list, _names in {
    "SINT_TYPES": [d.name for d in DTYPES if d.kind == "int"],
    "UINT_TYPES": [d.name for d in DTYPES if d.kind in ("bool", "uint")],
    "FP_TYPES": [d.name for d in DTYPES if d.kind == "float"],
    "STANDARD_FP_TYPES": [d.name for d in DTYPES if d.kind == "float" and d.bits > 8],
    "OTHER_TYPES": ["void"],
}.items():
    setattr(DType, _list, _names)


def _is_dtype(dtype: DType) -> Callable[[TypeQueries], bool]:
    return lambda self: self == dtype


for _dtype in DTYPES:
    setattr(TypeQueries, f"is_{_dtype.name}", _is_dtype(_dtype))

BY_SHORT = {d.short: d for d in DTYPES}
FLOAT8_NAMES = {d.name.replace("fp8", "float8"): d for d in FLOAT8} | {
    FORMATS[d.name].numpy: d for d in FLOAT8 if FORMATS[d.name].numpy
}
BY_NAME = (
    {d.name: d for d in DTYPES}
    | FLOAT8_NAMES
    | {
        "float16": float16,
        "bfloat16": bfloat16,
        "float32": float32,
        "float64": float64,
        "bool": int1,
    }
)


def from_numpy(dtype: Any) -> DType:
    """The DType of a NumPy (or CuPy) dtype. Raises KeyError with the dtype's name if there is none."""
    return BY_NAME[np.dtype(dtype).name]


@dataclass(frozen=True)
class Pointer(TypeQueries):
    """The address of elements of type `element` in device memory (or the host's, on the CPU).

    `const` forbids stores. Only the front end sees it: the pointers of the IR have no such mark.
    """

    element: DType
    const: bool = False

    short = property(lambda self: f"ptr<{self.element.short}>")
    bits = 64
    bytes = 8
    kind = "pointer"
    is_float = is_integer = is_signed = False
    numpy = np.dtype(np.int64)

    @property
    def element_ty(self) -> DType:
        return self.element

    def __repr__(self) -> str:
        return f"{'const_' * self.const}pointer<{self.element}>"

    def as_const(self, const: bool) -> Pointer:
        """The same pointer that forbids stores, or allows them."""
        return self if self.const == const else replace(self, const=const)


@dataclass(frozen=True, repr=False)
class BoolPointer(Pointer):
    """The address of bools, each of which is a byte. It is a pointer to int8 in the IR, and a pointer to int1 in the language.

    The front end compares loaded bytes with zero.
    """

    element: DType = field(default_factory=lambda: int8)

    @property
    def element_ty(self) -> DType:
        return int1

    def __repr__(self) -> str:
        return f"{'const_' * self.const}pointer<int1>"


@dataclass(frozen=True)
class Tile:
    """A block of elements: `dtype` (DType or Pointer), `shape` (powers of two; () is a scalar), `layout` (or None)."""

    dtype: Any
    shape: tuple[int, ...] = ()
    layout: Any = None

    @property
    def is_scalar(self) -> bool:
        return not self.shape

    @property
    def is_pointer(self) -> bool:
        return isinstance(self.dtype, Pointer)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def scalar(self) -> Any:
        """Triton's `x.type.scalar`: the element type."""
        return self.dtype

    @property
    def element_ty(self) -> Any:
        """Triton's `type.element_ty`: the pointee type of a scalar pointer, or the element type of a tile."""
        return self.dtype.element_ty if self.is_scalar and self.is_pointer else self.dtype

    def is_block(self) -> bool:
        return bool(self.shape)

    def get_block_shapes(self) -> tuple[int, ...]:
        return tuple(self.shape)

    def is_ptr(self) -> bool:
        return self.is_scalar and self.is_pointer

    def with_dtype(self, dtype: Any) -> Tile:
        return replace(self, dtype=dtype)

    def with_layout(self, layout: Any) -> Tile:
        return replace(self, layout=layout)

    def __str__(self) -> str:
        if not self.shape:
            return self.dtype.short
        dims = "".join(f"{n}x" for n in self.shape)
        return f"tile<{dims}{self.dtype.short}{f', {self.layout}' if self.layout is not None else ''}>"


@dataclass(frozen=True)
class Descriptor:
    """A tensor descriptor: blocks of `block_shape` in an array of `dtype` in memory; `padding` is "zero" or "nan"."""

    dtype: DType
    block_shape: tuple[int, ...]
    padding: str = "zero"

    @property
    def block_type(self) -> Tile:
        return Tile(self.dtype, self.block_shape)

    @property
    def rank(self) -> int:
        return len(self.block_shape)

    def __str__(self) -> str:
        dtype = self.dtype.name if self.dtype.is_float else self.dtype.short
        return f"tensordesc<{dtype}[{','.join(map(str, self.block_shape))}]{',nan' * (self.padding == 'nan')}>"


@dataclass(frozen=True)
class Buffer:
    """A tile in shared memory: `layout` is a layouts.SharedLayout that maps an element to its offset in the buffer.

    With more than one of the `stages` it is a circular buffer, whose stages are consecutive tiles.
    """

    dtype: Any
    shape: tuple[int, ...]
    layout: Any = None
    stages: int = 1

    is_pointer = is_scalar = False

    @property
    def bytes(self) -> int:
        return self.stages * math.prod(self.shape) * self.dtype.bytes

    @property
    def stage(self) -> Buffer:
        """The type of one stage of a circular buffer."""
        return replace(self, stages=1)

    def __str__(self) -> str:
        dims = f"{self.stages}*" * (self.stages > 1) + "".join(f"{n}x" for n in self.shape)
        return f"buffer<{dims}{self.dtype.short}{f', {self.layout}' if self.layout is not None else ''}>"


def block_type(element_ty: Any, shape: Any) -> Tile:
    """Triton's name for the type of a non-scalar tile. Raises ValueError unless the sizes are powers of two."""
    sizes = tuple(int(n) for n in shape)
    if not sizes or any(n <= 0 or n & (n - 1) for n in sizes):
        raise ValueError(f"the sizes of a tile must be powers of two, not {sizes}")
    return Tile(element_ty, sizes)


def integer_dtype(bitwidth: int, signed: bool) -> DType:
    """The integer type of a width. Raises ValueError if there is none."""
    if bitwidth == 1:
        return int1
    name = f"{'int' if signed else 'uint'}{bitwidth}"
    if name not in BY_NAME:
        raise ValueError(f"no integer type has {bitwidth} bits")
    return BY_NAME[name]


def str_to_ty(name: str, c: Any = None) -> Any:
    """The type of a signature's text: "fp32", "i32", "u1", "*fp16" (a pointer), "*kfp16" (to constant data). Raises KeyError."""
    if name.startswith("*"):
        element = str_to_ty(name[1:].removeprefix("k"))
        return BoolPointer() if element == int1 else Pointer(element)
    widths = {"i": "int", "u": "uint"}
    if name[1:].isdigit() and name[0] in widths:
        return int1 if name[1:] == "1" else BY_NAME[widths[name[0]] + name[1:]]
    return int1 if name == "B" else BY_NAME[name]


def promote(a: DType, b: DType) -> DType:
    """The dtype of an operation between two typed operands (neither a Python number), by Triton's rules.

    A float and an integer give the float, and two floats give the wider one. bf16 with fp16, and two fp8 dtypes, give fp16, and bf16 with
    fp8 gives fp32. Two integers give the wider one, and the unsigned one at equal width.
    """
    if a == b:
        return a
    if a.is_float or b.is_float:
        if a.is_float and b.is_float:
            if a.bits == b.bits:
                return float16
            if bfloat16 in (a, b) and 8 in (a.bits, b.bits):
                return float32
            return a if a.bits > b.bits else b
        return a if a.is_float else b
    if a.bits != b.bits:
        return a if a.bits > b.bits else b
    return a if a.kind == "uint" else b


def literal_dtype(value: bool | int | float) -> DType:
    """The dtype of a Python number alone. For an integer it is the first of int32, uint32, int64 and uint64 that holds it. For a float it
    is fp32 or fp64.

    Raises OverflowError for integers beyond 64 bits.
    """
    if isinstance(value, bool):
        return int1
    if isinstance(value, int):
        for dtype, low, high in (
            (int32, -(2**31), 2**31),
            (uint32, 0, 2**32),
            (int64, -(2**63), 2**63),
            (uint64, 0, 2**64),
        ):
            if low <= value < high:
                return dtype
        raise OverflowError(f"the integer {value} does not fit in 64 bits")
    magnitude = abs(value)
    if magnitude == 0 or magnitude != magnitude or magnitude == math.inf or 2.0**-126 <= magnitude < 2.0**128:
        return float32
    return float64


def promote_literal(dtype: DType, value: bool | int | float) -> DType:
    """The dtype of an operation between a typed operand and a Python number: the operand's, unless the number's kind is higher."""
    if isinstance(value, float) and not dtype.is_float:
        return literal_dtype(value)
    if isinstance(value, bool):
        return dtype
    if dtype.kind == "bool":
        return literal_dtype(value)
    return dtype


def broadcast_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """NumPy's broadcasting of two shapes (Triton: the shorter one gets leading ones). Raises ValueError if they do not match."""
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    result = []
    for n, m in zip(a, b, strict=True):
        if n != m and 1 not in (n, m):
            raise ValueError(f"{n} against {m}")
        result.append(max(n, m))
    return tuple(result)
