"""Writes the documents that the tests of the lab extension read: labextension/tests/fixtures/*.json, made by real cells.

    python scripts/fixtures.py [FOLDER]

Run `make format` after it, because prettier formats the files; labextension/tests/fixtures/make_tiles.py writes tiles.json. A Python test
runs this and compares the structure of its output with that of the files, so that they cannot become outdated. The documents are always
complete: no page is present that could request parts later, and this process has no other kernels, so the history contains only its own.
"""

from __future__ import annotations

import json
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
    from blocknb.profile import noise

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


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in documents().items():
        text = json.dumps(made, ensure_ascii=False, separators=(",", ":"))
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {len(text)} characters")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
