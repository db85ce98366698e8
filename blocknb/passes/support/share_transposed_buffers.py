"""Buffer sharing: products that read a tile and its transpose read one buffer, as k in q k^T and in dS k.

wgmma reads a buffer of 16-bit elements along either axis. The buffer for an operand along K equals, byte for byte, the one for its
transpose along M or N. So where a tile and its transpose are both stored for products, the first buffer serves both. This halves shared
memory and copies, and the tile, now stored once, can be copied ahead.
"""

from __future__ import annotations

from dataclasses import replace

from blocknb.ir.build import Rebuild, rebuild
from blocknb.ir.core import Block, Func, Op, Value, definitions, uses
from blocknb.layouts import wgmma
from blocknb.passes.support.dce import sweep
from blocknb.trace import Notes


def share_transposed(func: Func, notes: Notes) -> Func:
    """Lets products share one buffer for a tile and its copy or transpose."""
    return BufferSharing(func, notes).run()


def without_dead(func: Func) -> Func:
    """The function without the views that only led to removed stores. With a second user, a tile could not be copied ahead."""
    return replace(func, body=Block(func.body.args, tuple(sweep(func.body.ops, set(), lambda op: None))))


class BufferSharing:
    """Finds buffers to share. `instead` maps an unneeded buffer to the buffer that replaces it, with whether its tile is the transpose."""

    def __init__(self, func: Func, notes: Notes):
        self.func, self.notes = func, notes
        self.defs, self.users = definitions(func), uses(func)
        self.instead: dict[Value, tuple[Value, bool]] = {}

    def run(self) -> Func:
        for block in (self.func.body, *(block for op in self.func.ops() for block in op.blocks)):
            self.find(block)
        return without_dead(rebuild(self.func, self.visit)) if self.instead else self.func

    def find(self, block: Block) -> None:
        first: dict[Value, list[tuple[Op, bool]]] = {}
        for op in block.ops:
            if op.name != "local_store" or op.attrs.get("tf32") or not self.only_products(op.args[0]):
                continue
            tile, transposed = self.origin(op.args[1])
            for other, other_transposed in first.setdefault(tile, []):
                if all(
                    self.can_read(dot, op.args[0], other.args[0], transposed != other_transposed)
                    for dot in self.readers(op.args[0])
                ):
                    self.instead[op.args[0]] = other.args[0], transposed != other_transposed
                    break
            else:
                first[tile].append((op, transposed))

    def origin(self, value: Value) -> tuple[Value, bool]:
        """The tile before a transpose, and True; for any other value the value itself, and False."""
        transposed = False
        while (op := self.defs.get(value)) is not None and op.name == "trans" and len(op.attrs["perm"]) == 2:
            value, transposed = op.args[0], transposed != (tuple(op.attrs["perm"]) == (1, 0))
        return value, transposed

    def readers(self, buffer: Value) -> list[Op]:
        return [op for op, _ in self.users[buffer] if op.name != "local_store"]

    def only_products(self, buffer: Value) -> bool:
        """Whether a buffer is written once and only wgmma reads it."""
        stores = len(self.users[buffer]) - len(self.readers(buffer))
        return stores == 1 and all(wgmma.is_name(op.attrs.get("instr", "")) for op in self.readers(buffer))

    def can_read(self, dot: Op, own: Value, other: Value, transposed: bool) -> bool:
        """Whether a matrix descriptor can name the product's operand in the other buffer."""
        side, kind = dot.args.index(own), other.type
        storage_side = 1 - side if transposed else side
        part = wgmma.part(kind.shape[storage_side], side, dot.attrs["warps"])
        return wgmma.describe(kind.layout, kind.dtype.bits, storage_side, part) is not None

    def visit(self, op: Op, rebuild: Rebuild) -> object:
        if op.name == "alloc" and op.result in self.instead:
            return op.results  # its results are unused
        if op.name == "local_store" and op.args[0] in self.instead:
            self.notes(
                op,
                f"{op.args[0].name or 'a tile'}: not stored again, because products read the buffer of its transpose or copy",
            )
            return ()
        if op.name != "dot" or not any(value in self.instead for value in op.args[:2]):
            return NotImplemented
        found = [self.instead.get(value, (value, False)) for value in op.args]
        transposed = tuple(side for side, (_, flipped) in enumerate(found) if flipped)
        attrs = {**op.attrs, "transposed": transposed} if transposed else op.attrs
        rebuild.builder.append(op.replace(args=tuple(value for value, _ in found), attrs=attrs))
        return op.results
