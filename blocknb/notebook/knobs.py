"""The knobs of a card: integer constants, warps, stages and optional passes that the user can change, and the result of a change.

A change compiles the kernel again for the same kinds of arguments with other constants and options, for the target that runs and for the
displayed GPU at the same time. It launches only on scratch copies of the arrays that the kernel writes, made from the arrays of the last
launch if these still exist, and keeps no array afterwards. The kernel's own last launch does not change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from blocknb import passes
from blocknb.errors import LaunchError
from blocknb.notebook import concurrent_compile
from blocknb.notebook.card import Card, card_of
from blocknb.notebook.observe import KernelRecord, Observation, Specialisation, apart
from blocknb.passes.pipelining import stages
from blocknb.runtime import compile as compiler
from blocknb.runtime.binding import OPTIONS, check_options
from blocknb.runtime.compile import Compiled
from blocknb.runtime.grids import Gone
from blocknb.runtime.kernel import Kernel
from blocknb.runtime.kinds import constant_kind
from blocknb.trace import Trace

WARPS = (1, 2, 4, 8, 16, 32)
STAGES = (1, 2, 3, 4, 5, 6)
MOST_LAUNCHES, MOST_SECONDS = 20, 0.1  # limits of the new measurement


def offered(card: Card) -> dict[str, Any]:
    """The knobs of a card's kernel: the value of each, and the values to choose from.

    A number of warps or stages that the compiler chose is a value with "named" false. It follows the other knobs until the user changes
    it.
    """
    made, gpu = card.main, next((v.trace for v in card.views if v.trace is not None and v.trace.target.is_gpu), None)
    trace, options = made.compiled.trace, made.compiled.options
    warps = (gpu or trace).options["num_warps"]  # a CPU has no warps, so those of the displayed GPU count
    constants = [
        {"name": name, "value": value, "choices": choices(value)}
        for name, value in trace.constants.items()
        if isinstance(value, int) and _declared(made.compiled.kernel, name)
    ]
    off, why = set(options["without"]), why_not(made)
    return {
        "constants": constants,
        "num_warps": {"value": warps, "choices": list(WARPS), "named": options["num_warps"] is not None},
        "num_stages": {
            "value": _stages(options, gpu or trace),
            "choices": list(STAGES),
            "named": options["num_stages"] is not None,
        },
        "passes": [{"name": name, "on": name not in off} for name in passes.optional()],
        "runs": why == "",
        "why": why or (_fixed_grid(made) if constants else ""),
    }


def _stages(options: Mapping[str, Any], trace: Trace) -> int:
    """The requested number of stages, or the number that the compiler chose for the loops."""
    if (asked := options["num_stages"]) is not None:
        return int(asked)
    return stages.DOT_STAGES if any(stage.name == "software_pipelining" for stage in trace.stages) else stages.STAGES


def choices(value: int) -> list[Any]:
    """Values around the current one: both values of a bool, powers of two around a power of two, and nearby integers otherwise."""
    if isinstance(value, bool):
        return [False, True]
    if value > 1 and value & (value - 1) == 0:
        return [n for n in (value >> 3, value >> 2, value >> 1, value, value << 1, value << 2, value << 3) if n >= 1]
    return sorted({max(0, value - 2), max(0, value - 1), value, value + 1, value + 2, 2 * value})


def why_not(made: Specialisation) -> str:
    """Why a change compiles the kernel but does not run it; "" if it runs."""
    if not made.launches:
        return "the kernel was compiled but not launched"
    if made.snapshot is None or made.snapshot.grid is None:
        return (
            "the grid or an array of the last launch cannot be stored; change the values in the cell and run it again"
        )
    if not made.snapshot.alive:
        return (
            "the arrays of the last launch are no longer available, so a change compiles the kernel without running it"
        )
    return ""


def _fixed_grid(made: Specialisation) -> str:
    """A warning for a grid that does not depend on the constants."""
    assert made.snapshot is not None
    assert made.snapshot.grid is not None
    if made.snapshot.grid.computed:
        return ""
    return f"the grid {made.grid} is fixed; pass a function of the constants to adapt it to their values"


def with_knobs(card: Card, wanted: Mapping[str, Any], run: bool = True) -> Card:
    """The card after a change. None for warps or stages lets the compiler choose, whatever the launch requested.

    Raises KernelError as a launch does; the old card does not change.
    """
    made, kernel = card.main, card.record.kernel
    constants = {name: _checked(made, name, value) for name, value in wanted.get("constants", {}).items()}
    options = dict(made.compiled.options)
    for name in ("num_warps", "num_stages"):
        if name in wanted:
            options[name] = None if wanted[name] is None else int(wanted[name])
    if "without" in wanted:
        options["without"] = tuple(sorted(wanted["without"]))
    check_options(kernel.source, options)
    target = next((str(view.trace.target) for view in card.views[1:] if view.trace is not None), None)
    given = made.snapshot.arguments(made.compiled.stored) if run and not why_not(made) and made.snapshot else None
    constants |= _derived(kernel, made, constants, given)
    with apart(kernel):
        compiled = _compiled(made, constants, options, target)
        if given is not None:
            record = _measured(kernel, made, given, constants, options)
        else:
            record = KernelRecord(kernel)
            record.latest = Specialisation(compiled, -1, snapshot=made.snapshot)
    return replace(card_of(record, target, card.opened), parts=card.parts)


def _compiled(made: Specialisation, constants: dict[str, Any], options: dict[str, Any], view: str | None) -> Compiled:
    """Compiles the kernel for the target that runs, while another thread compiles it for the displayed target.

    Both finish before the measurement, which a compiler on the same processors would disturb.
    """
    kinds = {**made.compiled.kinds, **{n: constant_kind(v) for n, v in constants.items()}}

    wait = concurrent_compile.compiled(made.compiled.source, kinds, options, view) if view is not None else None
    found = compiler.compile(made.compiled.source, kinds, options, made.compiled.target)
    found.kernel = made.compiled.kernel
    if wait is not None:
        wait()
    return found


def _measured(
    kernel: Kernel, made: Specialisation, given: dict[str, Any], constants: dict[str, Any], options: dict[str, Any]
) -> KernelRecord:
    """Launches a kernel with other constants and options on scratch copies; see `observed`."""
    given.update(constants)
    given.update((n, v) for n, v in options.items() if n in OPTIONS)
    return observed(kernel, made, lambda grid: kernel.launch(grid, **given))


def observed(kernel: Kernel, made: Specialisation, launch: Callable[[Any], Any]) -> KernelRecord:
    """Makes a few launches on the grid of a specialization; returns the record that a cell with these launches would have."""
    assert made.snapshot is not None
    assert made.snapshot.grid is not None
    try:
        grid = made.snapshot.grid.given()
    except Gone:
        raise LaunchError(
            "a value that the grid depends on is no longer available", hint="run the cell again"
        ) from None
    observation = Observation()
    launch(grid)  # warms up
    end = time.perf_counter() + MOST_SECONDS
    observation.start()
    try:
        for _ in range(MOST_LAUNCHES):
            launch(grid)
            if time.perf_counter() > end:
                break
    finally:
        observation.stop()
    record = observation.records.get(kernel)
    if record is None or record.latest is None:
        raise LaunchError(f"with these values the grid of {kernel.__name__} is empty", hint="choose smaller tiles")
    record.latest.snapshot = made.snapshot  # the user's arrays, not the copies
    return record


def _derived(
    kernel: Kernel, made: Specialisation, chosen: Mapping[str, Any], given: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The constants that heuristics compute from the values after the change."""
    computed = [values for values in vars(kernel).get("heuristics", ()) if set(values) - set(chosen)]
    if not computed or not chosen:
        return {}
    if given is None:
        raise LaunchError(
            f"constants of {kernel.__name__} depend on its arguments, and its arrays are no longer available",
            hint="run the cell again",
        )
    known, found = {**given, **chosen}, {}
    for values in computed:
        for name, compute in values.items():
            if name not in chosen or name not in known:
                known[name] = found[name] = compute(known)
    return {n: v for n, v in found.items() if n in made.compiled.kinds}


def _declared(kernel: Any, name: str) -> bool:
    """Whether a constant is one of the kernel's own constexpr parameters.

    A run-time argument that is specialized on the value 1 and a constant that heuristics compute are not.
    """
    computed = {n for values in vars(kernel).get("heuristics", ()) for n in values}
    return name not in computed and any(p.name == name and p.constexpr for p in kernel.source.parameters)


def _checked(made: Specialisation, name: str, value: Any) -> Any:
    if name not in made.compiled.trace.constants:
        raise LaunchError(f"{made.compiled.name} has no constant {name}")
    return bool(value) if isinstance(made.compiled.trace.constants[name], bool) else int(value)
