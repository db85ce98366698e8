"""Runs user functions on elements as Python: `map_elementwise`, `reduce`, `associative_scan`.

The function takes scalars. It runs once on whole tiles, each of which represents many scalars (`Interpreter.lanes`). If it branches or
loops on one of them, it runs again for every element. `print` and `breakpoint()` therefore work in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blocknb.eager.running import RunningKernel
from blocknb.eager.values import EagerValue, OneByOne
from blocknb.frontend import numeric
from blocknb.frontend.combine import _parts, _whole
from blocknb.frontend.emitter import NUMBERS, Emitter, Mismatch
from blocknb.frontend.scope import Frame
from blocknb.frontend.shapes import axis_of, constant_int, flag, tile_of
from blocknb.ir.core import Block, Func, Op, Value
from blocknb.ir.interp_tile import Machine, numpy_dtype
from blocknb.language.types import Tile

Arrays = list[np.ndarray]
HANDLERS: dict[str, Callable[..., Any]] = {}


def handles(name: str) -> Callable:
    return lambda handler: HANDLERS.update({name: handler}) or handler


class Elements:
    """A function of scalars, applied to every element of tiles. `single` is true if it returns one value instead of a tuple."""

    def __init__(self, interpreter: RunningKernel, function: Any, dtypes: Sequence[Any] | None = None):
        self.interpreter, self.function = interpreter, interpreter.callable(function)
        self.dtypes, self.single = dtypes, True  # dtypes of the results; None: those of the first element

    def __call__(self, operands: Sequence[Any], shape: tuple[int, ...]) -> list[EagerValue]:
        """`operands` are tiles of the shape, and constants."""
        interpreter = self.interpreter
        before, interpreter.lanes = interpreter.lanes, True
        try:
            return self._once(operands, shape)
        except OneByOne:
            pass
        finally:
            interpreter.lanes = before
        columns: list[list[EagerValue]] = []
        for index in np.ndindex(shape):
            columns.append(self._once([self._element(x, index) for x in operands], ()))
        types = [Tile(x.type.dtype, shape) for x in columns[0]]
        return [
            EagerValue(
                kind,
                interpreter,
                np.array([c[i].data for c in columns], numpy_dtype(kind.dtype)).reshape(shape),
            )
            for i, kind in enumerate(types)
        ]

    def _element(self, x: Any, index: tuple[int, ...]) -> Any:
        if not isinstance(x, EagerValue):
            return x
        return EagerValue(Tile(x.type.dtype), self.interpreter, np.asarray(x.data[index]))

    def _once(self, operands: Sequence[Any], shape: tuple[int, ...]) -> list[EagerValue]:
        emit = self.interpreter.emit
        found = self.function(*operands)
        self.single = not isinstance(found, tuple)
        results = [emit.runtime(x) for x in ((found,) if self.single else found)]
        if self.dtypes is None:
            self.dtypes = [x.type.dtype for x in results]
        if len(results) != len(self.dtypes):
            message = f"the combine function returns {len(results)} values for {len(self.dtypes)} operands"
            raise Mismatch(message, None, "combine_fn")
        return [emit.broadcast(emit.cast(x, d), shape) for x, d in zip(results, self.dtypes, strict=True)]


class Pairs(Machine):
    """Combines along an axis in the order of the IR interpreter, with a Python function instead of a block."""

    def __init__(self, interpreter: RunningKernel, tiles: Sequence[Value], function: Any):
        super().__init__(Func("combine", (), Block((), ())), interpreter.space, interpreter.grid, (0, 0, 0))
        self.interpreter, self.kinds = interpreter, [x.type.dtype for x in tiles]
        self.elements = Elements(interpreter, function, self.kinds)

    def combine(self, block: Block, values: Arrays) -> Arrays:
        shape = values[0].shape
        operands = [
            EagerValue(Tile(d, shape), self.interpreter, x) for d, x in zip(self.kinds * 2, values, strict=True)
        ]
        return [x.data for x in self.elements(operands, shape)]

    def along(self, name: str, tiles: Sequence[Any], axis: int, reverse: bool = False) -> tuple[EagerValue, ...]:
        op = Op(name, attrs={"axis": axis, "reverse": reverse}, blocks=(Block((), ()),))
        arrays = [x.data for x in tiles]
        results = self.combine_axis(op, arrays, axis) if name == "reduce" else self.scan_axis(op, arrays, axis)
        return tuple(
            EagerValue(Tile(d, x.shape), self.interpreter, np.asarray(x))
            for d, x in zip(self.kinds, results, strict=True)
        )


def _tiles(frame: Frame, input: Any) -> list[Value]:
    tiles = [tile_of(frame, x) for x in (input if isinstance(input, tuple) else (input,))]
    shape = frame.emit.common_shape(*tiles)
    return [frame.emit.broadcast(x, shape) for x in tiles]


@handles("reduce")
def reduce(frame: Any, input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False) -> Any:
    tiles = _tiles(frame, input)
    pairs = Pairs(frame.interpreter, tiles, combine_fn)

    def along(emit: Emitter, tiles: Sequence[Value], axis: int, combine: Any) -> tuple[Value, ...]:
        return pairs.along("reduce", tiles, axis)

    results = numeric.reduction(frame, tiles, axis, keep_dims, lambda emit, args: args, along)
    return results if isinstance(input, tuple) else results[0]


@handles("associative_scan")
def associative_scan(frame: Any, input: Any, axis: Any, combine_fn: Any, reverse: Any = False) -> Any:
    tiles = _tiles(frame, input)
    if not tiles[0].type.shape:
        raise Mismatch("a scalar has no axis to scan along", "pass a tile with at least one axis", "input")
    axis = axis_of(frame, axis, len(tiles[0].type.shape))
    pairs = Pairs(frame.interpreter, tiles, combine_fn)
    results = pairs.along("scan", tiles, axis, flag(frame, reverse, "reverse"))
    return results if isinstance(input, tuple) else results[0]


@handles("map_elementwise")
def map_elementwise(frame: Any, scalar_fn: Any, *args: Any, pack: Any = 1) -> Any:
    emit, pack = frame.emit, constant_int(frame, pack, "pack")
    tiles = [x for x in args if isinstance(x, Value)]
    if not tiles or not all(isinstance(x, (Value, *NUMBERS)) for x in args):
        raise Mismatch("map_elementwise needs tiles and numbers, with at least one tile", None, "args")
    shape = emit.common_shape(*tiles)
    if pack < 1 or pack & (pack - 1) or (shape[-1] if shape else 1) % pack:
        raise Mismatch(
            f"pack={pack} does not fit a tile of shape {shape}", "use a power of two that divides the last axis", "pack"
        )
    parts = [_parts(frame, emit.broadcast(x, shape), pack) if isinstance(x, Value) else [x] * pack for x in args]
    elements = Elements(frame.interpreter, scalar_fn)
    found = elements([part for each in parts for part in each], (*shape[:-1], shape[-1] // pack) if shape else ())
    if len(found) % pack:
        raise Mismatch(
            f"with pack={pack} the function returns {len(found)} values", f"it returns {pack} for each result"
        )
    results = tuple(_whole(frame, found[i : i + pack], shape) for i in range(0, len(found), pack))
    return results[0] if len(results) == 1 and (elements.single or pack > 1) else results
