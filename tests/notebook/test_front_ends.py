"""Other front ends than JupyterLab: cells typed in a terminal, notebooks executed by tools, and which representation each one shows.

`docs/front_ends.md` lists what works where. Tests that start other programs run with --full.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pexpect
import pytest
from IPython.core.interactiveshell import InteractiveShell

from blocknb.notebook import document
from blocknb.notebook.register import register

ROOT = Path(__file__).parents[2]
BODY = """import blocknb, numpy as np, blocknb.language as tl
@blocknb.kernel
def scale(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at))
x, out = np.ones((2, 64), np.float32)
scale[1](x, out, BLOCK=64)"""


@pytest.fixture(scope="module")
def shell():
    ip = InteractiveShell(colors="nocolor")
    register(ip)
    return ip


# ---- cells typed in a terminal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "status"),
    [
        ("%%blockkernel", ("incomplete", 0)),
        ("%%blockkernel --show ptx", ("incomplete", 0)),
        ("%%blockkernel\n", ("incomplete", 0)),
        ("%%blockkernel\n\n", ("complete", None)),
        ("%%blockkernel\nx = 1", ("incomplete", 0)),
        ("%%blockkernel\nx = 1\n", ("complete", None)),
        ("%%blockkernel\ndef f(x):", ("incomplete", 4)),
        ("%%blockkernel\ndef f(x):\n    y = 1", ("incomplete", 4)),
        ("%%blockkernel\ndef f(x):\n    y = 1\n", ("complete", None)),
        ("%%blockkernel\ndef f(x):\n    y = 1\nf[1](x)", ("incomplete", 0)),
        ("%%blockkernel\nx = (1,\n", ("incomplete", 0)),
        ('%%blockkernel\ntext = """\n', ("incomplete", 0)),
        ("%%blockkernel\nx = )", ("invalid", None)),
        ("%%blockkernels\nx = 1", ("incomplete", 0)),  # another magic: IPython's own rule
        ("%%blockkernel?", ("incomplete", 0)),
        ("%blockview scale", ("complete", None)),
        ("x = 1", ("complete", None)),
        ("def f():", ("incomplete", 4)),
    ],
)
def test_a_typed_cell_ends_with_a_blank_line_where_its_body_is_complete(shell, typed, status):
    assert shell.input_transformer_manager.check_complete(typed) == status


def test_a_cell_typed_line_by_line_is_run_once_and_whole(shell):
    """The loop of a terminal: a line is added while the cell is incomplete."""
    shown: list[dict] = []
    shell.display_pub.publish = lambda data, *args, **kwargs: shown.append(data)
    buffer, left = "%%blockkernel", f"{BODY};\n".split("\n")
    while shell.check_complete(buffer)[0] == "incomplete":
        buffer += "\n" + left.pop(0)
    assert left == [] and buffer == f"%%blockkernel\n{BODY};\n"
    shell.run_cell(buffer).raise_error()
    (card,) = shown
    assert card["text/plain"].startswith("scale: ran on CPU")


def test_a_kernel_tells_a_console_whether_a_cell_is_complete(notebook):
    """The request of `jupyter console` and of JupyterLab's code console."""

    def reply(code: str) -> tuple[str, str]:
        message = notebook.client.is_complete(code)
        while True:
            found = notebook.client.get_shell_msg(timeout=120)
            if found["parent_header"].get("msg_id") == message:
                return found["content"]["status"], found["content"].get("indent", "")

    assert reply("%%blockkernel") == ("incomplete", "")
    assert reply("%%blockkernel\ndef f(x):") == ("incomplete", "    ")
    assert reply(f"%%blockkernel\n{BODY}") == ("incomplete", "")
    assert reply(f"%%blockkernel\n{BODY}\n")[0] == "complete"


def test_a_terminal_without_colours_gets_errors_without_colours(shell, capsys):
    shell.run_cell("%%blockkernel\n@blocknb.kernel\ndef bad(x):\n    tl.store(x, nothing)\nbad[1](x)")
    text = capsys.readouterr().out
    assert "nothing" in text and "hint" not in text.split("\n")[0] and "\x1b" not in text


# ---- which representation a front end shows ------------------------------------------------------------------------------------

#: microsoft/vscode-jupyter sorts the items of an output in this order (`orderOfMimeTypes`). VS Code shows the first one that has a renderer
#: and is trusted (`CellOutputViewModel.resolveMimeTypes`).
VSCODE_ORDER = (
    "application/vnd.",
    "application/vdom.",
    "application/geo+json",
    "application/x-nteract-model-debug+json",
    "text/html",
    "application/javascript",
    "image/gif",
    "text/latex",
    "text/markdown",
    "image/png",
    "image/svg+xml",
    "image/jpeg",
    "application/json",
    "text/plain",
)
#: What VS Code renders itself. In a workspace without trust, only the second set.
VSCODE_RENDERS = {
    "text/html",
    "text/markdown",
    "text/plain",
    "image/png",
    "image/jpeg",
    "image/svg+xml",
    "application/javascript",
}
VSCODE_WITHOUT_TRUST = {"text/plain", "text/markdown", "image/png", "image/jpeg"}


def vscode(bundle: dict, renders: set[str]) -> str:
    """The MIME type of a bundle that VS Code shows."""
    ranked = sorted(bundle, key=lambda mime: next(i for i, start in enumerate(VSCODE_ORDER) if mime.startswith(start)))
    return next(mime for mime in ranked if mime in renders)


@pytest.fixture(scope="module")
def bundle(shell):
    """The output of a cell with a sweep, which has a plot."""
    shown: list[dict] = []
    shell.display_pub.publish = lambda data, *args, **kwargs: shown.append(data)
    shell.run_cell(f"%%blockkernel --sweep BLOCK=32,64\n{BODY};").raise_error()
    return shown[-1]


def test_vs_code_shows_the_static_page_and_without_trust_the_plot_or_the_text(bundle):
    assert vscode(bundle, VSCODE_RENDERS) == "text/html"
    assert vscode(bundle, VSCODE_WITHOUT_TRUST) == "image/png"
    assert vscode({k: v for k, v in bundle.items() if k != "image/png"}, VSCODE_WITHOUT_TRUST) == "text/plain"


def test_no_output_asks_for_a_widget_manager_or_a_script(bundle):
    """VS Code and Colab prefer a widget view to anything else, and then look for its model on a CDN."""
    assert set(bundle) == {document.MIME, "text/html", "text/plain", "image/png"}
    assert not re.search(r"<script|<iframe|<link|\bsrc\s*=\s*[\"']?http|javascript:", bundle["text/html"], re.I)


# ---- notebooks executed by tools -----------------------------------------------------------------------------------------------


def written(folder: Path, cells: list[str], **metadata) -> Path:
    made = [nbformat.v4.new_code_cell(text) for text in cells]
    made[0].metadata["tags"] = ["parameters"]
    spec = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}, **metadata}
    path = folder / "scale.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=made, metadata=spec), path)
    return path


CELLS = ["factor = 1", "%load_ext blocknb", f"%%blockkernel\n{BODY}", "print('sum', factor * out.sum())"]


def environment(folder: Path) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "PYTHONPATH": paths,
        "BLOCKNB_CACHE_DIR": str(folder / "cache"),
        "IPYTHONDIR": str(folder / "ipython"),
    }


def run(folder: Path, *command: str) -> None:
    subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment(folder),
        check=True,
        timeout=300,
        capture_output=True,
    )


def test_nbconvert_executes_a_notebook_and_writes_the_card(tmp_path):
    written(tmp_path, CELLS)
    run(tmp_path, "nbconvert", "--to", "html", "--execute", "scale.ipynb")
    page = (tmp_path / "scale.html").read_text("utf-8")
    assert page.count('<div class="blocknb-card">') == 1
    assert "sum 128.0" in page and "ran on CPU; GPU view: sm_90a" in page


@pytest.mark.full
def test_papermill_executes_a_notebook_with_parameters(tmp_path):
    written(tmp_path, CELLS)
    run(tmp_path, "papermill", "scale.ipynb", "done.ipynb", "-p", "factor", "3")
    done = nbformat.read(tmp_path / "done.ipynb", 4)
    outputs = [output for cell in done.cells for output in cell.get("outputs", ())]
    (card,) = [output.data for output in outputs if document.MIME in output.get("data", {})]
    assert card[document.MIME]["kernel"] == "scale" and any(output.get("text") == "sum 384.0\n" for output in outputs)


@pytest.mark.full
def test_voila_serves_the_static_card(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        unused_port = free.getsockname()[1]
    path = written(tmp_path, CELLS)
    command = [
        sys.executable,
        "-m",
        "voila",
        "--no-browser",
        f"--port={unused_port}",
        "--Voila.ip=127.0.0.1",
        str(path),
    ]
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen(
            command, cwd=tmp_path, env=environment(tmp_path), stdout=log, stderr=subprocess.STDOUT
        )
    try:
        deadline, page = time.monotonic() + 300, ""
        while not page:
            try:
                page = urllib.request.urlopen(f"http://127.0.0.1:{unused_port}/", timeout=100).read().decode()
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < deadline and server.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.2)
    finally:
        server.terminate()
        server.wait(120)
    outputs = re.findall(r'<script type="application/vnd.voila.cell-output\+json">(.*?)</script>', page, re.S)
    assert any("blocknb-card" in text and document.MIME in text for text in outputs)
    assert "sum 128.0" in page


@pytest.mark.full
@pytest.mark.parametrize("program", ["IPython", "jupyter_console"])
def test_a_cell_of_several_lines_can_be_typed(program, tmp_path):
    options = ["--no-banner", "--colors=nocolor"] if program == "IPython" else []
    own = {**environment(tmp_path), "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
    terminal = pexpect.spawn(
        sys.executable, ["-m", program, *options], env=own, encoding="utf-8", timeout=300, dimensions=(60, 200)
    )
    try:
        terminal.expect(r"In .*1")
        terminal.send("%load_ext blocknb\r")
        terminal.expect(r"In .*2")
        for line in ["%%blockkernel", *BODY.split("\n"), ""]:
            if line.startswith("x, out"):
                terminal.send("\x7f" * 4)  # the terminal has indented this line like the one before
            terminal.send(line.strip() + "\r")
            time.sleep(0.5)
        terminal.expect("scale: ran on CPU; GPU view: sm_90a")
        terminal.expect(r"In .*3")
        terminal.send("print('sum', out.sum())\r")
        terminal.expect(r"sum 128\.0")
    finally:
        terminal.close(force=True)
