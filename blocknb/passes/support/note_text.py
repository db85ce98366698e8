"""Phrases that the notes of several passes use: the source line of an op, and a number with its noun."""

from __future__ import annotations

from blocknb.ir.core import Op


def at_line(op: Op) -> str:
    """The place of an op in a note."""
    return f" at line {op.loc.line}" if op.loc else ""


def counted(n: int, what: str) -> str:
    """A number with its noun: "1 stage", "2 stages"."""
    return f"{n} {what}{'s' if n != 1 else ''}"
