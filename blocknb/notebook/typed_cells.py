"""Lets a terminal tell when a typed `%%blockkernel` cell is complete, so that Enter begins a new line instead of running the first one.

Terminal IPython and `jupyter console` ask `TransformerManager.check_complete` after each line. It applies our input transformer, which
turns the first line into a complete statement, so IPython would run that line alone. IPython's rule for other cell magics, a blank line,
would end the cell within open brackets, and would not indent after a colon. So a cell of ours follows the rule of its body, which is
Python, and ends with a blank line.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

#: The status of a text ("complete", "incomplete" or "invalid"), and the indentation of its next line if it is incomplete.
Completeness = tuple[str, int | None]


def completeness(plain: Callable[[str], Completeness], is_ours: Callable[[str], bool], cell: str) -> Completeness:
    """Whether a cell is complete. `plain` decides about Python, and `is_ours` recognizes the first line of our cells."""
    first, _, body = cell.partition("\n")
    if not is_ours(first):
        return plain(cell)
    last = body.rpartition("\n")[2]
    if not body.strip():
        return ("complete", None) if "\n" in body else ("incomplete", 0)
    status, indent = plain(body)
    if status == "complete" and last.strip():
        return "incomplete", len(last) - len(last.lstrip())
    return status, indent


def install(shell: Any, is_ours: Callable[[str], bool]) -> None:
    """Makes a shell use `completeness`."""
    manager = shell.input_transformer_manager
    manager.check_complete = functools.partial(completeness, manager.check_complete, is_ours)
