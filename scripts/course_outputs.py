"""Runs the notebooks of the course, and stores in them the outputs that a reader may see before running a cell.

    python scripts/course_outputs.py                 # all notebooks of notebooks/course
    python scripts/course_outputs.py 01_blocks       # some of them

A notebook runs in its folder, without progress of an earlier reader. Stored are printed texts, values, questions, hints and the verdicts on
skeletons. Cards are not stored: a card holds times and names of this machine, and a run of the cell makes a new one. A cell with the tag
"answer", or with `--predict`, keeps no output, because it tells the answer to a question above it. The exit status is 1 if a cell raises
an error.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COURSE = ROOT / "notebooks" / "course"
DOCUMENT = re.compile(r"application/vnd\.blocknb\.v\d+\+json")
CARD = re.compile(r"^\w+: (?:ran|runs|compiled|launched) ", re.MULTILINE)  # the first line of a card as a text
TELLS = re.compile(r"%progress|%solution|%%blockkernel .*--predict")  # how cells begin that keep no output
KEPT = ("text/plain", "text/markdown", "text/html", "image/png")
CELL_SECONDS = 300


def main() -> int:
    """Runs the notebooks; returns the exit status."""
    parser = argparse.ArgumentParser(description="Runs the notebooks of the course and stores their outputs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="notebooks, such as 01_blocks; all by default")
    options = parser.parse_args()
    files = [file for file in sorted(COURSE.glob("*.ipynb")) if not options.names or file.stem in options.names]
    if not files:
        parser.error(f"no notebooks of these names in {COURSE.relative_to(ROOT)}")
    failed = False
    for file in files:
        start = time.perf_counter()
        error = run(file)
        print(f"{file.stem}: {error or 'ok'}, {time.perf_counter() - start:.0f} s, {file.stat().st_size / 1000:.0f} kB")
        failed = failed or bool(error)
    return int(failed)


def run(file: Path) -> str:
    """Runs a notebook and stores its outputs. Returns the error that ended it, or ""; then the file is unchanged."""
    import nbformat

    notebook = nbformat.read(file, as_version=4)
    if error := executed(notebook, file.parent):
        return error
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
        if cell.cell_type == "code":
            tells = "answer" in cell.metadata.get("tags", ()) or TELLS.match(cell.source)
            cell.outputs = [] if tells else stored(cell.outputs)
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    nbformat.write(notebook, file)
    return ""


def executed(notebook: Any, folder: Path) -> str:
    """Runs the cells of a notebook in a folder, in place. Returns the error that ended it, or "". Removes files that cells write."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from traitlets.config import Config

    os.environ["BLOCKNB_PROGRESS"] = "0"
    before = set(folder.iterdir())
    try:
        with tempfile.TemporaryDirectory() as sockets:  # the kernel uses Unix sockets instead of ports
            config = Config(KernelManager={"transport": "ipc", "ip": f"{sockets}/kernel"})
            place = {"metadata": {"path": str(folder)}}
            NotebookClient(
                notebook, config=config, timeout=CELL_SECONDS, kernel_name="python3", resources=place
            ).execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return str(error).strip().splitlines()[-1]
    finally:
        for written in set(folder.iterdir()) - before:  # by %%writefile
            if written.is_file():
                written.unlink()
    return ""


def stored(outputs: list[Any]) -> list[Any]:
    """The outputs of a cell without cards. The output before the first line of a card, such as a verdict, stays as a text."""
    kept = []
    for output in outputs:
        data = output.get("data", {})
        if any(DOCUMENT.fullmatch(mime) for mime in data):
            said = CARD.split(data.get("text/plain", ""))[0].rstrip()
            output["data"] = {"text/plain": said} if said else {}
        elif data:
            output["data"] = {mime: data[mime] for mime in KEPT if data.get(mime)}  # a status that ended is empty
        output["metadata"] = {} if data else output.get("metadata", {})
        if output.output_type == "stream":
            del output["metadata"]
        if output.output_type == "stream" or output["data"]:
            kept.append(output)
    return kept


if __name__ == "__main__":
    sys.exit(main())
