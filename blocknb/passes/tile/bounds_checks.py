"""Bounds checks on a GPU, and assertions (bounds checking as in memory sanitizers).

The op `inside` tests whether each element of an access lies in the array that its pointer comes from. The mask leaves out other
elements, and the op `outside` reports them. Both are ordinary ops, so layouts and the interpreter need no special case. No check is
proved superfluous, because no kernel is compiled for the extent of its arrays. The CPU's code generator checks rows by itself.
"""

from __future__ import annotations

from typing import Any

from blocknb.analysis.effects import mask_of
from blocknb.analysis.provenance import Provenance
from blocknb.ir.build import Rebuild, rebuild, revised
from blocknb.ir.core import Func, Op, Value
from blocknb.ir.provenance import UNOWNED
from blocknb.ir.report import action_of
from blocknb.language import types as t
from blocknb.language.ops import ACCESSES, MASK_AT
from blocknb.language.types import Tile
from blocknb.passes.registry import tile_pass
from blocknb.passes.support.carried_bounds import Guard, Owners, explain
from blocknb.passes.tile.simplify import tidy
from blocknb.target import Target
from blocknb.trace import Note, Notes


def tests_bounds(func: Func, target: Target) -> bool:
    return target.is_gpu and bool(func.attrs.get("checked"))


def tests_assertions(func: Func, target: Target) -> bool:
    """Whether assertions are tested: `debug` decides. If it is not given, a CPU tests them, and a GPU only in checked mode."""
    wanted = func.attrs.get("debug")
    return bool(not target.is_gpu or func.attrs.get("checked") if wanted is None else wanted)


def applies(func: Func, target: Target) -> bool:
    """Whether the function has accesses to check or assertions to remove."""
    if not tests_assertions(func, target) and any(op.name == "assert" for op in func.ops()):
        return True
    return tests_bounds(func, target) and any(op.name in ACCESSES for op in func.ops())


@tile_pass(applies=applies)
def bounds_checks(func: Func, target: Target, notes: Notes) -> Func:
    """Checks accesses against the extents of arrays, and keeps or drops assertions

    When: on a GPU with `checked=True`, or where a kernel has assertions that are not tested.

    What: an access outside of the array that its pointer comes from is masked off (a load gives `other`, or zero). The launch ends with
    an error that names the line, the program and the element. Assertions are tested with `debug=True` or `checked=True`, and are removed
    otherwise.

    Why: an access outside of an array corrupts other data, or fails later and elsewhere.

    Limits: a pointer that is loaded, or made from an integer, is checked against the array that holds its address. If no argument does,
    the access is not checked, and a note says so. Each access is one element wide, because each element has its own check.

    Before:

        %v = load %p, %mask : tile<256xf32>

    After:

        %inside = inside %p {argument=0} : tile<256xi1>
        %outside = not %inside : tile<256xi1>
        %bad = and %mask, %outside : tile<256xi1>
        %allowed = and %mask, %inside : tile<256xi1>
        outside %p, %bad {argument=0, action="load"}
        %v = load %p, %allowed : tile<256xf32>
    """
    bounds, assertions = tests_bounds(func, target), tests_assertions(func, target)
    owners = Owners(func, Provenance(func))
    found: list[tuple[Op, Guard]] = []

    def visit(op: Op, walk: Rebuild) -> Any:
        if op.name == "assert" and len(op.args) == 1 and not assertions:
            text = "the assertion is not tested: debug=True or checked=True has it tested on a GPU"
            notes.list.append(Note(text, notes.origin, -1, op.loc, "missed"))
            return ()
        if not bounds:
            return NotImplemented
        if op.name not in ACCESSES:
            return owners.visit(op, walk)
        guard = owners.guard(op)
        found.append((op, guard))
        walk.builder.append(guarded(op, guard, walk))
        owners.follow(op, walk.builder)
        return op.results

    func = rebuild(func, visit)
    if bounds:
        explain(found, notes)
    return tidy(func)


def guarded(op: Op, guard: Guard, walk: Rebuild) -> Op:
    """The access restricted to allowed elements. The test and the report of other elements come before it."""
    emit, pointer, mask, at = walk.builder.value, op.args[0], mask_of(op), MASK_AT[op.name]
    allowed, cases = tested(pointer, guard, walk)
    bad = emit("not", allowed)
    if mask is not None:
        bad, allowed = emit("and", mask, bad), emit("and", mask, allowed)
    for argument, mine in cases:
        case = bad if mine is None else emit("and", bad, mine)
        walk.builder.op("outside", pointer, case, argument=argument, action=action_of(op))
    return revised(op, args=(*op.args[:at], allowed, *op.args[at + 1 :]))


def tested(pointer: Value, guard: Guard, walk: Rebuild) -> tuple[Value, list[tuple[int, Value | None]]]:
    """Whether each element is allowed; and for each owner that may be violated, its number and the elements that it owns (None: all)."""
    b, shape = walk.builder, pointer.type.shape
    if guard.carried is None:
        (argument,) = guard.possible
        return b.value("inside", pointer, argument=argument), [(argument, None)]
    owner = guard.carried
    if shape and not owner.type.shape:
        owner = b.value("splat", owner, shape=shape)
    allowed = b.const(False, Tile(t.int1, shape))
    cases: list[tuple[int, Value | None]] = []
    for argument in guard.possible:
        mine = b.value("cmp", owner, b.const(argument, Tile(t.int32, shape)), pred="eq")
        if argument != UNOWNED:
            allowed = b.value("select", mine, b.value("inside", pointer, argument=argument), allowed)
        elif guard.foreign:
            allowed = b.value("or", mine, allowed)
            continue
        cases.append((argument, mine))
    return allowed, cases
