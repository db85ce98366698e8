"""Collects the sources of the documentation site in build/docs: the pages of the repository, its notebooks, and the API reference.

    python scripts/docs_site/stage.py

Each page keeps its path, so its links stay right; README.md becomes the home page. Files that did not change keep their time, so that
Sphinx reads only what changed. The exit status is 0; Sphinx, which reads the result, names what is wrong with it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "docs_site")]
sys.modules.setdefault("rfc3987_syntax", None)  # as in conf.py: it takes seconds to import

import api  # noqa: E402
import nbformat  # noqa: E402

from notebooks import page_notebook  # noqa: E402

OUT = ROOT / "build" / "docs"
#: The groups of the navigation. A page of docs/ that no group names is a guide. A page of "Project" may be absent.
PROJECT = ("CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md", "ARCHITECTURE.md", "docs/recipes.md", "SECURITY.md")
START = ("docs/front_ends.md", "notebooks/reference/the_card.ipynb", "docs/card.md", "docs/README.md")
COURSE = ("notebooks/course/README.md", "docs/course.md", "docs/learn.md", "docs/teaching.md")
REFERENCE = (
    *(f"api/{name}.md" for name in api.PACKAGES),
    "docs/language.md",
    "docs/kernels.md",
    "docs/pytorch_ops.md",
    "docs/features.md",
    "docs/glossary.md",
    "docs/performance.md",
    "docs/benchmarks.md",
    "docs/security.md",
)
NOTEBOOKS = """# Notebooks

These notebooks are longer examples, with their cards. `make demo` runs those of the folder `notebooks`. The others were recorded on the
device that they name.
"""
DESIGN = """# Design

Each page gives the reason for a decision, and the IR before and after.
"""
_LINK = re.compile(r"\]\(([\w./-]+)\)")
#: A link whose text is the name of a page or of a folder. Without a text Sphinx writes the title of the page or of its section.
_NAMED = re.compile(r"(?<!!)\[[\w./-]+(?:\.md|\.ipynb|/)\](?=\((?!\w+:))")


def main() -> int:
    """Writes the sources, and removes those of pages that no longer exist."""
    written = {path: text.encode() for path, text in pages()}
    count = len(written)
    for file in (ROOT / "docs").rglob("*"):
        if file.is_file() and file.suffix not in (".md", ".ipynb"):
            written[path_of(file)] = file.read_bytes()
    for path, content in written.items():
        target = OUT / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_file() or target.read_bytes() != content:
            target.write_bytes(content)
    for file in OUT.rglob("*"):
        if file.is_file() and file.relative_to(OUT).as_posix() not in written:
            file.unlink()
    print(f"{OUT.relative_to(ROOT)}: {count} pages")
    return 0


def pages() -> Iterator[tuple[str, str]]:
    """The path of each page of the site, and its source."""
    units, longer = (notebooks(folder) for folder in ("notebooks/course", "notebooks/reference"))
    recorded = [*notebooks("docs"), *notebooks("docs/recorded")]
    guides, design = markdown_files("docs"), markdown_files("docs/design")
    project = [ROOT / name for name in PROJECT if (ROOT / name).is_file()]
    course = ROOT / "notebooks" / "course" / "README.md"
    yield "index.md", text_of(ROOT / "README.md") + navigation(guides, project)
    yield "docs/design/index.md", DESIGN + toctree(map(path_of, design))
    others = [path_of(file) for file in longer if path_of(file) not in START]
    yield "notebooks/reference/index.md", NOTEBOOKS + toctree([*others, *map(titled, recorded)])
    yield path_of(course), text_of(course) + toctree(map(path_of, units))
    for file in {*guides, *design, *project}:
        yield path_of(file), text_of(file)
    for file in [*units, *longer, *recorded]:
        yield path_of(file), nbformat.writes(page_notebook(file))
    for package in api.PACKAGES:
        yield f"api/{package}.md", api.page(package)


def navigation(guides: list[Path], project: list[Path]) -> str:
    """The groups of pages that the sidebar lists."""
    named = {*START, *COURSE, *REFERENCE, *PROJECT}
    groups: dict[str, Iterable[str]] = {
        "Start": START,
        "Course": COURSE,
        "Guides": ["notebooks/reference/index.md", *(name for name in map(path_of, guides) if name not in named)],
        "Reference": REFERENCE,
        "Design": ["docs/design/index.md"],
        "Project": map(path_of, project),
    }
    return "".join(toctree(names, caption) for caption, names in groups.items())


def toctree(names: Iterable[str], caption: str = "") -> str:
    """A list of pages: with a caption a group of the navigation, otherwise a list on the page."""
    head = f":caption: {caption}\n:hidden:\n" if caption else ":maxdepth: 1\n"
    lines = (name if name.endswith(">") else f"/{name}" for name in names)
    return f"\n```{{toctree}}\n{head}\n" + "\n".join(lines) + "\n```\n"


def titled(file: Path) -> str:
    """The entry of a recorded notebook, named by its file: its heading may be that of the notebook that was recorded."""
    title = re.sub(r"^\d+_", "", file.stem).replace("_", " ")
    return f"{title[0].upper()}{title[1:]} (recorded) </{path_of(file)}>"


def notebooks(folder: str) -> list[Path]:
    """The notebooks of a folder."""
    return sorted((ROOT / folder).glob("[!.]*.ipynb"))


def markdown_files(folder: str) -> list[Path]:
    """The pages of a folder."""
    return sorted((ROOT / folder).glob("*.md"))


def path_of(file: Path) -> str:
    """The path of a source in the site. A notebook next to a page of the same name gets a name of its own."""
    path = file.relative_to(ROOT).as_posix()
    same = file.suffix == ".ipynb" and file.with_suffix(".md").is_file()
    return path.replace(".ipynb", "_notebook.ipynb") if same else path


def text_of(file: Path) -> str:
    """The text of a page for the site. A link to a folder leads to the page that lists it."""

    def link(match: re.Match[str]) -> str:
        target = file.parent / match[1]
        if target.is_dir():
            return f"]({match[1].rstrip('/')}/index.md)"
        renamed = target.suffix == ".ipynb" and path_of(target.resolve()).endswith("_notebook.ipynb")
        return f"]({match[1].replace('.ipynb', '_notebook.ipynb')})" if renamed else match[0]

    return _LINK.sub(link, _NAMED.sub("[]", file.read_text(encoding="utf-8")))


if __name__ == "__main__":
    sys.exit(main())
