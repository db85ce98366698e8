"""Measures how long a notebook of saved cards takes to open, and how much memory it keeps: 30 cards, without a running Jupyter kernel.

    python tests/browser/many_cards.py [ROUNDS] [CARDS] [WINDOWING]

The cards are those of a sum, a softmax and a matrix product in turn, each with its GPU code. "open" is the time from the command to the
first frame in which the first card shows its machine code. Every card in the window of the notebook is mounted then. "read" is the time to
scroll through the notebook, and to see the code of every card. "heap" is what the notebook adds to the page, after garbage collection,
against an empty notebook. The output is the median over the rounds, with all values.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from browser import Browser, Page, find
from laboratory import MIME, Lab, Notebook, code_cell

LIMITS = {"open": 4.0, "read": 15.0, "heap": 60.0}
SETUP = """\
import numpy as np, blocknb, blocknb.language as tl
x, y = np.ones((2, 1 << 16), np.float32)
out = np.empty_like(x)
rows = np.ones((256, 1000), np.float32)
scaled = np.empty_like(rows)
a, b, c = (np.ones((256, 256), np.float16) for _ in range(3))
"""
KERNELS = (
    """\
%%blockkernel
@blocknb.kernel
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, {0} * tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)

add[64,](x, y, out, x.size, BLOCK=1024);""",
    """\
%%blockkernel
@blocknb.kernel
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=-float("inf"))
    powers = tl.exp({0} * (values - tl.max(values, axis=0)))
    tl.store(out + row * columns + at, powers / tl.sum(powers, axis=0), mask=inside)

softmax[256,](rows, scaled, 1000, BLOCK=1024);""",
    """\
%%blockkernel
@blocknb.kernel
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        left = tl.load(a + m[:, None] * K + k[None, :])
        right = tl.load(b + k[:, None] * N + n[None, :])
        total += {0} * tl.dot(left, right)
    tl.store(c + m[:, None] * N + n[None, :], total.to(tl.float16))

matmul[4, 4](a, b, c, 256, 256, 256, BM=64, BN=64, BK=32);""",
)


def saved_cells(count: int) -> list[dict[str, Any]]:
    """Runs the cells in this process, and returns them with their complete outputs, as a notebook saves them."""
    from IPython.core.interactiveshell import InteractiveShell

    from blocknb.notebook.register import register

    shell: Any = InteractiveShell()
    shown: list[dict[str, Any]] = []
    shell.display_pub.publish = lambda data, *args, **kwargs: shown.append(data)
    register(shell)
    shell.run_cell(SETUP).raise_error()
    cells = [code_cell(SETUP)]
    for number in range(count):
        source = KERNELS[number % len(KERNELS)].format(float(number + 2))
        shown.clear()
        shell.run_cell(source).raise_error()
        outputs = [{"output_type": "display_data", "data": data, "metadata": {}} for data in shown if MIME in data]
        assert outputs, source
        cells.append(code_cell(source, outputs))
    return cells


#: Bytes of the page's heap after garbage collection.
HEAP = """async () => {
  for (let i = 0; i < 4; i++) {
    gc();
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return performance.memory.usedJSHeapSize;
}"""

#: Opens a notebook, and returns the milliseconds until the cards are on the screen.
OPENED = """async (path) => {
  await new Promise((resolve) => setTimeout(resolve, 1000));
  const begin = performance.now();
  await blocknb.open(path, null, false);
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  for (;;) {
    const inside = [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .bnb-card')].filter((card) => {
      const { top, bottom } = card.getBoundingClientRect();
      return bottom > 0 && top < innerHeight;
    });
    const outputs = [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .bnb-output')];
    const shown = (card) => card.querySelector('.cm-content[aria-label="Machine code"]')?.textContent.includes('.target');
    if (inside.length && inside.every(shown) && outputs.length) {
      await frame();
      await new Promise((resolve) => setTimeout(resolve));
      return performance.now() - begin;
    }
    await frame();
  }
}"""

#: Scrolls to every card, and returns the milliseconds until each has shown its code.
READ = """async (count) => {
  const begin = performance.now();
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  for (let i = 1; i <= count; i++) {
    await blocknb.show(i);
    const shown = () => blocknb.cell(i).node.querySelector('.cm-content[aria-label="Machine code"]')?.textContent.includes('.target');
    while (!shown()) {
      await frame();
    }
  }
  return performance.now() - begin;
}"""


def measured(page: Page, path: str, empty: str, count: int) -> dict[str, float]:
    """Opens the empty notebook, then that of the cards, in a page. Returns seconds, and MB of the heap."""
    blank = Notebook(page, empty, start=False)
    before = page.run(HEAP)
    blank.close(shut_down=False)
    opened = page.run(OPENED, path) / 1e3
    heap = (page.run(HEAP) - before) / 1e6
    read = page.run(READ, count) / 1e3
    after = (page.run(HEAP) - before) / 1e6
    page.run("() => blocknb.close(false)")
    return {"open": opened, "read": read, "heap": heap, "heap after reading": after}


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 30
    windowing = sys.argv[3] if len(sys.argv) > 3 else "none"
    executable = find()
    assert executable, "no Chromium or Chrome found"
    began = time.perf_counter()
    cells = saved_cells(count)
    size = len(json.dumps(cells, ensure_ascii=False).encode())
    print(f"{count} cards, {size / 1e6:.2f} MB, made in {time.perf_counter() - began:.0f} s", flush=True)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as place, Browser(executable) as browser:
        settings = Path(place, "config", "lab", "user-settings", "@jupyterlab", "notebook-extension")
        settings.mkdir(parents=True)
        (settings / "tracker.jupyterlab-settings").write_text(json.dumps({"windowingMode": windowing}))
        lab = Lab(Path(place))
        try:
            path, empty = lab.write("cards.ipynb", cells), lab.write("empty.ipynb", [""])
            for _ in range(rounds):
                page = lab.page(browser)
                for name, value in measured(page, path, empty, count).items():
                    found.setdefault(name, []).append(value)
                page.close()
        finally:
            lab.close()
    for name, values in found.items():
        unit = "MB" if name.startswith("heap") else "s"
        limit = f", at most {LIMITS[name]:g} {unit}" if name in LIMITS else ""
        every = " ".join(f"{value:.2f}" for value in sorted(values))
        print(f"{name:18} median {statistics.median(values):.2f} {unit}{limit} ({every})")
    return int(any(statistics.median(found[name]) > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
