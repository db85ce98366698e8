"""Writes the documents that the tests of the lab extension read: labextension/tests/fixtures/*.json, made by real cells.

    python scripts/fixtures.py [FOLDER]

Prettier formats the files; labextension/tests/fixtures/make_tiles.py writes tiles.json. A Python test runs this and compares the structure
of its output with that of the files, so that they cannot become outdated. The times in them differ after each run. The documents are always
complete, because no page is present that could request parts later. This process has no other kernels, so the history contains only its
own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout's package, not another one that is installed
FOLDER = ROOT / "labextension" / "tests" / "fixtures"
MIME = "application/vnd.blocknb.v1+json"
SETUP = """
import blocknb, blocknb.language as tl, numpy as np
x = np.arange(256, dtype=np.float32)
out = np.empty_like(x)
"""
CELL = """%%blockkernel {options}
@blocknb.kernel
def scale(x, out, n, BLOCK: tl.constexpr):
    # "<script>alert(1)</script>" & <!-- text -->
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    values = tl.load(x + at, mask=inside)
    {extra}tl.store(out + at, {factor} * values, mask=inside)

scale[lambda meta: (blocknb.cdiv(200, meta["BLOCK"]),)](x, out, 200, BLOCK=64);
"""


def documents() -> dict[str, dict[str, Any]]:
    """Makes the documents; returns them by name."""
    from IPython.core.interactiveshell import InteractiveShell

    from blocknb.notebook.register import register
    from blocknb.profile import noise, timing

    timing.llc_bytes = lambda: 1 << 20  # a large cache takes most of the time of a measurement, and leaves few rounds
    noise.busy = lambda timings=(): ""  # the load of this machine does not belong in a fixture
    shell: Any = InteractiveShell()
    shown: list[dict[str, Any]] = []
    shell.display_pub.publish = lambda data, *args, **kwargs: shown.append(data)
    register(shell)

    def run(cell: str) -> dict[str, Any]:
        shown.clear()
        shell.run_cell(cell).raise_error()
        return {**shown[-1][MIME], "model": None} if shown else {}

    run(SETUP)
    first = '--check "np.allclose(out[:200], 2 * x[:200])" --baseline np.multiply(x,2) --without coalesce'
    return {
        "scale": run(CELL.format(options=first, extra="", factor="2.0")),
        "versions": run(CELL.format(options="", extra="values = values + 1.0\n    ", factor="3.0")),
        "diff": run("%blockdiff scale:parse scale:coalesce"),
        "bench": run("%blockbench np.sum(x) np.sort(x)"),
        "learn": run(CELL.format(options="--learn --step 0,3", extra="", factor="4.0")),
    }


def plotted() -> dict[str, Any]:
    """Parts of documents, and what their plots show: the page and Matplotlib must agree (see notebook/plot_data.py)."""
    from blocknb.notebook import plot_data
    from blocknb.notebook.sweep import Series, Sweep

    def lines(shown: plot_data.PlottedSweep) -> dict[str, Any]:
        return {"unit": shown.unit, "series": [vars(series) for series in shown.series]}

    def rates(*medians: float | None) -> tuple[list[float | None], ...]:
        return tuple([None if v is None else v * factor for v in medians] for factor in (1.0, 0.75, 1.25))

    sizes = [1024, 4096, 65536]
    made = [
        Sweep(
            "add", "n", sizes, "GB/s",
            [Series("add", "kernel", *rates(0.5, 2.0, 40.0)), Series("NumPy, one", "baseline", *rates(0.25, None, 30.0))],
            runs=20, device="CPU", amounts=[0.012, 0.049, 0.78],
        ),
        Sweep("dot", "BLOCK", [16, 32, 64], "GFLOP/s", [Series("dot", "kernel", *rates(0.1, 0.25, 0.5))], amounts=[2.0, 2.0, 2.0]),
        Sweep("gather", "n", ["a", True, 3], "ms", [Series("gather", "kernel", *rates(0.0001, 0.0002, 0.0004))], device="CPU"),
        Sweep(
            "add", "BLOCK", [64, 128], "TFLOP/s", [Series("add", "kernel", *rates(1.5, None, 12.0, 3.0))],
            second=("num_warps", [4, 8]), amounts=[6.0, None, 6.0, 6.0],
        ),
    ]  # fmt: skip
    sweeps = []
    for sweep in made:
        shows = ["time"] if sweep.unit == "ms" else ["rate", "time"]
        head = list(sweep.records()[0])
        sweeps.append(
            {
                "part": sweep.part,
                "shown": {show: lines(plot_data.sweep(sweep.part, show)) for show in shows},
                "logarithmic": plot_data.is_logarithmic(sweep.values),
                "records": [head, *([row[name] for name in head] for row in sweep.records())],
            }
        )
    time = {"n": 30, "cold": True, "median": 0.25, "low": 0.2, "high": 0.5, "device": "CPU"}
    entries = [["add", time], ["lost", None], ["NumPy", {**time, "median": 0.75}]]
    return {"sweeps": sweeps, "times": {"entries": entries, "shown": lines(plot_data.timed(map(tuple, entries)))}}


def templates() -> dict[str, Any]:
    """A listing whose lines differ in their numbers only, as it is and as a document stores it."""
    from blocknb.notebook import blobs

    lines = [f"    %{7 * i + 3} = fma %{7 * i}, %{7 * i + 1}, 0x{i} : f32 // é {1000 - i}" for i in range(200)]
    lines[50:50] = ["", "loop: 0x01", "}"]
    content = {
        "text": "\n".join(lines),
        "lines": [i // 4 for i in range(203)],
        "ops": [*range(100), *range(202, 99, -1)],
    }
    return {"listing": content, "packed": blobs.pack(content)}


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in {**documents(), "plotted": plotted(), "templates": templates()}.items():
        text = json.dumps(made, ensure_ascii=False, separators=(",", ":"))
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {len(text)} characters")
    if folder == FOLDER:
        tidy()


def tidy() -> None:
    """Formats the files of the tree as `make lint` demands."""
    prettier, node = ROOT / "node_modules" / "prettier" / "bin" / "prettier.cjs", Path(sys.executable).with_name("node")
    if not prettier.is_file():
        print("prettier is missing: run make format, which installs it")
        return
    command = [str(node) if node.exists() else "node", str(prettier), "--write", "--log-level", "warn", str(FOLDER)]
    subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
