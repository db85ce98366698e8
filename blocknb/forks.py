"""What the child of a fork must not inherit: locks that threads of the parent hold, and work that they have begun.

A fork copies the memory of a process and one of its threads. A lock that another thread holds at this moment stays locked in the
child for ever. So `renewed` gives an owner its locks and makes new ones in the child. Two things cannot be made new there: a module
that a thread is importing, and LLVM, whose own locks are out of reach. Both happen under `guard`, and a fork waits until it is free.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

#: Held while modules of the compiler are imported and while LLVM works in this process. A fork waits for it.
guard = threading.RLock()
_owners: weakref.WeakKeyDictionary[Any, dict[str, Callable[[], Any]]] = weakref.WeakKeyDictionary()


def renewed(owner: Any, **makers: Callable[[], Any]) -> None:
    """Sets attributes of an object, class or module to what the makers return; in the child of a fork, once more.

    `renewed(self, _lock=threading.Lock)`: read the attribute at each use, `with self._lock:`.
    """
    for name, make in makers.items():
        setattr(owner, name, make())
    _owners.setdefault(owner, {}).update(makers)


def _before() -> None:
    guard.acquire()


def _after_in_parent() -> None:
    guard.release()


def _after_in_child() -> None:
    guard.release()  # the forking thread took it, and this thread is its copy
    for owner, makers in list(_owners.items()):
        for name, make in makers.items():
            setattr(owner, name, make())
    if sys.version_info < (3, 12):
        _free_properties()


def _free_properties() -> None:
    """Makes new locks for the cached properties of this package. Before Python 3.12 each of them has one, which is held while a value
    is computed."""
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
