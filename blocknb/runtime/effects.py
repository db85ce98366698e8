"""Which arrays a kernel reads and which it writes, by parameter name.

A read-only array may be passed only where nothing is stored through it, and the figures of a launch count what is read and
written. Pointers are followed from the parameters through arithmetic, control flow and loops; where a loop carries one, the
walk is repeated until nothing new is found, which the few parameters of a kernel make quick.
"""

from __future__ import annotations

from blocknb.ir.core import Block, Func, Op, Value
from blocknb.language.ops import OPS
from blocknb.language.types import Tile


def memory_use(func: Func) -> tuple[frozenset[str], frozenset[str]]:
    """(names of the arrays that are stored through, names of those that are loaded from)."""
    names = {value: hint.name for value, hint in zip(func.params, func.hints, strict=True)}
    roots: dict[Value, frozenset[str]] = {v: frozenset([n]) for v, n in names.items() if _is_pointer(v)}
    while _grow(func.body, roots):
        pass
    stored: set[str] = set()
    loaded: set[str] = set()
    for op in func.ops():
        spec, unknown = OPS[op.name], op.name == "asm"  # who gives assembly a pointer lets it do as it likes
        for value in op.args:
            if value in roots:
                stored |= roots[value] if unknown or spec.writes == "global" else frozenset()
                loaded |= roots[value] if unknown or spec.reads == "global" else frozenset()
    return frozenset(stored), frozenset(loaded)


def _is_pointer(value: Value) -> bool:
    return isinstance(value.type, Tile) and value.type.is_pointer


def _grow(block: Block, roots: dict[Value, frozenset[str]]) -> bool:
    """Passes roots on, once through the block; True if anything was learnt."""
    learnt = False
    for op in block.ops:
        for inner in op.blocks:
            learnt |= _grow(inner, roots)
        for target, sources in _flows(op):
            if _is_pointer(target):
                found = frozenset().union(roots.get(target, frozenset()), *(roots.get(s, frozenset()) for s in sources))
                learnt |= found != roots.get(target, frozenset())
                roots[target] = found
    return learnt


def _flows(op: Op) -> list[tuple[Value, list[Value]]]:
    """Where each pointer result or block argument of an op may get its value from."""
    match op.name:
        case "for":
            carried, given = op.blocks[0].args[1:], op.blocks[0].terminator.args
            return [(t, [i, g]) for t, i, g in zip(carried, op.args[3:], given, strict=True)] + [
                (r, [i, g]) for r, i, g in zip(op.results, op.args[3:], given, strict=True)
            ]
        case "while":
            test, body = op.blocks
            condition = test.terminator.args[1:]
            flows = [(t, [i, y]) for t, i, y in zip(test.args, op.args, body.terminator.args, strict=True)]
            return flows + [(t, [c]) for t, c in zip((*body.args, *op.results), (*condition, *condition), strict=True)]
        case "if":
            return [
                (r, list(pair)) for r, *pair in zip(op.results, *(b.terminator.args for b in op.blocks), strict=True)
            ]
    return [(r, list(op.args)) for r in op.results]
