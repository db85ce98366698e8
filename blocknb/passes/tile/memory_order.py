"""Sets the memory order of atomics before any pass may move an access.

A `while` that reads an atomic or a volatile load waits for another program. Later accesses must not return data from before the wait, so
that read must acquire. An atomic whose result is unused acquires nothing, unless the program observes other programs later. After this
pass, `sem` is the order that the hardware must keep, and later passes and both code generators follow it. Source: PTX ISA, "Memory
Consistency Model", acquire patterns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from blocknb.analysis.effects import result_is_used
from blocknb.ir.build import Rebuild, rebuild
from blocknb.ir.core import Block, Func, Op, Value, is_volatile, uses, within
from blocknb.language.ops import ATOMICS, LOOPS
from blocknb.passes.registry import tile_pass
from blocknb.target import Target
from blocknb.trace import Notes

ACQUIRING = {"relaxed": "acquire", "release": "acq_rel"}
NOT_ACQUIRING = {"acquire": "relaxed", "acq_rel": "release"}


def applies(func: Func, target: Target) -> bool:
    return any(op.name in ATOMICS or is_volatile(op) for op in func.ops())


@tile_pass(applies=applies)
def memory_order(func: Func, target: Target, notes: Notes) -> Func:
    """Settles the memory order of atomics and of loops that wait

    When: a kernel has atomics or volatile loads. A load with `cache_modifier=".cv"` counts as volatile.

    What: an atomic or a volatile load that a `while` reads acquires, even if its `sem` is weaker. An atomic whose result is unused does not
    acquire, unless an atomic with a used result, a volatile load or inline assembly runs after it.

    Why: after a wait, loads must see what the other program stored, and an L1 cache may hold older data. An acquire that has no effect
    costs a fence.

    Limits: an atomic outside of a `while` with `sem="relaxed"` stays relaxed.

    Before:

        while (%1) {
          %2 = atomic_cas %lock, %0, %one {sem="relaxed"} : i32
        }
        atomic %out, %sum {kind="add", sem="acq_rel"}

    After:

        while (%1) {
          %2 = atomic_cas %lock, %0, %one {sem="acquire"} : i32
        }
        atomic %out, %sum {kind="add", sem="release"}
    """
    users = uses(func)
    loops = [op for op in func.ops() if op.name == "while"]
    waited = {op.id for loop in loops for op in within(loop) if observes(op, users)}
    observed = set(followed_by_observation(func.body, users, after=False))

    def visit(op: Op, rebuild: Rebuild) -> Any:
        old: str = op.attrs.get("sem", "")
        if op.id in waited and op.name != "asm":
            sem = "acquire" if op.name == "load" else ACQUIRING.get(old, old)
        elif op.name in ATOMICS and not result_is_used(op, users) and op.id not in observed:
            sem = NOT_ACQUIRING.get(old, old)
        else:
            return NotImplemented
        if sem == old:
            return NotImplemented
        made = rebuild.keep(op.replace(attrs=MappingProxyType({**op.attrs, "sem": sem})))
        if op.id in waited:
            volatile = "the volatile load" if op.attrs.get("volatile") else "the load that bypasses the caches (.cv)"
            what = f"{op.name} (sem {old})" if old else volatile
            notes(
                made, f"{what} is now an acquire, because a loop waits for it: later loads must not return older data"
            )
        else:
            notes(
                made,
                f"{op.name} is {sem} instead of {old}: its result is unused, and no later op observes other programs",
            )
        return made.results

    return rebuild(func, visit)


def observes(op: Op, users: Mapping[Value, object]) -> bool:
    """Whether an op can observe an effect of another running program."""
    if op.name in ATOMICS:
        return result_is_used(op, users)
    return is_volatile(op) or (op.name == "asm" and not op.attrs["pure"])


def followed_by_observation(block: Block, users: Mapping[Value, object], after: bool) -> Iterator[int]:
    """The ids of the atomics of a block after which an observation may run. `after`: one may run after the block."""
    for op in reversed(block.ops):
        inside = any(observes(x, users) for x in within(op))
        repeats = op.name in LOOPS
        for nested in op.blocks:
            yield from followed_by_observation(nested, users, after or (repeats and inside))
        if after and op.name in ATOMICS:
            yield op.id
        after |= inside
