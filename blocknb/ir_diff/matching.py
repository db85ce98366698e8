"""Pairs the ops of two stages of one compilation.

An op keeps its id through a rebuild, and a new op names in `was` the ops that it replaces or copies. So ids and provenance decide, and
texts are not compared. A removed op without a successor is merged if an op that stays computes the same value (value numbering, Alpern,
Wegman and Zadeck, 1988).

Each match has a kind:

- kept, moved, changed: the op is on both sides; it moved to another block or past its neighbours; its attributes, types or operands differ
- duplicated: 1 op became n of the same name
- replaced: ops became ops of other names (1:n, n:1)
- merged: a removed op whose value another op computes
- added, removed: the op is on one side only
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from blocknb.ir.core import Func, Op, Value
from blocknb.ir_diff.indexed import IndexedFunc, OpPosition
from blocknb.ir_diff.sequences import increasing
from blocknb.language.ops import OPS
from blocknb.language.types import Buffer, Tile

KINDS = ("kept", "moved", "changed", "replaced", "duplicated", "merged", "added", "removed")


@dataclass(frozen=True)
class OpMatch:
    """Ops that correspond to each other, by id. `what` tells what differs: "attributes", "layout", "type", "operands", "block", "order".

    `attributes` maps the name of a changed attribute to its old and its new value (None: absent).
    """

    kind: str
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    what: tuple[str, ...] = ()
    attributes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Matching:
    """All ops of two functions in matches. `counterpart` maps an op of `before` to the one op of `after` that continues it."""

    before: IndexedFunc
    after: IndexedFunc
    matches: tuple[OpMatch, ...]
    counterpart: Mapping[int, int]

    def of_kind(self, *kinds: str) -> list[OpMatch]:
        """The matches of some kinds, in the order of `matches`."""
        return [match for match in self.matches if match.kind in kinds]

    def op_before(self, id: int) -> Op:
        """An op of the left side."""
        return self.before.ops[id].op

    def op_after(self, id: int) -> Op:
        """An op of the right side."""
        return self.after.ops[id].op


def match_stages(before: Func, after: Func) -> Matching:
    """Pairs the ops of two stages of one compilation, the earlier one first."""
    one, two = IndexedFunc(before), IndexedFunc(after)
    successors = _successors(one, two)
    counterpart = {id: id for id in one.ops if id in two.ops}
    for id in one.ops:
        if (
            id not in counterpart
            and (successor := _main_successor(id, successors.get(id, ()), one, two, counterpart)) is not None
        ):
            counterpart[id] = successor
    return classified(one, two, counterpart, successors)


def classified(
    one: IndexedFunc, two: IndexedFunc, counterpart: Mapping[int, int], successors: Mapping[int, Sequence[int]]
) -> Matching:
    """The matching of two functions for known counterparts, and the new ops that were made from each old op."""
    taken = set(counterpart.values())
    matches: list[OpMatch] = []
    explained: set[int] = set(taken)
    stayed = _in_order(one, two, counterpart)
    gone = [id for id in one.ops if id not in counterpart]
    merged = _merged(one, [id for id in gone if id not in successors], counterpart)
    definitions = _definitions(one, two, counterpart, successors, merged)
    for id, successor in counterpart.items():
        matches.append(_pair(one.ops[id], two.ops[successor], counterpart, id in stayed, definitions))
    for id, made in successors.items():
        name = one.ops[id].op.name
        copies = tuple(new for new in made if new not in explained and two.ops[new].op.name == name)
        if copies:
            matches.append(OpMatch("duplicated", (id,), ((counterpart[id],) if id in counterpart else ()) + copies))
            explained |= set(copies)
    matches += _replacements(gone, successors, explained)
    replaced = {id for match in matches for id in match.before}
    for id in gone:
        if id in merged:
            matches.append(OpMatch("merged", (id,), (counterpart[merged[id]],)))
        elif id not in replaced:
            matches.append(OpMatch("removed", (id,)))
    matches += [OpMatch("added", (), (id,)) for id in two.ops if id not in explained]
    return Matching(one, two, tuple(matches), counterpart)


def _successors(one: IndexedFunc, two: IndexedFunc) -> dict[int, list[int]]:
    """The new ops, by the old op that each was made from. An old op of the same name is preferred."""
    found: dict[int, list[int]] = defaultdict(list)
    for id, position in two.ops.items():
        if id in one.ops:
            continue
        sources = [was for was in position.op.was if was in one.ops]
        same = [was for was in sources if one.ops[was].op.name == position.op.name]
        for was in same[:1] or sources:
            found[was].append(id)
    _made_again(one, two, found)
    return found


def _made_again(one: IndexedFunc, two: IndexedFunc, found: dict[int, list[int]]) -> None:
    """Adds removed ops that have no successor, with new ops of the same name and place in the source that name no old op.

    Such a new op was made from one that did not outlive the pass, so that `was` leads nowhere."""
    orphans: dict[Any, list[int]] = defaultdict(list)
    known = {id for made in found.values() for id in made}
    for id, position in two.ops.items():
        if id not in one.ops and id not in known and position.op.was:
            orphans[position.op.name, position.op.loc].append(id)
    lost = [id for id in one.ops if id not in two.ops and id not in found]
    places = Counter((one.ops[id].op.name, one.ops[id].op.loc) for id in lost)
    for id in lost:
        key = one.ops[id].op.name, one.ops[id].op.loc
        if places[key] == 1 and key in orphans:
            found[id] = orphans[key]


def _main_successor(
    id: int, made: Iterable[int], one: IndexedFunc, two: IndexedFunc, counterpart: Mapping[int, int]
) -> int | None:
    """The new op that continues a removed one: of the same name, preferably in the block that corresponds to its own."""
    old = one.ops[id]
    same = [new for new in made if two.ops[new].op.name == old.op.name]
    if not same:
        return None
    parent = counterpart.get(old.parent, -1)
    inside = [new for new in same if two.ops[new].parent == parent]
    return (inside or same)[0]


def _in_order(one: IndexedFunc, two: IndexedFunc, counterpart: Mapping[int, int]) -> set[int]:
    """The old ops that are in the longest run of ops that kept their order."""
    pairs = sorted((two.ops[new].order, one.ops[old].order, old) for old, new in counterpart.items())
    return {pairs[i][2] for i in increasing([old for _, old, _ in pairs])}


def _definitions(
    one: IndexedFunc,
    two: IndexedFunc,
    counterpart: Mapping[int, int],
    successors: Mapping[int, Sequence[int]],
    merged: Mapping[int, int],
) -> tuple[dict[Value, tuple[Any, ...]], dict[Value, tuple[Any, ...]]]:
    """A name for the definition of each value of each side, in terms of `one` where its op comes from there. Merged ops have one name."""
    origin = {new: old for old, made in successors.items() for new in made}
    origin |= {new: old for old, new in counterpart.items()}
    old_names = {value: (kind, merged.get(id, id), place) for value, (kind, id, place) in one.definitions.items()}
    names: dict[Value, tuple[Any, ...]] = {}
    for value, (kind, id, place) in two.definitions.items():
        old = origin.get(id, id)
        known = id in origin and one.ops[old].op.name == two.ops[id].op.name
        names[value] = (kind, old, place) if known or kind == "param" else ("new", id, place)
    return old_names, names


def _pair(
    a: OpPosition,
    b: OpPosition,
    counterpart: Mapping[int, int],
    in_order: bool,
    definitions: tuple[Mapping[Value, tuple[Any, ...]], Mapping[Value, tuple[Any, ...]]],
) -> OpMatch:
    """The match of an op with the op that continues it."""
    what = []
    attributes = {}
    if a.op is not b.op:
        names = {**a.op.attrs, **b.op.attrs}
        pairs = {name: (a.op.attrs.get(name), b.op.attrs.get(name)) for name in names}
        attributes = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        what += ["attributes"] if attributes else []
        what += sorted({_type_change(x.type, y.type) for x, y in zip(a.op.results, b.op.results, strict=False)} - {""})
        if [definitions[0][v] for v in a.op.args] != [definitions[1][v] for v in b.op.args]:
            what.append("operands")
    moves = []
    if (counterpart.get(a.parent, a.parent), a.block) != (b.parent, b.block):
        moves.append("block")
    elif not in_order:
        moves.append("order")
    kind = "changed" if what else "moved" if moves else "kept"
    return OpMatch(kind, (a.op.id,), (b.op.id,), (*what, *moves), attributes)


def _type_change(a: Any, b: Any) -> str:
    """ "layout" if two types differ only in their layouts, "type" if in more, "" if they are equal."""
    if a == b:
        return ""
    both = type(a) is type(b) and isinstance(a, Tile | Buffer)
    if both and replace(a, layout=None) == replace(b, layout=None):
        return "layout"
    return "type"


def _replacements(gone: Sequence[int], successors: Mapping[int, Sequence[int]], explained: set[int]) -> list[OpMatch]:
    """Removed ops with the ops of other names that were made from them. Adds the new ops to `explained`."""
    by_target: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for id in gone:
        made = tuple(new for new in successors.get(id, ()) if new not in explained)
        if made:
            by_target[made].append(id)
    found = []
    for made, ids in by_target.items():
        fresh = tuple(new for new in made if new not in explained)
        found.append(OpMatch("replaced", tuple(ids), fresh or made))
        explained |= set(made)
    return found


def _merged(one: IndexedFunc, gone: Sequence[int], counterpart: Mapping[int, int]) -> dict[int, int]:
    """The removed ops whose value an op that stays computes, with that op."""
    numbers = value_numbers(one)
    stays = {numbers[id]: id for id in reversed(one.ops) if id in counterpart and id in numbers}
    return {id: stays[numbers[id]] for id in gone if numbers.get(id) in stays}


def value_numbers(func: IndexedFunc) -> dict[int, int]:
    """A number for each pure op with results; equal numbers mean equal values."""
    table: dict[Any, int] = {}
    values: dict[Value, Any] = {}
    found: dict[int, int] = {}
    for id, position in func.ops.items():
        op = position.op
        if not op.results or not OPS[op.name].pure:
            continue
        attributes = tuple((name, repr(value)) for name, value in sorted(op.attrs.items()))
        types = tuple(value.type for value in op.results)
        key = (op.name, attributes, types, tuple(values.get(v, v) for v in op.args))
        found[id] = number = table.setdefault(key, len(table))
        values |= {value: (number, i) for i, value in enumerate(op.results)}
    return found
