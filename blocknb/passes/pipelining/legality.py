"""Legality of software pipelining: which loads, and which products, may run over several iterations of a loop.

A load that runs early moves before the stores of earlier iterations. So no op of the loop may write its array, and none may order later
accesses after itself. Two arguments are assumed to be two arrays, as in `barriers`. The address of a later iteration must follow from the
loop's index, and from carried scalars, by arithmetic alone. If a pass can also load indices early (`indices`), it may follow from loads of
arrays that the loop does not write. An example is the page table of a paged cache.

Each check returns the reason against pipelining as the text of a note, "" if there is none. Source: Allen and Kennedy, "Optimizing
Compilers for Modern Architectures", chapter 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from blocknb.analysis import affine, ranges
from blocknb.analysis.effects import effects, global_operands, orders
from blocknb.ir.core import Func, Op, Value, definitions, uses, walk, within
from blocknb.language.ops import ACCESSES, ATOMICS, OPS, WRITES
from blocknb.passes.pipelining.backward_slice import slice_or_reason
from blocknb.passes.support.mma_operands import from_shared
from blocknb.passes.support.note_text import at_line
from blocknb.trace import Notes

MOST_OPS = 64  # the most arithmetic ops per address
ARITHMETIC = (
    "source",
    "shape",
    "elementwise",
    "distributed",
)  # kinds of ops that may be repeated for a later iteration

OUTLASTS = "dot: still in flight when the next iteration starts; waited for after the loop"
TRUNCATED = "; truncated to tf32 by wgmma, not rounded"


def modifier_lost(load: Op, known: Collection[str] = ()) -> str:
    """The sentence of a note about the cache modifier of the load of an asynchronous copy, unless the copy has such a modifier."""
    cache = load.attrs.get("cache", "")
    return f"; its cache modifier {cache} has no effect on such a copy" if cache and cache not in known else ""


class PipeliningLegality:
    """Finds the reasons against running loads of a function early, and notes them."""

    def __init__(self, func: Func, notes: Notes):
        self.func, self.notes = func, notes
        self.facts, self.users, self.defs = affine.analyze(func), uses(func), definitions(func)

    def refuse(self, loads: Iterable[Op], why: str) -> None:
        """Notes for each load why it is not pipelined."""
        for load in loads:
            self.notes(load, f"not pipelined: {why}", "missed")

    def why_no_load_of(self, loop: Op) -> str:
        """The reason why no load of a loop may run early."""
        if ranges.iterations(self.facts, loop)[1] <= 1:
            return "the loop makes one iteration at most"
        return self.why_ordered(loop)

    def why_ordered(self, loop: Op) -> str:
        """The reason why no load may move before the ops of a loop, whatever its address."""
        return why_none_within(walk(loop.blocks[0]))

    def why_not(self, load: Op, loop: Op, indices: bool = False) -> str:
        """The reason why a load in a loop's own block must stay in its iteration; with `indices`, a loaded index is none."""
        if why := self.why_not_read_early(load, walk(loop.blocks[0])):
            return why
        varies = False
        for what, value in zip(("address", "mask", "`other`"), load.args, strict=False):
            found = self.backward_slice(value, loop, indices and what == "address")
            if isinstance(found, str):
                return f"its {what} {found}"
            varies |= any(x in self.facts.argument for x in found)
        return "" if varies else "it reads the same place in every iteration"

    def why_not_read_early(self, load: Op, ops: Iterable[Op]) -> str:
        """The reason why a load may not move before these ops, because it could then read other data."""
        root = self.facts.root(load.args[0])
        for other, op in self.writes(ops):
            if root is None or other is None:
                return f"the {op.name}{at_line(op)} may access the same array"
            if root is other:
                return f"the {op.name}{at_line(op)} also writes {root.name}"
        return ""

    def writes(self, ops: Iterable[Op]) -> list[tuple[Value | None, Op]]:
        """The writes among ops: the argument of each pointer (None: unknown), and the op."""
        return [(self.facts.root(global_operands(op)[0]), op) for op in ops if op.name in WRITES]

    def backward_slice(self, value: Value, loop: Op, indices: bool = False) -> set[Value] | str:
        """The values of a loop from which a value is computed; a reason if a later iteration's value cannot be computed early.

        With `indices`, loads of the loop's own block may be among them, if each may move before the loop's other accesses.
        """
        facts = self.facts

        def sources(value: Value) -> list[Value]:
            if value in facts.argument:
                i = facts.argument[value][2]
                made_of: tuple[Value, ...] = (loop.blocks[0].terminator.args[i - 1],) if i else ()
            else:
                made_of = facts.definition[value].args
            return [x for x in made_of if facts.inside(x, loop)]

        def why_not(value: Value) -> str:
            op = facts.definition.get(value)
            if op is None or value in facts.argument:
                return ""
            if op.name == "load":
                if not indices or op not in loop.blocks[0].ops:
                    return "was loaded in the loop"
                why = self.why_not_read_early(op, walk(loop.blocks[0]))
                return f"is loaded from an array that may change: {why}" if why else ""
            arithmetic = OPS[op.name].pure and OPS[op.name].kind in ARITHMETIC
            return "" if arithmetic else f"is made by a {op.name} in the loop"

        found = slice_or_reason([value] if facts.inside(value, loop) else [], sources, why_not)
        if not isinstance(found, str) and sum(x not in facts.argument for x in found) > MOST_OPS:
            return "takes much arithmetic, which would be done twice"
        return found


def why_none_within(ops: Iterable[Op]) -> str:
    """The reason why no load may move before these ops: one of them waits, or orders later accesses."""
    for op in ops:
        if op.name == "while" and any(x.name in ACCESSES for x in within(op)):
            return f"the `while`{at_line(op)} may wait for other programs"
        if not op.blocks and effects(op).orders:
            return f"the {op.name}{at_line(op)} keeps later accesses after it"
        if op.name in ATOMICS and orders(op)[0]:
            return f"the {op.name}{at_line(op)} ({op.attrs['sem']}) keeps later accesses after it"
    return ""


def accumulating_products(loop: Op, copied: Collection[Value]) -> tuple[Op, ...]:
    """The products of a loop's own block that may still run when its next iteration begins: all or none.

    Each is a wgmma whose result is only the accumulator of the same product in the next iteration. Both operands are buffers, and no
    iteration writes these except by copies that do not touch the stage in use (`copied`).
    """
    (block,) = loop.blocks
    made = {value for op in walk(block) for value in op.results}
    end, found = block.terminator, []
    uses = Counter(value for op in walk(block) for value in op.args)
    for op in block.ops:
        if not any(inner.name == "dot" for inner in within(op)):
            continue
        apart = all(value in copied or value not in made for value in op.args[:2])
        if len(from_shared(op)) < 2 or not apart or op.result not in end.args:
            return ()
        carried = block.args[1 + end.args.index(op.result)]
        if op.args[2] is not carried or uses[op.result] != 1 or uses[carried] != 1:
            return ()
        found.append(op)
    return tuple(found)
