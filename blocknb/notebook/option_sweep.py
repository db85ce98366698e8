"""`--sweep NAME=VALUES`: measures the kernel over a tile size, or the launch over a problem size.

If NAME is a constant of the kernel or an option (num_warps), the cell's last launch is repeated with other values. If it is a variable of
the `--launch` expression, that expression is evaluated for each value of the variable. The user's data does not change: launches write to
copies, and the variable gets its old value back. VALUES are `64,128,256`, `2**10..2**24` (powers of two), `0..100..10` (with a step), or
an expression that returns them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from IPython.core.error import UsageError

from blocknb.errors import KernelError, LaunchError
from blocknb.notebook.expressions import Expression
from blocknb.notebook.options import Found, Option, unquoted
from blocknb.notebook.progress import Progress
from blocknb.runtime.binding import OPTIONS

MOST_VALUES = 200
_ABSENT = object()


@dataclass(frozen=True)
class SweepAxis:
    name: str
    values: tuple[Any, ...]


def prepare(given: Any, shell: Any) -> SweepAxis | None:
    """The axis that the option names. Raises UsageError for one that cannot be read or has no values."""
    if not given:
        return None
    return axis(unquoted(given), shell)


def axis(text: str, shell: Any) -> SweepAxis:
    name, separator, rest = (part.strip() for part in _split(text))
    if not separator or not name.isidentifier() or not rest:
        raise UsageError(f"--sweep takes NAME=VALUES, such as BLOCK=256,512,1024 or n=2**10..2**24, not {text!r}")
    ends = [Expression(part.strip(), shell, "--sweep")() for part in rest.split("..")] if ".." in rest else []
    if ends:
        values = _range(text, ends)
    else:
        found = Expression(rest, shell, "--sweep")()
        values = list(found) if hasattr(found, "__iter__") and not isinstance(found, str) else [found]
    if not 0 < len(values) <= MOST_VALUES:
        raise UsageError(f"--sweep {text}: {len(values)} values; a sweep takes 1 to {MOST_VALUES} values")
    return SweepAxis(name, tuple(values))


def _split(text: str) -> tuple[str, str, str]:
    at = min((i for i in (text.find("="), text.find(":")) if i >= 0), default=-1)
    return (text[:at], text[at], text[at + 1 :]) if at >= 0 else (text, "", "")


def _range(text: str, ends: list[Any]) -> Any:
    if len(ends) > 3 or any(not isinstance(end, int) for end in ends) or (len(ends) == 3 and ends[2] <= 0):
        raise UsageError(f"--sweep {text}: a range is FIRST..LAST or FIRST..LAST..STEP, with integers")
    first, last = ends[:2]
    if len(ends) == 3:
        return range(first, last + 1, ends[2])  # no list, which could fill the memory
    if first < 1:
        raise UsageError(
            f"--sweep {text}: FIRST..LAST doubles its values from 1 or more; FIRST..LAST..STEP counts in steps"
        )
    values = []
    while first <= last:
        values.append(first)
        first *= 2
    return values


def after(found_axis: SweepAxis, record: Any, shell: Any, found: Found) -> None:
    from blocknb.notebook import sweep
    from blocknb.notebook.observe import apart

    launch = Expression(found.launch, shell, "--launch") if found.launch else None
    with apart(record.kernel):
        more: dict[str, Any] = {}
        if launch is not None and found_axis.name in launch.names:
            source = over_launch(record, launch)
        else:
            source = over_constant(record, found_axis)
            more["ahead"] = partial(compile_ahead, record, found_axis.name)
        made = sweep.run(
            record.kernel.__name__,
            found_axis.name,
            found_axis.values,
            source,
            lambda value: {e.text: e.on_copies() for e in found.expressions},
            setting=lambda value: assigned(shell.user_ns, found_axis.name, value),
            **more,
        )
    found.parts["sweep"] = made.part
    found.facts.append(("sweep", _fact(made)))


def _fact(made: Any) -> str:
    from blocknb.notebook import numbers

    kernel = next((s for s in made.series if s.kind == "kernel"), None)
    if kernel is None:
        return "; ".join(made.notes) or "interrupted before the first value was measured"
    better = min if made.unit == "ms" else max
    best = better((m, v) for m, v in zip(kernel.median, made.values, strict=True) if m is not None)
    text = f"{made.axis} over {numbers.plural(len(made.values), 'value')}, best at {best[1]}: {numbers.digits(best[0])} {made.unit}"
    notes = [f"{numbers.plural(len(made.notes), 'value')} omitted ({made.notes[0]})"] if made.notes else []
    return ", ".join([text, *notes, *(["interrupted"] if made.cancelled else [])])


def over_launch(record: Any, launch: Expression) -> Callable[[Any], list[Any]]:
    """The kernel's launches that an expression makes; the variable has its value already."""
    from blocknb.profile.replay import captured_by

    return lambda value: [replay for replay in captured_by(launch) if replay.kernel is record.kernel]


def over_constant(record: Any, axis: SweepAxis) -> Callable[[Any], list[Any]]:
    """The last launch of a record with another constant or option. Raises UsageError if that is impossible."""
    from blocknb.notebook.knobs import why_not
    from blocknb.profile.replay import captured_by

    made, kernel = record.latest, record.kernel
    constants = [p.name for p in kernel.source.parameters if p.constexpr]
    if axis.name not in (*constants, *OPTIONS):
        raise UsageError(
            f"--sweep {axis.name}: {kernel.__name__} has no such constant (constants: {', '.join(constants) or 'none'}); to sweep "
            f"over a size, use it in --launch, which is evaluated for each value"
        )
    if why := why_not(made):
        raise UsageError(f"--sweep {axis.name}: {why}")
    snapshot, whole = made.snapshot, _written(made)
    options = {name: value for name, value in made.compiled.options.items() if name in OPTIONS}

    def replays(value: Any) -> list[Any]:
        given = snapshot.arguments(made.compiled.stored)
        if given is None:
            raise LaunchError("the arrays of the last launch are no longer available", hint="assign them to variables")
        given = {**options, **given, axis.name: value}
        found = captured_by(lambda: kernel.launch(snapshot.grid.given(), **given))
        if not snapshot.grid.computed and whole is not None and axis.name in constants:
            part = sum(found[0].work.written.values())
            if part != whole:
                raise LaunchError(
                    f"the grid is fixed, and with this value the launch writes {part / whole:.0%} of the output",
                    hint=f"pass the grid as a function: lambda meta: (blocknb.cdiv(n, meta[{axis.name!r}]),)",
                )
        return found

    return replays


def compile_ahead(record: Any, name: str, values: Sequence[Any], progress: Progress) -> None:
    """Compiles the last launch of a record with all values of a constant or option in parallel. Errors are reported when a value is
    measured."""
    from blocknb.runtime import parallel_compile

    made, kernel = record.latest, record.kernel
    given = made.snapshot.arguments(made.compiled.stored)
    if given is None:
        return
    options = {name: value for name, value in made.compiled.options.items() if name in OPTIONS}
    with parallel_compile.gathered() as requests:
        for value in values:
            with contextlib.suppress(KernelError):
                kernel.warmup(**{**options, **given, name: value})
    said = contextlib.nullcontext(lambda what: progress.say(f"compiling {what}"))
    parallel_compile.compile_all(requests, show=lambda total, label: said)


def _written(made: Any) -> int | None:
    """The unique bytes that a launch writes."""
    from blocknb.profile.replay import work_of

    found = work_of(made.compiled, made.arguments, made.grid)
    return None if found.why_bytes else sum(found.written.values())


@contextlib.contextmanager
def assigned(space: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """Inside, a variable has another value."""
    before = space.get(name, _ABSENT)
    space[name] = value
    try:
        yield
    finally:
        if before is _ABSENT:
            space.pop(name, None)
        else:
            space[name] = before


OPTION = Option(
    "--sweep",
    {
        "metavar": "NAME=VALUES",
        "nargs": "+",
        "help": "Measure the kernel for several values of a constant, an option, or a variable of --launch, interleaved with "
        "the baselines: --sweep BLOCK=256,512,1024, --sweep num_warps=1,2,4,8, --sweep n=2**10..2**24 --launch run(n).",
    },
    after,
    prepare,
)
