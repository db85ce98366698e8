"""Sentences on memory: asynchronous copies and their circular buffers, bulk stores, buffers in shared memory, synchronization."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from blocknb.ir.core import Op
from blocknb.ir_diff.indexed import IndexedFunc
from blocknb.ir_diff.matching import OpMatch
from blocknb.ir_diff.sentence_writer import (
    MEMORY,
    PLACE,
    STRUCTURE,
    SYNCHRONIZATION,
    ChangeSentence,
    SentenceWriter,
    counted,
    joined,
    ops_text,
    plural,
)
from blocknb.language.ops import OPS, named
from blocknb.language.types import Buffer

COPIES = named("async_copy")
#: Ops that order or await the work of other threads, of copies or of products.
SYNCHRONIZES = named("mbarrier") | {"barrier", "warp_barrier", "fence", "commit", "wait", "dot_wait", "store_wait"}
_ENGINE = {"copy_bulk": "`copy_bulk` (TMA)", "store_bulk": "`store_bulk` (TMA)"}


def asynchronous_copies(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Loads whose data an asynchronous copy brings to shared memory."""
    after = writer.matching.after
    groups: dict[tuple[Any, ...], list[tuple[OpMatch, list[int]]]] = defaultdict(list)
    for match in writer.undescribed("replaced"):
        copies = [id for id in match.after if after.ops[id].op.name in COPIES]
        loads = [id for id in match.before if writer.matching.op_before(id).name == "load"]
        if copies and loads:
            depth = max(map(len, ([*after.ancestors(id)] for id in copies)))
            ahead = [id for id in copies if len([*after.ancestors(id)]) < depth]
            name, stages = after.ops[copies[0]].op.name, _stages(after, copies[0])
            groups[name, stages, len(ahead), after.role_of(copies[-1])].append((match, copies))
    for (name, stages, ahead, role), found in groups.items():
        matches = [match for match, _ in found]
        count = sum(writer.matching.op_before(id).name == "load" for match in matches for id in match.before)
        into = f"circular buffers of {stages} stages" if count > 1 else f"a circular buffer of {stages} stages"
        text = f"{ops_text(count, 'load')} {writer.now} {_ENGINE.get(name, f'`{name}`')} into "
        text += into if stages > 1 else "shared memory"
        if ahead:
            text += f"; the copies of the first {plural(ahead, 'iteration')} stand before the loop"
        text += f", in the {role} warps" if role else ""
        yield writer.sentence(text, STRUCTURE + 10, matches)


def _stages(func: IndexedFunc, copy: int) -> int:
    """The number of stages of the buffer that a copy fills; 1 without a circular buffer."""
    value = func.ops[copy].op.args[0]
    made = func.definer(value)
    if made is not None and made.name == "stage":
        value = made.args[0]
    return value.type.stages if isinstance(value.type, Buffer) else 1


def bulk_stores(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Stores that the copy engine does."""
    after = writer.matching.after
    matches = []
    for match in writer.undescribed("replaced"):
        made = [id for id in match.after if after.ops[id].op.name == "store_bulk"]
        if made and any(writer.matching.op_before(id).name == "store" for id in match.before):
            matches.append(match)
    if matches:
        count = sum(writer.matching.op_before(id).name == "store" for match in matches for id in match.before)
        text = f"{ops_text(count, 'store')} {writer.now} {_ENGINE['store_bulk']}: the copy engine writes the tile from shared memory"
        yield writer.sentence(text, MEMORY + 15, matches)


def buffers(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Buffers in shared memory that are new, gone, placed, or have other stages."""
    yield from _restaged(writer)
    placed = [
        m for m in writer.undescribed("changed") if "offset" in m.attributes and m.attributes["offset"][0] is None
    ]
    if placed:
        yield writer.sentence(f"{plural(len(placed), 'buffer')} got a place in shared memory", PLACE + 10, placed)
    for kind, verb in (("added", "added"), ("removed", "removed")):
        matches = [m for m in writer.undescribed(kind) if writer.op(m).name == "alloc"]
        if matches:
            size = sum(_bytes(writer.op(match)) for match in matches)
            text = f"{plural(len(matches), 'buffer')} in shared memory {verb}: {size} bytes"
            yield writer.sentence(text, MEMORY - 5, matches)
    stored = [m for m in writer.undescribed("added") if writer.op(m).name == "local_store"]
    if stored:
        read = [m for m in writer.undescribed("added") if writer.op(m).name == "local_load"]
        text = f"{plural(len(stored), 'tile')} {'is' if len(stored) == 1 else 'are'} stored to shared memory"
        text += f", and {len(read)} read from there" if read else ""
        yield writer.sentence(text, MEMORY - 2, [*stored, *read])


def _restaged(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    groups: dict[tuple[int, int], list[OpMatch]] = defaultdict(list)
    for match in writer.undescribed("changed"):
        op = writer.op(match)
        if op.name == "alloc":
            old = writer.matching.op_before(match.before[0]).result.type.stages
            if old != op.result.type.stages:
                groups[old, op.result.type.stages].append(match)
    for (old, new), matches in groups.items():
        size = sum(_bytes(writer.op(match)) for match in matches)
        verb = "has" if len(matches) == 1 else "have"
        text = f"{plural(len(matches), 'buffer')} {verb} {plural(new, 'stage')} instead of {old}, {size} bytes together"
        yield writer.sentence(text, MEMORY + 5, matches)


def _bytes(op: Op) -> int:
    found: int = op.result.type.bytes
    return found


def accesses_of_another_type(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Loads and stores of tiles of another shape or element type."""
    groups: dict[tuple[str, str, str], list[OpMatch]] = defaultdict(list)
    for match in writer.undescribed("changed"):
        old, new = writer.matching.op_before(match.before[0]), writer.op(match)
        if OPS[new.name].kind not in ("memory", "dot") or not new.results or "type" not in match.what:
            continue
        groups[new.name, _shape(old), _shape(new)].append(match)
    for (name, before, now), matches in groups.items():
        if before != now:
            text = f"{ops_text(len(matches), name)} of {now} instead of {before}"
            yield writer.sentence(text, MEMORY, matches)


def _shape(op: Op) -> str:
    kind = op.result.type
    return "x".join([*map(str, kind.shape), kind.dtype.short])


def synchronization(writer: SentenceWriter) -> Iterator[ChangeSentence]:
    """Barriers, waits and mbarriers that were added or removed; a barrier with the op after it."""
    for kind, verb in (("added", "inserted"), ("removed", "removed")):
        matches = [m for m in writer.undescribed(kind) if writer.op(m).name in SYNCHRONIZES | {"mbarriers"}]
        barriers = [m for m in matches if writer.op(m).name == "barrier"]
        side = writer.matching.after if kind == "added" else writer.matching.before
        for place, group in _by_next(side, barriers, kind).items():
            text = f"{ops_text(len(group), 'barrier')} {verb}{f' before {place}' if place else ''}"
            yield writer.sentence(text, SYNCHRONIZATION + 5, group, lines=not place)
        others = [m for m in matches if m not in barriers]
        if others:
            text = f"{verb}: {counted(writer.op(match).name for match in others)}"
            text = f"synchronization {text}"
            yield writer.sentence(text, SYNCHRONIZATION, others)
    for match in writer.undescribed("added", "replaced"):
        if match.kind == "replaced" and all(writer.matching.op_after(id).name in SYNCHRONIZES for id in match.after):
            names = counted(writer.matching.op_after(id).name for id in match.after)
            old = joined([f"`{writer.matching.op_before(id).name}`" for id in match.before])
            yield writer.sentence(f"{old} {writer.now} {names}", SYNCHRONIZATION, [match])


def _by_next(side: IndexedFunc, barriers: list[OpMatch], kind: str) -> dict[str, list[OpMatch]]:
    """Barriers by the op that they stand before: "the `copy_async` at line 7"."""
    groups: dict[str, list[OpMatch]] = defaultdict(list)
    for match in barriers:
        (id,) = match.after if kind == "added" else match.before
        following = _next_access(side, id)
        line = side.line(following) if following is not None else None
        place = (
            "" if following is None else f"the `{side.ops[following].op.name}`" + (f" at line {line}" if line else "")
        )
        groups[place].append(match)
    return groups


def _next_access(side: IndexedFunc, id: int) -> int | None:
    """The next op that touches memory, in the same block."""
    here = side.ops[id]
    for other, position in side.ops.items():
        if position.order > here.order and position.parent == here.parent and position.block == here.block:
            spec = OPS[position.op.name]
            if position.op.name != "barrier" and (spec.reads or spec.writes):
                return other
    return None
