"""`make recorded` (scripts/record_notebooks.py): what it records where, when it refuses, and what a recorded notebook holds."""

from __future__ import annotations

import base64
import gzip
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from test_shown_names import ROOT, script

from blocknb.notebook import blobs

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, on a machine without a GPU."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    module = script("record_notebooks")
    monkeypatch.setattr(module, "names_of_gpus", list)
    return module


def test_without_a_gpu_it_refuses_in_one_line(recorder: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert recorder.main([]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.splitlines() == [recorder.REFUSAL]


def test_a_gpu_of_another_name_or_too_few_are_told(
    recorder: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recorder, "names_of_gpus", lambda: ["NVIDIA H100"])
    assert recorder.main(["--list"]) == 0
    lines = {line.split(" -> ")[0].rpartition("/")[2]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["the_card.ipynb"].endswith("is the run of an H200, and this machine has an NVIDIA H100")
    assert lines["13_many_gpus.ipynb"].endswith("it needs 2 GPUs, and this machine has 1")
    assert lines["12_your_own.ipynb"].endswith("can be recorded here")


def test_every_recording_names_a_notebook_and_texts_that_it_has(recorder: ModuleType) -> None:
    for one in recorder.RECORDINGS:
        notebook = nbformat.read(ROOT / one.notebook, as_version=4)
        recorder.change(notebook, one.changes)
        recorder.change(notebook, one.prose, "markdown")
        sources = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
        assert all(new in sources for _, new in one.changes)
        for cell in notebook.cells:  # the changed cells are still Python
            if cell.cell_type == "code" and not cell.source.startswith(("%", "!")):
                compile(cell.source, one.name, "exec")
    with pytest.raises(ValueError, match="no cell contains 'that'"):
        recorder.change(notebook, [("that", "this")])


def test_folders_of_a_machine_are_not_recorded(recorder: ModuleType) -> None:
    output = {"text": "at /opt/venv/lib/python3.12/site-packages/torch/x.py:3, in /tmp/ipykernel_61/9.py:7 and 1/2"}
    assert recorder.cleaned(output) == {"text": "at site-packages/torch/x.py:3, in ipykernel/9.py:7 and 1/2"}
    inductor = f"/tmp/some/folder/ab/c{'a' * 51}.py"
    assert recorder.cleaned([inductor]) == [f"torchinductor/ab/c{'a' * 51}.py"]
    kept = "docs/site-packages/x, https://example.org/a/b, 3 /4"
    assert recorder.cleaned(kept) == kept


def test_folders_of_a_machine_are_not_recorded_in_packed_texts(recorder: ModuleType) -> None:
    lines = [f'%{i} = !DIFile(filename: "{i}.py", directory: "/tmp/some/ab")' for i in range(40)]
    lines += [f"{i}, /tmp/ipykernel_61/9.py" for i in range(40)]
    packed = blobs.pack({"text": "\n".join(lines), "lines": [0] * 80, "ops": [-1] * 80})
    found = blobs.unpack(recorder.cleaned({"blobs": {"a": packed}})["blobs"]["a"])
    assert found["text"].split("\n") == [
        line.replace("/tmp/some/", "torchinductor/").replace("/tmp/", "") for line in lines
    ]


def test_no_recorded_notebook_names_a_folder_of_a_machine() -> None:
    for path in sorted((ROOT / "docs" / "recorded").glob("*.ipynb")):
        text = path.read_text()
        packed = [match[0].partition(" ")[0] for match in re.finditer(r"H4sI[A-Za-z0-9+/=]{20,}", text)]
        for part in (text, *(gzip.decompress(base64.b64decode(one)).decode() for one in packed)):
            assert not re.search(r"/(tmp|opt|root|home)/", part), path


def written(folder: Path, *sources: str) -> str:
    """The path of a notebook with a text, and these code cells."""
    text = nbformat.v4.new_markdown_cell("See [the list](list.md), and [the web](https://example.org/list.md).")
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(
        cells=[text, *cells], metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )
    (folder / "list.md").touch()
    nbformat.write(notebook, folder / "tried.ipynb")
    return str(folder / "tried.ipynb")


REPORT = "from blocknb.notebook.results import report\nreport('a sum', {}, 'one and one')"


@pytest.mark.full
def test_a_run_is_stored_with_its_outputs_and_without_names_of_the_machine(
    recorder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the CPU, by `--cpu`, as on a GPU."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "from").mkdir()
    source = written(tmp_path / "from", f"print({str(Path.home() / 'place')!r}, {str(ROOT)!r})", REPORT.format(True))
    monkeypatch.setattr(recorder, "RECORDINGS", (recorder.Recording(source, "docs/recorded/tried.ipynb", gpus=2),))
    assert recorder.main(["tried", "--cpu", str(tmp_path / "to" / "deep")]) == 0, capsys.readouterr().out
    made = nbformat.read(tmp_path / "to" / "deep" / "tried.ipynb", as_version=4)
    nbformat.validate(made)
    head, text, printing, reporting = made.cells
    assert "[tried](../../from/tried.ipynb)" in head.source and "make recorded" in head.source
    assert text.source == "See [the list](../../from/list.md), and [the web](https://example.org/list.md)."
    assert printing.outputs[0].text == "~/place blocknb\n" and "execution" not in printing.metadata
    assert reporting.outputs[0].data["text/plain"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("cell", "told"), [("1 / 0", "ZeroDivisionError"), (REPORT.format(False), "a sum: one and one")]
)
def test_a_run_that_fails_is_not_stored(
    cell: str,
    told: str,
    recorder: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(
        recorder, "RECORDINGS", (recorder.Recording(written(tmp_path, cell), "docs/recorded/tried.ipynb"),)
    )
    assert recorder.main(["--cpu", str(tmp_path / "to")]) == 1
    assert "tried: not recorded: " in (said := capsys.readouterr().out) and told in said
    assert not (tmp_path / "to").exists()


@pytest.mark.full
def test_the_tour_of_the_card_is_recorded_with_its_cards(
    recorder: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole notebook, on the CPU, with short measurements."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("BLOCKNB_TIMING_SCALE", "0.001")
    assert recorder.main(["the_card", "--cpu", str(tmp_path)]) == 0
    shown_names = sys.modules["shown_names"]
    made = nbformat.read(tmp_path / "04_the_card_on_an_H200.ipynb", as_version=4)
    documents = list(shown_names.saved_documents(made))
    assert len(documents) > 10
    assert not [name for document in documents for name in shown_names.gone(shown_names.names_of(document))]
