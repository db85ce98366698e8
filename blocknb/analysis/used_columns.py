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
        """The index along its axis that a reduction takes, if it is one of `tl.split`: its other operand marks an index."""
        ops = [op.name for op in reduction.blocks[0].ops]
        if ops != ["select", "or", "yield"] or len(reduction.args) != 2:
            return None
        marks = self.defs.get(reduction.args[1])
        while marks is not None and marks.name in ("broadcast", "expand_dims"):
            marks = self.defs.get(marks.args[0])
        if marks is None or marks.name != "cmp" or marks.attrs["pred"] != "eq":
            return None
        index, at = map(self.defs.get, marks.args)
        if index is None or at is None or index.name != "arange" or at.name != "const":
            return None
        return int(at.attrs["value"]) - int(index.attrs["start"])
