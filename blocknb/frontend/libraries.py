"""Which code belongs to Python or an installed package, and which of its functions give the same answer to the same arguments.

In a cache key a library's function or class is known by its name and version. That is right for `math.floor` and wrong for
`os.environ.get`, whose answer depends on more than its arguments. What is not listed here counts as the second kind.
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
    "math", "ml_dtypes", "numbers", "numpy", "operator", "re", "statistics", "string", "struct", "textwrap", "types", "typing",
))  # fmt: skip
#: Functions of these modules whose answer depends on something else.
STATEFUL = frozenset((
    "__import__", "breakpoint", "compile", "dir", "empty", "empty_like", "eval", "exec", "fromfile", "fromregex", "genfromtxt",
    "geterr", "get_printoptions", "globals", "hash", "id", "input", "load", "loadtxt", "locals", "memmap", "open", "vars",
))  # fmt: skip
_STATEFUL_MODULES = ("numpy.random", "numpy.lib.npyio", "numpy.lib._npyio_impl", "numpy.lib.format", "numpy.ctypeslib")
#: Modules whose objects are plain values: pickling them says what they are.
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
    """Whether a class belongs to Python or an installed package, and not to a user for whom one of them has made it."""
    return library_module(cls.__module__) and (
        cls.__module__ == "builtins" or leads(cls.__module__, cls.__qualname__, cls)
    )


def leads(module: str, name: str, x: Any) -> bool:
    """Whether an object is what its module has under its name."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is x


def ours(name: str) -> bool:
    """Whether a module is blocknb's own. Its version is in every key, and so its names stand for what they name. The ready-made kernels
    are like a user's."""
    return (name == "blocknb" or name.startswith("blocknb.")) and not name.startswith("blocknb.kernels")


def of_library(function: Any) -> bool:
    """Whether a host function belongs to Python or an installed package, so that its name stands for it."""
    return isinstance(function, types.FunctionType) and library_file(function.__code__.co_filename)


def steady(module: str, name: str) -> bool:
    """Whether a library's function gives the same answer to the same arguments, now and in another process."""
    if module.split(".")[0] not in FUNCTIONS or name.split(".")[-1] in STATEFUL:
        return False
    return not module.startswith(_STATEFUL_MODULES)


def version(module: str) -> str:
    """The version of a library, or of Python for its own modules."""
    root = module.split(".")[0]
    found = getattr(sys.modules.get(root), "__version__", None)
    return found if isinstance(found, str) else ".".join(map(str, sys.version_info[:3]))
