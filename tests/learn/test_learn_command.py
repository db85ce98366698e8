"""`blocknb learn`: the list, the proof of a teacher's file, the page of a class, and the copy of the course."""

from __future__ import annotations

import errno
import re
import tomllib
from pathlib import Path

import pytest

from blocknb.cli import main
from blocknb.learn import command, progress

ROOT = Path(__file__).parents[2]
MINE = """
import numpy as np
from blocknb.learn import Blank, Case, Exercise, Mistake, Prediction, rules

SOLUTION = '''\\
@blocknb.kernel
def triple(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 3 * tl.load(x + at, mask=at < n), mask=at < n)
'''

def case(n):
    return Case(f"n={n}", lambda rng: {"x": rng.standard_normal(n, np.float32), "out": np.empty(n, np.float32), "n": n, "BLOCK": 16})

EXERCISES = (
    Exercise(
        name="triple-1", title="Multiply by three", task="Store `3 * x` to `out`.",
        cases=(case(32), case(20), case(1)), outputs=("out",), grid=lambda n, BLOCK: (-(-n // BLOCK),),
        reference=lambda x: {"out": 3.0 * x.astype(np.float64)}, rules=(rules.stored_once,), solution=SOLUTION,
        blanks=(Blank(4, 4, "load, multiply, store"),), hints=("What does a program store?", "One line.", "`tl.store(...)`"),
        mistakes=(Mistake("the factor is 2", patch=("3 *", WRONG)),),
    ),
)
"""


@pytest.mark.parametrize(("wrong", "status"), [('"2 *"', 0), ('"3.0 *"', 1)])
def test_a_file_is_proved_and_a_mistake_that_is_right_makes_it_fail(
    wrong: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(MINE.replace("WRONG", wrong))
    assert main(["learn", "test", "--quick", str(tmp_path / "mine.py")]) == status
    assert capsys.readouterr().out.startswith("triple-1: sound" if status == 0 else "triple-1: ")


def test_an_assignment_of_a_file_loads_it_from_its_own_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(MINE.replace("WRONG", '"2 *"'))
    assert main(["learn", "assignment", str(tmp_path / "mine.py"), "-o", str(tmp_path / "a.ipynb")]) == 0
    assert "put that file there" in capsys.readouterr().out
    text = (tmp_path / "a.ipynb").read_text()
    assert "learn.load('mine.py')" in text
    assert str(tmp_path) not in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no unit, exercise or file '{file}'; `blocknb learn list` shows all"),
        ("x = 1\nimport blocknb.nowhere\n", "{file}, line 2: ModuleNotFoundError: No module named 'blocknb.nowhere'"),
        ("def f(:\n", "{file}: "),
        ("x = 1\n", "{file}: ValueError: {file} has no exercises: define EXERCISES"),
    ],
)
@pytest.mark.parametrize("what", ["test", "assignment"])
def test_a_file_without_exercises_is_one_error(
    what: str, text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    assert main(["learn", what, str(file)]) == 1
    found = capsys.readouterr().err
    assert found.startswith("blocknb learn: " + said.replace("{file}", str(file)))
    assert found.count("blocknb learn:") == 1 and "Traceback" not in found
    assert main(["learn", "test", str(file), "--only", "mine"]) == 1
    assert capsys.readouterr().err == found


def test_points_and_folders_that_cannot_be_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for points in ("-1", "x", "nan", ""):
        with pytest.raises(SystemExit, match="2"):
            main(["learn", "assignment", "unit1", f"--points={points}", "-o", str(tmp_path / "a.ipynb")])
        assert f"{points!r} is no number of points, such as 2 or 0.5" in capsys.readouterr().err
    assert not (tmp_path / "a.ipynb").exists()
    (tmp_path / "file").touch()
    assert main(["learn", "start", "--no-browser", str(tmp_path / "file" / "course")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("blocknb learn start: ") and said.endswith("name another folder\n")


def test_a_full_disk_is_an_error_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(folder: Path) -> list[Path]:
        raise OSError(errno.ENOSPC, "No space left on device")  # a failed write has no file name

    monkeypatch.setattr(command, "copy_course", full)
    assert main(["learn", "start", "--no-browser", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"blocknb learn start: {tmp_path}: No space left")


def test_the_list_has_the_exercises_of_all_units(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "list"]) == 0
    assert "add-1" in capsys.readouterr().out


def test_a_report_needs_at_least_one_readable_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "report", str(tmp_path / "none.json"), "-o", str(tmp_path / "class.html")]) == 1
    assert "none.json" in capsys.readouterr().err
    assert not (tmp_path / "class.html").exists()


def test_start_copies_what_is_missing_and_leaves_the_learners_notebooks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "course"
    assert main(["learn", "start", str(folder), "--no-browser"]) == 0
    first = min(folder.glob("*.ipynb"))
    assert first.name.startswith("01_")
    first.write_text("mine")
    (folder / "README.md").unlink()
    assert [path.name for path in command.copy_course(folder)] == ["README.md"]
    assert first.read_text() == "mine"
    for notebook in folder.glob("*.ipynb"):
        for page in re.findall(r"\]\(([^)#:]+\.md)", notebook.read_text()):
            assert (folder / page).exists(), f"{notebook.name} links to {page}"


def test_the_wheel_carries_the_course_and_the_pages_that_it_links_to() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    place = command.PACKAGED.relative_to(ROOT)
    wanted = {"notebooks/course": f"{place}"} | {
        f"docs/{page}": f"{place}/docs/{page}" for page in command.LINKED_PAGES
    }
    assert built["force-include"] == wanted


def test_the_progress_of_this_user_is_not_for_tests() -> None:
    assert not progress.is_kept()
