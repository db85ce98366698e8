"""Makes web pages of the course: every notebook executed, with the solutions folded.

    python scripts/course_site.py                 # build/course/*.html; `make course-site` does the same
    python scripts/course_site.py 01_blocks -o x  # one unit, in the folder x

Below each exercise, a fold holds the solution and its verdict, and below each question the answer. A page needs no server and no script of
blocknb: its cards are the static ones. The exit status is 1 if a cell raises an error.
"""

from __future__ import annotations

import argparse
import re
import sys
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import nbformat  # noqa: E402
from course_outputs import COURSE, executed  # noqa: E402
from jinja2 import DictLoader  # noqa: E402
from nbconvert import HTMLExporter  # noqa: E402

from blocknb import learn  # noqa: E402
from blocknb.learn.predictions import written  # noqa: E402

TEMPLATE = """\
{%- extends 'lab/index.html.j2' -%}
{%- block any_cell -%}
{%- if cell.metadata.fold -%}
<details class="fold"><summary>{{ cell.metadata.fold }}</summary>{{ super() }}</details>
{%- else -%}{{ super() }}{%- endif -%}
{%- endblock any_cell -%}
{%- block html_head_css -%}
{{ super() }}
<style>.fold { margin: 0 0 1em 5em; } .fold summary { cursor: pointer; padding: .3em; } main { max-width: 70em; margin: auto; }</style>
{%- endblock html_head_css -%}
"""
PAGE = "<!DOCTYPE html>\n<html lang='en'><meta charset='utf-8'><title>{title}</title><h1>{title}</h1>\n<ol>\n{items}\n</ol></html>\n"
ASKS = re.compile(r"%%blockkernel .*?--exercise ([\w-]+)|%predict ([\w-]+)\s*$|%%blockkernel .*?--predict ([\w-]+)")


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
        return nbformat.v4.new_code_cell(source, metadata={"fold": f"Solution of {item.name}"})
    value = written(item.value, item.unit)
    if card:
        new = {"fold": f"The card after the answer to {item.name}"}
        return nbformat.v4.new_code_cell(f"%predict {item.name} {value}", metadata=new)
    answer = f"The answer is `{value}`." + (f" {item.hints[-1]}" if item.hints else "")
    return nbformat.v4.new_markdown_cell(answer, metadata={"fold": f"Answer to {item.name}"})


def page_of(notebook: Any, title: str) -> str:
    """The HTML of an executed notebook. Links to other units lead to their pages."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\]\((\d\d_\w+)\.ipynb", r"](\1.html", cell.source)
    exporter = HTMLExporter(extra_loaders=[DictLoader({"course.html.j2": TEMPLATE})], template_file="course.html.j2")
    text, _ = exporter.from_notebook_node(notebook, resources={"metadata": {"name": title}})
    return text


def main() -> int:
    """Writes the pages; returns the exit status."""
    parser = argparse.ArgumentParser(description="Makes web pages of the course, executed, with the solutions folded.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="notebooks, such as 01_blocks; all by default")
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "build" / "course", help="folder (build/course)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    items, failed = [], False
    for file in sorted(COURSE.glob("*.ipynb")):
        if options.names and file.stem not in options.names:
            continue
        notebook = with_solutions(nbformat.read(file, as_version=4))
        title = notebook.cells[0].source.split("\n")[0].lstrip("# ")
        error = executed(notebook, COURSE)
        print(f"{file.stem}: {error or 'ok'}", flush=True)
        failed = failed or bool(error)
        (options.out / f"{file.stem}.html").write_text(page_of(notebook, title), encoding="utf-8")
        items.append(f"<li><a href='{file.stem}.html'>{escape(title)}</a></li>")
    index = PAGE.format(title="The blocknb course", items="\n".join(items))
    (options.out / "index.html").write_text(index, encoding="utf-8")
    print(f"{options.out / 'index.html'}: {len(items)} units")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
