"""The card of a compilation that failed or was interrupted: why, what would make it fit, and the stages that ran.

A failed launch has no card of its own, since nothing was launched. The cell shows this one below the error. It has the source, each pass up
to the one that failed, and the LLVM text if the passes were complete.
"""

from __future__ import annotations

from typing import Any

from blocknb.errors import CompilationInterrupted, KernelError
from blocknb.notebook import document, html, numbers, sections
from blocknb.trace import Trace

BUDGET = 600_000  # characters of views and texts
HTML_BUDGET = 29_500  # bytes of the static page


def stages_of(error: BaseException | None) -> Trace | None:
    """The Trace of the stages that ran before an error, or None if there are none."""
    trace = error.trace if isinstance(error, KernelError | CompilationInterrupted) else None
    return trace if isinstance(trace, Trace) and len(trace.stages) else None


def reason(error: KernelError | CompilationInterrupted) -> str:
    """The error in one line, with the pass that failed: "out of resources in shared_memory_allocation, after 15 stages: ..."."""
    trace = stages_of(error)
    if isinstance(error, CompilationInterrupted):
        return f"interrupted in {error.stage}, after {numbers.plural(len(error.trace.stages), 'stage')}"
    if trace is None:
        return numbers.complaint(error)
    where = error.stage or ("LLVM or ptxas" if trace.llvm else "code generation")
    text = numbers.complaint(error).removeprefix(f"{error.title}: ")
    return f"{error.title} in {where}, after {numbers.plural(len(trace.stages), 'stage')}: {text}"


def bundle(error: KernelError | CompilationInterrupted, trace: Trace) -> dict[str, Any]:
    """The output of a cell whose launch failed to compile, by MIME type."""
    place, why = numbers.place(trace.target), reason(error)
    what = "interrupted" if isinstance(error, CompilationInterrupted) else "failed"
    heading = f"{what} for {place}"
    label = str(trace.target) if trace.target.is_gpu else "CPU"
    facts = [(what, f"✗ {why}"), (f"compiled, {label}", numbers.compile_time(trace))]
    stages = sections.stage_sections(trace, "error.trace", heading)
    code = sections.code_sections(trace, "error.trace", heading)
    shown = document.DocumentTarget("compiled", label, place, trace, [*stages, *code], why)
    made = document.build(trace.name, facts, [], [shown], BUDGET)
    source = sections.source_section([trace], "error.trace", "")
    static = html.render((trace.name, heading), facts, [], [source, *stages], (), HTML_BUDGET)
    return {
        "text/plain": "\n".join([f"{trace.name}: {heading}", *(f"  {name}: {text}" for name, text in facts)]),
        "text/html": static,
        document.MIME: {**made, "model": None, "show": ["passes"]},
    }
