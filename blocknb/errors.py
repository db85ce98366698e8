"""Errors a person can act on: one message, the place in the source, and a hint.

Every error that blocknb raises about a kernel is a `KernelError`; its class says by whose fault it is. The message names the
thing in the user's own terms, `loc` is the place in the cell or file (with the chain of inlined calls), and the hint says
what to write instead. Rendering reads the source through `linecache`, where IPython keeps its cells, so the very same text
appears in a terminal, in a notebook and in a test.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Loc:
    """A span of source: 1-based lines, 0-based columns, and the call it was inlined at.

    `file` is a path or the name under which `linecache` knows a notebook cell; `function` the kernel or helper that holds
    the span; `caller` the place of the call for code that was inlined, None for the kernel itself.
    """

    file: str
    line: int
    column: int = 0
    end_line: int = 0
    end_column: int = 0
    function: str = ""
    caller: Loc | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def outermost(self) -> Loc:
        """The place in the kernel that the user launched, whatever was inlined there."""
        loc = self
        while loc.caller is not None:
            loc = loc.caller
        return loc

    def excerpt(self) -> str:
        """The source line with carets under the columns of the span; empty when the source is gone."""
        text = linecache.getline(self.file, self.line).rstrip("\n")
        if not text.strip():
            return ""
        end = self.end_column if self.end_line in (0, self.line) and self.end_column else len(text)
        start = min(self.column, len(text))
        # Columns of the ast module count UTF-8 bytes; carets count characters.
        start_character = len(text.encode()[:start].decode(errors="ignore"))
        end_character = max(len(text.encode()[:end].decode(errors="ignore")), start_character + 1)
        carets = " " * start_character + "^" * (end_character - start_character)
        return f"    {text}\n    {carets}"


def display_file(file: str) -> str:
    """The name a person knows a source by: cells are `<ipython-input-3-...>` in linecache and `cell 3` here."""
    if file.startswith("<ipython-input-"):
        return "cell " + file.removeprefix("<ipython-input-").split("-")[0]
    if "/ipykernel_" in file:
        return "cell"
    return file


class KernelError(Exception):
    """Something is wrong with a kernel or with the way it was launched.

    `message` is one sentence, `loc` the place in the user's source (or None), `hint` what to write instead (or None).
    """

    title = "kernel error"

    def __init__(self, message: str, loc: Loc | None = None, hint: str | None = None):
        super().__init__(message)
        self.message, self.loc, self.hint = message, loc, hint

    def __str__(self) -> str:
        return self.render()

    def render(self) -> str:
        """The whole report as plain text: message, cell and line, carets, chain of calls, hint."""
        lines = [self.message]
        loc = self.loc
        while loc is not None:
            where = f"  at {display_file(loc.file)}, line {loc.line}" + (f", in {loc.function}" if loc.function else "")
            lines.append(where if loc is self.loc else where.replace("  at ", "  called from ", 1))
            if excerpt := loc.excerpt():
                lines.append(excerpt)
            loc = loc.caller
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class CompilationError(KernelError):
    """The kernel cannot be compiled as it is written, or not for this target; the classes below say why."""

    title = "compilation error"


class SyntaxUnsupported(CompilationError):
    """The kernel uses Python that a block program cannot hold (a class, `try`, recursion...)."""

    title = "unsupported syntax"


class TypeMismatch(CompilationError):
    """Types, shapes or constants do not fit together, or a name is unknown."""

    title = "type mismatch"


class StaticAssertionFailed(TypeMismatch):
    """A `static_assert` of the kernel does not hold."""


class Unsupported(CompilationError):
    """The kernel is right, but the target cannot do it."""

    title = "unsupported by the target"


def no_assembly(where: str, loc: Loc | None) -> Unsupported:
    """The error for inline PTX where there is no GPU."""
    hint = "launch with arrays on a GPU; or write the same with the language's own functions, for which `tl.math` is a start"
    return Unsupported(f"inline PTX needs a GPU, and {where} is none", loc, hint)


class AssemblyError(CompilationError):
    """The text of an inline assembly is wrong: ptxas's words. `line` and `column` of the call, until `loc` is known."""

    title = "inline assembly"

    def __init__(
        self, message: str, loc: Loc | None = None, hint: str | None = None, *, line: int = 0, column: int = 0
    ):
        super().__init__(message, loc, hint)
        self.line, self.column = line, column


class OutOfResources(KernelError):
    """The kernel needs more than the target has; the message says how much of what, in numbers."""

    title = "out of resources"


class LaunchError(KernelError):
    """The launch is wrong: missing or unknown arguments, a bad grid, arrays of two devices."""

    title = "bad launch"


class ElementError(KernelError):
    """An error of a running kernel at one element of a tile.

    Carries `program` (the program ids, a tuple of three ints) and `index` (which element it is).
    """

    def __init__(
        self,
        message: str,
        loc: Loc | None = None,
        hint: str | None = None,
        *,
        program: tuple[int, int, int] = (0, 0, 0),
        index: int = 0,
    ):
        super().__init__(message, loc, hint)
        self.program, self.index = program, index


class AccessError(ElementError):
    """A load or store outside the array that its pointer came from. `index` is the offset of the element from the start of the array."""

    title = "access outside an array"


class DeviceAssertionFailed(ElementError):
    """A `device_assert` (or `assert`) of a running kernel does not hold. `index` is the number of the element, in row-major order."""

    title = "assertion failed"


class CompilerBug(KernelError):
    """blocknb's own fault. Carries the Trace so far in `trace`, for a report."""

    title = "compiler bug"

    def __init__(self, message: str, loc: Loc | None = None, hint: str | None = None, *, trace: Any = None):
        super().__init__(
            message, loc, hint or "this is a defect of blocknb, not of your kernel; please report it with the trace"
        )
        self.trace = trace
