"""Runs Triton's public language tests with blocknb in Triton's place: `make triton-suite TRITON=<checkout>`.

    python scripts/triton_suite.py CHECKOUT [--device cpu] [-n 10] [-k EXPRESSION] [--files test_core.py ...]

The checkout is one of github.com/triton-lang/triton; its tests are not part of this repository. Needs pytest and torch. The tests run under
`blocknb.compat.install()`. It prints passed, failed and skipped cases, the reasons, and the share of passed ones among the cases that look
at results: those whose test does not read Triton's own IR, PTX or metadata.
"""

from __future__ import annotations

import argparse
import ast
import os
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
)  # fmt: skip
#: Texts by which a test reads what Triton itself compiles to.
OWN_TEXTS = (
    ".asm[",
    "ttgir",
    "ttir",
    "llir",
    "run_filecheck",
    "make_ir",
    "libtriton",
    "create_temp_file",
    "k.metadata",
)
PLUGIN = """\
import importlib.util, sys
sys.path.insert(0, {root!r})
import blocknb.compat
blocknb.compat.install()
import pytest
import triton
import triton.runtime.jit

triton.runtime.jit.type_canonicalisation_dict = {{}}
for name in ("_compile_warmup_state", "_internal_testing"):  # helpers of the tests, which lie beside the compiler
    spec = importlib.util.spec_from_file_location("triton." + name, {package!r} + "/" + name + ".py")
    module = sys.modules["triton." + name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

def pytest_addoption(parser):
    parser.addoption("--device", action="store", default="cuda")

@pytest.fixture
def device(request):
    return request.config.getoption("--device")

@pytest.fixture
def fresh_triton_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(tmp_path))
    return str(tmp_path)
"""


def reading_own_texts(file: Path) -> set[str]:
    """The names of the tests of a file that read Triton's own texts."""
    text = file.read_text()
    tests = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    return {
        test.name
        for test in tests
        if test.name.startswith("test") and any(own in (ast.get_source_segment(text, test) or "") for own in OWN_TEXTS)
    }


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
            "--tb=line",
            f"--device={device}",
        ]
        command += ["-n", jobs, f"--junitxml={report}", *(["-k", select] if select else []), *files]
        paths = os.pathsep.join([place, str(ROOT), os.environ.get("PYTHONPATH", "")])
        subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, check=False)
        if not report.exists():
            raise SystemExit("pytest wrote no report; its output above says why")
        return ElementTree.parse(report).getroot()


def count(report: ElementTree.Element, own: set[str]) -> tuple[Counter[str], Counter[str]]:
    """How many cases passed, failed and were skipped, and the reasons of the last two."""
    totals: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for case in report.iter("testcase"):
        name = case.get("name", "").split("[")[0]
        bad = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        skipped = case.find("skipped")
        if name in own:
            totals["skipped"] += 1
            reasons["skipped: reads Triton's own IR or PTX"] += 1
        elif bad is not None:
            totals["failed"] += 1
            reasons[f"failed: {name}: {bad.get('message', '').splitlines()[0][:90] if bad.get('message') else ''}"] += 1
        elif skipped is not None:
            totals["skipped"] += 1
            reasons[f"skipped: {skipped.get('message', '')[:90]}"] += 1
        else:
            totals["passed"] += 1
    return totals, reasons


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
    totals, reasons = count(run(folder, files, options.device, options.jobs, options.select), own)
    for reason, times in reasons.most_common():
        print(f"{times:6}  {reason}")
    ran = totals["passed"] + totals["failed"]
    print(
        f"passed {totals['passed']}, failed {totals['failed']}, skipped {totals['skipped']}: {100 * totals['passed'] / max(ran, 1):.2f} %"
    )
    return int(totals["failed"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
