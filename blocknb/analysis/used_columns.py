"""The columns of products that a kernel uses. A wgmma can compute fewer columns than its tile has.

The sizes of tiles are powers of two. A kernel for tiles of 128 by 208 multiplies tiles of 128 by 256, and takes the first 208 columns of
the result by `tl.split`. The analysis follows a result through the loops that carry it, elementwise ops, reshapes,
transpositions and `tl.split`.
"""

from __future__ import annotations

import numpy as np

from blocknb.ir.core import Func, Op, Value, definitions, uses
from blocknb.language.ops import OPS


class UsedColumns:
    """Finds the used columns of the products of a function."""

    def __init__(self, func: Func):
        self.defs, self.users = definitions(func), uses(func)
        self.loops = {op.blocks[0].terminator.id: op for op in func.ops() if op.name == "for"}

    def of(self, product: Op) -> int:
        """One more than the last column of a product's result that an op uses; 0 if no op uses the result."""
        rows, columns = product.result.type.shape
        whole = np.broadcast_to(np.arange(columns), (rows, columns))
        pending, seen, used = [(product.result, whole)], {product.result: whole}, 0
        while pending:
            value, held = pending.pop()
            for op, at in self.users.get(value, ()):
                if op.id == product.id and at == 2 and held is whole:
                    continue  # column by column
                found = self.moved(op, at, held)
                used = max(used, 0 if found else int(held.max()) + 1)
                for x, at_x in found:
                    if x not in seen:
                        pending.append((x, at_x))
                    elif not np.array_equal(seen[x], at_x):  # it joins two parts of the result
                        used = max(used, int(at_x.max()) + 1)
                    seen.setdefault(x, at_x)
        return used

    def moved(self, op: Op, at: int, held: np.ndarray) -> list[tuple[Value, np.ndarray]]:
        """The values to which an op moves the elements of an operand, with the columns that they hold; [] for any other op."""
        match op.name:
            case "yield" if op.id in self.loops:
                loop = self.loops[op.id]
                return [(loop.blocks[0].args[1 + at], held), (loop.results[at], held)]
            case "reshape":
                return [(op.result, held.reshape(op.result.type.shape))]
            case "trans":
                return [(op.result, held.transpose(op.attrs["perm"]))]
            case "reduce" if at == 0 and (index := self.picked(op)) is not None:
                return [(op.results[0], np.take(held, index, op.attrs["axis"]))]
            case name if OPS[name].kind == "elementwise" and op.result.type.shape == held.shape:
                return [(op.result, held)]
        return []

    def picked(self, reduction: Op) -> int | None:
        """The index along its axis that a reduction takes, if it is one of `tl.split`: its other operand marks one index."""
        block, axis = reduction.blocks[0], reduction.attrs["axis"]
        if [op.name for op in block.ops] != ["select", "or", "yield"] or len(reduction.args) != 2:
            return None
        first, is_marked, other, _ = block.args
        if tuple(block.ops[0].args) != (is_marked, first, other):
            return None
        marks = self.marks(reduction.args[1])
        if marks is None:
            return None
        lines = np.moveaxis(marks, axis, -1).reshape(-1, marks.shape[axis])
        found = np.flatnonzero(lines[0])
        return int(found[0]) if len(found) == 1 and (lines == lines[0]).all() else None

    def marks(self, value: Value) -> np.ndarray | None:
        """The elements of a tile that compares an `arange` with a constant, perhaps along a new axis; None for any other tile."""
        op = self.defs.get(value)
        if op is None:
            return None
        if op.name in ("broadcast", "expand_dims"):
            found = self.marks(op.args[0])
            if found is None:
                return None
            shape = op.result.type.shape
            return found.reshape(shape) if op.name == "expand_dims" else np.broadcast_to(found, shape)
        if op.name != "cmp" or op.attrs["pred"] != "eq":
            return None
        index, at = self.defs.get(op.args[0]), self.defs.get(op.args[1])
        while index is not None and index.name == "expand_dims":
            index = self.defs.get(index.args[0])
        if index is None or index.name != "arange" or at is None or at.name != "const":
            return None
        numbers = np.arange(index.attrs["start"], index.attrs["start"] + index.result.type.size)
        return np.equal(numbers.reshape(op.result.type.shape), int(at.attrs["value"]))
