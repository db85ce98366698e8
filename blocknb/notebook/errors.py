"""Formats a KernelError for a notebook: message, cell and line, carets and hint, without frames of IPython or blocknb.

IPython lets an exception render itself (`_render_traceback_`), so these stay ordinary exceptions: they stop Run All, `except` catches them,
and `%tb` shows them. This module adds two things to the plain text. One is the number of the cell. The other is the lines of the user's own
code that led to the launch, taken from the traceback. Other exceptions lose the frames of blocknb (`tracebacks`).
"""

from __future__ import annotations

import difflib
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from blocknb.errors import CompilerBug, KernelError, Loc, display_file
from blocknb.notebook import out_of_memory, tracebacks

RED, BOLD, BLUE, DIM, END = "\x1b[1;31m", "\x1b[1m", "\x1b[34m", "\x1b[2m", "\x1b[0m"


def install(shell: Any) -> None:
    """Makes this shell format every KernelError as described above."""

    def render(error: KernelError) -> list[str]:
        return coloured(traceback_lines(error, shell), shell)

    KernelError._render_traceback_ = render  # type: ignore[attr-defined]
    tracebacks.install(shell)
    if not shell.custom_exceptions:  # keeps the user's own handler
        shell.set_custom_exc((TypeError, ModuleNotFoundError, MemoryError), _custom)


def coloured(lines: list[str], shell: Any) -> list[str]:
    """The lines of a report, without terminal colours if the shell shows none (`ipython --colors=nocolor`)."""
    if str(getattr(shell, "colors", "")).lower() != "nocolor":
        return lines
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]


def adopt_cuda(shell: Any) -> None:
    """Formats CuPy's errors like ours if they report that a kernel has broken the CUDA context; does nothing without CuPy."""
    for module, name in (("runtime", "CUDARuntimeError"), ("driver", "CUDADriverError")):
        found = getattr(sys.modules.get(f"cupy_backends.cuda.api.{module}"), name, None)
        if found is not None and not hasattr(found, "_render_traceback_"):

            def render(error: Exception) -> list[str]:
                from blocknb.runtime import driver

                fault = driver.fault(error)
                if fault is None:
                    return shell.InteractiveTB.structured_traceback(
                        type(error), error, error.__traceback__, tb_offset=1
                    )
                return coloured(traceback_lines(fault.with_traceback(error.__traceback__), shell), shell)

            found._render_traceback_ = render


def _custom(shell: Any, etype: type, error: BaseException, tb: Any, tb_offset: int | None = None) -> None:
    """Shows two errors of Python with what a kernel's author has to write, and missing memory with the arrays that hold it."""
    if isinstance(error, MemoryError) and not hasattr(error, "_render_traceback_"):
        report = shell.InteractiveTB.structured_traceback(etype, error, tb, tb_offset=1)
        report += out_of_memory.lines(error, shell)
        error._render_traceback_ = lambda: report  # type: ignore[attr-defined]
    hint = _hint_for(error)
    if hint and not hasattr(error, "_render_traceback_"):
        lines = [f"{RED}{etype.__name__}{END}: {BOLD}{error}{END}"]
        for file, line, function in _own_frames(error):
            lines += _place(Loc(file, line, function=function), "at" if len(lines) == 1 else "called from", shell)
        lines.append(f"  {BLUE}hint:{END} {hint}")
        error._render_traceback_ = lambda: coloured(lines, shell)  # type: ignore[attr-defined]
    shell.showtraceback((etype, error, tb), tb_offset=tb_offset)


def _hint_for(error: BaseException) -> str | None:
    """A hint for `import triton` without Triton, and for a grid after a function that is no kernel: what to write instead."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == "triton":
        return "begin the cell with %%blockkernel, or call blocknb.compat.install() before: then `import triton` is blocknb"
    if str(error) != "'function' object is not subscriptable":
        return None
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not tracebacks.is_users(frames[-1].filename):
        return None
    found = re.search(r"(\w+)\s*\[", frames[-1].line or "")
    name = f"`{found[1]}`" if found else "the function"
    return f"{name} is launched like a kernel and is a plain function: write @blocknb.kernel above its `def`"


@contextmanager
def at_option(option: str, text: str, code: CodeType, shell: Any) -> Iterator[None]:
    """Makes an error inside show itself at the option, with carets below the part of the expression that raised it."""
    try:
        yield
    except KernelError:
        raise
    except Exception as error:
        lines = [
            f"{RED}{type(error).__name__}{END}: {BOLD}{error}{END}",
            f"  {DIM}at{END} line 1, in the option {option}",
        ]
        for part, _ in traceback.walk_tb(error.__traceback__):
            if part.f_code is code:
                lines += _carets(error, option, text, code)
        for file, line, function in _own_frames(error):
            if file != code.co_filename:
                lines += _place(Loc(file, line, function=function), "called from", shell)
        if isinstance(error, NameError) and error.name:
            close = difflib.get_close_matches(error.name, [n for n in shell.user_ns if not n.startswith("_")], 1)
            lines += [f"  {BLUE}hint:{END} did you mean `{close[0]}`?"] if close else []
        error._render_traceback_ = lambda: coloured(lines, shell)  # type: ignore[attr-defined]
        raise


def _carets(error: BaseException, option: str, text: str, code: CodeType) -> list[str]:
    """The option with its expression, and carets below the part that the traceback names."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code is not code:
        tb = tb.tb_next
    first, last = 0, len(text)
    if tb is not None:
        _, _, start, end = list(code.co_positions())[tb.tb_lasti // 2]
        # Columns count UTF-8 bytes; carets count characters.
        if start is not None and end is not None:
            first, last = (len(text.encode()[:n].decode(errors="ignore")) for n in (start, end))
    before = " " * (len(option) + 1 + first)
    return [f"    {option} {text}", f"    {RED}{before}{'^' * max(last - first, 1)}{END}"]


def traceback_lines(error: KernelError, shell: Any = None) -> list[str]:
    """The report, one string a line, with terminal colours."""
    # Shows an error of an internal class as its public base class.
    name = next(c.__name__ for c in type(error).__mro__ if c.__module__ == KernelError.__module__)
    lines = [f"{RED}{name}{END}: {BOLD}{error.message}{END}"]
    loc, word = error.loc, "at"
    seen = set()
    while loc is not None:
        seen.add((loc.file, loc.line))
        lines += _place(loc, word, shell)
        loc, word = loc.caller, "called from"
    for file, line, function in _own_frames(error):
        if (file, line) not in seen:
            seen.add((file, line))
            lines += _place(Loc(file, line, function=function), "launched from" if error.loc else "at", shell)
    if isinstance(error, CompilerBug) and error.__cause__ is not None:
        lines.append(f"  caused by {type(error.__cause__).__name__}: {error.__cause__}")
    if shell is not None and out_of_memory.is_out_of_memory(error):
        lines += out_of_memory.lines(error, shell)
    if error.hint:
        lines.append(f"  {BLUE}hint:{END} {error.hint}")
    return lines


def _place(loc: Loc, word: str, shell: Any) -> list[str]:
    inside = f", in {loc.function}" if loc.function not in ("", "<module>") else ""
    found = [f"  {DIM}{word}{END} {file_name(loc.file, shell)}, line {loc.line}{inside}"]
    if excerpt := loc.excerpt():
        source, carets = excerpt.split("\n")
        # An error on the whole line of a launch needs no carets, which would underline all of it.
        found += [source] if not loc.end_column else [source, f"{RED}{carets}{END}"]
    return found


def file_name(file: str, shell: Any = None) -> str:
    """ "cell In[3]" for the cells of this shell, else the name that errors give it."""
    namer = getattr(getattr(shell, "compile", None), "format_code_name", None)
    if namer is not None and (found := namer(file)) is not None:
        return f"{str(found[0]).lower()} {found[1]}"
    return display_file(file)


def _own_frames(error: BaseException) -> list[tuple[str, int, str]]:
    """The frames of the user's own code in the error's traceback, innermost first."""
    frames = [(f.f_code.co_filename, line, f.f_code.co_name) for f, line in traceback.walk_tb(error.__traceback__)]
    return [frame for frame in reversed(frames) if tracebacks.is_users(frame[0])]
