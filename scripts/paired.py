"""Compares the speed of two checkouts of blocknb: `python scripts/paired.py BASE HEAD --device cpu`.

One process loads both checkouts, and both work on the same arrays. So the addresses and the load of the machine are the same for both. In
every round each checkout runs the case once, in a random order, with a cold cache. The round gives the ratio of BASE's time over HEAD's
(above 1: HEAD is faster). Where code and scratch buffers lie stays the same for the life of a process, so `--restarts` processes measure
`--rounds` rounds each. A row shows the median of the processes' medians and the 95 % interval of the median of all rounds. The interval
comes from order statistics (binomial with p = 1/2), so it assumes nothing about the noise. On a busy machine, run it with real-time
priority (`chrt -f 10`). The exit status is 1 if an interval does not exclude a loss larger than `--loss`.

`--compile` times the compilation of the kernels instead, for the CPU and a GPU.

`--without PASS` switches off a pass in all kernels that BASE compiles. With one checkout as BASE and HEAD, a ratio above 1 says that the
pass pays. Cases whose code the pass does not change are left out. `--shape` measures other shapes than the suite's:
`python scripts/paired.py . . softmax rms_norm --device gpu --without rematerialization --shape 8192x32768 --dtype fp16`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
import pkgutil
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

#: Packages whose modules are loaded at once, so that no thread of one checkout imports them while the other is active.
PACKAGES = (
    "analysis",
    "codegen",
    "frontend",
    "ir",
    "kernels",
    "language",
    "layouts",
    "passes",
    "runtime",
)
SUITES = ("bench.suite", "profile.suite")  # the package of the benchmarks, today and in older checkouts
VIEW = "sm_90a"  # the GPU for which `--compile` compiles


class Checkout:
    """A checkout's modules, loaded under the name `blocknb`, which is theirs while the checkout is `active`. `without` is a pass that it
    leaves out of all kernels, and `shapes` (of a `dtype`) take the place of the suite's."""

    def __init__(self, path: str, shapes: Sequence[str] = (), dtype: str = "", without: str = "") -> None:
        self.shapes, self.dtype = shapes, dtype
        self.root = str(Path(path).resolve())
        self.cache = tempfile.TemporaryDirectory()
        self.modules: dict[str, ModuleType] = {}
        with self.active():
            self.suite = next(name for name in SUITES if self.has(name))
            for package in (*PACKAGES, self.suite):
                folder = importlib.import_module(f"blocknb.{package}").__path__
                for found in pkgutil.walk_packages(folder, f"blocknb.{package}."):
                    if not found.name.endswith("__main__"):
                        importlib.import_module(found.name)
            if without:
                self.switch_off(without)

    @staticmethod
    def has(package: str) -> bool:
        """Whether the active checkout has this package."""
        parent, _, name = package.partition(".")
        return importlib.util.find_spec(f"blocknb.{parent}") is not None and (
            importlib.util.find_spec(f"blocknb.{parent}.{name}") is not None
        )

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside, `import blocknb` means this checkout, in this process and in processes that it starts."""
        kept = {
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "BLOCKNB_CACHE_DIR": os.environ.get("BLOCKNB_CACHE_DIR", ""),
        }
        os.environ |= {
            "PYTHONPATH": f"{self.root}{os.pathsep}{kept['PYTHONPATH']}",
            "BLOCKNB_CACHE_DIR": self.cache.name,
        }
        sys.path.insert(0, self.root)
        sys.modules.update(self.modules)
        try:
            yield
        finally:
            for name in [name for name in sys.modules if name.partition(".")[0] == "blocknb"]:
                self.modules[name] = sys.modules.pop(name)
            sys.path.remove(self.root)
            os.environ |= kept

    def switch_off(self, name: str) -> None:
        """Leaves a pass out of every compilation. Raises ValueError if there is no such optional pass."""
        passes = importlib.import_module("blocknb.passes")
        if name not in passes.optional():
            raise ValueError(f"--without {name}: the optional passes are {', '.join(passes.optional())}")
        original = passes.run

        def run(func: Any, target: Any, without: Any = (), *more: Any, **options: Any) -> Any:
            return original(func, target, {*without, name}, *more, **options)

        passes.run = run

    def module(self, name: str) -> ModuleType:
        """A module of the benchmarks."""
        return importlib.import_module(f"blocknb.{self.suite}.{name}")

    def cases(self, benchmarks: list[str], device: str) -> list[tuple[str, int, str]]:
        """(benchmark, number, title) of every case."""
        with self.active():
            known = self.module("catalogue").BENCHMARKS
            return [(n, i, str(x)) for n in benchmarks or known for i, x in enumerate(self.shaped(known[n], device))]

    def shaped(self, benchmark: Any, device: str) -> list[Any]:
        """The cases of a benchmark: the suite's, or those of the shapes that were asked for."""
        cases = benchmark.cases(device)
        if not self.shapes:
            return [case for case in cases if self.dtype in ("", case.dtype)]
        parse = self.module("definition").parse_shape
        return [replace(cases[0], shape=parse(text), dtype=self.dtype or cases[0].dtype) for text in self.shapes]

    def bench(self, name: str, index: int, device: str) -> Any:
        """The case's arrays and calls."""
        with self.active():
            measure = self.module("measure")
            benchmark = self.module("catalogue").BENCHMARKS[name]
            session = getattr(measure, "MeasuringSession", None) or measure.Session  # as older checkouts name it
            return measure.Bench(session(device, peers=()), benchmark, self.shaped(benchmark, device)[index])

    def code(self, bench: Any) -> list[str]:
        """The LLVM text of the kernels that the case compiles: nothing for kernels that another case has compiled."""
        with self.active():
            compiler = importlib.import_module("blocknb.runtime.compile")
            original, found = compiler.compile, []

            def recorded(*request: Any) -> Any:
                compiled = original(*request)
                found.append(str(compiled.trace.llvm))
                return compiled

            compiler.compile = recorded
            try:
                bench.candidate("blocknb", None).call()
            finally:
                compiler.compile = original
        return found

    def compilations(self, bench: Any) -> dict[str, Callable[[], Any]]:
        """The calls by kernel and target: they compile the kernels of the case again, without a cache, for the CPU and for `VIEW`."""
        with self.active():
            compiler = importlib.import_module("blocknb.runtime.compile")
            parse = importlib.import_module("blocknb.target").Target.parse
            asked: dict[str, Any] = {}
            original = compiler.compile

            def recorded(source: Any, kinds: Any, options: Any, target: Any) -> Any:
                for name in ("cpu", VIEW):
                    asked.setdefault(f"{source.name} {name}", (source, kinds, options, parse(name)))
                return original(source, kinds, options, target)

            compiler.compile = recorded
            try:
                bench.candidate("blocknb", None).call()
            finally:
                compiler.compile = original
            job = compiler.load().Job
        return {name: lambda request=request: job(compiler.Request(*request)).run() for name, request in asked.items()}

    def call(self, bench: Any) -> Callable[[], Any]:
        """The case's call, compiled and warm."""
        with self.active():
            call = bench.candidate("blocknb", None).call
            for _ in range(3):
                call()
            bench.session.wait()
        return call


def once(options: argparse.Namespace) -> dict[str, list[float]]:
    """By case: the ratio of each round, in this process."""
    asked = (options.shape, options.dtype)
    base, head = Checkout(options.base, *asked, without=options.without), Checkout(options.head, *asked)
    sides = [base, head]
    with head.active():
        clock = importlib.import_module("blocknb.profile.timing").clock_of(
            options.device == "gpu", cold=not options.compile
        )
    known, found = set(base.cases(options.benchmarks, options.device)), {}
    for case in head.cases(options.benchmarks, options.device)[:: options.every]:
        if case not in known:
            continue
        benches = {side: side.bench(*case[:2], options.device) for side in sides}
        for kind in ("inputs", "outputs"):  # of one meaning in one order, though a name may have changed
            theirs, ours = getattr(benches[base], kind), getattr(benches[head], kind)
            setattr(benches[head], kind, dict(zip(ours, theirs.values(), strict=True)))
        benches[head].arrays = benches[head].inputs | benches[head].outputs
        codes = [side.code(benches[side]) for side in sides] if options.without else [["without"], ["with"]]
        if codes[0] == codes[1] != []:
            print(f"{case[2]}: the same code without {options.without}", file=sys.stderr, flush=True)
            continue
        if options.compile:
            made = {side: side.compilations(benches[side]) for side in sides}
            calls = {
                f"{case[0]}: {name}": {side: made[side][name] for side in sides}
                for name in made[head]
                if name in made[base]
            }
        else:
            calls = {case[2]: {side: side.call(benches[side]) for side in sides}}
        for name, by_side in calls.items():
            found.setdefault(name, []).extend(turns(by_side, clock, options.rounds))
    return found


def turns(
    calls: dict[Checkout, Callable[[], Any]], clock: Callable[[Callable[[], Any]], float], rounds: int
) -> list[float]:
    """The first checkout's time over the second's, round by round."""
    (base, head), ratios = calls, []
    for _ in range(rounds):
        times = {}
        for side in random.sample([base, head], 2):
            with side.active():
                times[side] = clock(calls[side])
        ratios.append(times[base] / times[head])
    return ratios


def interval(ratios: list[float]) -> tuple[float, float]:
    """The ends of the median's 95 % interval: the order statistics whose binomial coverage is at least 95 %."""
    ordered, n = sorted(ratios), len(ratios)
    tail, rank = 0.0, 0
    while rank < n // 2 and tail + math.exp(_log_binomial(n, rank)) <= 0.025:
        tail += math.exp(_log_binomial(n, rank))
        rank += 1
    rank = max(rank - 1, 0)
    return ordered[rank], ordered[n - 1 - rank]


def _log_binomial(n: int, k: int) -> float:
    """The logarithm of the probability of k heads in n throws."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2)


def measured(options: argparse.Namespace) -> dict[str, list[list[float]]]:
    """By case: the ratios of each process."""
    found: dict[str, list[list[float]]] = {}
    for restart in range(options.restarts):
        done = subprocess.run([sys.executable, *sys.argv, "--once"], stdout=subprocess.PIPE, text=True, check=True)
        for case, ratios in json.loads(done.stdout.splitlines()[-1]).items():
            found.setdefault(case, []).append(ratios)
        print(f"process {restart + 1} of {options.restarts}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("base")
    parser.add_argument("head")
    parser.add_argument("benchmarks", nargs="*", help="all benchmarks of kernels if none is named")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--loss", type=float, default=0.03, help="the loss that each interval must exclude")
    parser.add_argument("--every", type=int, default=1, help="measure one case in N")
    parser.add_argument("--compile", action="store_true", help="time compilations, with no cache, in place of launches")
    parser.add_argument("--without", default="", metavar="PASS", help="a pass that BASE leaves out")
    parser.add_argument("--shape", nargs="*", default=[], help="shapes in place of the suite's, such as 8192x32768")
    parser.add_argument("--dtype", default="", help="only cases of this dtype; with --shape the dtype of all")
    parser.add_argument("--once", action="store_true", help="measure in this process and print all ratios as JSON")
    options = parser.parse_args()
    if options.once:
        print(json.dumps(once(options)))
        return 0
    lost, medians = [], []
    for case, processes in measured(options).items():
        middle = statistics.median(map(statistics.median, processes))
        low, high = interval([ratio for ratios in processes for ratio in ratios])
        medians.append(middle)
        lost += [case] if low < 1 - options.loss else []
        print(f"{case:40} {middle:.3f} [{low:.3f}, {high:.3f}]", flush=True)
    if not medians:
        print("no case to compare")
        return 0
    print(f"geometric mean of {len(medians)} cases: {statistics.geometric_mean(medians):.4f}")
    print(f"intervals that do not exclude a loss of {options.loss:.0%}: {', '.join(lost) or 'none'}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
