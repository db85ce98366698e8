"""Rules about memory, read off the footprint of a launch: who stores what, races, and how often bytes are loaded.

A `Rule` receives an `Attempt` whose result is right, and yields sentences about what breaks it. Memory rules examine every case, because
a ragged one may break what a friendly one does not. Without a whole footprint, they raise Unchecked, and the answer is not accepted.
`code_rules` has the rules about compiled code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from blocknb.errors import KernelError
from blocknb.footprint.runs import SEVERAL
from blocknb.footprint.value import AccessMap, ArrayFootprint, Footprint, FootprintFinding
from blocknb.learn.cell import line_of, matched
from blocknb.learn.exercise import CheckFinding, Rule, listed
from blocknb.learn.running import Attempt, called, region_text
from blocknb.runtime.footprints import memory_launch
from blocknb.runtime.launch_snapshot import remember
from blocknb.runtime.order_check import check_orders


def _lines(accesses: AccessMap) -> list[int]:
    """The lines of the ops that access an array."""
    return sorted({line for access in accesses.accesses if (line := line_of(access.op.loc)) is not None})


def _found(seen: FootprintFinding) -> CheckFinding:
    """The finding of a footprint as one of a check."""
    return CheckFinding(seen.text + (f": {seen.hint}" if seen.hint else ""), "footprint", True, line_of(seen.loc))


def outputs_of(made: Attempt, seen: Footprint) -> Iterator[tuple[str, ArrayFootprint]]:
    """The outputs of the exercise in a footprint."""
    for name in made.exercise.outputs:
        if (found := seen.arrays.get(made.parameter(name))) is not None:
            yield name, found


def _stored_once(made: Attempt) -> Iterator[CheckFinding]:
    seen = made.whole_footprint
    yield from never_stored(made)
    for _, array in outputs_of(made, seen):
        if array.atomics:
            continue
        line = next(iter(_lines(array.stores)), None)
        owner, count = array.stores.owner, array.stores.count
        if (several := owner == SEVERAL).any():
            yield CheckFinding(_several(seen, array, several), "footprint", True, line)
        elif (often := count > 1).any():
            where, most = region_text(array.name, often), int(count.max())
            text = f"a program stores {where} {most} times: store each element once, after the last change of its value"
            yield CheckFinding(text, "footprint", True, line)
        for access in array.stores.accesses:
            if len(programs := access.runs.repeated):
                text = f"program {seen.log.launch.spelled(int(programs[0]))} stores an element of `{array.name}` twice"
                text += ": lanes of one tl.store have the same address"
                yield CheckFinding(text, "footprint", True, line_of(access.op.loc))


def _several(seen: Footprint, array: ArrayFootprint, flags: np.ndarray) -> str:
    """The sentence about elements that several programs store."""
    place = int(np.flatnonzero(flags.reshape(-1))[0])
    table = array.stores.to_numpy().reshape(-1)[place]
    p, q = (seen.log.launch.spelled(int(n)) for n in (table["first"], table["last"]))
    every = int(table["count"]) >= seen.log.launch.programs
    hint = ": is tl.program_id in the address?" if every else ": let each program store its own elements"
    if flags.size == 1:  # no address has room for a program's number
        hint = ": let one program store it, or use an atomic to combine the values of several"
    return f"programs {p} and {q} both store {region_text(array.name, flags)}{hint}"


def never_stored(made: Attempt) -> Iterator[CheckFinding]:
    """Elements of outputs that no program stores."""
    seen = made.footprint
    if seen is None or seen.sampled or seen.log.unknown or seen.log.foreign is not None:
        return
    for name, array in outputs_of(made, seen):
        if array.atomics or name in made.exercise.updated:
            continue
        flags = np.asarray(array.stores.count == 0)
        if flags.any():
            line = next(iter(_lines(array.stores)), None)
            yield CheckFinding(_holes(made, seen, array, flags), "footprint", True, line)


def _holes(made: Attempt, seen: Footprint, array: ArrayFootprint, flags: np.ndarray) -> str:
    if not flags.all():
        return f"{region_text(array.name, flags)} never stored"
    if array.stores.accesses:
        return f"no program stores anything to `{array.name}`: every mask of the store is off, or no program reaches it"
    others = [name for name in seen if seen[name].stores.accesses]
    if others:
        return f"the kernel stores to {listed(others)}, not to `{array.name}`"
    if re.search(r"\bstore\b", made.answer.base.source.text):
        return f"no program reaches the store to `{array.name}`: does the kernel return before it?"
    return f"the kernel has no store to `{array.name}`: end with tl.store"


def _no_race(made: Attempt) -> Iterator[CheckFinding]:
    for found in made.whole_footprint.findings:
        if found.kind in ("race", "lanes") and found.level != "remark":
            yield _found(found)


stored_once = Rule("stored_once", "One program stores each element of the output, and stores it once.", _stored_once)
no_race = Rule("no_race", "No program reads or stores what another program stores.", _no_race)


def bytes_at_most(factor: float, *arrays: str) -> Rule:
    """All programs together load at most `factor` times the different bytes that they load: of `arrays` (arguments of the exercise), or
    of all."""

    def check(made: Attempt) -> Iterator[CheckFinding]:
        seen = made.whole_footprint
        chosen = [made.parameter(name) for name in arrays] if arrays else list(seen)
        loads = {n: seen[n] for n in chosen if n in seen.arrays and seen[n].loads}
        issued = {n: a.loads.issued * a.array.size for n, a in loads.items()}
        unique = {n: a.loads.elements * a.array.size for n, a in loads.items()}
        if sum(issued.values()) <= factor * sum(unique.values()) + 1e-9:
            return
        worst = max(loads, key=lambda n: issued[n] / max(1, unique[n]))
        lines = _lines(loads[worst].loads)
        where = f" in lines {', '.join(map(str, lines[:-1]))} and {lines[-1]}" if len(lines) > 1 else ""
        wanted = "once is enough" if factor == 1 else f"at most {factor:g} times is wanted"
        text = f"the programs load `{worst}` {issued[worst] / unique[worst]:.3g} times{where}: {wanted}"
        yield CheckFinding(
            f"{text} ({issued[worst]:,} bytes issued, {unique[worst]:,} unique)",
            "rule",
            True,
            lines[0] if lines else None,
        )

    which = f" of {listed(arrays)}" if arrays else ""
    says = (
        f"The programs load each byte{which} once."
        if factor == 1
        else f"The programs load at most {factor:g} times the bytes{which}."
    )
    return Rule("bytes_once" if factor == 1 else f"bytes_at_most({factor:g})", says, check)


bytes_once = bytes_at_most(1)


def _distinct_texts(a: Any, b: Any) -> tuple[str, str]:
    """Two different numbers with 6 digits, or with as many as differ."""
    pairs = ((f"{a:.{digits}g}", f"{b:.{digits}g}") for digits in range(6, 18))
    return next((pair for pair in pairs if pair[0] != pair[1]), (str(a), str(b)))


def any_order(orders: int = 20) -> Rule:
    """The result is the same if the programs run one after another in the order of their numbers, in reverse, and in random orders."""

    def check(made: Attempt) -> Iterator[CheckFinding]:
        kernel, arguments = made.answer.base, matched(made.answer, made.fresh())
        try:
            binding, values = kernel.bound_call((), arguments)
            kinds, _ = kernel.describe(binding, values)
            snapshot = remember(made.grid, binding.names, values, kinds)
            found = check_orders(kernel, made.grid, snapshot, memory_launch(kernel, made.grid, (), arguments), orders)
        except KernelError as error:
            text = f"the kernel fails in another order of the programs: {error.message}"
            yield CheckFinding(text, "rule", True, line_of(error.loc))
            return
        if (bad := found.difference) is not None:
            one, other = bad.orders
            first, second = _distinct_texts(bad.first, bad.second)
            text = f"`{bad.name}` depends on the order of the programs: element {bad.index} is {first} in {one}"
            yield CheckFinding(f"{text} and {second} in {other}", "rule", True)

    return Rule("any_order", "The result is the same in every order of the programs.", check)


def first_programs_load(programs: int, at_most: Callable[..., float] | float) -> Rule:
    """The first `programs` programs of the grid together load at most `at_most` different bytes. `at_most` is a number, or is called with
    the arguments by name."""

    def check(made: Attempt) -> Iterator[CheckFinding]:
        seen = made.whole_footprint
        total, lines = 0, []
        for name in seen:
            marks = np.zeros(seen[name].array.extent, bool)
            for access in seen[name].loads.accesses:
                runs = access.runs
                for at in np.flatnonzero(runs.programs < programs).tolist():
                    marks[max(0, runs.starts[at]) : max(0, runs.ends[at])] = True
            lines += _lines(seen[name].loads) if marks.any() else []
            total += int(marks.sum()) * seen[name].array.size
        limit = called(at_most, made.given) if callable(at_most) else at_most
        if total > limit:
            text = f"the first {programs} programs load {total:,} different bytes, and {int(limit):,} are wanted"
            yield CheckFinding(f"{text}: let neighbouring programs share tiles", "rule", True, min(lines, default=None))

    return Rule(
        f"first_programs_load({programs})", f"The first {programs} programs share the tiles that they load.", check
    )


def footprint_errors(made: Attempt) -> Iterator[CheckFinding]:
    """The certain findings of the footprint, other than accesses outside of arrays."""
    seen: Any = made.footprint
    for found in seen.findings if seen is not None else ():
        if found.level == "error" and found.kind not in ("outside", "failure", "no store"):
            yield _found(found)
