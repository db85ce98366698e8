"""`blocknb doctor` lists the installed parts and how to get the others, on any machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from blocknb import cli, doctor
from blocknb.doctor import Finding, InstalledDriver, InstalledGpu
from blocknb.notebook import extension

ROOT = Path(__file__).resolve().parent.parent
H200 = InstalledGpu("NVIDIA H200", (9, 0), 141 * 2**30)


def test_doctor_lists_every_component_once_and_in_order() -> None:
    names = [finding.name for finding in doctor.examine()]
    assert names == ["GPU", "driver", "CuPy", "ptxas", "nvdisasm", "llvmlite", "lab extension"]


def test_suggested_extra_matches_the_driver() -> None:
    assert doctor.fitting_extra(None) == "toolchain"
    assert doctor.fitting_extra(InstalledDriver((13, 0), devices=(H200,))) == "cuda13"
    assert doctor.fitting_extra(InstalledDriver((12, 4), devices=(H200,))) == "cuda12"
    assert doctor.fitting_extra(InstalledDriver((11, 8), devices=(H200,))) == "toolchain"
    assert doctor.fitting_extra(InstalledDriver((13, 0))) == "toolchain", "a driver without a GPU runs nothing"


def test_a_missing_cupy_names_the_extra_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    driver = InstalledDriver((12, 4), devices=(H200,))
    for torch, more in ((None, ""), (object(), "; launches on torch tensors need none")):
        monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name, torch=torch: torch)
        finding = doctor.examine_cupy(driver, doctor.fitting_extra(driver))
        assert finding == Finding("CuPy", None, f'pip install "blocknb[cuda12]"{more}')


def test_without_a_gpu_a_missing_cupy_needs_no_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert doctor.examine_cupy(None, "toolchain") == Finding("CuPy", None)


def test_missing_tools_name_the_extra_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from blocknb.codegen import toolchain

    monkeypatch.setattr(toolchain, "candidates", lambda name: ())
    monkeypatch.setattr(toolchain, "choose_ptxas", lambda target: toolchain.PtxasChoice(None))
    monkeypatch.setattr(toolchain, "find_nvdisasm", lambda target: None)
    fix = 'pip install "blocknb[toolchain]"'
    assert doctor.examine_toolchain("toolchain") == [Finding("ptxas", None, fix), Finding("nvdisasm", None, fix)]


def test_the_ptxas_that_is_used_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from blocknb.codegen import toolchain
    from blocknb.codegen.toolchain import PtxasChoice, Tool

    newer, older = Tool("ptxas", "a", "PyPI", (13, 0, 88)), Tool("ptxas", "b", "PATH", (12, 9, 86))
    monkeypatch.setattr(toolchain, "candidates", lambda name: (newer, older))
    for choice, extra, fix in (
        (PtxasChoice(older, "a reason"), "cuda12", ""),
        (
            PtxasChoice(newer, "a reason", False),
            "cuda12",
            'get a ptxas that fits the driver: pip install "blocknb[cuda12]"',
        ),
        (PtxasChoice(newer, "a reason", False), "toolchain", ""),
    ):
        monkeypatch.setattr(toolchain, "choose_ptxas", lambda target, choice=choice: choice)
        used = "12.9.86 (PATH)" if choice.tool is older else "13.0.88 (PyPI)"
        found = f"13.0.88 (PyPI), 12.9.86 (PATH); uses {used}: a reason"
        assert doctor.examine_toolchain(extra)[0] == Finding("ptxas", found, fix)


def test_only_a_missing_llvmlite_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> str:
        raise doctor.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", absent)
    assert cli.main(["doctor"]) == 1
    assert 'llvmlite       missing\n                 -> pip install "llvmlite==0.50.*"' in capsys.readouterr().out


def test_equal_gpus_are_listed_once_with_their_number() -> None:
    driver = InstalledDriver((13, 0), "580.95.05", (H200, H200))
    assert doctor.examine_gpu(driver).found == "2 x NVIDIA H200 (sm_90, 141 GiB)"
    assert doctor.examine_driver(driver) == Finding("driver", "580.95.05, CUDA 13.0")


def test_a_driver_that_does_not_start_gives_a_reason() -> None:
    finding = doctor.examine_driver(InstalledDriver((13, 0), error="no CUDA-capable device is detected"))
    assert finding.fix
    assert "no CUDA-capable device is detected" in (finding.found or "")


def test_the_lab_extension_is_found_where_jupyter_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(extension, "data_directories", lambda: [tmp_path])
    assert extension.installed() is None
    assert doctor.examine_lab_extension().found is None
    folder = tmp_path / "labextensions" / "blocknb"
    folder.mkdir(parents=True)
    (folder / "package.json").write_text(json.dumps({"version": "0.0.1"}))
    assert extension.installed() == ("0.0.1", folder)
    assert doctor.examine_lab_extension().fix, "another version than blocknb's own is worth a word"


def test_doctor_works_where_only_numpy_is_installed(tmp_path: Path) -> None:
    """Every other package is refused at import, as it would be in a bare environment."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {{"blocknb", "numpy", *sys.stdlib_module_names}}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Bare())
from blocknb.cli import main
main(["doctor"])
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "lab extension" in answer.stdout


def test_the_makefile_gets_its_extra_from_a_script_that_needs_nothing_installed() -> None:
    script = [sys.executable, "-S", "-P", str(ROOT / "blocknb" / "doctor.py")]
    answer = subprocess.run(script, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() in ("cuda13", "cuda12", "toolchain")
    assert (ROOT / "requirements" / f"{answer.stdout.strip()}.lock").exists()


@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_reader_that_ends_early_is_no_error(buffered):
    """`blocknb doctor | head -1`."""
    command = [sys.executable, "-m", "blocknb", "doctor"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": buffered}
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (141, "")
