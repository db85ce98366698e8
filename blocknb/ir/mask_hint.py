"""Explains why the mask of an access let an element outside of the array through, from the source of the access.

A frequent mistake is a mask that tests another value than the address uses: `load(x + at, mask=i < n)`. The source says which values the
mask compares and which ones the address contains. The result is a hint for a person, never a fact for the compiler.
"""

from __future__ import annotations

import ast
import linecache
import re

from blocknb.errors import Loc


def mask_hint(loc: Loc | None, index: int) -> str | None:
    """The hint for an access at `loc` to element `index`, outside of the array, that has a mask; None if the source shows no mask. Unless
    the mask tests the offset of the address, the address is wrong more often than the mask."""
    call = _call_at(loc) if loc is not None else None
    if loc is None or call is None or not call.args:
        return None
    mask = next((k.value for k in call.keywords if k.arg == "mask"), None)
    if mask is None or (isinstance(mask, ast.Constant) and mask.value is None):
        return None
    test = _definition(mask, loc) if isinstance(mask, ast.Name) else mask
    if test is None:
        return f"the mask `{ast.unparse(mask)}` is true for this element"
    if better := _other_value(test, call.args[0]):
        return better
    tests = f"the mask tests `{ast.unparse(test)}`, which is true for this element"
    offset = _offset(call.args[0])
    if index >= 0 and offset is not None and ast.dump(offset) in map(ast.dump, ast.walk(test)):
        return f"{tests}: it must be false outside of the array"
    address = f"the address `{ast.unparse(call.args[0])}`, which is that of element {index}"
    return f"{tests}: if that is right, correct {address}; else the mask must be false outside of the array"


def _other_value(test: ast.expr, pointer: ast.expr) -> str | None:
    """The hint for a comparison whose values the address does not contain, or None if it contains one of each."""
    used, offset = {ast.dump(node) for node in ast.walk(pointer)}, _offset(pointer)
    for compared in ast.walk(test):
        if not isinstance(compared, ast.Compare) or len(compared.ops) != 1 or offset is None:
            continue
        known = ast.dump(compared.left) in used or ast.dump(compared.comparators[0]) in used
        if not known and isinstance(compared.left, ast.Name):
            better = ast.unparse(ast.Compare(offset, compared.ops, compared.comparators))
            return f"the mask tests `{ast.unparse(compared)}`, but the address uses `{ast.unparse(offset)}`: test `{better}`"
    return None


def _call_at(loc: Loc) -> ast.Call | None:
    """The call of a load, store or atomic that a location covers."""
    lines = [linecache.getline(loc.file, n) for n in range(loc.line, max(loc.end_line, loc.line) + 1)]
    if not lines or not loc.end_column:
        return None
    encoded = [line.encode() for line in lines]
    encoded[-1] = encoded[-1][: loc.end_column]
    encoded[0] = encoded[0][loc.column :]
    try:
        tree = ast.parse(b"".join(encoded).decode(errors="ignore").strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return tree if isinstance(tree, ast.Call) else None


def _definition(name: ast.Name, loc: Loc) -> ast.expr | None:
    """The value that the nearest line above assigns to a name, if that line is a statement of its own."""
    pattern = re.compile(rf"\s+{re.escape(name.id)}\s*=\s*(?!=)(.+)")
    for number in range(loc.line - 1, 0, -1):
        line = linecache.getline(loc.file, number)
        if re.match(r"\s*def ", line):
            return None
        if found := pattern.match(line):
            try:
                return ast.parse(found[1].strip(), mode="eval").body
            except SyntaxError:
                return None
    return None


def _offset(pointer: ast.expr) -> ast.expr | None:
    """The offset of `pointer + offset` if it is a name; a longer expression has no single value to test."""
    if isinstance(pointer, ast.BinOp) and isinstance(pointer.op, ast.Add) and isinstance(pointer.right, ast.Name):
        return pointer.right if isinstance(pointer.left, ast.Name) else None
    return None
