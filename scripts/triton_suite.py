"""Runs Triton's public language tests with blocknb in Triton's place: `make triton-suite TRITON=<checkout>`.

    python scripts/triton_suite.py CHECKOUT [--device cpu] [-n 10] [-k EXPRESSION] [--files test_core.py ...]

The checkout is one of github.com/triton-lang/triton; its tests are not part of this repository. Needs pytest, pytest-xdist and torch. The
tests run under `blocknb.compat.install()`. It prints a row per test function, the reasons of failures, and the share of passed cases among
those that look at results. A case that stops at a line about Triton's own texts (TTIR, TTGIR, LLVM IR, PTX) has a column of its own. Its
results until then were right. A kernel may access memory outside its arrays, which blocknb reports on a CPU and Triton does not check. Such
a case has this column, too: `test_index1d` expects either an error of the compiler or no error.
"""

from __future__ import annotations

import argparse
import ast
import functools
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("python", "test", "unit", "language")
FILES = (
    "test_core.py", "test_standard.py", "test_random.py", "test_annotations.py", "test_conversions.py", "test_tuple.py",
    "test_block_pointer.py", "test_tensor_descriptor.py", "test_compile_errors.py", "test_libdevice.py", "test_module.py",
    "test_mxfp.py",
)  # fmt: skip
#: Texts by which a test only reads what Triton itself compiles to.
OWN_TESTS = ("filecheck", "run_parser", "make_ir", "libtriton", "create_temp_file", "triton.compile(str(")
#: Words of a statement that reads a text of a compilation.
OWN_WORDS = re.compile(r"\b(asm|ptx|ttir|ttgir|llir|metadata|found_fma)\b")
PLACE = re.compile(r'File "(.+?)", line (\d+)')
PLUGIN = """\
import importlib.util, pathlib, sys
sys.path.insert(0, {root!r})
import blocknb.compat
blocknb.compat.install()
import pytest
import triton

for name in ("_compile_warmup_state", "_internal_testing"):  # helpers of the tests, which lie beside the compiler
    if not pathlib.Path({package!r}, name + ".py").exists():  # Triton has the first one since 3.7
        continue
    spec = importlib.util.spec_from_file_location("triton." + name, {package!r} + "/" + name + ".py")
    module = sys.modules["triton." + name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

def pytest_addoption(parser):
    parser.addoption("--device", action="store", default="cuda")

@pytest.fixture
def device(request):
    return request.config.getoption("--device")

@pytest.fixture
def with_allocator():
    yield

@pytest.fixture
def fresh_triton_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(tmp_path))
    return str(tmp_path)
"""


def reading_own_texts(file: Path) -> set[str]:
    """The names of the tests of a file that look at no results."""
    text = file.read_text()
    tests = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    return {
        test.name
        for test in tests
        if test.name.startswith("test")
        and any(
            own in (ast.get_source_segment(text, part) or "")
            for part in (test, *test.decorator_list)
            for own in OWN_TESTS
        )
    }


@functools.cache
def statements(file: str) -> tuple[str, list[ast.stmt]]:
    """The text of a file, and its statements."""
    text = Path(file).read_text()
    return text, [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]


def stops_at_own_text(traceback: str, folder: Path) -> bool:
    """Whether the last line of the tests in a traceback is a statement about a text of a compilation."""
    places = [(file, int(line)) for file, line in PLACE.findall(traceback) if Path(file).parent == folder]
    if not places:
        return False
    file, line = places[-1]
    text, known = statements(file)
    around = [node for node in known if node.lineno <= line <= (node.end_lineno or node.lineno)]
    innermost = min(around, key=lambda node: (node.end_lineno or 0) - node.lineno)
    return OWN_WORDS.search(ast.get_source_segment(text, innermost) or "") is not None


def run(folder: Path, files: list[str], device: str, jobs: str, select: str | None) -> ElementTree.Element:
    """Runs the test files in a process of their own and returns pytest's report."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "blocknb_as_triton.py").write_text(
            PLUGIN.format(root=str(ROOT), package=str(folder.parents[2] / "triton"))
        )
        report = Path(place) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "blocknb_as_triton",
            "--noconftest",
            "--tb=native",
            f"--device={device}",
        ]
        command += ["-n", jobs, f"--junitxml={report}", *(["-k", select] if select else []), *files]
        paths = os.pathsep.join([place, str(ROOT), os.environ.get("PYTHONPATH", "")])
        subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, check=False)
        if not report.exists():
            raise SystemExit("pytest wrote no report; its output above says why")
        return ElementTree.parse(report).getroot()


def count(report: ElementTree.Element, folder: Path, own: set[str]) -> tuple[dict[str, Counter[str]], Counter[str]]:
    """By test function, how many cases passed, failed, were skipped, read texts or left their arrays; and the reasons of the others than
    the passed ones."""
    rows: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    for case in report.iter("testcase"):
        name = case.get("name", "").split("[")[0]
        row = rows.setdefault(name, Counter())
        bad = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        skipped = case.find("skipped")
        if name in own or (bad is not None and stops_at_own_text(bad.text or "", folder)):
            row["texts"] += 1
        elif bad is not None and "blocknb.errors.AccessError: " in (bad.text or ""):
            row["outside"] += 1
        elif bad is not None:
            row["failed"] += 1
            said = (bad.get("message") or "").splitlines() or [""]
            reasons[f"failed: {name}: {said[0][:110]}"] += 1
        elif skipped is not None:
            row["skipped"] += 1
            reasons[f"skipped: {skipped.get('message', '')[:110]}"] += 1
        else:
            row["passed"] += 1
    return rows, reasons


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("-n", dest="jobs", default="2")
    parser.add_argument("-k", dest="select")
    parser.add_argument("--files", nargs="+", default=FILES)
    options = parser.parse_args()
    folder = options.checkout.resolve() / FOLDER
    files = [name for name in options.files if (folder / name).exists()]
    if not files:
        parser.error(f"{folder} has none of {', '.join(options.files)}")
    own = set().union(*(reading_own_texts(folder / name) for name in files))
    report = run(folder, files, options.device, options.jobs, options.select)
    rows, reasons = count(report, folder, own)
    columns = ("passed", "failed", "skipped", "texts", "outside")
    print(f"{'function':40}" + "".join(f"{column:>9}" for column in columns))
    for name, row in rows.items():
        print(f"{name:40}" + "".join(f"{row[column]:9}" for column in columns))
    for reason, times in reasons.most_common():
        print(f"{times:6}  {reason}")
    totals = sum(rows.values(), Counter())
    ran = totals["passed"] + totals["failed"]
    print(
        f"passed {totals['passed']}, failed {totals['failed']}, skipped {totals['skipped']}, stopped at a text {totals['texts']}, "
        f"outside an array {totals['outside']}: "
        f"{100 * totals['passed'] / max(ran, 1):.2f} % of the cases that look at results"
    )
    return int(totals["failed"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
