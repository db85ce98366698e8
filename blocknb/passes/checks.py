"""Checked mode on a GPU, and assertions.

Of every access whose pointer comes from an argument, `inside` tests where it lies in the argument's array; what lies outside is left
out by the mask, and `outside` tells of it. Both are ordinary ops, so that layouts, replicas and the interpreter need not know. Nothing
can be proved beforehand, since no kernel is compiled for the extent of its arrays. The CPU checks in its code generator, row by row.
"""

from __future__ import annotations

from typing import Any

from blocknb.analysis import affine
from blocknb.analysis.effects import mask_of
from blocknb.ir.build import Rebuild, rebuild
from blocknb.ir.core import Func, Op
from blocknb.ir.report import action_of
from blocknb.language.ops import ACCESSES
from blocknb.passes.simplify import tidy
from blocknb.target import Target
from blocknb.trace import Note, Notes

MASK_AT = {"load": 1, "store": 2, "atomic": 2, "atomic_cas": 3}


def tests_bounds(func: Func, target: Target) -> bool:
    return target.is_gpu and bool(func.attrs.get("checked"))


def tests_assertions(func: Func, target: Target) -> bool:
    """`debug` decides; where it is not given, a CPU tests them, and a GPU in checked mode."""
    wanted = func.attrs.get("debug")
    return bool(not target.is_gpu or func.attrs.get("checked") if wanted is None else wanted)


def applies(func: Func, target: Target) -> bool:
    """Whether there is anything to add or to leave out."""
    if not tests_assertions(func, target) and any(op.name == "assert" for op in func.ops()):
        return True
    return tests_bounds(func, target) and any(op.name in ACCESSES for op in func.ops())


def checks(func: Func, target: Target, notes: Notes) -> Func:
    """Tests every access against the extent of its array; keeps or drops assertions

    With `checked=True` an access outside of the array that its pointer comes from is not made (a load gives `other`, or zero), and the
    launch ends with an error that names the line, the program and the element. A pointer that was loaded from memory, or that may
    come from two arrays, is not tested. Accesses are one element wide, since each has a test of its own. Assertions are tested
    with `debug=True` or `checked=True`, else they cost nothing.
    """
    bounds, assertions = tests_bounds(func, target), tests_assertions(func, target)
    facts = affine.analyze(func)
    originals = {op.id: op for op in func.ops()}
    tested = 0

    def visit(op: Op, walk: Rebuild) -> Any:
        nonlocal tested
        if op.name == "assert" and not assertions:
            text = "the assertion is not tested: debug=True or checked=True has it tested on a GPU"
            notes.list.append(Note(text, notes.origin, -1, op.loc, "missed"))
            return ()
        if op.name not in ACCESSES or not bounds:
            return NotImplemented
        root = facts.root(originals[op.id].args[0])
        if root is None:
            notes(op, f"the {op.name} is not checked: its pointer was loaded, or may come from two arrays", "missed")
            return NotImplemented
        tested += 1
        walk.builder.append(guarded(op, func.params.index(root), walk))
        return op.results

    func = rebuild(func, "checks", visit)
    if tested:
        notes(None, f"{tested} access{'es' if tested > 1 else ''} tested against the extent of the array")
    return tidy(func, "checks")


def guarded(op: Op, argument: int, walk: Rebuild) -> Op:
    """The access where it is allowed; the ops that find out, and tell of the rest, come before it."""
    emit, pointer, mask, at = walk.builder.value, op.args[0], mask_of(op), MASK_AT[op.name]
    allowed = emit("inside", pointer, argument=argument)
    bad = emit("not", allowed)
    if mask is not None:
        bad, allowed = emit("and", mask, bad), emit("and", mask, allowed)
    walk.builder.op("outside", pointer, bad, argument=argument, action=action_of(op))
    return op.replace(args=(*op.args[:at], allowed, *op.args[at + 1 :]), origin="checks")
