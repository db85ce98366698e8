"""Sentences about a footprint, ranked by severity: races, elements outside of arrays or between them, holes, idle programs.

An *error* is certain and wrong. A *warning* is probably wrong. A *remark* is often intended: an output that is stored in part, a grid with
spare programs, an input that is read in part. The right kernels of the tests have no errors and no warnings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from blocknb.errors import Loc
from blocknb.footprint.access_log import AccessLog, OpAccesses
from blocknb.footprint.launch import ArrayLayout, MemoryRegion
from blocknb.footprint.races import ProgramRace, lane_conflict, races
from blocknb.footprint.runs import as_slices
from blocknb.footprint.value import LEVELS, ArrayFootprint, Footprint, FootprintFinding, arrays_of

EFFECTS = ("store", "print", "assert", "asm")


def footprint_of(log: AccessLog) -> Footprint:
    """The footprint of an access log, with its findings."""
    arrays = arrays_of(log)
    found = [
        *_failures(log),
        *_outside(log),
        *_races(log),
        *_lanes(log),
        *_between(arrays),
        *_effects(log),
        *_idle(log),
        *(finding for array in arrays.values() for finding in _of_array(log, array)),
    ]
    found.sort(key=lambda finding: LEVELS.index(finding.level))
    return Footprint(log.launch.func.name, log, arrays, tuple(found))


def _failures(log: AccessLog) -> Iterator[FootprintFinding]:
    for text in log.unknown[:3]:
        yield FootprintFinding("error", "failure", text)

    if log.foreign is not None:
        text = f"{log.foreign.message}: what lies there is not in the footprint"
        yield FootprintFinding("remark", "foreign", text, log.foreign.loc)


def _verb(access: OpAccesses) -> str:
    return {"load": "loads", "store": "stores", "atomic": "updates"}[access.kind]


def _outside(log: AccessLog) -> Iterator[FootprintFinding]:
    """Elements beyond the lowest or the highest one of an array."""
    for access in log.accesses.values():
        runs, array = access.runs, access.array
        bad = np.flatnonzero((runs.starts < 0) | (runs.ends > array.extent))
        if len(bad):
            at = int(bad[0])
            place = int(runs.starts[at]) if runs.starts[at] < 0 else max(int(runs.starts[at]), array.extent)
            place -= (array.address - array.low) // array.size
            programs = len(np.unique(runs.programs[bad]))
            text = (
                f"program {log.launch.spelled(runs.programs[at])} {_verb(access)} element {place} of `{array.name}`, "
                f"which has {math.prod(array.shape)} elements"
            )
            more = f" ({programs} programs access elements outside)" if programs > 1 else ""
            yield FootprintFinding(
                "error", "outside", text + more, access.op.loc, hint="mask the access, or make the grid smaller"
            )


def _races(log: AccessLog) -> Iterator[FootprintFinding]:
    for race in races(log):
        if race.first.kind == "store" == race.second.kind:
            yield _both_store(log, race)
            continue
        if race.same:
            continue
        p, q = (log.launch.spelled(n) for n in (race.first_program, race.second_program))
        element = _element(race.region, race.second.array, race.place)
        through = "" if race.first.array is race.second.array else f" through `{race.first.array.name}`"
        second = "updates" if race.second.kind == "atomic" else "loads"
        how = "updates atomically" if race.first.kind == "atomic" else "stores"
        text = f"race: program {q} {second} {element} of `{race.second.array.name}`, which program {p} {how}{through}"
        sure = race.same is False or race.second.kind == "atomic"
        # A compare-and-swap that fails writes nothing, so it may not race with a load.
        level = "remark" if race.first.op.name == "atomic_cas" else "error" if sure else "warning"
        yield FootprintFinding(
            level,
            "race",
            text + _more(race.count, "are shared like this"),
            race.second.op.loc,
            race.first.op.loc,
            "programs run in any order: let each one access only elements that no other one stores, or launch two kernels",
        )


def _both_store(log: AccessLog, race: ProgramRace) -> FootprintFinding:
    p, q = map(log.launch.spelled, sorted((race.first_program, race.second_program)))
    array = race.first.array
    element = _element(race.region, array, race.place)
    if race.same:
        text = f"programs {p} and {q} both store {element} of `{array.name}`, with the same value"
        return FootprintFinding("remark", "race", text, race.first.op.loc, _other(race))
    text = f"race: programs {p} and {q} both store {element} of `{array.name}`"
    hint = "let each program store its own elements, or use an atomic"
    if array.extent == 1:  # no address has room for a program's number
        hint = "use an atomic to combine the values of several programs"
    elif _all_store_same_elements(race):
        hint = "every program stores the same elements: is program_id in the address?"
    more = _more(race.count, "have several writers")
    return FootprintFinding(
        "warning" if race.same is None else "error", "race", text + more, race.first.op.loc, _other(race), hint
    )


def _other(race: ProgramRace) -> Loc | None:
    return race.second.op.loc if race.second.op is not race.first.op else None


def _more(count: int, what: str) -> str:
    return f" ({count} elements {what})" if count > 1 else ""


def _element(region: MemoryRegion, array: ArrayLayout, place: int) -> str:
    return array.element((place * region.unit + region.low - array.low) // array.size)


def _all_store_same_elements(race: ProgramRace) -> bool:
    """Whether all programs that store to an array store to the same elements."""
    runs = race.first.runs
    programs, counts = np.unique(runs.programs, return_counts=True)
    if len(programs) < 2 or (counts != counts[0]).any():
        return False
    order = np.lexsort((runs.starts, runs.programs))
    starts, ends = (x[order].reshape(len(programs), -1) for x in (runs.starts, runs.ends))
    return bool((starts == starts[0]).all() and (ends == ends[0]).all())


def _lanes(log: AccessLog) -> Iterator[FootprintFinding]:
    """Two lanes of one store that take one element."""
    for access in log.accesses.values():
        found = lane_conflict(log, access)
        if found is None or found[1] is False:
            continue
        program, sure = found
        text = f"program {log.launch.spelled(program)} stores several values to one element of `{access.array.name}`"
        hint = "which value stays is undefined: make the addresses of the lanes differ, or reduce the values first"
        yield FootprintFinding("error" if sure else "warning", "lanes", text, access.op.loc, hint=hint)


def _between(arrays: dict[str, ArrayFootprint]) -> Iterator[FootprintFinding]:
    """Places between the elements of a strided view."""
    for found in arrays.values():
        gaps = found.array.gaps
        if gaps is None:
            continue
        inside = np.r_[0, np.cumsum(gaps)]
        for accesses in (found.stores, found.atomics, found.loads):
            for access in accesses.accesses:
                runs = access.runs
                low, high = (np.clip(x, 0, len(gaps)) for x in (runs.starts, runs.ends))
                if (inside[high] > inside[low]).any():
                    yield _gap(access, contiguous=bool((runs.ends - runs.starts).max() > 1))
                    break


def _gap(access: OpAccesses, contiguous: bool) -> FootprintFinding:
    name, load = access.array.name, access.kind == "load"
    how = f"{'reads' if load else 'writes'} it as contiguous"
    if not contiguous:
        how = f"{_verb(access)} what lies between its elements"
    hint = f"pass the strides of `{name}` and multiply the indices by them, or pass a contiguous copy"
    text = f"`{name}` is a strided view, and the kernel {how}"
    return FootprintFinding("warning" if load else "error", "strides", text, access.op.loc, hint=hint)


def _effects(log: AccessLog) -> Iterator[FootprintFinding]:
    wanted = (op for op in log.launch.func.ops() if op.name != "assert" or len(op.args) == 1)  # not tests of hints
    if not any(op.name in EFFECTS or op.name.startswith("atomic") for op in wanted):
        hint = "end with tl.store(pointer, value)"
        yield FootprintFinding(
            "error", "no store", "the kernel has no store: what it computes is lost", log.launch.func.loc, hint=hint
        )


def _idle(log: AccessLog) -> Iterator[FootprintFinding]:
    if log.sampled:
        return
    idle, total = int(np.count_nonzero(log.active == 0)), log.launch.programs
    if 0 < idle < total:
        text = f"{idle} of {total} programs touch nothing: the grid is larger than the work"
        yield FootprintFinding("remark", "idle", text)
    elif idle == total and log.executed.any():
        nothing = any(math.prod(array.shape) == 0 for array in log.launch.arrays)
        text = f"no program touches any element: every mask is off in all {total} programs"
        yield FootprintFinding("remark" if nothing else "warning", "idle", text)
    elif idle == total and total and any(op.name == "store" for op in log.launch.func.ops()) and not log.unknown:
        text = f"no program touches any element: none of the {total} programs reaches a load or a store"
        yield FootprintFinding("remark", "idle", text)


def _of_array(log: AccessLog, found: ArrayFootprint) -> Iterator[FootprintFinding]:
    """Elements that are never stored or never loaded, if all programs were followed."""
    total, name = math.prod(found.shape), found.name
    if log.sampled or log.unknown:
        return
    loads, stores, atomics = bool(found.loads), bool(found.stores), bool(found.atomics)
    if not (loads or stores or atomics):
        yield FootprintFinding("remark", "unused", f"`{name}`: no program accesses it")
    elif stores and not loads and not atomics and (holes := found.stores.holes):
        count = sum(b - a for a, b in holes)
        text = f"`{name}`: {count} of {total} elements are never stored: {as_slices(holes)}"
        yield FootprintFinding("remark", "holes", text, found.stores.accesses[0].op.loc)
    elif loads and not stores and not atomics and (holes := found.loads.holes):
        count = sum(b - a for a, b in holes)
        text = f"`{name}`: {count} of {total} elements are never loaded: {as_slices(holes)}"
        yield FootprintFinding("remark", "unread", text, found.loads.accesses[0].op.loc)
