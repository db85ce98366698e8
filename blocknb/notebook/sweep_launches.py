"""The launches of a sweep: the last launch of a kernel with other constants or options, or a launch expression for each problem size.

`ConstantSweep` compares the outputs of each point with those of the cell's launch. For a problem size there is nothing to compare with, so
`LaunchSweep` evaluates a check of the user after each launch. Either works on copies, or puts the user's arrays back.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from blocknb.errors import KernelError, LaunchError
from blocknb.notebook import knobs, repeats
from blocknb.notebook.progress import Progress
from blocknb.notebook.sweep import WrongOutputs
from blocknb.profile import noise, outputs, timing
from blocknb.profile.noise import TimeRatio
from blocknb.profile.outputs import PoisonedOutputs
from blocknb.profile.replay import Replay, captured_by, work_of
from blocknb.runtime import parallel_compile
from blocknb.runtime.binding import OPTIONS
from blocknb.runtime.kernel import Launch
from blocknb.runtime.launch_context import captured, unobserved
from blocknb.runtime.launch_snapshot import LaunchCopies
from blocknb.runtime.prepared_launch import prepare

USUAL_SECONDS, MOST_SECONDS = (
    2.0,
    8.0,
)  # to compare the best point with that of the cell; the longer one for the least pairs
UNCHECKED = "The outputs were not checked: {}"


class LaunchSweep:
    """The launches of a kernel that a call makes. `check()` tells whether its results are right, and None checks nothing.

    The check sees the user's arrays after a real launch. Before it, arrays that the kernel only writes are filled with a poison, so that
    results of an earlier launch do not pass. Afterwards all arrays get their contents back."""

    def __init__(self, kernel: Any, launch: Callable[[], Any], check: Callable[[], bool] | None, text: str = "check"):
        self.kernel, self.launch, self.check, self.text = kernel, launch, check, text
        self.partial = self.large = self.updated = ""
        self.undecided = False

    def __call__(self, value: Any) -> list[Replay]:
        """The launches for one value, which the variables have already. Raises WrongOutputs if the check fails."""
        found = [replay for replay in captured_by(self.launch) if replay.kernel is self.kernel]
        if self.check is not None and found:
            self._examine(self.check)
        return found

    def _examine(self, check: Callable[[], bool]) -> None:
        kept: list[tuple[LaunchCopies, Mapping[str, Any], frozenset[str]]] = []
        gpu = False

        def take(launch: Launch) -> None:
            nonlocal gpu
            compiled = launch.compiled
            gpu = gpu or compiled.target.is_gpu
            if launch.snapshot is None or (copies := launch.snapshot.copies(compiled.stored)) is None:
                raise LaunchError(
                    f"{launch.kernel.__name__} cannot be checked: an array that it writes cannot be copied"
                )
            alive = launch.snapshot.arguments(())
            assert alive is not None
            if repeats.too_large(launch.snapshot, compiled.stored, gpu):
                self.large = "copies of what the kernel writes do not fit into memory"
            self.updated = self.updated or next(iter(sorted(compiled.stored & compiled.loaded)), "")
            kept.append((copies, alive, frozenset(compiled.stored - compiled.loaded)))

        with captured(take):
            self.launch()
        if self.large:
            return
        try:
            for poisoned in (True, False):
                for copies, _, only_written in reversed(kept):
                    copies.restore()
                    for name in only_written if poisoned else ():
                        for part in copies.snapshot.arrays[name].ranges():
                            outputs.poison(part.restored({}))
                with unobserved():
                    self.launch()
                if check():
                    self.partial = self.partial or ("" if poisoned else self.text)
                    return
        finally:
            for copies, _, _ in reversed(kept):  # the first launch's copies last: they are the oldest contents
                copies.restore()
        if not self.updated:
            raise WrongOutputs(f"`{self.text}` does not hold")
        self.undecided = True

    @property
    def notes(self) -> list[str]:
        """Sentences on the outputs that the check could not judge."""
        if self.check is None:
            return [UNCHECKED.format("add --check EXPR (check= in Python) to check each value")]
        if self.large:
            return [UNCHECKED.format(self.large)]
        if self.undecided:
            why = f"the kernel updates `{self.updated}` in place, and the launches of the sweep start from the result of the cell"
            return [UNCHECKED.format(why)]
        if self.partial:
            hint = "write it for the elements that the launch writes, such as out[:n]"
            return [UNCHECKED.format(f"`{self.partial}` also reads elements that the launches do not write; {hint}")]
        return []


class ConstantSweep:
    """The last launch of a record with other values of constants or options, on one set of copies.

    Raises LaunchError if the record has no such constant, or cannot be launched again."""

    def __init__(self, record: Any, names: Sequence[str]):
        made, kernel = record.latest, record.kernel
        constants = [p.name for p in kernel.source.parameters if p.constexpr]
        for name in names:
            if name not in (*constants, *OPTIONS):
                known = f"constants: {', '.join(constants) or 'none'}"
                raise LaunchError(
                    f"{kernel.__name__} has no such constant as {name} ({known})",
                    hint="to sweep over a size, use it in --launch (launch= in Python), which is evaluated for each value",
                )
        if why := knobs.why_not(made):
            raise LaunchError(f"{kernel.__name__} cannot be swept over {names[0]}: {why}")
        try:
            self.copies = PoisonedOutputs(made.snapshot, made.compiled.stored, made.compiled.loaded)
        except LookupError as error:
            raise LaunchError(str(error)) from None
        self.kernel, self.made, self.names = kernel, made, tuple(names)
        self.large = repeats.too_large(made.snapshot, made.compiled.stored, made.compiled.target.is_gpu, sets=3)
        fixed = not made.snapshot.grid.computed and any(name in constants for name in names)
        self.whole = _written(made) if fixed else None

    @property
    def value(self) -> Any:
        """The point of the cell: a value, or a tuple of values for two axes."""
        constants, options = self.made.compiled.trace.constants, self.made.compiled.options
        found = tuple(constants.get(name, options.get(name)) for name in self.names)
        return found[0] if len(found) == 1 else found

    def _settings(self, value: Any) -> dict[str, Any]:
        return dict(zip(self.names, value if len(self.names) > 1 else (value,), strict=True))

    def prepared(self, **values: Any) -> Any:
        """A PreparedLaunch of the cell's kernel with other values."""
        options = {name: value for name, value in self.made.compiled.options.items() if name in OPTIONS}
        return prepare(
            self.kernel, self.made.snapshot.grid.given(), {**options, **self.copies.copies.arguments, **values}
        )

    def __call__(self, value: Any) -> list[Replay]:
        """The launch of one point. Raises WrongOutputs if it computes something else than the cell's launch."""
        ready = self.prepared(**self._settings(value))
        if 0 in ready.grid:
            raise LaunchError("with this value the grid is empty", hint="choose smaller tiles")
        found = Replay(self.kernel, ready.plan.compiled, ready.grid, {}, self.made.arguments, self.made.device, ready)
        if self.whole is not None and (part := sum(found.work.written.values())) != self.whole:
            raise LaunchError(
                f"the grid is fixed, and with this value the launch writes {part / self.whole:.0%} of the output",
                hint=f"pass the grid as a function: lambda meta: (blocknb.cdiv(n, meta[{self.names[0]!r}]),)",
            )
        if not self.large:
            with unobserved():
                judged = self.copies.compare_launches(ready, self.prepared())
            if judged.right is False:
                raise WrongOutputs(judged.text)
        return [found]

    @property
    def notes(self) -> list[str]:
        """Why the outputs were not compared."""
        return [f"The outputs were not compared: {self.large}"] if self.large else []

    @property
    def cell(self) -> str:
        """The point of the cell in words: "the cell’s 1024"."""
        values = self.value if len(self.names) > 1 else (self.value,)
        return f"the cell’s {', '.join('default' if value is None else str(value) for value in values)}"

    def against_cell(self, value: Any) -> TimeRatio | None:
        """The best point compared with that of the cell, both in turns; None after an interrupt."""
        sides = {"cell": self.prepared(), "best": self.prepared(**self._settings(value))}
        precise, gpu = noise.until_precise("cell", "best"), self.made.compiled.target.is_gpu
        end: list[float] = []

        def going(times: Mapping[str, Sequence[float]]) -> Sequence[str]:
            end[:] = end or [time.monotonic() + USUAL_SECONDS * timing.scale()]
            enough = len(times["cell"]) >= noise.LEAST_PAIRS and time.monotonic() > end[0]
            return () if enough else precise(times)

        found = timing.interleaved(sides, gpu=gpu, rounds=noise.MOST_ROUNDS, seconds=MOST_SECONDS, going=going)
        return None if found.cancelled else noise.ratio(found["best"], found["cell"])

    def compile_ahead(self, values: Sequence[Any], progress: Progress) -> None:
        """Compiles the launch for all points in parallel. Errors are reported when a point is measured."""
        given = self.made.snapshot.arguments(self.made.compiled.stored)
        if given is None:
            return
        options = {name: value for name, value in self.made.compiled.options.items() if name in OPTIONS}
        with parallel_compile.gathered() as requests:
            for value in values:
                with contextlib.suppress(KernelError):
                    self.kernel.warmup(**{**options, **given, **self._settings(value)})
        said = contextlib.nullcontext(lambda what: progress.say(f"compiling {what}"))
        parallel_compile.compile_all(requests, show=lambda total, label: said)


def _written(made: Any) -> int | None:
    """The unique bytes that a launch writes."""
    found = work_of(made.compiled, made.arguments, made.grid)
    return None if found.why_bytes else sum(found.written.values())


_ABSENT = object()


@contextlib.contextmanager
def assigned(space: dict[str, Any], settings: Mapping[str, Any]) -> Iterator[None]:
    """Inside, variables have other values."""
    before = {name: space.get(name, _ABSENT) for name in settings}
    space.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is _ABSENT:
                space.pop(name, None)
            else:
                space[name] = value
