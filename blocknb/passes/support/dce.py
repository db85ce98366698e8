"""Dead code elimination: removes ops whose results are unused and that have no side effects.

One walk backwards keeps the set of needed values. A loop-carried value is needed if its result is, or if the needed part of the body uses
it. The body is walked again until the set is stable. Then unneeded carried values, results of `if` and yields are dropped. Source: Aho et
al., "Compilers", section 9.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from blocknb.analysis.effects import has_side_effects
from blocknb.ir.core import Block, Op, Value
from blocknb.language.ops import TERMINATORS


def sweep(ops: Sequence[Op], needed: set[Value], removed: Callable[[Op], None]) -> list[Op]:
    """The needed ops, in order. Extends `needed` by their operands, and calls `removed` with each op that goes."""
    kept: list[Op] = []
    for op in reversed(ops):
        if op.name not in TERMINATORS and not any(r in needed for r in op.results) and not has_side_effects(op):
            removed(op)
            continue
        match op.name:
            case "for":
                op = _for(op, needed, removed)
            case "if":
                op = _if(op, needed, removed)
            case "while" | "reduce" | "scan":
                op = _whole(op, needed, removed)
            case "roles":
                swept = [sweep(block.ops, needed, removed) for block in op.blocks]
                op = op.replace(
                    blocks=tuple(Block(old.args, tuple(ops)) for old, ops in zip(op.blocks, swept, strict=True))
                )
        needed.update(op.args)
        kept.append(op)
    return kept[::-1]


def _quiet(op: Op) -> None:
    """Ignores removed ops while a loop's needed values are not yet final."""


def _yielding(block: Block, keep: Sequence[int]) -> list[Op]:
    last = block.terminator
    args = tuple(last.args[i] for i in keep)
    return [*block.ops[:-1], last if len(args) == len(last.args) else last.replace(args=args)]


def _for(op: Op, needed: set[Value], removed: Callable[[Op], None]) -> Op:
    body = op.blocks[0]
    carried = range(len(op.results))
    keep = [i for i in carried if op.results[i] in needed]
    while True:
        inside = set(needed)
        sweep(_yielding(body, keep), inside, _quiet)
        grown = [i for i in carried if i in keep or body.args[1 + i] in inside]
        if grown == keep:
            break
        keep = grown
    ops = sweep(_yielding(body, keep), needed, removed)
    if len(keep) == len(op.results) and _unchanged(ops, body):
        return op
    block = Block((body.args[0], *(body.args[1 + i] for i in keep)), tuple(ops))
    args = (*op.args[:3], *(op.args[3 + i] for i in keep))
    return op.replace(args=args, results=tuple(op.results[i] for i in keep), blocks=(block,))


def _if(op: Op, needed: set[Value], removed: Callable[[Op], None]) -> Op:
    keep = [i for i, r in enumerate(op.results) if r in needed]
    blocks = []
    for block in op.blocks:
        ops = sweep(_yielding(block, keep), needed, removed)
        blocks.append(block if _unchanged(ops, block) else Block(block.args, tuple(ops)))
    if len(keep) == len(op.results):
        return op if all(a is b for a, b in zip(blocks, op.blocks, strict=True)) else op.replace(blocks=tuple(blocks))
    results = tuple(op.results[i] for i in keep)
    attrs = MappingProxyType({**op.attrs, "types": tuple(r.type for r in results)})
    return op.replace(results=results, attrs=attrs, blocks=tuple(blocks))


def _whole(op: Op, needed: set[Value], removed: Callable[[Op], None]) -> Op:
    """Keeps all results of an op and sweeps its blocks."""
    blocks = []
    for block in op.blocks:
        ops = sweep(block.ops, needed, removed)
        blocks.append(block if _unchanged(ops, block) else Block(block.args, tuple(ops)))
    return op if all(a is b for a, b in zip(blocks, op.blocks, strict=True)) else op.replace(blocks=tuple(blocks))


def _unchanged(ops: Sequence[Op], block: Block) -> bool:
    return len(ops) == len(block.ops) and all(a is b for a, b in zip(ops, block.ops, strict=True))
