"""Records: values of the language that are made of several others, such as a block pointer with its offsets.

A record has fields that are trees of leaves, as tuples are, and constants that say what it is. Branches and loops join records
field by field (see `merge`), so a record costs nothing at run time: what is used of it becomes ops, the rest is never seen.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from blocknb.ir.core import Value
from blocknb.language import types as t
from blocknb.language.types import Pointer, Tile


@dataclass(frozen=True, eq=False)
class RecordValue:
    """What all have in common. `TREES` names the fields with values known at run time, `MOVING` those of them that loops usually
    change, `CLASSES` the classes of the language that a record is an instance of."""

    TREES: ClassVar[tuple[str, ...]] = ()
    MOVING: ClassVar[tuple[str, ...]] = ()
    CLASSES: ClassVar[tuple[str, ...]] = ()

    @property
    def type(self) -> Any:
        """What the kernel's author sees as the record's type."""
        raise NotImplementedError

    @property
    def branches(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.TREES)

    def rebuilt(self, branches: tuple[Any, ...]) -> RecordValue:
        """The same record with other trees."""
        return replace(self, **dict(zip(self.TREES, branches, strict=True)))

    @property
    def constants(self) -> tuple[Any, ...]:
        """What two records must have in common to be joined."""
        return type(self), *(getattr(self, f.name) for f in fields(self) if f.name not in self.TREES)


@dataclass(frozen=True, eq=False)
class BlockPointer(RecordValue):
    """`base` is a scalar pointer; `shape`, `strides` and `offsets` are integer scalars or numbers, in elements, one an axis."""

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
        """As in Triton a pointer to a block, which leads to the dtype by `element_ty` twice."""
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
