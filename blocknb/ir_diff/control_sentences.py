"""Sentences on control flow: attributes of the function, warp roles, unrolled and changed loops, ops that moved between blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from blocknb.ir.core import Op
from blocknb.ir_diff.matching import OpMatch
from blocknb.ir_diff.sentence_writer import (
    LAYOUT,
    PLACE,
    STRUCTURE,
    ChangeSentence,
    SentenceWriter,
    counted,
    is_structural,
    joined,
    plural,
)
from blocknb.language.ops import LOOPS

_ATTRIBUTES = {
    "num_warps": ("{} warps per CTA", STRUCTURE),
    "num_stages": ("{} stages", STRUCTURE),
    "num_ctas": ("{} CTAs per cluster", STRUCTURE),
    "shared_bytes": ("{} bytes of shared memory", STRUCTURE - 20),
    "programs": ("{} programs per CTA", STRUCTURE),
    "min_ctas": ("registers for {} CTAs per SM", STRUCTURE),
}
_LEVELS = {
    "tile": "tiles have no layouts",
    "distributed": "every tile has a layout",
    "memory": "shared memory is explicit",
}
#: Attributes of a function that repeat what its ops say, or options of the compilation.
_SILENT = frozenset({"without", "fast_math", "persist"})


def function_attributes(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """The level and the attributes of the function itself."""
    a, b = writer.matching.before.func, writer.matching.after.func
    if a.level != b.level:
        yield ChangeSentence(f"the IR is at the level “{b.level}”: {_LEVELS[b.level]}", LAYOUT + 5)
    names = [*{**a.attrs, **b.attrs}]
    for name in names:
        old, new = a.attrs.get(name), b.attrs.get(name)
        if old == new or name in _SILENT:
            continue
        form, weight = _ATTRIBUTES.get(name, ("`" + name + "` = {}", PLACE))
        text = "the kernel has " + (form.format(new) if new is not None else f"no `{name}`")
        yield ChangeSentence(text + (f" instead of {old}" if old is not None else ""), weight)


def warp_roles(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """A function that was cut into producer and consumer warps."""
    after = writer.matching.after
    for match in writer.undescribed("added"):
        op = writer.op(match)
        if op.name != "roles":
            continue
        writer.mark([match])
        consumers, producers = op.attrs["warps"]
        groups = op.attrs.get("consumer_groups") or 1
        cut = f"{plural(consumers, 'consumer warp')}" + (f" in {groups} groups" if groups > 1 else "")
        both = [m for m in writer.matching.of_kind("duplicated") if {"consumer", "producer"} <= _roles(writer, m)]
        writer.mark(both)
        text = f"the warps have roles: {cut} compute, {plural(producers, 'producer warp')} copies"
        text += f"; both roles run {plural(len(both), 'op')}" if both else ""
        yield ChangeSentence(text, STRUCTURE + 5, (), (op.id, *(id for match in both for id in match.after)))
        moved = [
            m for m in writer.undescribed("moved") if "block" in m.what and after.role_of(m.after[0]) == "consumer"
        ]
        if moved:
            yield writer.sentence(f"{plural(len(moved), 'op')} moved into the consumer warps", PLACE, moved)


def _roles(writer: SentenceWriter, match: OpMatch) -> set[str]:
    return {writer.matching.after.role_of(id) for id in match.after}


def unrolled_loops(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Loops that are gone, or that do the work of several iterations in one, and whose ops have copies."""
    before = writer.matching.before
    for loop in [id for id, position in before.ops.items() if position.op.name in LOOPS]:
        inside = [m for m in writer.undescribed("duplicated") if before.loop_of(m.before[0]) == loop]
        gone = loop not in writer.matching.counterpart
        if inside and (gone or _repeats(writer, inside)):
            yield _unrolled(writer, loop, gone, inside)


def _unrolled(writer: SentenceWriter, loop: int, gone: bool, inside: list[OpMatch]) -> ChangeSentence:
    """The sentence on an unrolled loop, whose ops have the copies `inside`."""
    before = writer.matching.before
    times = max(len(match.after) for match in inside)
    moved = [m for m in writer.undescribed("moved", "removed", "merged") if before.loop_of(m.before[0]) == loop]
    writer.mark([*inside, *(moved if gone else ()), *(m for m in writer.matching.matches if loop in m.before)])
    line = before.line(loop)
    what = f"was unrolled {times} times" if gone else f"runs {times} iterations at once"
    text = f"the loop {f'at line {line} ' if line else ''}{what}: {plural(len(inside), 'op')} have {times} copies each"
    ids = tuple(id for match in inside for id in match.after)
    old = (loop, *(match.before[0] for match in inside))
    return ChangeSentence(text, STRUCTURE, old, ids, (line,) if line else ())


def _repeats(writer: SentenceWriter, inside: list[OpMatch]) -> bool:
    """Whether copies of accesses or products, not only of addresses, stand in one loop."""
    after = writer.matching.after
    effects = [match for match in inside if writer.op(match).name in ("load", "store", "dot")]
    return any(len({after.loop_of(id) for id in match.after}) == 1 for match in effects)


def loops(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Loops that carry other values, or that are new, gone or copied."""
    for match in writer.undescribed("changed", "moved", "kept"):
        old, new = writer.matching.op_before(match.before[0]), writer.op(match)
        if new.name not in LOOPS:
            continue
        if bounds := _bounds(writer, old, new):
            yield writer.sentence(f"the loop runs {bounds}", STRUCTURE - 2, [match])
        more = len(new.results) - len(old.results)
        if more > 0:
            names = [value.name for value in new.blocks[0].args[-more:] if value.name]
            named = f": {joined([f'`{name}`' for name in dict.fromkeys(names)])}" if names else ""
            yield writer.sentence(f"the loop carries {plural(more, 'more value')}{named}", PLACE + 5, [match])
        elif more < 0:
            yield writer.sentence(f"the loop carries {plural(-more, 'value')} less", PLACE + 5, [match])
        elif match.what == ("operands",) and not writer.compared:
            writer.mark([match])  # the op that made its initial value has a sentence of its own
    for kind, verb in (("added", "a new loop surrounds"), ("removed", "is gone")):
        for match in writer.undescribed(kind):
            op = writer.op(match)
            if op.name not in LOOPS:
                continue
            inside = sum(1 for block in op.blocks for _ in block.ops)
            text = f"{verb} {plural(inside, 'op')}" if kind == "added" else f"the loop {verb}"
            yield writer.sentence(text, STRUCTURE - 5, [match])


def _bounds(writer: SentenceWriter, old: Op, new: Op) -> str:
    """How the constants of a range differ: "with the step 2 instead of 1"."""
    found = []
    for place, word in enumerate(("from", "to", "with the step")):
        if old.name != "for" or new.name != "for":
            continue
        sides = ((writer.matching.before, old), (writer.matching.after, new))
        was, now = (side.definer(op.args[place]) for side, op in sides)
        if was is not None and now is not None and was.name == now.name == "const":
            values = was.attrs["value"], now.attrs["value"]
            if values[0] != values[1]:
                found.append(f"{word} {values[1]} instead of {values[0]}")
                writer.mark(match for match in writer.undescribed("changed") if now.id in match.after)
    return ", ".join(found)


def moved_between_blocks(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Ops that are in another block: out of a loop, or into a branch."""
    before, after = writer.matching.before, writer.matching.after
    groups: dict[tuple[str, int], list[OpMatch]] = defaultdict(list)
    for match in writer.undescribed("moved", "changed"):
        old, new = match.before[0], match.after[0]
        if "block" not in match.what or set(match.what) - {"block", "operands", "order"}:
            continue
        loop = before.loop_of(old)
        inner = after.loop_of(new)
        if loop >= 0 and writer.matching.counterpart.get(loop) != inner:
            groups["out of the loop", before.line(loop) or 0].append(match)
        elif inner >= 0 and loop < 0:
            groups["into the loop", after.line(inner) or 0].append(match)
        else:
            groups["to another block", 0].append(match)
    for (where, line), matches in groups.items():
        names = [writer.op(match).name for match in matches if not is_structural(writer.op(match).name)]
        at = f" at line {line}" if line else ""
        writer.mark(matches)
        if names:
            text = f"{plural(len(names), 'op')} moved {where}{at}: {counted(names)}"
            yield writer.sentence(text, PLACE + 15, matches, lines=False)


def reordered(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Ops that moved past their neighbours."""
    matches = [m for m in writer.undescribed("moved") if not is_structural(writer.op(m).name)]
    if matches:
        names = counted(writer.op(match).name for match in matches)
        yield writer.sentence(f"{plural(len(matches), 'op')} moved past other ops: {names}", 5, matches)
