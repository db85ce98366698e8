"""Keeps ARCHITECTURE.md true: who imports whom, what an import costs, how long a file may be, what a lock file may name."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "blocknb"

# Bottom to top: a module imports from its own room and from rooms in lower rows. "blocknb" is the public face, __init__.py, which
# loads what it names when it is asked for, and so imports any room.
ROWS = (
    ("errors", "forks"),
    ("target",),
    ("language", "layouts"),
    ("ir",),
    ("trace",),
    ("frontend", "analysis"),
    ("passes", "eager"),
    ("codegen",),
    ("runtime", "blocknb"),
    ("kernels",),
    ("profile", "testing"),
    ("fuzz",),
    ("tune",),
    ("compat",),
    ("notebook",),
    ("doctor",),
    ("cli",),
    ("__main__",),
)
HEIGHT = {room: height for height, row in enumerate(ROWS) for room in row}
# Loads only after IPython has: `%load_ext blocknb` imports it.
MAY_IMPORT_IPYTHON = "notebook"

MODULES = sorted(PACKAGE.rglob("*.py"))
SOURCES = sorted(
    path
    for folder, pattern in (
        ("blocknb", "*.py"),
        ("tests", "*.py"),
        ("scripts", "*.py"),
        ("labextension/src", "*.ts"),
        ("labextension/tests", "*.ts"),
    )
    for path in (ROOT / folder).rglob(pattern)
)


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return "blocknb" if first == "__init__.py" else first.removesuffix(".py")


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports(tree: ast.AST, everywhere: bool = True) -> Iterator[tuple[str, int]]:
    """Full names that a module imports, with lines: all, or those that run when the module is imported. What stands under
    `if TYPE_CHECKING` never runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{'.' * node.level}{node.module or ''}.{alias.name}", node.lineno) for alias in node.names)
        elif is_type_checking(node):
            continue
        elif everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imports(node, everywhere)


def imported_room(name: str) -> str | None:
    """The room of blocknb that an import reaches, None for other packages."""
    parts = name.split(".")
    if parts[0] != "blocknb":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in HEIGHT else "blocknb"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_its_own_room_and_those_below(path: Path) -> None:
    room = room_of(path)
    assert room in HEIGHT, f"{room} is a new room: give it a place in ROWS and in ARCHITECTURE.md"
    if room == "blocknb":
        return
    wrong = [
        f"{path.relative_to(ROOT)}:{line} ({room}) imports {name}"
        for name, line in imports(ast.parse(path.read_text()))
        if (other := imported_room(name)) not in (None, room) and HEIGHT[other] >= HEIGHT[room]
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_loads_third_party_packages_only_inside_functions(path: Path) -> None:
    allowed = {"blocknb", "numpy", *sys.stdlib_module_names}
    if room_of(path) == MAY_IMPORT_IPYTHON:
        allowed |= {"IPython", "traitlets"}
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for name, line in imports(ast.parse(path.read_text()), everywhere=False)
        if name.split(".")[0] not in allowed
    ]
    assert not found, "\n".join(found)


def test_importing_blocknb_loads_numpy_and_the_standard_library_only() -> None:
    code = (
        "import sys, numpy; before = set(sys.modules); import blocknb, json; "
        "print(json.dumps(sorted({name.split('.')[0] for name in set(sys.modules) - before})))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(json.loads(answer.stdout))
    assert "blocknb" in loaded
    assert loaded - {"blocknb"} <= sys.stdlib_module_names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_source_file_has_at_most_500_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


@pytest.mark.parametrize(
    "path", [p for p in MODULES if p.read_text().strip()], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_a_module_opens_with_a_paragraph_that_says_what_it_does(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize(
    "path", [ROOT / "yarn.lock", *sorted((ROOT / "requirements").glob("*"))], ids=lambda path: path.name
)
def test_a_lock_file_names_packages_versions_and_hashes_but_no_host(path: Path) -> None:
    lines = path.read_text().splitlines()
    hosts = [line for line in lines if "://" in line or "index-url" in line or "find-links" in line or ".whl" in line]
    assert lines
    assert not hosts


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("*.lock")), ids=lambda path: path.name)
def test_a_lock_file_fixes_one_version_of_every_package(path: Path) -> None:
    packages = [line for line in path.read_text().splitlines() if line[:1].isalnum()]
    assert packages
    assert all("==" in line.split(";")[0] for line in packages)


def test_architecture_md_names_every_room() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = {room_of(path) for path in MODULES} - {"blocknb", "__main__", "cli", "doctor"}
    assert not {room for room in rooms if f"`{room}/`" not in text and f"`{room}`" not in text}
