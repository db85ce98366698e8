"""The times of each run of a `%%torchkernels` cell: the trend over edits of a model. They are kept between sessions as the history of a
kernel is."""

from __future__ import annotations

import datetime
import difflib
import json
import uuid
from collections.abc import Mapping
from typing import Any

from blocknb.notebook import history_file
from blocknb.notebook.document import hash_of

KEPT = 60  # runs of a cell
_CELL = "cell"

#: The runs by cell, as a document holds them, and the newest text of each cell.
_runs: dict[str, list[dict[str, Any]]] = {}
_texts: dict[str, str] = {}


def add(cell: str, text: str, kernels: Any) -> list[dict[str, Any]]:
    """Adds the run of a cell with this id and text; returns all runs of the cell, the oldest first."""
    name = f"%%torchkernels {cell}"
    runs = _runs.setdefault(cell, _saved(name))
    change = _change(_texts.get(cell), text) if runs else ""
    _texts[cell] = text
    run = {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "change": change,
        **_figures(kernels),
    }
    runs.append(run)
    del runs[:-KEPT]
    settings = json.dumps({key: run[key] for key in ("change", "kernels", "launches", "bytes")})
    entry = {"id": uuid.uuid4().hex[:16], "version": hash_of(text), "what": _CELL, "settings": settings, "verdict": ""}
    history_file.save(name, {}, {entry["id"]: {**entry, "when": run["when"], "time": run["time"]}})
    return list(runs)


def _figures(kernels: Any) -> dict[str, Any]:
    """The sums over all launches: of bytes, and of the medians and quartiles of the times. A sum is None if a launch lacks the value."""
    launched = [k for k in kernels if k.launch is not None]
    times = [k.launch.time for k in launched]
    moved = [k.bytes for k in launched]
    return {
        "time": None if None in times else _sum(launched),
        "kernels": len({id(k.compiled) for k in launched}),
        "launches": sum(k.launches for k in launched),
        "bytes": None if None in moved else sum(k.bytes * k.launches for k in launched),
    }


def _sum(launched: list[Any]) -> dict[str, Any] | None:
    if not launched:
        return None
    first = launched[0].launch.time.entry
    sums = {name: sum(k.launch.time.entry[name] * k.launches for k in launched) for name in ("median", "low", "high")}
    return {**first, **{name: float(f"{value:.6g}") for name, value in sums.items()}}


def _saved(name: str) -> list[dict[str, Any]]:
    """The runs of earlier sessions."""
    return [found for run in history_file.load(name)[1].values() if (found := _restored(run)) is not None][-KEPT:]


def _restored(run: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        kept = json.loads(run["settings"])
        counts = {key: int(kept[key]) for key in ("kernels", "launches")}
        moved = None if kept["bytes"] is None else int(kept["bytes"])
        return {"when": run["when"], "change": str(kept["change"]), "time": run["time"], **counts, "bytes": moved}
    except (ValueError, TypeError, KeyError):  # a line of a damaged file
        return None


def _change(before: str | None, now: str) -> str:
    """ "+2 −1 lines", "same text", or "" if the text before is unknown."""
    if before is None:
        return ""
    lines = list(difflib.ndiff(before.splitlines(), now.splitlines()))
    added, removed = (sum(line[:2] == sign for line in lines) for sign in ("+ ", "- "))
    return f"+{added} −{removed} lines" if added or removed else "same text"
