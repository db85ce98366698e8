"""Builds the facades: modules with Triton's names, whose attributes are imported from blocknb on first access.

A facade's own name begins with `blocknb.compat.`. Under this name it is in `sys.modules`, and by this name the front end knows that its
contents belong to the compiler and never change.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from typing import Any, NoReturn

from blocknb.compat.names import MISSING, MISSING_MODULES, NAMES, VERSION
from blocknb.errors import KernelError

PREFIX = "blocknb.compat."


class NotInBlocknb(KernelError, NotImplementedError):
    """The program used a name of Triton that blocknb does not have."""


class NoAttribute(NotInBlocknb, AttributeError):
    """The program read an attribute of a missing name. It is an AttributeError, so that searches of all modules (pickle) go on."""


class Missing:
    """Stands for a name of Triton that blocknb does not have; any use raises NotInBlocknb."""

    def __init__(self, name: str, hint: str):
        vars(self).update(_name=name, _hint=hint)

    def __repr__(self) -> str:
        return f"<{self._name}, which blocknb does not have>"

    def _refuse(self, *_: Any, error: type[NotInBlocknb] = NotInBlocknb, **__: Any) -> NoReturn:
        raise error(f"blocknb does not have {self._name}", hint=self._hint)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python itself looks these up on any object: __wrapped__, __file__...
            raise AttributeError(name)
        self._refuse(error=NoAttribute)

    __call__ = __getitem__ = __setitem__ = __setattr__ = __iter__ = __enter__ = __mro_entries__ = _refuse

    def __exit__(self, *_: Any) -> None: ...


class Facade(types.ModuleType):
    """One of Triton's modules; `theirs` is its name in Triton."""

    def __init__(self, theirs: str):
        super().__init__(PREFIX + theirs, f"{theirs}, as blocknb has it.")
        self.theirs = theirs
        self.names = NAMES.get(theirs, {})
        self.__path__: list[str] = []
        self.__spec__ = importlib.machinery.ModuleSpec(self.__name__, None, is_package=True)
        inside = [n.removeprefix(theirs + ".") for n in (*NAMES, *MISSING_MODULES) if n.startswith(theirs + ".")]
        self.modules = {n for n in inside if "." not in n}
        self.__all__ = sorted({*self.names, *(m for m in self.modules if f"{theirs}.{m}" in NAMES)})
        if theirs == "triton":
            self.__version__ = VERSION

    def __getattr__(self, name: str) -> Any:
        full = f"{self.theirs}.{name}"
        if name in self.names:
            found = find(self.names[name])
        elif name in self.modules:
            found = sys.modules[PREFIX + full]
        elif self.theirs in MISSING_MODULES and not name.startswith("__"):
            found = Missing(full, MISSING[self.theirs])
        elif full in MISSING:
            found = Missing(full, MISSING[full])
        else:
            raise AttributeError(f"module {self.theirs!r}, as blocknb has it, has no attribute {name!r}")
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return [*self.__all__, "__version__"] if self.theirs == "triton" else list(self.__all__)


def find(place: str) -> Any:
    """The object for "module:attribute", or the module for "module:"."""
    module, _, attribute = place.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def build() -> Facade:
    """Makes all facades and registers them in `sys.modules` under `blocknb.compat.`; returns the one of `triton`."""
    for theirs in (*NAMES, *sorted(MISSING_MODULES)):
        sys.modules.setdefault(PREFIX + theirs, Facade(theirs))
    return sys.modules[PREFIX + "triton"]  # type: ignore[return-value]
