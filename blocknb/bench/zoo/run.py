"""`blocknb bench zoo`: runs the cases in one process per compiler, in turns, and compares kernel by kernel."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from blocknb.bench.rows import Row
from blocknb.bench.zoo import compare
from blocknb.bench.zoo.cases import LIBRARIES, missing
from blocknb.bench.zoo.process import OURS, TRITON, CompilerProcess
from blocknb.errors import Unsupported
from blocknb.target import Target

REPEATS = 5  # measurements of a case in one turn of a compiler


@dataclass(frozen=True)
class ZooOptions:
    """`libraries`: names, () means all. `rounds`: the number of measurements of a kernel by each compiler. `configs`: the most
    configurations of an autotuner, 0 means all. `limit`: seconds until a process must answer. `seconds`: no further case begins after
    them, 0 means no limit. `only`: names of cases, () means all. `share`: (i, n) takes every n-th case from the i-th on."""

    libraries: tuple[str, ...] = ()
    rounds: int = 30
    seed: int = 1
    configs: int = 0
    limit: float = 600.0
    seconds: float = 0.0
    only: tuple[str, ...] = ()
    share: tuple[int, int] = (0, 1)


def run(options: ZooOptions, say: Callable[[str], None] = print) -> list[Row]:
    """Measures the cases, prints a line per kernel and the summary. Returns a row per kernel.

    Raises Unsupported without a GPU or Triton, and ValueError for an unknown library."""
    _require()
    begin = time.perf_counter()
    workers = {name: CompilerProcess(name, options.configs, options.limit) for name in (OURS, TRITON)}
    rows: list[Row] = []
    try:
        cases, rows = chosen(workers, options, say)
        for case in cases:
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
    from blocknb.runtime import machine

    if not machine.has_gpu():
        raise Unsupported(
            "zoo measures kernels on a GPU, and CuPy found none",
            hint="blocknb bench zoo --compile sm_90a needs none",
        )
    for module in ("torch", "triton"):
        if find_spec(module) is None:
            raise Unsupported(f"zoo compares with Triton, and {module} is not installed", hint=f"pip install {module}")


def chosen(
    workers: dict[str, CompilerProcess], options: ZooOptions, say: Callable[[str], None]
) -> tuple[list[str], list[Row]]:
    """The names of the cases, and a row with the reason for each library that is left out. Says both. Raises ValueError for an unknown
    library."""
    if unknown := [name for name in options.libraries if name not in LIBRARIES]:
        raise ValueError(f"no library {unknown[0]!r}; there are {', '.join(LIBRARIES)}")
    names: list[str] = []
    left_out: list[Row] = []

    def leave_out(library: str, why: str) -> None:
        say(f"{library}: left out: {why}")
        left_out.append({"case": library, "kernel": "", "problem": why})

    for library in options.libraries or tuple(LIBRARIES):
        if why := missing(library):
            leave_out(library, why)
            continue
        for worker in workers.values():  # both import at the same time
            worker.send("list", library=library)
        answers = {name: worker.receive() for name, worker in workers.items()}
        failed = {name: answer["error"] for name, answer in answers.items() if "error" in answer}
        if failed:
            leave_out(library, "; ".join(f"under {name}, {text}" for name, text in failed.items()))
            continue
        names += next(iter(answers.values()))["cases"]
        for worker in workers.values():
            worker.listed.append(library)
    first, step = options.share
    return [name for name in names if not options.only or name in options.only][first::step], left_out


def one_case(workers: dict[str, CompilerProcess], case: str, options: ZooOptions) -> list[Row]:
    """The rows of a case: one per kernel, or one with the reason why there are no times."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder) / f"{name}.npz") for name in workers}
        checks = {
            name: worker.ask("check", case=case, seed=options.seed, save=files[name])
            for name, worker in workers.items()
        }
        problem = compare.problem(checks, files)
    if any("error" in check for check in checks.values()):
        return [{"case": case, "kernel": "", "problem": problem}]
    times: dict[str, list[Row]] = {name: [] for name in workers}
    for turn in range(-(-options.rounds // REPEATS)):
        for name in list(workers)[:: 1 if turn % 2 else -1]:
            answer = workers[name].ask("time", case=case, repeats=REPEATS)
            if "error" in answer:
                return [{"case": case, "kernel": "", "problem": f"{name}, while timing: {answer['error']}"}]
            times[name].append(answer)
    return compare.matched(case, times[OURS], times[TRITON], problem)


def compile_only(
    options: ZooOptions, target: str, say: Callable[[str], None] = print, compiler: str = OURS
) -> list[Row]:
    """Compiles the kernels of all cases for a target. Nothing runs, so it needs no GPU. Returns a row per kernel.

    Raises UnknownTarget for the name of no target, and ValueError for an unknown library."""
    Target.parse(target)
    worker = CompilerProcess(compiler, options.configs, options.limit, target)
    rows: list[Row] = []
    try:
        cases, left_out = chosen({compiler: worker}, options, say)
        for case in cases:
            answer = worker.ask("compile", case=case, seed=options.seed)
            found = answer.get("kernels", []) + (
                [{"kernel": "", "error": answer["error"]}] if "error" in answer else []
            )
            for row in found:
                rows.append({"case": case, **row})
                say(compare.compiled_line(rows[-1]))
    finally:
        worker.stop()
    refused = [row for row in rows if "error" in row]
    say(f"{len(rows) - len(refused)} kernels compiled for {target}, {len(refused)} refused")
    return rows + left_out
