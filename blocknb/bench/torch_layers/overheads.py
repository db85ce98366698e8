"""`blocknb bench torch_overheads`: the host time of a launch and of an operator's call, compared with torch's own.

A launch is that of a kernel that Inductor generated, from the line of the generated graph on: `autotuner.run(arguments, stream)`. The peer
is the same graph compiled by Inductor, whose kernels torch's static launcher starts. The operator is a `@blocknb.torch_op`; its peer is
registered by `Library.define` and `impl` and runs the same function. A measurement times a batch and waits for the GPU before and after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from blocknb.bench.rows import Row, show
from blocknb.bench.suite.measure import one_line
from blocknb.bench.suite.runner import BenchOptions
from blocknb.bench.torch_layers import session
from blocknb.bench.torch_layers.session import StepClock
from blocknb.profile.timing import Timing

BATCH = 200  # launches; the driver queues more than a thousand
N = 64
OURS, STATIC = "blocknb", "Inductor"
LAUNCH_LIMITS = (3.0, 1.0)  # us added to torch's static launcher: floor, goal
OPERATOR_LIMITS = (5.0, 2.0)  # us added to define/impl
Call = Callable[[], Any]


def graphs() -> dict[str, tuple[Callable[..., Any], int]]:
    """Functions that become one kernel, and their numbers of vectors."""
    return {
        "pointwise, 3 pointers": (lambda x, y: x + 2 * y, 2),
        "pointwise, 8 pointers": (lambda *x: sum(x[1:], x[0]), 7),
        "reduction, 2 pointers": (lambda x: x.sum(-1), 1),
    }


@contextlib.contextmanager
def _recorded(autotuner: Any) -> Iterator[list[tuple[Any, tuple[Any, ...], dict[str, Any]]]]:
    """The calls of `run` of a class of autotuners, with their arguments."""
    found: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
    inherited = autotuner.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        found.append((self, args, kwargs))
        return inherited(self, *args, **kwargs)

    with mock.patch.object(autotuner, "run", run):
        yield found


def _autotuner(backend: str) -> Any:
    if backend == OURS:
        from blocknb.torch.inductor import patches, results, sources

        patches.install()
        results.install()
        return sources.private("triton_heuristics").CachingAutotuner
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    return CachingAutotuner


def launch_of(function: Callable[..., Any], count: int, backend: str, device: str) -> tuple[Call, str]:
    """The launch of the one kernel of a compiled function, as its graph makes it, and the name of the kind of compiled kernel.

    Raises ValueError if the function became several kernels or none.
    """
    import torch

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="blocknb" if backend == OURS else "inductor", dynamic=False)
    vectors = [torch.randn(N, N, device=device) for _ in range(count)]
    compiled(*vectors)
    with _recorded(_autotuner(backend)) as calls:
        compiled(*vectors)
    if len(calls) != 1:
        raise ValueError(f"{backend} launched {len(calls)} kernels, not one")
    ((autotuner, args, kwargs),) = calls
    results = getattr(autotuner, "compile_results", None) or [None]
    run = autotuner.run
    return lambda: run(*args, **kwargs), type(results[0]).__name__


def launches(clock: StepClock) -> list[Row]:
    """Microseconds per launch by graph, for both."""
    rows: list[Row] = []
    for name, (function, count) in graphs().items():
        calls, kinds = {}, {}
        for backend in (OURS, STATIC):
            try:
                calls[backend], kinds[backend] = launch_of(function, count, backend, clock.device)
            except Exception as error:  # the peer's compiler may raise anything; the other one is measured anyway
                rows.append({"what": name, "by": backend, "problem": one_line(error)})
        times = clock.loop(calls, BATCH)
        rows += _rows(name, times, STATIC, OURS)
        if kinds.get(STATIC) not in ("StaticTritonCompileResult", None):
            print(f"  {name}: Inductor did not use its static launcher, but {kinds[STATIC]}")
    return rows


def operators(clock: StepClock) -> list[Row]:
    """Microseconds per call of an operator."""
    from blocknb.bench.torch_layers import operator_calls as calls

    times = clock.loop(calls.operator_calls(clock.device), BATCH)
    plain = {name: times[name] for name in (calls.FUNCTION, calls.DEFINED, calls.OURS) if name in times}
    graded = {name: times[name] for name in (calls.DEFINED_GRADED, calls.OURS_GRADED) if name in times}
    return [
        *_rows("operator", plain, calls.DEFINED, calls.OURS),
        *_rows("operator with gradient", graded, calls.DEFINED_GRADED, calls.OURS_GRADED),
    ]


def _rows(name: str, times: dict[str, Timing], peer: str, ours: str) -> list[Row]:
    rows: list[Row] = []
    for one, timing in times.items():
        row: Row = {"what": name, "by": one, **{key: getattr(timing, key) * 1e3 for key in ("median", "low", "high")}}
        if peer in times:
            row["added to the peer"] = (timing.median - times[peer].median) * 1e3 if one == ours else ""
        rows.append(row)
    return rows


def verdicts(rows: list[Row]) -> list[str]:
    """The largest time that a launch adds, and the time that an operator's call adds, against their limits, and failed launches."""
    lines = []
    added = {row["what"]: row["added to the peer"] for row in rows if isinstance(row.get("added to the peer"), float)}
    launched = [added[name] for name in graphs() if name in added]
    for title, found, (floor, goal) in (
        ("launch, added to torch's static launcher", launched, LAUNCH_LIMITS),
        ("eager operator, added to define/impl", [added[n] for n in ("operator",) if n in added], OPERATOR_LIMITS),
    ):
        if found:
            word = session.verdict(max(found), floor, goal, lower=True)
            lines.append(f"  {word:<7}{title}: {max(found):.2f} us at most; floor {floor:g}, goal {goal:g}")
    lines += [f"  MISSED {row['what']}, {row['by']}: {row['problem']}" for row in rows if row.get("problem")]
    return lines


def run(options: BenchOptions, keep: session.Keep = lambda rows: None) -> list[Row]:
    """Prints and returns microseconds per launch and per call. Raises Unsupported without torch, Triton or a GPU."""
    session.require("torch", "triton")
    clock = StepClock("cuda", max(options.rounds, 5))
    print(session.head("cuda", "Overheads"))
    rows = launches(clock)
    show(f"Host time of a launch of a generated kernel, us, batches of {BATCH}", rows)
    keep([session.described("cuda"), *rows])
    found = operators(clock)
    show(f"Host time of a call of an operator, us, batches of {BATCH}", found)
    rows += found
    print("\n".join(verdicts(rows)), flush=True)
    return [session.described("cuda"), *rows]
