"""Leaves out the notes in shadow memory of loads that no store of the kernel can meet, unless arrays of the launch overlap.

The launch compares the addresses of its arrays. If an array that the kernel stores to overlaps one that it only loads, the launch takes
code without this pass (`runtime.shadow.all_noted`).
"""

from __future__ import annotations

from typing import Any

from blocknb.ir.build import Rebuild, rebuild
from blocknb.ir.core import Func, Op
from blocknb.language.check_modes import parse_checks
from blocknb.passes.registry import tile_pass
from blocknb.target import Target
from blocknb.trace import Notes


def is_unshared(op: Op, stored: frozenset[int]) -> bool:
    """Whether an op notes a load of arguments that the kernel does not store to."""
    attrs = op.attrs
    if op.name != "shadow" or attrs["verb"] != "load" or attrs["action"] not in ("load", "observe"):
        return False
    return bool(attrs["arguments"]) and stored.isdisjoint(attrs["arguments"])


def stored_arguments(func: Func) -> frozenset[int] | None:
    """The arguments that a kernel stores to, as its shadow ops tell. None if a store may go to any."""
    stores = [op.attrs["arguments"] for op in func.ops() if op.name == "shadow" and op.attrs["verb"] != "load"]
    return None if () in stores else frozenset(i for arguments in stores for i in arguments)


def applies(func: Func, target: Target) -> bool:
    """Whether a note can be left out."""
    if "race" not in parse_checks(func.attrs.get("checked")):
        return False
    stored = stored_arguments(func)
    return stored is not None and any(is_unshared(op, stored) for op in func.ops())


@tile_pass(optional=True, applies=applies)
def unshared_loads(func: Func, target: Target, notes: Notes) -> Func:
    """Removes race checks of arrays that the kernel only loads

    When: `checked="race"`, and the kernel does not store to all its arrays.

    What: a load from an array that the kernel does not store to has no note in shadow memory. If the array overlaps another one that
    the launch stores to, the launch runs code without this pass.

    Why: no program can store to the array, so there is no race. The notes of a loop over tiles need many registers.

    Limits: a pointer that comes from no argument, for example one from memory, may meet any array, so its loads stay. If a
    store has such a pointer, all loads stay.

    Before:

        %v = load %q, %mask : tile<256xf32>
        shadow %q, %mask {action="load", site=0}
        store %p, %v, %mask
        shadow %p, %mask {action="store", site=1}

    After:

        %v = load %q, %mask : tile<256xf32>
        store %p, %v, %mask
        shadow %p, %mask {action="store", site=1}
    """
    stored = stored_arguments(func) or frozenset()
    found: set[int] = set()

    def visit(op: Op, walk: Rebuild) -> Any:
        if not is_unshared(op, stored):
            return NotImplemented
        found.update(op.attrs["arguments"])
        notes(op, "the check of this load is left out: the kernel only loads the array")
        return ()

    return rebuild(func, visit).with_attrs(unshared=tuple(sorted(found)))
