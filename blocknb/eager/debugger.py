"""`breakpoint()` in a kernel: starts pdb (IPython's in a notebook), which steps through kernel lines and skips blocknb's own frames."""

from __future__ import annotations

import builtins
import os
import pdb
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def debugger(function: Any, sources: Mapping[CodeType, Any]) -> Callable[..., Any]:
    """The function to call for `breakpoint` or `pdb.set_trace` in a kernel. A user-defined hook takes precedence."""
    if function is builtins.breakpoint and (_hooked() or os.environ.get("PYTHONBREAKPOINT")):
        return function
    base: Any = pdb.Pdb
    if pdb.set_trace.__module__.startswith("IPython"):
        from IPython.core.debugger import Pdb as base

    class Debugger(base):
        def stop_here(self, frame: FrameType) -> bool:
            return not _between(frame, sources) and super().stop_here(frame)

        def get_stack(self, f: FrameType | None, t: Any) -> tuple[list[tuple[FrameType, int]], int]:
            stack, at = super().get_stack(f, t)
            kept = [entry for entry in stack if entry[0] is stack[at][0] or not _is_ours(entry[0])]
            return kept, kept.index(stack[at])

    return lambda *args, **kwargs: Debugger().set_trace(sys._getframe(1))


def _hooked() -> bool:
    """Whether a debugger is attached. debugpy, which Jupyter's kernels load, ignores `breakpoint()` until a client connects."""
    hook: Any = sys.breakpointhook
    if hook is sys.__breakpointhook__:
        return False
    debugpy = sys.modules.get("debugpy")
    return debugpy is None or "debugpy" not in hook.__name__ or debugpy.is_client_connected()


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE)


def _between(frame: FrameType | None, sources: Mapping[CodeType, Any]) -> bool:
    """Whether a frame belongs to blocknb, or to a function that blocknb calls within a kernel line."""
    while frame is not None:
        if _is_ours(frame):
            return True
        if frame.f_code in sources:
            return False
        frame = frame.f_back
    return False
