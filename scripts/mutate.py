"""Mutation testing of one module: how many small faults do the tests named for it find?

    python scripts/mutate.py MODULE.py TEST ... [--count 60] [--seed 0] [--jobs 1] [--timeout 300] [--equivalent FILE]
    python scripts/mutate.py MODULE.py --list

Each mutant is the module with one small change. The change inverts or drops a comparison, an operator or a condition, or changes a number
by one. It may also drop a call, or replace an LLVM word such as `smax` in a string. The tests run against a copy of the tree, one copy for
each of `--jobs`, and stop at the first failure: the mutant is *killed*. The sample does not depend on `--jobs`. The script prints survivors
with their lines. A survivor that computes the same as the original is *equivalent*; tests/mutation/equivalent.json lists it with the
reason, and it is neither run nor counted. The exit status is 1 if less than 90 % of the mutants are killed.

Source of the technique: DeMillo, Lipton, Sayward, "Hints on Test Data Selection" (IEEE Computer 1978).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = ROOT / "tests" / "mutation" / "equivalent.json"
WANTED = 0.9  # share of mutants that the tests must kill

COMPARISONS: dict[type, type] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
COMPARISONS |= {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
COMPARISONS |= {ast.In: ast.NotIn, ast.NotIn: ast.In}
OPERATORS: dict[type, type] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult}
OPERATORS |= {ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}
OPERATORS |= {ast.Mod: ast.FloorDiv}
WORDS = {"smax": "smin", "smin": "smax", "umax": "umin", "umin": "umax", "add": "sub", "sub": "add", "mul": "add"}
WORDS |= {"and": "or", "or": "and", "slt": "sle", "sle": "slt", "sgt": "sge", "sge": "sgt", "eq": "ne", "ne": "eq"}
WORDS |= {"ult": "ule", "ule": "ult", "ugt": "uge", "uge": "ugt", "ueq": "une", "ashr": "lshr", "lshr": "ashr"}
WORDS |= {"0": "1", "1": "2", "true": "false", "false": "true", "lt": "le", "le": "lt", "gt": "ge", "ge": "gt"}


class Mutant(NamedTuple):
    """One change: `apply` makes it in the tree and returns a function that undoes it."""

    line: int
    what: str
    apply: Callable[[], Callable[[], None]]


def replacing(node: Any, field: str, value: Any) -> Callable[[], Callable[[], None]]:
    def apply() -> Callable[[], None]:
        before = getattr(node, field)
        setattr(node, field, value)
        return lambda: setattr(node, field, before)

    return apply


def exchanging(items: list, at: int, *values: Any) -> Callable[[], Callable[[], None]]:
    """Replaces one item of a list by the values."""

    def apply() -> Callable[[], None]:
        before = list(items)
        items[at : at + 1] = values

        def undo() -> None:
            items[:] = before

        return undo

    return apply


def mutants(tree: ast.Module) -> Iterator[Mutant]:
    """All mutants of a module. Docstrings, annotations, imports, assertions, messages and code for type checkers stay as they are."""
    for node in _code(tree):
        yield from _of_expression(node)
        for body in (getattr(node, name, None) for name in ("body", "orelse")):
            for at, statement in enumerate(body if isinstance(body, list) else ()):
                if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                    yield Mutant(statement.lineno, "drop the call", exchanging(body, at, ast.Pass()))


def numbered(found: Iterator[Mutant]) -> list[Mutant]:
    """The mutants in line order; equal descriptions get a number."""
    seen: Counter[tuple[int, str]] = Counter()
    named = []
    for mutant in found:
        seen[key := (mutant.line, mutant.what)] += 1
        named.append(mutant._replace(what=f"{mutant.what} #{seen[key]}") if seen[key] > 1 else mutant)
    return sorted(named, key=lambda m: m.line)


def _of_expression(node: Any) -> Iterator[Mutant]:
    line = getattr(node, "lineno", 0)
    match node:
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                other = COMPARISONS[type(op)]
                yield Mutant(line, f"{type(op).__name__} -> {other.__name__}", exchanging(ops, at, other()))
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            other = OPERATORS[type(op)]
            yield Mutant(line, f"{type(op).__name__} -> {other.__name__}", replacing(node, "op", other()))
        case ast.BoolOp(op=op, values=values):
            other = ast.Or if isinstance(op, ast.And) else ast.And
            yield Mutant(line, f"{type(op).__name__} -> {other.__name__}", replacing(node, "op", other()))
            for at in range(len(values)):
                kept = [v for i, v in enumerate(values) if i != at]
                yield Mutant(line, f"drop condition {at + 1}", replacing(node, "values", kept))
        case ast.UnaryOp(op=ast.Not(), operand=operand):  # twice, because the tree has no parent links
            yield Mutant(line, "drop not", replacing(node, "operand", ast.UnaryOp(ast.Not(), operand)))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield Mutant(test.lineno, "negate the condition", replacing(node, "test", ast.UnaryOp(ast.Not(), test)))
        case ast.comprehension(ifs=ifs):
            for at, test in enumerate(ifs):
                yield Mutant(test.lineno, "drop the filter", exchanging(ifs, at))
        case ast.Constant(value=bool(value)):
            yield Mutant(line, f"{value} -> {not value}", replacing(node, "value", not value))
        case ast.Constant(value=int(value)):
            for other in (value + 1, value - 1):
                yield Mutant(line, f"{value} -> {other}", replacing(node, "value", other))
        case ast.Constant(value=str(value)) if " " not in value or "%" in value or re.match(r"\s*\w+ i\d", value):
            for found in re.finditer(r"(?<![\w.%@])\w+(?![\w.])", value):
                if (other := WORDS.get(found[0])) is not None:
                    text = value[: found.start()] + other + value[found.end() :]
                    yield Mutant(line, f"{value!r} -> {text!r}", replacing(node, "value", text))


def _code(node: Any) -> Iterator[Any]:
    """The nodes that are executed."""
    yield node
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, (ast.Import, ast.ImportFrom, ast.Assert, ast.Raise)) or not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Call) and ast.unparse(child.func).endswith("notes"):
                continue
            yield from _code(child)


#: The parts that a copy of the tree omits: history, environments, caches and build outputs.
LEFT_OUT = (
    ".git",
    ".venv",
    "node_modules",
    ".*_cache",
    ".hypothesis",
    "__pycache__",
    "build",
    "dist",
)


class Tree:
    """A copy of the repository in which mutants are tried."""

    def __init__(self, root: Path):
        self.root, self.output = root, ""
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)

    def write(self, module: Path, text: str) -> None:
        """Makes this text the module's, and drops its old byte code."""
        (self.root / module).write_text(text)
        for stale in (self.root / module).parent.glob(f"__pycache__/{module.stem}.*.pyc"):
            stale.unlink()

    def passes(self, tests: list[str], timeout: float) -> bool:
        """Whether pytest passes with these arguments."""
        paths = [str(self.root), str(self.root / "tests"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "BLOCKNB_CACHE_DIR": str(self.root / ".cache"),
        }
        arguments = self.root / "arguments.txt"  # a file, because the command line may become too long
        arguments.write_text("\n".join(tests))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"@{arguments}"]
        try:
            done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            self.output = f"they did not end within {timeout:.0f} seconds"
            return False
        finally:
            shutil.rmtree(self.root / ".cache", ignore_errors=True)
        self.output = (done.stdout + done.stderr).decode(errors="replace")
        return done.returncode == 0

    def reason(self) -> str:
        """The line of the last output that names the first failure."""
        lines = self.output.splitlines()
        return next((line for line in lines if line.startswith(("FAILED", "ERROR"))), "\n".join(lines[-3:]))


def equivalent(path: Path, module: Path) -> set[tuple[str, str]]:
    """The mutants of a module that are known to be equivalent: (source line, what is changed)."""
    if not path.exists():
        return set()
    return {(row["line"], row["change"]) for row in json.loads(path.read_text()) if row["module"] == module.as_posix()}


def run(module: Path, tests: list[str], chosen: list[Mutant], tree: ast.Module, timeout: float, jobs: int) -> int:
    """Tries mutants of a tree, `jobs` at a time; returns how many survive."""
    lines = (ROOT / module).read_text().splitlines()
    texts = [text_with(tree, mutant) for mutant in chosen]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        trees: Queue[Tree] = Queue()
        for made in pool.map(lambda job: Tree(Path(folder) / str(job)), range(jobs)):
            trees.put(made)

        def passes(text: str, limit: float) -> bool:
            copy = trees.get()
            try:
                copy.write(module, text)
                return copy.passes(tests, limit)
            finally:
                trees.put(copy)

        begin = time.monotonic()
        if not all(pool.map(lambda _: passes(ast.unparse(tree), timeout), range(jobs))):
            raise SystemExit(f"the tests fail without any mutant:\n{trees.get().output[-3000:]}")
        limit = min(timeout, 30 + 4 * (time.monotonic() - begin))  # as many runs go on at a time later
        survivors = 0
        for at, (mutant, survived) in enumerate(
            zip(chosen, pool.map(lambda t: passes(t, limit), texts), strict=True), 1
        ):
            if survived:
                survivors += 1
                line = lines[mutant.line - 1].strip()
                print(f"survived: {module}:{mutant.line}: {mutant.what}\n    {line}", flush=True)
            if at % 20 == 0:
                print(f"... {at} of {len(chosen)}, {survivors} survived", flush=True)
    return survivors


def text_with(tree: ast.Module, mutant: Mutant) -> str:
    """The module with a mutant of this tree."""
    undo = mutant.apply()
    try:
        return ast.unparse(ast.fix_missing_locations(tree))
    finally:
        undo()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("module", type=Path, help="path of the module, from the root of the repository")
    parser.add_argument("tests", nargs="*", help="what pytest is to run")
    parser.add_argument("--count", type=int, default=0, help="the size of a sample of the mutants (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="mutants tried at a time, each in a copy of the tree")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for the tests of one mutant")
    parser.add_argument("--equivalent", type=Path, default=EQUIVALENT)
    parser.add_argument("--lines", help="only these lines of the module, as in 120-180")
    parser.add_argument("--list", action="store_true", help="print the mutants and run none")
    options = parser.parse_args()
    source = (ROOT / options.module).read_text()
    tree, lines = ast.parse(source), source.splitlines()
    known = equivalent(options.equivalent, options.module)
    found = [m for m in numbered(mutants(tree)) if (lines[m.line - 1].strip(), m.what) not in known]
    if options.lines:
        first, last = map(int, options.lines.split("-"))
        found = [m for m in found if first <= m.line <= last]
    if options.list:
        for mutant in found:
            print(f"{options.module}:{mutant.line}: {mutant.what}    {lines[mutant.line - 1].strip()}")
        return 0
    chosen = random.Random(options.seed).sample(found, min(options.count or len(found), len(found)))
    survivors = run(options.module, options.tests, chosen, tree, options.timeout, options.jobs)
    killed = len(chosen) - survivors
    share = killed / max(1, len(chosen))
    print(
        f"{options.module}: {killed} killed, {survivors} survived, {len(known)} known as equivalent, {share:.1%}"
        f" (a sample of {len(chosen)} of {len(found)}, seed {options.seed})"
    )
    return int(killed < WANTED * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
