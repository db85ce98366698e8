"""Rules about compiled code: sectors, registers, shared memory, spills, instructions, and the timeline's model.

They compile the kernel of an Attempt for a GPU, which needs none. Numbers of the launch may be replaced, so that a rule can ask about a
product of 4096 while the cases stay small: `mma_utilization(0.7, M=4096, N=4096, K=4096)`. A rule whose numbers are unknown raises
ToolMissing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

from blocknb.codegen.toolchain import how_to_get
from blocknb.errors import KernelError
from blocknb.learn.cell import Answer, answer_of, line_of, matched
from blocknb.learn.exercise import Case, CheckFinding, Exercise, Rule
from blocknb.learn.running import Attempt, TimeUp, ToolMissing, grid_of, limited, prepared
from blocknb.notebook.accesses import TileAccess, accesses_of
from blocknb.notebook.observe import Specialisation
from blocknb.profile.occupancy import occupancy
from blocknb.profile.timeline import has_timeline, timeline
from blocknb.runtime.binding import normal_grid
from blocknb.runtime.compile import Compiled
from blocknb.runtime.kinds import flat
from blocknb.runtime.summary import scalars_of, summary

TARGET = "sm_90a"
MULTIPROCESSORS = 132  # of an H100 or H200
COMPILE_SECONDS = 30.0
NO_PTXAS = f"ptxas is not installed, and only ptxas knows the number of registers: {how_to_get('ptxas')}"
MOST_STEPS = 6000  # ops of the timeline, as on a card

Check = Callable[[Attempt], Iterator[CheckFinding]]


def gpu_code(made: Attempt, target: str = TARGET, answer: Answer | None = None, **numbers: Any) -> Specialisation:
    """The launch of an attempt, compiled for a GPU: of its answer or another one, with some arguments replaced. Raises KernelError."""
    answer = answer or made.answer
    constants = made.constants if answer is made.answer else {}
    return _compiled(made.exercise, answer, made.case, target, tuple(numbers.items()), tuple(constants.items()))


@functools.lru_cache(maxsize=64)
def _compiled(
    exercise: Exercise,
    answer: Answer,
    case: Case,
    target: str,
    numbers: tuple[tuple[str, Any], ...],
    constants: tuple[tuple[str, Any], ...],
) -> Specialisation:
    """The code depends on the types and numbers of a case, not on the contents of its arrays."""
    arguments = prepared(exercise, case, 0)
    arguments |= {name: value for name, value in numbers if name in arguments}
    given, kernel = matched(answer, arguments) | dict(constants), answer.base
    binding, values = kernel.bound_call((), given)
    kinds, _ = kernel.describe(binding, values)
    summaries = {name: summary(value, kind) for name, kind, value in flat(binding.names, kinds, values)}
    with limited(COMPILE_SECONDS):
        compiled = kernel.compile(**given, target=target)
    grid = normal_grid(kernel.source, grid_of(exercise, answer, arguments), {})
    return Specialisation(compiled, -1, grid, summaries, launches=1)


@functools.lru_cache(maxsize=64)
def mma_busy_fraction(made_for: Specialisation) -> float | None:
    """The fraction of the time in which products run, in the timeline's model of a multiprocessor; None without products and copies."""
    trace = made_for.compiled.trace
    func = trace.stages[-1].after
    if not has_timeline(func):
        return None
    held = occupancy(trace.target, trace.resources)
    ctas = MULTIPROCESSORS * (held.blocks_per_sm if held else 1)
    return timeline(func, scalars_of(made_for.arguments), made_for.grid, ctas=ctas, most=MOST_STEPS).busy


def _rule(
    name: str,
    says: str,
    find: Callable[[Attempt], Iterator[str | tuple[str, int | None]]],
    once: bool = True,
    target: str = TARGET,
) -> Rule:
    """A rule whose sentences come from `find`, which compiles for `target`. A kernel that cannot be compiled breaks it."""

    def check(made: Attempt) -> Iterator[CheckFinding]:
        try:
            for found in find(made):
                text, line = found if isinstance(found, tuple) else (found, None)
                yield CheckFinding(text, "rule", True, line)
        except KernelError as error:
            yield CheckFinding(_refusal(error, target), "rule", True, line_of(error.loc))
        except TimeUp:
            yield CheckFinding(
                f"the compilation for {target} takes more than {COMPILE_SECONDS:.0f} seconds: make the tiles smaller",
                "rule",
                True,
            )

    return Rule(name, says, check, once)


def _refusal(error: KernelError, target: str) -> str:
    return f"the kernel does not compile for {target}: {error.message}" + (f": {error.hint}" if error.hint else "")


def _assembles(made: Attempt) -> Iterator[str | tuple[str, int | None]]:
    for target in ("sm_80", "sm_90a"):
        try:
            gpu_code(made, target)
        except KernelError as error:
            yield _refusal(error, target), line_of(error.loc)


assembles = _rule("assembles", "The kernel compiles for sm_80 and sm_90a.", _assembles)


def _of_resources(
    name: str, says: str, read: Callable[[Compiled], int | None], most: float, text: str, numbers: dict[str, Any]
) -> Rule:
    def find(made: Attempt) -> Iterator[str]:
        found = read(gpu_code(made, **numbers).compiled)
        if found is None:
            raise ToolMissing(NO_PTXAS)
        if found > most:
            yield text.format(found=f"{found:,}", most=f"{int(most):,}")

    return _rule(name, says, find)


def registers_at_most(most: int, **numbers: Any) -> Rule:
    """A thread needs at most this number of registers on sm_90a."""
    text = "a thread needs {found} registers, and at most {most} are wanted: smaller tiles or more warps need fewer"
    says = f"A thread needs at most {most} registers."
    return _of_resources(f"registers_at_most({most})", says, lambda c: c.trace.resources.registers, most, text, numbers)


def shared_at_most(most: int, **numbers: Any) -> Rule:
    """A program needs at most this number of bytes of shared memory on sm_90a."""
    text = (
        "a program needs {found} bytes of shared memory, and at most {most} are wanted: smaller tiles or fewer stages "
        "need less"
    )
    says = f"A program needs at most {most:,} bytes of shared memory."
    return _of_resources(f"shared_at_most({most})", says, lambda c: c.trace.resources.shared_bytes, most, text, numbers)


no_spills = _of_resources(
    "no_spills",
    "No register is spilled to memory.",
    lambda compiled: compiled.trace.resources.spill_bytes,
    0,
    "the registers do not suffice: a thread spills {found} bytes to memory; make the tiles smaller, or use more warps",
    {},
)


def programs_per_multiprocessor(least: int, **numbers: Any) -> Rule:
    """A multiprocessor of sm_90a holds at least this number of programs at once."""

    def find(made: Attempt) -> Iterator[str]:
        trace = gpu_code(made, **numbers).compiled.trace
        held = occupancy(trace.target, trace.resources)
        if held is None:
            raise ToolMissing(NO_PTXAS)
        if held.blocks_per_sm < least:
            advice = "".join(f"; {line}" for line in held.advice[:1])
            yield f"a multiprocessor holds {held.blocks_per_sm} of these programs, and {least} are wanted: {held.limiter} limits it{advice}"

    return _rule(f"programs_per_multiprocessor({least})", f"A multiprocessor holds {least} programs at once.", find)


def emits(instruction: str, target: str = TARGET, **numbers: Any) -> Rule:
    """The PTX for `target`, or its SASS, contains an instruction: "wgmma", "mma.sync", "cp.async.bulk"."""

    def find(made: Attempt) -> Iterator[str]:
        compiled = gpu_code(made, target, **numbers).compiled
        if instruction in str(compiled.asm.get("ptx", "")):
            return
        why = [
            note.text
            for stage in compiled.trace.stages
            for note in stage.notes
            if _about(note.text, instruction) and note.kind == "missed"
        ]
        yield f"the code for {target} has no {instruction}" + (f": {why[0]}" if why else "")

    return _rule(f"emits({instruction})", f"The code for {target} uses {instruction}.", find, target=target)


def _about(text: str, instruction: str) -> bool:
    return instruction.split(".")[0] in text


def mma_utilization(least: float, **numbers: Any) -> Rule:
    """Matrix products run at least this fraction of the time, in the timeline's model of sm_90a."""

    def find(made: Attempt) -> Iterator[str]:
        found = mma_busy_fraction(gpu_code(made, **numbers))
        if found is None:
            yield "the kernel has no matrix product and no copy to shared memory: use tl.dot in the loop"
        elif found < least:
            yield f"matrix products are under way {found:.0%} of the time, and {least:.0%} is wanted: see the tab Timeline"

    return _rule(
        f"mma_utilization({least:g})", f"Matrix products are under way {least:.0%} of the time (timeline).", find
    )


def waves_busy(least: float, multiprocessors: int = MULTIPROCESSORS, **numbers: Any) -> Rule:
    """The programs fill whole waves: the average share of busy places over all waves is at least this fraction."""

    def find(made: Attempt) -> Iterator[str]:
        made_for = gpu_code(made, **numbers)
        trace = made_for.compiled.trace
        held = occupancy(trace.target, trace.resources)
        places = multiprocessors * (held.blocks_per_sm if held else 1)
        programs = math.prod(made_for.grid)
        waves = -(-programs // places)
        if waves and programs / (waves * places) < least:
            yield (
                f"{programs} programs take {waves} wave{'s' * (waves > 1)} of {places}, which are {programs / (waves * places):.0%} busy; "
                f"{least:.0%} is wanted: other tile sizes give another number of programs"
            )

    return _rule(f"waves_busy({least:g})", f"The waves of programs keep {least:.0%} of the multiprocessors busy.", find)


def _rows(made: Attempt, answer: Answer | None = None) -> tuple[TileAccess, ...]:
    """The accesses of a program in the middle of the grid."""
    made_for = gpu_code(made, answer=answer)
    return accesses_of(made_for, TARGET, math.prod(made_for.grid) // 2).rows


def _ideal_sectors(made: Attempt) -> Iterator[tuple[str, int | None]]:
    """Where a ragged row begins inside a sector, no kernel reaches the ideal: the solution's own ratio is allowed."""
    bad = [row for row in _rows(made) if _ratio(row) > 1]
    if not bad:
        return
    allowed = max((_ratio(row) for row in _rows(made, answer_of(made.exercise, made.exercise.solution))), default=1.0)
    for row in bad:
        if _ratio(row) > allowed:
            verb = {"load": "loads", "store": "stores to"}.get(row.name, "accesses")
            yield (
                f"a program {verb} `{row.array}` in {row.sectors} sectors, and {row.ideal} would hold the same elements: "
                "let neighbouring lanes access neighbouring elements",
                row.line or None,
            )


def _ratio(row: TileAccess) -> float:
    return row.sectors / row.ideal if row.sectors and row.ideal else 1.0


ideal_sectors = _rule("ideal_sectors", "Every access touches as few sectors as possible.", _ideal_sectors, once=False)


def _narrow(made_for: Specialisation, row: TileAccess) -> str:
    """Why the accesses of this kind in a row's line are not wider, by the notes of the pass `coalesce`; "" if the notes disagree."""
    said = {
        note.text.partition("; not wider: ")[2]
        for stage in made_for.compiled.trace.stages
        for note in stage.notes
        if stage.name == "coalesce" and note.text.startswith(f"{row.name}: ") and line_of(note.loc) == row.line
    } - {""}
    return said.pop() if len(said) == 1 else ""


def bytes_per_lane(least: int, *arrays: str) -> Rule:
    """Every load and store of these arrays, or of all, moves at least this number of bytes per lane, in every case."""

    def find(made: Attempt) -> Iterator[tuple[str, int | None]]:
        chosen = [made.parameter(name) for name in arrays] or list(made.names)
        for row in _rows(made):
            if row.array in chosen and row.bytes < least:
                text = f"a lane moves {row.bytes} bytes of `{row.array}` with one instruction, and {least} are wanted"
                why = _narrow(gpu_code(made), row)
                yield text + (f": {why}" if why else ""), row.line or None

    return _rule(f"bytes_per_lane({least})", f"A lane moves {least} bytes with each load and store.", find, once=False)
