"""Translates user functions on elements: `map_elementwise`, `reduce` and `associative_scan`.

The front end visits the function once, on scalars. In a reduction or scan the ops become the combine block, with branches replaced by
selects. A function that loops or loads cannot be a combine block. The front end then lifts it to tiles (see `lifting`), as it does for
`map_elementwise`. It reduces the tiles by a binary tree, and scans them by doubling the distance (Hillis and Steele, 1986).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.frontend import numeric, shapes
from blocknb.frontend.calls import call
from blocknb.frontend.emitter import NUMBERS, Emitter, Mismatch, describe
from blocknb.frontend.lifting import Lift, branches, loops
from blocknb.frontend.scope import Frame, emits
from blocknb.frontend.shapes import constant_int
from blocknb.frontend.source import MISSING, source_of
from blocknb.ir.core import Op, Value
from blocknb.language import moves
from blocknb.language import types as t
from blocknb.language.library import LIBRARY
from blocknb.language.ops import OPS
from blocknb.language.types import Tile


@dataclass(frozen=True)
class Traced:
    """A function visited on scalars: its parameters, its ops and its results. `where` names it in messages."""

    args: tuple[Value, ...]
    ops: tuple[Op, ...]
    returned: tuple[Value, ...]
    single: bool
    where: str

    def on(self, emit: Emitter, values: Sequence[Value], shape: tuple[int, ...]) -> list[Value]:
        """Emits the ops again on other values: scalars, or tiles of a shape."""
        lift = Lift(emit, shape, dict(zip(self.args, values, strict=True)), self.where)
        lift.ops(self.ops)
        return [lift.tile(x) for x in self.returned]


def trace(frame: Frame, function: Any, operands: Sequence[Any], where: str) -> Traced:
    """Visits a function. An operand is the dtype of a scalar, or a constant."""
    emit = frame.emit
    given = [Value(Tile(x)) if isinstance(x, (t.DType, t.Pointer)) else x for x in operands]
    args = tuple(x for x in given if isinstance(x, Value))
    emit.elements += 1
    try:
        with emit.block(args) as block:
            result = call(frame, function, given, {})
            returned = tuple(emit.runtime(x) for x in (result if isinstance(result, tuple) else (result,)))
    finally:
        emit.elements -= 1
    for x in returned:
        if x.type.shape:
            raise Mismatch(
                f"the function must return a scalar per element, not a tile of shape {x.type.shape}", "return scalars"
            )
    return Traced(args, block.done.ops, returned, not isinstance(result, tuple), where)


def called(function: Any) -> str:
    """The name of a function, for messages."""
    source = source_of(function)
    return source.name if source is not None else getattr(function, "__name__", str(function))


# -- map_elementwise ---------------------------------------------------------------------------------------------------------


def _mapped_shape(frame: Frame, args: Sequence[Any], pack: int) -> tuple[int, ...]:
    """The common shape of the operands of `map_elementwise`. Raises Mismatch if they cannot be mapped or packed."""
    if pack < 1 or pack & (pack - 1):
        raise Mismatch(f"`pack` must be a power of two, not {pack}", None, "pack")
    tiles = [x for x in args if isinstance(x, Value)]
    if not tiles:
        raise Mismatch("map_elementwise needs at least one tile", "call the function itself on numbers")
    shape = frame.emit.common_shape(*tiles)
    if shape and shape[-1] % pack:
        raise Mismatch(
            f"pack={pack} is larger than the last axis, which has {shape[-1]} elements", "make `pack` smaller", "pack"
        )
    if not shape and pack > 1:
        raise Mismatch("scalars have no neighbours to pack", "leave `pack` out", "pack")
    if not all(isinstance(x, (Value, *NUMBERS)) for x in args):
        raise Mismatch("map_elementwise takes only tiles and numbers", None, "args")
    return shape


@emits("map_elementwise")
def map_elementwise(frame: Frame, scalar_fn: Any, *args: Any, pack: Any = 1) -> Any:
    emit, pack = frame.emit, constant_int(frame, pack, "pack")
    shape = _mapped_shape(frame, args, pack)
    if not shape:
        return call(frame, scalar_fn, list(args), {})
    parts = [_parts(frame, emit.broadcast(x, shape), pack) if isinstance(x, Value) else [x] * pack for x in args]
    operands = [part for each in parts for part in each]
    name = called(scalar_fn)
    traced = trace(
        frame,
        scalar_fn,
        [x.type.dtype if isinstance(x, Value) else x for x in operands],
        f"the function `{name}` of map_elementwise",
    )
    if len(traced.returned) % pack:
        raise Mismatch(
            f"with pack={pack} the function returns {len(traced.returned)} values", f"it returns {pack} for each result"
        )
    found = traced.on(emit, [x for x in operands if isinstance(x, Value)], operand_shape(operands))
    results = tuple(_whole(frame, found[i : i + pack], shape) for i in range(0, len(found), pack))
    return results[0] if len(results) == 1 and (traced.single or pack > 1) else results


def operand_shape(operands: Sequence[Any]) -> tuple[int, ...]:
    return next(x.type.shape for x in operands if isinstance(x, Value))


def _parts(frame: Frame, x: Value, pack: int) -> list[Value]:
    """Splits a tile into `pack` tiles: tile i holds element i of every group of `pack` neighbours."""
    if pack == 1:
        return [x]
    *rest, n = x.type.shape
    pairs = shapes.reshape(frame, x, (*rest, n // 2, 2))
    even, odd = call(frame, LIBRARY["split"], [pairs], {})
    return [
        part
        for both in zip(_parts(frame, even, pack // 2), _parts(frame, odd, pack // 2), strict=True)
        for part in both
    ]


def _whole(frame: Frame, parts: Sequence[Value], shape: tuple[int, ...]) -> Value:
    """The inverse of `_parts`."""
    if len(parts) == 1:
        return parts[0]
    half = (*shape[:-1], shape[-1] // 2)
    even, odd = _whole(frame, parts[::2], half), _whole(frame, parts[1::2], half)
    return shapes.reshape(frame, call(frame, LIBRARY["join"], [even, odd], {}), shape)


# -- reductions and scans --------------------------------------------------------------------------------------------------------


def check_combine(function: Any, operands: int) -> None:
    """Raises Mismatch unless the combine function takes two values per operand."""
    source = source_of(function)
    if source is None:
        if callable(function):
            return  # A builtin has no Source. A plain function raises its own error at the call.
        raise Mismatch(
            f"`combine_fn` must be a kernel function, not {describe(function)}",
            "define it with two parameters, decorated with @blocknb.kernel",
            "combine_fn",
        )
    needed = sum(p.default is MISSING for p in source.parameters)
    if not needed <= 2 * operands <= len(source.parameters):
        raise Mismatch(
            f"the combine function `{source.name}` takes {plural(len(source.parameters), 'argument')}, but it is called with "
            f"{2 * operands}",
            "write f(a, b) for one operand; for n operands take 2n values (first all of a, then all of b) and return n",
            "combine_fn",
        )


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


class Combine:
    """A user function that combines elements of `tiles`. A call emits the ops of a combine block.

    If `loops` is true, the function cannot be a combine block, and the caller uses `on_tiles` instead.
    """

    def __init__(self, frame: Frame, tiles: Sequence[Value], function: Any, where: str):
        self.frame, self.tiles, self.function, self.where = frame, tiles, function, where
        mark = frame.emit.mark()
        self.traced = trace(frame, function, [x.type.dtype for x in tiles] * 2, where)
        frame.emit.rewind(mark)
        if len(self.traced.returned) != len(tiles):
            count = len(self.traced.returned)
            raise Mismatch(
                f"the combine function returns {plural(count, 'value')} for {plural(len(tiles), 'operand')}",
                "return one value per operand: return a, b",
                "combine_fn",
            )
        self.loops = loops(self.traced.ops)

    def __call__(self, emit: Emitter, args: Sequence[Value]) -> Sequence[Value]:
        if branches(self.traced.ops):
            results = self.traced.on(emit, args, ())
        else:
            result = call(self.frame, self.function, list(args), {})
            results = list(result) if isinstance(result, tuple) else [result]
        emit.drop_unused(results)
        for op in emit._open[-1]:
            if OPS[op.name].kind not in ("elementwise", "source"):
                raise Mismatch(
                    f"`{op.name}` in {self.where}",
                    "a combine function computes scalars from scalars and has no side effects",
                    "combine_fn",
                )
        return [emit.cast(r, x.type.dtype) for r, x in zip(results, self.tiles, strict=True)]

    def on_tiles(self, a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
        found = self.traced.on(self.frame.emit, [*a, *b], a[0].type.shape)
        return [self.frame.emit.cast(r, x.type.dtype) for r, x in zip(found, self.tiles, strict=True)]


def user_combine(frame: Frame, input: Any, combine_fn: Any, name: str) -> tuple[list[Value], Combine]:
    """The operands of a reduction or scan in one shape, and the Combine of its function."""
    inputs = input if isinstance(input, tuple) else (input,)
    check_combine(combine_fn, len(inputs))
    tiles = [shapes.tile_of(frame, x) for x in inputs]
    shape = frame.emit.common_shape(*tiles)
    tiles = [frame.emit.broadcast(x, shape) for x in tiles]
    return tiles, Combine(frame, tiles, combine_fn, f"the combine function `{called(combine_fn)}` of {name}")


@emits("reduce")
def reduce(frame: Frame, input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False) -> Any:
    tiles, combine = user_combine(frame, input, combine_fn, "reduce")
    whole = reduce_by_halves if combine.loops else numeric.reduce_axis
    results = numeric.reduction(frame, tiles, axis, keep_dims, combine, whole)
    return results if isinstance(input, tuple) else results[0]


def reduce_by_halves(emit: Emitter, tiles: Sequence[Value], axis: int, combine: Combine) -> tuple[Value, ...]:
    """Reduces whole tiles: each step combines neighbours along the axis, until one element is left."""
    frame = combine.frame
    while (size := tiles[0].type.shape[axis]) > 1:
        shape = tiles[0].type.shape
        pairs = [shapes.reshape(frame, x, (*shape[:axis], size // 2, 2, *shape[axis + 1 :])) for x in tiles]
        a, b = ([call(frame, moves._pick, [x, axis + 1, side], {}) for x in pairs] for side in (0, 1))
        tiles = combine.on_tiles(a, b)
    shape = tiles[0].type.shape
    return tuple(shapes.reshape(frame, x, shape[:axis] + shape[axis + 1 :]) for x in tiles)


def scan_by_doubling(
    frame: Frame, tiles: Sequence[Value], axis: int, reverse: bool, combine: Combine
) -> tuple[Value, ...]:
    """Scans whole tiles: after the step of distance d, each element combines the last 2d elements up to it."""
    emit, shape = frame.emit, tiles[0].type.shape
    index = emit.value("arange", start=0, end=shape[axis])
    for other in range(len(shape)):
        if other != axis:
            index = emit.value("expand_dims", index, axis=other)
    distance = 1
    while distance < shape[axis]:
        source = emit.broadcast(emit.binary("+" if reverse else "-", index, distance), shape)
        has = emit.compare("<", index, shape[axis] - distance) if reverse else emit.compare(">=", index, distance)
        before = [emit.value("gather", x, source, axis=axis) for x in tiles]
        joined, mask = combine.on_tiles(before, tiles), emit.broadcast(has, shape)
        tiles = [emit.value("select", mask, new, old) for new, old in zip(joined, tiles, strict=True)]
        distance *= 2
    return tuple(tiles)
