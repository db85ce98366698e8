"""A compiler whose pass `simplify` replaces int32 differences by sums; a worker imports this module before it compiles."""

from __future__ import annotations

from dataclasses import replace

from blocknb.ir.build import rebuild
from blocknb.passes.registry import REGISTERED
from blocknb.passes.tile import simplify


def wrong(func, target, notes):
    def visit(op, rebuild):
        if op.name != "sub" or str(op.result.type.dtype) != "int32" or not op.result.type.shape:
            return NotImplemented
        return (rebuild.builder.op("add", *op.args).result,)

    return rebuild(simplify.simplify(func, target, notes), visit)


wrong.__doc__ = simplify.simplify.__doc__
REGISTERED["simplify"] = replace(REGISTERED["simplify"], run=wrong)
