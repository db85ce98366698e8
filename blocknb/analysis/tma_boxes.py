"""Recognises accesses that TMA can perform as one box of a strided array: a corner, an extent per axis, and bounds that clip it.

The address of an element is `root + sum of coordinate * stride`. As a linear form, each of the two axes of the tile has a stride, and one
stride is 1. The remaining terms are scalars of the program, and `coordinates` assigns them to coordinates. The mask must state the bounds
of the array. An upper bound is the extent of its axis. TMA also clips elements before the first, so the mask must have a lower bound too,
or the coordinate must be provably non-negative. Source: CUDA Driver API, "Tensor Map Object Management".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blocknb.analysis import axis_info
from blocknb.analysis.bounds import bounds_of
from blocknb.analysis.coordinates import CoordinateAssignment, NotABox
from blocknb.analysis.linear_forms import VALUE, Form
from blocknb.analysis.polynomials import (
    Poly,
    Scalar,
    at_top,
    by_index,
    emit,
    emittable,
    known_before,
    nonnegative,
    positive_in_loops,
    scalar,
)
from blocknb.ir.build import Builder
from blocknb.ir.core import Op, Value, is_volatile
from blocknb.ir.traversal import breadth_first
from blocknb.language import types as t
from blocknb.language.bulk import MOST_RANK, UNBOUNDED, TensorMap
from blocknb.language.ops import PRESERVING

if TYPE_CHECKING:
    from blocknb.analysis.affine import Facts

__all__ = ["Poly", "Scalar", "TmaBox", "at_top", "box_of", "emit"]

ALIGNMENT = 16  # bytes: of the address of the array, of its strides, and of the rows of a box
SIDES = ("rows", "columns")


@dataclass(frozen=True)
class TmaBox:
    """A box of an array. `root` is the pointer parameter. `dims`, `strides` (in elements) and `start`, the coordinates of the first
    element, go from the outer to the inner axis; the innermost stride is 1 and left out. Dims and strides are scalars of the launch (see
    `at_top`), starts are forms of the program (see `emit`). `axes`: the array's axis for each of the two axes of the tile that have more
    than one element; the box has size one along the others. Values of the launch may have any sign. Along a dim of zero or less no element
    is inside, and the runtime makes no tensor map with a negative stride."""

    root: Value
    dims: tuple[Scalar, ...]
    strides: tuple[Scalar, ...]
    start: tuple[Poly, ...]
    axes: tuple[int, int]

    @property
    def rank(self) -> int:
        return len(self.dims)


def box_of(facts: Facts, op: Op, at: Op | None = None) -> TmaBox | str:
    """The box that a load or store of a tile moves, or the reason why there is none, as a phrase for a note. An access is refused if it is
    volatile, or if masked elements are not zero. Its elements must have 8, 16 or 32 bits. For an access that is not in the function, `at`
    is the access of the function that it replaces."""
    try:
        return _BoxReader(facts, op, at or op).box()
    except NotABox as refused:
        return str(refused)


class _BoxReader:
    """Reads one access. `coordinates` and `strides` are by axis of the tile, `outer` by the product of parameters that is the stride."""

    def __init__(self, facts: Facts, op: Op, at: Op):
        self.facts, self.op, self.pointer = facts, op, op.args[0]
        masks = 1 if op.name == "load" else 2
        self.mask = op.args[masks] if len(op.args) > masks else None
        self.positive = positive_in_loops(facts, at)
        shape = self.pointer.type.shape
        self.axes = tuple(i for i, n in enumerate(shape) if n > 1)
        if len(self.axes) != 2:
            raise NotABox("its tile does not have two axes")
        self.names = dict(zip(self.axes, SIDES, strict=True))

    def box(self) -> TmaBox:
        self.check_access()
        root, form = self.address()
        strides = {axis: self.stride(form, axis) for axis in self.axes}
        unit = next((axis for axis in reversed(self.axes) if strides[axis].constant == 1), None)
        if unit is None:
            raise NotABox("neither its rows nor its columns are contiguous")
        (other,) = (axis for axis in self.axes if axis != unit)
        self.check_rows(unit, strides[other], self.names[other])
        bounds = bounds_of(self.facts, self.mask)
        if isinstance(bounds, str):
            raise NotABox(bounds)
        rest = form.only(lambda m: all(s.is_uniform for s in m))
        assignment = CoordinateAssignment(self.facts, strides, unit, bounds)
        assignment.assign(rest)
        return self.finished(root, assignment, other, unit)

    # -- reading the access ------------------------------------------------------------------------------------------------

    def check_access(self) -> None:
        op, dtype = self.op, self.pointer.type.dtype.element
        if is_volatile(op):
            raise NotABox("it is volatile")
        if op.name == "load" and len(op.args) > 2 and not self.is_zero(op.args[2]):
            raise NotABox("its `other` is not zero, and TMA fills with zeros")
        if dtype.bits not in (8, 16, 32):
            raise NotABox(f"its elements are {dtype}")

    def is_zero(self, value: Value) -> bool:
        op = self.facts.definition.get(value)
        while op is not None and op.name in PRESERVING and op.name != "part":
            op = self.facts.definition.get(op.args[0])
        if op is None or op.name != "const":
            return False
        return op.attrs["value"] == 0 and math.copysign(1, op.attrs["value"]) > 0

    def address(self) -> tuple[Value, Form]:
        """The pointer parameter, and the offset from it in elements of the access."""
        facts, base, form = self.facts, self.facts.base(self.pointer), self.facts.form(self.pointer)
        size = self.pointer.type.dtype.element.bytes
        while base is not None and form is not None and (op := facts.definition.get(base)) is not None:
            source = op.args[0].type
            if op.name not in ("promise", "bitcast") or not source.is_pointer or source.dtype.element.bytes != size:
                break
            base, before = facts.base(op.args[0]), facts.form(op.args[0])
            form = None if before is None else form + before
        if base is None or form is None or base not in facts.func.params:
            raise NotABox("its array is not an argument of the kernel")
        if facts.hints.get(base, 1) % ALIGNMENT:
            raise NotABox(f"its array may not start at a multiple of {ALIGNMENT} bytes")
        return base, form

    def stride(self, form: Form, axis: int) -> Form:
        """The stride of an axis of the tile: a single term that the host knows at launch. Raises NotABox otherwise."""
        name = self.names[axis]
        cut = form.split(axis)
        if cut is None:
            raise NotABox(self.irregular(form, axis))
        stride = cut[0]
        if len(stride.terms) != 1 or not all(known_before(self.facts, s) for s in stride.symbols()):
            raise NotABox(f"its {name} do not have one stride that is known at launch")
        if next(iter(stride.terms.values())) < 0:
            raise NotABox(f"its {name} have a negative stride")
        return stride

    def irregular(self, form: Form, axis: int) -> str:
        """The reason why a form is not linear along an axis."""
        name, size, makers = self.names[axis], self.pointer.type.shape[axis], dict[str, Op]()

        def made_of(value: Value) -> list[Value]:
            op, source = self.facts.definition.get(value), self.facts.stored(value)
            if source is not None:
                return [source]
            return [x for x in op.args if x.type.shape] if op is not None and op.name not in ("load", "rem") else []

        symbols = [x.value for x in form.symbols() if x.kind == VALUE and axis in x.axes]
        for value in breadth_first(symbols, made_of):
            op = self.facts.definition.get(value)
            if op is not None and self.facts.stored(value) is None:
                makers.setdefault(op.name, op)
        if "load" in makers:
            return f"the addresses of its {name} are loaded indices"
        if "rem" in makers:
            modulus = self.facts.form(makers["rem"].args[1])
            if modulus is not None and modulus.constant is not None and modulus.constant % size == 0:
                return f"its {name} wrap around (% {modulus}), and may not start at a multiple of {size}"
            found = "..." if modulus is None else modulus
            return f"its {name} wrap around (% {found}, which is not known to be a multiple of {size})"
        return f"its {name} are not a fixed distance apart"

    def check_rows(self, unit: int, stride: Form, name: str) -> None:
        """Checks the requirements of a tensor map on the rows: their length and their stride are multiples of 16 bytes."""
        size = self.pointer.type.dtype.element.bytes
        length = self.pointer.type.shape[unit] * size
        if length % ALIGNMENT:
            raise NotABox(f"its rows have {length} bytes, which is not a multiple of {ALIGNMENT}")
        if axis_info.form_divisor(self.facts, stride, None, 1) * size % ALIGNMENT:
            raise NotABox(f"its {name} are not known to be a multiple of {ALIGNMENT} bytes apart")

    # -- building the box ----------------------------------------------------------------------------------------------------

    def extent(self, assignment: CoordinateAssignment, side: int) -> Scalar:
        """The extent of the array along an axis of the tile, from the bounds in the mask."""
        at, upper = assignment.coordinates[side], assignment.bounds.upper.get(side)
        if side not in assignment.bounds.lower:
            moving = (c for m, c in at.terms.items() if m and not all(known_before(self.facts, s) for s in m))
            if upper is not None and min(moving, default=0) < 0 and not self.nonnegative(at):
                raise NotABox(f"the bound of its {self.names[side]} is not known at launch")
            self.check_start(at, f"its {self.names[side]}")
        found = Form.of(UNBOUNDED) if upper is None else at - upper
        if not all(known_before(self.facts, s) for s in found.symbols()):
            raise NotABox(f"the bound of its {self.names[side]} is not known at launch")
        return scalar(found)

    def finished(self, root: Value, assignment: CoordinateAssignment, other: int, unit: int) -> TmaBox:
        outer, size = assignment.outer, self.pointer.type.dtype.element.bytes
        if len(outer) + 2 > MOST_RANK:
            raise NotABox(f"its array would have {len(outer) + 2} axes, and a tensor map has at most {MOST_RANK}")
        dims: list[Scalar] = [UNBOUNDED if axis.extent is None else scalar(axis.extent) for axis in outer]
        dims += [self.extent(assignment, side) for side in (other, unit)]
        for axis in outer:
            if axis_info.form_divisor(self.facts, axis.stride, None, 1) * size % ALIGNMENT:
                raise NotABox(
                    f"its offset in the array is not known to be a multiple of {ALIGNMENT} bytes ({axis.stride})"
                )
            if not axis.checked:
                self.check_start(axis.at, "it")
        start = [axis.at for axis in outer] + [assignment.coordinates[other], assignment.coordinates[unit]]
        found = tuple(by_index(self.facts, at) for at in start)
        if not all(emittable(self.facts, at) for at in found):
            raise NotABox("its position depends on a loop without an index")
        strides = (*(scalar(axis.stride) for axis in outer), scalar(assignment.strides[other]))
        place = {other: len(outer), unit: len(outer) + 1}
        return TmaBox(root, tuple(dims), strides, found, (place[self.axes[0]], place[self.axes[1]]))

    def nonnegative(self, at: Form) -> bool:
        return nonnegative(self.facts, at, self.positive)

    def check_start(self, at: Form, name: str) -> None:
        if not self.nonnegative(at):
            raise NotABox(f"{name} may start before the array, and its mask has no lower bound")


def emit_map(builder: Builder, facts: Facts, box: TmaBox, kind: TensorMap, made: dict[Value, Value]) -> Value:
    """Emits the tensor map of a box's array at the top of the function. `made` are the values that are there already."""
    numbers = [at_top(builder, facts, x, t.int64, made) for x in (*box.dims, *box.strides)]
    value = builder.value("tensor_map", box.root, *numbers, type=kind)
    value.name = box.root.name
    return value
