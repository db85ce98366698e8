"""The kernels of the tests' zoo as cells: the part of a family's file that one specimen needs. Only a source tree has them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import blocknb

TESTS = Path(blocknb.__file__).resolve().parents[1] / "tests"
#: Families whose kernels a CPU compiles and interprets within seconds.
FAMILIES = (
    "blocks", "caches", "chunks", "fused", "gates", "grids", "losses", "norms", "recurrences", "routing", "sampling", "scans",
    "training",
)  # fmt: skip


@dataclass(frozen=True)
class Cut:
    """The text that one specimen needs, and the lines (first, last) of each kernel in it that may be mutated.

    A function that combines the elements of a reduction stays as it is, since it must be associative.
    """

    name: str
    text: str
    kernels: tuple[tuple[int, int], ...]


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _defines(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {(alias.asname or alias.name).split(".")[0] for alias in names}
        case ast.Assign() | ast.AnnAssign():
            return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return set()


@cache
def cuts() -> tuple[Cut, ...]:
    """All specimens of the families that fit into a cell; none without a source tree. Kernels that read addresses from memory are left
    out, since a wrong address may be anywhere."""
    found = []
    for family in FAMILIES:
        path = TESTS / "zoo" / "families" / f"{family}.py"
        if path.is_file():
            found += _cut(path.read_text())
    return tuple(cut for cut in found if cut.kernels and cut.text.count("\n") < 150 and "pointer_type" not in cut.text)


def _cut(text: str) -> list[Cut]:
    tree, lines = ast.parse(text), text.split("\n")
    defined = {name: node for node in tree.body for name in _defines(node)}
    found = []
    for node in tree.body:
        match node:
            case ast.Expr(ast.Call(func=ast.Name("specimen"), args=[ast.Constant(str(name)), *_])):
                wanted: list[ast.stmt] = [node]
                for one in wanted:
                    wanted += [defined[n] for n in sorted(_names(one)) if n in defined and defined[n] not in wanted]
                found.append(_assembled(name, sorted(set(wanted), key=lambda n: n.lineno), lines))
    return found


def _combines(nodes: list[ast.stmt]) -> set[str]:
    """The functions that reductions and scans take."""
    calls = [
        n for node in nodes for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
    ]
    found = [call for call in calls if call.func.attr in ("reduce", "associative_scan")]  # type: ignore[attr-defined]
    return {
        arg.id for call in found for arg in [*call.args, *(k.value for k in call.keywords)] if isinstance(arg, ast.Name)
    }


def _assembled(name: str, nodes: list[ast.stmt], lines: list[str]) -> Cut:
    text: list[str] = []
    kernels, combines = [], _combines(nodes)
    for node in nodes:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(d.lineno for d in decorators)])
        begin = len(text) + 1
        text += lines[first - 1 : node.end_lineno]
        if any("jit" in ast.unparse(d) for d in decorators) and node.name not in combines:  # type: ignore[attr-defined]
            kernels.append((begin + node.lineno - first, len(text)))
    return Cut(name, "\n".join(text), tuple(kernels))
