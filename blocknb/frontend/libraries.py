"""Tells which code belongs to Python or an installed package, and which of its functions are pure.

A cache key names a library's function or class by name and version. That is right for a pure function such as `math.floor`. It is
wrong for `os.environ.get`, whose result depends on more than its arguments. Functions that this module does not list count as impure.
"""

from __future__ import annotations

import functools
import os
import sys
import types
from typing import Any

#: Modules whose functions depend on their arguments alone, with the submodules of each.
FUNCTIONS = frozenset((
    "_abc", "_bisect", "_collections", "_collections_abc", "_decimal", "_functools", "_operator", "_struct", "abc", "bisect",
    "builtins", "cmath", "collections", "copy", "dataclasses", "decimal", "enum", "fractions", "functools", "heapq", "itertools",
    "math", "ml_dtypes", "numbers", "numpy", "operator", "re", "reprlib", "statistics", "string", "struct", "textwrap", "types",
    "typing",
))  # fmt: skip
#: Functions of these modules whose result depends on other state.
STATEFUL = frozenset((
    "__import__", "breakpoint", "compile", "dir", "empty", "empty_like", "eval", "exec", "fromfile", "fromregex", "genfromtxt",
    "geterr", "get_printoptions", "globals", "hash", "id", "input", "load", "loadtxt", "locals", "memmap", "open", "vars",
))  # fmt: skip
_STATEFUL_MODULES = ("numpy.random", "numpy.lib.npyio", "numpy.lib._npyio_impl", "numpy.lib.format", "numpy.ctypeslib")
#: Modules whose objects are plain values, so that their pickled form describes them completely.
VALUES = FUNCTIONS | frozenset(("datetime", "ipaddress", "pathlib", "uuid", "zoneinfo"))
_FOLDER = os.path.dirname(os.__file__) + os.sep


@functools.cache
def library_file(file: str) -> bool:
    """Whether a file of Python code belongs to Python or an installed package."""
    return file.startswith(("<frozen ", _FOLDER)) or "site-packages" in file or "dist-packages" in file


def library_module(name: str) -> bool:
    """Whether a module belongs to Python or an installed package. A user's own `random.py` does not."""
    if name == "__main__":  # of a notebook its file belongs to IPython
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return name in sys.builtin_module_names or name.split(".")[0] in sys.stdlib_module_names
    return library_file(file)


def library_class(cls: type) -> bool:
    """Whether a class belongs to Python or an installed package. A class that a library generates for a user does not."""
    return library_module(cls.__module__) and (
        cls.__module__ == "builtins" or is_importable(cls.__module__, cls.__qualname__, cls)
    )


def is_importable(module: str, name: str, x: Any) -> bool:
    """Whether the object's module has this object under the object's name."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is x


def is_blocknb(name: str) -> bool:
    """Whether a module is part of blocknb, whose version is in every key. The ready-made kernels count as user code."""
    return (name == "blocknb" or name.startswith("blocknb.")) and not name.startswith("blocknb.kernels")


def of_library(function: Any) -> bool:
    """Whether a host function belongs to Python or an installed package, so that its name identifies it."""
    return isinstance(function, types.FunctionType) and library_file(function.__code__.co_filename)


def is_pure(module: str, name: str) -> bool:
    """Whether a library's function is pure: equal arguments give equal results, in other processes as well."""
    if module.split(".")[0] not in FUNCTIONS or name.split(".")[-1] in STATEFUL:
        return False
    return not module.startswith(_STATEFUL_MODULES)


def version(module: str) -> str:
    """The version of a library, or of Python for its own modules."""
    root = module.split(".")[0]
    found = getattr(sys.modules.get(root), "__version__", None)
    return found if isinstance(found, str) else ".".join(map(str, sys.version_info[:3]))
