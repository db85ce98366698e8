"""A real JupyterLab on a free port, in folders of its own, and notebooks open in it.

The extension served is the one built in this tree. A `Notebook` is what a page shows of one: cells are written and run through
JupyterLab's own commands (laboratory.js), and `card(i)` is what a cell's output shows.
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
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}

#: What others complain of: ipywidgets' manager in a notebook that is opened with no kernel, the debugger when one restarts, and JupyterLab
#: when its server, which flushes what a kernel said before it restarted, hands on a message that begins with its topic.
OTHERS = (
    "/extensions/@jupyter-widgets/jupyterlab-manager/",
    "Could not restore the debugger state",
    "Kernel message validation error: Unexpected token 's', \"stream.stderr\" is not valid JSON",
)


def complaints(page: Page) -> list[str]:
    """What a page has said on its console as an error since the last time, and is not others'."""
    return [error for error in page.errors() if not any(other in error for other in OTHERS)]


class Lab:
    """A running server. `folder` holds its notebooks; `app` is "lab", or "tree" for Notebook 7."""

    def __init__(self, place: Path, python: str = sys.executable, app: str = "lab", port: int = 0):
        assert (EXTENSION / "package.json").is_file(), "labextension/dist is missing: run make install, or jlpm build"
        self.place, self.app, self.port = place, app, port
        self.folder = place / "notebooks"
        self.folder.mkdir(parents=True)
        (place / "jupyter" / "labextensions").mkdir(parents=True)
        (place / "jupyter" / "labextensions" / "blocknb").symlink_to(EXTENSION)
        (place / "config" / "labconfig").mkdir(parents=True)
        announcements = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
        (place / "config" / "labconfig" / "page_config.json").write_text(json.dumps(announcements))
        own = {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "JUPYTER_PATH": str(place / "jupyter"),
            "JUPYTER_CONFIG_DIR": str(place / "config"),
            "JUPYTER_DATA_DIR": str(place / "data"),
            "JUPYTER_RUNTIME_DIR": str(place / "runtime"),
            "IPYTHONDIR": str(place / "ipython"),
            "BLOCKNB_CACHE_DIR": str(place / "cache"),
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
        eventually(self._up, bool)

    def _up(self) -> bool:
        assert self.process.poll() is None, f"the server has ended:\n{self.log}"
        try:
            if not self.port:  # the server has chosen a free one, and writes it down
                (file,) = (self.place / "runtime").glob("jpserver-*.json")
                self.port = json.loads(file.read_text("utf-8"))["port"]
            return urllib.request.urlopen(f"{self.url}/api/status?token={TOKEN}", timeout=5).status == 200
        except (ValueError, urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.place / "server.log").read_text("utf-8", "replace")

    def write(self, name: str, cells: Sequence[str] | Sequence[dict[str, Any]], **metadata: Any) -> str:
        """Writes a notebook with these code cells: texts, or cells with their outputs. Gives its path, for the server."""
        made = [cell if isinstance(cell, dict) else code_cell(cell) for cell in cells]
        notebook = {"cells": made, "metadata": {**METADATA, **metadata}, "nbformat": 4, "nbformat_minor": 5}
        (self.folder / name).write_text(json.dumps(notebook), "utf-8")
        return name

    def page(self, browser: Browser, workspace: str = "default") -> Page:
        """A page of its own with the application loaded."""
        page = browser.open(SCRIPT)
        page.goto(f"{self.url}/lab/workspaces/{workspace}?token={TOKEN}&reset")
        page.until("() => !!window.jupyterapp")
        page.run("() => jupyterapp.restored.then(() => true)")
        return page

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def code_cell(source: str, outputs: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    cell = {"cell_type": "code", "id": f"c{abs(hash(source)) % 10**9}", "metadata": {}, "source": source}
    return {**cell, "execution_count": None, "outputs": list(outputs)}


class Notebook:
    """A notebook open in a page, and in front: with a kernel of its own, the one with the id `kernel`, or none (start=False)."""

    def __init__(self, page: Page, path: str, kernel: str | None = None, start: bool = True):
        self.page, self.path = page, path
        page.run("([path, kernel, start]) => blocknb.open(path, kernel, start)", [path, kernel, start])

    @classmethod
    def in_front(cls, page: Page) -> Notebook:
        """The notebook that the page shows."""
        found = cls.__new__(cls)
        found.page, found.path = page, page.run("() => blocknb.panel().context.path")
        return found

    def type(self, source: str) -> None:
        """Writes into the cell that has the cursor and presses Shift-Enter, which leads to the next; waits until it has run."""
        __tracebackhide__ = True
        self.page.run("() => blocknb.panel().content.activeCell.editor.focus()")
        self.page.type(source)
        self.page.press("Shift+Enter")
        error = self.page.run("() => blocknb.ran(blocknb.panel().content.activeCellIndex - 1)")
        assert not error, error

    def run(self, *cells: int) -> None:
        """Runs cells one after another, each to its end; fails when one raises."""
        __tracebackhide__ = True
        for cell in cells:
            error = self.page.run("(cell) => blocknb.run(cell)", cell)
            assert not error, error

    def add(self, source: str) -> int:
        """Adds a cell at the end and gives its number."""
        return self.page.run("(source) => blocknb.add(source)", source)

    def show(self, cell: int) -> Part:
        """Brings a cell into sight."""
        self.page.run("(cell) => blocknb.show(cell)", cell)
        return self.cell(cell)

    def cell(self, cell: int) -> Part:
        return self.page(f'.jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell[data-windowed-list-index="{cell}"]')

    def card(self, cell: int) -> Card:
        """The card below a cell, painted."""
        self.show(cell)
        card = Card(self.page, self.cell(cell)(".bnb-card").selector)
        card.wait()
        return card

    def complete(self, cell: int) -> Card:
        """The card below a cell, live, and with what its kernel makes for it after it was first painted: a card that is painted anew
        while the pointer's button is down misses the click."""
        card = self.card(cell)
        card.until_state("live")
        eventually(lambda: [v.get("later") for v in self.document(cell)["views"]], lambda later: not any(later))
        return card

    def source(self, cell: int) -> str:
        return self.page.run("(cell) => blocknb.cell(cell).model.sharedModel.getSource()", cell)

    def write(self, cell: int, source: str) -> None:
        """Replaces a cell's text, as an edit."""
        self.page.run("([cell, source]) => blocknb.cell(cell).model.sharedModel.setSource(source)", [cell, source])

    def lit(self, cell: int) -> list[int]:
        """The numbers of the lines that are lit in a cell's own editor."""
        return self.page.run("(cell) => blocknb.lit(cell)", cell)

    def output(self, cell: int) -> list[dict[str, Any]]:
        """The outputs of a cell, as the notebook would save them now."""
        return self.page.run("(cell) => blocknb.cell(cell).model.outputs.toJSON()", cell)

    def document(self, cell: int) -> dict[str, Any]:
        """The document of the cell's one card, as the notebook would save it now."""
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
ALIVE = '.bnb-state[data-state="{}"]'


class Card(Part):
    """A card on a page, in a notebook or alone."""

    def open(self, title: str) -> Part:
        """Opens a view by the title of its tab and gives its panel."""
        self(f'role=tab[name="{title}"]').click()
        return self.panel

    @property
    def panel(self) -> Part:
        """The view that is open."""
        return Part(self.page, f"{self.selector} >> [role=tabpanel]:not([hidden])")

    @property
    def titles(self) -> list[str]:
        return self("[role=tab]").texts

    @property
    def facts(self) -> dict[str, str]:
        return dict(zip(self(".bnb-facts dt").texts, self(".bnb-facts dd").texts, strict=True))

    @property
    def state(self) -> str:
        return self(".bnb-state").attribute("data-state") or ""

    def until_state(self, state: str, patience: float = PATIENCE) -> None:
        __tracebackhide__ = True
        eventually(lambda: self.state, lambda found: found == state, patience)

    def leave(self) -> None:
        """Takes the pointer away from everything that lights lines."""
        self(".bnb-title strong").hover()

    def target(self, label: str) -> None:
        """Looks at another target."""
        self(f'.bnb-target:text-is("{label}")').click()

    def listing(self, label: str) -> Listing:
        """A listing of the open view by the name that it has for those who hear it."""
        return Listing(self.page, f'{self.panel.selector} >> .cm-content[aria-label="{label}"]')


class Listing(Part):
    """A read-only editor."""

    @property
    def code(self) -> str:
        """Its whole text, also what has been scrolled out of sight."""
        return self._editor("(view) => view.state.doc.toString()")

    def _editor(self, code: str, arg: Any = None) -> Any:
        return self.run(f"(element, arg) => ({code})(blocknb.editor(element), arg)", arg)

    def line(self, number: int) -> Part:
        """A line by its number, counted from 1, brought into sight."""
        index = self._editor("(view, number) => blocknb.reveal(view, number)", number)
        return Part(self.page, f"{self.selector} >> .cm-line >> nth={index}")

    @property
    def lit(self) -> list[int]:
        """The numbers of the lines that are lit."""
        return self._editor("(view) => blocknb.litLines(view)")

    def find(self, text: str) -> int:
        """The number of the first line with this text in it."""
        lines = self.code.split("\n")
        return next(i for i, line in enumerate(lines, 1) if text in line)
