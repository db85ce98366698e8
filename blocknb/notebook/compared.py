"""Measures a kernel, its variants and baselines in one interleaved run, on copies of their arrays.

`rows` times calls and returns what the page and the text table show; `of_record` makes the calls for a kernel that a cell launched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from blocknb.errors import KernelError, LaunchError
from blocknb.notebook import numbers
from blocknb.notebook.observe import KernelRecord, apart
from blocknb.runtime.grids import Gone
from blocknb.runtime.launch_context import unobserved

SECONDS = 1.0  # approximate duration of a measurement
FEWEST_ROUNDS, MOST_ROUNDS = 4, 50

Call = Callable[[], Any]


def rows(candidates: Mapping[str, tuple[str, Call]], gpu: bool) -> dict[str, Any]:
    """Times labelled calls in turns; returns the part "bench" of a document. A call has a kind: "kernel", "without" or "baseline".

    A call that raises a KernelError (such as a variant with too much shared memory) becomes a row with its `error`.
    """
    from blocknb.profile import timing

    failed: dict[str, str] = {}
    took = 0.0
    with unobserved():
        for label, (kind, call) in candidates.items():
            try:
                call()  # compiles, and does the work of a first call
                begin = time.perf_counter()
                call()
                took += time.perf_counter() - begin
            except KernelError as error:
                if kind != "without":
                    raise
                failed[label] = numbers.complaint(error)
        calls = {label: call for label, (_, call) in candidates.items() if label not in failed}
        rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(SECONDS / max(took, 1e-9))))
        found = timing.interleaved(calls, gpu=gpu, rounds=rounds, warmup=1)
    made = []
    for label, (kind, _) in candidates.items():
        row: dict[str, Any] = {"label": label, "kind": kind}
        if label in failed:
            row["error"] = failed[label]
        else:
            row |= {"median": found[label].median, "low": found[label].low, "high": found[label].high}
        made.append(row)
    return {"unit": "ms", "rounds": rounds, "rows": made}


def of_record(
    record: KernelRecord, variants: Mapping[str, Mapping[str, Any]], baselines: Mapping[str, Call]
) -> dict[str, Any]:
    """Measures the kernel of a record as it was last launched, with other options (`variants`), and against baselines."""
    made, kernel = record.latest, record.kernel
    assert made is not None
    given = made.snapshot.arguments(made.compiled.stored) if made.snapshot and made.snapshot.grid else None
    if given is None or made.snapshot is None or made.snapshot.grid is None:
        raise LaunchError(
            f"{kernel.__name__} cannot be measured again: its arrays or its grid are no longer available",
            hint="assign the arguments of the launch to variables",
        )
    try:
        grid = made.snapshot.grid.given()
    except Gone:
        raise LaunchError(
            "a value that the grid depends on is no longer available", hint="assign it to a variable"
        ) from None
    options = {n: v for n, v in made.compiled.options.items() if n not in given}

    def launch(more: Mapping[str, Any]) -> Call:
        return lambda: kernel.launch(grid, **{**given, **options, **more})

    candidates: dict[str, tuple[str, Call]] = {kernel.__name__: ("kernel", launch({}))}
    candidates |= {label: ("without", launch(more)) for label, more in variants.items()}
    candidates |= {label: ("baseline", call) for label, call in baselines.items()}
    with apart(kernel):
        return rows(candidates, made.compiled.target.is_gpu)


def facts(bench: Mapping[str, Any]) -> list[tuple[str, str]]:
    """One line per row except the first: "12.3 µs, 1.4 times the kernel's 8.8 µs"."""
    first, *others = bench["rows"]
    found = []
    for row in others:
        text = row.get("error") or (
            f"{numbers.time(row['median'])}, {numbers.digits(row['median'] / first['median'])} times "
            f"the {numbers.time(first['median'])} of {first['label']}"
        )
        found.append(("baseline" if row["kind"] == "baseline" else row["label"], text))
        if row["kind"] == "baseline":
            found[-1] = ("baseline", f"`{row['label']}`: {text}")
    return found


def table(bench: Mapping[str, Any]) -> str:
    """The rows as plain text: median, interquartile range, and the ratio to the fastest."""
    timed = [row for row in bench["rows"] if "median" in row]
    fastest, width = min(row["median"] for row in timed), max(len(row["label"]) for row in bench["rows"])
    lines = [f"{'':{width}}  {'median':>10}  {'interquartile range':>21}  {'ratio':>6}"]
    for row in bench["rows"]:
        if "error" in row:
            lines.append(f"{row['label']:{width}}  {row['error']}")
            continue
        spread = f"{numbers.time(row['low'])} to {numbers.time(row['high'])}"
        ratio = numbers.digits(row["median"] / fastest)
        lines.append(f"{row['label']:{width}}  {numbers.time(row['median']):>10}  {spread:>21}  {ratio:>6}")
    return "\n".join([*lines, f"interleaved timing, {bench['rounds']} rounds"])
