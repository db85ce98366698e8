"""Functions that the fuzzer's cells call: comparisons of compiled with interpreted launches, and requests as a page sends them."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from blocknb.errors import AccessError, KernelError
from blocknb.fuzz.numbers import Ambiguous

SLOW = 4.0  # seconds; a longer interpretation is given up
RELATIVE = {2: 3e-2, 4: 2e-3, 8: 1e-6}  # by the size of a float


class Silent(AssertionError):
    """A compiled launch differs from the interpreted one."""


def both(call: Callable[[], Any]) -> None:
    """Calls a function whose launches run twice: interpreted on copies, then compiled. Raises Silent if the results differ.

    A launch whose result depends on the order of its programs, or whose interpretation takes too long, raises Ambiguous.
    """
    from blocknb.runtime.kernel import Kernel

    kind: Any = Kernel
    before = kind._general
    running = False

    def launch(kernel: Any, grid: Any, args: Any, kwargs: Any, tried: Any = None) -> Any:
        nonlocal running
        if running:
            return before(kernel, grid, args, kwargs, tried)
        running = True
        try:
            return _twice(kernel, grid, args, kwargs, before)
        finally:
            running = False

    kind._general = launch
    try:
        with _observed():
            call()
    finally:
        kind._general = before


@contextlib.contextmanager
def _observed() -> Iterator[None]:
    """Inside, launches take the general path."""
    from blocknb.runtime import launch_context

    def ignore(launch: Any) -> None:
        pass

    launch_context.observers.append(ignore)
    try:
        yield
    finally:
        launch_context.observers.remove(ignore)


def _twice(kernel: Any, grid: Any, args: Any, kwargs: Any, before: Any) -> Any:
    binding, values = kernel.bound_call(args, kwargs)
    given = dict(zip(binding.names, values, strict=True))
    outcomes = []
    programs = None
    for backward in (False, True):
        copies = _copies(given)
        error = _interpreted(kernel, grid, copies, programs if backward else None)
        outcomes.append((error, copies))
        if error is not None:
            break
        programs = _backward(kernel, grid, binding, values)
    if len(outcomes) == 2 and _difference(outcomes[0][1], outcomes[1][1], kernel):
        raise Ambiguous("the result depends on the order of the programs")
    error, wanted = outcomes[0]
    try:
        result = before(kernel, grid, args, kwargs)
    except KernelError as raised:
        if error is None and not _refused(raised):
            raise Silent(f"compiled: {type(raised).__name__}: {raised.message}; interpreted: no error") from raised
        raise
    if isinstance(error, AccessError) and " loads " in error.message:
        raise Ambiguous("a load outside, whose value the kernel does not need")
    if error is not None:
        raise Silent(f"interpreted: {type(error).__name__}: {error}; compiled: no error") from error
    if difference := _difference(given, wanted, kernel):
        raise Silent(difference)
    return result


def _refused(error: KernelError) -> bool:
    """Whether the compiler refuses a kernel that the interpreter, which knows all of Python, accepts."""
    from blocknb.errors import CompilationError, LaunchError, OutOfResources

    return isinstance(error, CompilationError | LaunchError | OutOfResources)


def _backward(kernel: Any, grid: Any, binding: Any, values: Any) -> list[Any]:
    from blocknb.runtime.binding import normal_grid

    whole = normal_grid(kernel.source, grid, binding.bound(values) if callable(grid) else {})
    return [(x, y, z) for z in range(whole[2]) for y in range(whole[1]) for x in range(whole[0])][::-1]


def _interpreted(kernel: Any, grid: Any, given: dict[str, Any], programs: Any) -> Exception | None:
    """The error of an interpreted launch. Raises Ambiguous if it takes too long."""

    def late(number: int, frame: Any) -> None:
        raise Ambiguous("the interpretation takes too long")

    main = threading.current_thread() is threading.main_thread()
    old = signal.signal(signal.SIGALRM, late) if main else None
    try:
        if main:
            signal.setitimer(signal.ITIMER_REAL, SLOW)
        with np.errstate(all="ignore"):
            kernel.interpret(grid, programs=programs)(**given)
    except Ambiguous:
        raise
    except Exception as error:
        return error
    finally:
        if main:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
    return None


def _copies(given: dict[str, Any]) -> dict[str, Any]:
    from blocknb.runtime.launch_snapshot import scratch

    return {**given, **scratch(given)}


def _arrays(given: dict[str, Any]) -> dict[str, np.ndarray]:
    found = {}
    for name, value in given.items():
        value = getattr(value, "base", value) if not isinstance(value, np.ndarray) else value
        if isinstance(value, np.ndarray):
            found[name] = value
    return found


def _difference(got: dict[str, Any], wanted: dict[str, Any], kernel: Any) -> str:
    """The first array that differs by more than rounding may; "" if there is none."""
    others = _arrays(wanted)
    for name, array in _arrays(got).items():
        other = others[name]
        if array.dtype.kind in "iub":
            wrong = array != other
        else:
            a, b = array.astype(np.float64), other.astype(np.float64)
            finite = np.abs(b[np.isfinite(b)])
            allowed = RELATIVE.get(array.dtype.itemsize, 0.3)
            with np.errstate(all="ignore"):
                near = np.abs(a - b) <= allowed * (np.abs(b) + float(finite.max(initial=0.0)))
            wrong = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            return (
                f"{kernel.__name__}: {int(wrong.sum())} of {wrong.size} elements of `{name}` differ; element {at} is "
                f"{array[at]!r} compiled and {other[at]!r} interpreted"
            )
    return ""


class Comm:
    """The page's end of a live card; `sent` holds the kernel's messages."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, data: dict[str, Any]) -> None:
        self.sent.append(data)


def page(kernel: Any, request: dict[str, Any], valid: bool = False) -> None:
    """Sends a request about the newest card of a kernel, as a page does. Every request gets one answer; a valid one is no error."""
    from blocknb.notebook import card, live, observe

    record = observe.record_of(getattr(kernel, "kernel", kernel))
    if record is None:
        return
    entry, comm = live.register(card.newest(record)), Comm()
    live._answer(comm, entry, {"id": 1, **request})
    answers = [content for content in comm.sent if "progress" not in content]
    assert len(answers) == 1, comm.sent
    assert not valid or "error" not in answers[0], comm.sent


def complete(text: str) -> None:
    """Completes a line, as the notebook does at each key. No line is an error."""
    from IPython import get_ipython

    from blocknb.notebook.completion import candidates

    word, found = candidates(text, get_ipython())
    assert text.endswith(word), (text, word)
    assert all(isinstance(candidate, str) for candidate in found), found
