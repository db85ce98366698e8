"""The notebooks about PyTorch run from top to bottom as `make demo` runs them, and all results that they report hold."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.library", reason="torch is not installed; `make test-torch` runs this")

pytestmark = pytest.mark.own_count
ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks" / "reference").glob("pytorch_*.ipynb"))
#: What the installation of blocknb tells torch; an environment may have its sources only.
ENTRY_POINT = "[torch_dynamo_backends]\nblocknb = blocknb.torch.inductor.backend:backend\n"


@pytest.fixture
def demo(tmp_path, monkeypatch):
    """scripts/demo.py, which writes the executed notebooks and all caches to a folder of the test."""
    for package in ("nbformat", "nbclient", "nbconvert", "ipykernel"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'blocknb[demo]'")
    spec = importlib.util.spec_from_file_location("demo", ROOT / "scripts" / "demo.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "OUT", tmp_path)
    metadata = tmp_path / "site" / "blocknb-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: blocknb\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINT)
    paths = filter(None, [str(metadata.parent), str(ROOT), os.environ.get("PYTHONPATH")])
    folders = {"BLOCKNB_CACHE_DIR": "cache", "IPYTHONDIR": "ipython", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    for name, folder in folders.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("BLOCKNB_TIMING_SCALE", "0.001")  # no result of these notebooks depends on a time
    return module


def test_the_notebooks_exist():
    assert [path.stem for path in NOTEBOOKS] == ["pytorch_compile", "pytorch_ops"]


#: `make test-torch` runs the operator's notebook; `make demo` and `--full` run both.
RUN = [path if path.stem == "pytorch_ops" else pytest.param(path, marks=pytest.mark.full) for path in NOTEBOOKS]


@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_a_notebook_runs_and_all_its_results_hold(path, demo):
    rows = demo.run(path)
    assert rows
    assert all(row.ok for row in rows), demo.table(rows)
