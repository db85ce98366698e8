"""The JSON form of a compilation's results in the disk cache: `encode`, `decode`, and `relocated` for texts.

A dataclass of blocknb (dtype, source location, site) is stored as the name of its class and its fields. Nothing is pickled. A cell has
another file name in the next session, and a helper may move to another file. A source location therefore stores its file as an index
into the list of files that the kernel reaches. A hit also replaces the old file names in LLVM text, PTX and assembly.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Sequence
from typing import Any

from blocknb.errors import Loc


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
    """Returns the value that `encode` stored. `files` are the files of this session."""
    if not isinstance(data, dict):
        return data
    if "loc" in data:
        file, *rest = data["loc"]
        return Loc(files[file] if isinstance(file, int) else file, *(decode(v, files) for v in rest))
    if "dict" in data:
        return {decode(k, files): decode(v, files) for k, v in data["dict"]}
    for kind, make in (("tuple", tuple), ("list", list), ("set", frozenset)):
        if kind in data:
            return make(decode(v, files) for v in data[kind])
    return _class(data["class"])(*(decode(f, files) for f in data["fields"]))


def _class(name: str) -> type:
    module, _, path = name.partition(":")
    if not module.startswith("blocknb."):
        raise TypeError(f"{name} is not a class of blocknb")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if not dataclasses.is_dataclass(found):
        raise TypeError(f"{name} is not a dataclass")
    return found  # type: ignore[return-value]


def relocated(text: str, old: Sequence[str], new: Sequence[str]) -> str:
    """Replaces the names of the old files in a text: the full path, and its folder and name as strings, as debug metadata has them."""
    for before, after in zip(old, new, strict=True):
        if before != after:
            text = text.replace(before, after)
            for a, b in zip(os.path.split(before), os.path.split(after), strict=True):
                if a and a != b:
                    text = text.replace(f'"{a}"', f'"{b}"')
    return text
