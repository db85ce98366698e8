"""Fault seeding: how many of 100 frozen faults of the package do the quick tests find?

    python scripts/faults.py seed [--count 100] [--seed 1]           write tests/mutation/faults.json anew
    python scripts/faults.py follow [--seed 1]                       write it for the code of today: see below
    python scripts/faults.py reach REACH [--jobs 2]                  record which tests run which faulty statement
    python scripts/faults.py run REACH [--part held-out] [--jobs 2]  try the faults; print the survivors and a count

A fault is one mutant of one module, made by scripts/mutate.py. Half of the faults are the part "seen": whoever changes the tests may read
them. The other half, "held-out", judges the change. `reach` runs the quick tests once on a copy of the tree in which each faulty statement
reports that it runs; child processes report, too. `run` puts one fault at a time into a copy. It runs the tests that reach the fault, those
named for the module first, until one fails or exceeds its time. A fault in code that runs at import is reached by all tests. Tests that
fail or are skipped without any fault are left out. The exit status is 1 if a fault survives.

The code changes, and the faults follow it. A fault is sought by its line, without the comment, first in its own module. If that has lost
the line, and one other module has it, the fault has moved there. Otherwise it is gone: `reach` and `run` name it, do not try it, and count
it apart. `follow` writes the new module of each fault that moved. A fault may be gone, or may have become equal to another one. `follow`
then draws a fault of the same folder at random, into the same part. So no person chooses it.

Source of the technique: DeMillo, Lipton, Sayward, "Hints on Test Data Selection" (IEEE Computer 1978).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import Queue

import mutate
from mutate import ROOT

FAULTS = ROOT / "tests" / "mutation" / "faults.json"
SHARES = {"passes": 0.3, "codegen": 0.3, "runtime": 0.2, "notebook": 0.2}  # of the faults, by folder of blocknb/
QUICK = ["tests", "--ignore=tests/browser", "--ignore=tests/gpu", "--ignore=tests/test_architecture.py"]
CHUNK = (20.0, 60.0, 120.0)  # seconds of tests in the first, the second and each further run of a fault

#: The plugin of `reach`: `hit` appends "<test>\t<fault>" to a file of its process, and the controller records the results of all tests.
PLUGIN = """
import json, os
folder, seen, results = os.environ["REACHED"], set(), {}

def hit(fault):
    row = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0], fault
    if row not in seen:
        seen.add(row)
        with open(f"{folder}/{os.getpid()}.hits", "a") as file:
            file.write(f"{row[0]}\\t{fault}\\n")

def pytest_runtest_logreport(report):
    passed, seconds = results.get(report.nodeid, (True, 0.0))
    results[report.nodeid] = passed and report.outcome == "passed", seconds + report.duration

def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        with open(f"{folder}/results.json", "w") as file:
            json.dump(results, file)
"""

#: The plugin of `run`: pytest runs just the tests of a list, in its order. Thousands of arguments would be slow, and some do not parse.
CHOSEN = """
import json

def pytest_collection_modifyitems(items):
    with open("chosen.json") as file:
        place = {name: at for at, name in enumerate(json.load(file))}
    items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])
"""


def _mutants(folder: str) -> list[dict[str, str]]:
    """A row for each mutant of a folder of the package that is not known to be equivalent."""
    found = []
    for path in sorted((ROOT / "blocknb" / folder).rglob("*.py")):
        module, text = path.relative_to(ROOT), path.read_text()
        known = mutate.equivalent(mutate.EQUIVALENT, module)
        for mutant in mutate.numbered(mutate.mutants(ast.parse(text))):
            line = text.splitlines()[mutant.line - 1].strip()
            if (line, mutant.what) not in known:
                found.append({"module": module.as_posix(), "line": line, "change": mutant.what})
    return found


def seed(count: int, number: int) -> list[dict[str, str]]:
    """A random sample of the mutants of four folders, in turns for the two parts."""
    chance, rows = random.Random(number), []
    for folder, share in SHARES.items():
        rows += chance.sample(_mutants(folder), round(count * share))
    chance.shuffle(rows)
    return [{"part": ("seen", "held-out")[at % 2], **row} for at, row in enumerate(rows)]


def _code(line: str) -> str:
    """A line without its comment."""
    return re.sub(r"\s\s#.*", "", line.strip())


@cache
def _lines() -> dict[str, list[str]]:
    """The modules that have a line of code, for all lines of the package."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "blocknb").rglob("*.py")):
        for line in dict.fromkeys(map(_code, path.read_text().splitlines())):
            found.setdefault(line, []).append(path.relative_to(ROOT).as_posix())
    return found


class Fault:
    """A row of the file, found again in the code: the module, the line's number, the faulty text, and whether it moved.

    Raises LookupError if the row's module has lost the line, and no other module has it, or several have.
    """

    def __init__(self, number: int, row: dict[str, str]):
        self.number, self.row = number, row
        others = _lines().get(_code(row["line"]), [])
        here = row["module"] in others and self._found(row["module"])
        if not here and not (len(others) == 1 and self._found(others[0])):
            raise LookupError(f"{number} {row['module']}: {row['change']}\n    {row['line']}")
        self.moved = self.module.as_posix() != row["module"]

    def _found(self, module: str) -> bool:
        source = (ROOT / module).read_text()
        tree, lines = ast.parse(source), source.splitlines()
        for mutant in mutate.numbered(mutate.mutants(tree)):
            if mutant.what == self.row["change"] and _code(lines[mutant.line - 1]) == _code(self.row["line"]):
                self.module, self.source = Path(module), source
                self.line, self.text = mutant.line, mutate.text_with(tree, mutant)
                return True
        return False

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.row['change']}\n    {self.row['line']}"


def _identity(row: dict[str, str]) -> tuple[str, str, str]:
    return row["module"], row["line"], row["change"]


def _today(number: int, row: dict[str, str]) -> dict[str, str] | None:
    """A row with the module and the line of today, or None for a fault that is gone."""
    try:
        fault = Fault(number, row)
    except LookupError:
        return None
    line = fault.source.splitlines()[fault.line - 1].strip()
    return row | {"module": fault.module.as_posix(), "line": line}


def follow(rows: list[dict[str, str]], number: int) -> Iterator[dict[str, str]]:
    """The rows for the code of today: moved faults with their new module, and for each that is gone another of its folder and part. If
    faults have become one, such as two of equal lines that are one line now, one stays and the others are gone."""
    chance = random.Random(number)
    taken = {_identity(row) for row in rows}
    found = [_today(at, row) for at, row in enumerate(rows)]
    kept = dict[
        tuple[str, str, str], dict[str, str]
    ]()  # the row of each fault of today, before all one that has not moved
    for row, new in sorted(
        zip(rows, found, strict=True), key=lambda pair: pair[0]["module"] != (pair[1] or {}).get("module")
    ):
        if new is not None:
            kept.setdefault(_identity(new), row)
    taken |= kept.keys()
    for row, new in zip(rows, found, strict=True):
        if new is None or kept[_identity(new)] is not row:
            folder = Path(row["module"]).parts[1]
            drawn = chance.choice([other for other in _mutants(folder) if _identity(other) not in taken])
            taken.add(_identity(drawn))
            new = {"part": row["part"], **drawn}
        yield new


def reporting(tree: ast.Module, fault: Fault) -> bool:
    """Inserts a call of `hit` before the faulty statement of a module; False if the statement runs at import."""
    inner: tuple[list[ast.stmt], ast.stmt, bool] | None = None

    def descend(node: ast.AST, in_function: bool) -> None:
        nonlocal inner
        for _, field in ast.iter_fields(node):
            body = field if isinstance(field, list) else [field]
            for child in body:
                if isinstance(child, ast.stmt) and child.lineno <= fault.line <= (child.end_lineno or 0):
                    inner = (body, child, in_function)
                if isinstance(child, ast.AST):
                    descend(child, in_function or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))

    descend(tree, False)
    if inner is None or not inner[2]:
        return False
    body, statement, _ = inner
    body.insert(body.index(statement), ast.parse(f"__import__('reached').hit({fault.number})").body[0])
    return True


def rows() -> list[dict[str, str]]:
    return json.loads(FAULTS.read_text())


def faults(part: str = "", only: list[int] | None = None) -> tuple[list[Fault], int]:
    """The faults that the code still has, all or those of a part or of some numbers, and how many are gone. Prints which."""
    found, gone = [], 0
    for number, row in enumerate(rows()):
        if (part and row["part"] != part) or (only and number not in only):
            continue
        try:
            found.append(fault := Fault(number, row))
        except LookupError as error:
            gone += 1
            print(f"gone: {error}", flush=True)
        else:
            if fault.moved:
                print(f"moved: {number} {row['module']} -> {fault}", flush=True)
    return found, gone


def summary(tried: int, survivors: int, gone: int) -> str:
    apart = f"; {gone} more are gone from the code and were not tried (scripts/faults.py follow)" if gone else ""
    return f"{tried - survivors} of {tried} faults found{apart}"


def reach(tests: list[str], jobs: int) -> dict[str, tuple[float, list[int]]]:
    """Runs the quick tests once: for each test that passes, its seconds and the numbers of the faults that it reaches."""
    with tempfile.TemporaryDirectory(prefix="reach-") as folder:
        copy, hits = mutate.Tree(Path(folder, "tree")), Path(folder, "hits")
        hits.mkdir()
        (copy.root / "reached.py").write_text(PLUGIN)
        everywhere: list[int] = []
        trees: dict[Path, ast.Module] = {}
        for fault in faults()[0]:
            if not reporting(trees.setdefault(fault.module, ast.parse(fault.source)), fault):
                everywhere.append(fault.number)
        for module, tree in trees.items():
            copy.write(module, ast.unparse(ast.fix_missing_locations(tree)))
        paths = [str(copy.root), str(copy.root / "tests"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"REACHED": str(hits), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "reached", "-p", "no:cacheprovider", "-n", str(jobs)]
        subprocess.run([*command, "--dist", "worksteal", *tests], cwd=copy.root, env=environment, check=False)
        found: dict[str, set[int]] = {}
        for file in hits.glob("*.hits"):
            for row in file.read_text().splitlines():
                test, _, number = row.rpartition("\t")
                found.setdefault(test, set()).add(int(number))
        results = json.loads((hits / "results.json").read_text())
    failed = [test for test, (passed, _) in results.items() if not passed]
    print(f"{len(results) - len(failed)} tests pass, {len(failed)} fail or are skipped and are left out")
    return {
        test: (seconds, sorted(found.get(test, set()) | set(everywhere)))
        for test, (passed, seconds) in results.items()
        if passed
    }


def chunks(fault: Fault, reached: dict[str, tuple[float, list[int]]]) -> list[tuple[float, list[str]]]:
    """The tests that reach a fault, in runs of some seconds: (seconds, tests). Tests named for its module and quick ones come first."""
    near = fault.module.stem.removeprefix("_")
    tests = [test for test, (_, numbers) in reached.items() if fault.number in numbers]
    tests.sort(key=lambda test: (near not in test.split("::")[0], reached[test][0]))
    made: list[tuple[float, list[str]]] = []
    for test in tests:
        if not made or made[-1][0] > CHUNK[min(len(made), len(CHUNK)) - 1]:
            made.append((0.0, []))
        made[-1] = made[-1][0] + reached[test][0], [*made[-1][1], test]
    return made


def run(chosen: list[Fault], reached: dict[str, tuple[float, list[int]]], jobs: int) -> list[Fault]:
    """Tries the faults, `jobs` at a time, and returns the survivors. A fault's next run waits until all faults had the one before."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, ThreadPoolExecutor(jobs) as pool:
        trees: Queue[mutate.Tree] = Queue()
        for made in pool.map(lambda job: mutate.Tree(Path(folder, str(job))), range(jobs)):
            trees.put(made)

        def found(fault: Fault, seconds: float, tests: list[str]) -> bool:
            copy = trees.get()
            try:
                copy.write(fault.module, fault.text)
                (copy.root / "chosen.py").write_text(CHOSEN)
                (copy.root / "chosen.json").write_text(json.dumps(tests))
                files = dict.fromkeys(test.split("::")[0] for test in tests)
                if copy.passes(["-p", "chosen", *files], 60 + 5 * seconds):
                    return False
                print(f"found: {fault}\n    {copy.reason()}", flush=True)
                return True
            finally:
                copy.write(fault.module, fault.source)
                trees.put(copy)

        left = [(fault, chunks(fault, reached)) for fault in chosen]
        survivors = []
        for turn in range(1 + max((len(runs) for _, runs in left), default=0)):
            survivors += [fault for fault, runs in left if len(runs) <= turn]
            left = [(fault, runs) for fault, runs in left if len(runs) > turn]
            tried = pool.map(lambda pair: found(pair[0], *pair[1][turn]), left)  # noqa: B023 - read within this iteration
            left = [pair for pair, was_found in zip(left, list(tried), strict=True) if not was_found]
            print(f"... run {turn + 1}: {len(left)} left, {len(survivors)} survived", flush=True)
    return survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=("seed", "follow", "reach", "run"))
    parser.add_argument("reach", nargs="?", type=Path, help="the JSON file that `reach` writes and `run` reads")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", choices=("seen", "held-out"), default="", help="only this half of the faults")
    parser.add_argument("--only", type=int, nargs="+", help="only the faults of these numbers")
    parser.add_argument("--tests", nargs="+", help="what `reach` gives to pytest (default: the quick tests)")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.what == "seed":
        FAULTS.write_text(json.dumps(seed(options.count, options.seed), indent=1) + "\n")
        return 0
    if options.what == "follow":
        FAULTS.write_text(json.dumps(list(follow(rows(), options.seed)), indent=1) + "\n")
        return 0
    if options.reach is None:
        parser.error(f"{options.what} needs a file")
    if options.what == "reach":
        options.reach.write_text(json.dumps(reach(options.tests or QUICK, options.jobs), indent=0))
        return 0
    chosen, gone = faults(options.part, options.only)
    survivors = run(chosen, json.loads(options.reach.read_text()), options.jobs)
    for fault in survivors:
        print(f"survived: {fault.number} {fault}")
    print(summary(len(chosen), len(survivors), gone))
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
