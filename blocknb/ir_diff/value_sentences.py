"""Sentences on values: attributes, layouts, types, operands; ops that were replaced, copied, merged, added or removed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from blocknb.ir_diff.matching import OpMatch
from blocknb.ir_diff.sentence_writer import (
    ARITHMETIC,
    COMPUTE,
    LAYOUT,
    MEMORY,
    PLACE,
    ChangeSentence,
    SentenceWriter,
    counted,
    is_arithmetic,
    is_structural,
    joined,
    ops_text,
    plural,
)
from blocknb.language.ops import OPS, REDUCTIONS
from blocknb.language.types import Buffer, Tile

#: The meaning of an attribute, with its new value, the verb in front; ops that have none of these words name the attribute.
_ATTRIBUTES = {
    ("load", "vec"): "{access} {value} per instruction",
    ("store", "vec"): "{access} {value} per instruction",
    ("copy_async", "vec"): "{access} {value} per instruction",
    ("dot", "instr"): "{use} the instruction `{value}`",
    ("dot", "columns"): "{use} the first {value} columns of the result",
    ("dot", "in_flight"): "may stay in flight, {value} at a time",
    ("*", "emit"): "{be} emitted {value}",
}
_EMISSIONS = {
    "at_use": "where the result is used",
    "in_pieces": "in pieces",
    "rematerialized": "again where the result is used",
}
#: Attributes that another one or a layout explains.
_SILENT = frozenset(
    {"layout", "warps", "registers", "offset", "type", "align", "shape", "end", "permuted_rows", "types", "keep"}
)


def attributes(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Attributes that ops got, lost or changed."""
    groups: dict[tuple[str, str, str, str], list[OpMatch]] = defaultdict(list)
    for match in writer.undescribed("changed"):
        name = writer.op(match).name
        for attribute, (old, new) in match.attributes.items():
            if attribute not in _SILENT and not (old is None and new is None):
                anything = "*" if attribute == "emit" else name
                groups[anything, attribute, _value(old), _value(new)].append(match)
    described: list[OpMatch] = []
    for (name, attribute, old, new), matches in groups.items():
        weight = MEMORY + 2 if attribute == "vec" else COMPUTE + 10 if name == "dot" else COMPUTE - 5
        yield writer.sentence(_attribute_text(writer, name, attribute, old, new, matches), weight, matches)
        described += matches
    quiet = [m for m in writer.undescribed("changed") if m.attributes and set(m.what) == {"attributes"}]
    writer.mark([m for m in quiet if set(m.attributes) <= _SILENT - {"layout"}])


def _attribute_text(
    writer: SentenceWriter, name: str, attribute: str, old: str, new: str, matches: list[OpMatch]
) -> str:
    names = [writer.op(match).name for match in matches]
    subject = ops_text(len(matches), name) if name != "*" else f"{plural(len(matches), 'op')} ({counted(names)})"
    form = _ATTRIBUTES.get((name, attribute))
    code = f"`{old}`" if attribute == "instr" else old
    instead = f" instead of {code}" if old != "None" else ""
    one = len(matches) == 1
    if form is None or new == "None":
        had = f"`{attribute}` = {new}" if new != "None" else f"no `{attribute}`"
        return f"{subject} {'has' if one else 'have'} {had}{instead}"
    verbs = (
        {"access": "accesses", "use": "uses", "be": "is"} if one else {"access": "access", "use": "use", "be": "are"}
    )
    value = plural(int(new), "element") if attribute == "vec" else _EMISSIONS.get(new, new)
    return f"{subject} {form.format(value=value, **verbs)}{instead}"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def layouts(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Tiles with another layout, and ops that propose or use another one. Names (`#a`) are those of the two listings."""
    groups: dict[tuple[Any, Any], list[OpMatch]] = defaultdict(list)
    for match in writer.matching.of_kind("changed"):
        if (pair := _layout_change(writer, match)) is not None:
            groups[pair].append(match)
    fresh = {new: matches for (old, new), matches in groups.items() if old is None}
    if len(fresh) > 1:
        every = [match for matches in fresh.values() for match in matches]
        most = sorted(fresh.items(), key=lambda item: -len(item[1]))
        text = f"{plural(len(every), 'op')} got a layout, {len(fresh)} layouts in all: "
        text += ", ".join(f"`{_name(writer, 1, new)}` for {len(matches)}" for new, matches in most[:4])
        yield writer.sentence(text + (", …" if len(most) > 4 else ""), LAYOUT, every, lines=False)
    for (old, new), matches in groups.items():
        if old is not None:
            was, now = _name(writer, 0, old), _name(writer, 1, new)
            now = str(new) if was == now else now
            text = f"layout `{was}` became `{now}` on {plural(len(matches), 'op')}"
        elif len(fresh) == 1:
            text = f"{plural(len(matches), 'op')} got the layout `{_name(writer, 1, new)}`"
        else:
            continue
        yield writer.sentence(text, LAYOUT, matches, lines=False)


def _layout_change(writer: SentenceWriter, match: OpMatch) -> tuple[Any, Any] | None:
    """The layouts of an op before and after: of its results, or of its attribute `layout`. None if they are equal."""
    if "layout" in match.what:
        ops = writer.matching.op_before(match.before[0]), writer.op(match)
        sides = ([getattr(value.type, "layout", None) for value in op.results] for op in ops)
        return next((a, b) for a, b in zip(*sides, strict=False) if a != b)
    old, new = match.attributes.get("layout", (None, None))
    return None if new is None else (old, new)


def _name(writer: SentenceWriter, side: int, layout: Any) -> str:
    """The name of a layout in the listing of a side."""
    func = writer.matching.after if side else writer.matching.before
    return func.layout_names.get(str(layout), str(layout))


def replacements(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Ops that became ops of other names, grouped by both names."""
    groups: dict[tuple[str, tuple[str, ...]], list[OpMatch]] = defaultdict(list)
    for match in writer.undescribed("replaced"):
        old = tuple(writer.matching.op_before(id).name for id in match.before)
        new = tuple(writer.matching.op_after(id).name for id in match.after)
        groups[counted(old) if len(old) > 1 else old[0], new].append(match)
    for (old_name, new), matches in groups.items():
        arithmetic = is_arithmetic(old_name) if old_name in OPS else True
        weight = ARITHMETIC + 5 if arithmetic and all(map(is_arithmetic, new)) else COMPUTE + 5
        subject = ops_text(len(matches), old_name) if old_name in OPS else old_name
        each = " each" if len(matches) > 1 else ""
        yield writer.sentence(f"{subject} {writer.now} {counted(new)}{each}", weight, matches)


def copies(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Ops with several copies: for other layouts, or for other blocks; reductions that run in steps."""
    stepped = [
        m for m in writer.undescribed("duplicated") if writer.op(m).name in REDUCTIONS and _in_one_block(writer, m)
    ]
    if stepped:
        steps = max(len(match.after) for match in stepped)
        each = " each" if len(stepped) > 1 else ""
        text = f"{ops_text(len(stepped), writer.op(stepped[0]).name)} {writer.now} {steps} steps{each}"
        yield writer.sentence(f"{text}: within a warp, and across warps", MEMORY + 1, stepped)
    groups: dict[str, list[OpMatch]] = defaultdict(list)
    for match in writer.undescribed("duplicated"):
        groups[_reason(writer, match)].append(match)
    for reason, matches in groups.items():
        names = counted(writer.op(match).name for match in matches)
        more = sum(len(match.after) for match in matches)
        notable = any(not is_arithmetic(writer.op(match).name) for match in matches)
        text = f"{plural(len(matches), 'op')} {'has' if len(matches) == 1 else 'have'} "
        text += "more copies" if writer.compared else f"copies{reason}"
        yield writer.sentence(f"{text}, {more} in all: {names}", COMPUTE if notable else PLACE, matches)


def _reason(writer: SentenceWriter, match: OpMatch) -> str:
    """The purpose of the copies of an op, in words."""
    if not _in_one_block(writer, match):
        return " for other blocks"
    ops = [writer.matching.op_after(id) for id in match.after]
    kinds = {tuple(str(value.type) for value in op.results) for op in ops}
    return " for other layouts" if len(kinds) > 1 else ""


def _in_one_block(writer: SentenceWriter, match: OpMatch) -> bool:
    """Whether the copies of an op stand in one block."""
    return len({(p.parent, p.block) for id in match.after if (p := writer.matching.after.ops[id])}) == 1


def types(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Values of another element type or shape."""
    groups: dict[tuple[str, str], list[OpMatch]] = defaultdict(list)
    for match in writer.undescribed("changed"):
        if "type" not in match.what:
            continue
        old, new = writer.matching.op_before(match.before[0]), writer.op(match)
        pair = next((a.type, b.type) for a, b in zip(old.results, new.results, strict=False) if a.type != b.type)
        groups[_plain(pair[0]), _plain(pair[1])].append(match)
    if len(groups) > 2:
        every = [match for matches in groups.values() for match in matches]
        names = counted(writer.op(match).name for match in every)
        yield writer.sentence(f"{plural(len(every), 'value')} have another type: {names}", COMPUTE - 10, every)
        return
    for (old_type, new_type), matches in groups.items():
        verb = "has" if len(matches) == 1 else "have"
        text = f"{plural(len(matches), 'value')} {verb} the type `{new_type}` instead of `{old_type}`"
        yield writer.sentence(text, COMPUTE - 10, matches)


def _plain(kind: Any) -> str:
    """A type without its layout."""
    return str(replace(kind, layout=None) if isinstance(kind, Tile | Buffer) else kind)


def operands(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Ops that read other values; arithmetic is counted, other ops are named with their operands."""
    changed = [
        m for m in writer.undescribed("changed") if "operands" in m.what and not is_structural(writer.op(m).name)
    ]
    groups: dict[str, list[OpMatch]] = defaultdict(list)
    for match in changed:
        if not is_arithmetic(writer.op(match).name):
            groups[writer.op(match).name].append(match)
    for name, matches in groups.items():
        verb = "reads" if len(matches) == 1 else "read"
        what = _new_operands(writer, matches)
        yield writer.sentence(f"{ops_text(len(matches), name)} {verb} {what}", COMPUTE - 20, matches)
    rest = [m for m in writer.undescribed("changed") if "operands" in m.what]
    arithmetic = [m for m in rest if not is_structural(writer.op(m).name)]
    writer.mark(rest)
    if arithmetic:
        names = counted(writer.op(match).name for match in arithmetic)
        yield writer.sentence(f"{plural(len(arithmetic), 'op')} read other values: {names}", ARITHMETIC - 3, arithmetic)


def _new_operands(writer: SentenceWriter, matches: list[OpMatch]) -> str:
    """The operands that ops read now: "`local_load`, `stage`", or "one operand more"."""
    found: Counter[str] = Counter()
    more = 0
    for match in matches:
        old, new = writer.matching.op_before(match.before[0]), writer.op(match)
        more = max(more, len(new.args) - len(old.args))
        for value in new.args:
            made = writer.matching.after.definer(value)
            if made is not None and made.id not in writer.matching.before.ops:
                found[made.name] += 1
    if found:
        return f"the results of {joined([f'`{name}`' for name in found])}"
    return plural(more, "operand") + " more" if more > 0 else "other values"


def merged(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Ops whose value another op computes."""
    matches = writer.undescribed("merged")
    if matches:
        names = counted(writer.matching.op_before(match.before[0]).name for match in matches)
        verb = "was" if len(matches) == 1 else "were"
        text = f"{plural(len(matches), 'op')} {verb} merged with an equal op: {names}"
        yield writer.sentence(text, ARITHMETIC + 8, matches)


def added(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """New ops."""
    yield from _counted(writer, "added", "added")


def removed(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Ops that are gone, without a successor."""
    yield from _counted(writer, "removed", "removed")


def _counted(writer: SentenceWriter, kind: str, verb: str) -> Iterator[ChangeSentence]:
    matches = [m for m in writer.undescribed(kind) if not is_structural(writer.op(m).name)]
    notable: dict[str, list[OpMatch]] = defaultdict(list)
    for match in matches:
        name = writer.op(match).name
        if not is_arithmetic(name):
            notable[name].append(match)
    for name, found in notable.items():
        yield writer.sentence(
            f"{ops_text(len(found), name)} {verb}", MEMORY - 8 if OPS[name].kind == "memory" else COMPUTE, found
        )
    rest = [m for m in matches if is_arithmetic(writer.op(m).name)]
    if rest:
        names = counted(writer.op(match).name for match in rest)
        verb = f"{'was' if len(rest) == 1 else 'were'} {verb}"
        weight = COMPUTE - 5 if writer.compared else ARITHMETIC  # of two sources, arithmetic is what the user wrote
        yield writer.sentence(f"{plural(len(rest), 'op')} of arithmetic {verb}: {names}", weight, rest)
