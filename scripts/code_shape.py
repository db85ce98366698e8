"""Measures the shape of the code: `python scripts/code_shape.py [--list]` prints import circles, attributes, complexity and lines.

- Circles: groups of modules that import each other (strongly connected components of the import graph). Imports inside functions, under
  `if TYPE_CHECKING` and by `importlib.import_module("...")` count. A package that loads its own modules lazily is left out.
- Attributes: names that methods of a class assign to `self`, and fields of a dataclass.
- Complexity: McCabe's cyclomatic number of a function (1 + branches), its nested functions left out.
- Lines: of code in `blocknb/`, without blank lines, comments and docstrings.

Source of the complexity measure: McCabe, "A Complexity Measure" (IEEE Transactions on Software Engineering, 1976).
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_ATTRIBUTES, MOST_BRANCHES = 15, 20
Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the package by its full name."""
    found = {}
    for path in sorted((root / "blocknb").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    """The modules of `known` that a module imports anywhere in its text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in full if name in known)
            if node.module in known and not all(name in known for name in full):
                yield node.module
        elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith("import_module"):
            yield from (a.value for a in node.args[:1] if isinstance(a, ast.Constant) and a.value in known)


def circles(root: Path = ROOT) -> list[list[str]]:
    """Groups of modules that import each other, the largest first (Tarjan's algorithm)."""
    known = modules(root)
    graph = {name: sorted(set(imported(ast.parse(path.read_text()), known)) - {name}) for name, path in known.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = [stack.pop()]
            while group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in index:
            visit(name)
    return sorted(found, key=len, reverse=True)


def attributes(node: ast.ClassDef) -> set[str]:
    """The names assigned to `self` in a class's methods, and its annotated fields other than class variables."""
    fields = (s for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name))
    found = {
        s.target.id for s in fields if isinstance(s.target, ast.Name) and "ClassVar" not in ast.unparse(s.annotation)
    }
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and ast.unparse(inner.value) == "self":
            found.add(inner.attr)
    return found


def complexity(function: Function) -> int:
    """1 + the branches of a function. A nested function has a number of its own."""
    number, todo = 1, list[ast.AST](function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, Function | ast.ClassDef):
            continue
        if isinstance(
            node, ast.If | ast.IfExp | ast.For | ast.While | ast.ExceptHandler | ast.comprehension | ast.Assert
        ):
            number += 1 + len(getattr(node, "ifs", ()))
        elif isinstance(node, ast.BoolOp):
            number += len(node.values) - 1
        elif isinstance(node, ast.match_case):
            number += 1
        todo += ast.iter_child_nodes(node)
    return number


def code_lines(text: str) -> int:
    """Lines with code: no blank lines, comments and docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (
            tokenize.COMMENT,
            tokenize.NL,
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENDMARKER,
        ):
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if (
            isinstance(node, ast.Module | ast.ClassDef | Function)
            and body
            and ast.get_docstring(node, clean=False) is not None
        ):
            lines -= set(range(body[0].lineno, (body[0].end_lineno or 0) + 1))
    return len(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to measure")
    parser.add_argument("--list", action="store_true", help="name everything that is over a limit")
    options = parser.parse_args()
    paths = modules(options.root)
    trees = {name: ast.parse(path.read_text()) for name, path in paths.items()}
    classes = [
        (len(attributes(n)), f"{m}.{n.name}")
        for m, t in trees.items()
        for n in ast.walk(t)
        if isinstance(n, ast.ClassDef)
    ]
    functions = [
        (complexity(n), f"{m}.{n.name}") for m, t in trees.items() for n in ast.walk(t) if isinstance(n, Function)
    ]
    groups = circles(options.root)
    wide = sorted((c for c in classes if c[0] > MOST_ATTRIBUTES), reverse=True)
    branchy = sorted((f for f in functions if f[0] > MOST_BRANCHES), reverse=True)
    print(f"import circles: {len(groups)} of {sum(map(len, groups))} modules")
    print(f"classes with more than {MOST_ATTRIBUTES} attributes: {len(wide)}, the largest has {max(classes)[0]}")
    print(f"functions above complexity {MOST_BRANCHES}: {len(branchy)}, the largest has {max(functions)[0]}")
    print(f"lines of code: {sum(code_lines(path.read_text()) for path in paths.values())}")
    if options.list:
        print(*("circle: " + ", ".join(group) for group in groups), sep="\n")
        print(*(f"{number:4} {name}" for number, name in wide + branchy), sep="\n")


if __name__ == "__main__":
    main()
