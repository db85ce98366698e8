"""Helpers for tests of TMA boxes: rewrite accesses from the result of the analysis, and record every access of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from kernels.base import Case, parameters

from blocknb.analysis import affine
from blocknb.analysis.tma_boxes import TmaBox, at_top, box_of, emit
from blocknb.ir import interp, interp_tile
from blocknb.ir.address import AddressSpace, programs_of
from blocknb.ir.build import Builder, Rebuild
from blocknb.ir.core import Func, Op, Value
from blocknb.ir.verify import verify
from blocknb.language import types as t


def after(kernel: Any, arguments: Mapping[str, Any], stage: str = "pointers", **options: Any) -> Func:
    """The IR after a pass, compiled for these arguments as for a launch (for the CPU, or a GPU where that has no such pass)."""
    target = "cpu" if stage in ("parse", "simplify", "pointers") else "sm_90a"
    _, stages = Case(kernel.__name__, kernel, dict, dict).lower(arguments, target, num_warps=4, **options)
    return next(s.after for s in stages if s.name == stage)


def accesses(func: Func) -> list[Op]:
    """The loads and stores of tiles."""
    return [op for op in func.ops() if op.name in ("load", "store") and op.args[0].type.shape]


def boxes(func: Func) -> list[TmaBox | str]:
    facts = affine.analyze(func)
    return [box_of(facts, op) for op in accesses(func)]


class Boxer(Rebuild):
    """Every access that is a box gets the addresses and the mask that the box says it has. Dims and strides stand at the function's top."""

    def __init__(self, func: Func):
        super().__init__(func, lambda op, _: self.step(op), "boxed")
        facts, made = affine.analyze(func), {}
        self.count, self.found = 0, {op: box_of(facts, op) for op in accesses(func)}
        self.found = {op.id: box for op, box in self.found.items() if isinstance(box, TmaBox)}
        self.scalars: dict[int, tuple[list[Value], list[Value]]] = {}
        for id, box in self.found.items():
            dims, strides = (
                [at_top(self.builder, facts, x, t.int64, made) for x in found] for found in (box.dims, box.strides)
            )
            self.scalars[id] = dims, [*strides, self.builder.const(1, t.int64)]

    def step(self, op: Op) -> Any:
        box = self.found.get(op.id)
        if box is None:
            return NotImplemented
        b, shape = self.builder, op.args[0].type.shape
        dims, strides = self.scalars[op.id]
        moving = [i for i, n in enumerate(shape) if n > 1]
        pointers = b.value("splat", rooted(b, self.get(box.root), op), shape=shape)
        mask = b.const(True, t.Tile(t.int1, shape))
        for axis, (start, dim, stride) in enumerate(zip(box.start, dims, strides, strict=True)):
            at = b.value("splat", emit(b, self.get, start, t.int64), shape=shape)
            if axis in box.axes:
                at = b.value("add", at, index(b, shape, moving[box.axes.index(axis)]))
            far = b.value("mul", at, b.value("splat", stride, shape=shape))
            pointers = b.value("ptradd", pointers, far)
            zero, end = b.const(0, t.Tile(t.int64, shape)), b.value("splat", dim, shape=shape)
            for bound in (b.value("cmp", at, zero, pred="ge"), b.value("cmp", at, end, pred="lt")):
                mask = b.value("and", mask, bound)
        values = op.args[1:2] if op.name == "store" else ()
        b.append(op.replace(args=(pointers, *values, mask)))
        return op.results


def rooted(b: Builder, root: Value, op: Op) -> Value:
    pointer = op.args[0].type.dtype
    return root if root.type.dtype == pointer else b.value("bitcast", root, dtype=pointer)


def index(b: Builder, shape: Sequence[int], axis: int) -> Value:
    x = b.value("cast", b.value("arange", start=0, end=shape[axis]), dtype=t.int64)
    for i in range(len(shape)):
        if i != axis:
            x = b.value("expand_dims", x, axis=i)
    return b.value("broadcast", x, shape=tuple(shape))


class Watcher(interp_tile.Machine):
    """Records the addresses and the mask of each access of a tile."""

    seen: list[tuple[np.ndarray, np.ndarray]]

    def step(self, op: Op, args: list) -> tuple:
        if op.name in ("load", "store") and op.args[0].type.shape:
            masks = args[1:2] if op.name == "load" else args[2:3]
            self.seen.append((args[0], masks[0] if masks else np.ones(args[0].shape, bool)))
        return super().step(op, args)


def watched(func: Func, arguments: Mapping[str, Any], grid: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """(addresses, mask) of each access of a tile in a run by the interpreter, program after program."""
    space, values, seen = AddressSpace(), {}, []
    copies = {n: x.copy() if isinstance(x, np.ndarray) else x for n, x in arguments.items()}
    for param, hint, x in zip(func.params, func.hints, parameters(func, copies), strict=True):
        values[param] = interp._argument(space, hint.name, param, x)
        space.of_argument.append(len(space.bytes) - 1)
    sizes, programs = programs_of(grid)
    for program in programs:
        machine = Watcher(func, space, sizes, program)
        machine.seen = seen
        for _ in machine.execute(func.body, dict(values)):
            pass
    return seen


def check_boxes(kernel: Any, arguments: Mapping[str, Any], grid: Any, count: int, **options: Any) -> list[TmaBox]:
    """Checks that `count` accesses of a kernel are boxes, also at the memory level, and that each element has the address of its box."""
    func = after(kernel, arguments, **options)
    found = boxes(func)
    assert sum(isinstance(box, TmaBox) for box in found) == count, found
    below = boxes(after(kernel, arguments, "lower_conversions", **options))
    assert sum(isinstance(box, TmaBox) for box in below) == count, below
    check_same(func, arguments, grid)
    return [box for box in found if isinstance(box, TmaBox)]


def check_same(func: Func, arguments: Mapping[str, Any], grid: Any) -> None:
    """Checks that boxed accesses have the addresses and the mask of their boxes."""
    made = Boxer(func).run()
    verify(made)
    expected, got = (watched(f, arguments, grid) for f in (func, made))
    assert len(expected) == len(got) > 0
    for (addresses, mask), (others, theirs) in zip(expected, got, strict=True):
        np.testing.assert_array_equal(mask, theirs)
        np.testing.assert_array_equal(addresses[mask], others[mask])
