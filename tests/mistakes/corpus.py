"""Reads the corpus of cells, runs a cell in an IPython shell of this process, and collects what blocknb tells about it.

A file in wrong/ holds mistakes. A mistake is a cell, carets below the lines that the message may point to, and the words of the message.
There is one text per line, and the text of `! text` must not occur. A file in right/ holds cells whose launches are right, some of which
look like mistakes.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CARETS = re.compile(r"\s*\^+\s*")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
SETUP = "import numpy as np, blocknb, blocknb.language as tl\nnp.random.seed(0)"
#: The check that raises an error, by the error's class.
CHECKS = {
    "TypeMismatch": "front end",
    "SyntaxUnsupported": "front end",
    "CompilationError": "front end",
    "Unsupported": "front end",
    "LaunchError": "launch",
    "AccessError": "bounds check",
}


class OnGpu:
    """An array that claims to be in GPU memory; a launch must refuse it beside NumPy arrays before it touches the memory."""

    def __init__(self, shape: tuple[int, ...], typestr: str):
        self.shape = shape
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": (1 << 20, False), "version": 3}


@dataclass(frozen=True)
class Entry:
    """One cell of the corpus. `lines` are the numbers of the lines that the message may point to, from 1."""

    group: str
    name: str
    cell: str
    lines: tuple[int, ...]
    says: tuple[str, ...]


@dataclass(frozen=True)
class Told:
    """What blocknb told about a cell: the text of its errors and of its cards' findings, the check that found it, and the seconds.

    `accused` is whether it called the cell wrong or probably wrong; remarks accuse nothing.
    """

    text: str
    check: str
    seconds: float
    accused: bool

    def missing(self, entry: Entry) -> list[str]:
        """The words that the text lacks or must not have, and the place if the text names none of the entry's lines."""
        absent = [
            part for part in entry.says if (part[2:] in self.text if part.startswith("! ") else part not in self.text)
        ]
        places = set(map(int, re.findall(r"(?:\blines? |\band |^File <[^>]*>:)(\d+)", self.text, re.MULTILINE)))
        return [*absent, *([f"line {entry.lines}"] if entry.lines and not places & set(entry.lines) else [])]


def read(path: Path) -> Iterator[Entry]:
    """The entries of one file."""
    for text in re.split(r"^== ", path.read_text(), flags=re.MULTILINE)[1:]:
        name, _, rest = text.partition("\n")
        source, _, says = rest.partition("\n-- says\n")
        lines: list[str] = []
        places = []
        for line in source.strip("\n").splitlines():
            if CARETS.fullmatch(line):
                places.append(len(lines))
            else:
                lines.append(line)
        yield Entry(path.stem, name, "\n".join(lines) + "\n", tuple(places), tuple(filter(None, says.splitlines())))


def entries(kind: str) -> dict[str, Entry]:
    """All entries of a kind, "wrong" or "right", by name."""
    return {entry.name: entry for path in sorted((HERE / kind).glob("*.txt")) for entry in read(path)}


class Shell:
    """An IPython shell with the magics, whose displays are kept."""

    def __init__(self) -> None:
        from IPython.core.interactiveshell import InteractiveShell

        from blocknb.notebook.register import register

        self.ip: Any = InteractiveShell()
        self.displayed: list[dict[str, Any]] = []
        self.ip.display_pub.publish = lambda data, *args, **kwargs: self.displayed.append(data)
        register(self.ip)

    def run(self, entry: Entry) -> Told:
        """Runs the cell of an entry in an empty namespace."""
        self.ip.reset(new_session=False, aggressive=False)
        self.ip.run_cell(SETUP)
        self.ip.user_ns["OnGpu"] = OnGpu
        self.displayed.clear()
        output, begin = io.StringIO(), time.perf_counter()
        with redirect_stdout(output), redirect_stderr(output):
            result = self.ip.run_cell(entry.cell, store_history=True)
        seconds = time.perf_counter() - begin
        error = result.error_in_exec or result.error_before_exec
        facts = [
            fact for document in self._documents() for fact in document["facts"] if "machine is busy" not in fact[1]
        ]
        findings = [text for key, text in facts if key in FACTS and not text.startswith("correct:")]
        accused = error is not None or any(
            key in ACCUSING or (key == "check" and not text.startswith("correct:")) for key, text in facts
        )
        printed = COLOURS.sub("", output.getvalue()) if error else ""
        text = "\n".join([*filter(None, [printed]), *findings])
        named = [text for key, text in facts if key in FACTS and key != "cause" and not text.startswith("correct:")]
        return Told(text, self._check(error, named), seconds, accused)

    def _documents(self) -> list[dict[str, Any]]:
        from blocknb.notebook.document import MIME

        return [data[MIME] for data in self.displayed if MIME in data]

    @staticmethod
    def _check(error: BaseException | None, findings: list[str]) -> str:
        if error is not None:
            return next((CHECKS[c.__name__] for c in type(error).__mro__ if c.__name__ in CHECKS), "cell")
        wrong = any(text.startswith("✗ WRONG") for text in findings)
        more = len(findings) > (2 if wrong else 0)  # beside the verdict and the first wrong element
        return {(True, True): "--check and footprint", (True, False): "--check", (False, True): "footprint"}.get(
            (wrong, more), "none"
        )


#: The facts of a card that tell mistakes.
FACTS = ("check", "first wrong", "cause", "error", "warning", "remark")
ACCUSING = ("error", "warning")
