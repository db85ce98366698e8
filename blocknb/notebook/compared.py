"""Measures a kernel, its variants and baselines in one interleaved run, on copies of their arrays.

`rows` times calls and returns what the page and the text table show; `of_record` makes the calls for a kernel that a cell launched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from blocknb.errors import KernelError, LaunchError
from blocknb.notebook import comparison, numbers, repeats, timelines
from blocknb.notebook.concurrent_compile import DEFAULT_VIEW
from blocknb.notebook.measurements import Measurements
from blocknb.notebook.observe import KernelRecord, Specialisation, without_recording
from blocknb.profile import noise, timing
from blocknb.profile.outputs import OutputComparison, PoisonedOutputs
from blocknb.runtime.compile import Compiled
from blocknb.runtime.grids import ArrayFreed
from blocknb.runtime.launch_context import unobserved
from blocknb.runtime.prepared_launch import prepare

SECONDS, MOST_SECONDS = 1.0, 4.0  # approximate duration of a measurement; the longer one for an interval of the ratios
FEWEST_ROUNDS, MOST_ROUNDS = 4, 50

Call = Callable[[], Any]


class BenchTable(Measurements):
    """Times in turns of a `kernel` (or of expressions), its variants and baselines; `part` has a row for each."""

    key = "bench"

    def __init__(self, kernel: str, part: Mapping[str, Any]):
        self.kernel, self._part = kernel, dict(part)

    @property
    def part(self) -> dict[str, Any]:
        return self._part

    def records(self) -> list[dict[str, Any]]:
        """A row for each candidate: `ms` with its quartiles, and its time divided by that of the first with the interval."""
        found = []
        for row in self._part["rows"]:
            time, ratio = row.get("time", {}), row.get("ratio", {})
            made = {"label": row["label"], "kind": row["kind"], "error": row.get("error", "")}
            made |= {"ms": time.get("median"), "ms_low": time.get("low"), "ms_high": time.get("high")}
            made |= {"ratio": ratio.get("value"), "ratio_low": ratio.get("low"), "ratio_high": ratio.get("high")}
            found.append({**made, "n": time.get("n"), "device": time.get("device", "")})
        return found

    def text(self) -> str:
        return table(self._part)


def rows(
    candidates: Mapping[str, tuple[str, Call]], gpu: bool, failed: Mapping[str, str] | None = None, device: str = ""
) -> dict[str, Any]:
    """Times labelled calls in turns; returns the part "bench" of a document. A call has a kind: "kernel", "without" or "baseline".

    Each row but the first has its ratio to the first. A variant that `failed` (by label) is a row with its `error`. Raises
    KeyboardInterrupt if an interrupt comes before each call has a time.
    """
    failed = failed or {}
    calls = {label: call for label, (_, call) in candidates.items() if label not in failed}
    took = 0.0
    with unobserved():
        for call in calls.values():
            call()  # does the work of a first call
            begin = time.perf_counter()
            call()
            took += time.perf_counter() - begin
        # The limit holds for the flushes of the caches, too, which `took` leaves out.
        found = timing.interleaved(calls, gpu=gpu, rounds=_rounds(took), warmup=1, seconds=MOST_SECONDS)
    if len(found) < len(calls):
        raise KeyboardInterrupt
    made, base = [], next(iter(calls))
    for label, (kind, _) in candidates.items():
        row: dict[str, Any] = {"label": label, "kind": kind}
        if label in failed:
            row["error"] = failed[label]
        else:
            row["time"] = found[label].on(device).entry
            if label != base:
                ratio = noise.ratio(found[label], found[base])
                row |= {"ratio": ratio.entry, "text": numbers.ratio(ratio, base)}
        made.append(row)
    return {"rounds": found[base].runs, "busy": noise.busy(list(found.values())), "rows": made}


def _rounds(took: float) -> int:
    """The number of rounds of a measurement, from the seconds of one: enough for an interval of the ratios, if that does not take long."""
    rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(SECONDS / max(took, 1e-9))))
    return max(rounds, noise.LEAST_PAIRS) if took * noise.LEAST_PAIRS <= MOST_SECONDS else rounds


def of_record(
    record: KernelRecord, variants: Mapping[str, Mapping[str, Any]], baselines: Mapping[str, Call]
) -> dict[str, Any]:
    """Measures the kernel of a record as it was last launched, with other options (`variants`), and against baselines.

    A variant whose outputs differ from the kernel's is not timed."""
    made, kernel = record.latest, record.kernel
    assert made is not None
    try:
        if made.snapshot is None or made.snapshot.grid is None:
            raise LookupError
        copies = PoisonedOutputs(made.snapshot, made.compiled.stored, made.compiled.loaded)
    except LookupError:
        raise LaunchError(
            f"{kernel.__name__} cannot be measured again: its arrays or its grid are no longer available",
            hint="assign the arguments of the launch to variables",
        ) from None
    try:
        grid = made.snapshot.grid.given()
    except ArrayFreed:
        raise LaunchError(
            "a value that the grid depends on is no longer available", hint="assign it to a variable"
        ) from None
    given = copies.copies.arguments
    options = {n: v for n, v in made.compiled.options.items() if n not in given}
    failed: dict[str, str] = {}
    notes: dict[str, str] = {}
    large = repeats.too_large(made.snapshot, made.compiled.stored, made.compiled.target.is_gpu, sets=3)
    with without_recording(kernel):
        base = prepare(kernel, grid, {**given, **options})
        candidates: dict[str, tuple[str, Call]] = {kernel.__name__: ("kernel", base)}
        for label, more in variants.items():
            candidates[label] = ("without", base)
            try:
                changed = prepare(kernel, grid, {**given, **options, **more})
                with unobserved():
                    outputs = OutputComparison(None, large) if large else copies.compare_launches(changed, base)
            except KernelError as error:  # such as a variant with too much shared memory
                failed[label] = numbers.complaint(error)
                continue
            if outputs.right is False:
                failed[label] = f"✗ WRONG: {outputs.text}"
            candidates[label] = ("without", changed)
            unjudged = f"the outputs are not compared: {outputs.text}" if outputs.right is None else ""
            notes[label] = "; ".join(filter(None, [_note(made, changed.plan.compiled), unjudged]))
        candidates |= {label: ("baseline", call) for label, call in baselines.items()}
        bench = rows(candidates, made.compiled.target.is_gpu, failed, numbers.place(made.compiled.target, made.device))
    for row in bench["rows"]:
        if note := notes.get(row["label"]):
            row["note"] = note
    return bench


def _note(made: Specialisation, changed: Compiled) -> str:
    """The effect of a variant on the code, if its target ignores it: nothing there, and its effect on a GPU by the timeline's model."""
    if not comparison.same_code(made.compiled.trace, changed.trace):
        return ""
    note = comparison.no_effect("CPU" if not changed.target.is_gpu else str(changed.target))
    if changed.target.is_gpu:
        return note
    try:
        old, new = (c.retarget(DEFAULT_VIEW, c.options["without"]).trace for c in (made.compiled, changed))
    except KernelError as error:
        return f"{note}. {DEFAULT_VIEW}: {numbers.complaint(error)}"
    if comparison.same_code(old, new):
        return f"{note}. {comparison.no_effect(DEFAULT_VIEW).capitalize()}"
    return f"{note}. {timelines.predicted((made, old), (made, new))}"


def facts(bench: Mapping[str, Any]) -> list[tuple[str, str]]:
    """One line per row except the first: "12.3 µs, 1.40 times the time of add (1.36 to 1.45)"."""
    found = []
    for row in bench["rows"][1:]:
        text = row.get("error") or f"{numbers.time(row['time']['median'])}, {row['text']}"
        text += f"; {row['note']}" if row.get("note") else ""
        found.append(("baseline", f"`{row['label']}`: {text}") if row["kind"] == "baseline" else (row["label"], text))
    return found + ([("warning", bench["busy"])] if bench["busy"] else [])


def table(bench: Mapping[str, Any]) -> str:
    """The rows as plain text: median, interquartile range, and the ratio to the first row."""
    width = max(len(row["label"]) for row in bench["rows"])
    lines = [f"{'':{width}}  {'median':>10}  {'interquartile range':>21}  ratio"]
    for row in bench["rows"]:
        if "error" in row:
            lines.append(f"{row['label']:{width}}  {row['error']}")
            continue
        found = row["time"]
        spread = f"{numbers.time(found['low'])} to {numbers.time(found['high'])}"
        lines.append(
            f"{row['label']:{width}}  {numbers.time(found['median']):>10}  {spread:>21}  {row.get('text', '')}".rstrip()
        )
    lines.append(f"timed in turns with cold caches, {bench['rounds']} rounds")
    return "\n".join([*lines, *filter(None, [bench["busy"]])])
