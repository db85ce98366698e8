"""Finds the place of an error in a running kernel from the traceback, which has the line and columns of every instruction."""

from __future__ import annotations

import ast
import itertools
import os
import sys
from collections.abc import Mapping
from types import CodeType, FrameType, TracebackType
from typing import Any

from blocknb.errors import KernelError, Loc
from blocknb.frontend.calls import argument_loc
from blocknb.frontend.emitter import Emitter
from blocknb.frontend.scope import Frame
from blocknb.frontend.source import Source

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def locate(error: BaseException, sources: Mapping[CodeType, Source]) -> None:
    """Sets the `loc` of a KernelError, with its chain of calls.

    Also removes blocknb's frames from the end of the traceback, so that a debugger opens in the kernel.
    """
    entries = []
    step = error.__traceback__
    while step is not None:
        entries.append(step)
        step = step.tb_next
    own = [entry for entry in entries if entry.tb_frame.f_code in sources]
    if not own or not isinstance(error, KernelError):
        return
    loc: Loc | None = None
    for entry in own:
        source = sources[entry.tb_frame.f_code]
        loc = _place(entry.tb_frame.f_code, entry.tb_lasti, source, loc)
    if error.loc is None:
        error.loc = _of_argument(error, sources[own[-1].tb_frame.f_code], loc) or loc
    end = len(entries)
    while entries[end - 1].tb_frame.f_code not in sources and _is_ours(entries[end - 1]):
        end -= 1
    trimmed = None
    for entry in reversed(entries[:end]):
        trimmed = TracebackType(trimmed, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = trimmed


def _is_ours(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def _place(code: CodeType, instruction: int, source: Source, caller: Loc | None) -> Loc:
    position = next(itertools.islice(code.co_positions(), instruction // 2, None))
    line, end_line, column, end_column = position
    first = line or code.co_firstlineno
    return Loc(source.file, first, column or 0, end_line or 0, end_column or 0, source.name, caller)


def current(sources: Mapping[CodeType, Source]) -> Loc | None:
    """The place in the kernel that runs now, with its chain of calls."""
    own: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in sources:
            own.append(frame)
        frame = frame.f_back
    loc: Loc | None = None
    for one in reversed(own):
        loc = _place(one.f_code, one.f_lasti, sources[one.f_code], loc)
    return loc


def _of_argument(error: KernelError, source: Source, loc: Loc | None) -> Loc | None:
    """The place of the argument that the error names, in the call at `loc`."""
    name, function = getattr(error, "argument", None), getattr(error, "function", None)
    if name is None or loc is None:
        return None
    span = (loc.line, loc.column, loc.end_line, loc.end_column)
    for node in ast.walk(source.node):
        if isinstance(node, ast.Call) and span == (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset):
            return argument_loc(Frame(source, Emitter(), loc.caller), node, function, name)
    return None


def describe_call(error: Any, function: Any) -> None:
    """Records the called function in the error, from the innermost to the outermost."""
    if getattr(error, "function", None) is None:
        error.function = function
