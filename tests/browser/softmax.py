"""The notebook of most browser tests: three versions of a softmax. The first one is wrong, the others are correct.

`fresh` compiles a version in the test process, with its own cache. Cards must agree with the result.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from browser import Page
from laboratory import Card, Lab, Notebook

SETUP = """\
%load_ext blocknb
import numpy as np
import blocknb
import blocknb.language as tl

rows, columns = 64, 832
x = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
out = np.empty_like(x)
exact = np.exp(x.astype(np.float64))
exact /= exact.sum(axis=1, keepdims=True)"""

#: Line 1 of the cell is the magic. The masked elements are 0, which is wrong for a maximum.
WRONG = """\
@blocknb.kernel
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0.0)
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + at, powers / tl.sum(powers, axis=0), mask=inside)
"""
RIGHT = WRONG.replace("other=0.0", 'other=-float("inf")')
COMMENTED = RIGHT.replace("    row = ", "    # one row, one program\n    row = ")
CHECK = '--check "np.allclose(out, exact, atol=1e-6)"'
#: The compiler's number of warps makes several warps share a row, so the code has barriers.
LAUNCH = "softmax[rows,](x, out, columns, BLOCK=1024{options});"
TYPES = ("*fp32:16", "*fp32:16", "i32:16")


def cell(source: str, magic: str = "", options: str = "") -> str:
    return f"%%blockkernel {magic}\n{source}\n{LAUNCH.format(options=options)}"


class Softmax:
    """Cells 1 to 3 are the versions: checked and wrong; checked and correct, without a pass; not checked, but measured."""

    def __init__(self, lab: Lab, page: Page):
        self.lab, self.page = lab, page
        measured = "--without pointers --baseline np.exp(x)"
        cells = [SETUP, cell(WRONG, CHECK), cell(RIGHT, CHECK, ", without=('coalesce',)"), cell(COMMENTED, measured)]
        self.path = lab.write("softmax.ipynb", cells)
        self.notebook = Notebook(page, self.path)
        self.notebook.run(0, 1, 2, 3)
        for version in (1, 2, 3):
            self.notebook.complete(version)

    def front(self) -> Notebook:
        self.notebook = Notebook(self.page, self.path)
        return self.notebook

    def card(self, version: int) -> Card:
        """Returns the live card of a version. Versions count from 1."""
        card = self.notebook.card(version)
        card.until_state("live")
        return card

    def line_of(self, version: int, text: str) -> int:
        """Returns the number of the first line that contains a text in the cell of a version."""
        lines = self.notebook.source(version).split("\n")
        return next(i for i, line in enumerate(lines, 1) if text in line)


def fresh(folder: Path, source: str, target: str = "sm_90a", **values: Any) -> Any:
    """Compiles a version of the softmax in this process and returns its trace. `values` are constants, options and `without`."""
    file = folder / "fresh_kernel.py"
    file.write_text("import blocknb, blocknb.language as tl\n" + source, "utf-8")  # keeps the line numbers of the cell
    spec = importlib.util.spec_from_file_location("fresh_kernel", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.softmax.trace(*TYPES, target=target, **{"BLOCK": 1024, **values})


def listing(stage: Any) -> str:
    """Returns the IR of a stage as a card shows it: without the comments with op ids."""
    return re.sub(r"\s+// \d+( was [\d,]+)?( \(.*\))?$", "", stage.text, flags=re.M).strip("\n")


def machine_code(trace: Any) -> str:
    """Returns the PTX of a trace as a card shows it: without debug information."""
    from blocknb.codegen.sass import assembly_lines

    return "\n".join(line.text for line in assembly_lines(trace.ptx))


def milliseconds(text: str) -> float:
    """Parses a time of a card, such as "12.5 µs" or "12.5 µs (median of 30, warm, ...)"."""
    number, unit = text.split()[:2]
    return float(number) * {"ns": 1e-6, "µs": 1e-3, "ms": 1}[unit]
