"""`kernel.history()`: the versions of a kernel as a table and a plot, with the runs that measured them."""

from __future__ import annotations

from typing import Any

from blocknb.notebook import history, numbers
from blocknb.notebook.measurements import Measurements
from blocknb.runtime.kernel import Kernel

BUDGET = 60_000  # characters of the sources


class VersionHistory(Measurements):
    """The versions of a kernel now, the oldest first; `runs` are their measurements. Both include earlier sessions of the notebook."""

    key = "history"

    def __init__(self, kernel: Kernel):
        self.kernel = kernel.__name__
        self.versions = history.all_versions(kernel)
        self.runs = history.runs(kernel)
        made = history.part(kernel, "", {}, BUDGET) or {"history": {"versions": []}, "blobs": {}}
        self._part, self._blobs = made["history"], made["blobs"]

    @property
    def part(self) -> dict[str, Any]:
        found: dict[str, Any] = self._part
        return found

    def records(self) -> list[dict[str, Any]]:
        """A row for each run: the number of its version, what measured it, its settings, `ms` with its quartiles, and its verdict."""
        found = []
        for run in self._part.get("runs", []):
            time = run["time"] or {}
            row = {name: run[name] for name in ("version", "what", "settings", "when")}
            row |= {"ms": time.get("median"), "ms_low": time.get("low"), "ms_high": time.get("high")}
            found.append({**row, "n": time.get("n"), "verdict": run["verdict"], "device": time.get("device", "")})
        return found

    def text(self) -> str:
        """A line for each version."""
        if not self.versions:
            return f"No cell has measured {self.kernel} yet."
        said = {True: "correct", False: "wrong", None: "not checked"}
        lines = [
            f"{self.kernel}: {numbers.plural(len(self.versions), 'version')}, {numbers.plural(len(self.runs), 'run')}"
        ]
        for version in self.versions:
            time = "not run" if version.time is None else numbers.timing(version.time)
            earlier = ", in an earlier session" if version.card is None else ""
            lines.append(f"  {version.number}  {version.note or 'first'}: {time}, {said[version.ok]}{earlier}")
        return "\n".join(lines)

    def _document(self) -> dict[str, Any]:
        return {**super()._document(), "blobs": self._blobs}
