"""The pipeline: the passes between the front end and code generation, in order.

A pass is a function `(Func, Target, Notes) -> Func` in a module of its own, which registers it (see `registry`). A pass may assume
valid IR, must leave valid IR, and records every decision as a note. Its docstring is text for the user. Modules of passes are loaded when
a pipeline is built, so that an import of this package stays cheap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from blocknb import forks
from blocknb.errors import KernelError
from blocknb.ir.build import made_by
from blocknb.ir.core import Func
from blocknb.passes.registry import REGISTERED, Pass
from blocknb.target import Target
from blocknb.trace import Notes, Stage, left_out

#: Every pass, by folder and name, in the order in which they run. A comment gives the reason for a position.
ORDER = (
    "tile.simplify",
    "tile.unroll",  # after simplify: the bounds of loops are constants by then
    "tile.pointers",  # before coalesce, which reads a scalar base and invariant offsets best
    "tile.memory_order",  # after simplify, which has removed unused results of atomics
    "tile.bounds_checks",  # after pointers: addresses are final; before layouts, which take the new masks into account
    "tile.race_checks",  # after bounds_checks: masks leave out elements outside of arrays; before layouts, for the same reason
    "tile.unshared_loads",  # after race_checks, whose notes it leaves out; before layouts, for the same reason
    "tile.dtype_legalization",  # before select_mma: it decides what a dot of 8-bit floats multiplies
    "tile.nontemporal_stores",  # last on a CPU: it counts the arithmetic that is left. The CPU stops here
    "tile.choose_num_warps",  # before every pass that depends on the number of threads
    "tile.range_based_float_simplification",
    "tile.register_prefetch",  # after pointers: addresses are final; before layouts, which treat early loads like others
    "tile.early_loads",  # after register_prefetch, whose loops it leaves alone
    "tile.coalesce",  # before layout_assignment, to which it proposes the layouts of loads and stores
    "tile.select_wgmma",  # before select_mma, which takes the dots that are left
    "tile.select_mma",  # before layout_assignment: an instruction fixes the layouts of its operands
    "tile.layout_assignment",  # from here on every tile has a layout (the distributed level)
    "distributed.thread_local_reduction",  # after layouts: they say which threads share a row
    "distributed.spread_replicas",  # after layouts: they say which threads hold copies of a row
    "distributed.epilogue_subtiling",  # after layouts: they say which tiles are converted before they are stored
    "distributed.lower_conversions",  # from here on shared-memory buffers are explicit (the memory level)
    "memory.operand_staging",  # after lower_conversions: buffers of operands are known
    "memory.async_mma",  # before warp_specialization, whose consumers release a stage after the wait for the product
    "memory.program_swizzle",  # before warp_specialization, which writes the loop over programs
    "memory.persistent_grid",  # before warp_specialization, for the same reason
    "memory.warp_specialization",  # after lower_conversions: buffers and their layouts are known
    "memory.mma_softmax_overlap",  # after warp_specialization, whose circular buffers it needs
    "memory.tma_store",  # after warp_specialization, which makes the warps' roles
    "memory.software_pipelining",  # after warp_specialization: it takes the loops that are left
    "memory.operand_reload",  # after the passes that pipeline: the reads that are left before a loop are invariant
    "memory.shared_memory_allocation",  # after every pass that adds buffers
    "memory.barriers",  # after allocation: reused bytes need barriers, too
    "memory.program_packing",  # after barriers: it looks for anything that the threads of a CTA do together
    "memory.int_range_narrowing",  # after all passes that read masks and addresses as forms: it changes how both are computed
    # The passes below say where the code of an op stands, so they see the ops as the code generator does.
    "memory.strip_mining",  # after barriers, which loads may pass if no barrier of the kernel is among them
    "memory.sinking",  # after strip_mining, whose tiles it leaves alone
    "memory.rematerialization",  # after both, for the same reason
)


def load(entry: str) -> Pass:
    """Imports the module of an entry of ORDER and returns the pass that it registers."""
    forks.imported(f"blocknb.passes.{entry}")
    return REGISTERED[entry.split(".")[1]]


def _loaded(target: Target) -> Iterator[Pass]:
    for entry in ORDER:
        found = load(entry)
        if found.gpu_only and not target.is_gpu:
            return
        yield found


def pipeline(target: Target) -> tuple[Pass, ...]:
    """The passes for a target, in order. Passes of every target come before those of GPUs."""
    return tuple(_loaded(target))


def optional(target: Target | None = None) -> tuple[str, ...]:
    """The names that `without` may hold, in order; with a target, only those that its pipeline runs.

    A CPU's pipeline has fewer passes, but `without` takes the names of all passes for it, too.
    """
    return tuple(found.name for found in (map(load, ORDER) if target is None else _loaded(target)) if found.optional)


class NotOptional(ValueError):
    """`without` holds `names` that no optional pass has."""

    def __init__(self, names: Iterable[str]):
        self.names = sorted(names)
        super().__init__(f"cannot switch off {', '.join(self.names)}; the optional passes are {', '.join(optional())}")


def run(
    func: Func,
    target: Target,
    without: Iterable[str] = (),
    observe: Callable[[Stage], Stage | None] | None = None,
    begins: Callable[[str], None] = lambda name: None,
) -> tuple[Func, tuple[Stage, ...]]:
    """Runs the pipeline. New ops get the name of their pass as `origin`.

    `begins` gets the name of each pass before it runs. `observe` sees each Stage as it is done. It may return another Stage, whose IR the
    next pass then takes (an edited stage).

    A failing optional pass is left out, with a note (see `trace.left_out`). Raises NotOptional for an unknown or mandatory pass in
    `without`.
    """
    without = frozenset(without)
    if without and (unknown := without - frozenset(optional())):
        raise NotOptional(unknown)
    stages = []
    for p in pipeline(target):
        begins(p.name)
        notes, start = Notes(p.name), time.perf_counter()
        try:
            if not p.applies(func, target):
                continue
            if p.name in without:
                after = func
                notes(None, "switched off")
            else:
                with made_by(p.name):
                    after = p.run(func, target, notes)
        except Exception as error:
            if isinstance(error, KernelError):
                error.stage = error.stage or p.name
            if not p.optional:
                raise
            after, notes.list = func, [left_out(p.name, p.name, error)]
        elapsed = (time.perf_counter() - start) * 1e3
        stage = Stage(
            p.name, p.doc.split("\n")[0], p.doc, func, after, tuple(notes.list), elapsed, p.optional, p.name in without
        )
        if observe:
            stage = observe(stage) or stage
        stages.append(stage)
        func = stage.after
    return func, tuple(stages)
