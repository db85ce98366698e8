"""The JSON form of a compilation's results in the disk cache: `encode`, `decode`, and `relocated` for texts.

A dataclass of blocknb (dtype, source location, site) is stored as the name of its class and its fields. Nothing is pickled. A cell has
another file name in the next session, and a helper may move to another file. A source location therefore stores its file as an index
into the list of files that the kernel reaches. A hit also replaces the old file names in LLVM text, PTX and assembly.

`decode` trusts nothing. It makes only the classes of `_CLASSES`, with fields of the types that they declare. It raises TypeError or
ValueError for all other data.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from blocknb.errors import Loc

#: The classes of an entry, by module.
_CLASSES = {
    "blocknb.runtime.request": ("KernelCode",),
    "blocknb.trace": ("Resources",),
    "blocknb.codegen.maps": ("MapSpec",),
    "blocknb.ir.report": ("Access", "Assertion", "Overrun", "Print"),
    "blocknb.language.types": ("DType", "Pointer", "BoolPointer"),
}


def encode(value: Any, files: Sequence[str]) -> Any:
    """Returns the JSON form of a plain value, a collection or a dataclass of blocknb. Raises TypeError for anything else."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Loc):
        file, *rest = [getattr(value, f.name) for f in dataclasses.fields(Loc)]
        return {"loc": [files.index(file) if file in files else file, *(encode(v, files) for v in rest)]}
    if isinstance(value, (tuple, list, set, frozenset)):
        kind = "tuple" if isinstance(value, tuple) else "list" if isinstance(value, list) else "set"
        return {kind: [encode(v, files) for v in (sorted(value) if kind == "set" else value)]}
    if isinstance(value, dict):
        return {"dict": [[encode(k, files), encode(v, files)] for k, v in value.items()]}
    if dataclasses.is_dataclass(value) and type(value).__module__.startswith("blocknb."):
        fields = [encode(getattr(value, f.name), files) for f in dataclasses.fields(value) if f.init]
        return {"class": f"{type(value).__module__}:{type(value).__qualname__}", "fields": fields}
    raise TypeError(f"a {type(value).__name__} cannot be stored in the cache")


def decode(data: Any, files: Sequence[str]) -> Any:
    """Returns the value that `encode` stored. `files` are the files of this session. Raises TypeError, ValueError or IndexError for
    data that `encode` does not make."""
    if not isinstance(data, dict):
        if isinstance(data, list):
            raise TypeError("a list of an entry has no kind")
        return data
    if "loc" in data:
        file, *rest = data["loc"]
        return _checked(Loc(files[file] if isinstance(file, int) else file, *(decode(v, files) for v in rest)))
    if "dict" in data:
        return {decode(k, files): decode(v, files) for k, v in data["dict"]}
    for kind, make in (("tuple", tuple), ("list", list), ("set", frozenset)):
        if kind in data:
            return make(decode(v, files) for v in data[kind])
    if set(data) != {"class", "fields"}:
        raise TypeError(f"an entry holds an object of the keys {', '.join(map(str, data))}")
    return _checked(_class(data["class"])(*(decode(f, files) for f in data["fields"])))


def _class(name: str) -> type:
    module, _, found = name.partition(":")
    if found not in _CLASSES.get(module, ()):
        raise TypeError(f"{name} is no class of an entry")
    return getattr(importlib.import_module(module), found)


def _checked(value: Any) -> Any:
    """Raises TypeError if a field of a dataclass has another type than declared."""
    for field in dataclasses.fields(value):
        if not _DECLARED[str(field.type)](getattr(value, field.name)):
            raise TypeError(f"{type(value).__name__}.{field.name} is no {field.type}")
    return value


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in kinds


def _tuple_of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is tuple and all(type(element) in kinds for element in value)


def _named(*names: str) -> Callable[[Any], bool]:
    return lambda value: type(value).__name__ in names


#: Tests of field values, by the declared type. Fields of type Any hold classes of `_CLASSES` and plain values.
_DECLARED: dict[str, Callable[[Any], bool]] = {
    "Any": lambda value: True,
    "bool": _is(bool),
    "int": _is(int),
    "str": _is(str),
    "int | None": _is(int, type(None)),
    "DType": _named("DType"),
    "Loc | None": _named("Loc", "NoneType"),
    "frozenset[str]": lambda value: type(value) is frozenset and all(type(name) is str for name in value),
    "tuple[Any, ...]": _is(tuple),
    "tuple[Expression, ...]": _is(tuple),
    "tuple[int, ...]": _tuple_of(int),
    "tuple[str, ...]": _tuple_of(str),
    "tuple[tuple[str, Any], ...]": lambda value: (
        type(value) is tuple
        and all(type(pair) is tuple and len(pair) == 2 and type(pair[0]) is str for pair in value)
        and all(_named("DType", "Pointer", "BoolPointer")(kind) for _, kind in value)
    ),
}


def relocated(text: str, old: Sequence[str], new: Sequence[str]) -> str:
    """Replaces the names of the old files in a text: the full path, and its folder and name as strings, as debug metadata has them."""
    for before, after in zip(old, new, strict=True):
        if before != after:
            text = text.replace(before, after)
            for a, b in zip(os.path.split(before), os.path.split(after), strict=True):
                if a and a != b:
                    text = text.replace(f'"{a}"', f'"{b}"')
    return text
