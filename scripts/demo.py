"""`make demo`: runs every notebook from top to bottom on this machine's device and prints the results that they report.

A notebook reports through `blocknb.notebook.results.report`. The records are read from the executed file, so the table agrees with what a
reader of that file sees. The executed notebooks and their HTML are written to build/demo. The exit status is 1 if a notebook raised an
error, reported a failure, or reported nothing. Notebooks of the course have exercises instead of results; all of their cells must run.

A notebook names the optional packages that it needs in its metadata: `"blocknb": {"requires": ["torch"]}`. Where one is missing, the table
says that the notebook was not run, and which command installs the package.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from blocknb.doctor import examine, render
from blocknb.notebook.results import RESULT_MIME

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "demo"
EXERCISE = "%%blockkernel --exercise"  # begins a cell that the reader completes
CELL_SECONDS = 300  # longest time one cell may take
#: The commands that install an optional package; pip installs the others.
COMMANDS = {"torch": "make torch-cpu"}
#: Packages whose byte code is not written: with what they import, torch's takes 63 MiB, and saves 5 s per notebook.
NO_BYTE_CODE = frozenset({"torch"})


@dataclass(frozen=True)
class Row:
    """One line of the table: a result, or the state of a notebook that reported none. `ok` is None for what was not run."""

    notebook: str
    what: str
    ok: bool | None
    detail: str = ""

    @property
    def status(self) -> str:
        return "not run" if self.ok is None else "ok" if self.ok else "FAILED"


def needs(path: Path) -> list[str]:
    """The optional packages that a notebook needs."""
    import nbformat

    return list(nbformat.read(path, as_version=4).metadata.get("blocknb", {}).get("requires", []))


def missing(path: Path) -> list[str]:
    """The packages that a notebook needs and that are not installed."""
    return [name for name in needs(path) if find_spec(name) is None]


def run(path: Path) -> list[Row]:
    """Executes one notebook and writes it and its HTML to OUT. Its rows are its reports up to the end or the first error."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from traitlets.config import Config

    notebook = nbformat.read(path, as_version=4)
    trouble = ""
    try:
        with tempfile.TemporaryDirectory() as sockets:  # the kernel uses Unix sockets instead of ports
            options = Config(KernelManager={"transport": "ipc", "ip": f"{sockets}/kernel"})
            place = {"metadata": {"path": path.parent}}
            option = {"PYTHONDONTWRITEBYTECODE": "1"} if NO_BYTE_CODE.intersection(needs(path)) else {}
            NotebookClient(
                notebook, config=options, timeout=CELL_SECONDS, kernel_name="python3", resources=place
            ).execute(env=os.environ | option)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        lines = [line for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines() if line.strip()]
        trouble = lines[-1] if lines else type(error).__name__
    nbformat.write(notebook, OUT / path.name)
    (OUT / path.name).with_suffix(".html").write_text(to_html(notebook, path.stem))
    rows = [
        Row(path.stem, record["what"], record["ok"], record["detail"])
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if (record := output.get("data", {}).get(RESULT_MIME)) is not None
    ]
    if trouble:
        rows.append(Row(path.stem, "the notebook ended early", False, trouble))
    elif not rows and (count := sum(cell.source.startswith(EXERCISE) for cell in notebook.cells)):
        rows.append(
            Row(
                path.stem,
                "all cells ran",
                True,
                f"{count} {'exercise is' if count == 1 else 'exercises are'} left to the reader",
            )
        )
    elif not rows:
        rows.append(Row(path.stem, "the notebook reported nothing", False))
    return rows


# nbconvert's page without its external resources: it reads the same offline, and opening it sends no request.
OFFLINE = """{% extends 'lab/index.html.j2' %}
{% block html_head_js %}{% endblock %}
{% block html_head_js_mathjax %}{% endblock %}
{% block html_head_js_mermaidjs %}{% endblock %}
{% block jupyter_widgets %}{% endblock %}
"""


def to_html(notebook: object, title: str) -> str:
    from jinja2 import DictLoader
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(extra_loaders=[DictLoader({"offline.html.j2": OFFLINE})], template_file="offline.html.j2")
    html, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": title}})
    return str(html)


def table(rows: list[Row]) -> str:
    """The rows in columns, as wide as their longest entries."""
    cells = [
        ("notebook", "result", "", "detail"),
        *((r.notebook, r.what, r.status, r.detail) for r in rows),
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def not_run(path: Path, names: list[str]) -> Row:
    """The row of a notebook whose packages are missing, with the commands that install them."""
    commands = " and ".join(f"`{COMMANDS.get(name, f'.venv/bin/pip install {name}')}`" for name in names)
    detail = f"{' and '.join(names)} not installed: {commands}, then `make demo` again"
    return Row(path.stem, "the notebook was not run", None, detail)


#: The words that count the rows of each status in the last line.
STATES = {"ok": "results ok", "FAILED": "failed", "not run": "not run"}


def cpu_seconds() -> float:
    """The time that this process and its ended children have spent on CPUs."""
    return sum(os.times()[:4])


def main() -> int:
    print(render(examine()), end="\n\n")
    notebooks = sorted((ROOT / "notebooks").rglob("[!.]*.ipynb"))
    if not notebooks:
        print("There are no notebooks in notebooks/ yet: nothing to run.")
        return 0
    OUT.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    left = {path: names for path in notebooks if (names := missing(path))}
    for path in notebooks:
        if path in left:
            rows.append(not_run(path, left[path]))
            continue
        started, busy = time.perf_counter(), cpu_seconds()
        print(f"running {path.name} ...", end=" ", flush=True)
        rows += run(path)
        print(f"{time.perf_counter() - started:.1f} s, {cpu_seconds() - busy:.1f} s of CPU")
    counts = [f"{sum(row.status == status for row in rows)} {text}" for status, text in STATES.items()]
    print(f"\n{table(rows)}\n\n{', '.join(counts)}. Executed notebooks, to be opened in a browser:")
    for path in notebooks:
        if path not in left:
            print(f"  {OUT / path.stem}.html")
    return int(any(row.ok is False for row in rows))


if __name__ == "__main__":
    sys.exit(main())
