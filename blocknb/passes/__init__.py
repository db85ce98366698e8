"""The pipeline: what happens to a kernel between the front end and code generation, readable in a minute.

A pass is a function `(Func, Target, Notes) -> Func`. It may assume valid IR and must leave valid IR; it records every decision
as a note. The first line of its docstring is its title in the card, the rest is text for the user.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from blocknb.ir.core import Func
from blocknb.target import Target
from blocknb.trace import Notes, Stage, left_out


@dataclass(frozen=True)
class Pass:
    """A pass and its place: `optional` ones can be switched off by name (`without={"coalesce"}`), and one that does not apply to
    a function is not part of its compilation."""

    name: str
    run: Callable[[Func, Target, Notes], Func]
    optional: bool = False
    applies: Callable[[Func, Target], bool] = lambda func, target: True

    @property
    def doc(self) -> str:
        return (self.run.__doc__ or "").strip()


def pipeline(target: Target) -> tuple[Pass, ...]:
    """The passes for a target, in order. The order matters where a comment says so."""
    from blocknb.passes import (
        allocate,
        assign,
        barriers,
        bulk,
        checks,
        coalesce,
        defer,
        epilogue,
        floats,
        memory_order,
        narrow,
        order,
        outstanding,
        overlap,
        pack,
        persist,
        pointers,
        prefetch,
        prologue,
        rings,
        scans,
        shared,
        simplify,
        specialize,
        tensorcore,
        unroll,
        warps,
        wgmma,
    )

    common = (
        Pass("simplify", simplify.simplify, optional=True),
        Pass("unroll", unroll.unroll, optional=True),  # after simplify, so that bounds are constants
        Pass(
            "pointers", pointers.pointers, optional=True
        ),  # scalar bases and invariant offsets: coalesce reads them best
        Pass(
            "memory_order", memory_order.memory_order, applies=memory_order.applies
        ),  # after simplify: what is unused is known
        Pass("checks", checks.checks, applies=checks.applies),  # addresses are final, layouts can still take account
        Pass("narrow", narrow.narrow),  # before tensorcore: it says what a dot of 8-bit floats multiplies
    )
    if target.kind == "cpu":
        return common  # the CPU leaves at the tile level
    return (
        *common,
        Pass("warps", warps.warps, applies=warps.applies),  # before those that know of threads
        Pass("floats", floats.floats, optional=True),
        Pass(  # when addresses are final, and before layouts, for which early loads are as any others
            "prefetch", prefetch.prefetch, optional=True, applies=prefetch.applies
        ),
        Pass("scans", scans.scans),  # before layouts: it makes a row into as many rows as there are warps
        Pass("coalesce", coalesce.coalesce, optional=True),
        Pass("wgmma", wgmma.wgmma, optional=True, applies=wgmma.applies),  # before tensorcore, which has the rest
        Pass("tensorcore", tensorcore.tensorcore, optional=True),
        Pass("assign", assign.assign),  # from here on every tile has a layout
        Pass(  # when it is known which threads share a row
            "defer", defer.defer, optional=True, applies=defer.applies
        ),
        Pass("epilogue", epilogue.epilogue, optional=True),  # when it is known what is converted to be stored
        Pass("shared", shared.shared),  # conversions that cross warps become explicit
        Pass(
            "prologue", prologue.prologue, optional=True, applies=rings.applies
        ),  # when it is known what is stored there
        Pass(
            "outstanding", outstanding.outstanding, optional=True, applies=outstanding.applies
        ),  # what reads slots says when it is done
        Pass("order", order.order, optional=True, applies=order.applies),
        Pass("persist", persist.persist, optional=True, applies=persist.applies),
        Pass(  # when it is known what is stored to shared memory, and in which layout
            "specialize", specialize.specialize, optional=True, applies=specialize.applies
        ),
        Pass("overlap", overlap.overlap, optional=True, applies=overlap.applies),  # of rings that `specialize` has made
        Pass("bulk", bulk.bulk, optional=True, applies=bulk.applies),  # of what specialize has made
        Pass(  # what is left of it
            "pipeline", rings.pipeline, optional=True, applies=rings.applies
        ),
        Pass("allocate", allocate.allocate),
        Pass("barriers", barriers.barriers),  # when every access to shared memory is there
        Pass("pack", pack.pack, optional=True, applies=pack.applies),  # last: it asks for what threads do together
    )


#: The stages of a loop for which neither the launch nor `tl.range` names a number: 1 is none beside the trip itself (see `prefetch`),
STAGES = 1
#: and those of a loop with products (see `pipeline`), as in Triton.
DOT_STAGES = 3

#: What `without` may name. A CPU's pipeline has fewer passes, and takes all of these names.
OPTIONAL = (
    "simplify",
    "unroll",
    "pointers",
    "floats",
    "prefetch",
    "coalesce",
    "wgmma",
    "tensorcore",
    "defer",
    "epilogue",
    "prologue",
    "outstanding",
    "order",
    "persist",
    "specialize",
    "overlap",
    "bulk",
    "pipeline",
    "pack",
)


def run(
    func: Func, target: Target, without: Iterable[str] = (), observe: Callable[[Stage], None] | None = None
) -> tuple[Func, tuple[Stage, ...]]:
    """Runs the pipeline. `observe` sees each Stage as it is done. An optional pass that fails is left out, with a note
    (see `trace.left_out`). Raises ValueError for an unknown or mandatory pass in `without`."""
    without = frozenset(without)
    if unknown := without - frozenset(OPTIONAL):
        raise ValueError(
            f"cannot switch off {', '.join(sorted(unknown))}; the optional passes are {', '.join(OPTIONAL)}"
        )
    stages = []
    for p in pipeline(target):
        notes, start = Notes(p.name), time.perf_counter()
        try:
            if not p.applies(func, target):
                continue
            if p.name in without:
                after = func
                notes(None, "switched off")
            else:
                after = p.run(func, target, notes)
        except Exception as error:
            if not p.optional:
                raise
            after, notes.list = func, [left_out(p.name, p.name, error)]
        elapsed = (time.perf_counter() - start) * 1e3
        stage = Stage(
            p.name, p.doc.split("\n")[0], p.doc, func, after, tuple(notes.list), elapsed, p.optional, p.name in without
        )
        stages.append(stage)
        if observe:
            observe(stage)
        func = after
    return func, tuple(stages)
