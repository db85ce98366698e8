"""Makes `os.fork` safe: the child gets new locks, and a fork waits for imports and for LLVM.

A fork copies the memory of a process, but only one of its threads. A lock that another thread holds at this moment stays locked in the
child forever. `renewed` therefore creates the locks of an owner, and creates them again in the child. This cannot work for a module
that a thread is importing, or for the internal locks of LLVM. Both run under `guard`, and a fork waits until `guard` is free.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

#: Held while a thread imports compiler modules or runs LLVM in this process. A fork waits for it.
guard = threading.RLock()
_owners: weakref.WeakKeyDictionary[Any, dict[str, Callable[[], Any]]] = weakref.WeakKeyDictionary()


def renewed(owner: Any, **makers: Callable[[], Any]) -> None:
    """Sets attributes of an object, class or module to the results of the makers, and does so again in the child of a fork.

    Example: `renewed(self, _lock=threading.Lock)`. Read the attribute at each use: `with self._lock:`.
    """
    for name, make in makers.items():
        setattr(owner, name, make())
    _owners.setdefault(owner, {}).update(makers)


@functools.cache
def imported(name: str) -> ModuleType:
    """Imports a module under `guard`. Use it for modules that a thread imports on first use."""
    with guard:
        return importlib.import_module(name)


def _before() -> None:
    guard.acquire()


def _after_in_parent() -> None:
    guard.release()


def _after_in_child() -> None:
    guard.release()  # the forking thread acquired it, and this thread is its copy
    for owner, makers in list(_owners.items()):
        for name, make in makers.items():
            setattr(owner, name, make())
    if sys.version_info < (3, 12):
        _free_properties()


def _free_properties() -> None:
    """Makes new locks for the cached properties of this package.

    Before Python 3.12 each cached property has a lock, which a thread holds while it computes the value.
    """
    for name, module in list(sys.modules.items()):
        if not name.startswith("blocknb."):
            continue
        for thing in list(vars(module).values()):
            if isinstance(thing, type) and thing.__module__ == name:
                for value in vars(thing).values():
                    if isinstance(value, functools.cached_property):
                        value.lock = threading.RLock()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
