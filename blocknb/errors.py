"""The errors of blocknb: each has a message, a location in the source, and usually a hint.

Every error about a kernel is a `KernelError`. The subclass tells whether the kernel, the launch, the target or the compiler is at
fault. The message uses the names of the user's source. `loc` is the location in the cell or file, with the chain of inlined calls.
The hint says what to write instead. Rendering reads the source through `linecache`, where IPython keeps its cells. Terminals,
notebooks and tests therefore show the same text.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Loc:
    """A span of source. Lines are 1-based, columns are 0-based.

    `file` is a path, or the name of a notebook cell in `linecache`. `function` is the kernel or helper that contains the span.
    `caller` is the place of the call if the code was inlined, and None in the kernel itself.
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
        """The place in the launched kernel: the outermost call if the code was inlined."""
        loc = self
        while loc.caller is not None:
            loc = loc.caller
        return loc

    def excerpt(self) -> str:
        """The source line with carets under the span. Empty if the source is not available."""
        text = linecache.getline(self.file, self.line).rstrip("\n")
        if not text.strip():
            return ""
        end = self.end_column if self.end_line in (0, self.line) and self.end_column else len(text)
        start = min(self.column, len(text))
        # The ast module counts columns in UTF-8 bytes; carets count characters.
        start_character = len(text.encode()[:start].decode(errors="ignore"))
        end_character = max(len(text.encode()[:end].decode(errors="ignore")), start_character + 1)
        carets = " " * start_character + "^" * (end_character - start_character)
        return f"    {text}\n    {carets}"


def keep_lines(file: str, lines: Mapping[int, str], replace: bool = False) -> None:
    """Makes lines of another process known to `linecache`, by their 1-based numbers. Known lines stay, unless `replace` is true."""
    have = linecache.getlines(file)
    new = {n: f"{text}\n" for n, text in lines.items() if replace or n > len(have) or not have[n - 1].strip()}
    if all(n <= len(have) and have[n - 1].rstrip("\n") == text.rstrip("\n") for n, text in new.items()):
        return
    found = [*have, *["\n"] * (max(new) - len(have))]
    for number, text in new.items():
        found[number - 1] = text
    linecache.cache[file] = sum(map(len, found)), None, found, file  # without a time, checkcache() keeps it


def display_file(file: str) -> str:
    """The name of a source file in messages: linecache calls a cell `<ipython-input-3-...>`, messages call it `cell 3`."""
    if file.startswith("<ipython-input-"):
        return "cell " + file.removeprefix("<ipython-input-").split("-")[0]
    if "/ipykernel_" in file:
        return "cell"
    return file


def _places(loc: Loc | None, first: str = "  at ") -> list[str]:
    """The lines that name a place: file and line, carets, chain of calls."""
    lines: list[str] = []
    word = first
    while loc is not None:
        where = f"{word}{display_file(loc.file)}, line {loc.line}"
        lines.append(where + (f", in {loc.function}" if loc.function else ""))
        if excerpt := loc.excerpt():
            lines.append(excerpt)
        loc, word = loc.caller, "  called from "
    return lines


class CompilationInterrupted(KeyboardInterrupt):
    """The user interrupted a compilation. `trace` has the stages that ran, and `stage` names the pass or stage that was interrupted."""

    def __init__(self, kernel: str, stage: str, trace: Any):
        super().__init__(f"the compilation of {kernel} was interrupted in {stage}")
        self.kernel, self.stage, self.trace = kernel, stage, trace

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kernel, self.stage, self.trace)


class KernelError(Exception):
    """The base class of all errors about a kernel or its launch.

    `message` is one sentence. `loc` is the place in the user's source, or None. `hint` says what to write instead, or is None.
    `triton` is Triton's message for the same mistake, if it differs, or None. `trace` is the Trace up to a failure of the compilation, with
    the stages that ran, and `stage` the name of the pass that failed; None and "" for other errors.
    """

    title = "kernel error"
    triton: str | None = None
    trace: Any = None
    stage = ""

    def __init__(self, message: str, loc: Loc | None = None, hint: str | None = None):
        super().__init__(message)
        self.message, self.loc, self.hint = message, loc, hint

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles all attributes, and the source lines of the report for a process that has no such file or cell."""
        return _unpickled, (type(self), self.args, vars(self), dict(_quoted(vars(self).values())))

    def in_triton(self, phrase: str) -> Self:
        """Adds the words of Triton's message to the report, because tests and searches look for them."""
        self.triton = phrase
        return self

    def __str__(self) -> str:
        return self.render()

    def render(self) -> str:
        """The report as plain text: message, cell and line, carets, chain of calls, hint."""
        hint = [f"  hint: {self.hint}"] if self.hint else []
        return "\n".join([self.message, *self.places(), *hint, *([f"  Triton: {self.triton}"] if self.triton else [])])

    def places(self) -> list[str]:
        """The lines of the report that name places in the source."""
        return _places(self.loc)


def _quoted(values: Iterable[Any]) -> Iterator[tuple[tuple[str, int], str]]:
    """The lines of all locations among the values, by file and number."""
    for loc in values:
        while isinstance(loc, Loc):
            if text := linecache.getline(loc.file, loc.line).rstrip("\n"):
                yield (loc.file, loc.line), text
            loc = loc.caller


def _unpickled(
    error_class: type[KernelError], args: tuple[Any, ...], attributes: dict[str, Any], lines: dict[tuple[str, int], str]
) -> KernelError:
    for (file, number), text in lines.items():
        keep_lines(file, {number: text})
    error = error_class.__new__(error_class, *args)
    vars(error).update(attributes)
    return error


class CompilationError(KernelError):
    """The compiler cannot compile the kernel, or cannot compile it for this target."""

    title = "compilation error"

    @property
    def error_message(self) -> str:
        """Triton's name of the message: its words for the same mistake if they are known, or `message`."""
        return self.triton or self.message


class SyntaxUnsupported(CompilationError):
    """The kernel uses a Python feature that block programs do not support, such as a class, `try` or unbounded recursion."""

    title = "unsupported syntax"


class TypeMismatch(CompilationError):
    """Types, shapes or constants do not match, or a name is unknown."""

    title = "type mismatch"


class StaticAssertionFailed(TypeMismatch):
    """A `static_assert` fails during compilation."""


class Unsupported(CompilationError):
    """The kernel is correct, but the target does not support an operation in it."""

    title = "unsupported by the target"


def no_assembly(where: str, loc: Loc | None) -> Unsupported:
    """The error for inline PTX on a target that is not a GPU."""
    hint = (
        "launch with arrays on a GPU, or replace the PTX by functions of the language, for example those of `tl.math`"
    )
    return Unsupported(f"inline PTX needs a GPU, and {where} is none", loc, hint)


class AssemblyError(CompilationError):
    """ptxas rejects the text of an inline assembly. `line` and `column` locate the call until `loc` is known."""

    title = "inline assembly"

    def __init__(
        self, message: str, loc: Loc | None = None, hint: str | None = None, *, line: int = 0, column: int = 0
    ):
        super().__init__(message, loc, hint)
        self.line, self.column = line, column


@dataclass(frozen=True, slots=True)
class SharedBuffer:
    """A buffer in shared memory: its size in bytes, its shape, what it holds as a text, and its source line (0: unknown).

    It lives from position `first` to `last`. Buffers that live at different times share bytes.
    """

    bytes: int
    shape: tuple[int, ...]
    text: str
    first: int
    last: int
    line: int = 0


class OutOfResources(KernelError):
    """The kernel needs more of a resource than the target has. The message names the resource and both amounts.

    For shared memory, `needed` and `limit` are the amounts in bytes, and `buffers` lists what takes it. They are 0 and empty for others.
    """

    title = "out of resources"
    needed = limit = 0
    buffers: tuple[SharedBuffer, ...] = ()


def stands_for_triton() -> bool:
    """Whether `import triton` gives blocknb in this process. Programs then look for Triton's words in `error.__cause__`."""
    return isinstance(getattr(sys.modules.get("triton"), "theirs", None), str)


class LaunchError(KernelError):
    """The launch is wrong: an argument is missing or unknown, the grid is invalid, or arrays are on two devices."""

    title = "bad launch"


class IntegerTooWide(LaunchError, OverflowError):
    """An integer argument does not fit in 64 bits."""


class ImpossibleNumWarps(LaunchError, AssertionError):
    """The option num_warps has a value that no program can have. Triton raises an AssertionError for it."""


class ElementError(KernelError):
    """An error that a running kernel detects at one element of a tile.

    `program` holds the program ids, a tuple of three ints. `index` is the number of the element.
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
    """A load or store outside the array of its pointer. `index` is the offset from the start of the array, in elements."""

    title = "access outside an array"


class RaceError(ElementError):
    """Two programs access one element, one of them stores to it, and nothing orders the two accesses.

    `program` and `loc` belong to one access, `other_program` and `other_loc` to the other. `array` names the array, and `index` is the
    offset of the element from its start, in elements.
    """

    title = "race between programs"

    def __init__(
        self,
        message: str,
        loc: Loc | None = None,
        hint: str | None = None,
        *,
        program: tuple[int, int, int] = (0, 0, 0),
        index: int = 0,
        array: str = "",
        other_program: tuple[int, int, int] = (0, 0, 0),
        other_loc: Loc | None = None,
    ):
        super().__init__(message, loc, hint, program=program, index=index)
        self.array, self.other_program, self.other_loc = array, other_program, other_loc

    def places(self) -> list[str]:
        """The lines of both accesses, once if they are the same."""
        return [*_places(self.loc), *(_places(self.other_loc, "  and at ") if self.other_loc != self.loc else ())]


class UninitializedError(ElementError):
    """A load of an element that nothing has written, or a store of such a value. `index` is the offset from the start of the array."""

    title = "uninitialized element"


class DeviceAssertionFailed(ElementError):
    """A `device_assert` (or `assert`) fails in a running kernel. `index` is the number of the element, in row-major order."""

    title = "assertion failed"


class HintError(ElementError):
    """A hint (`tl.multiple_of`, `tl.max_contiguous`, `tl.max_constancy`, `tl.assume`) is false in a checked launch."""

    title = "false hint"


class CompilerBug(KernelError):
    """A defect of blocknb itself. `trace` holds the Trace up to the failure, for a bug report."""

    title = "compiler bug"

    def __init__(self, message: str, loc: Loc | None = None, hint: str | None = None, *, trace: Any = None):
        super().__init__(
            message, loc, hint or "this is a defect of blocknb, not of your kernel; please report it with the trace"
        )
        self.trace = trace
