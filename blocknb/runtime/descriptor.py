"""Tensor descriptors on the host: an array with the shape of the blocks in which a kernel accesses it.

A kernel receives a descriptor as a pointer, sizes and strides; its block shape is a compile-time constant. The block shape may change
between launches (the `pre_hook` of an autotuner sets it), so each launch checks it again. The rules are those of CUtensorMap (CUDA driver
API, "Tensor Map Object Management").
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Sequence
from typing import Any

from blocknb.errors import LaunchError
from blocknb.language import types as t
from blocknb.runtime.arguments import describe_by, describer, dtype_of
from blocknb.runtime.kinds import ANYWHERE, Kind, descriptor_kind, pointer_kind

ALIGNMENT, MAX_RANK = 16, 5
_TRACED = ("FakeTensor", "FunctionalTensor")  # tensors without memory, with which torch traces a function
PADDING = ("zero", "nan")


class TensorDescriptor:
    """An array `base` of `shape` and `strides` (in elements), which a kernel accesses in blocks of `block_shape`.

    `base` is any array that a kernel takes, at an address that is a multiple of 16 bytes. It has one to five axes. The last stride is 1,
    the others are multiples of 16 bytes. Loads return zero outside the array, or NaN with `padding="nan"`. The sizes of `block_shape`
    are powers of two; it may be assigned later. Raises LaunchError.
    """

    def __init__(
        self,
        base: Any,
        shape: Sequence[int],
        strides: Sequence[int],
        block_shape: Sequence[int],
        padding: str = "zero",
    ):
        self.base, self.padding = base, padding
        self.shape, self.strides = _integers("shape", shape), _integers("strides", strides)
        block = _integers("block_shape", block_shape)
        self.block_shape: Sequence[int] = list(block)
        traced = type(base).__name__ in _TRACED
        kind, address = (pointer_kind(dtype_of(base.dtype), True, ANYWHERE), 0) if traced else describer(base)(base)
        if not kind.is_pointer:
            raise LaunchError(f"a tensor descriptor describes an array, not a {type(base).__name__}")
        self._element = kind.type.element
        _check(kind, self.shape, self.strides, block, padding)
        self._aligned(address)

    @staticmethod
    def from_tensor(tensor: Any, block_shape: Sequence[int], padding: str = "zero") -> TensorDescriptor:
        """The descriptor of a whole array, with its shape and strides."""
        if not hasattr(tensor, "shape"):
            raise LaunchError(f"a tensor descriptor describes an array, not a {type(tensor).__name__}")
        return TensorDescriptor(tensor, tensor.shape, strides_of(tensor), block_shape, padding)

    def __repr__(self) -> str:
        numbers = f"shape={list(self.shape)}, strides={list(self.strides)}, block_shape={list(self.block_shape)}"
        return f"TensorDescriptor({type(self.base).__name__} of {self.dtype}, {numbers}, padding={self.padding!r})"

    @property
    def dtype(self) -> Any:
        """The dtype of the array, or the DType of its elements if it has none."""
        return getattr(self.base, "dtype", self._element)

    @property
    def rank(self) -> int:
        return len(self.shape)

    def type(self, kind: Kind, address: int) -> t.Descriptor:
        """The type that a kernel is specialized on, from the Kind and the address of `base`. Raises LaunchError."""
        self._aligned(address)
        block, dtype = tuple(self.block_shape), kind.type.element
        if len(block) != len(self.shape):
            raise LaunchError(f"block_shape has {len(block)} elements, but shape has {len(self.shape)}")
        found = _type(dtype, block, self.padding)
        if block[-1] * dtype.bytes < ALIGNMENT:  # the constructor allows it: code may set block_shape after it
            raise LaunchError(
                f"the last axis of the block {block} has {block[-1] * dtype.bytes} bytes of {dtype}, less than {ALIGNMENT}",
                hint=f"make it at least {ALIGNMENT // dtype.bytes} elements long",
            )
        return found

    @staticmethod
    def _aligned(address: int) -> None:
        if address % ALIGNMENT:
            raise LaunchError(
                f"the address of the array of a tensor descriptor is not a multiple of {ALIGNMENT} bytes",
                hint="pass x.copy(), which is aligned, or use tl.make_block_ptr in the kernel",
            )


@functools.lru_cache(4096)  # code that makes a descriptor for each launch repeats the same arguments
def _check(kind: Kind, shape: tuple[int, ...], strides: tuple[int, ...], block: tuple[int, ...], padding: str) -> None:
    rank, dtype = len(shape), kind.type.element
    for name, sizes in (("strides", strides), ("block_shape", block)):
        if len(sizes) != rank:
            message = f"{name} has {len(sizes)} elements, but shape has {rank}"
            raise LaunchError(message, hint="all three have one element per axis")
    if not 1 <= rank <= MAX_RANK:
        raise LaunchError(f"a tensor descriptor has 1 to {MAX_RANK} axes, not {rank}", hint="reshape the array")
    for size in shape:
        if not 0 < size < 2**31:
            raise LaunchError(f"the size {size} in the shape {shape} is not between 1 and 2^31 - 1")
    if strides[-1] != 1:
        raise LaunchError(
            f"the last stride of a tensor descriptor must be 1, not {strides[-1]}",
            hint="describe the transposed array, or pass the array itself and use tl.make_block_ptr in the kernel",
        )
    for stride in strides[:-1]:
        if stride * dtype.bytes % ALIGNMENT:
            raise LaunchError(
                f"a stride of {stride} elements is {stride * dtype.bytes} bytes, not a multiple of {ALIGNMENT}",
                hint=f"pad the rows to a multiple of {ALIGNMENT // dtype.bytes} elements, or use tl.make_block_ptr in the kernel",
            )
    _type(dtype, block, padding)


@functools.cache
def _type(dtype: t.DType, block: tuple[int, ...], padding: str) -> t.Descriptor:
    block = _integers("block_shape", block)
    for n in block:
        if n <= 0 or n & (n - 1):
            raise LaunchError(f"the size {n} in the block shape {block} is not a power of two")
    if math.prod(block) > t.MAX_TILE_ELEMENTS:
        raise LaunchError(
            f"a block of shape {block} has {math.prod(block)} elements, more than {t.MAX_TILE_ELEMENTS}",
            hint="use a smaller block in a loop, or launch more programs",
        )
    if padding not in PADDING:
        raise LaunchError(f"unknown padding {padding!r}", hint='pass "zero" or "nan"')
    if padding == "nan" and not dtype.is_float:
        raise LaunchError(f"an array of {dtype} cannot be padded with NaN", hint='integers have no NaN; pass "zero"')
    return t.Descriptor(dtype, block, padding)


def _integers(name: str, numbers: Any) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, numbers))
    except TypeError:
        raise LaunchError(f"{name} is {numbers!r}, not a sequence of ints with one per axis") from None


def strides_of(array: Any) -> tuple[int, ...]:
    """The strides of an array in elements."""
    if callable(getattr(array, "stride", None)):
        return tuple(array.stride())
    if getattr(array, "strides", None) is None:
        raise LaunchError(
            f"a {type(array).__name__} has no strides",
            hint="pass them: TensorDescriptor(array, shape, strides, block_shape)",
        )
    return tuple(s // array.dtype.itemsize for s in array.strides)


_TEXT = re.compile(r"tensordesc<(\w+)\[([\d, ]+)\](,nan)?>")


def parse_descriptor(text: str) -> t.Descriptor | None:
    """Returns the type of a text such as "tensordesc<fp16[64,64]>", or None for other texts."""
    found = _TEXT.fullmatch(text.replace(" ", ""))
    dtype = {**t.BY_SHORT, **t.BY_NAME}.get(found[1]) if found else None
    if found is None or dtype is None:
        return None
    return _type(dtype, tuple(map(int, found[2].split(","))), "nan" if found[3] else "zero")


def _describe(desc: Any) -> tuple[Kind, tuple[int, ...]]:
    """Describes a tensor descriptor of blocknb or Triton. The raw values are its address, sizes and strides."""
    if not isinstance(desc, TensorDescriptor):
        desc = TensorDescriptor(desc.base, desc.shape, desc.strides, desc.block_shape, desc.padding)
    kind, address = describer(desc.base)(desc.base)
    type_ = desc.type(kind, address)
    found = descriptor_kind(type_, desc.shape[-1] % 16 == 0, kind.device, kind.readonly, kind.library)
    return found, (address, *desc.shape, *desc.strides[:-1])


describe_by(TensorDescriptor, _describe, subclasses=True, foreign=("triton", "TensorDescriptor"))
