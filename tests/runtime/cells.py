"""Runs notebook cells without a notebook, here and in another process, for tests of compiled kernels in the cache.

Run as a script, it is that process. It reads lists of cells and an expression, one JSON text per line, and forgets what it has compiled.
It runs the cells in an empty namespace, launches the kernel `k`, and writes what the kernel stored and what Python computes.
"""

from __future__ import annotations

import hashlib
import json
import linecache
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import blocknb
import blocknb.language as tl
from blocknb.runtime import compile as compiler
from blocknb.runtime.kernel import Kernel

KERNEL = """
@blocknb.kernel
def k(o):
    tl.store(o, {expression})
"""


class Cells:
    """A namespace, and cells run in it. The kernel `k` stores an expression."""

    def __init__(self, **names: Any):
        self.space = {"__name__": "__main__", "blocknb": blocknb, "tl": tl, "np": np, **names}

    def run(self, text: str) -> None:
        """Runs a cell as IPython does: linecache has its text under a file name that depends on the text."""
        name = f"<cell {hashlib.sha256(text.encode()).hexdigest()[:12]}>"
        linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
        exec(compile(text, name, "exec"), self.space)

    def define(self, expression: str) -> None:
        self.run(KERNEL.format(expression=expression))

    def stored(self) -> float:
        o = np.full(1, np.nan, np.float32)
        self.space["k"][(1,)](o)
        return float(o[0])

    def expected(self, expression: str) -> float:
        """Returns the value of an expression in Python, where kernels are replaced by their functions."""
        kernels = {name: value for name, value in self.space.items() if isinstance(value, Kernel)}
        self.space.update((name, value.fn) for name, value in kernels.items())
        try:
            value = eval(expression, self.space)
        finally:
            self.space.update(kernels)
        return float(getattr(value, "value", value))


class Other:
    """Another process with the same disk cache."""

    def __init__(self, environment: Mapping[str, str] | None = None):
        root = Path(blocknb.__file__).parent.parent
        path = os.pathsep.join((str(root), str(Path(__file__).parent)))
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
        )

    def ask(self, cells: Sequence[str], expression: str, python: str = "") -> tuple[float, float, bool]:
        """Returns (the value that its kernel stored, the value of Python there, whether the code came from the disk)."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([list(cells), expression, python or expression]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert isinstance(answer, list), answer
        return tuple(answer)

    def close(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait(120)
        self.process.stdout.close()


def serve() -> None:
    for line in sys.stdin:
        try:
            answer: Any = answered(*json.loads(line))
        except Exception:  # the process that asks raises it
            answer = traceback.format_exc()
        print(json.dumps(answer), flush=True)


def answered(texts: Sequence[str], expression: str, python: str) -> tuple[float, float, bool]:
    compiler.forget()
    cells = Cells()
    for text in texts:
        cells.run(text)
    cells.define(expression)
    stored = cells.stored()
    return stored, cells.expected(python), cells.space["k"].latest.trace.from_cache


if __name__ == "__main__":
    serve()
