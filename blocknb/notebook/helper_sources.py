"""The helper functions of a kernel that lie in other files or cells. A page shows which line of a helper a line of code comes from.

An inlined op keeps the place in the helper and, as `caller`, the place of the call. A listing of IR has the line of the call in `lines`,
and the line in the helper in `inner`, as one number: `key * LINES + line`. The key comes from the text of the helper, so it is the same in
every document. Machine code has the lines of the calls only. The document has the text of each helper under its key (`helpers`). For each
line with a call, `inlined` has the lines of the helpers that are inlined there.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import linecache
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from blocknb.errors import Loc
from blocknb.frontend.calls import LANGUAGE
from blocknb.trace import Trace

#: The factor of a helper's key in the numbers of `inner`; a file with more lines has no helpers in a document.
LINES = 1 << 20


@dataclass(frozen=True)
class HelperSource:
    """A function of the user outside of the kernel's file: its text, with the number of its first line, and its key."""

    name: str
    file: str
    first_line: int
    text: str

    @property
    def key(self) -> int:
        """24 bits of a hash of the text and its place."""
        return int(hashlib.sha256(f"{self.first_line}\n{self.text}".encode()).hexdigest()[:6], 16)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "file": self.file, "first_line": self.first_line, "text": self.text}


def helper_at(file: str | None, line: int | None) -> HelperSource | None:
    """The innermost function with a line of a file; None for the library of the language, or if the file cannot be read."""
    if not file or not line or line >= LINES or file.startswith(LANGUAGE):
        return None
    return _helper_at("".join(linecache.getlines(file)), file, line)


@functools.lru_cache(maxsize=4096)
def _helper_at(text: str, file: str, line: int) -> HelperSource | None:
    around = [one for one in _functions(text) if _first(one) <= line <= (one.end_lineno or 0)]
    if not around:
        return None
    found = max(around, key=_first)
    lines = text.split("\n")[_first(found) - 1 : found.end_lineno]
    return HelperSource(found.name, file, _first(found), "\n".join(lines) + "\n")


@functools.lru_cache(maxsize=64)
def _functions(text: str) -> list[ast.FunctionDef]:
    try:
        return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    except SyntaxError:
        return []


def _first(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(one.lineno for one in node.decorator_list)])


def inner(place: tuple[HelperSource, int]) -> int:
    """The number of a line of a helper."""
    helper, line = place
    return helper.key * LINES + line


def helper_of(loc: Loc | None, file: str) -> tuple[HelperSource, int] | None:
    """The innermost helper outside of the kernel's `file` that a place was inlined from, and the line in it."""
    while loc is not None and loc.caller is not None and loc.file != file:
        if found := helper_at(loc.file, loc.line):
            return found, loc.line
        loc = loc.caller
    return None


def inlined_helpers(traces: Iterable[Trace]) -> dict[str, Any]:
    """The parts "helpers" and "inlined" of a document; nothing for a kernel without helpers in other files."""
    helpers, inlined = dict[str, Any](), dict[int, dict[int, None]]()
    for trace in traces:
        for op in trace.stages[0].after.ops() if trace.stages else ():
            if found := helper_of(op.loc, trace.file):
                helpers[str(found[0].key)] = found[0].to_json()
                call = op.loc.outermost.line if op.loc else 0
                inlined.setdefault(call, {})[inner(found)] = None
    return {"helpers": helpers, "inlined": {str(k): list(v) for k, v in inlined.items()}} if helpers else {}
