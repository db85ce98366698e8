"""Records the copies between the host and a GPU that a cell makes through CuPy, with their bytes and the line of the user's code.

CuPy has no hook for copies. While a cell is watched, and only then, recording functions replace `cupy.asarray`, `cupy.array`,
`cupy.asanyarray` and the methods `get` and `set` of `cupy.ndarray`. CuPy calls an overridden `get` also for `float(x)`, `x.item()`,
`print(x)`, `bool(x)` and `cupy.asnumpy(x)`. A function that the user imported by name before (`from cupy import asarray`) and a copy of
another library are not seen.
"""

from __future__ import annotations

import functools
import linecache
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from blocknb import forks
from blocknb.notebook.tracebacks import PACKAGE, is_users

TO_DEVICE, TO_HOST = "host to device", "device to host"
MOST_LINES = 1000
_MISSING = object()


@dataclass(eq=False)
class CopyLine:
    """The copies that one line of code has made in one direction. `by`: "blocknb" if it made them for a launch of the line."""

    direction: str
    file: str
    line: int
    by: str
    code: str
    bytes: int = 0
    times: int = 0


class CopyWatch:
    """Collects copies between `start` and `stop`, by line and direction; `lost` counts those of further lines than MOST_LINES."""

    def __init__(self, cupy: Any) -> None:
        self.lines: dict[tuple[str, str, int, str], CopyLine] = {}
        self.lost = 0
        self.note = ""
        self._cupy = cupy

    def start(self) -> None:
        with _lock:
            if not _watches:
                self.note = _install(self._cupy)
            _watches.append(self)

    def stop(self) -> None:
        with _lock:
            if self in _watches:
                _watches.remove(self)
                if not _watches:
                    _remove()

    def add(self, direction: str, size: int, frame: FrameType | None) -> None:
        by = ""
        while frame is not None and not is_users(frame.f_code.co_filename):
            if frame.f_code.co_filename.startswith(PACKAGE):
                by = "blocknb"
            frame = frame.f_back
        file, line = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)
        key = direction, file, line, by
        found = self.lines.get(key)
        if found is None:
            if len(self.lines) >= MOST_LINES:
                self.lost += 1
                return
            code = linecache.getline(file, line).strip()
            found = self.lines[key] = CopyLine(direction, file, line, by, code)
        found.bytes, found.times = found.bytes + size, found.times + 1


_watches: list[CopyWatch] = []
_replaced: list[tuple[Any, str, Any]] = []  # the owner of each replaced attribute, its name, and its former value
_lock = threading.Lock()
forks.renewed(sys.modules[__name__], _lock=threading.Lock)
_this_thread = threading.local()  # `inside`: a recorded function runs, whose own calls are parts of the same copy


def _install(cupy: Any) -> str:
    """Replaces the functions. Returns what cannot be seen, as a sentence; "" if all of them could be replaced."""
    refused = []
    for owner, names, wrap in (
        (cupy, ("asarray", "array", "asanyarray"), _from_host),
        (cupy.ndarray, ("get",), _get),
        (cupy.ndarray, ("set",), _set),
    ):
        for name in names:
            try:
                former = vars(owner).get(name, _MISSING)
                setattr(owner, name, wrap(getattr(owner, name)))
                _replaced.append((owner, name, former))
            except (AttributeError, TypeError):  # a version of CuPy whose class takes no attributes
                refused.append(name)
    return f"This version of CuPy does not allow to see copies by {', '.join(refused)}." if refused else ""


def _remove() -> None:
    while _replaced:
        owner, name, former = _replaced.pop()
        if former is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, former)


def _recorded(plain: Callable[..., Any], direction: str, measure: Callable[..., int]) -> Callable[..., Any]:
    """The function with a record of the bytes that `measure(result, *args)` finds."""

    @functools.wraps(plain)
    def function(*args: Any, **kwargs: Any) -> Any:
        if getattr(_this_thread, "inside", False):
            return plain(*args, **kwargs)
        _this_thread.inside = True
        try:
            result = plain(*args, **kwargs)
        finally:
            _this_thread.inside = False
        if size := measure(result, *args):
            for watch in list(_watches):
                watch.add(direction, size, sys._getframe(1))
        return result

    return function


def _from_host(plain: Callable[..., Any]) -> Callable[..., Any]:
    return _recorded(plain, TO_DEVICE, lambda made, given=None, *rest: int(made.nbytes) if _on_host(given) else 0)


def _get(plain: Callable[..., Any]) -> Callable[..., Any]:
    return _recorded(plain, TO_HOST, lambda result, array, *rest: int(array.nbytes))


def _set(plain: Callable[..., Any]) -> Callable[..., Any]:
    return _recorded(plain, TO_DEVICE, lambda result, array, *rest: int(array.nbytes))


def _on_host(value: Any) -> bool:
    """Whether an argument of `cupy.array` lies in host memory. A list of arrays does if the first of them does."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return not hasattr(value, "__cuda_array_interface__")
