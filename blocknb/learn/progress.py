"""The progress of a learner: tries, hints, answers and passing sources, in one JSON file in the user's data folder.

An update reads the file, changes one entry and replaces the file, under a lock, so two notebooks lose nothing. A file that is not readable
is renamed, and a message names its new place. BLOCKNB_PROGRESS in the environment names another file. With BLOCKNB_PROGRESS=0, as for
autograding, the entries end with the process. The file is also what a teacher collects from a class (`class_report`).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

VERSION = 1
MOST_BYTES = 1 << 24
MOST_SOURCE = 100_000  # characters of a cell

_unsaved: dict[str, ItemProgress] = {}  # the entries of a process that keeps no file


@dataclass(frozen=True)
class ItemProgress:
    """The work on one exercise or prediction. `hash` is that of the exercise at the last try.

    `tries` counts checks up to the first that passed, and `hints` those that were shown. `passed` and `when` (the last try) are times in
    UTC, `source` is the cell that passed and `last` that of the last try. `answers` are the answers to a prediction, the first one first.
    `solution`: the solution was shown before the exercise was passed."""

    hash: str = ""
    tries: int = 0
    hints: int = 0
    passed: str = ""
    when: str = ""
    source: str = ""
    last: str = ""
    answers: tuple[str, ...] = field(default=())
    solution: bool = False

    def tried(self, key: str, passed: bool, source: str = "", answer: str = "") -> ItemProgress:
        """The entry after another try. An exercise that was passed stays passed."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        first = passed and not self.passed
        source = source[:MOST_SOURCE]
        return replace(
            self,
            hash=key,
            tries=self.tries + (not self.passed),
            passed=now if first else self.passed,
            when=now,
            source=source if passed else self.source,
            last=source or self.last,
            answers=(*self.answers, answer[:200]) if answer and not self.passed else self.answers,
        )


def path() -> Path:
    """The progress file: $BLOCKNB_PROGRESS, or `progress.json` in the data folder of the system."""
    if wanted := os.environ.get("BLOCKNB_PROGRESS", "").strip():
        return Path(wanted).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("blocknb", appauthor=False)) / "progress.json"


def is_kept() -> bool:
    """Whether a file keeps the progress: with BLOCKNB_PROGRESS=0, it ends with the process."""
    return os.environ.get("BLOCKNB_PROGRESS", "").strip() != "0"


def load() -> dict[str, ItemProgress]:
    """All entries by name. A damaged file is kept under another name, and stderr says where. If the file cannot be opened, stderr says
    why, and there are no entries."""
    if not is_kept():
        return dict(_unsaved)
    try:
        with _locked():
            return _load()
    except OSError as error:
        print(f"blocknb: your progress in {path()} cannot be read: {error.strerror or error}", file=sys.stderr)
        return {}


def of(name: str) -> ItemProgress:
    """The entry of an exercise or a prediction, which may be empty."""
    return load().get(name, ItemProgress())


def update(name: str, change: Callable[[ItemProgress], ItemProgress]) -> ItemProgress:
    """Changes one entry of the file and returns it. If the file cannot be written, stderr says why."""
    if not is_kept():
        _unsaved[name] = change(_unsaved.get(name, ItemProgress()))
        return _unsaved[name]
    try:
        with _locked():
            found = _load()
            found[name] = change(found.get(name, ItemProgress()))
            _write(found)
            return found[name]
    except OSError as error:
        print(f"blocknb: {path()} does not keep your progress: {error.strerror or error}", file=sys.stderr)
        return change(ItemProgress())


def parsed(data: bytes) -> dict[str, ItemProgress]:
    """The entries in the bytes of a progress file. Raises ValueError for anything else."""
    found = json.loads(data)
    items = found.get("items") if isinstance(found, dict) else None
    if not isinstance(items, dict) or found.get("version") != VERSION:
        raise ValueError("it is no progress file of this version of blocknb")
    return {str(name): _item(entry) for name, entry in items.items()}


def _item(entry: Any) -> ItemProgress:
    if not isinstance(entry, Mapping):
        raise ValueError("an entry is not an object")
    known = {f.name: f.default for f in fields(ItemProgress) if f.name in entry}
    made: dict[str, Any] = {n: tuple(entry[n]) if isinstance(entry[n], list) else entry[n] for n in known}
    wrong = [name for name, default in known.items() if type(made[name]) is not type(default)]
    if wrong or not all(isinstance(answer, str) for answer in made.get("answers", ())):
        raise ValueError(f"{' and '.join(wrong) or 'answers'} of an entry has another type")
    return ItemProgress(**made)


def _load() -> dict[str, ItemProgress]:
    """The entries of the file; none without a file. Raises OSError."""
    place = path()
    try:
        with open(place, "rb") as file:
            return parsed(file.read(MOST_BYTES))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        kept = _free(place)
        os.replace(place, kept)  # if that fails, nothing may be written over the file
        print(f"blocknb cannot read {place} ({error}): it is now {kept}, and a new file begins", file=sys.stderr)
        return {}


def _free(place: Path) -> Path:
    """A name next to a file that no file has."""
    number = 1
    while (found := place.with_name(f"{place.stem}.damaged-{number}{place.suffix}")).exists():
        number += 1
    return found


def _write(items: Mapping[str, ItemProgress]) -> None:
    place = path()
    place.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"version": VERSION, "items": {n: asdict(i) for n, i in items.items()}}, indent=1)
    descriptor, temporary = tempfile.mkstemp(prefix=".progress-", dir=place.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(temporary, place)
    except BaseException:
        os.unlink(temporary)
        raise


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Inside, no other process changes the file. Without locks (Windows, or a folder that is read-only), the last writer wins."""
    try:
        import fcntl

        path().parent.mkdir(parents=True, exist_ok=True)
        file = open(path().with_name(".progress.lock"), "w")  # noqa: SIM115 - its end is the end of the lock
    except (ImportError, OSError):
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
