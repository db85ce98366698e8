"""`blocknb cache build FOLDER NOTEBOOK...` and `blocknb cache check FOLDER`: the administrator's side of a shared cache.

`build` runs notebooks with an empty private cache, and copies what they compile into the folder, readable by all users. A key covers the
installation of blocknb (names, sizes and times of its files), the tools and the features of the CPU. So the administrator builds with the
same installation and on the same machine as the users, and once more after an update.

`check` looks at the folder as a user's process does, and names each thing that such a process refuses. With `--fix` it takes write
permissions away from folders, and removes what others could have written: the content cannot be trusted any more. Root may run it on
folders that others could write to. So it changes a folder through a descriptor whose owner it has checked, and never follows a symbolic
link.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from blocknb.runtime import cache, private_files
from blocknb.runtime.private_files import UntrustedFile
from blocknb.runtime.shared_cache import VARIABLE, administrators

CELL_SECONDS = 600  # longest time one cell may take
_READABLE, _SEARCHABLE = 0o644, 0o755
_INNER = re.compile("[0-9a-f]{2}")  # the folders of a cache


def build(folder: str, notebooks: Sequence[str]) -> int:
    """Runs notebooks and stores the kernels that the folder lacks. Cells that raise an error do not end a notebook, since exercises of a
    course are incomplete. The exit status is 1 if a notebook cannot be run, or the folder is not trusted."""
    root = os.path.abspath(folder)
    failed = False
    if why := _refusal(root):
        print(why, file=sys.stderr)
        return 1
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
    """Copies the compiled kernels of a private cache into a folder, readable by all. Returns how many. Raises OSError and UntrustedFolder.

    An entry without code is the choice of an autotuner. It stays private: each user's process measures on its own CPUs.
    """
    count = 0
    private_files.make_folder(root, _SEARCHABLE)  # also if there is nothing to copy
    for name in cache.Cache(private).names():
        if not name.endswith(".bnb") or (data := private_files.read(private, name, cache.ENTRY_LIMIT)) is None:
            continue
        entry = cache.unpack(_key(name), data)
        if entry is not None and entry.blobs:
            private_files.write(root, name, data, _READABLE, administrators())
            count += 1
    return count


def _key(name: str) -> str:
    return name.replace("/", "").removesuffix(".bnb")


def _refusal(root: str) -> str:
    """Why a folder is not the place of a shared cache, in one line; "" for one that is empty or does not exist."""
    if not hasattr(os, "geteuid"):
        return f"{root}: Windows has no owners and modes to check, so it has no shared caches"
    try:
        foreign = sorted(name for name in os.listdir(root) if not _INNER.fullmatch(name))
    except FileNotFoundError:
        return ""
    except OSError as error:  # a file, or a folder that this user may not list
        return f"{root}: {error.strerror}"
    if not foreign:
        return ""
    return f"{root}: is not the folder of a cache, since it contains {foreign[0]!r}; name a new folder"


def check(folder: str, fix: bool = False) -> int:
    """Prints what users' processes refuse in a shared cache, and a line with its size. With `fix`, repairs it first. Returns the exit
    status: 1 if something is left, or if this is not the folder of a cache."""
    root = os.path.realpath(folder)
    try:
        why = f"{folder}: there is no such folder" if not os.path.isdir(root) else _refusal(root)
        if not why:
            return _checked(root, fix)
        print(why, file=sys.stderr)
    except OSError as error:  # a folder that this user may not list
        print(f"{error.filename or root}: {error.strerror or error}", file=sys.stderr)
    return 1


def _checked(root: str, fix: bool) -> int:
    for name, why in _findings(root) if fix else ():
        if why and (done := _repair(root, name)):
            print(f"{_path(root, name)}: {why}: {done}")
    left = entries = size = 0
    for name, why in _findings(root):
        if why:
            left += 1
            print(f"{_path(root, name)}: {why}")
        else:
            entries, size = entries + 1, size + os.lstat(_path(root, name)).st_size
    closed = list(_closed_parents(root))
    for parent in closed:
        print(f"{parent}: cannot be searched by all users, so they cannot reach the cache: chmod o+x {parent}")
    problems = left + len(closed)
    print(f"{root}: {entries} entries, {size / 1e6:.1f} MB, {problems} problem{'s' * (problems != 1)}")
    if left:
        again = "remove the folder, and build it again as root or as the user who has installed blocknb"
        print("->", again if fix else f"blocknb cache check --fix {root}")
    return 1 if problems else 0


def _path(root: str, name: str) -> str:
    return os.path.join(root, name) if name else root


def _closed_parents(root: str) -> Iterator[str]:
    """The folders around the cache in which other users may not look up a name."""
    while (parent := os.path.dirname(root)) != root:
        root = parent
        if not os.stat(root).st_mode & 0o001:
            yield root


def _findings(root: str) -> Iterator[tuple[str, str]]:
    """The folders and files of a shared cache, relative to it, with what is wrong with each; "" as the name is the cache itself.

    A sound entry comes with "", a sound folder not at all. The caller may repair or remove what it gets. Folders that are not trusted are
    not searched: their names can change at any time.
    """
    if why := _wrong_folder(root):
        yield "", why
    if not _trusted(root):
        return
    for inner in sorted(os.listdir(root)):
        folder = os.path.join(root, inner)
        if why := _wrong_folder(folder):
            yield inner, why
        for name in sorted(os.listdir(folder)) if _trusted(folder) else ():
            yield f"{inner}/{name}", _wrong_file(root, f"{inner}/{name}")


def _trusted(folder: str) -> bool:
    try:
        found = os.lstat(folder)
    except FileNotFoundError:  # the caller has removed it
        return False
    return stat.S_ISDIR(found.st_mode) and not private_files.distrusted(found, administrators())


def _wrong_folder(path: str) -> str:
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        return "is not a folder"
    if why := private_files.distrusted(found, administrators()):
        return why
    return "" if found.st_mode & 0o005 == 0o005 else f"cannot be read by all users (mode {found.st_mode & 0o7777:04o})"


def _wrong_file(root: str, name: str) -> str:
    if not name.endswith(".bnb"):
        return "is no entry of a cache"
    try:
        data = private_files.read(root, name, cache.ENTRY_LIMIT, administrators(), touch=False)
    except UntrustedFile as error:
        return str(error).removeprefix(f"{os.path.basename(name)} ")
    if data is None:
        return "has disappeared during the check"
    mode = os.lstat(os.path.join(root, name)).st_mode
    if not mode & 0o004:
        return f"cannot be read by all users (mode {mode & 0o7777:04o})"
    return "" if cache.unpack(_key(name), data) is not None else "is damaged"


def _repair(root: str, name: str) -> str:
    """Corrects the mode of a trusted owner's folder, and removes all other things. Returns what it did, or "" if it could not.

    A file's mode is not corrected: others may have written it, or it may be a hard link to a secret of its owner.
    """
    path = _path(root, name)
    if "/" not in name:
        try:
            private_files.set_mode(path, _SEARCHABLE, administrators())
            return f"now has mode {_SEARCHABLE:04o}"
        except OSError as error:  # another user's folder, or no folder
            if not name:
                print(f"{path}: {error.strerror or error}", file=sys.stderr)
                return ""
    private_files.remove(root, name, administrators())
    if os.path.lexists(path):
        print(f"{path}: cannot be removed", file=sys.stderr)
        return ""
    return "removed"
