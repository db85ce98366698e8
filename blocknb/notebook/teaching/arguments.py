"""The arguments of a card's newest launch, for an examination after the cell: never the arrays of the user where the kernel writes."""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import Any

from blocknb.errors import LaunchError
from blocknb.footprint.access_log import AccessLog, Budget
from blocknb.footprint.follow import footprint
from blocknb.footprint.launch import ArrayLayout
from blocknb.footprint.runs import Runs
from blocknb.footprint.value import Footprint
from blocknb.ir.core import Op
from blocknb.notebook.observe import Specialisation
from blocknb.runtime.footprints import memory_launch

BUDGET = Budget(seconds=2.0)


def arguments_of(kernel: Any, made: Specialisation, written: Collection[str] = ()) -> dict[str, Any]:
    """The arguments of the newest launch by name, with copies of the `written` arrays. Raises LaunchError if they are gone."""
    if not made.launches or 0 in made.grid:
        raise LaunchError("the kernel was compiled but not launched", hint="launch it in the cell")
    given = made.snapshot.arguments(written) if made.snapshot is not None else None
    if given is None:
        raise LaunchError("the arrays of the launch are no longer available", hint="run the cell again")
    constants = made.compiled.trace.constants  # a changed knob keeps the arguments of the cell, and has other constants
    declared = {p.name for p in kernel.source.parameters if p.constexpr}
    return {**given, **{n: constants[n] for n in given if n in declared and n in constants}}


class OrderedAccessLog(AccessLog):
    """An access log that also keeps the accesses in the order in which a program makes them. `ordered` has the op, the array and the runs
    (in bytes) of each execution."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ordered: list[tuple[Op, ArrayLayout, Runs]] = []

    def add(self, op: Op, array: ArrayLayout, runs: Runs, issued: int) -> None:
        super().add(op, array, runs, issued)
        self.ordered.append((op, array, runs))


_footprints: weakref.WeakKeyDictionary[Specialisation, Footprint] = weakref.WeakKeyDictionary()


def footprint_of(kernel: Any, made: Specialisation) -> Footprint:
    """The footprint of the newest launch, with an OrderedAccessLog. It is made once. Raises KernelError."""
    if (known := _footprints.get(made)) is None:
        launch = memory_launch(kernel, made.grid, (), arguments_of(kernel, made))
        known = _footprints[made] = footprint(launch, BUDGET, OrderedAccessLog)
    return known
