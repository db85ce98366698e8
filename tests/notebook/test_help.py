"""Shift-Tab and completion in a notebook: in a kernel's cell, after `tl.`, and on an imported name."""

from __future__ import annotations

import re

import pytest
from notebook.conftest import SETUP

CELL = """%%blockkernel
import blocknb, blocknb.language as tl
from blocknb.language import load

@blocknb.kernel
def twice(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) * 2)
"""


@pytest.fixture(scope="module")
def shell():
    from IPython.core.interactiveshell import InteractiveShell

    found = InteractiveShell.instance()
    for line in SETUP.strip().splitlines():
        found.run_cell(line, silent=True)
    yield found
    found.run_line_magic("unload_ext", "blocknb")
    InteractiveShell.clear_instance()


def shown(shell, cell: str, before: str) -> str:
    """The help of Shift-Tab with the cursor after a text of the cell."""
    from IPython.utils.tokenutil import token_at_cursor

    at = cell.index(before) + len(before)
    name = token_at_cursor(cell, at)
    text = shell.object_inspect_mime(name, detail_level=0)["text/plain"]
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize(
    ("before", "signature", "example"),
    [
        ("tl.load", "load(", "tl.load(a_ptr + i)  # [0.0, 1.0, 2.0, 3.0]"),
        ("tl.store", "store(", "tl.store(out_ptr + i, i * 10, mask=i > 1)"),
        ("i = tl.arange", "arange(start, end)", "tl.arange(0, 8)  # [0, 1, 2, 3, 4, 5, 6, 7]"),
    ],
)
def test_shift_tab_shows_the_signature_and_the_example_of_a_name(shell, before, signature, example):
    text = shown(shell, CELL, before)
    assert signature in text
    assert example in text


def test_the_names_of_the_language_complete_in_a_cell_of_a_kernel(shell):
    for typed, wanted in (("tl.lo", "load"), ("tl.atomic_", "atomic_cas"), ("tl.libdevice.ac", "acos")):
        cell = CELL + f"    y = {typed}"
        found = shell.Completer.completions(cell, len(cell))
        assert wanted in {c.text.split(".")[-1] for c in found}
