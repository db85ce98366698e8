"""Pairs the ops of two compilations: two versions of a kernel, two targets, or two settings of a knob.

Their op ids are unrelated. So the ops of the front end are paired by their place in the source. That is the same columns of a line that
both sources have, or the order of the ops in lines that changed. `Op.was` connects an op of a later stage with the ops of the front end
from which it comes. Such an op is paired with an op of the same name in blocks of the same kind that comes from their counterparts.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from blocknb.errors import Loc
from blocknb.ir.core import Op
from blocknb.ir_diff.indexed import IndexedFunc, source_line
from blocknb.ir_diff.matching import Matching, classified
from blocknb.ir_diff.sequences import equal_runs
from blocknb.language.ops import OPS
from blocknb.trace import Trace

#: Kinds of ops that are worth a pair although their names differ, such as a copy by the threads and one by the copy engine.
_NOTABLE = ("memory", "dot", "reduce", "move")


def match_traces(a: Trace, b: Trace, stage_a: int = -1, stage_b: int = -1) -> Matching:
    """Pairs the ops of two compilations after a stage each, by number (the last one by default)."""
    one, two = IndexedFunc(a.stages[stage_a].after), IndexedFunc(b.stages[stage_b].after)
    front = match_front_ends(a, b)
    roots_a = {id: frozenset(front.get(root, ("left", root)) for root in roots) for id, roots in origins(a).items()}
    roots_b: dict[int, frozenset[Any]] = {id: frozenset(roots) for id, roots in origins(b).items()}
    counterpart, successors = _paired(one, two, front, roots_a, roots_b)
    return classified(one, two, counterpart, successors)


def origins(trace: Trace) -> dict[int, tuple[int, ...]]:
    """The ops of the front end from which each op of any stage was made, by id; those of the front end come from themselves."""
    found: dict[int, tuple[int, ...]] = {op.id: (op.id,) for op in trace.stages[0].after.ops()}
    for stage in trace.stages[1:]:
        for op in stage.after.ops():
            if op.id not in found:
                roots = [root for was in op.was for root in found.get(was, ())]
                found[op.id] = tuple(dict.fromkeys(roots))
    return found


def match_front_ends(a: Trace, b: Trace) -> dict[int, int]:
    """The ops of one front end's IR with their counterparts in another one's, by id."""
    one, two = IndexedFunc(a.stages[0].after), IndexedFunc(b.stages[0].after)
    kernel_a, kernel_b = one.func.loc, two.func.loc
    lines, hunks = line_map(a, b)
    left, right = _grouped(one, kernel_a, lines), _grouped(two, kernel_b)
    found: dict[int, int] = {}
    for key, ops in left.items():
        others = right.get(key, [])
        pairs = zip(ops, others, strict=True) if len(ops) == len(others) else _aligned(ops, others)
        found |= {x.id: y.id for x, y in pairs}
    taken = set(found.values())
    for of_a, of_b in hunks:
        ops = [op for id, op in _ops(one) if id not in found and source_line(op.loc, kernel_a) in of_a]
        others = [op for id, op in _ops(two) if id not in taken and source_line(op.loc, kernel_b) in of_b]
        found |= {x.id: y.id for x, y in _aligned(ops, others)}
    return found


def _ops(func: IndexedFunc) -> list[tuple[int, Op]]:
    return [(id, position.op) for id, position in func.ops.items()]


def line_map(a: Trace, b: Trace) -> tuple[dict[int, int], list[tuple[range, range]]]:
    """Maps each line of the one source to the same line of the other; and the ranges of lines that changed."""
    one, two = (trace.source.rstrip("\n").split("\n") for trace in (a, b))
    lines: dict[int, int] = {}
    hunks = []
    for tag, i0, i1, j0, j1 in difflib.SequenceMatcher(None, one, two, autojunk=False).get_opcodes():
        of_a, of_b = range(a.first_line + i0, a.first_line + i1), range(b.first_line + j0, b.first_line + j1)
        if tag == "equal":
            lines |= dict(zip(of_a, of_b, strict=True))
        elif tag == "replace":
            hunks.append((of_a, of_b))
    return lines, hunks


def _place(loc: Loc | None, kernel: Loc | None, lines: Mapping[int, int] | None = None) -> Hashable:
    """The place of an op in terms of the right source: the columns and the chain of calls; None if the right source lacks its line."""
    chain: list[tuple[Any, ...]] = []
    while loc is not None:
        own = kernel is not None and loc.file == kernel.file
        line: int | None = loc.line
        if own and lines is not None:
            line = lines.get(loc.line)
            if line is None:
                return None
        chain.append(("" if own else loc.function, line, loc.column, loc.end_column))  # two kernels have two names
        loc = loc.caller
    return tuple(chain) or None


def _grouped(func: IndexedFunc, kernel: Loc | None, lines: Mapping[int, int] | None = None) -> dict[Hashable, list[Op]]:
    groups: dict[Hashable, list[Op]] = defaultdict(list)
    for _, op in _ops(func):
        if (place := _place(op.loc, kernel, lines)) is not None:
            groups[op.name, place].append(op)
    return groups


def _aligned(left: Sequence[Op], right: Sequence[Op]) -> Iterable[tuple[Op, Op]]:
    """Pairs ops in order: a longest common subsequence of their names and attributes, then one of their names in the gaps."""
    i = j = 0
    for at_a, at_b, size in equal_runs([*map(_spelt, left)], [*map(_spelt, right)]):
        for x, y, n in equal_runs([op.name for op in left[i:at_a]], [op.name for op in right[j:at_b]]):
            yield from zip(left[i + x : i + x + n], right[j + y : j + y + n], strict=True)
        yield from zip(left[at_a : at_a + size], right[at_b : at_b + size], strict=True)
        i, j = at_a + size, at_b + size


def _spelt(op: Op) -> tuple[Any, ...]:
    return (op.name, *(f"{name}={value!r}" for name, value in sorted(op.attrs.items())))


def _paired(
    one: IndexedFunc,
    two: IndexedFunc,
    front: Mapping[int, int],
    roots_a: Mapping[int, frozenset[Any]],
    roots_b: Mapping[int, frozenset[Any]],
) -> tuple[dict[int, int], dict[int, list[int]]]:
    """The counterparts of ops at any stage, and for each left op the right ops that correspond to it besides."""
    counterpart = {id: front[id] for id in one.ops if front.get(id) in two.ops}
    taken = set(counterpart.values())
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for id, position in two.ops.items():
        if id not in taken:
            groups[position.op.name, roots_b.get(id, frozenset()), _path(two, id)].append(id)
    for id, position in one.ops.items():
        if id not in counterpart and (
            same := groups.get((position.op.name, roots_a.get(id, frozenset()), _path(one, id)))
        ):
            counterpart[id] = same.pop(0)
    return counterpart, _corresponding(one, two, counterpart, roots_a, roots_b)


def _path(func: IndexedFunc, id: int) -> tuple[Any, ...]:
    """The kinds of blocks around an op: names of ops, with the number of the block."""
    return (*(func.ops[up].op.name for up in func.ancestors(id)), func.role_of(id))


def _corresponding(
    one: IndexedFunc,
    two: IndexedFunc,
    counterpart: Mapping[int, int],
    roots_a: Mapping[int, frozenset[Any]],
    roots_b: Mapping[int, frozenset[Any]],
) -> dict[int, list[int]]:
    """Right ops without a counterpart that come from the same ops of the source as a left op: more copies, or other instructions."""
    taken = set(counterpart.values())
    free: dict[Any, list[int]] = defaultdict(list)
    for id in two.ops:
        if id not in taken:
            for root in roots_b.get(id, ()):
                free[root].append(id)
    found: dict[int, list[int]] = {}
    used: set[int] = set()
    for id, position in one.ops.items():
        name = position.op.name
        for root in roots_a.get(id, ()):
            for other in free.get(root, ()):
                same = two.ops[other].op.name == name and roots_b[other] == roots_a[id]
                notable = id not in counterpart and _is_notable(name) and _is_notable(two.ops[other].op.name)
                if other not in used and (same or notable):
                    found.setdefault(id, []).append(other)
                    used.add(other) if same else None
    return {id: list(dict.fromkeys(others)) for id, others in found.items()}


def _is_notable(name: str) -> bool:
    spec = OPS[name]
    return spec.kind in _NOTABLE or spec.has("async_copy") or spec.has("box_copy")
