"""Names the stage of the compiler that introduced a wrong result.

The Trace holds the IR after every pass, and the interpreter runs IR of any level. The first stage whose result differs from the
evaluator's is wrong; if there is none, the code generator is. Skipping optional passes one at a time shows which of them matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from blocknb.errors import KernelError
from blocknb.fuzz import compare, execute
from blocknb.fuzz import tree as t
from blocknb.fuzz.execute import FuzzCase, Outcome
from blocknb.target import Target
from blocknb.trace import Stage


@dataclass(frozen=True)
class Blame:
    """The wrong `stage`, and the optional passes without which the kernel is right (`cured_by`).

    `stage` is the first one whose IR gives a wrong result, "codegen" if all are right, and "front end" for the parser's IR.
    """

    stage: str
    cured_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        cured = f"; right without {', '.join(self.cured_by)}" if self.cured_by else ""
        return f"{self.stage}{cured}"


def blame(kernel: t.KernelTree, outcome: Outcome, device: str = "cpu") -> Blame:
    """Finds the wrong stage for a kernel with a failed outcome."""
    if outcome.kind == "refused":
        return Blame(f"refused by {outcome.detail.split(':')[0]}", tuple(_cured(kernel, device)))
    try:
        stage = _first_wrong_stage(kernel, outcome.launch, device)
    except KernelError as error:
        return Blame(f"unknown ({type(error).__name__})")
    return Blame(stage, tuple(_cured(kernel, device)))


def _cured(kernel: t.KernelTree, device: str) -> Iterator[str]:
    from blocknb import passes

    for name in passes.optional(Target.parse("cpu") if device == "cpu" else None):
        if execute.attempt(kernel, device, (name,)).kind == "right":
            yield name


def _first_wrong_stage(kernel: t.KernelTree, number: int, device: str) -> str:
    from blocknb.runtime.plan import target_of

    case = FuzzCase(kernel, "cpu")
    launch = case.launches[number]
    function = execute.load(execute.source.module([kernel], device))[kernel.name]
    target = target_of(0) if device == "cuda" else device
    compiled = function.compile(**launch.arguments, target=target, **case.options())

    def differs(stage: Stage, finished: bool) -> bool:
        fresh = FuzzCase(kernel, "cpu").launches[number]
        execute.interpret(kernel, fresh, stage.after, finished)
        return bool(compare.differences(kernel, fresh.memory, {name: g.array for name, g in fresh.arrays.items()}))

    found = first_wrong_stage(compiled.trace.stages, differs)
    if found is None:
        return "codegen"
    stage, error = found
    return named(stage.name) + (f" ({raised(error)})" if error else "")


def first_wrong_stage(
    stages: Iterable[Stage], differs: Callable[[Stage, bool], bool]
) -> tuple[Stage, Exception | None] | None:
    """The first stage whose IR gives a wrong result, and the interpreter's error if it raises one. None if all are right.

    `differs(stage, finished)` interprets the IR after a stage. IR that is not finished may lack barriers.
    """
    unfinished = before_barriers()
    for stage in stages:
        finished = stage.after.level == "memory" and stage.name not in unfinished
        try:
            if differs(stage, finished):
                return stage, None
        except Exception as error:
            return stage, error
    return None


def before_barriers() -> set[str]:
    """The names of the passes before the one that places barriers."""
    from blocknb import passes

    names = [entry.split(".")[1] for entry in passes.ORDER]
    return set(names[: names.index("barriers")])


def raised(error: Exception) -> str:
    """The interpreter's error for wrong IR, in short."""
    return f"the interpreter raises {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"


def named(stage: str) -> str:
    """A stage in a message: "front end" or "pass simplify"."""
    return "front end" if stage == "parse" else f"pass {stage}"
