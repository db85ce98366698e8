"""Persistent programs: whether a CTA takes one program after another.

A program's end, where results are stored, leaves the tensor cores idle, and its beginning, where nothing has come yet, does so again.
Where copying has a warp of its own, a CTA that goes on with a next program fills both gaps: copies for it begin while the last results
are on their way. As many CTAs are launched as there is room for, and the c-th takes programs c, c + CTAs, and so on.

That shares out programs before they run, so it is done only where all have the same work.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from blocknb.analysis import affine
from blocknb.ir.core import Block, Func, Op, Value
from blocknb.ir.report import REPORTS
from blocknb.ir.traversal import reachable
from blocknb.language.ops import ATOMICS, LOOPS
from blocknb.passes import specialize
from blocknb.passes.needs import sources
from blocknb.target import Target
from blocknb.trace import Notes


def persist(func: Func, target: Target, notes: Notes) -> Func:
    """Lets a CTA take one program after another

    So that the copies of a next program begin before the last one is done. It takes effect if copying gets a warp of its own
    (`specialize`), where the loops with products have as many trips in all programs, and where the kernel is not written so already;
    not where programs say something.
    """
    facts = affine.analyze(func)
    if (told := next((op for op in func.ops() if op.name in REPORTS), None)) is not None:
        notes(told, "one program a CTA: what a program says is counted from its beginning")
        return func
    for loop, outer in loops(func.body, False):
        if any(depends(facts, x) for x in loop.args[:3]):
            why = "the kernel shares out its work by itself" if outer else "not all programs make as many trips"
            notes(loop, f"one program a CTA: {why}")
            return func
    return func.with_attrs(persist=True)


def applies(func: Func, target: Target) -> bool:
    return specialize.applies(func, target)


def loops(block: Block, inside: bool) -> Iterator[tuple[Op, bool]]:
    """The loops that hold products, outer before inner, and whether another one is in each."""
    for op in block.ops:
        for inner in op.blocks:
            found = list(loops(inner, True))
            if op.name in LOOPS and (found or any(x.name == "dot" for x in inner.ops)):
                yield op, bool(found)
            yield from found


def depends(facts: affine.Facts, value: Value, on: Container[str] = ("program_id", "load", *ATOMICS)) -> bool:
    """Whether a scalar follows from an op of these names: from those, it may differ from program to program."""
    makers = map(facts.definition.get, reachable([value], lambda x: sources(facts, x)))
    return any(op is not None and op.name in on for op in makers)
