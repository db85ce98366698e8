"""The base of everything that was measured: a sweep, a benchmark, a roofline and a history are drawn, tabulated and saved in one way.

A subclass has a `part`, which is what a document holds, and `records`, which are its rows. The page, Matplotlib, pandas and the CSV file
all take their numbers from these two.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, ClassVar

from blocknb.errors import LaunchError
from blocknb.notebook import document, plots, static_plots
from blocknb.notebook.html import marked
from blocknb.runtime import whole_files


class Measurements:
    """Measured times. It displays itself in a notebook; `plot`, `to_pandas` and `to_csv` take it elsewhere.

    `key` is the name of its part in a document."""

    key: ClassVar[str]
    kernel: str

    @property
    def part(self) -> dict[str, Any]:
        """The measurements as a document holds them."""
        raise NotImplementedError

    def records(self) -> list[dict[str, Any]]:
        """One row per measured time. Times are in milliseconds; None stands for what was not measured."""
        raise NotImplementedError

    def text(self) -> str:
        """A plain table."""
        raise NotImplementedError

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draws into Matplotlib axes and returns them; without `ax`, into a new figure of pyplot, which a notebook shows.

        A sweep takes the options `show` ("time" or "rate"), `xscale` and `yscale` ("linear" or "log"), and, for two axes, `series` (a
        label). Save a figure for a paper with `ax.figure.savefig("sweep.pdf")`. Raises LaunchError without Matplotlib, and ValueError
        for an option that does not fit."""
        part = self.part
        if not plots.drawable(self.key, part):
            raise LaunchError(f"this {self.key} has nothing to draw", hint="print it to see its notes")
        try:
            axes = plots.own_axes() if ax is None else ax
        except ImportError:
            raise LaunchError("plot() needs Matplotlib", hint="run pip install matplotlib") from None
        plots.DRAWN[self.key](part, axes, **options)
        return axes

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame. Raises LaunchError without pandas."""
        try:
            import pandas
        except ImportError:
            hint = "run pip install pandas, or use to_csv(path) or records()"
            raise LaunchError("to_pandas() needs pandas", hint=hint) from None
        return pandas.DataFrame(self.records())

    def to_csv(self, path: str | Path) -> Path:
        """Writes the rows to a CSV file with a head, in UTF-8; returns its path."""
        rows, file = self.records(), Path(path)
        names = list(dict.fromkeys(name for row in rows for name in row))
        stream = io.StringIO(newline="")
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(rows)
        whole_files.write_text(file, stream.getvalue())
        return file

    def _document(self) -> dict[str, Any]:
        """The document that the page draws."""
        made: dict[str, Any] = {"schema": document.SCHEMA, "kind": self.key, "kernel": self.kernel, "version": ""}
        made |= {"facts": [], "launches": [], "views": [], "blobs": {}, "left_out": []}
        made["source"] = {"file": "", "first_line": 1, "text": "", "hash": ""}
        return {**made, self.key: self.part}

    def __repr__(self) -> str:
        """The table, cut to a few lines: `text()` has all of them."""
        lines = self.text().split("\n")
        rest = [f"and {len(lines) - MOST_LINES} more lines: print(result.text())"] if len(lines) > MOST_LINES else []
        return "\n".join([*lines[:MOST_LINES], *rest])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        text = repr(self)
        page = f"{static_plots.figures({self.key: self.part})}<pre>{marked(text)}</pre>"
        return {
            "text/plain": text,
            "text/html": page,
            **plots.images({self.key: self.part}),
            document.MIME: self._document(),
        }


MOST_LINES = 24  # of the text in an output
