"""Tensor descriptors of Triton before `TensorDescriptor`: an address, sizes and the bytes per element.

The descriptors of `triton.tools.experimental_descriptor` have no dtype; the kernel gives it with each access
(`tl._experimental_descriptor_load`). So the array counts as one of unsigned integers of that size, and the front end reinterprets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blocknb.errors import LaunchError
from blocknb.language import types as t
from blocknb.runtime.descriptor import TensorDescriptor

_UNSIGNED = {1: t.uint8, 2: t.uint16, 4: t.uint32, 8: t.uint64}


@dataclass(frozen=True)
class Address:
    """An array of which only the address and the size of an element are known."""

    address: int
    dtype: t.DType

    def data_ptr(self) -> int:
        """The address, as torch tensors return it."""
        return self.address


def create_1d_tma_descriptor(ptr: int, dim: int, block_dim: int, element_size: int) -> TensorDescriptor:
    """A descriptor of `dim` elements of `element_size` bytes at the address `ptr`, in blocks of `block_dim`."""
    return _described(ptr, (dim,), (block_dim,), element_size)


def create_2d_tma_descriptor(
    ptr: int, dim1: int, dim0: int, block_dim1: int, block_dim0: int, element_size: int
) -> TensorDescriptor:
    """A descriptor of `dim1` rows of `dim0` elements of `element_size` bytes at the address `ptr`."""
    return _described(ptr, (dim1, dim0), (block_dim1, block_dim0), element_size)


def _described(address: int, shape: Sequence[int], block: Sequence[int], element_size: int) -> TensorDescriptor:
    if element_size not in _UNSIGNED:
        raise LaunchError(f"no element has {element_size} bytes", hint="1, 2, 4 or 8")
    strides = (shape[-1], 1)[-len(shape) :]
    return TensorDescriptor(Address(address, _UNSIGNED[element_size]), shape, strides, block)
