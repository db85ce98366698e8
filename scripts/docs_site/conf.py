"""Sphinx's configuration of the documentation site; `make docs` builds it from build/docs, which stage.py writes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
# jsonschema checks international addresses by it. No notebook has one, and building its grammars takes seconds.
sys.modules.setdefault("rfc3987_syntax", None)

from blocknb.notebook import extension  # noqa: E402
from blocknb.notebook.document import MIME  # noqa: E402

project = "blocknb"
author = "blocknb developers"
version = release = json.loads((ROOT / "package.json").read_text(encoding="utf-8"))["version"]
extensions = ["myst_nb", "sphinx_copybutton"]
html_theme = "furo"
html_title = f"blocknb {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
# GitHub and JupyterLab make an anchor of each heading; so does the site.
myst_heading_anchors = 6
nb_execution_mode = "off"  # notebooks.py runs them
nb_merge_streams = True  # a table that a loop prints arrives in pieces
nb_ipywidgets_js = {}  # scripts of other sites, for widgets, which need a kernel
copybutton_selector = "div.highlight pre"
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 100

_NAME = re.compile(r'(?<=<span class="pre">)[^<\s]{24,}(?=</span>)')
_JOINT = re.compile(r"(?:/|_|\.|::)(?=\w)")


def setup(app: Any) -> None:
    """Adds the viewer of the card to the pages that have cards, and the language of the IR."""
    app.add_lexer("ir", TextLexer)
    found = extension.installed()
    if found is None:
        raise FileNotFoundError("the lab extension, whose viewer shows the cards, is not built: run make install")
    app.config.html_static_path.append(str(found[1] / "viewer"))
    app.connect("html-page-context", _viewer)
    app.connect("html-page-context", _breaks)


def _breaks(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Lets the long name of a file or a test break after `/`, `_`, `.` and `::`. So it does not widen its column of a table."""
    if "body" in context:
        context["body"] = _NAME.sub(lambda found: _JOINT.sub(r"\g<0><wbr>", found[0]), context["body"])


def _viewer(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    if f'<script type="{MIME}">' in context.get("body", ""):
        app.add_css_file("blocknb.css")
        app.add_js_file("viewer.js", loading_method="defer")
        app.add_js_file("cards.js", loading_method="defer")
