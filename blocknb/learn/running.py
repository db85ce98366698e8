"""Launches of a learner's kernel, each with a time limit: compiled with bounds checks on the CPU or a GPU, or interpreted.

`Attempt` is one launch: its arguments, what it left in the outputs, what the reference wants, and the error that ended it.
"""

from __future__ import annotations

import ctypes
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from blocknb.errors import KernelError
from blocknb.footprint.access_log import Budget
from blocknb.footprint.value import Footprint
from blocknb.learn.cell import Answer, WrongCell, line_of, matched, matching
from blocknb.learn.exercise import Case, Exercise, Tolerance, listed
from blocknb.runtime.interrupts import stop_launches

SECONDS = 5.0  # of a launch, and of its compilation
BUDGET = Budget(seconds=2.0)  # of the footprint that shows the cause of a failure
WHOLE = Budget(seconds=30.0)  # of one that a rule reads


class TimeUp(Exception):
    """A launch exceeded its time limit."""


class Unchecked(Exception):
    """A rule cannot be checked for an answer. The text says why."""


class ToolMissing(Unchecked):
    """A rule needs a tool that is not installed, as ptxas outside of Linux. This refuses no answer, and the verdict says it."""


@dataclass
class Attempt:
    """One launch of one case. `given` are the arguments as the case made them, `left` those after the launch, both by the exercise's names;
    `want` are the outputs of the reference. `constants` are those that an autotuner chose. `error` is empty, or one sentence, with its
    `line`."""

    exercise: Exercise
    answer: Answer
    case: Case
    seed: int
    device: str = "cpu"
    given: dict[str, Any] = field(default_factory=dict)
    left: dict[str, Any] = field(default_factory=dict)
    want: dict[str, np.ndarray] = field(default_factory=dict)
    grid: tuple[int, ...] = ()
    constants: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    line: int | None = None
    raised: BaseException | None = None

    @cached_property
    def wrong(self) -> dict[str, np.ndarray]:
        """bool per element of each output that has wrong elements."""
        found = {}
        for name, want in self.want.items():
            flags = differs(np.asarray(self.left[name]), want, self.exercise.tolerance)
            if flags.any():
                found[name] = flags
        return found

    @cached_property
    def names(self) -> dict[str, str]:
        """The argument of the exercise for each parameter of the kernel."""
        return matching(self.answer, self.given)

    def parameter(self, argument: str) -> str:
        """The kernel's parameter for an argument of the exercise."""
        return next((own for own, name in self.names.items() if name == argument), argument)

    @property
    def passed(self) -> bool:
        return not self.error and not self.wrong

    def fresh(self) -> dict[str, Any]:
        """New arguments of the case, the same as before the launch."""
        return prepared(self.exercise, self.case, self.seed)

    @cached_property
    def footprint(self) -> Footprint | None:
        """The footprint of the launch, perhaps of a sample of its programs, or None if there is none."""
        try:
            return self._followed(BUDGET)
        except Unchecked:
            return None

    @cached_property
    def whole_footprint(self) -> Footprint:
        """The footprint of all programs of the launch, for a rule. Raises Unchecked if there is none."""
        seen = self.footprint
        if seen is None or seen.sampled:  # this process may have had little time
            seen = self.footprint = self._followed(WHOLE)
        log = seen.log
        if seen.sampled:
            few = f"{len(log.programs):,} of {log.launch.programs:,} programs"
            raise Unchecked(f"the footprint holds {few} only: make the loops of a program shorter")
        for reason in (*log.unknown[:1], *([log.foreign.message] if log.foreign else [])):
            raise Unchecked(reason)
        return seen

    def _followed(self, budget: Budget) -> Footprint:
        arguments = self.fresh()
        try:
            with limited(SECONDS):
                given = matched(self.answer, arguments) | self.constants
                found = self.answer.base.footprint(self.grid, budget)(**given)
        except TimeUp:
            raise Unchecked(f"its footprint takes more than {SECONDS:.0f} seconds") from None
        except WrongCell as error:
            raise Unchecked(error.text) from None
        except KernelError as error:
            raise Unchecked(f"its footprint fails: {error.message}") from None
        self._kept = arguments  # the footprint reads contents on demand
        return found


def prepared(exercise: Exercise, case: Case, seed: int) -> dict[str, Any]:
    """The arguments of a case for a seed, with poisoned outputs. The same seed gives the same arguments."""
    arguments = case.make(np.random.default_rng(seed))
    for name in exercise.outputs:
        if name not in exercise.updated:
            poison(arguments[name])
    return arguments


def poison(array: np.ndarray) -> None:
    """Fills an array with NaN, or with the extreme integer of its dtype."""
    if array.dtype.kind in "fc":
        array[...] = np.nan
    elif array.dtype.kind in "iu":
        array[...] = np.iinfo(array.dtype).min if array.dtype.kind == "i" else np.iinfo(array.dtype).max


def called(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Calls a function with those of the arguments that it takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return function(**arguments)
    return function(**{p.name: arguments[p.name] for p in parameters if p.name in arguments})


def copies(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with copies of the arrays."""
    return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in arguments.items()}


def differs(got: np.ndarray, want: Any, tolerance: Tolerance | float) -> np.ndarray:
    """bool per element: whether a result is wrong. NaN equals NaN."""
    want = np.broadcast_to(np.asarray(want), got.shape)
    if got.dtype.kind in "iub" and want.dtype.kind in "iub":
        different: np.ndarray = got != want
        return different
    if isinstance(tolerance, Tolerance):
        relative, absolute = tolerance.limits(str(got.dtype))
    else:
        relative = absolute = float(tolerance)
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        close = np.isfinite(b) & (
            np.abs(a - b) <= absolute + relative * np.abs(b)
        )  # any number would be within inf of inf
        near = close | (a == b) | (np.isnan(a) & np.isnan(b))
    far: np.ndarray = ~near
    return far


def attempt(
    exercise: Exercise, answer: Answer, case: Case, seed: int, device: str = "cpu", seconds: float = SECONDS
) -> Attempt:
    """Launches a case within a time limit in seconds. Errors of the kernel become the attempt's `error`."""
    made = Attempt(exercise, answer, case, seed, device)
    made.given = prepared(exercise, case, seed)
    made.left = prepared(exercise, case, seed)
    with np.errstate(all="ignore"):
        want = called(exercise.reference, copies(made.given))
    made.want = {name: np.asarray(want[name]) for name in exercise.outputs}
    try:
        made.constants = _constants(made, seconds)
        made.grid = grid_of(exercise, answer, made.given | made.constants)
        _launch(made, seconds)
    except WrongCell as error:
        made.error, made.line, made.raised = error.text, error.line, error
    except KernelError as error:
        made.error, made.line, made.raised = error.message, line_of(error.loc), error
    except TimeUp as error:
        made.error, made.raised = f"the kernel still runs after {seconds:.0f} seconds: does every loop end?", error
    except Exception as error:
        made.error, made.raised = f"the kernel raises {type(error).__name__}: {error}", error
    if not made.error:
        made.error = changed_inputs(made)
    return made


def grid_of(exercise: Exercise, answer: Answer, arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """The grid of a launch: of the exercise, or of the learner's cell. Raises WrongCell."""
    every = answer.defaults() | matched(answer, arguments) | dict(arguments)
    if exercise.grid is not None:
        found = called(exercise.grid, copies(every))
        return tuple(found) if isinstance(found, tuple) else (found,)
    if "grid" not in answer.names:
        raise WrongCell("the cell defines no `grid`: write `grid = lambda ...: (programs,)`")
    found = given = answer.names["grid"]
    if callable(given):
        try:
            found = called(given, copies(every))
        except Exception as error:
            raise WrongCell(f"`grid` raises {type(error).__name__}: {error}") from None
    found = tuple(found) if isinstance(found, Sequence) else (found,)
    if not 1 <= len(found) <= 3 or not all(isinstance(n, int | np.integer) and n >= 0 for n in found):
        raise WrongCell(f"`grid` is {found}: return a tuple of one to three counts of programs")
    if 0 in found:
        sizes = (
            {name: every[name] for name in inspect.signature(given).parameters if name in every}
            if callable(given)
            else {}
        )
        shown = ", ".join(f"{name}={value}" for name, value in sizes.items() if isinstance(value, int | np.integer))
        raise WrongCell(f"the grid has 0 programs{' for ' if shown else ''}{shown}: round up with blocknb.cdiv")
    return tuple(int(n) for n in found)


def changed_inputs(made: Attempt) -> str:
    """The sentence about inputs that the launch changed, or ""."""
    changed = [
        name
        for name, value in made.given.items()
        if isinstance(value, np.ndarray)
        and name not in made.exercise.outputs
        and not np.array_equal(value, made.left[name], equal_nan=value.dtype.kind in "fc")
    ]
    if not changed:
        return ""
    return f"the kernel writes to {listed(changed)}, which {'is an input' if len(changed) == 1 else 'are inputs'}"


def _constants(made: Attempt, seconds: float) -> dict[str, Any]:
    """The constants and options that an autotuner or heuristics choose for a launch. They see copies of the arrays only."""
    base = made.answer.base
    if made.answer.kernel is base:
        return {}
    arguments = made.fresh()

    def grid(bound: Mapping[str, Any]) -> tuple[int, ...]:
        constants = {p.name: bound[p.name] for p in base.source.parameters if p.constexpr and p.name in bound}
        return grid_of(made.exercise, made.answer, arguments | constants)

    with stopped(10 * seconds):
        made.answer.kernel[grid](**matched(made.answer, arguments))
    compiled = base.latest
    assert compiled is not None
    options = {name: compiled.options[name] for name in ("num_warps", "num_stages") if compiled.options.get(name)}
    return {name: kind.constant[0] for name, kind in compiled.kinds.items() if kind.constant} | options


def _launch(made: Attempt, seconds: float) -> None:
    arguments = matched(made.answer, made.left) | made.constants
    kernel = made.answer.base
    if made.device == "interpreted":
        with limited(seconds):
            kernel[made.grid](**arguments, interpret=True)
    elif made.device == "gpu":
        moved = {n: _on_gpu(v) if isinstance(v, np.ndarray) else v for n, v in arguments.items()}
        kernel[made.grid](**moved, checked=True)
        for name, value in arguments.items():
            if isinstance(value, np.ndarray):
                value[...] = moved[name].get()
    else:
        with limited(seconds * 2):
            kernel.warmup(**arguments, checked=True)
        with stopped(seconds):
            kernel[made.grid](**arguments, checked=True)


def _on_gpu(array: np.ndarray) -> Any:
    """A copy on the GPU with the strides of the array: a view is copied with the memory that it is a view of."""
    import cupy

    if array.flags.c_contiguous:
        return cupy.asarray(array)
    whole = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    memory = cupy.asarray(whole.ravel(order="K").view(np.uint8))
    offset = array.ctypes.data - whole.ctypes.data
    return cupy.ndarray(array.shape, array.dtype, memory.data + offset, strides=array.strides)


@contextmanager
def stopped(seconds: float) -> Iterator[None]:
    """Stops launches on the CPU that take longer. Raises TimeUp."""
    late = threading.Event()

    def stop() -> None:
        late.set()
        stop_launches()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    except KeyboardInterrupt:
        if not late.is_set():
            raise
        raise TimeUp from None
    finally:
        timer.cancel()


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TimeUp in Python code of this thread that computes for longer, or takes ten times as long in all. Time that other processes
    take from it does not count on Linux; macOS and Windows have no clock of another thread, so it counts there."""
    raised, lock, over = False, threading.Lock(), threading.Event()
    ident = threading.get_ident()
    computed = _clock_of(ident)
    start, begun = computed(), time.monotonic()

    def watch() -> None:
        nonlocal raised
        while not over.wait(seconds / 4):
            with lock:
                late = computed() - start > seconds or time.monotonic() - begun > 10 * seconds
                if late and not over.is_set():
                    raised = True
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(TimeUp))
                    return

    threading.Thread(target=watch, name="blocknb-limit", daemon=True).start()
    arrived = False
    try:
        yield
    except TimeUp:
        arrived = True
        raise
    finally:
        with lock:
            over.set()
        if raised and not arrived:
            # Let a pending TimeUp arrive at a jump. PyThreadState_SetAsyncExc(ident, None) would take it back, but CPython 3.11 would then
            # keep its eval breaker set. A traced generator, as of a debugger or of coverage, would never resume.
            with suppress(TimeUp):
                for _ in range(100):
                    pass
    if raised:
        raise TimeUp


def _clock_of(thread: int) -> Callable[[], float]:
    """The seconds that a thread has computed; on a system without such a clock, the seconds of the wall clock."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    clock = time.pthread_getcpuclockid(thread)
    return lambda: time.clock_gettime(clock)


def devices_present() -> tuple[str, ...]:
    """ "cpu", and "gpu" if CuPy finds one."""
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    except Exception:  # no CuPy, no driver, or no device
        return ("cpu",)
    return ("cpu", "gpu") if count else ("cpu",)


def region_text(name: str, flags: np.ndarray) -> str:
    """The elements of an array for which a flag is set, as text. Examples are "`out`[896:1000]", "`out`[:, 64:100]", and "7 of 50 elements
    of `out`, the first one [3, 4]"."""
    if flags.ndim == 0:
        return f"`{name}`"
    if flags.all():
        return f"all of `{name}`"
    places = np.argwhere(flags)
    low, high = places.min(axis=0), places.max(axis=0) + 1
    if int(np.prod(high - low)) == len(places):
        return f"`{name}`[{', '.join(_slice(*x) for x in zip(low.tolist(), high.tolist(), flags.shape, strict=True))}]"
    first = ", ".join(map(str, places[0].tolist()))
    return f"{len(places)} of {flags.size} elements of `{name}`, the first one [{first}],"


def _slice(low: int, high: int, size: int) -> str:
    if (low, high) == (0, size):
        return ":"
    return str(low) if high == low + 1 else f"{low}:{high}"
