"""Mutations of a kernel's source, as in mutation testing (DeMillo, Lipton, Sayward 1978).

Operators are swapped, masks dropped, constants changed, statements shuffled, tokens deleted. Most results are valid Python; some are syntax
errors, as a user's half-edited cell is.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Sequence
from random import Random

SWAPS = {
    "+": "-*", "-": "+*", "*": "+-/", "/": "*", "//": "%", "%": "//+", "<": (">", "<=", "=="), ">": ("<", ">="), "<=": ("<", ">"),
    ">=": (">", "<"), "==": ("!=", "<"), "!=": ("==",), "&": ("|", "^"), "|": ("&",), "<<": (">>",), ">>": ("<<",),
    "+=": ("-=", "*=", "="), "-=": ("+=",), "*=": ("+=",), "(": ("",), ")": ("",), ",": ("",), ":": ("",), "=": ("==", ""),
    "[": ("(",), ".": (",",),
}  # fmt: skip
BROKEN = ("(", ")", ",", ":", "=", "[", ".")
NUMBERS = ("0", "1", "2", "-1", "3", "16", "64", "0.5", "1e30", "2**31", "4", "8", "1.5", "None")
NAMES = {
    "max": "min", "min": "max", "sum": "max", "exp": "exp2", "exp2": "log2", "maximum": "minimum", "minimum": "maximum",
    "load": "store", "cumsum": "cumprod", "where": "maximum", "float32": "float16", "float16": "float32", "int32": "int64",
    "int64": "int32", "zeros": "arange", "program_id": "num_programs", "sqrt": "abs", "sigmoid": "exp", "dot": "maximum",
    "range": "static_range", "axis": "axes", "mask": "other", "for": "while", "if": "while", "True": "False",
}  # fmt: skip


def mutated(rng: Random, source: str, first: int = 1, last: int = 1 << 30) -> str:
    """The source with one to three mutations between two of its lines (from 1)."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        change = rng.choice((_token, _token, _token, _without_keyword, _statement))
        source = change(rng, source, first, last)
    return source


def _token(rng: Random, source: str, first: int, last: int) -> str:
    """Another operator, number or name."""
    places: list[tuple[tokenize.TokenInfo, Sequence[str]]] = []
    for token in _tokens(source):
        if not first <= token.start[0] <= last:
            continue
        text = token.string
        if token.type == tokenize.OP and text in SWAPS and (text not in BROKEN or rng.random() < 0.03):
            places.append((token, SWAPS[text]))
        elif token.type == tokenize.NUMBER:
            places.append((token, NUMBERS))
        elif token.type == tokenize.NAME and text in NAMES:
            places.append((token, (NAMES[text],)))
        elif token.type == tokenize.NAME and rng.random() < 0.03:
            places.append((token, (text + "_", text[:-1], text.swapcase())))
    if not places:
        return source
    token, others = rng.choice(places)
    return _replaced(source, token.start, token.end, rng.choice(others))


def _tokens(source: str) -> list[tokenize.TokenInfo]:
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            found.append(token)
    except (tokenize.TokenError, SyntaxError):  # an earlier mutation broke the text; the tokens before it remain
        pass
    return found


def _replaced(source: str, start: tuple[int, int], end: tuple[int, int], new: str) -> str:
    lines = source.split("\n")
    if start[0] == end[0]:
        line = lines[start[0] - 1]
        lines[start[0] - 1] = line[: start[1]] + new + line[end[1] :]
    else:
        lines[start[0] - 1 : end[0]] = [lines[start[0] - 1][: start[1]] + new + lines[end[0] - 1][end[1] :]]
    return "\n".join(lines)


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except SyntaxError:
        return None


def _without_keyword(rng: Random, source: str, first: int, last: int) -> str:
    """A call without one of its keywords: a load without its mask."""
    tree = _parsed(source)
    if tree is None:
        return source
    calls = [
        (node, keyword)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and first <= node.lineno <= last and node.end_lineno == node.lineno
        for keyword in node.keywords
    ]
    if not calls:
        return source
    call, keyword = rng.choice(calls)
    call.keywords.remove(keyword)
    columns = [_characters(source, call.lineno, at or 0) for at in (call.col_offset, call.end_col_offset)]
    return _replaced(source, (call.lineno, columns[0]), (call.lineno, columns[1]), ast.unparse(call))


def _characters(source: str, line: int, at: int) -> int:
    """A column in characters of one in bytes of UTF-8."""
    return len(source.split("\n")[line - 1].encode()[:at].decode(errors="ignore"))


def _statement(rng: Random, source: str, first: int, last: int) -> str:
    """The source with a statement of one line deleted, doubled, or exchanged with the next one."""
    tree = _parsed(source)
    if tree is None:
        return source
    blocks = [body for node in ast.walk(tree) for _, body in ast.iter_fields(node) if isinstance(body, list)]
    places = [
        (statement.lineno, body)
        for body in blocks
        for statement in body
        if isinstance(statement, ast.stmt)
        and first < statement.lineno <= last
        and statement.lineno == statement.end_lineno
    ]
    if not places:
        return source
    line, _ = rng.choice(places)
    lines = source.split("\n")
    match rng.randrange(4):
        case 0:
            blank = len(lines[line - 1]) - len(lines[line - 1].lstrip())
            lines[line - 1] = " " * blank + "pass"
        case 1:
            lines.insert(line, lines[line - 1])
        case 2 if line < len(lines):
            lines[line - 1 : line + 1] = lines[line], lines[line - 1]
        case _:
            lines[line - 1] = rng.choice(("    ", "", "", "")) + lines[line - 1]
    return "\n".join(lines)
