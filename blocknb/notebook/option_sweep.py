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
MOST_SECONDS = 2.0  # to compare the best value with that of the cell
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
        constant: ConstantSweep | None = None
        source: Callable[[Any], list[Any]]
        if launch is not None and found_axis.name in launch.names:
            source = over_launch(record, launch)
        else:
            source = constant = ConstantSweep(record, found_axis)
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
        if constant is not None and constant.large:
            made.notes.append(f"The outputs were not compared: {constant.large}")
        found.facts.append(("sweep", _fact(made, constant)))
    found.parts["sweep"] = made.part


def _fact(made: Any, constant: ConstantSweep | None) -> str:
    from blocknb.notebook import numbers

    kernel = next((s for s in made.series if s.kind == "kernel"), None)
    if kernel is None:
        return "; ".join(made.notes) or "interrupted before the first value was measured"
    better = min if made.unit == "ms" else max
    best = better((m, v) for m, v in zip(kernel.median, made.values, strict=True) if m is not None)
    amount = f"{numbers.digits(best[0])} {made.unit}"
    text = f"{made.axis} over {numbers.plural(len(made.values), 'value')}, best at {best[1]}: {amount}"
    notes = [f"{numbers.plural(len(made.notes), 'value')} omitted ({made.notes[0]})"] if made.notes else []
    if constant is not None and not made.cancelled and constant.value not in (None, best[1]):
        notes.insert(0, constant.against_cell(best[1]))
    return ", ".join([text, *notes, *(["interrupted"] if made.cancelled else [])])


def over_launch(record: Any, launch: Expression) -> Callable[[Any], list[Any]]:
    """The kernel's launches that an expression makes; the variable has its value already."""
    from blocknb.profile.replay import captured_by

    return lambda value: [replay for replay in captured_by(launch) if replay.kernel is record.kernel]


class ConstantSweep:
    """The last launch of a record with other values of a constant or an option, on one set of copies.

    Raises UsageError if the record has no such constant, or cannot be launched again."""

    def __init__(self, record: Any, axis: SweepAxis):
        from blocknb.notebook import knobs, repeats
        from blocknb.profile.outputs import PoisonedOutputs

        made, kernel = record.latest, record.kernel
        constants = [p.name for p in kernel.source.parameters if p.constexpr]
        if axis.name not in (*constants, *OPTIONS):
            raise UsageError(
                f"--sweep {axis.name}: {kernel.__name__} has no such constant (constants: {', '.join(constants) or 'none'}); to sweep "
                f"over a size, use it in --launch, which is evaluated for each value"
            )
        if why := knobs.why_not(made):
            raise UsageError(f"--sweep {axis.name}: {why}")
        try:
            self.copies = PoisonedOutputs(made.snapshot, made.compiled.stored, made.compiled.loaded)
        except LookupError as error:
            raise UsageError(f"--sweep {axis.name}: {error}") from None
        self.kernel, self.made, self.name = kernel, made, axis.name
        self.large = repeats.too_large(made.snapshot, made.compiled.stored, made.compiled.target.is_gpu, sets=3)
        fixed = not made.snapshot.grid.computed and axis.name in constants
        self.whole = _written(made) if fixed else None

    @property
    def value(self) -> Any:
        """The value in the cell."""
        constants, options = self.made.compiled.trace.constants, self.made.compiled.options
        return constants.get(self.name, options.get(self.name))

    def prepared(self, **values: Any) -> Any:
        """A PreparedLaunch of the cell's kernel with other values."""
        from blocknb.runtime.prepared_launch import prepare

        options = {name: value for name, value in self.made.compiled.options.items() if name in OPTIONS}
        return prepare(
            self.kernel, self.made.snapshot.grid.given(), {**options, **self.copies.copies.arguments, **values}
        )

    def __call__(self, value: Any) -> list[Any]:
        """The launch with one value. Raises WrongOutputs if it computes something else than the cell's launch."""
        from blocknb.notebook.sweep import WrongOutputs
        from blocknb.profile.replay import Replay
        from blocknb.runtime.launch_context import unobserved

        ready = self.prepared(**{self.name: value})
        if 0 in ready.grid:
            raise LaunchError("with this value the grid is empty", hint="choose smaller tiles")
        found = Replay(self.kernel, ready.plan.compiled, ready.grid, {}, self.made.arguments, self.made.device, ready)
        if self.whole is not None and (part := sum(found.work.written.values())) != self.whole:
            raise LaunchError(
                f"the grid is fixed, and with this value the launch writes {part / self.whole:.0%} of the output",
                hint=f"pass the grid as a function: lambda meta: (blocknb.cdiv(n, meta[{self.name!r}]),)",
            )
        if not self.large:
            with unobserved():
                outputs = self.copies.judge(ready, self.prepared())
            if outputs.right is False:
                raise WrongOutputs(outputs.text)
        return [found]

    def against_cell(self, value: Any) -> str:
        """The best value compared with that of the cell, both in turns."""
        from blocknb.notebook import numbers
        from blocknb.profile import noise, timing

        sides = {"cell": self.prepared(), "best": self.prepared(**{self.name: value})}
        going, gpu = noise.until_precise("cell", "best"), self.made.compiled.target.is_gpu
        found = timing.interleaved(sides, gpu=gpu, rounds=noise.MOST_ROUNDS, seconds=MOST_SECONDS, going=going)
        if found.cancelled:
            return "interrupted"
        return numbers.ratio(noise.ratio(found["best"], found["cell"]), f"the cell’s {self.value}")


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
