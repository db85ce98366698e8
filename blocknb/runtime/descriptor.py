"""Tensor descriptors on the host: an array with the block shape in which a kernel reads and writes it.

A descriptor passed to a kernel becomes a pointer, sizes and strides at run time, and a block shape that the kernel is compiled for. The
block shape may change between launches (an autotuner's `pre_hook` sets it), so it is looked at when a launch describes its
arguments. The rules are those of the hardware that descriptors stand for, checked where the numbers are.
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
_TRACED = ("FakeTensor", "FunctionalTensor")  # torch's, while it traces a function: they have no memory
PADDING = ("zero", "nan")


class TensorDescriptor:
    """An array `base` of `shape` and `strides` (in elements) to be accessed in blocks of `block_shape`.

    `base` is anything that a kernel takes as an array, at a multiple of 16 bytes; the last stride is 1, the others are multiples of 16
    bytes; there are one to five axes. What lies outside is loaded as zero, or NaN with `padding="nan"`. `block_shape` may be
    assigned later: its sizes are powers of two. Raises LaunchError.
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
        kind, address = _without_memory(base) if traced else describer(base)(base)
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
        """The array's own dtype, or where it has none the language's."""
        return getattr(self.base, "dtype", self._element)

    @property
    def rank(self) -> int:
        return len(self.shape)

    def type(self, kind: Kind, address: int) -> t.Descriptor:
        """What a kernel is compiled for, given the Kind and the address of `base`. Raises LaunchError."""
        self._aligned(address)
        block, dtype = tuple(self.block_shape), kind.type.element
        if len(block) != len(self.shape):
            raise LaunchError(f"block_shape has {len(block)} elements, and shape has {len(self.shape)}")
        found = _type(dtype, block, self.padding)
        if block[-1] * dtype.bytes < ALIGNMENT:  # not looked at before: a block of ones may stand for one yet to come
            raise LaunchError(
                f"the last axis of the block {block} has {block[-1] * dtype.bytes} bytes of {dtype}, and {ALIGNMENT} are the least",
                hint=f"make it {ALIGNMENT // dtype.bytes} elements long at least",
            )
        return found

    @staticmethod
    def _aligned(address: int) -> None:
        if address % ALIGNMENT:
            raise LaunchError(
                f"the array of a tensor descriptor begins at a multiple of {ALIGNMENT} bytes, and this one does not",
                hint="pass x.copy(), which is aligned, or use tl.make_block_ptr in the kernel",
            )


@functools.lru_cache(4096)  # who makes descriptors for each launch makes the same ones again
def _check(kind: Kind, shape: tuple[int, ...], strides: tuple[int, ...], block: tuple[int, ...], padding: str) -> None:
    rank, dtype = len(shape), kind.type.element
    for name, sizes in (("strides", strides), ("block_shape", block)):
        if len(sizes) != rank:
            raise LaunchError(
                f"{name} has {len(sizes)} elements, and shape has {rank}", hint="all three have one for each axis"
            )
    if not 1 <= rank <= MAX_RANK:
        raise LaunchError(f"a tensor descriptor has 1 to {MAX_RANK} axes, not {rank}", hint="reshape the array")
    for size in shape:
        if not 0 < size < 2**31:
            raise LaunchError(f"the size {size} in the shape {shape} is not between 1 and 2^31 - 1")
    if strides[-1] != 1:
        raise LaunchError(
            f"the last stride of a tensor descriptor is 1, not {strides[-1]}",
            hint="describe the transposed array, or pass the array itself and use tl.make_block_ptr in the kernel",
        )
    for stride in strides[:-1]:
        if stride * dtype.bytes % ALIGNMENT:
            raise LaunchError(
                f"a stride of {stride} elements is {stride * dtype.bytes} bytes, not a multiple of {ALIGNMENT}",
                hint=f"pad the rows to a multiple of {ALIGNMENT // dtype.bytes} elements, or use tl.make_block_ptr in the kernel",
            )
    _type(dtype, block, padding)


def _without_memory(base: Any) -> tuple[Kind, int]:
    return pointer_kind(dtype_of(base.dtype), True, ANYWHERE), 0


@functools.cache
def _type(dtype: t.DType, block: tuple[int, ...], padding: str) -> t.Descriptor:
    block = _integers("block_shape", block)
    for n in block:
        if n <= 0 or n & (n - 1):
            raise LaunchError(f"the size {n} in the block shape {block} is not a power of two")
    if math.prod(block) > t.MAX_TILE_ELEMENTS:
        raise LaunchError(
            f"a block of shape {block} has {math.prod(block)} elements; the most is {t.MAX_TILE_ELEMENTS}",
            hint="make the block smaller and loop over the blocks, or launch more programs",
        )
    if padding not in PADDING:
        raise LaunchError(f"unknown padding {padding!r}", hint='one of "zero" and "nan"')
    if padding == "nan" and not dtype.is_float:
        raise LaunchError(f"an array of {dtype} cannot be padded with NaN", hint='integers have none; use "zero"')
    return t.Descriptor(dtype, block, padding)


def _integers(name: str, numbers: Any) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, numbers))
    except TypeError:
        raise LaunchError(f"{name} is {numbers!r}, and should be ints, one for each axis") from None


def strides_of(array: Any) -> tuple[int, ...]:
    """The strides of an array in elements."""
    if callable(getattr(array, "stride", None)):
        return tuple(array.stride())
    if getattr(array, "strides", None) is None:
        raise LaunchError(
            f"a {type(array).__name__} does not tell its strides",
            hint="TensorDescriptor(array, shape, strides, block_shape)",
        )
    return tuple(s // array.dtype.itemsize for s in array.strides)


_TEXT = re.compile(r"tensordesc<(\w+)\[([\d, ]+)\](,nan)?>")


def parse_descriptor(text: str) -> t.Descriptor | None:
    """The type that a text such as "tensordesc<fp16[64,64]>" stands for; None if it is no such text."""
    found = _TEXT.fullmatch(text.replace(" ", ""))
    dtype = {**t.BY_SHORT, **t.BY_NAME}.get(found[1]) if found else None
    if found is None or dtype is None:
        return None
    return _type(dtype, tuple(map(int, found[2].split(","))), "nan" if found[3] else "zero")


def _describe(desc: Any) -> tuple[Kind, tuple[int, ...]]:
    """The Kind and the raw values of a tensor descriptor, ours or one of Triton's."""
    if not isinstance(desc, TensorDescriptor):
        desc = TensorDescriptor(desc.base, desc.shape, desc.strides, desc.block_shape, desc.padding)
    kind, address = describer(desc.base)(desc.base)
    type_ = desc.type(kind, address)
    found = descriptor_kind(type_, desc.shape[-1] % 16 == 0, kind.device, kind.readonly, kind.library)
    return found, (address, *desc.shape, *desc.strides[:-1])


describe_by(TensorDescriptor, _describe, subclasses=True, foreign=("triton", "TensorDescriptor"))
