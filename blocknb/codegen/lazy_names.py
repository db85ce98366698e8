"""Names of a package that are imported when they are first used (PEP 562).

If the package's `__init__` imported its modules, two threads could deadlock: one that imports the package, and one that imports a module of
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from blocknb import forks


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package. `modules` has the module of each name, relative to the package."""

    def __getattr__(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(forks.imported(f"{package}.{modules[name]}"), name)

    return __getattr__
