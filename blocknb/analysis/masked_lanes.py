"""Finds masked loads whose masked lanes matter: without `other` Triton leaves those lanes undefined, and blocknb gives 0."""

from __future__ import annotations

from collections.abc import Container, Iterator

from blocknb.ir.core import Func, Op, Users, Value, uses
from blocknb.language.ops import OPS

#: Kinds of ops whose result still has the lanes of their operands.
KEEPS_LANES = ("elementwise", "shape")
#: Ops that combine lanes or leave the tile, and how a note names them.
COMBINES = {
    "reduce": "a reduction", "scan": "a scan", "dot": "a matrix product", "gather": "a gather", "store": "a store without a mask",
}  # fmt: skip


def masked_lanes_that_matter(func: Func, padded: Container[Value] = ()) -> Iterator[tuple[Op, str]]:
    """The masked loads without `other` whose masked lanes reach an op of `COMBINES`, with the name of that op.

    `padded` are results of loads that Triton defines outside of their array, too. A `select` counts as the end of those lanes, because
    kernels write `tl.where(mask, x, 0)`. So does control flow.
    """
    users = uses(func)
    for op in func.ops():
        undefined = op.name == "load" and len(op.args) == 2 and op.result not in padded
        if undefined and op.result.type.shape and (reached := _reached(op, users)):
            yield op, COMBINES[reached.name]


def _reached(load: Op, users: Users) -> Op | None:
    """The first op of `COMBINES` that the value of a load reaches lane by lane."""
    seen, open_values = {load.result}, [load.result]
    while open_values:
        for op, index in users.get(open_values.pop(), ()):
            if op.name == "store" and (index != 1 or len(op.args) > 2):
                continue
            if op.name in COMBINES:
                return op
            if op.name != "select" and OPS[op.name].kind in KEEPS_LANES:
                open_values += [result for result in op.results if result not in seen]
                seen.update(op.results)
    return None
