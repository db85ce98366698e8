"""Measures how long a user waits: from Shift-Enter to the card, and from the move of a slider to the updated card.

    python tests/browser/card_timing.py [ROUNDS] [--against CHECKOUT]

The kernels are softmax, add and a matrix product, including their GPU code. "cold" is a new kernel process with an empty cache of compiled
code. "from cache" is a new process with a full cache, and "run again" the same process. The slider moves to values that were not compiled
before. A card counts as shown in the frame after its views have their text. The output is the median over the rounds, with all times. With
`--against`, the rounds of another checkout and of this one take turns.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from browser import Browser, Page, find
from laboratory import ROOT, Lab, Notebook

SETUP = """\
%load_ext blocknb
import numpy as np
import blocknb
import blocknb.language as tl

rows, columns = 2048, 960
BLOCK = blocknb.next_power_of_2(columns)
x = np.random.standard_normal((rows, columns)).astype(np.float32)
out = np.empty_like(x)"""
CELL = """\
%%blockkernel
@blocknb.kernel
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + at, powers / tl.sum(powers, axis=0), mask=inside)


softmax[rows,](x, out, columns, BLOCK=BLOCK);"""
ADD = """\
%%blockkernel
@blocknb.kernel
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


add[lambda c: (blocknb.cdiv(x.size, c["BLOCK"]),)](x, x, out, x.size, BLOCK=1024);"""
PRODUCT = """\
%%blockkernel
from blocknb.bench.suite.steps import STEPS, matmul, run_step
a = np.zeros((256, 256), np.float16)
result = run_step(matmul, STEPS[-1], a, a, a.copy())"""
SOFTMAX_CELL, ADD_CELL, PRODUCT_CELL = 1, 2, 3

#: The wanted medians in seconds, on a quiet machine with 2 cores.
WANTED = {"cold": 0.25, "from cache": 0.18, "run again": 0.12, "slider, add": 0.30, "slider, product": 1.0}

#: The milliseconds from the key event to the frame after `seen` first returns true.
TIMED = """(seen) => new Promise((resolve) => {
  const check = (0, eval)(`(${seen})`);
  let begin;
  addEventListener('keydown', () => { begin = performance.now(); watch(); }, { capture: true, once: true });
  const watch = () => {
    if (check()) {
      requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - begin)));
    } else {
      requestAnimationFrame(watch);
    }
  };
  window.timed = undefined;
}).then((time) => { window.timed = time; })"""


def timed(page: Page, key: str, seen: str) -> float:
    """Returns the seconds from a key press to the frame that shows its effect."""
    page.run(f"(seen) => void ({TIMED})(seen)", seen)
    page.press(key)
    return page.until("() => window.timed") / 1000


PAINTED = """() => {
  const card = document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden) .bnb-card');
  return card && card.querySelector('.cm-content[aria-label="Machine code"]')?.textContent.includes('.target sm_90a');
}"""


def first_card(notebook: Notebook, lab: Lab, cold: bool) -> float:
    """Times one card in a new kernel."""
    page = notebook.page
    page.run("() => jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    notebook.restart()
    if cold:
        shutil.rmtree(lab.place / "cache", ignore_errors=True)
    notebook.run(0)
    return shift_enter(notebook)


def repeated(notebook: Notebook) -> float:
    """Times the same card again in the same kernel."""
    notebook.page.run("() => jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    return shift_enter(notebook)


def shift_enter(notebook: Notebook) -> float:
    notebook.show(SOFTMAX_CELL)
    notebook.page.run("() => blocknb.cell(1).editor.focus()")
    return timed(notebook.page, "Shift+Enter", PAINTED)


def moved(notebook: Notebook, cell: int, key: str, value: int) -> float:
    """Times one move of the slider for warps: to the frame that shows the new value in the table of changes."""
    slider = notebook.card(cell).panel("[data-knob='num_warps']")
    slider.focus()
    seen = f"""() => {{
      const rows = document.querySelectorAll('.jp-Cell[data-windowed-list-index="{cell}"] .bnb-card .bnb-table tbody tr');
      const row = [...rows].find((row) => row.querySelector('th').textContent === 'num_warps');
      return row.querySelectorAll('td')[1].textContent.replace(' ◂', '') === '{value}';
    }}"""
    return timed(notebook.page, key, seen)


def slider(notebook: Notebook, cell: int) -> list[float]:
    """Times the moves to all numbers of warps that were not compiled before: those above the present one, then those below."""
    notebook.run(cell)
    notebook.complete(cell).open("Knobs")
    knob = notebook.document(cell)["knobs"]["num_warps"]
    above = [n for n in knob["choices"] if n > knob["value"]]
    below = [n for n in knob["choices"] if n < knob["value"]]
    moves = [("ArrowRight", n) for n in above] + [("ArrowRight" if i else "Home", n) for i, n in enumerate(below)]
    return [moved(notebook, cell, *move) for move in moves]


class Setting:
    """A checkout in a server and a page of its own, with the times found so far."""

    def __init__(self, name: str, root: Path, place: Path, browser: Browser):
        self.name, self.found = name, {kind: list[float]() for kind in WANTED}
        compileall.compile_dir(root / "blocknb", quiet=2)  # pip does this, too; otherwise each process compiles Python
        self.lab = Lab(place, root=root)
        cells = [SETUP, CELL, ADD, PRODUCT]
        self.notebook = Notebook(self.lab.page(browser), self.lab.write("timing.ipynb", cells))
        first_card(self.notebook, self.lab, cold=True)  # the first card of a page also loads its code

    def round(self) -> None:
        """One card of each kind."""
        self.found["cold"].append(first_card(self.notebook, self.lab, cold=True))
        self.found["from cache"].append(first_card(self.notebook, self.lab, cold=False))
        self.found["run again"].append(repeated(self.notebook))

    def sliders(self) -> None:
        """All moves, in a new kernel process with an empty cache."""
        self.notebook.restart()
        shutil.rmtree(self.lab.place / "cache", ignore_errors=True)
        self.notebook.run(0)
        self.found["slider, add"] += slider(self.notebook, ADD_CELL)
        self.found["slider, product"] += slider(self.notebook, PRODUCT_CELL)


def table(settings: Sequence[Setting]) -> str:
    """The medians of each setting beside the wanted ones, then all times."""
    head = f"{'seconds, median':16} {'wanted':>7}" + "".join(f"{one.name:>10}" for one in settings)
    lines = [head]
    for kind, wanted in WANTED.items():
        medians = "".join(f"{statistics.median(one.found[kind]):10.2f}" for one in settings)
        lines.append(f"{kind:16} {wanted:7.2f}{medians}")
    for one in settings:
        for kind, times in one.found.items():
            lines.append(f"{one.name}, {kind}: {' '.join(f'{t:.2f}' for t in sorted(times))}")
    return "\n".join([*lines, f"load average at the end: {os.getloadavg()[0]:.1f}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout, with a built extension")
    given = parser.parse_args()
    executable = find()
    assert executable, "no Chromium or Chrome found"
    roots = {"before": given.against.resolve()} if given.against else {}
    with tempfile.TemporaryDirectory() as place, Browser(executable) as browser:
        settings: list[Setting] = []
        try:
            for name, root in {**roots, "now": ROOT}.items():
                settings.append(Setting(name, root, Path(place) / name, browser))
            for _ in range(given.rounds):
                for one in settings:
                    one.round()
            for one in settings:
                one.sliders()
        finally:
            for one in settings:
                one.lab.close()
    print(table(settings))
    return int(any(statistics.median(settings[-1].found[kind]) > wanted for kind, wanted in WANTED.items()))


if __name__ == "__main__":
    sys.exit(main())
