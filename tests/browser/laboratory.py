"""A JupyterLab server on a free port with its own folders, and notebooks in it.

The server uses the extension that was built in this tree. A `Notebook` edits and runs cells by JupyterLab's commands (laboratory.js).
`card(i)` is the card in the output of cell i.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from browser import PATIENCE, Browser, Page, Part, eventually

ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "labextension" / "dist"
SCRIPT = (Path(__file__).parent / "laboratory.js").read_text("utf-8")
TOKEN = "t"
START_S = 300.0  # until a server answers on a loaded machine
#: The tabs of a card of one kernel, in order. A new view is a line here.
VIEWS = (
    *("Code", "Passes", "Resources", "Memory", "Tiles", "Launch", "Step", "Footprint"),
    *("Timeline", "Roofline", "Sweep", "Bench", "History", "Knobs"),
)
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def kernel_spec(python: str) -> dict[str, Any]:
    """The specification of a kernel that runs in the environment of a Python."""
    argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    return {"argv": argv, "display_name": "Python 3", "language": "python"}


#: Errors of other software: the manager of ipywidgets in a notebook without a kernel, and the debugger after a kernel restart. JupyterLab
#: renders a text with a picture before it has replaced the picture's address by its data. It also fails if the server forwards a buffered
#: message of a restarted kernel together with its topic.
UNRELATED = (
    "/extensions/@jupyter-widgets/jupyterlab-manager/",
    "Could not restore the debugger state",
    "net::ERR_UNKNOWN_URL_SCHEME (attachment:",
    "Kernel message validation error: Unexpected token 's', \"stream.stderr\" is not valid JSON",
)


def change_theme(page: Page, theme: str) -> None:
    """Sets JupyterLab's theme, "light" or "dark"."""
    page.run("(theme) => jupyterapp.commands.execute('apputils:change-theme', { theme })", THEMES[theme])
    page.until("(theme) => document.body.dataset.jpThemeName === theme", THEMES[theme])


def complaints(page: Page) -> list[str]:
    """Returns the console errors of a page since the last call, without those of other software."""
    return [error for error in page.errors() if not any(other in error for other in UNRELATED)]


class Lab:
    """A running server. `folder` contains its notebooks. `app` is "lab", or "tree" for Notebook 7. `root` is the checkout to load.

    The kernel runs in the environment of the tests, also if the server runs in another one. Without a root, server and kernel use the
    blocknb that is installed for `python`.
    """

    def __init__(
        self, place: Path, python: str = sys.executable, app: str = "lab", port: int = 0, root: Path | None = ROOT
    ):
        self.place, self.app, self.port = place, app, port
        self.folder = place / "notebooks"
        self.folder.mkdir(parents=True)
        if root is not None:
            built = root / EXTENSION.relative_to(ROOT)
            assert (built / "package.json").is_file(), f"{built} is missing: run make install, or jlpm build"
            (place / "jupyter" / "labextensions").mkdir(parents=True)
            (place / "jupyter" / "labextensions" / "blocknb").symlink_to(built)
        spec = (
            place / "jupyter" / "kernels" / "python3"
        )  # comes before a kernel spec of the environment, which may set variables
        spec.mkdir(parents=True)
        (spec / "kernel.json").write_text(json.dumps(kernel_spec(python if root is None else sys.executable)))
        (place / "config" / "labconfig").mkdir(parents=True)
        announcements = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
        (place / "config" / "labconfig" / "page_config.json").write_text(json.dumps(announcements))
        own = {
            "PYTHONPATH": os.pathsep.join(filter(None, [root and str(root), os.environ.get("PYTHONPATH")])),
            "JUPYTER_PATH": str(place / "jupyter"),
            "JUPYTER_CONFIG_DIR": str(place / "config"),
            "JUPYTER_DATA_DIR": str(place / "data"),
            "JUPYTER_RUNTIME_DIR": str(place / "runtime"),
            "IPYTHONDIR": str(place / "ipython"),
            "BLOCKNB_CACHE_DIR": str(place / "cache"),
            "BLOCKNB_PROGRESS": str(place / "progress.json"),
        }
        options = {
            "--ServerApp.port": self.port,
            "--ServerApp.port_retries": 0,
            "--ServerApp.root_dir": self.folder,
            "--IdentityProvider.token": TOKEN,
            "--LabApp.expose_app_in_browser": True,
            "--JupyterNotebookApp.expose_app_in_browser": True,
        }
        module = {"lab": "jupyterlab", "tree": "notebook"}[app]
        with open(place / "server.log", "wb") as log:
            self.process = subprocess.Popen(
                [python, "-m", module, "--no-browser", "--allow-root", *(f"{k}={v}" for k, v in options.items())],
                env={**os.environ, **own},
                cwd=place,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            eventually(self._up, bool, START_S)
        except BaseException:
            self.close()
            raise

    def _up(self) -> bool:
        assert self.process.poll() is None, f"the server has ended:\n{self.log}"
        try:
            if not self.port:  # the server chooses a free port and writes it to this file
                (file,) = (self.place / "runtime").glob("jpserver-*.json")
                self.port = json.loads(file.read_text("utf-8"))["port"]
            return urllib.request.urlopen(f"{self.url}/api/status?token={TOKEN}", timeout=30).status == 200
        except (ValueError, urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.place / "server.log").read_text("utf-8", "replace")

    def write(self, name: str, cells: Sequence[str] | Sequence[dict[str, Any]], **metadata: Any) -> str:
        """Writes a notebook with these code cells: sources, or cells with outputs. Returns its path on the server."""
        made = [cell if isinstance(cell, dict) else code_cell(cell) for cell in cells]
        notebook = {"cells": made, "metadata": {**METADATA, **metadata}, "nbformat": 4, "nbformat_minor": 5}
        (self.folder / name).write_text(json.dumps(notebook), "utf-8")
        return name

    def page(self, browser: Browser, workspace: str = "default") -> Page:
        """Opens a page and loads the application in it."""
        page = browser.open(SCRIPT)
        page.goto(f"{self.url}/lab/workspaces/{workspace}?token={TOKEN}&reset")
        page.until("() => !!window.jupyterapp")
        page.run("() => jupyterapp.restored.then(() => true)")
        return page

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def code_cell(source: str, outputs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    cell = {"cell_type": "code", "id": f"c{abs(hash(source)) % 10**9}", "metadata": {}, "source": source}
    return {**cell, "execution_count": None, "outputs": list(outputs)}


class Notebook:
    """A notebook in the active tab of a page: with its own kernel, with the kernel `kernel`, or without one (start=False)."""

    def __init__(self, page: Page, path: str, kernel: str | None = None, start: bool = True):
        self.page, self.path = page, path
        page.run("([path, kernel, start]) => blocknb.open(path, kernel, start)", [path, kernel, start])

    @classmethod
    def in_front(cls, page: Page) -> Notebook:
        """Returns the notebook in the active tab of a page."""
        found = cls.__new__(cls)
        found.page, found.path = page, page.run("() => blocknb.panel().context.path")
        return found

    def type(self, source: str) -> None:
        """Types into the active cell, presses Shift-Enter, and waits until the cell has run."""
        __tracebackhide__ = True
        self.page.run("() => blocknb.panel().content.activeCell.editor.focus()")
        self.page.type(source)
        self.page.press("Shift+Enter")
        error = self.page.run("() => blocknb.ran(blocknb.panel().content.activeCellIndex - 1)")
        assert not error, error

    def run(self, *cells: int) -> None:
        """Runs cells one after another. Fails if one raises an error."""
        __tracebackhide__ = True
        for cell in cells:
            error = self.page.run("(cell) => blocknb.run(cell)", cell)
            assert not error, error

    def add(self, source: str) -> int:
        """Adds a cell at the end and returns its number."""
        return self.page.run("(source) => blocknb.add(source)", source)

    def show(self, cell: int) -> Part:
        """Scrolls to a cell."""
        self.page.run("(cell) => blocknb.show(cell)", cell)
        return self.cell(cell)

    def cell(self, cell: int) -> Part:
        return self.page(f'.jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell[data-windowed-list-index="{cell}"]')

    def card(self, cell: int) -> Card:
        """Returns the card of a cell after it is visible."""
        self.show(cell)
        card = Card(self.page, self.cell(cell)(".bnb-card").selector)
        card.wait()
        return card

    def complete(self, cell: int) -> Card:
        """Returns the card of a cell after it is live and has its deferred parts. Otherwise the card could repaint during a click and
        miss it."""
        card = self.card(cell)
        card.until_state("live")
        eventually(lambda: self.document(cell), lambda found: not found.get("deferred"))
        return card

    def source(self, cell: int) -> str:
        return self.page.run("(cell) => blocknb.cell(cell).model.sharedModel.getSource()", cell)

    def write(self, cell: int, source: str) -> None:
        """Replaces the source of a cell, as an edit."""
        self.page.run("([cell, source]) => blocknb.cell(cell).model.sharedModel.setSource(source)", [cell, source])

    def lit(self, cell: int) -> list[int]:
        """Returns the numbers of the highlighted lines in the editor of a cell."""
        return self.page.run("(cell) => blocknb.lit(cell)", cell)

    def output(self, cell: int) -> list[dict[str, Any]]:
        """Returns the outputs of a cell, as the notebook would save them."""
        return self.page.run("(cell) => blocknb.cell(cell).model.outputs.toJSON()", cell)

    def document(self, cell: int) -> dict[str, Any]:
        """Returns the document of the only card of a cell, as the notebook would save it."""
        (found,) = [o["data"][MIME] for o in self.output(cell) if MIME in o.get("data", {})]
        return found

    def save(self) -> None:
        self.page.run("() => jupyterapp.commands.execute('docmanager:save').then(() => true)")

    def restart(self) -> None:
        self.page.run("() => blocknb.restart()")

    def interrupt(self) -> None:
        self.page.run("() => blocknb.panel().sessionContext.session.kernel.interrupt()")

    def close(self, shut_down: bool = True) -> None:
        self.page.run("(stop) => blocknb.close(stop)", shut_down)


MIME = "application/vnd.blocknb.v1+json"


class Card(Part):
    """A card in a notebook or in an exported page."""

    def open(self, title: str) -> Part:
        """Opens a view by the title of its tab and returns its panel."""
        self(f'role=tab[name="{title}"]').click()
        return self.panel

    @property
    def panel(self) -> Part:
        """The panel of the open view."""
        return Part(self.page, f"{self.selector} >> [role=tabpanel]:not([hidden])")

    @property
    def titles(self) -> list[str]:
        return self("[role=tab]").texts

    @property
    def facts(self) -> dict[str, str]:
        """All facts by label, including the folded ones."""
        labels, texts = self(".bnb-facts .bnb-fact-label").texts, self(".bnb-facts .bnb-fact-text").texts
        return dict(zip(labels, texts, strict=True))

    @property
    def state(self) -> str:
        return self(".bnb-state").attribute("data-state") or ""

    def until_state(self, state: str, patience: float = PATIENCE) -> None:
        __tracebackhide__ = True
        eventually(lambda: self.state, lambda found: found == state, patience)

    def leave(self) -> None:
        """Moves the pointer to a place that highlights no line."""
        self(".bnb-title strong").hover()

    def target(self, label: str) -> None:
        """Selects a target."""
        self(f'.bnb-target:text-is("{label}")').click()

    def listing(self, label: str) -> Listing:
        """Returns a listing of the open view by its accessible name."""
        return Listing(self.page, f'{self.panel.selector} >> .cm-content[aria-label="{label}"]')


class Listing(Part):
    """A read-only editor."""

    @property
    def code(self) -> str:
        """The whole text, including lines out of view."""
        return self._editor("(view) => view.state.doc.toString()")

    def _editor(self, code: str, arg: Any = None) -> Any:
        return self.run(f"(element, arg) => ({code})(blocknb.editor(element), arg)", arg)

    def line(self, number: int) -> Part:
        """Scrolls to a line and returns it. Lines count from 1."""
        index = self._editor("(view, number) => blocknb.reveal(view, number)", number)
        return Part(self.page, f"{self.selector} >> .cm-line >> nth={index}")

    @property
    def lit(self) -> list[int]:
        """The numbers of the highlighted lines."""
        return self._editor("(view) => blocknb.litLines(view)")

    def find(self, text: str) -> int:
        """Returns the number of the first line that contains a text."""
        lines = self.code.split("\n")
        return next(i for i, line in enumerate(lines, 1) if text in line)
