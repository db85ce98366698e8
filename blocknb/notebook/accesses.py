"""The memory accesses of a kernel on a GPU as a table in Python: the figures of the card's view Tiles.

`accesses(kernel)` returns a table that displays itself and that code can calculate with. Nothing is measured. The sectors follow from
layouts, scalar arguments and the grid, so a machine without a GPU gives the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from blocknb.analysis.effects import global_operands
from blocknb.analysis.partial_evaluation.evaluator import box_operands
from blocknb.errors import LaunchError
from blocknb.ir.core import Op
from blocknb.notebook.concurrent_compile import DEFAULT_VIEW
from blocknb.notebook.observe import Observation, Specialisation, record_of
from blocknb.notebook.sections import line_of
from blocknb.notebook.tiles import TileView
from blocknb.profile import addresses, tiles
from blocknb.profile.addresses import is_bulk
from blocknb.profile.replay import work_of
from blocknb.profile.work import Work
from blocknb.runtime.kernel import Kernel
from blocknb.trace import Trace


@dataclass(frozen=True)
class TileAccess:
    """A load, store, atomic or TMA box of one program, in one iteration of its loops, at source `line`, of the array `array`.

    `bytes` is what a lane moves with one instruction (for TMA, what its one thread requests). `requests` counts the requests of all
    warps, and `sectors` the 32-byte sectors that they touch. `ideal` is the fewest sectors that hold the same elements. `iterations`
    counts the iterations of the innermost loop around the access. Figures that depend on loaded data are None.
    """

    line: int
    name: str
    array: str
    bytes: int
    requests: int | None
    sectors: int | None
    ideal: int | None
    iterations: int | None


@dataclass(frozen=True, eq=False)
class Accesses:
    """The accesses of one program of a launch in program order, the `trace` of the GPU code, and the `work` of all programs."""

    rows: tuple[TileAccess, ...]
    trace: Trace
    work: Work

    @property
    def barriers(self) -> int:
        """The number of barriers at which the warps of a CTA wait for each other."""
        return sum(op.name == "barrier" for op in self.trace.stages[-1].after.ops())

    @property
    def shared_bytes(self) -> int:
        """The bytes of shared memory per CTA."""
        return int(self.trace.stages[-1].after.attrs.get("shared_bytes", 0))

    def __repr__(self) -> str:
        """The rows in columns, then the bytes of the launch."""
        head = ["line", "", "array", "bytes per lane", "requests", "sectors", "ideal", "iterations"]
        body = [[_shown(value) for value in astuple(row)] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines = ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in (head, *body)]
        moved = f"{_shown(self.work.unique_bytes)} unique bytes, {_shown(self.work.issued_bytes)} issued bytes"
        return "\n".join([*lines, f"{self.trace.target}, per program and iteration. Launch: {moved}"])


def accesses(subject: Kernel | Callable[[], Any], target: str = DEFAULT_VIEW, program: int = 0) -> Accesses:
    """The memory accesses of a launch on a GPU, for the program with the number `program`.

    The launch is the last one of `subject`. If `subject` is a kernel, that is its launch by the last `%%blockkernel` cell. If it is a
    function without arguments, that is the last launch that it makes. Raises LaunchError without a launch, and KeyError for a program that
    the grid does not have.
    """
    return accesses_of(_launched(subject), target, program)


def accesses_of(made: Specialisation, target: str = DEFAULT_VIEW, program: int = 0) -> Accesses:
    """The table of one launch. Raises KeyError for a program that the grid does not have."""
    gpu = made.compiled.trace if str(made.compiled.target) == target else made.compiled.retarget(target).trace
    found = TileView(gpu, made)
    if not 0 <= program < found.programs_launched:
        raise KeyError(f"program {program} is out of range: the grid has {found.programs_launched} programs")
    rows = []
    for number, access in found.addresses.of(found.place(program), 0).items():
        op = next(op for op in found.listed if op.id == number)
        if is_bulk(op):
            rows.append(_bulk(op, access, line_of(op.loc, gpu.file) or 0))
            continue
        element, layout = global_operands(op)[0].type.dtype.element, tiles.layout_of(op, found.warps)
        groups = tiles.instructions(found.facts, op, layout)
        seen = (
            None
            if access.offsets is None
            else tiles.traffic(access, layout, groups, element.bytes, found.start(access.array))
        )
        requests, sectors, ideal = (seen.requests, seen.sectors, seen.ideal) if seen else (None, None, None)
        bytes_, line = element.bytes * len(groups[0]), line_of(op.loc, gpu.file) or 0
        rows.append(TileAccess(line, op.name, access.array, bytes_, requests, sectors, ideal, access.iterations))
    work = work_of(made.compiled, made.arguments, made.grid)
    return Accesses(tuple(rows), gpu, work)


def _bulk(op: Op, moved: addresses.TracedAccess, line: int) -> TileAccess:
    """A TMA box: the request of one thread for whole rows, and the sectors that hold them."""
    parts = box_operands(op)
    buffer, box = parts.buffer.type, parts.map.type.box
    size, requests = buffer.dtype.bytes, math.prod(buffer.shape) // math.prod(box)
    inside = None if moved.offsets is None else np.broadcast_to(moved.offsets, moved.on.shape)[moved.on]
    sectors = None if inside is None else len(np.unique(inside // tiles.SECTOR_BYTES))
    ideal = None if inside is None else -(-len(inside) * size // tiles.SECTOR_BYTES)
    return TileAccess(line, op.name, moved.array, math.prod(box) * size, requests, sectors, ideal, moved.iterations)


def _launched(subject: Kernel | Callable[[], Any]) -> Specialisation:
    if isinstance(subject, Kernel):
        record = record_of(subject)
    else:
        observation = Observation()
        observation.start()
        try:
            subject()
        finally:
            observation.stop()
        record = list(observation.records.values())[-1] if observation.records else None
    if record is None or record.latest is None or not record.latest.launches:
        raise LaunchError(
            "there is no launch to analyse",
            hint="launch the kernel in a %%blockkernel cell, or pass a function that launches it",
        )
    return record.latest


def _shown(value: int | str | None) -> str:
    return "?" if value is None else f"{value:,}" if isinstance(value, int) else value
