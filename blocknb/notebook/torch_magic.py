"""`%%torchkernels`: a cell that runs as it is, with a table below its output of the kernels that its compiled models launched.

An input transformer replaces the first line by a statement that opens a record, as with `%%blockkernel`. Every other line stays in its
place. The shell's event at the end of the cell closes the record and shows the table, even after an error. torch is imported when the
first such cell runs.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import Any

from IPython.core.error import UsageError

from blocknb.runtime import notebook_methods


def start_line(lines: list[str]) -> list[str]:
    """The input transformer: `%%torchkernels` on the first line becomes a call that opens a record."""
    found = re.match(r"%%torchkernels(?![\w?])[ \t]*(.*?)\s*$", lines[0]) if lines else None
    if found is None or found[1].endswith("?"):
        return lines
    return [f"get_ipython().run_line_magic('torchkernels', {found[1]!r})\n", *lines[1:]]


class TorchKernelsMagic:
    """The magic of a shell. `open` has the records of the cells that run, the innermost last, with the number of cells around each."""

    def __init__(self, shell: Any):
        self.shell, self.depth = shell, 0
        self.open: list[tuple[int, ExitStack, Any]] = []
        self.cells: list[tuple[str, str]] = []  # the id and the text of each running cell

    def line(self, line: str) -> None:
        """Open a record of the launches of compiled models; the first line of a `%%torchkernels` cell does it."""
        if line.strip():
            raise UsageError(f"%%torchkernels has no options; it got {line.strip()!r}")
        try:
            import torch  # noqa: F401
        except ImportError:
            raise UsageError("%%torchkernels needs PyTorch: pip install torch") from None
        stack = ExitStack()
        record = stack.enter_context(notebook_methods.call("recorded", merged=True))
        self.open.append((self.depth, stack, record))

    def cell(self, line: str, cell: str) -> None:
        """Run the cell as it is, and show the kernels that its models launched, if `torch.compile(model, backend="blocknb")` made them.

        Launches of equal code, grid, shapes and numbers share a row of the table. A row has the lines of the program, the ATen
        operators, the time, its share, the bytes, and the generated source. The first of equal launches is measured before it runs,
        so the cell takes longer.
        """
        self.shell.run_cell(f"%%torchkernels {line}\n{cell}").raise_error()

    def pre_run_cell(self, info: Any) -> None:
        self.depth += 1
        self.cells.append((str(info.cell_id or ""), str(info.raw_cell)))

    def post_run_cell(self, result: Any) -> None:
        while self.open and self.open[-1][0] >= self.depth:
            _, stack, record = self.open.pop()
            stack.close()
            self._show(record.kernels)
        self.depth = max(self.depth - 1, 0)
        del self.cells[self.depth :]

    def _show(self, kernels: Any) -> None:
        if len(kernels):
            cell, text = self.cells[-1] if self.cells else ("", "")
            if cell:
                from blocknb.notebook import torch_trend

                kernels.trend = torch_trend.add(cell, text, kernels)
            self.shell.display_pub.publish(*self.shell.display_formatter.format(kernels))
        else:
            print('%%torchkernels: no kernel of blocknb was launched; compile the model with backend="blocknb"')


def register(shell: Any) -> None:
    """Registers the magic with a shell."""
    magic = TorchKernelsMagic(shell)
    shell.register_magic_function(magic.line, "line", "torchkernels")
    shell.register_magic_function(magic.cell, "cell", "torchkernels")
    shell.events.register("pre_run_cell", magic.pre_run_cell)
    shell.events.register("post_run_cell", magic.post_run_cell)
    transforms = shell.input_transformers_cleanup
    names = [getattr(t, "__name__", "") for t in transforms]
    transforms.insert(names.index("cell_magic") if "cell_magic" in names else len(transforms), start_line)
