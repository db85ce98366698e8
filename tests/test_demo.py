"""`make demo` shows the results that the notebooks report, and fails if one of them fails."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

nbformat = pytest.importorskip("nbformat")

from blocknb.notebook.results import report, report_not_run  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
REPORT = "from blocknb.notebook.results import report, report_not_run\n"


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/demo.py with an empty folder of notebooks, and an output folder next to it."""
    spec = importlib.util.spec_from_file_location("demo", ROOT / "scripts" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo", module)
    spec.loader.exec_module(module)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "OUT", tmp_path / "out")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # kernels start elsewhere, and blocknb need not be installed
    return module


def write(folder: Path, name: str, *cells: str, requires: str = "") -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    if requires:
        notebook.metadata["blocknb"] = {"requires": [requires]}
    nbformat.write(notebook, folder / "notebooks" / name)


def test_demo_without_notebooks_reports_it_and_succeeds(demo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main() == 0
    assert "no notebooks" in capsys.readouterr().out


def test_a_notebook_of_exercises_has_no_results_but_must_run(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    magic = "get_ipython().register_magic_function(lambda line, cell: None, 'cell', 'blockkernel')"
    exercise = "%%blockkernel --exercise add-1\n..."
    write(tmp_path, "01_good.ipynb", magic, exercise)
    assert demo.main() == 0
    assert "1 exercise is left to the reader" in capsys.readouterr().out
    write(tmp_path, "02_bad.ipynb", magic, exercise, "1 / 0")
    assert demo.main() == 1
    assert "the notebook ended early" in capsys.readouterr().out


def test_results_become_rows_of_a_self_contained_page(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = "report('the sum', np.float64(1) < 2, 'error 1e-7')"
    write(tmp_path, "01_good.ipynb", REPORT + "import numpy as np", first, "report_not_run('a page', 'no viewer')")
    assert demo.main() == 0
    out = capsys.readouterr().out
    assert "the sum" in out
    assert "error 1e-7" in out
    assert "1 results ok, 0 failed, 1 not run" in out
    assert "no viewer" in out
    page = (tmp_path / "out" / "01_good.html").read_text()
    assert "ok: the sum (error 1e-7)" in page
    assert "<script src=" not in page
    assert "cdnjs" not in page


def test_a_failed_result_an_error_and_a_silent_notebook_each_fail_the_demo(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "01_wrong.ipynb", REPORT + "report('the product', False)")
    write(tmp_path, "02_raises.ipynb", REPORT + "report('before', True)", "1 / 0")
    write(tmp_path, "03_silent.ipynb", "1")
    assert demo.main() == 1
    out = capsys.readouterr().out
    assert "1 results ok, 3 failed" in out
    assert "ZeroDivisionError: division by zero" in out
    assert "reported nothing" in out


def test_a_notebook_whose_package_is_missing_has_a_row_that_says_so(
    demo: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(demo.COMMANDS, "not_installed", "make not-installed")
    write(tmp_path, "01_left.ipynb", "1 / 0", requires="not_installed")
    write(tmp_path, "02_other.ipynb", "1 / 0", requires="nor_this")
    assert demo.main() == 0
    out = capsys.readouterr().out
    assert "not_installed not installed: `make not-installed`, then `make demo` again" in out
    assert "`.venv/bin/pip install nor_this`" in out
    assert "0 results ok, 0 failed, 2 not run" in out
    assert "01_left.html" not in out


def test_outside_a_notebook_a_report_is_one_printed_line(capsys: pytest.CaptureFixture[str]) -> None:
    report("the sum", ok=True, detail="3 GB/s")
    report("the product", ok=False)
    report_not_run("a page", "no viewer")
    assert capsys.readouterr().out == "ok: the sum (3 GB/s)\nFAILED: the product\nnot run: a page (no viewer)\n"
