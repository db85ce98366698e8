"""The document of a changed knob or an edited stage whose compilation failed or was interrupted: the passes that ran, and why it ended.

The knobs keep the values that the user asked for. The notebook saves the card of the run cell, with a sentence on the failed change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blocknb.errors import CompilationInterrupted, KernelError
from blocknb.notebook import document, failed_compile, knobs
from blocknb.notebook.card import Card
from blocknb.trace import Trace


def shown(
    card: Card, error: KernelError | CompilationInterrupted, trace: Trace, wanted: Mapping[str, Any]
) -> dict[str, Any]:
    """The document, with the part "modified", which says what was asked for. `wanted` are the settings of the knobs; {} for an edit."""
    made: dict[str, Any] = failed_compile.bundle(error, trace)[document.MIME]
    offered = knobs.offered(card)
    part: dict[str, Any] = {
        "settings": _settings(offered, wanted) or "an edited stage",
        "verdict": "unmeasured",
        "outputs": "",
    }
    part |= {"text": f"✗ {failed_compile.reason(error)}", "ratio": None, "cell": None, "now": None, "notes": []}
    return {**made, "knobs": _with(offered, wanted), "modified": part}


def _settings(offered: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The requested settings as a text: "BLOCK=512, num_warps=8, without coalesce"."""
    values = {knob["name"]: knob["value"] for knob in offered["constants"]}
    found = [f"{name}={value!r}" for name, value in wanted.get("constants", {}).items() if values.get(name) != value]
    for name in ("num_warps", "num_stages"):
        if name in wanted and wanted[name] is not None and wanted[name] != offered[name]["value"]:
            found.append(f"{name}={wanted[name]}")
    off = {one["name"] for one in offered["passes"] if not one["on"]}
    found += [f"without {name}" for name in sorted(set(wanted.get("without", off)) - off)]
    return ", ".join(found)


def _with(offered: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs of the run cell at the values that were asked for."""
    made = dict(offered)
    constants = wanted.get("constants", {})
    made["constants"] = [{**knob, "value": constants.get(knob["name"], knob["value"])} for knob in offered["constants"]]
    for name in ("num_warps", "num_stages"):
        if wanted.get(name) is not None:
            made[name] = {**offered[name], "value": int(wanted[name]), "named": True}
    off = {one["name"] for one in offered["passes"] if not one["on"]}
    made["passes"] = [{**one, "on": one["name"] not in wanted.get("without", off)} for one in offered["passes"]]
    return made
