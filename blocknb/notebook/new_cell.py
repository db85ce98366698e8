"""Opens text as a new cell of the notebook, for code that generates cells."""

from __future__ import annotations

import sys


def open_cell(text: str) -> str | None:
    """Puts a new cell with this text after the current one, and returns None; outside of IPython returns the text."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return text
    shell.set_next_input(text.rstrip("\n"))
    return None
