"""The Trace records everything about one compilation.

The notebook, the command line, the tests and the docs read only the Trace. For every stage it has the IR before and after, the notes
with their ops and source lines, and the time. It also has the LLVM, PTX, SASS or x86 texts, and the report of the assembler. IR is
converted to text on first use, because printing costs more time than most passes.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from blocknb.errors import CompilerBug, KernelError, Loc

if TYPE_CHECKING:
    from blocknb.ir.core import Func, Op


@dataclass(frozen=True, slots=True)
class Note:
    """One decision of a pass.

    `kind` is "info" (the pass changed something), "missed" (it could not, with the reason) or "warning". `op` is the id of the op in the
    stage's output, or -1 for the whole kernel. `loc` is the op's source, and `origin` the pass. `failed` marks an optimization that
    failed with an error and was left out.
    """

    text: str
    origin: str
    op: int = -1
    loc: Loc | None = None
    kind: str = "info"
    failed: bool = False

    def __repr__(self) -> str:
        place = f", line {self.loc.line}" if self.loc is not None else ""
        return f"<Note of {self.origin} ({self.kind}{place}): {self.text[:200]}>"


def left_out(optimization: str, origin: str, error: Exception) -> Note:
    """The note for an optimization that failed with `error`. The compilation continues without it.

    Raises the error itself if it is a KernelError, which is the user's mistake. Also raises it if BLOCKNB_STRICT is set in the
    environment, as in the tests.
    """
    is_users = isinstance(error, KernelError) and not isinstance(error, CompilerBug)
    if is_users or os.environ.get("BLOCKNB_STRICT", "0") not in ("", "0"):
        raise error
    place = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__} at {os.path.basename(place.filename)}:{place.lineno}"
    return Note(
        f"{optimization} was left out: it failed with {what}; please report it", origin, kind="warning", failed=True
    )


class Notes:
    """Collects the notes of one pass: `notes(op, "text")`, `notes(None, "text", kind="missed")`."""

    def __init__(self, origin: str):
        self.origin = origin
        self.list: list[Note] = []

    def __call__(self, op: Op | None, text: str, kind: str = "info") -> None:
        self.list.append(Note(text, self.origin, op.id if op else -1, op.loc if op else None, kind))


@dataclass(frozen=True)
class Stage:
    """One executed pass. `title` is the first line of its docstring, `doc` the whole. `skipped` is true if the pass was disabled.

    `edited` is true if the user replaced the output (see `edit`). `resume` compiles on from another text of the output.
    """

    name: str
    title: str
    doc: str
    before: Func
    after: Func
    notes: tuple[Note, ...]
    milliseconds: float
    optional: bool = False
    skipped: bool = False
    edited: bool = False
    resume: Callable[[str], Any] | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        """A line, because the IR of a stage fills pages: print `stage.text` for that."""
        state = "disabled" if self.skipped else "changed" if self.changed else "unchanged"
        return f"<Stage {self.name}: {state}, {len(self.notes)} notes, {self.milliseconds:.2f} ms>"

    def edit(self, text: str) -> Any:
        """Replaces the IR after this stage by `text`, and compiles on: the passes after it, and code generation.

        Returns an EditedKernel: `.trace` has its stages and code, and `edited[grid](*args)` launches it with the arguments that the
        kernel takes. The rest of the compilation is as before: same kinds of arguments, options and target. An op that keeps its id
        keeps its source line. Raises EditError with the line and column of `text` if it is not valid IR of this level.
        """
        if self.resume is None:
            raise ValueError(
                f"the stage {self.name} was not made by a kernel's compilation, which could continue from it"
            )
        return self.resume(text)

    @property
    def changed(self) -> bool:
        return self.after is not self.before and self.text != self.text_before

    @cached_property
    def text(self) -> str:
        """The IR after the pass."""
        return _printed(self.after)

    @cached_property
    def text_before(self) -> str:
        return _printed(self.before)


def _printed(func: Func | PrintedIR) -> str:
    from blocknb.ir.text import print_func

    return func.text if isinstance(func, PrintedIR) else print_func(func)


@dataclass(frozen=True, eq=False)
class PrintedIR:
    """The IR of a stage in another process: its text."""

    text: str

    def __str__(self) -> str:
        return self.text


class UnknownStage(KeyError):
    """A compilation has no stage of the given name."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show the quoted message


class Stages(Sequence[Stage]):
    """The stages of a compilation in order, by number or by name: `trace.stages["coalesce"]`.

    `make` computes them on first use, for a kernel whose code came from a cache.
    """

    def __init__(self, make: Callable[[], tuple[Stage, ...]]):
        self._make, self._noted = make, dict[Note, None]()

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        return self._make()

    def __repr__(self) -> str:
        return f"<Stages: {', '.join(stage.name for stage in self)}>"

    def note(self, note: Note) -> None:
        """Adds a note of a launch to the first stage, once. Stages that were not computed yet stay so."""
        if note in self._noted:
            return
        self._noted[note] = None
        done = self.__dict__.pop("_stages", None)
        make = self._make if done is None else lambda: done
        self._make = lambda: tuple(
            stage if number else replace(stage, notes=(*stage.notes, note)) for number, stage in enumerate(make())
        )

    def __len__(self) -> int:
        return len(self._stages)

    def __getitem__(self, index: Any) -> Any:
        names = [stage.name for stage in self._stages]
        if isinstance(index, slice) or (isinstance(index, int) and -len(names) <= index < len(names)):
            return self._stages[index]
        if isinstance(index, int):
            raise IndexError(f"the compilation has {len(names)} stages, and no number {index}")
        if isinstance(index, str) and index in names:
            return self._stages[names.index(index)]
        import difflib

        close = difflib.get_close_matches(str(index), names, 3)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise UnknownStage(f"no stage {index!r} ran; {hint}The stages are {', '.join(names)}")


@dataclass(frozen=True)
class Resources:
    """The resources that the assembler reported, per thread or per CTA.

    A field is None if it is unknown (no ptxas, or a CPU). `programs` is the number of programs per CTA.
    """

    registers: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None
    threads: int | None = None
    warnings: tuple[str, ...] = ()
    programs: int = 1


@dataclass
class Trace:
    """One kernel, one signature, one target.

    `source` is the kernel's text with `file` and `first_line`; `signature` maps parameter names to type texts, `constants` the
    constexpr values; `stages[0]` is the front end (before is after); `milliseconds` maps stage names (front end, each pass,
    "codegen", "llvm parse", "llvm optimise", "llvm emit", "ptxas", "load") to times. `artifacts` maps "llvm", "ptx", "cubin",
    "object" to text or bytes. `sass` and `assembly` are computed on first use.
    """

    name: str
    target: Any
    source: str
    file: str
    first_line: int
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]
    stages: Stages = field(default_factory=lambda: Stages(tuple))
    artifacts: dict[str, Any] = field(default_factory=dict)
    resources: Resources = Resources()
    milliseconds: dict[str, float] = field(default_factory=dict)
    from_cache: bool = False
    disassemble: Callable[[bytes], Any] | None = None
    list_code: Callable[[str], str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the IR of the stages as texts. `sass`, `assembly` and `Stage.edit` need the process that compiled."""
        printed: dict[int, Any] = {}
        for stage in self.stages:
            for func in (stage.before, stage.after):
                printed.setdefault(id(func), PrintedIR(_printed(func)))
        stages = [
            replace(stage, before=printed[id(stage.before)], after=printed[id(stage.after)], resume=None)
            for stage in self.stages
        ]
        return {**vars(self), "stages": stages, "disassemble": None, "list_code": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        stages = tuple(state["stages"])
        vars(self).update(state, stages=Stages(lambda: stages))

    def __repr__(self) -> str:
        """A few lines: the whole of a trace is far too long to read."""
        signature = ", ".join([*self.signature.values(), *(f"{n}={v!r}" for n, v in self.constants.items())])
        texts = [name for name in ("llvm", "ptx", "object", "cubin") if name in self.artifacts]
        return (
            f"<Trace of {self.name} for {self.target} ({signature[:300]}): {len(self.stages)} stages, {len(self.notes)} notes, "
            f"{', '.join(texts) or 'no code'}, {self.total_milliseconds:.0f} ms>"
        )

    @property
    def notes(self) -> tuple[Note, ...]:
        """All notes of all stages, in order."""
        return tuple(note for stage in self.stages for note in stage.notes)

    def stage(self, name: str) -> Stage:
        """The stage of that name, as `stages[name]`. Raises KeyError with the names of all stages."""
        found: Stage = self.stages[name]
        return found

    @property
    def llvm(self) -> str | None:
        return self.artifacts.get("llvm")

    @property
    def ptx(self) -> str | None:
        return self.artifacts.get("ptx")

    @cached_property
    def assembly(self) -> str | None:
        """The x86 (or Arm) assembly of a CPU compilation. LLVM runs again to list it."""
        return self.list_code(self.artifacts["llvm"]) if self.lists and self.list_code else None

    @property
    def lists(self) -> bool:
        """Whether reading `assembly` runs LLVM."""
        return bool(self.artifacts.get("object") and self.list_code)

    @cached_property
    def sass(self) -> Any:
        """The disassembled machine code (codegen.sass.Listing), or None without a cubin or without nvdisasm."""
        cubin = self.artifacts.get("cubin")
        return self.disassemble(cubin) if cubin and self.disassemble else None

    @property
    def disassembles(self) -> bool:
        """Whether reading `sass` runs a disassembler."""
        return bool(self.artifacts.get("cubin") and self.disassemble)

    @property
    def total_milliseconds(self) -> float:
        return sum(self.milliseconds.values())
