"""`blocknb cache build FOLDER NOTEBOOK...` and `blocknb cache check FOLDER`: the administrator's side of a shared cache.

`build` runs notebooks with an empty private cache, and copies what they compile into the folder, readable by all users. A key covers the
installation of blocknb (names, sizes and times of its files), the tools and the features of the CPU. So the administrator builds with the
same installation and on the same machine as the users, and once more after an update.

`check` looks at the folder as a user's process does, and names each thing that such a process refuses. With `--fix` it takes write
permissions away from folders, and removes what others could have written: the content cannot be trusted any more.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from blocknb.runtime import cache, private_files
from blocknb.runtime.shared_cache import VARIABLE, administrators

CELL_SECONDS = 600  # longest time one cell may take
_READABLE, _SEARCHABLE = 0o644, 0o755


def build(folder: str, notebooks: Sequence[str]) -> int:
    """Runs notebooks and stores the kernels that the folder lacks. Cells that raise an error do not end a notebook, since exercises of a
    course are incomplete. The exit status is 1 if a notebook cannot be run, or the folder is not trusted."""
    root = os.path.abspath(folder)
    failed = False
    with tempfile.TemporaryDirectory(prefix="blocknb-build-") as private:
        for path in notebooks:
            try:
                errors = _run(Path(path), private, root)
            except Exception as error:  # an unreadable notebook, a kernel that died, a cell that took too long
                failed = True
                print(f"{path}: {type(error).__name__}: {error}", file=sys.stderr)
            else:
                print(f"{path}: ran" + (f", {errors} cells raised an error" if errors else ""))
        try:
            count = publish(private, root)
        except OSError as error:
            print(f"{root}: {error}", file=sys.stderr)
            return 1
    print(f"{count} new entries in {root}")
    return 1 if failed or check(root) else 0


def _run(path: Path, private: str, root: str) -> int:
    """Runs a notebook with a cache of its own above the shared one. Returns how many cells raised an error."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    environment = {**os.environ, "BLOCKNB_CACHE_DIR": private, "BLOCKNB_HISTORY": "0", "BLOCKNB_PROGRESS": "0"}
    environment[VARIABLE] = root if os.path.isdir(root) else ""  # what is there already is not compiled again
    place = {"metadata": {"path": str(path.absolute().parent)}}
    client = NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3", resources=place, allow_errors=True)
    client.execute(env=environment)
    outputs = [cell.get("outputs", []) for cell in notebook.cells]
    return sum(any(output["output_type"] == "error" for output in cell) for cell in outputs)


def publish(private: str, root: str) -> int:
    """Copies the entries of a private cache into a folder, readable by all. Returns how many. Raises OSError and UntrustedFolder."""
    count = 0
    _make_searchable(root)
    for name in cache.Cache(private).names():
        if not name.endswith(".bnb") or (data := private_files.read(private, name, cache.ENTRY_LIMIT)) is None:
            continue
        _make_searchable(os.path.join(root, os.path.dirname(name)))
        private_files.write(root, name, data, _READABLE)
        count += 1
    return count


def _make_searchable(folder: str) -> None:
    """Creates a folder in which all users may read, with any umask. An existing one keeps its mode."""
    if not os.path.isdir(folder):
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, _SEARCHABLE)


def check(folder: str, fix: bool = False) -> int:
    """Prints what users' processes refuse in a shared cache, and a line with its size. With `fix`, mends it first. Returns the exit status:
    1 if something is left."""
    root = os.path.realpath(folder)
    if not os.path.isdir(root):
        print(f"{folder}: there is no such folder", file=sys.stderr)
        return 1
    try:
        return _checked(root, fix)
    except OSError as error:  # a folder that this user may not list
        print(f"{error.filename or root}: {error.strerror}", file=sys.stderr)
        return 1


def _checked(root: str, fix: bool) -> int:
    for path, why in _findings(root) if fix else ():
        if why and (done := _mend(root, path)):
            print(f"{path}: {why}: {done}")
    left = entries = size = 0
    for path, why in _findings(root):
        if why:
            left += 1
            print(f"{path}: {why}")
        else:
            entries, size = entries + 1, size + os.lstat(path).st_size
    print(f"{root}: {entries} entries, {size / 1e6:.1f} MB, {left} problem{'s' * (left != 1)}")
    if left:
        again = "remove the folder, and build it again as root or as the user who has installed blocknb"
        print("->", again if fix else f"blocknb cache check --fix {root}")
    return 1 if left else 0


def _findings(root: str) -> Iterator[tuple[str, str]]:
    """The folders and files of a shared cache with what is wrong with each; a sound entry comes with "", a sound folder not at all."""
    if why := _wrong_folder(root):
        yield root, why
    for inner in sorted({f"{number:02x}" for number in range(256)}.intersection(os.listdir(root))):
        folder = os.path.join(root, inner)
        if why := _wrong_folder(folder):
            yield folder, why  # the caller may remove it
        if os.path.isdir(folder) and not os.path.islink(folder):
            for name in sorted(os.listdir(folder)):
                yield os.path.join(folder, name), _wrong_file(folder, name)


def _wrong_folder(path: str) -> str:
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        return "is not a folder"
    if why := private_files.distrusted(found, administrators()):
        return why
    return "" if found.st_mode & 0o005 == 0o005 else f"cannot be read by all users (mode {found.st_mode & 0o7777:04o})"


def _wrong_file(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    found = os.lstat(path)
    if not name.endswith(".bnb"):
        return "is no entry of a cache"
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    if why := private_files.distrusted(found, administrators()):
        return why
    if not found.st_mode & 0o004:
        return f"cannot be read by all users (mode {found.st_mode & 0o7777:04o})"
    with open(path, "rb") as file:
        data = file.read(cache.ENTRY_LIMIT + 1)
    key = os.path.basename(folder) + name.removesuffix(".bnb")
    return "" if len(data) <= cache.ENTRY_LIMIT and cache.unpack(key, data) is not None else "is damaged"


def _mend(root: str, path: str) -> str:
    """Corrects the mode of a trusted owner's folder, and removes all other things. Returns what it did, or "" if it could not.

    A file's mode is not corrected: others may have written it, or it may be a hard link to a secret of its owner.
    """
    found = os.lstat(path)
    try:
        own = found.st_uid in (os.geteuid(), 0, *administrators())
        if stat.S_ISDIR(found.st_mode) and own and root in (path, os.path.dirname(path)):
            os.chmod(path, _SEARCHABLE)
            return f"now has mode {_SEARCHABLE:04o}"
        if path == root:
            return ""
        if stat.S_ISDIR(found.st_mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)
        return "removed"
    except OSError as error:
        print(f"{path}: {error.strerror}", file=sys.stderr)
        return ""
