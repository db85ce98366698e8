"""`make dist`: builds the sdist and the wheel into dist/, and tries the wheel as a user would.

    python scripts/dist.py [--newest] [--extra toolchain]

1. uv builds the sdist from the checkout, and the wheel from the sdist, with the build tools of the lock file.
2. Each file of both must be committed, or be built by the lab extension. A stray file ends the command.
3. A new virtual environment installs the wheel, with dependencies at the versions of the lock file, or the newest ones (`--newest`).
4. `blocknb learn start` copies the course from the wheel, and nbclient runs its first notebook and a notebook with one kernel.
5. `jupyter labextension list` must name the extension, and a browser must show a live card (tests/browser), if one is installed.
   BLOCKNB_REQUIRE_BROWSER=1 requires it.

Prints the time and the size of each step. The exit status is 1 after the first step that fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
MIME = "application/vnd.blocknb.v1+json"
#: The files that the build adds to the committed ones.
BUILT = re.compile(r"labextension/dist/(static|viewer)/[\w.-]+\.(js|css|json)|labextension/dist/package\.json|PKG-INFO")
#: Where the committed files of the wheel come from.
MOVED = (
    (re.compile(r"blocknb-[^/]+\.data/data/share/jupyter/labextensions/blocknb/install\.json"), "labextension/"),
    (re.compile(r"blocknb-[^/]+\.data/data/share/jupyter/labextensions/blocknb/"), "labextension/dist/"),
    (re.compile(r"blocknb-[^/]+\.dist-info/licenses/"), ""),
    (re.compile(r"blocknb/learn/notebooks/docs/"), "docs/"),
    (re.compile(r"blocknb/learn/notebooks/"), "notebooks/course/"),
)
METADATA = re.compile(r"blocknb-[^/]+\.dist-info/(METADATA|WHEEL|RECORD|entry_points\.txt)")
MUST_HAVE = {"THIRD_PARTY_LICENSES", "LICENSE", "labextension/dist/package.json", "notebooks/course/01_blocks.ipynb"}

SETUP = "%load_ext blocknb\nimport numpy as np, blocknb, blocknb.language as tl\nx = np.arange(4096, dtype=np.float32)\nout = 0 * x"
KERNEL = """%%blockkernel --check "np.allclose(out, 2 * x)"
@blocknb.kernel
def double(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at))

double[4,](x, out, BLOCK=1024)"""
COMPARED = "assert np.array_equal(out, 2 * x)"
#: Variables of the caller that would mix another environment into the fresh one.
LEFT_OUT = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "JUPYTER_PATH", "JUPYTER_CONFIG_PATH")


class Failed(Exception):
    """A step did not do what it must; the message says what."""


@contextmanager
def step(what: str) -> Iterator[Callable[[str], None]]:
    """Prints what is done, and afterwards the time and the details that the body reports."""
    details: list[str] = []
    print(f"{what} ...", end=" ", flush=True)
    started = time.perf_counter()
    yield details.append
    print(f"{time.perf_counter() - started:.1f} s" + "".join(f"\n    {line}" for line in details), flush=True)


def call(*command: str | Path, cwd: Path | None = None) -> str:
    """Runs a command and returns what it printed. Raises Failed with its output."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def keep_apart(folder: Path) -> None:
    """Gives the commands that follow their own settings, caches and progress, as for a user who begins."""
    for name in LEFT_OUT:
        os.environ.pop(name, None)
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "BLOCKNB_CACHE_DIR"):
        os.environ[name] = str(folder / name.lower())
    os.environ["BLOCKNB_PROGRESS"] = str(folder / "progress.json")


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def size_of(folder: Path) -> int:
    """Bytes of all files of a folder; a hard link counts as a file."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def source_of(name: str) -> str:
    """The path in the checkout of a file in the wheel."""
    for pattern, folder in MOVED:
        if found := pattern.match(name):
            return folder + (Path(name).name if name.endswith("/install.json") else name[found.end() :])
    return name


def stray(names: Iterable[str], committed: set[str]) -> list[str]:
    """The paths that are neither committed nor built, sorted."""
    return sorted(name for name in names if name not in committed and not BUILT.fullmatch(name))


def inspect(sdist: Path, wheel: Path) -> list[str]:
    """Checks the files of both archives and returns a line about each. Raises Failed if one has a file too many, or lacks one."""
    committed = set(call("git", "ls-files", cwd=ROOT).splitlines())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2]: size for name, size in ((m.name, m.size) for m in archive if m.isfile())}
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {
            source_of(info.filename): info.file_size
            for info in archive.infolist()
            if not METADATA.fullmatch(info.filename)
        }
    for path, files in ((sdist, in_sdist), (wheel, in_wheel)):
        if found := stray(files, committed):
            raise Failed(f"{path.name} contains files that are not committed: {', '.join(found[:20])}")
        if lost := MUST_HAVE - set(files):
            raise Failed(f"{path.name} lacks {', '.join(sorted(lost))}")
    if tests := [name for name in in_wheel if name.startswith(("tests/", "scripts/"))]:
        raise Failed(f"{wheel.name} contains {tests[0]}")
    return [
        f"{path.name}: {megabytes(path.stat().st_size)}, {len(files)} files of {megabytes(sum(files.values()))}"
        for path, files in ((sdist, in_sdist), (wheel, in_wheel))
    ]


def build() -> tuple[Path, Path]:
    """Builds both archives into an empty dist/, and returns their paths."""
    shutil.rmtree(DIST, ignore_errors=True)
    call(
        sys.executable,
        "-m",
        "uv",
        "build",
        "-q",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "--out-dir",
        DIST,
        ROOT,
    )
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    version = json.loads((ROOT / "package.json").read_text("utf-8"))["version"]
    if not sdist.name == f"blocknb-{version}.tar.gz" or not wheel.name == f"blocknb-{version}-py3-none-any.whl":
        raise Failed(f"package.json has version {version}, but the build made {sdist.name} and {wheel.name}")
    return sdist, wheel


def constraints(folder: Path) -> Path:
    """Writes the versions of the lock file, without hashes, so that they constrain an installation by names."""
    text = (ROOT / "requirements" / "toolchain.lock").read_text("utf-8")
    pins = [line.rstrip(" \\") for line in text.splitlines() if line[:1].isalnum()]
    path = folder / "constraints.txt"
    path.write_text("\n".join(pins) + "\n", "utf-8")
    return path


def install(wheel: Path, folder: Path, extra: str, newest: bool) -> Path:
    """Installs the wheel into a new environment, and returns its folder of programs."""
    uv = [sys.executable, "-m", "uv"]
    environment = folder / "environment"
    call(*uv, "venv", "-q", "--python", sys.executable, environment)
    pins = [] if newest else ["-c", constraints(folder)]
    what = f"blocknb[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    call(*uv, "pip", "install", "-q", "--python", environment / "bin" / "python", *pins, what)
    return environment / "bin"


def write_notebook(path: Path) -> None:
    """Writes a notebook with one kernel and a comparison of its result."""
    cells = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "source": source, "execution_count": None, "outputs": []}
        for i, source in enumerate((SETUP, KERNEL, COMPARED))
    ]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    path.write_text(json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}), "utf-8")


def execute(programs: Path, notebook: Path) -> str:
    """Runs a notebook by nbclient, and counts its cards. Raises Failed if a cell raises an error, or if there is no card."""
    call(programs / "jupyter", "execute", "--inplace", notebook.name, cwd=notebook.parent)
    outputs = [one for cell in json.loads(notebook.read_text("utf-8"))["cells"] for one in cell.get("outputs", [])]
    cards = [one["data"][MIME] for one in outputs if MIME in one.get("data", {})]
    if not cards:
        raise Failed(f"{notebook.name} ran, but it has no card")
    return f"{notebook.name}: {len(cards)} cards"


def show(programs: Path, folder: Path) -> str:
    """Opens the notebook in the wheel's JupyterLab, runs it, and describes the card that the browser shows."""
    sys.path[:0] = [str(ROOT / "tests" / "browser")]
    from browser import Browser, find
    from laboratory import Lab, Notebook, complaints

    if (executable := find()) is None:
        if os.environ.get("BLOCKNB_REQUIRE_BROWSER") == "1":
            raise Failed("no Chromium or Chrome found, and BLOCKNB_REQUIRE_BROWSER=1: apt-get install chromium")
        return "NOT SHOWN: no Chromium or Chrome found"
    with Browser(executable) as browser:
        lab = Lab(folder / "lab", str(programs / "python"), root=None)
        try:
            page = lab.page(browser)
            notebook = Notebook(page, lab.write("double.ipynb", [SETUP, KERNEL, COMPARED]))
            notebook.run(0, 1, 2)
            card = notebook.complete(1)
            picture = ROOT / "build" / "dist" / "card.png"
            picture.parent.mkdir(parents=True, exist_ok=True)
            card.screenshot(picture)
            if errors := complaints(page):
                raise Failed(f"the page has logged errors: {errors}")
            return f"a live card with the views {', '.join(card.titles)}: {picture.relative_to(ROOT)}"
        except AssertionError as error:
            raise Failed(f"the browser showed no live card: {error}") from error
        finally:
            lab.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--newest", action="store_true", help="install the newest dependencies, not those of the lock file"
    )
    parser.add_argument("--extra", default="toolchain", help='the extra to install; "" for none (default: toolchain)')
    options = parser.parse_args()
    started = time.perf_counter()
    try:
        if not shutil.which("git"):
            raise Failed("git is missing, which lists the files that belong into the archives: apt-get install git")
        with step("sdist and wheel") as report:
            sdist, wheel = build()
            for line in inspect(sdist, wheel):
                report(line)
        with tempfile.TemporaryDirectory(prefix="blocknb-dist-") as place:
            keep_apart(Path(place))
            try_wheel(wheel, Path(place), options.extra, options.newest)
        print(
            f"{sdist.relative_to(ROOT)} and {wheel.relative_to(ROOT)} are tried, in {time.perf_counter() - started:.0f} s"
        )
    except Failed as failure:
        print(f"FAILED\n{failure}")
        return 1
    return 0


def try_wheel(wheel: Path, folder: Path, extra: str, newest: bool) -> None:
    """Installs the wheel, runs notebooks with it, and opens a card. Raises Failed."""
    with step(f"a fresh environment with blocknb[{extra}]" if extra else "a fresh environment with blocknb") as report:
        programs = install(wheel, folder, extra, newest)
        report(f"{megabytes(size_of(programs.parent))} installed; {call(programs / 'blocknb', '--version').strip()}")
    with step("notebooks") as report:
        write_notebook(folder / "double.ipynb")
        call(programs / "blocknb", "learn", "start", "--no-browser", folder / "course")
        for notebook in (folder / "double.ipynb", folder / "course" / "01_blocks.ipynb"):
            report(execute(programs, notebook))
    with step("JupyterLab") as report:
        listed = call(programs / "jupyter", "labextension", "list")
        lines = [line.strip() for line in listed.splitlines() if re.search(r"\bblocknb v[\d.]+", line)]
        if len(lines) != 1 or "enabled" not in lines[0] or "OK" not in lines[0]:
            raise Failed(f"jupyter labextension list does not name blocknb as enabled:\n{listed}")
        report(re.sub(r"\x1b\[[0-9;]*m", "", lines[0]))
        report(show(programs, folder))


if __name__ == "__main__":
    sys.exit(main())
