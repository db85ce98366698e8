"""Leaves the frames of blocknb out of the tracebacks that IPython shows: an error shows the lines of the user's code that led to it.

The frames of a library belong to its caller. So this module also leaves out library frames below a frame of blocknb, up to the next frame
of the user (a grid function). `%xmode Verbose` shows all frames. A KernelError shows itself (`errors`). This module works on what is shown:
the exception keeps its traceback, so `%debug` starts where the error was raised.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import traceback
from types import TracebackType
from typing import Any

from blocknb.errors import KernelError

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INSTALLED = tuple(sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
HIDDEN = "The error comes from blocknb's own code: %xmode Verbose and then %tb show where."


def is_users(file: str) -> bool:
    """Whether code is the user's own: neither blocknb's, nor Python's library, nor an installed package's."""
    return not file.startswith((PACKAGE, *_INSTALLED, "<frozen"))


def is_ours(tb: TracebackType) -> bool:
    """Whether a frame belongs to blocknb."""
    return tb.tb_frame.f_code.co_filename.startswith(PACKAGE)


def _frames(tb: TracebackType | None) -> list[TracebackType]:
    found = []
    while tb is not None:
        found.append(tb)
        tb = tb.tb_next
    return found


def users_part(tb: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of blocknb and of libraries that blocknb called; None if no frame remains."""
    kept: list[TracebackType] = []
    ours = False
    for part in _frames(tb):
        if is_ours(part):
            ours = True
        elif is_users(part.tb_frame.f_code.co_filename):
            ours = False
        if not ours and part.tb_frame.f_globals.get("__name__", "").partition(".")[0] != "IPython":
            kept.append(part)
    trimmed = None
    for part in reversed(kept):
        trimmed = TracebackType(trimmed, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return trimmed


def install(shell: Any) -> None:
    """Makes a shell show tracebacks without frames of blocknb, also those of threads."""
    _install_in_threads()
    shown: Any = shell.InteractiveTB
    plain, parts = shown.structured_traceback, shown.get_parts_of_chained_exception

    def structured_traceback(
        etype: Any, evalue: Any, etb: Any = None, tb_offset: int | None = None, context: int = 5
    ) -> list[str]:
        frames = _frames(etb) if isinstance(etb, TracebackType) else []
        if shown.mode == "Verbose" or not any(map(is_ours, frames)):
            return plain(etype, evalue, etb, tb_offset, context)
        trimmed, inside = users_part(etb), is_ours(frames[-1]) and not issubclass(etype, KeyboardInterrupt)
        if trimmed is None:
            lines = [line.rstrip("\n") for line in traceback.format_exception_only(etype, evalue)]
        else:
            lines = plain(etype, evalue, trimmed, 0, context)
        return [*lines, HIDDEN] if inside else lines

    def chained(value: Any) -> Any:
        found = parts(value)
        if not found or shown.mode == "Verbose":
            return found
        return (*found[:2], users_part(found[2]))

    shown.structured_traceback, shown.get_parts_of_chained_exception = structured_traceback, chained
    _install_for_groups(shell)


def _install_for_groups(shell: Any) -> None:
    """IPython prints an ExceptionGroup as Python does, with all frames; this shows the user's."""
    plain = shell.showtraceback

    def showtraceback(exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        etype, value, tb = exc_tuple or sys.exc_info()
        if isinstance(value, BaseExceptionGroup) and any(map(is_ours, _frames(tb))):
            text = "".join(traceback.format_exception(etype, value, users_part(tb)))
            shell._showtraceback(etype, value, text.rstrip("\n").split("\n"))
        else:
            plain(exc_tuple, *args, **kwargs)

    shell.showtraceback = showtraceback


def _install_in_threads() -> None:
    """Python prints the error of a thread. A KernelError then prints its report, and any other error loses the frames of blocknb."""
    before = threading.excepthook
    if getattr(before, "leaves_out_blocknb", False):
        return

    def hook(args: Any) -> None:
        if isinstance(args.exc_value, KernelError):
            name = args.thread.name if args.thread is not None else "?"
            print(f"Exception in thread {name}:\n{type(args.exc_value).__name__}: {args.exc_value}", file=sys.stderr)
        elif any(map(is_ours, _frames(args.exc_traceback))):
            tb = users_part(args.exc_traceback)  # Python prints the traceback that the exception has
            before(threading.ExceptHookArgs((args.exc_type, args.exc_value.with_traceback(tb), tb, args.thread)))
        else:
            before(args)

    hook.leaves_out_blocknb = True  # type: ignore[attr-defined]
    threading.excepthook = hook
