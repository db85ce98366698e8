"""Prints the rows of a benchmark as a plain table."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def show(title: str, rows: list[Row]) -> None:
    """Prints a table with a column for each key of the rows."""
    print(f"\n{title}")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(c, "")) for c in columns] for row in rows]
    widths = [max(len(c), *(len(line[i]) for line in cells)) for i, c in enumerate(columns)]
    for line in [columns, *cells]:
        print(
            "  "
            + "  ".join(
                text.ljust(w) if i == 0 else text.rjust(w) for i, (text, w) in enumerate(zip(line, widths, strict=True))
            )
        )


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
