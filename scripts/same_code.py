"""Compares the LLVM text that two checkouts generate for the kernels of the tests: `python scripts/same_code.py BASE HEAD [--tests T ...]`.

Each checkout runs its own tests (all quick ones if none is named) in a process with a plugin, `CodeRecorder`. The recorder takes every
kernel of `tests/kernels`, and every other kernel that reaches the passes. It compiles them for each of `TARGETS` up to LLVM text. It keeps
the text in a normal form without symbols, strings, comments, debug metadata and the names of values. Two checkouts generate the same code
if they give the same set of texts. A kernel that a target refuses counts as a text, too: the kind of the error. `--sass N` also assembles a
sample of N texts with each checkout's own worker and compares the machine code. `make same-code BASE=COMMIT` compares a commit with the
working tree. `--save FILE` keeps the record of BASE, and such a file may stand in place of a checkout. The exit status is 1 if the sets
differ.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TARGETS = ("sm_80", "sm_90a", "cpu")
RECORD = "BLOCKNB_CODE_RECORD"  # environment variable: the file that the recorder writes

_DEBUG = re.compile(r",? ?!(?:dbg|noundef\.loc) !\d+")
_STRING = re.compile(r'c"(?:[^"\\]|\\.)*"')
_COMMENT = re.compile(r' // [^"\\]*')  # of PTX, within an asm string
_NAME = re.compile(r'([%@])("[^"]*"|[\w.$-]+)')
_LABEL = re.compile(r"^([\w.$-]+):", re.MULTILINE)
_KEPT = re.compile(r"llvm\.|__nv_|malloc|free")  # functions that are known by their names


def normalized(text: str) -> str:
    """LLVM text without comments, debug metadata and strings, its declarations sorted and its names numbered by appearance."""
    lines = [_DEBUG.sub("", line.split(" ; ")[0].rstrip()) for line in text.splitlines()]
    lines = [
        _COMMENT.sub("", _STRING.sub('c""', x)) for x in lines if x and not x.startswith((";", "!", "source_filename"))
    ]
    declares = sorted(line for line in lines if line.startswith("declare"))
    lines = _LABEL.sub(r"%\1:", "\n".join(x for x in lines if not x.startswith("declare"))).split("\n")
    names: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        sigil, name = match.groups()
        if sigil == "@" and _KEPT.match(name):
            return match[0]
        return names.setdefault(match[0], f"{sigil}{len(names)}")

    return "\n".join([_NAME.sub(numbered, line) for line in lines] + declares)


class CodeRecorder:
    """Compiles every kernel that reaches the passes for all targets and records the normal form of its LLVM text."""

    def __init__(self, file: Path) -> None:
        from blocknb import passes

        self.file, self.run = file, passes.run
        self.known: set[tuple[str, tuple[str, ...]]] = set()
        self.found: dict[str, dict[str, Any]] = {}  # digest -> target, text and the test that gave it first
        self.test = ""
        passes.run = self.record

    def record(self, func: Any, target: Any, without: Any = (), *more: Any, **options: Any) -> Any:
        from blocknb.ir.text import print_func

        without = tuple(sorted(without))
        if func.level == "tile" and (key := (print_func(func, ids=False), without)) not in self.known:
            self.known.add(key)
            for name in TARGETS:
                self.compile(func, name, without)
        return self.run(func, target, without, *more, **options)

    def compile(self, func: Any, name: str, without: tuple[str, ...]) -> None:
        from blocknb.codegen import cpu, gpu
        from blocknb.target import Target

        target = Target.parse(name)
        try:
            lowered = self.run(func, target, without)[0]
            text = (gpu.generate(lowered, target) if target.is_gpu else cpu.generate(lowered, target, True)).text
            normal = normalized(text)
        except Exception as error:  # a kernel that a target refuses is a result, too
            text, normal = "", f"{type(error).__name__}"
        digest = hashlib.sha256(f"{name}\n{normal}".encode()).hexdigest()[:24]
        row = {"target": name, "test": self.test, "kernel": func.name, "text": text, "normal": normal}
        self.found.setdefault(digest, row)

    def pytest_collection_finish(self, session: Any) -> None:
        """Records the kernels of tests/kernels, of which quick tests run a sample."""
        import numpy as np
        from kernels import CASES, GPU_CASES

        from blocknb.target import Target

        for name, case in (*CASES.items(), *GPU_CASES.items()):
            self.test = f"tests/kernels: {name}"
            self.record(case.parse(case.make(np.random.default_rng(0))), Target.parse("cpu"))

    def pytest_runtest_setup(self, item: Any) -> None:
        self.test = item.nodeid

    def pytest_sessionfinish(self) -> None:
        self.file.write_text(json.dumps(self.found))


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(CodeRecorder(Path(os.environ[RECORD])))


def recorded(place: str, tests: list[str]) -> dict[str, dict[str, Any]]:
    """The texts that a checkout generates while it runs the tests, or those of a file that recorded them."""
    path = Path(place).resolve()
    if path.is_file():
        return json.loads(path.read_text())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record.json"
        search = os.pathsep.join([str(path), str(path / "tests"), str(Path(__file__).resolve().parent)])
        environment = os.environ | {RECORD: str(file), "PYTHONPATH": search, "BLOCKNB_CACHE_DIR": f"{folder}/cache"}
        wanted = [test for test in tests if (path / test.split("::")[0]).exists()] or [
            "tests",
            "--ignore=tests/browser",
        ]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "same_code", "-p", "no:cacheprovider", *wanted]
        done = subprocess.run(command, cwd=path, env=environment, capture_output=True, text=True)
        print(f"{place}: {(done.stdout.strip().splitlines() or [done.stderr])[-1]}", file=sys.stderr, flush=True)
        return json.loads(file.read_text())


def machine_code(place: str, rows: list[dict[str, Any]]) -> list[str]:
    """The SASS of LLVM texts, assembled by a checkout's own worker."""
    code = (
        "import json, sys\nfrom blocknb.codegen import llvm, sass\nfrom blocknb.target import Target\n"
        "def listing(row):\n"
        "    target = Target.parse(row['target'])\n"
        "    made = llvm.shared().wait(llvm.compile_cuda(row['text'], target))\n"
        "    return [line.text for line in llvm.shared().wait(sass.disassemble(made.cubin, target)).lines]\n"
        "print(json.dumps([listing(row) for row in json.load(sys.stdin)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, env=os.environ | {"PYTHONPATH": place}, input=json.dumps(rows), text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    return [hashlib.sha256("\n".join(listing).encode()).hexdigest() for listing in json.loads(done.stdout)]


def report(base: dict[str, dict[str, Any]], head: dict[str, dict[str, Any]], show: int) -> bool:
    """Prints how many texts are the same for each target, and differences between the closest ones; returns whether all are."""
    for name in TARGETS:
        ours, theirs = ({d for d, row in side.items() if row["target"] == name} for side in (head, base))
        print(
            f"{name:7} {len(ours & theirs)} texts the same, {len(theirs - ours)} only in BASE, {len(ours - theirs)} only in HEAD"
        )
    lost, new = ([row for d, row in one.items() if d not in other] for one, other in ((base, head), (head, base)))
    for row in lost[:show]:
        near = [x for x in new if (x["kernel"], x["target"]) == (row["kernel"], row["target"])] or [
            {"normal": "", "test": "none"}
        ]
        best = min(near, key=lambda x: abs(len(x["normal"]) - len(row["normal"])))
        lines = difflib.unified_diff(
            row["normal"].split("\n"), best["normal"].split("\n"), row["test"], best["test"], "", "", 2, ""
        )
        print(f"\n{row['target']} {row['kernel']}", *list(lines)[:30], sep="\n")
    return not lost and not new


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("base", help="a checkout, or a file that --save wrote")
    parser.add_argument("head", nargs="?", help="a checkout; without it BASE is recorded only")
    parser.add_argument(
        "--tests", nargs="*", default=[], help="what pytest runs; those that a checkout lacks are left out"
    )
    parser.add_argument("--save", type=Path, help="keep the record of BASE in this file")
    parser.add_argument(
        "--sass", type=int, default=0, metavar="N", help="compare the machine code of N texts of each GPU"
    )
    parser.add_argument("--show", type=int, default=5, help="how many differences to print")
    options = parser.parse_args()
    base = recorded(options.base, options.tests)
    if options.save:
        options.save.write_text(json.dumps(base))
    if options.head is None:
        return 0
    head = recorded(options.head, options.tests)
    same = report(base, head, options.show)
    for name in TARGETS[:2] if options.sass else ():
        chosen = [d for d in sorted(base) if d in head and base[d]["target"] == name and base[d]["text"]][
            : options.sass
        ]
        first, second = (
            machine_code(p, [s[d] for d in chosen]) for p, s in ((options.base, base), (options.head, head))
        )
        different = sum(a != b for a, b in zip(first, second, strict=True))
        print(f"{name:7} SASS of {len(chosen)} texts: {different} differ")
        same = same and not different
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
