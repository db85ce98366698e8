"""`blocknb learn`: lists and tests exercises, writes assignments and reports, and starts the course.

`blocknb/cli.py` declares the arguments. Each function returns the exit status.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import traceback
from pathlib import Path

from blocknb.learn import assignment, catalog, class_report, listing, progress
from blocknb.learn.exercise import Exercise, Prediction

#: The notebooks of the course: in an installed package, and in a checkout.
PACKAGED = Path(__file__).parent / "notebooks"
CHECKOUT = Path(__file__).parents[2] / "notebooks" / "course"
#: The pages of docs/ that the notebooks link to. The wheel carries them, too (pyproject.toml).
LINKED_PAGES = ("card.md", "footprints.md", "glossary.md")


def show_list() -> int:
    """Prints all exercises with the progress of this user."""
    print(listing.table(progress.load())["text/plain"])
    return 0


def test(name: str, only: str, quick: bool) -> int:
    """Proves the exercises of a file, a unit, or of one name, and prints a line for each. The status is 1 if one is not sound."""
    from blocknb.learn.proving import prove

    _, found = _chosen(name)
    items = tuple(item for item in found if only in ("", item.name))
    if not items:
        return _unknown(only) if found else 1
    sound = True
    for item in items:
        proof = prove(item, compiled=not quick, course=not name.endswith(".py"))
        print(proof, flush=True)
        sound = sound and proof.sound
    return 0 if sound else 1


def _unknown(name: str) -> int:
    print(
        f"blocknb learn: there is no unit, exercise or file {name!r}; `blocknb learn list` shows all", file=sys.stderr
    )
    return 1


def assign(name: str, out: str, points: float, student: bool) -> int:
    """Writes the notebook of a unit ("unit8"), of a file of exercises, or of one exercise."""
    title, items = _chosen(name)
    if not items:
        return 1
    place = Path(out or f"{Path(name).stem}.ipynb")
    file = Path(name).name if name.endswith(".py") else ""
    assignment.write(place, title, items, points, student, file)
    print(f"{place}: {len(items)} exercises, {len(items) * points:g} points")
    if file:
        print(f"It loads {file} from its own folder: put that file there, too.")
    if not student:
        print("It has the solutions. `nbgrader generate_assignment`, or --student, makes the notebook for students.")
    return 0


def _chosen(name: str) -> tuple[str, tuple[Exercise | Prediction, ...]]:
    """The title and the exercises of a file, a unit, or of one name. Prints an error where there are none, and returns none."""
    if name.endswith(".py") and Path(name).expanduser().is_file():
        try:
            return Path(name).stem, catalog.load(name)
        except Exception as error:  # of the file's Python
            print(f"blocknb learn: {_told(error, name)}", file=sys.stderr)
            return "", ()
    for unit in catalog.units():
        if name in (unit.name, str(unit.number)):
            return f"Unit {unit.number}: {unit.title}", catalog.exercises(unit)
    one = [item for item in catalog.exercises() if item.name == name]
    if not one:
        _unknown(name)
    return (one[0].title, tuple(one)) if one else ("", ())


def _told(error: Exception, name: str) -> str:
    """The error of a file of exercises with the file's own line, if it comes from one."""
    own = str(Path(name).expanduser().resolve())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    place = f"{name}, line {lines[-1]}" if lines else name
    return f"{place}: {''.join(traceback.format_exception_only(error)).strip()}"


def report(files: list[str], out: str) -> int:
    """Writes the page of a class."""
    learners, problems = class_report.read(files)
    for problem in problems:
        print(f"blocknb learn report: {problem}", file=sys.stderr)
    if not learners:
        print("blocknb learn report: none of the files is a progress file", file=sys.stderr)
        return 1
    Path(out).write_text(class_report.page(learners, problems), "utf-8")
    print(f"{out}: {len(learners)} learners")
    return 0


def notebooks() -> Path | None:
    """The folder with the course's notebooks, or None."""
    return next((folder for folder in (CHECKOUT, PACKAGED) if folder.is_dir()), None)


def copy_course(folder: Path) -> list[Path]:
    """Copies what the folder does not have yet of the notebooks and the pages that they link to; returns the new files. Raises OSError."""
    source = notebooks()
    assert source is not None
    pages = source / "docs" if source == PACKAGED else source.parents[1] / "docs"
    files = {path.relative_to(source): path for path in sorted(source.rglob("*")) if path.is_file()}
    files |= {Path("docs") / name: pages / name for name in LINKED_PAGES}
    new = []
    for name, path in files.items():
        target = folder / name
        if target.exists() or ".ipynb_checkpoints" in name.parts:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".ipynb":
            target.write_text(path.read_text("utf-8").replace("](../../docs/", "](docs/"), "utf-8")
        else:
            shutil.copyfile(path, target)
        new.append(target)
    return new


def start(folder: str, browser: bool) -> int:
    """Copies the course to a folder, and opens JupyterLab on the first unit. JupyterLab takes over the process."""
    if notebooks() is None:
        print("blocknb learn start: this installation has no notebooks; install a wheel of blocknb", file=sys.stderr)
        return 1
    place = Path(folder).expanduser().absolute()
    try:
        new = copy_course(place)
    except OSError as error:
        print(f"blocknb learn start: {error.filename or place}: {error.strerror}; name another folder", file=sys.stderr)
        return 1
    print(f"{place}: {len(new)} new files; your own notebooks stay as they are")
    first = min(place.glob("*.ipynb"), default=None, key=lambda path: path.name)
    if not browser:
        return 0
    if importlib.util.find_spec("jupyterlab") is None:
        print('blocknb learn start: JupyterLab is missing: pip install "blocknb[learn]"', file=sys.stderr)
        return 1
    root = ["--allow-root"] if hasattr(os, "getuid") and os.getuid() == 0 else []
    opened = [str(first)] if first is not None else []
    os.chdir(place)
    sys.stdout.flush()
    return os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", *root, *opened])
