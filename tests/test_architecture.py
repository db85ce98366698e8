"""Keeps ARCHITECTURE.md and docs/glossary.md true: who imports whom, the shape of the code (`scripts/code_shape.py`), names, lock files."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from architecture_known import KNOWN, OLD_MODULE_NAMES

from blocknb.passes import ORDER

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "blocknb"

# Bottom to top: a module imports from its own room and from rooms in lower rows. "blocknb" is the public face, __init__.py, which
# loads its names lazily, and so imports any room.
ROWS = (
    ("errors", "forks", "cpus"),
    ("target",),
    ("language", "layouts"),
    ("ir",),
    ("trace",),
    ("ir_diff",),
    ("frontend", "analysis"),
    ("passes", "eager"),
    ("codegen", "footprint"),
    ("runtime", "blocknb"),
    ("kernels", "arrays"),
    ("profile", "testing"),
    ("fuzz",),
    ("tune",),
    ("compat",),
    ("torch",),
    ("bench",),
    ("notebook",),
    ("widgets",),
    ("learn",),
    ("cell_fuzz",),
    ("doctor",),
    ("cli",),
    ("__main__",),
)
HEIGHT = {room: height for height, row in enumerate(ROWS) for room in row}
# Load only after IPython has (`%load_ext blocknb` imports the first), or when the command runs.
MAY_IMPORT_IPYTHON = ("notebook", "widgets", "learn", "cell_fuzz")

MODULES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES = 500


def sources() -> Iterator[Path]:
    """The source files of the repository, Python and TypeScript."""
    for folder, pattern in (
        ("blocknb", "*.py"),
        ("tests", "*.py"),
        ("scripts", "*.py"),
        ("labextension/src", "*.ts"),
        ("labextension/tests", "*.ts"),
    ):
        yield from (ROOT / folder).rglob(pattern)


def name_of(path: Path) -> str:
    """The full name of a module."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def trees() -> dict[Path, ast.Module]:
    """Every module of the package, parsed."""
    return {path: ast.parse(path.read_text()) for path in MODULES}


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a module, in the order of `ast.walk`."""
    return tuple(ast.walk(trees()[path]))


@functools.cache
def code_shape() -> ModuleType:
    """The script that counts circles, attributes and branches."""
    spec = importlib.util.spec_from_file_location("code_shape", ROOT / "scripts" / "code_shape.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def only_known(found: Collection[str], rule: str) -> None:
    """Compares the violations of a rule with the known ones: none may be added, and fixed ones must be removed from the list."""
    new, fixed = sorted(set(found) - KNOWN[rule]), sorted(KNOWN[rule] - set(found))
    assert not new, f"{rule}:\n" + "\n".join(new)
    assert not fixed, f"take these out of KNOWN[{rule!r}], they are fixed:\n" + "\n".join(fixed)


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return "blocknb" if first == "__init__.py" else first.removesuffix(".py")


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports(tree: ast.AST, everywhere: bool = True) -> Iterator[tuple[str, int]]:
    """Full names that a module imports, with lines: all, or those that run when the module is imported. Code under
    `if TYPE_CHECKING` never runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{'.' * node.level}{node.module or ''}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.expr) or is_type_checking(node):
            continue
        elif everywhere or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imports(node, everywhere)


def imported_room(name: str) -> str | None:
    """The room of blocknb that an import reaches, None for other packages."""
    parts = name.split(".")
    if parts[0] != "blocknb":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in HEIGHT else "blocknb"


# ---- imports -------------------------------------------------------------------------------------------------------------


def test_every_room_has_its_place() -> None:
    rooms = {room_of(path) for path in MODULES}
    assert not rooms - set(HEIGHT), "a new room needs a place in ROWS and in ARCHITECTURE.md"


def test_a_module_imports_only_from_its_own_room_and_those_below() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} ({room}) imports {name}"
        for path, tree in trees().items()
        if (room := room_of(path)) != "blocknb"
        for name, line in imports(tree)
        if (other := imported_room(name)) not in (None, room) and HEIGHT[other] >= HEIGHT[room]
    ]
    assert not wrong, "\n".join(wrong)


def test_a_module_names_no_module_of_a_higher_room_in_a_string() -> None:
    """Imports by `import_module("...")` and by tables of names count as imports. A room alone may be named, as in a prefix of names."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} ({room}) names {node.value}"
        for path in trees()
        if (room := room_of(path)) != "blocknb"
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(r"blocknb\.\w+(\.\w+)+(:\w+)?", node.value)
        if (other := imported_room(node.value.split(":")[0])) not in (None, room) and HEIGHT[other] >= HEIGHT[room]
    ]
    assert not wrong, "\n".join(wrong)


def test_modules_do_not_import_each_other_in_circles() -> None:
    only_known([name for group in code_shape().circles(ROOT) for name in group], "modules in import circles")


def test_a_module_loads_third_party_packages_only_inside_functions() -> None:
    allowed = {"blocknb", "numpy", *sys.stdlib_module_names}
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path, tree in trees().items()
        for name, line in imports(tree, everywhere=False)
        if name.split(".")[0] not in allowed
        and not (room_of(path) in MAY_IMPORT_IPYTHON and name.split(".")[0] in ("IPython", "traitlets"))
        and not (
            path.name == "worker.py" and name.startswith(("elf_objects.", "tool_runs."))
        )  # a script, which imports from its folder
        and not (room_of(path) == "widgets" and name == "ipywidgets")  # a user imports this room by name
        and not (room_of(path) == "torch" and name.split(".")[0] == "torch")  # loaded at the first use of blocknb.torch
        and not (
            path.parent.name == "triton_kinds" and name.split(".")[0] == "triton"
        )  # source for two compilers, by file
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


# ---- the shape of the code ----------------------------------------------------------------------------------------------


def test_a_class_has_at_most_15_attributes() -> None:
    shape = code_shape()
    only_known(
        [
            f"{name_of(path)}.{node.name}"
            for path in trees()
            for node in nodes(path)
            if isinstance(node, ast.ClassDef) and len(shape.attributes(node)) > shape.MOST_ATTRIBUTES
        ],
        "classes of more than 15 attributes",
    )


def test_a_function_has_a_cyclomatic_complexity_of_at_most_20() -> None:
    shape = code_shape()
    only_known(
        [
            f"{name_of(path)}.{node.name}"
            for path in trees()
            for node in nodes(path)
            if isinstance(node, shape.Function) and shape.complexity(node) > shape.MOST_BRANCHES
        ],
        "functions above complexity 20",
    )


def test_class_names_are_unique() -> None:
    found = defaultdict(list)
    for path in trees():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(name_of(path))
    only_known([name for name, where in found.items() if len(where) > 1], "class names with several classes")


def test_a_source_file_has_at_most_500_lines() -> None:
    lines = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in sources()}
    assert not {path: count for path, count in lines.items() if count > MOST_LINES}


def test_a_module_opens_with_a_paragraph_that_says_what_it_does() -> None:
    assert not [
        str(path.relative_to(ROOT)) for path, tree in trees().items() if tree.body and not ast.get_docstring(tree)
    ]


# ---- names --------------------------------------------------------------------------------------------------------------


def glossary() -> list[tuple[str, str, str]]:
    """The rows of docs/glossary.md: term, meaning, where."""
    rows = [line.strip("|\n ").split(" | ") for line in (ROOT / "docs" / "glossary.md").read_text().splitlines()]
    return [(term, meaning, where) for term, meaning, where in (r for r in rows if len(r) == 3) if "`" in where]


def test_places_named_in_the_glossary_exist() -> None:
    rows = glossary()
    assert len(rows) > 60
    places = [place for _, _, where in rows for place in re.findall(r"`([\w/]+(?:\.py)?)`", where)]
    only_known([place for place in places if not (PACKAGE / place).exists()], "places of the glossary that are to come")


def test_the_glossary_has_a_row_for_each_pass() -> None:
    told = {place for _, _, where in glossary() for place in re.findall(r"`passes/([\w/]+)\.py`", where)}
    missing = {entry.replace(".", "/") for entry in ORDER} - told
    assert not missing, "add a row to docs/glossary.md"


def test_glossary_terms_have_one_row_and_one_sentence() -> None:
    rows = glossary()
    terms = [term for term, _, _ in rows]
    assert sorted(set(terms)) == sorted(terms)
    assert not [term for term, meaning, _ in rows if not meaning.endswith(".") or len(meaning.split()) > 30]


def test_no_module_has_an_old_name() -> None:
    names = {f"{room_of(path)}/{path.stem}": path for path in MODULES}
    only_known([name for name in names if name in OLD_MODULE_NAMES], "modules under names of the old vocabulary")


# ---- lock files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", [ROOT / "yarn.lock", *sorted((ROOT / "requirements").glob("*"))], ids=lambda path: path.name
)
def test_a_lock_file_names_packages_versions_and_hashes_but_no_host(path: Path) -> None:
    lines = path.read_text().splitlines()
    hosts = [line for line in lines if "://" in line or "index-url" in line or "find-links" in line or ".whl" in line]
    assert lines
    assert not hosts


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("*")), ids=lambda path: path.name)
def test_a_lock_file_fixes_one_version_and_the_hashes_of_every_package(path: Path) -> None:
    packages = [block for block in re.split(r"\n(?=\S)", path.read_text()) if block[:1].isalnum()]
    assert packages
    assert all("==" in block.split(";")[0] and "--hash=sha256:" in block for block in packages)


def test_architecture_md_names_every_room() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = {room_of(path) for path in MODULES} - {"blocknb", "__main__", "cli", "doctor"}
    assert not {room for room in rooms if f"`{room}/`" not in text and f"`{room}`" not in text}
