"""A cell and a sequence of cells, and their text form: the percent format of Jupytext, which editors run cell by cell.

A line `# %%` starts a cell. Words after it say what the fuzzer expects of the cell. `sane` means that it must succeed. `check` means that
it must succeed if every cell since the last check did. `interrupt=0.2` sends SIGINT after 0.2 seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

SETUP = "%load_ext blocknb\nimport numpy as np, blocknb, blocknb.language as tl\nfrom blocknb.cell_fuzz import inside"


@dataclass(frozen=True)
class FuzzCell:
    """One cell. `role` is "" (it may fail), "sane" or "check"; `interrupt` is the delay of SIGINT in seconds, or None."""

    code: str
    role: str = ""
    interrupt: float | None = None

    def text(self) -> str:
        words = ["# %%", *([self.role] if self.role else [])]
        words += [] if self.interrupt is None else [f"interrupt={self.interrupt:g}"]
        return f"{' '.join(words)}\n{self.code}\n"


@dataclass(frozen=True)
class CellSequence:
    """Cells that run in one shell, in order. `name` says where they come from."""

    cells: tuple[FuzzCell, ...]
    name: str = ""

    def text(self) -> str:
        return "".join(cell.text() for cell in self.cells)


def parse(text: str, name: str = "") -> CellSequence:
    """Reads the text form. Lines before the first cell are a comment."""
    cells: list[FuzzCell] = []
    head: list[str] = []
    body: list[str] | None = None

    def finish() -> None:
        if body is not None:
            role = next((word for word in head if word in ("sane", "check")), "")
            delay = next((float(word.partition("=")[2]) for word in head if word.startswith("interrupt=")), None)
            cells.append(FuzzCell("\n".join(body), role, delay))

    for line in text.removesuffix("\n").split("\n"):
        if line == "# %%" or line.startswith("# %% "):
            finish()
            head, body = line.split()[2:], []
        elif body is not None:
            body.append(line)
    finish()
    return CellSequence(tuple(cells), name)
