"""Follows which elements of a tile are defined: a load without `other` gives none where its mask is off.

blocknb defines these elements as zero, and Triton does not. Masks of the defined elements accompany tiles through elementwise ops and moves
(definedness bits, as in Memcheck: Seward and Nethercote, USENIX 2005). Everything else counts as defined: sums, products of matrices,
values that loops and branches carry, addresses and conditions. So the check accuses no store whose value the mask decides.
"""

from __future__ import annotations

from typing import Any

from blocknb.analysis.effects import mask_of
from blocknb.ir.build import Builder, Rebuild
from blocknb.ir.core import Op, Value
from blocknb.language import types as t
from blocknb.language.ops import OPS
from blocknb.language.types import Tile

FOLLOWED = ("view", "move")  # the kinds of ops that a mask follows like its tile


class Definedness:
    """The masks of defined elements, for the tiles that have undefined ones."""

    def __init__(self) -> None:
        self.masks: dict[Value, Value] = {}

    def access(self, op: Op, b: Builder, attrs: dict[str, Any]) -> None:
        """Notes the undefined elements of a load, and reports a store of such elements. The access has been emitted."""
        mask = mask_of(op)
        if op.name == "load" and len(op.args) == 2 and mask is not None:
            self.masks[op.result] = mask
        if op.name == "store" and (defined := self.masks.get(op.args[1])) is not None:
            bad = b.value("not", defined)
            b.op("shadow", op.args[0], bad if mask is None else b.value("and", mask, bad), action="undefined", **attrs)

    def follow(self, op: Op, walk: Rebuild) -> Any:
        """Emits an op, and the mask of its result if an operand has one."""
        known = [self.masks.get(x) for x in op.args]
        if op.blocks or len(op.results) != 1 or not any(known) or op.result.type.is_pointer:
            return NotImplemented
        b = walk.builder
        if op.name == "select":
            b.append(op)
            whole = Tile(t.int1, op.result.type.shape)
            first, second = (x if x is not None else b.const(True, whole) for x in known[1:])
            self.masks[op.result] = b.value("select", op.args[0], first, second)
        elif OPS[op.name].kind == "elementwise" and op.result.type.dtype.bits > 1:
            b.append(op)
            self.masks[op.result] = self._all(b, [x for x in known if x is not None])
        elif not OPS[op.name].traits.isdisjoint(FOLLOWED) and len(op.args) == 1 and known[0] is not None:
            b.append(op)
            self.masks[op.result] = b.value(op.name, known[0], **op.attrs)
        else:
            return NotImplemented
        return op.results

    def _all(self, b: Builder, masks: list[Value]) -> Value:
        result = masks[0]
        for mask in masks[1:]:
            result = result if mask is result else b.value("and", result, mask)
        return result
