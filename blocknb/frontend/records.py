"""Records: values of the language that consist of several other values, such as a block pointer with its offsets.

A record has fields, which are trees of leaves like tuples, and constants that describe it. Branches and loops merge records field by
field (see `merge`). A record costs nothing at run time, because only the fields that the kernel uses become ops.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from blocknb.ir.core import Value
from blocknb.language import types as t
from blocknb.language.types import Pointer, Tile


@dataclass(frozen=True, eq=False)
class RecordValue:
    """The base class of records.

    `TREES` names the fields with run-time values. `MOVING` names those that loops usually change. `CLASSES` are the classes of the
    language that `isinstance` accepts for the record.
    """

    TREES: ClassVar[tuple[str, ...]] = ()
    MOVING: ClassVar[tuple[str, ...]] = ()
    CLASSES: ClassVar[tuple[str, ...]] = ()

    @property
    def type(self) -> Any:
        """The type of the record in the language."""
        raise NotImplementedError

    @property
    def branches(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.TREES)

    def rebuilt(self, branches: tuple[Any, ...]) -> RecordValue:
        """The same record with other trees."""
        return replace(self, **dict(zip(self.TREES, branches, strict=True)))

    @property
    def constants(self) -> tuple[Any, ...]:
        """The constants that two records must share to be merged."""
        return type(self), *(getattr(self, f.name) for f in fields(self) if f.name not in self.TREES)


@dataclass(frozen=True, eq=False)
class BlockPointer(RecordValue):
    """`base` is a scalar pointer; `shape`, `strides` and `offsets` are integer scalars or numbers, in elements, one per axis."""

    TREES: ClassVar = ("base", "shape", "strides", "offsets")
    MOVING: ClassVar = ("offsets",)
    CLASSES: ClassVar = ("tensor",)

    base: Value
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offsets: tuple[Any, ...]
    block_shape: tuple[int, ...]

    @property
    def type(self) -> Pointer:
        """A pointer to a block type, as in Triton: `type.element_ty.element_ty` is the dtype."""
        return Pointer(Tile(self.base.type.dtype.element_ty, self.block_shape))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"a block pointer to {self.base.type.dtype.element_ty} of shape {self.block_shape}"


@dataclass(frozen=True, eq=False)
class DescriptorValue(RecordValue):
    """`base` is a scalar pointer; `shape` and `strides` are integer scalars or numbers, in elements; the last stride is 1."""

    TREES: ClassVar = ("base", "shape", "strides")
    CLASSES: ClassVar = ("tensor_descriptor", "tensor_descriptor_base")

    base: Value
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    block_shape: tuple[int, ...]
    padding: str

    @property
    def dtype(self) -> t.DType:
        return self.base.type.dtype.element_ty

    @property
    def type(self) -> t.Descriptor:
        return t.Descriptor(self.dtype, self.block_shape, self.padding)

    @property
    def block_type(self) -> Tile:
        return self.type.block_type

    def __str__(self) -> str:
        return f"a tensor descriptor of {self.dtype} with blocks of shape {self.block_shape}"
