"""`blocknb bench zoo`: runs the cases in one process per compiler, in turns, and compares kernel by kernel."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blocknb.bench.rows import Row
from blocknb.bench.zoo import compare
from blocknb.bench.zoo.cases import LIBRARIES, missing
from blocknb.errors import Unsupported

OURS, TRITON = "blocknb", "triton"
REPEATS = 5  # measurements of a case per round
LIMIT = 60  # seconds for one answer


@dataclass(frozen=True)
class ZooOptions:
    """`libraries`: names, () means all. `rounds`: how often the two processes take turns. `configs`: the most configurations of an
    autotuner, 0 means all. `seconds`: a limit, 0 means none. `only`: names of cases, () means all. `share`: (i, n) takes every n-th case
    from the i-th on. `check_only`: compile and compare results, without times."""

    libraries: tuple[str, ...] = ()
    rounds: int = 4
    seed: int = 1
    configs: int = 4
    seconds: float = 0.0
    only: tuple[str, ...] = ()
    share: tuple[int, int] = (0, 1)
    check_only: bool = False


class CompilerProcess:
    """The worker of a compiler, started again if it dies: a kernel that reads invalid memory ends its process."""

    def __init__(self, compiler: str, options: ZooOptions, target: str = "") -> None:
        self.compiler, self.options, self.target = compiler, options, target
        self.process: subprocess.Popen[str] | None = None
        self.listed: list[str] = []

    def ask(self, do: str, **request: Any) -> Row:
        """The answer to a request; {"error": text} if the process died of it."""
        self.send(do, **request)
        return self.receive()

    def send(self, do: str, **request: Any) -> None:
        """Sends a request, whose answer `receive` waits for."""
        process = self._running()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `receive` finds out
            process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            process.stdin.flush()

    def receive(self) -> Row:
        """The answer to the oldest request."""
        process = self._running()
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], LIMIT)
        if not ready:
            self.stop()
            return {"error": f"no answer within {LIMIT} seconds"}
        line = process.stdout.readline()
        if not line:
            self.stop()
            return {"error": "the process died"}
        answer: Row = json.loads(line)
        if "error" in answer and _fatal(answer["error"]):
            self.stop()
        return answer

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            command = [sys.executable, "-m", "blocknb.bench.zoo.worker", self.compiler, self.target or "-"]
            command.append(str(self.options.configs))
            errors = open(os.environ.get("BLOCKNB_ZOO_LOG", os.devnull), "a")
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            errors.close()
            for library in self.listed:
                self.ask("list", library=library)
        return self.process

    def stop(self) -> None:
        """Ends the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def _fatal(error: str) -> bool:
    """Whether CUDA refuses all further work of a process after this error."""
    text = error.lower()
    return any(word in text for word in ("illegal memory", "misaligned address", "launch failure", "illegal instruction"))


def run(options: ZooOptions, say: Callable[[str], None] = print) -> list[Row]:
    """Measures the cases, prints a line per kernel and the summary. Returns a row per kernel. Raises Unsupported without a GPU or Triton."""
    _require()
    begin = time.perf_counter()
    workers = {name: CompilerProcess(name, options) for name in (OURS, TRITON)}
    rows: list[Row] = []
    try:
        for case in chosen(workers, options, say):
            if options.seconds and time.perf_counter() - begin > options.seconds:
                say(f"stopped after {options.seconds:g} seconds")
                break
            found = one_case(workers, case, options)
            for row in found:
                row["at"] = round(time.perf_counter() - begin, 1)
            rows += found
            for row in found:
                say(compare.line(row))
    finally:
        for worker in workers.values():
            worker.stop()
    say(compare.summary(rows))
    return rows


def _require() -> None:
    from importlib.util import find_spec

    from blocknb.runtime import machine

    if not machine.has_gpu():
        raise Unsupported("zoo measures kernels on a GPU, and CuPy found none", hint="blocknb bench zoo --compile sm_90a")
    for module in ("torch", "triton"):
        if find_spec(module) is None:
            raise Unsupported(f"zoo compares with Triton, and {module} is not installed", hint=f"pip install {module}")


def chosen(
    workers: dict[str, CompilerProcess], options: ZooOptions, say: Callable[[str], None]
) -> list[str]:
    """The names of the cases. Says which libraries are left out, and why."""
    names: list[str] = []
    for library in options.libraries or tuple(LIBRARIES):
        if why := missing(library):
            say(f"{library}: left out: {why}")
            continue
        for worker in workers.values():  # both import at the same time
            worker.send("list", library=library)
        answers = {name: worker.receive() for name, worker in workers.items()}
        failed = {name: answer["error"] for name, answer in answers.items() if "error" in answer}
        if failed:
            say(f"{library}: left out: " + "; ".join(f"under {name}, {text}" for name, text in failed.items()))
            continue
        names += next(iter(answers.values()))["cases"]
        for worker in workers.values():
            worker.listed.append(library)
    first, step = options.share
    return [name for name in names if not options.only or name in options.only][first::step]


def one_case(workers: dict[str, CompilerProcess], case: str, options: ZooOptions) -> list[Row]:
    """The rows of a case: one per kernel, or one with the reason why there are no times."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder) / f"{name}.npz") for name in workers}
        checks = {
            name: worker.ask("check", case=case, seed=options.seed, save=files[name])
            for name, worker in workers.items()
        }
        problem = compare.problem(checks, files)
    if any("error" in check for check in checks.values()) or options.check_only:
        return [{"case": case, "kernel": "", "problem": problem}]
    times: dict[str, list[Row]] = {name: [] for name in workers}
    for turn in range(options.rounds):
        for name in list(workers)[:: 1 if turn % 2 else -1]:
            answer = workers[name].ask("time", case=case, repeats=REPEATS)
            if "error" in answer:
                return [{"case": case, "kernel": "", "problem": f"{name}, while timing: {answer['error']}"}]
            times[name].append(answer)
    return compare.matched(case, times[OURS], times[TRITON], problem)


def compile_only(
    options: ZooOptions, target: str, say: Callable[[str], None] = print, compiler: str = OURS
) -> list[Row]:
    """Compiles the kernels of all cases for a target. Nothing runs, so it needs no GPU. Returns a row per kernel."""
    worker = CompilerProcess(compiler, options, target)
    rows: list[Row] = []
    try:
        for case in chosen({compiler: worker}, options, say):
            answer = worker.ask("compile", case=case, seed=options.seed)
            if "error" not in answer:
                say(f"compiled {case}")
            found = answer.get("kernels", []) + ([{"kernel": "", "error": answer["error"]}] if "error" in answer else [])
            for row in found:
                rows.append({"case": case, **row})
                say(compare.compiled_line(rows[-1]))
    finally:
        worker.stop()
    refused = [row for row in rows if "error" in row]
    say(f"{len(rows) - len(refused)} kernels compiled for {target}, {len(refused)} refused")
    return rows


def shares(text: str) -> tuple[int, int]:
    """The share "i/n" as (i, n). Raises ValueError."""
    first, _, step = text.partition("/")
    return int(first), int(step)


def main(arguments: Sequence[str]) -> int:
    """For jobs: `python -m blocknb.bench.zoo.run liger,fla [key=value]...`."""
    given: dict[str, Any] = dict(item.split("=", 1) for item in arguments[1:])
    target, path, compiler = given.pop("compile", ""), given.pop("json", ""), given.pop("compiler", OURS)
    lines: Callable[[str], tuple[str, ...]] = lambda file: tuple(Path(file).read_text().split())  # noqa: E731
    kinds: dict[str, Callable[[str], Any]] = {"share": shares, "seconds": float, "only": lines, "check_only": bool}
    options = ZooOptions(
        libraries=tuple(name for name in arguments[0].split(",") if name),
        **{name: kinds.get(name, int)(value) for name, value in given.items()},
    )
    say = lambda text: print(text, flush=True)  # noqa: E731
    rows = compile_only(options, target, say, compiler) if target else run(options, say)
    if path:
        Path(path).write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
