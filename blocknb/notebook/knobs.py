"""The knobs of a card: integer constants, warps, stages and optional passes that the user can change, and the result of a change.

A change compiles the kernel again for the same kinds of arguments, with other constants and options. It does so for the target that runs
and for the displayed GPU at the same time. The change is compared with the kernel of the run cell (see `comparison`), on scratch copies of
the arrays that the kernel writes. The copies come from the arrays of the last launch, if these still exist. No array is kept afterwards,
and the kernel's own last launch does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from blocknb import passes
from blocknb.errors import LaunchError
from blocknb.notebook import concurrent_compile, repeats
from blocknb.notebook.card import Card, card_of
from blocknb.notebook.observe import KernelRecord, Specialisation, without_recording
from blocknb.passes.pipelining import stages
from blocknb.runtime import compile as compiler
from blocknb.runtime.binding import OPTIONS, check_options
from blocknb.runtime.compile import Compiled
from blocknb.runtime.kernel import Kernel
from blocknb.runtime.kinds import constant_kind
from blocknb.runtime.prepared_launch import PreparedLaunch, prepare
from blocknb.trace import Trace

if TYPE_CHECKING:
    from blocknb.notebook import comparison

WARPS = (1, 2, 4, 8, 16, 32)
STAGES = (1, 2, 3, 4, 5, 6)
MEASURING = "the launches are measured in turns with the cell’s kernel"  # instead of a verdict, until there is one


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


def with_knobs(
    card: Card, wanted: Mapping[str, Any], run: bool = True, compiled_only: Callable[[Card], None] | None = None
) -> Card:
    """The card after a change, with its comparison with `card`, the card of the run cell, as the part "modified".

    None for warps or stages lets the compiler choose, whatever the launch requested. If there is a comparison, `compiled_only` gets the
    card without it first. Raises KernelError as a launch does; the old card does not change.
    """
    from blocknb.notebook import comparison
    from blocknb.notebook.teaching.part import of_other_code

    made, kernel = card.main, card.record.kernel
    constants = {name: _checked(made, name, value) for name, value in wanted.get("constants", {}).items()}
    options = dict(made.compiled.options)
    for name in ("num_warps", "num_stages"):
        if name in wanted:
            options[name] = None if wanted[name] is None else int(wanted[name])
    if "without" in wanted:
        options["without"] = tuple(sorted(wanted["without"]))
    check_options(kernel.source, options)
    targets = [str(view.trace.target) for view in card.views[1:] if view.trace is not None]
    target = ",".join(targets) or None
    why = why_not_compared(made) if run else "the change was not run"
    given = made.snapshot.arguments(()) if not why and made.snapshot else None
    constants |= _derived(kernel, made, constants, given)
    record, found = KernelRecord(kernel), None

    def shown(why: str) -> Card:
        modified = card_of(record, target, card.opened)
        part = modified_part(card, modified, changes(made, compiled), found, why)
        parts = {**of_other_code(card.parts), "modified": part}
        return replace(modified, parts=parts, more_facts=(("knobs", fact(part)),))

    with without_recording(kernel):
        compiled = _compiled(made, constants, options, targets[0] if targets else None)
        record.latest = Specialisation(compiled, -1, snapshot=made.snapshot)
        if given is not None:
            if compiled_only is not None:
                compiled_only(shown(MEASURING))
            more = {**constants, **{n: v for n, v in options.items() if n in OPTIONS}}

            def prepared(grid: Any, copies: dict[str, Any]) -> PreparedLaunch:
                return prepare(kernel, grid, {**copies, **more})

            found, record.latest = comparison.compare(kernel, made, compiled, prepared)
            record.specialisations[0] = record.latest
    return shown(why)


def why_not_compared(made: Specialisation) -> str:
    """Why a change is not compared with the cell; "" if it is. The comparison needs copies for the launch and two sets of outputs."""
    if (why := why_not(made)) or made.snapshot is None:
        return why
    gpu = made.compiled.target.is_gpu
    return repeats.may_hang(made) or repeats.too_large(made.snapshot, made.compiled.stored, gpu, sets=3)


def are_the_cells(card: Card, wanted: Mapping[str, Any]) -> bool:
    """Whether settings are those of the run cell: the same constants, options and passes."""
    constants, options = card.main.compiled.trace.constants, card.main.compiled.options
    same = all(constants.get(n) == v for n, v in wanted.get("constants", {}).items())
    same = same and all(wanted.get(n, options[n]) == options[n] for n in ("num_warps", "num_stages"))
    return same and sorted(wanted.get("without", options["without"])) == sorted(options["without"])


def changes(made: Specialisation, now: Compiled) -> str:
    """The settings of a change in words: "BLOCK=512, num_warps=8, without coalesce"."""
    before, after = made.compiled.trace.constants, now.trace.constants
    found = [f"{n}={v!r}" for n, v in after.items() if before.get(n) != v]
    for name in ("num_warps", "num_stages"):
        if made.compiled.options[name] != now.options[name]:
            found.append(f"{name}={now.options[name] or 'the compiler’s choice'}")
    old, new = set(made.compiled.options["without"]), set(now.options["without"])
    found += [f"without {', '.join(sorted(new - old))}"] if new - old else []
    found += [f"with {', '.join(sorted(old - new))}"] if old - new else []
    return ", ".join(found) or "the cell’s values"


def modified_part(
    card: Card, modified: Card, settings: str, found: comparison.Comparison | None, why: str
) -> dict[str, Any]:
    """The part "modified" of a document: what was changed after the run cell, and the comparison with its kernel."""
    from blocknb.notebook import comparison

    if found is None:
        text = why if why == MEASURING else f"not measured: {why}"
        part: dict[str, Any] = {"verdict": "unmeasured", "text": text, "outputs": ""}
        part |= {"ratio": None, "cell": None, "now": None}
    else:
        part = found.part
    notes = [found.busy] if found is not None and found.busy else []
    return {"settings": settings, **part, "notes": [*notes, *comparison.code_notes(card, modified)]}


def fact(part: Mapping[str, Any]) -> str:
    """The line of a header on a change."""
    return f"`{part['settings']}`, changed after the cell ran: {part['text']}"


def _compiled(made: Specialisation, constants: dict[str, Any], options: dict[str, Any], view: str | None) -> Compiled:
    """Compiles the kernel for the target that runs, while another thread compiles it for the displayed target.

    Both finish before the measurement, which a compiler on the same processors would disturb.
    """
    kinds = {**made.compiled.kinds, **{n: constant_kind(v) for n, v in constants.items()}}

    wait = concurrent_compile.compiled(made.compiled.source, kinds, options, view) if view is not None else None
    try:
        found = compiler.compile(made.compiled.source, kinds, options, made.compiled.target)
    finally:
        if wait is not None:
            wait()  # after an interrupt it stops, too
    found.kernel = made.compiled.kernel
    return found


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
