"""A compiler whose pass `simplify` takes differences of tiles of int32 for sums; a worker imports this module before it compiles."""

from __future__ import annotations

from blocknb.ir.build import rebuild
from blocknb.passes import simplify

_right = simplify.simplify


def wrong(func, target, notes):
    def visit(op, rebuild):
        if op.name != "sub" or str(op.result.type.dtype) != "int32" or not op.result.type.shape:
            return NotImplemented
        return (rebuild.builder.op("add", *op.args).result,)

    return rebuild(_right(func, target, notes), "simplify", visit)


wrong.__doc__ = _right.__doc__
simplify.simplify = wrong
