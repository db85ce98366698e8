"""The oracles: what a cell may show, and the state in which it must leave the notebook."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import threading
import traceback
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import blocknb
from blocknb.cell_fuzz import schema

PACKAGE = Path(blocknb.__file__).absolute().parent
OURS = f"{PACKAGE}{os.sep}"
FUZZER = f"{OURS}cell_fuzz{os.sep}"
MIME = "application/vnd.blocknb.v1+json"
#: Functions whose operators raise Python's own errors for a wrong argument, which are meant.
ALLOWED_TO_RAISE = ("__getattr__", "cdiv")
ANSI = re.compile(r"\x1b\[[0-9;]*m")
#: An interrupt in a callback of a weak reference: Python prints it and drops it, whatever the code does.
DROPPED = re.compile(
    r"Exception ignored in: [^\n]*remove[^\n]*\nTraceback [^\n]*\n(?:  [^\n]*\n)+KeyboardInterrupt: ?\n?"
)
NOISE = ("Exception ignored in", "AST transformer", "Error in callback", "Fatal Python error")


@dataclass(frozen=True)
class CellOutcome:
    """The verdict on a sequence: its `kind` (one of `KINDS`, or "right"), a text, and the number of the cell that showed the defect."""

    kind: str
    detail: str = ""
    cell: int = 0

    @property
    def failed(self) -> bool:
        return self.kind != "right"

    @property
    def key(self) -> str:
        """A key that a shorter sequence must share with this one to show the same defect: the kind and the message without numbers."""
        head = self.detail.split("\n")[0]
        return f"{self.kind}: {re.sub(r'0x[0-9a-f]+|[0-9.]+', '#', head)[:100]}"


KINDS = {
    "wrong": "a result differs from the expected or interpreted one",
    "dead": "a correct cell fails after the cells before it",
    "traceback": "an error shows frames of blocknb, or is an internal error",
    "nowhere": "an error about a kernel shows no line of the user",
    "document": "the card's document does not match the page's schema",
    "leaked": "state, threads, files or memory remain",
    "hung": "a cell does not end, or ignores an interrupt",
    "crashed": "the process ended",
}


@dataclass
class Shown:
    """The output of a cell: its errors (with their texts), its MIME bundles, and its printed text. `interrupted`: SIGINT arrived in it."""

    errors: list[tuple[BaseException, str]] = field(default_factory=list)
    bundles: list[dict[str, Any]] = field(default_factory=list)
    printed: str = ""
    interrupted: bool = False
    succeeded: bool = True


def displayed(shown: Shown) -> tuple[str, str] | None:
    """The first defect in what a cell displayed: (kind, detail)."""
    from blocknb.cell_fuzz.inside import Silent
    from blocknb.errors import CompilerBug, KernelError
    from blocknb.fuzz.numbers import Ambiguous

    for error, text in shown.errors:
        text = ANSI.sub("", text)
        last = f"{type(error).__name__}: {error!s:.300}"
        match error:
            case Ambiguous():
                continue
            case Silent():
                return "wrong", last
            case CompilerBug():
                return "traceback", f"{last}\n{text[:3000]}"
        if place := internal(error):
            return "traceback", f"{last.split(chr(10))[0]}: in {place}\n{text[-3000:]}"
        if found := frames_of_package(text):
            return "traceback", f"{last.split(chr(10))[0]}: shows {found[-1]}\n{text[-3000:]}"
        if isinstance(error, KernelError) and "In[" not in text:
            return "nowhere", f"{last}\n{text[:2000]}"
    printed = _printed(shown)
    if any(noise in printed for noise in NOISE) or ("Traceback (most recent" in printed and frames_of_package(printed)):
        at = min(i for i in (printed.find(n) for n in (*NOISE, "Traceback")) if i >= 0)
        return "traceback", f"printed: {printed[at:].strip().split(chr(10))[-1][:200]}\n{printed[at : at + 3000]}"
    for bundle in shown.bundles:
        try:
            json.dumps(bundle, allow_nan=False)
        except (TypeError, ValueError) as error:
            return "document", f"the output is no JSON: {error}"
        if MIME in bundle and (problem := schema.problem(bundle[MIME])):
            return "document", problem
    return None


def _printed(shown: Shown) -> str:
    """The printed text without colours, and without an interrupt that Python dropped."""
    text = ANSI.sub("", shown.printed)
    return DROPPED.sub("", text) if shown.interrupted else text


def frames_of_package(text: str, package: Path = PACKAGE) -> list[str]:
    """The files of a package's folder that a traceback names, relative to that folder. IPython writes `~` for the home folder.

    The clone and the package may have the same name: `~/blocknb/tests` is not in the package of `~/blocknb/blocknb`.
    The fuzzer's own functions stand for code of the user, so `cell_fuzz/` does not count.
    """
    spellings = {str(package)}
    with contextlib.suppress(ValueError, RuntimeError):  # not in the home folder, or there is none
        spellings.add(f"~/{package.relative_to(Path.home())}")
    places = "|".join(map(re.escape, spellings))
    return re.findall(rf"(?<![\w/.~-])(?:{places})/(?!cell_fuzz/)([\w/]+\.py)", text)


def internal(error: BaseException) -> str:
    """The place in blocknb's code that raised an error without meaning to; "" for other errors.

    An error is meant if a `raise` statement raises it. An error of a library that blocknb called is not.
    """
    from IPython.core.error import UsageError

    from blocknb.errors import KernelError
    from blocknb.notebook.tracebacks import is_users

    if isinstance(error, KernelError | UsageError | KeyboardInterrupt | SystemExit | RecursionError):
        return ""
    frames = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    known = [(i, file, line) for i, (file, line) in enumerate(frames) if file.startswith(OURS) or is_users(file)]
    if not known:
        return ""
    at, file, line = known[-1]
    if not file.startswith(OURS) or file.startswith(FUZZER) or (at == len(frames) - 1 and line in raising_lines(file)):
        return ""
    return f"{file.removeprefix(OURS)}:{line}"


@cache
def raising_lines(file: str) -> frozenset[int]:
    """The lines of a module's `raise` statements, and of the functions in ALLOWED_TO_RAISE."""
    raises = [
        node
        for node in ast.walk(ast.parse(Path(file).read_text()))
        if isinstance(node, ast.Raise) or (isinstance(node, ast.FunctionDef) and node.name in ALLOWED_TO_RAISE)
    ]
    return frozenset(line for node in raises for line in range(node.lineno, (node.end_lineno or node.lineno) + 1))


def remaining(sessions: list[Any]) -> str:
    """State that a finished cell must not leave behind, such as running `sessions` of the magic; "" if there is none."""
    from blocknb.runtime import launch_context

    found = {
        name: getattr(launch_context, name)
        for name in ("observers", "preludes", "companions", "enforced", "slow_path_threads")
        if getattr(launch_context, name)
    }
    thread = launch_context.this_thread
    found |= {n: True for n in ("unobserved", "muted", "interprets") if getattr(thread, n)}
    found |= {n: getattr(thread, n) for n in ("capture", "gathered", "interpreted") if getattr(thread, n) is not None}
    found |= {"sessions": sessions} if sessions else {}
    return ", ".join(f"{name} = {value!r:.200}" for name, value in found.items())


@dataclass(frozen=True)
class Usage:
    """The resources of a process: threads, file descriptors, child processes, files in its folder for temporary files, and megabytes.

    The threads of launches do not count: blocknb keeps them, and has at most one per CPU and running launch."""

    threads: int
    descriptors: int
    children: int
    files: int
    megabytes: int

    @staticmethod
    def now() -> Usage:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        children = 0
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                children += len((task / "children").read_text().split())
        folder = os.environ.get("TMPDIR", "")
        return Usage(
            sum(thread.name != "blocknb-cpu" for thread in threading.enumerate()),
            len(os.listdir("/proc/self/fd")),
            children,
            len(os.listdir(folder)) if folder else 0,
            pages * os.sysconf("SC_PAGE_SIZE") >> 20,
        )

    def grown(self, now: Usage, sequences: int) -> str:
        """Names what has grown too much since this usage, after a number of sequences; "" if nothing has."""
        limits = {"threads": 16, "descriptors": 32, "children": 8, "files": 4, "megabytes": 300 + sequences}
        more = {name: getattr(now, name) - getattr(self, name) for name in limits}
        return ", ".join(f"{more[name]} more {name}" for name, limit in limits.items() if more[name] > limit)
