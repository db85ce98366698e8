"""The JSON form of what a compilation leaves behind, for the disk cache: `encode`, `decode`, and `moved` for texts.

Dataclasses of blocknb (dtypes, places, sites) are stored as their class and fields, tuples and sets as such, never a pickle. A
cell has another file name in the next session and a helper may come from elsewhere, so the files of places are stored as
numbers in the list of files that the kernel reaches, in the order in which it reaches them, and texts that name the old files
(LLVM, PTX, assembly, disassembly) are rewritten.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Sequence
from typing import Any

from blocknb.errors import Loc


def encode(value: Any, files: Sequence[str]) -> Any:
    """A JSON value for a plain value, a collection or a dataclass of blocknb. Raises TypeError for anything else."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Loc):
        file: int | str = files.index(value.file) if value.file in files else value.file
        return {
            "loc": [
                file,
                value.line,
                value.column,
                value.end_line,
                value.end_column,
                value.function,
                encode(value.caller, files),
            ]
        }
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
    """The value again, with places in `files`."""
    if not isinstance(data, dict):
        return data
    if "loc" in data:
        file, line, column, end_line, end_column, function, caller = data["loc"]
        return Loc(
            files[file] if isinstance(file, int) else file,
            line,
            column,
            end_line,
            end_column,
            function,
            decode(caller, files),
        )
    if "dict" in data:
        return {decode(k, files): decode(v, files) for k, v in data["dict"]}
    for kind, make in (("tuple", tuple), ("list", list), ("set", frozenset)):
        if kind in data:
            return make(decode(v, files) for v in data[kind])
    return _class(data["class"])(*(decode(f, files) for f in data["fields"]))


def _class(name: str) -> type:
    module, _, path = name.partition(":")
    if not module.startswith("blocknb."):
        raise TypeError(f"{name} is no class of blocknb")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if not dataclasses.is_dataclass(found):
        raise TypeError(f"{name} is no dataclass")
    return found  # type: ignore[return-value]


def moved(text: str, old: Sequence[str], new: Sequence[str]) -> str:
    """A text with the names of the old files replaced: in full, and as folder and name, which is how debug data has them."""
    for before, after in zip(old, new, strict=True):
        if before != after:
            text = text.replace(before, after)
            for a, b in zip(os.path.split(before), os.path.split(after), strict=True):
                if a and a != b:
                    text = text.replace(f'"{a}"', f'"{b}"')
    return text
