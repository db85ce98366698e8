"""The implementations of `kernel.sweep`, `kernel.bench`, `kernel.roofline` and `kernel.history` (see `runtime.measured` for their use)."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from blocknb import passes
from blocknb.errors import LaunchError
from blocknb.notebook import compared, roofline, sweep_answer
from blocknb.notebook import sweep as sweeps
from blocknb.notebook.check_compare import to_numpy
from blocknb.notebook.compared import BenchTable
from blocknb.notebook.observe import KernelRecord, record_of, without_recording
from blocknb.notebook.roofline import Roofline
from blocknb.notebook.sweep import MOST_POINTS, Sweep
from blocknb.notebook.sweep_launches import ConstantSweep, LaunchSweep
from blocknb.notebook.version_history import VersionHistory
from blocknb.runtime.kernel import Kernel

Function = Callable[..., Any]


def sweep(
    kernel: Kernel,
    axes: Mapping[str, Iterable[Any]],
    launch: Function | None,
    baselines: Mapping[str, Function] | None,
    check: Function | None,
) -> Sweep:
    """Implements `kernel.sweep`."""
    given = {name: list(values) for name, values in axes.items()}
    if not 1 <= len(given) <= 2 or not all(given.values()):
        raise LaunchError(
            f"a sweep takes one or two axes with values, not {len(given)}",
            hint=f"{kernel.__name__}.sweep(BLOCK=[256, 512])",
        )
    if (count := math.prod(map(len, given.values()))) > MOST_POINTS:
        raise LaunchError(f"{count} points; a sweep takes at most {MOST_POINTS}")
    if check is not None and launch is None:
        raise LaunchError(
            "check= needs launch=", hint="a sweep of constants compares the outputs with those of the cell itself"
        )
    _check_labels(kernel, baselines or {})
    names = list(given)
    points = [*itertools.product(*given.values())] if len(names) > 1 else next(iter(given.values()))
    axis: Any = names[0] if len(names) == 1 else (names[0], names[1])

    def settings(point: Any) -> dict[str, Any]:
        return dict(zip(names, point if len(names) > 1 else (point,), strict=True))

    with without_recording(kernel):
        if launch is None:
            constant = ConstantSweep(_record(kernel, "sweep"), names)
            found = sweeps.run(
                kernel.__name__, axis, points, constant, lambda point: baselines or {}, ahead=constant.compile_ahead
            )
            found.notes += constant.notes
            sweep_answer.answer(found, constant)
            return found
        sizes = LaunchSweep(kernel, launch, None)

        def replays(point: Any) -> Any:
            sizes.launch = functools.partial(launch, **settings(point))
            sizes.check = None if check is None else lambda: bool(np.all(to_numpy(check(**settings(point)))))
            return sizes(point)

        def bound(point: Any) -> dict[str, Function]:
            return {label: functools.partial(call, **settings(point)) for label, call in (baselines or {}).items()}

        found = sweeps.run(kernel.__name__, axis, points, replays, bound)
        found.notes += sizes.notes
        sweep_answer.answer(found)
    return found


def bench(kernel: Kernel, baselines: Mapping[str, Function], without: Iterable[str | Iterable[str]]) -> BenchTable:
    """Implements `kernel.bench`."""
    record = _record(kernel, "bench")
    _check_labels(kernel, baselines)
    variants = {}
    given = (without,) if isinstance(without, str) else without
    for names in ((one,) if isinstance(one, str) else tuple(one) for one in given):
        if unknown := [name for name in names if name not in passes.optional()]:
            raise LaunchError(f"{unknown[0]!r} is no optional pass", hint=f"they are {', '.join(passes.optional())}")
        assert record.latest is not None
        off = record.latest.compiled.options["without"]
        variants[f"without {', '.join(names)}"] = {"without": tuple(sorted({*off, *names}))}
    return BenchTable(kernel.__name__, compared.of_record(record, variants, baselines))


def _check_labels(kernel: Kernel, baselines: Mapping[str, Function]) -> None:
    """Raises LaunchError for a baseline that is no function, or has the kernel's name, which would take the place of the kernel."""
    for label, function in baselines.items():
        if not callable(function):
            raise LaunchError(
                f"the baseline {label} is no function, but of type {type(function).__name__}",
                hint="pass a function without parameters: {'NumPy': lambda: x + y}",
            )
    if kernel.__name__ in baselines:
        raise LaunchError(
            f"a baseline is called {kernel.__name__}, as the kernel is", hint="give the baseline another label"
        )


def roofline_of(kernel: Kernel, baselines: Mapping[str, Function]) -> Roofline:
    """Implements `kernel.roofline`."""
    _check_labels(kernel, baselines)
    return roofline.roofline(kernel, baselines=baselines, versions=roofline.earlier(kernel))


def history_of(kernel: Kernel) -> VersionHistory:
    """Implements `kernel.history`."""
    return VersionHistory(kernel)


def _record(kernel: Kernel, method: str) -> KernelRecord:
    """The newest launches of a kernel in a cell. Raises LaunchError without any."""
    found = record_of(kernel)
    if found is None or found.latest is None or not found.latest.launches:
        raise LaunchError(
            f"{kernel.__name__}.{method}() repeats the last launch of a %%blockkernel cell, and there is none",
            hint=f"launch {kernel.__name__} in such a cell" + (", or pass launch=" if method == "sweep" else ""),
        )
    return found
