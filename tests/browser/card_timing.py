"""Measures how long a user waits: from Shift-Enter to the card, and from the move of a slider to the updated card.

    python tests/browser/card_timing.py [ROUNDS]

The kernel is the softmax of notebooks/02, including its GPU code. "cold" is a new kernel process with an empty cache of compiled code,
"from cache" a new process with a full cache, and "run again" the same process. The slider moves to values that were not compiled
before. A card counts as shown in the frame after its views have their text. The output is the median over the rounds, with all times.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from browser import Browser, Page, find
from laboratory import Lab, Notebook

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
FLOORS = {"cold": 1.0, "from cache": 0.3, "run again": 0.3, "slider, cold": 0.5}

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
    notebook.show(1)
    notebook.page.run("() => blocknb.cell(1).editor.focus()")
    return timed(notebook.page, "Shift+Enter", PAINTED)


def moved(notebook: Notebook, key: str, value: int) -> float:
    """Times one move of the slider for warps."""
    slider = notebook.card(1).panel("[data-knob='num_warps']")
    slider.focus()
    seen = f"""() => {{
      const rows = document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .bnb-card .bnb-table tbody tr');
      const row = [...rows].find((row) => row.querySelector('th').textContent === 'num_warps');
      return row.querySelectorAll('td')[1].textContent === '{value} ◂';
    }}"""
    return timed(notebook.page, key, seen)


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    executable = find()
    assert executable, "no Chromium or Chrome found"
    with tempfile.TemporaryDirectory() as place, Browser(executable) as browser:
        lab = Lab(Path(place))
        try:
            notebook = Notebook(lab.page(browser), lab.write("timing.ipynb", [SETUP, CELL]))
            first_card(notebook, lab, cold=True)  # the first card of a page also loads its code
            found = {"cold": [first_card(notebook, lab, cold=True) for _ in range(rounds)]}
            found["from cache"] = [first_card(notebook, lab, cold=False) for _ in range(rounds)]
            found["run again"] = [repeated(notebook) for _ in range(rounds)]
            notebook.card(1).until_state("live")
            notebook.card(1).open("Knobs")
            moves = [("ArrowRight", 8), ("ArrowRight", 16), ("ArrowRight", 32), ("Home", 1), ("ArrowRight", 2)]
            found["slider, cold"] = [moved(notebook, *move) for move in moves]
        finally:
            lab.close()
    for name, times in found.items():
        every = " ".join(f"{t:.2f}" for t in sorted(times))
        print(f"{name:13} median {statistics.median(times):.2f} s, wanted {FLOORS[name]} s ({every})")
    return int(any(statistics.median(times) > FLOORS[name] for name, times in found.items()))


if __name__ == "__main__":
    sys.exit(main())
