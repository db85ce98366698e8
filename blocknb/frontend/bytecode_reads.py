"""Finds what the bytecode of a Python function reads: globals, free variables, attributes of its first parameter, and imports.

A host function runs at compile time, and its result is a constant in the generated code. Its source text may be missing or edited. A
cache key therefore represents the function by its bytecode.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Path = tuple[str, ...]


@dataclass(frozen=True)
class Reads:
    """The paths that a code object and its nested code objects read: `mod.CONST` is ("mod", "CONST").

    `names` begin with a global or builtin name, `cells` with a free variable. `first` are paths of attributes of the first parameter,
    or None if the code uses that parameter in any other way. `modules` are the names of imported modules.
    """

    names: tuple[Path, ...]
    cells: tuple[Path, ...]
    first: tuple[Path, ...] | None
    modules: tuple[str, ...]


def _seen_from(code: types.CodeType, cells: Iterable[Path]) -> Iterator[Path]:
    """The paths that begin at a free variable of a code object."""
    return (path for path in cells if path[0] in code.co_freevars)


@functools.lru_cache(4096)
def reads(code: types.CodeType) -> Reads:
    """The Reads of a code object."""
    import dis

    steps = [(i.opname, i.argval) for i in dis.get_instructions(code)]
    names: set[Path] = set()
    cells: set[Path] = set()
    first: set[Path] = set()
    modules: set[str] = set()
    parameter = code.co_varnames[0] if code.co_argcount else None
    whole = parameter is None or parameter in code.co_cellvars
    if "__class__" in code.co_freevars:  # `super()` reads this and the first parameter, without an instruction
        whole = True
        cells.add(("__class__",))
    for at, (operation, argument) in enumerate(steps):
        if operation in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add((argument, *_attributes(steps, at)))
        elif operation == "IMPORT_NAME":
            modules.add(argument)
        elif "DEREF" in operation and argument in code.co_freevars:
            cells.add((argument, *_attributes(steps, at)))
        elif "FAST" in operation:
            loaded = argument if isinstance(argument, tuple) else (argument,)
            if parameter in loaded:
                path = _attributes(steps, at)
                last = operation.startswith("LOAD_FAST") and loaded.index(parameter) == len(loaded) - 1
                whole = whole or not path or not last
                first.add(path)
    for inner in (reads(nested) for nested in code.co_consts if isinstance(nested, types.CodeType)):
        names.update(inner.names)
        modules.update(inner.modules)
        cells.update(_seen_from(code, inner.cells))
    of_first = None if whole else tuple(sorted(first))
    return Reads(tuple(sorted(names)), tuple(sorted(cells)), of_first, tuple(sorted(modules)))


def _attributes(steps: list[tuple[str, Any]], at: int) -> Path:
    """The names of the attributes that the code reads from the object that step `at` loads."""
    path = []
    for operation, argument in steps[at + 1 :]:
        if operation not in ("LOAD_ATTR", "LOAD_METHOD"):
            break
        path.append(argument)
    return tuple(path)


@functools.lru_cache(4096)
def digest(code: types.CodeType) -> str:
    """A text that identifies the behaviour of a code object. It excludes file names and line numbers."""
    return hashlib.sha256(_text(code).encode()).hexdigest()


def _constants(code: types.CodeType) -> tuple[Any, ...]:
    """The constants of a code object: its docstring, and those that an instruction loads.

    Python 3.14 also keeps the first constant of the source, even if it is only an element of a set or of a tuple.
    """
    if sys.version_info < (3, 14) or code.co_flags & inspect.CO_HAS_DOCSTRING:
        return code.co_consts
    import dis

    loaded = {i.arg for i in dis.get_instructions(code) if i.opcode in dis.hasconst}
    return tuple(constant for number, constant in enumerate(code.co_consts) if number in loaded)


def _text(value: Any) -> str:
    if isinstance(value, types.CodeType):
        counts = value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags
        names = value.co_name, value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars
        more = value.co_code.hex(), getattr(value, "co_exceptiontable", b"").hex()
        return f"code {counts} {names} {more} ({', '.join(map(_text, _constants(value)))})"
    if isinstance(value, tuple):
        return f"tuple ({', '.join(map(_text, value))})"
    if isinstance(value, frozenset):
        return f"frozenset ({', '.join(sorted(map(_text, value)))})"
    return f"{type(value).__name__} {value!r}"
