"""How a KernelError looks in a notebook: message, cell and line, carets, hint, and no frames of IPython or blocknb.

IPython lets an exception render itself (`_render_traceback_`), so the errors stay ordinary exceptions: they stop Run All, `except`
catches them and `%tb` shows them. What the plain text cannot know is added here: the cell's number, and the lines of the
user's own code that led to the launch, taken from the traceback.
"""

from __future__ import annotations

import os
import traceback
from typing import Any

from blocknb.errors import CompilerBug, KernelError, Loc, display_file

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
RED, BOLD, BLUE, DIM, END = "\x1b[1;31m", "\x1b[1m", "\x1b[34m", "\x1b[2m", "\x1b[0m"


def install(shell: Any) -> None:
    """Gives every KernelError its look in this shell."""

    def render(error: KernelError) -> list[str]:
        return traceback_lines(error, shell)

    KernelError._render_traceback_ = render  # type: ignore[attr-defined]


def traceback_lines(error: KernelError, shell: Any = None) -> list[str]:
    """The report, one string a line, with terminal colours."""
    # An error of a class that only one room knows shows as the public class that it is.
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
    if error.hint:
        lines.append(f"  {BLUE}hint:{END} {error.hint}")
    return lines


def _place(loc: Loc, word: str, shell: Any) -> list[str]:
    inside = f", in {loc.function}" if loc.function not in ("", "<module>") else ""
    found = [f"  {DIM}{word}{END} {file_name(loc.file, shell)}, line {loc.line}{inside}"]
    if excerpt := loc.excerpt():
        source, carets = excerpt.split("\n")
        # A launch's whole line needs no carets: they would underline all of it.
        found += [source] if not loc.end_column else [source, f"{RED}{carets}{END}"]
    return found


def file_name(file: str, shell: Any = None) -> str:
    """ "cell In[3]" for the cells of this shell, else the name that errors give it."""
    namer = getattr(getattr(shell, "compile", None), "format_code_name", None)
    if namer is not None and (found := namer(file)) is not None:
        return f"{str(found[0]).lower()} {found[1]}"
    return display_file(file)


def _own_frames(error: BaseException) -> list[tuple[str, int, str]]:
    """The frames of the user's own code in the error's traceback, innermost first: below the shell's, outside of blocknb."""
    frames = [(f.f_code.co_filename, line, f.f_code.co_name) for f, line in traceback.walk_tb(error.__traceback__)]
    shells = [i for i, (file, _, _) in enumerate(frames) if f"{os.sep}IPython{os.sep}" in file]
    own = frames[shells[-1] + 1 :] if shells else frames
    return [frame for frame in reversed(own) if not frame[0].startswith(_PACKAGE)]
