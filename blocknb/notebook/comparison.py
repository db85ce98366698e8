"""Compares a changed kernel with the kernel of the run cell: first their outputs, then their times, in turns on one set of copies.

A change is another value of a knob or in a sweep, or an edited stage. Its time counts only if its outputs are those of the cell's kernel on
the same inputs (see `profile.outputs`). It is faster or slower only beyond noise (see `profile.noise`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blocknb.errors import LaunchError
from blocknb.notebook import numbers, timelines
from blocknb.notebook.card import Card
from blocknb.notebook.observe import Specialisation
from blocknb.profile import noise
from blocknb.profile.noise import TimeRatio
from blocknb.profile.outputs import OutputComparison, PoisonedOutputs
from blocknb.profile.timing import Timing, interleaved
from blocknb.runtime.compile import Compiled
from blocknb.runtime.grids import ArrayFreed
from blocknb.runtime.kernel import Kernel
from blocknb.runtime.launch_context import unobserved
from blocknb.runtime.prepared_launch import PreparedLaunch, prepare
from blocknb.trace import Trace

SECONDS, MOST_SECONDS = 1.5, 2.5  # of a comparison; the longer one on a busy machine and for a slow kernel
CELL, NOW = "cell", "now"

Prepare = Callable[[Any, dict[str, Any]], PreparedLaunch]


@dataclass(frozen=True)
class Comparison:
    """The times of both sides, their ratio, and what the outputs showed. `ratio` is None where nothing was timed; `why` says why not."""

    outputs: OutputComparison
    cell: Timing | None = None
    now: Timing | None = None
    ratio: TimeRatio | None = None
    busy: str = ""
    why: str = ""

    @property
    def verdict(self) -> str:
        """ "wrong", "unmeasured", or the verdict of the ratio: "faster", "slower", "noise"."""
        if self.outputs.right is False:
            return "wrong"
        return "unmeasured" if self.ratio is None else self.ratio.verdict

    @property
    def text(self) -> str:
        """The verdict as a sentence without a period."""
        if self.outputs.right is False:
            return f"✗ WRONG: {self.outputs.text}"
        if self.ratio is None:
            return f"not measured: {self.why}"
        return numbers.ratio(self.ratio, "the cell’s kernel")

    @property
    def part(self) -> dict[str, Any]:
        """The comparison as a document holds it."""
        sides = {CELL: self.cell, NOW: self.now}
        return {
            "verdict": self.verdict,
            "text": self.text,
            "outputs": self.outputs.text,
            "ratio": None if self.ratio is None else self.ratio.entry,
            **{name: None if timing is None else timing.entry for name, timing in sides.items()},
        }


def compare(
    kernel: Kernel, made: Specialisation, now: Compiled, prepare_now: Prepare, wrong_too: bool = False
) -> tuple[Comparison, Specialisation]:
    """Judges and times the code `now` against the newest launch of a kernel; returns its launches, too.

    Code with other outputs is timed only with `wrong_too`. `prepare_now(grid, arguments)` prepares it for copies of the arguments. Raises
    LaunchError if there can be no copies, and KernelError as a launch does."""
    assert made.snapshot is not None
    assert made.snapshot.grid is not None
    stored, loaded = made.compiled.stored | now.stored, made.compiled.loaded | now.loaded
    try:
        copies = PoisonedOutputs(made.snapshot, stored, loaded)
    except LookupError as error:
        raise LaunchError(str(error), hint="run the cell again") from None
    given = copies.copies.arguments
    options = {n: v for n, v in made.compiled.options.items() if n not in given}
    try:
        grid = made.snapshot.grid.given()
    except ArrayFreed:
        raise LaunchError(
            "a value that the grid depends on is no longer available", hint="run the cell again"
        ) from None
    base = prepare(kernel, grid, {**given, **options})
    changed = prepare_now(grid, given)
    if 0 in changed.grid:
        raise LaunchError(f"with these values the grid of {kernel.__name__} is empty", hint="choose smaller tiles")
    with unobserved():
        outputs = copies.compare_launches(changed, base)
        found = _timed(made, outputs, base, changed) if wrong_too or outputs.right is not False else Comparison(outputs)
    return found, _launched(made, found, changed)


def _launched(made: Specialisation, found: Comparison, changed: PreparedLaunch) -> Specialisation:
    """The launches of the changed code, as the record of a cell holds them. It keeps the user's arrays, not the copies."""
    compiled = changed.plan.compiled
    constants = {n: {"kind": "constant", "type": None, "value": v} for n, v in compiled.trace.constants.items()}
    arguments = {n: constants.get(n, summary) for n, summary in made.arguments.items()}
    record = Specialisation(compiled, made.device, changed.grid, arguments, launches=1, snapshot=made.snapshot)
    record.busy = found.busy
    if found.now is not None:
        record.repeats, record.launches = found.now, 1 + found.now.runs
    return record


def _timed(
    made: Specialisation, outputs: OutputComparison, base: PreparedLaunch, changed: PreparedLaunch
) -> Comparison:
    """Times both sides in turns."""
    begin = time.perf_counter()
    for launch in (base, changed):
        launch()
    pair = time.perf_counter() - begin
    if pair > MOST_SECONDS:
        return Comparison(outputs, why=f"one launch of each side takes {numbers.time(pair * 1e3)}")
    least = MOST_SECONDS if noise.busy() else SECONDS
    seconds = max(least, min(MOST_SECONDS, pair * (noise.LEAST_PAIRS + 2)))
    found = interleaved(
        {CELL: base, NOW: changed},
        gpu=made.compiled.target.is_gpu,
        rounds=noise.MOST_ROUNDS,
        warmup=0,
        seconds=seconds,
        cold=False,
        going=noise.until_precise(CELL, NOW),
    )
    if found.cancelled:
        raise KeyboardInterrupt
    here = numbers.place(made.compiled.target, made.device)
    times = {name: timing.on(here) for name, timing in found.items()}
    ratio = noise.ratio(times[NOW], times[CELL])
    return Comparison(outputs, times[CELL], times[NOW], ratio, noise.busy(list(times.values())))


def code_notes(card: Card, modified: Card) -> list[str]:
    """The effect of a change on the code of each target: nothing, or on a displayed GPU the modelled time before and after."""
    notes = []
    for before, after in zip(card.views, modified.views, strict=False):
        if before.trace is None or after.trace is None:
            continue
        if same_code(before.trace, after.trace):
            notes.append(no_effect(before.label))
        elif before.role == "view" and before.trace.target.is_gpu:
            notes.append(timelines.predicted((card.main, before.trace), (modified.main, after.trace)))
    return notes


def same_code(a: Trace, b: Trace) -> bool:
    """Whether two compilations gave the same LLVM text, and so the same machine code."""
    return a.llvm is not None and a.llvm == b.llvm


def no_effect(label: str) -> str:
    return f"no effect on {'the CPU' if label == 'CPU' else label}: the code is the same"
