"""The conditions that bound a product: which elements of its operands are zero, and which of its results are stored.

`product_bounds` computes the bounds from them at run time.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from blocknb.codegen.cpu.dataflow import VIEWS, Dataflow, Index, identity
from blocknb.ir.core import Block, Op, Value, within
from blocknb.language.ops import OPS

Term = tuple[Value, Index]  # a condition of a mask, and its index by the loops over the tile


@dataclass(frozen=True)
class ProductTerms:
    """The conditions that bound the rows, the columns and the depth of a product; for the depth, those of each operand.

    A tile ends at the least of its conditions. No condition means that it is whole, for the depth if one operand has none."""

    rows: tuple[Term, ...]
    columns: tuple[Term, ...]
    depth: tuple[tuple[Term, ...], ...]

    def all(self) -> tuple[Term, ...]:
        """All conditions."""
        return (*self.rows, *self.columns, *(term for one in self.depth for term in one))


def terms_of(program: Dataflow, op: Op, block: Block) -> ProductTerms:
    """The conditions for a product in a block."""
    a, b = (tuple(_operand_terms(program, value, axis)) for value, axis in ((op.args[0], 1), (op.args[1], 0)))
    stores = _stores(program, op.result, block)
    loops = identity(op.result.type.shape)
    rows, columns = (_common([_mask_terms(program, store.args[2], loop) for store in stores]) for loop in loops)
    if (
        _loop_of(program, block) is not None
    ):  # the sum of an iteration may be stored in another one, where a condition may differ
        local = {*block.args, *(x for op in block.ops for y in within(op) for x in _made_by(y))}
        rows, columns = (tuple(x for x in terms if _is_outside(program, x, local)) for terms in (rows, columns))
    return ProductTerms(rows, columns, (a, b) if a and b else ())


def _made_by(op: Op) -> list[Value]:
    """The results of an op, and the arguments of its blocks."""
    return [*op.results, *(x for block in op.blocks for x in block.args)]


def _is_outside(program: Dataflow, term: Term, local: Set[Value]) -> bool:
    """Whether no scalar of a condition is among those that a loop's body computes."""
    return all(leaf not in local for leaf, _ in program.leaves(*term))


def _loop_of(program: Dataflow, block: Block) -> Op | None:
    """The counted loop whose body a block is."""
    holder = program.argument[block.args[0]][0] if block.args and block.args[0] in program.argument else None
    return holder if holder is not None and holder.name == "for" else None


def _common(found: Sequence[Sequence[Term]]) -> tuple[Term, ...]:
    """The conditions that all masks have."""
    return tuple(term for term in found[0] if all(term in other for other in found[1:])) if found else ()


def _mask_terms(program: Dataflow, mask: Value, loop: int | None) -> list[Term]:
    """The conditions of a mask that depend on one loop only."""
    found, left = [], [(mask, identity(mask.type.shape))]
    while left:
        value, index = left.pop()
        op = program.definition.get(value)
        if op is None:
            continue
        if op.name == "and":
            left += [(a, index) for a in op.args]
        elif program.view_of(value) is not None:
            left.append((op.args[0], program.operand_index(value, index)))
        elif value.type.shape and program.recomputed(value) and {i for i in index if i is not None} == {loop}:
            found.append((value, index))
    return found


def _operand_terms(program: Dataflow, value: Value, axis: int) -> list[Term]:
    """The conditions beyond which an operand is zero along an axis. Their loops are those over the loaded tile."""
    loop: int | None = identity(value.type.shape)[axis]
    while (op := program.definition.get(value)) is not None and op.name != "load":
        if program.view_of(value) is not None:
            index = program.operand_index(value, identity(value.type.shape))
            if op.name not in ("trans", "reshape") or sorted(index, key=str) != [0, 1] or loop is None:
                return []
            value = op.args[0]
            loop = identity(value.type.shape)[index.index(loop)]
        elif op.name == "cast" and op.args[0].type.dtype.is_float and op.attrs["dtype"].is_float:
            value = op.args[0]
        else:
            return []
    if op is None or len(op.args) < 2 or loop is None or not _is_zero(program, op.args[2:]):
        return []
    return _mask_terms(program, op.args[1], loop)


def _is_zero(program: Dataflow, other: Sequence[Value]) -> bool:
    """Whether a masked load fills its tile with zeros."""
    value = other[0] if other else None
    while value is not None and (op := program.definition.get(value)) is not None:
        if op.name == "const":
            return op.attrs["value"] == 0
        if op.name not in ("splat", *VIEWS):
            return False
        value = op.args[0]
    return value is None


def _stores(program: Dataflow, value: Value, block: Block) -> list[Op]:
    """The masked stores that alone read a product, elementwise or as a sum that a loop carries; none if anything else reads it."""
    found: list[Op] = []
    seen, left = {value}, [value]
    while left:
        current = left.pop()
        for use in program.uses.get(current, ()):
            if use.at != identity(value.type.shape) or current.type.shape != value.type.shape:
                return []
            after = _carried(program, use.op, current, block)
            if use.op.name == "store" and use.operand == 1 and len(use.op.args) > 2:
                found.append(use.op)
            elif (use.op.name == "dot" and use.operand == 2) or OPS[use.op.name].kind == "elementwise":
                after = [use.op.result]
            elif not after:
                return []
            left += [v for v in after if v not in seen]
            seen.update(after)
    return found


def _carried(program: Dataflow, op: Op, value: Value, block: Block) -> list[Value]:
    """The values that a value becomes which a loop yields: the argument of its next iteration, and its result."""
    loop = _loop_of(program, block)
    if loop is None or op is not block.terminator:
        return []
    positions = [i for i, a in enumerate(op.args) if a is value]
    return [x for i in positions for x in (block.args[i + 1], loop.results[i])]
