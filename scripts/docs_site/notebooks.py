"""Runs the notebooks for the documentation site, and prepares their cells and outputs for its pages.

    python scripts/docs_site/notebooks.py                 # all notebooks of notebooks/, into build/notebooks
    python scripts/docs_site/notebooks.py 01_blocks       # some of them

A notebook that ran before, and has not changed since, is not run again. In a unit of the course, a fold below each exercise holds the
solution and its verdict. A fold below each question holds the answer. The exit status is 1 if a cell raises an error.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import nbformat  # noqa: E402
from course_outputs import COURSE, executed  # noqa: E402
from demo import missing  # noqa: E402

from blocknb import learn  # noqa: E402
from blocknb.learn.predictions import written  # noqa: E402
from blocknb.notebook.document import MIME  # noqa: E402
from blocknb.notebook.export import script  # noqa: E402

NOTEBOOKS = ROOT / "notebooks"
RUNS = ROOT / "build" / "notebooks"
ASKS = re.compile(r"%%blockkernel .*?--exercise ([\w-]+)|%predict ([\w-]+)\s*$|%%blockkernel .*?--predict ([\w-]+)")
_ATTACHMENT = re.compile(r"\(attachment:([^)\s]+)\)")
_ANCHOR = re.compile(r"\]\((?=[^)\s]*#)(?!\w+:)([^)\s#]*)#([^)\s]*)\)")


def with_solutions(notebook: Any) -> Any:
    """A notebook with a folded cell below each exercise (its solution) and below each question (its answer)."""
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        asked = ASKS.match(cell.source) if cell.cell_type == "code" else None
        if asked is None:
            continue
        try:
            item = learn.exercise(asked[1] or asked[2] or asked[3])
        except learn.UnknownExercise:
            continue  # of a file that the notebook itself writes, in unit 12
        cells.append(_fold(item, bool(asked[3])))
    notebook.cells = cells
    return notebook


def _fold(item: learn.Exercise | learn.Prediction, card: bool) -> Any:
    """The folded cell below an exercise, below a question, or below the card that asks it."""
    if isinstance(item, learn.Exercise):
        source = f"%%blockkernel --exercise {item.name}\n{item.solution.rstrip()}"
        return _folded_code(source, f"Solution of {item.name}")
    value = written(item.value, item.unit)
    if card:
        return _folded_code(f"%predict {item.name} {value}", f"The card after the answer to {item.name}")
    answer = f"The answer is `{value}`." + (f" {item.hints[-1]}" if item.hints else "")
    title = f"Answer to {item.name}"
    source = f'<details class="fold"><summary>{title}</summary>\n\n{answer}\n\n</details>'
    return nbformat.v4.new_markdown_cell(source, metadata={"fold": title})


def _folded_code(source: str, title: str) -> Any:
    """A code cell that MyST-NB folds under a title."""
    prompts = {"code_prompt_show": title, "code_prompt_hide": title}
    return nbformat.v4.new_code_cell(source, metadata={"fold": title, "tags": ["hide-cell"], "mystnb": prompts})


def fingerprint(file: Path) -> str:
    """The hash of a notebook's file, which its executed copy names."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def with_folds(file: Path) -> Any:
    """A notebook as its file has it; a unit of the course with the solutions and answers folded."""
    notebook = nbformat.read(file, as_version=4)
    return with_solutions(notebook) if file.parent == COURSE else notebook


def run_of(file: Path) -> Path | None:
    """The executed copy of a notebook, or None if there is none of its present text."""
    copy = RUNS / file.name
    if not copy.is_file() or nbformat.read(copy, as_version=4).metadata.get("source") != fingerprint(file):
        return None
    return copy


def page_notebook(file: Path) -> Any:
    """The notebook of a page: its newest run, or its saved outputs; with cards for the viewer and links for Sphinx."""
    copy = run_of(file)
    notebook = nbformat.read(copy, as_version=4) if copy else with_folds(file)
    notebook.metadata.pop("widgets", None)
    # The lexer that knows `%%blockkernel`; by default MyST-NB asks the kernel.
    notebook.metadata.language_info = {"name": "python", "pygments_lexer": "ipython3"}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _links(cell.source, cell.pop("attachments", {}))
        for output in cell.get("outputs", ()):
            if "data" in output:
                output.data = shown(output.data)
        if cell.cell_type == "code":  # the output of a status that ended is empty
            cell.outputs = [output for output in cell.outputs if any(output.get("data", {"other": True}).values())]
    return notebook


def _links(text: str, attachments: dict[str, dict[str, str]]) -> str:
    """A text with attached pictures in place, and anchors in the lower case of Sphinx; JupyterLab keeps capitals."""

    def picture(match: re.Match[str]) -> str:
        ((mime, data),) = attachments[match[1]].items()
        return f"(data:{mime};base64,{''.join(data.split())})"

    return _ANCHOR.sub(lambda m: f"]({m[1]}#{m[2].lower()})", _ATTACHMENT.sub(picture, text))


def shown(data: Any) -> Any:
    """The representations that the page may show, without those for live front ends, such as widgets and progress.

    A card is its document, for the viewer, and its static page, for readers without scripts.
    """
    if MIME not in data:
        return {mime: value for mime, value in data.items() if not mime.startswith("application/vnd.")}
    html = data.get("text/html", "")
    return {"text/html": f"{script(data[MIME])}<noscript>{html}</noscript>"}


def main() -> int:
    """Runs the notebooks; returns the exit status."""
    parser = argparse.ArgumentParser(description="Runs the notebooks for the documentation site.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="notebooks, such as 01_blocks; all by default")
    names = parser.parse_args().names
    RUNS.mkdir(parents=True, exist_ok=True)
    failed = False
    for file in sorted(NOTEBOOKS.rglob("[!.]*.ipynb")):
        if (names and file.stem not in names) or run_of(file):
            continue
        if packages := missing(file):
            print(f"{file.stem}: not run, because {' and '.join(packages)} is not installed")
            continue
        start = time.perf_counter()
        notebook = with_folds(file)
        error = executed(notebook, file.parent)
        print(f"{file.stem}: {error or 'ok'}, {time.perf_counter() - start:.0f} s", flush=True)
        failed = failed or bool(error)
        notebook.metadata["source"] = "" if error else fingerprint(file)
        nbformat.write(notebook, RUNS / file.name)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
