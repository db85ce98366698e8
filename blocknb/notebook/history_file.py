"""Keeps the history of a kernel between sessions: one small file per notebook and kernel, in a folder of the user's data.

A file has a JSON object per line: `{"version": ...}` or `{"run": ...}`, the oldest first. An update reads the file, merges its own lines
and replaces the file, under a lock, so two processes lose nothing. Files are private (see `runtime.private_files`). The file of a kernel
has at most MOST_BYTES; the oldest runs go first, then the oldest versions. Without a notebook, such as in a script, nothing is kept.

BLOCKNB_HISTORY=0 in the environment switches this off; any other value names the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from blocknb.runtime import private_files
from blocknb.runtime.private_files import UntrustedFile

MOST_BYTES, MOST_FILES, MOST_RUNS = 1 << 18, 400, 200
#: The fields of a version and of a run that the page needs, with their types. A line without them is dropped.
_NONE = type(None)
_VERSION: dict[str, tuple[type, ...]] = {
    "version": (str,), "number": (int,), "note": (str,), "first": (str,), "first_line": (int,), "source": (str,),
    "constants": (dict,), "time": (dict, _NONE), "measurements": (int,), "rate": (dict, _NONE), "target": (str, _NONE),
    "registers": (int, _NONE), "shared_bytes": (int, _NONE), "spill_bytes": (int, _NONE), "ok": (bool, _NONE),
    "verdicts": (dict,),
}  # fmt: skip
_RUN: dict[str, tuple[type, ...]] = {
    "id": (str,), "version": (str,), "what": (str,), "settings": (str,), "when": (str,), "time": (dict, _NONE),
    "verdict": (str,),
}  # fmt: skip
_TIME: dict[str, tuple[type, ...]] = {
    "n": (int,), "cold": (bool, _NONE), "median": (int, float), "low": (int, float), "high": (int, float), "device": (str,),
}  # fmt: skip


def folder() -> str | None:
    """The folder of all histories, or None if they are switched off or there is no home folder."""
    wanted = os.environ.get("BLOCKNB_HISTORY", "").strip()
    if wanted == "0":
        return None
    if wanted:
        return wanted
    data = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(data, "blocknb", "history") if os.path.isabs(data) else None


def notebook() -> str | None:
    """The path of the notebook that runs this process, as far as its front end tells it; None for scripts and terminals."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return None
    if found := shell.user_ns.get("__vsc_ipynb_file__"):  # VS Code
        return str(found)
    name = os.environ.get("JPY_SESSION_NAME", "")  # Jupyter Server
    return os.path.join(shell.starting_dir, os.path.basename(name)) if name.endswith(".ipynb") else None


def _file(kernel: str) -> tuple[str, str] | None:
    """The folder and the name of the file of a kernel of this notebook."""
    root, path = folder(), notebook()
    if root is None or path is None:
        return None
    return root, hashlib.sha256(f"{os.path.realpath(path)}\0{kernel}".encode()).hexdigest()[:32] + ".jsonl"


def load(kernel: str) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """The versions of a kernel by key and its runs by id, from earlier sessions of this notebook, the oldest first."""
    place = _file(kernel)
    if place is None:
        return {}, {}
    try:
        return _parsed(private_files.read(*place, MOST_BYTES))
    except (OSError, UntrustedFile) as error:
        private_files.warn_once(place[0], f"blocknb does not read the history of {kernel}: {error}")
        return {}, {}


def save(kernel: str, versions: Mapping[str, Mapping[str, Any]], runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Merges versions (by key) and runs (by id) into the file of a kernel. Newer entries replace those with the same key."""
    place = _file(kernel)
    if place is None:
        return
    root, name = place
    try:
        with _locked(root):
            found = private_files.read(root, name, MOST_BYTES)
            if found is None:
                _drop_oldest_files(root)
            old_versions, old_runs = _parsed(found)
            private_files.write(root, name, _lines({**old_versions, **versions}, {**old_runs, **runs}))
    except (OSError, UntrustedFile) as error:
        private_files.warn_once(root, f"blocknb does not keep the history of {kernel}: {error}")


def _parsed(data: bytes | None) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    versions, runs = dict[str, dict[str, Any]](), dict[str, dict[str, Any]]()
    for line in (data or b"").decode(errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # a line of a damaged file
        version, run = (row.get("version"), row.get("run")) if isinstance(row, dict) else (None, None)
        if _is(version, _VERSION):
            versions[version["version"]] = version
        elif _is(run, _RUN):
            runs[run["id"]] = run
    return versions, runs


def _is(value: Any, fields: Mapping[str, tuple[type, ...]]) -> TypeGuard[dict[str, Any]]:
    """Whether a value has these fields, and the fields of a time in `time`."""
    return _has(value, fields) and (value["time"] is None or _has(value["time"], _TIME))


def _has(value: Any, fields: Mapping[str, tuple[type, ...]]) -> bool:
    return isinstance(value, dict) and all(name in value and isinstance(value[name], t) for name, t in fields.items())


def _lines(versions: dict[str, Any], runs: dict[str, Any]) -> bytes:
    """The lines of a file within its limits."""
    rows = [{"version": v} for v in sorted(versions.values(), key=lambda v: v["number"])]
    newest = list(runs.values())[-MOST_RUNS:]
    texts = [json.dumps(row, ensure_ascii=False) for row in (*rows, *({"run": run} for run in newest))]
    sizes = [len(text.encode()) + 1 for text in texts]
    order = [*range(len(rows), len(texts)), *range(len(rows))]  # what goes first
    total, dropped = sum(sizes), set[int]()
    for place in order:
        if total <= MOST_BYTES:
            break
        total -= sizes[place]
        dropped.add(place)
    return "".join(f"{text}\n" for place, text in enumerate(texts) if place not in dropped).encode()


def _drop_oldest_files(root: str) -> None:
    """Makes room for one more file."""
    files = sorted(Path(root).glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    for path in files[: max(0, len(files) - MOST_FILES + 1)]:
        private_files.remove(root, path.name)


@contextlib.contextmanager
def _locked(root: str) -> Iterator[None]:
    """Inside, no other process of this user changes the histories. Windows has no such lock, so there the last writer wins."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    private_files.write(root, ".made", b"")  # makes the folder, and refuses one that others may change
    descriptor = os.open(os.path.join(root, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # releases the lock
