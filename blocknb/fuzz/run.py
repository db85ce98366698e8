"""`blocknb fuzz`: runs random kernels, and names the stage of the compiler that introduced each failure.

Worker processes run the kernels, many per module. A failing kernel is reduced, attributed to a stage, and written as a script that exits
with status 1 as long as the defect exists.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

from blocknb.fuzz import execute, reproducer
from blocknb.fuzz import tree as t
from blocknb.fuzz.blame import Blame
from blocknb.fuzz.execute import Outcome
from blocknb.fuzz.generate import generate
from blocknb.fuzz.shrink import pruned, shrink
from blocknb.fuzz.worker import PATIENCE, Died, Setup, Worker

BATCH, GPU_BATCH = 16, 64  # kernels per module
KINDS = ("wrong", "outside", "refused", "crashed", "hung")


@dataclass(frozen=True)
class FuzzOptions:
    """The work of a run: kernels `first` to `first + count` of a seed (`count` 0: until `seconds` have passed), in `jobs` processes.

    Findings are written to the folder `out`. At most `minimise` of them are reduced, for up to `patience` seconds each.
    """

    seed: int
    setup: Setup = field(default_factory=Setup)
    seconds: float = 0.0
    count: int = 0
    first: int = 0
    jobs: int = 1
    out: str = "fuzz-findings"
    minimise: int = 10
    patience: float = 60.0


@dataclass
class Findings:
    """Outcomes by kernel number, and the reduced failures: (kernel number, small kernel, outcome, blame, file)."""

    outcomes: dict[int, Outcome] = field(default_factory=dict)
    seconds: float = 0.0
    reduced: list[tuple[int, t.KernelTree, Outcome, Blame, str]] = field(default_factory=list)

    @property
    def failed(self) -> dict[int, Outcome]:
        return {number: outcome for number, outcome in sorted(self.outcomes.items()) if outcome.failed}

    def summary(self) -> str:
        counts = Counter(outcome.kind for outcome in self.outcomes.values())
        rate = len(self.outcomes) / self.seconds if self.seconds else 0.0
        rest = f"; {counts['ambiguous']} ambiguous, {counts['invalid']} invalid"
        parts = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
        return f"{len(self.outcomes)} kernels in {self.seconds:.1f} s, {rate:.1f} kernels/s: {parts}{rest}"


def collect(options: FuzzOptions) -> Findings:
    """Runs the kernels without reducing failures."""
    found, begin = Findings(), time.monotonic()
    workers = [Worker(options.setup) for _ in range(options.jobs)]
    waiting: dict[Worker, list[int]] = {}
    following, last = options.first, options.first + options.count
    reported = begin
    try:
        while True:
            for worker in workers:
                over = (options.count and following >= last) or (
                    options.seconds and time.monotonic() - begin > options.seconds
                )
                if worker not in waiting and not over:
                    batch = GPU_BATCH if options.setup.device == "cuda" else BATCH
                    size = min(batch, last - following) if options.count else batch
                    waiting[worker] = list(range(following, following + size))
                    worker.post("run", options.seed, following, size)
                    following += size
            if not waiting:
                break
            _take(waiting, found)
            if time.monotonic() - reported > 15:
                reported = found.seconds = time.monotonic()
                found.seconds = reported - begin
                print(found.summary(), file=sys.stderr, flush=True)
    finally:
        for worker in workers:
            worker.stop()
    found.seconds = time.monotonic() - begin
    return found


def _take(waiting: dict[Worker, list[int]], found: Findings) -> None:
    """Collects available answers of workers. A kernel whose worker died or hung is a finding, and the rest of its batch continues."""
    ready = wait([worker.connection for worker in waiting], 1.0)
    for worker in [w for w in waiting if w.connection in ready or w.silent > PATIENCE]:
        numbers = waiting[worker]
        try:
            number, outcome = worker.take(0.0)
        except Died as death:
            number, outcome = numbers[0], death.outcome
            if numbers[1:]:
                worker.post("run", worker.last[0], numbers[1], len(numbers) - 1)
        found.outcomes[number] = outcome
        numbers.remove(number)
        if not numbers:
            del waiting[worker]


def reduce(options: FuzzOptions, found: Findings, number: int, worker: Worker) -> None:
    """Reduces the kernel of a finding, blames a stage, and writes a reproducer."""
    kernel, outcome = generate(options.seed, number), found.outcomes[number]

    def outcome_of(kernel: t.KernelTree) -> Outcome:
        try:
            return worker.ask("attempt", kernel, seconds=PATIENCE / 4)
        except Died as death:
            return death.outcome

    if outcome_of(kernel).key == outcome.key:
        on_gpu = options.setup.device != "cpu"
        kernel = shrink(
            pruned(kernel), lambda k: outcome_of(k).key == outcome.key, outcome.launch, options.patience, on_gpu
        )
        outcome = outcome_of(kernel)
    try:
        blamed = worker.ask("blame", kernel, outcome)
    except Died as death:
        blamed = Blame(f"unknown: {death.outcome.kind}")
    os.makedirs(options.out, exist_ok=True)
    path = Path(options.out) / f"seed{options.seed}_kernel{number}.py"
    setup = options.setup
    features = f" --features {setup.features}" if setup.features else ""
    command = f"blocknb fuzz --seed {options.seed} --first {number} --count 1 --target {setup.device}{features}"
    path.write_text(reproducer.script(kernel, outcome, blamed, command, setup.device, setup.features))
    found.reduced.append((number, kernel, outcome, blamed, str(path)))


def run(options: FuzzOptions) -> int:
    """Runs the command; returns 0 if every kernel was right."""
    print(
        f"seed {options.seed}, {options.setup.device} {options.setup.features or 'native'}, {options.jobs} processes",
        flush=True,
    )
    found = collect(options)
    print(found.summary())
    worker = Worker(options.setup)
    try:
        for number, outcome in found.failed.items():
            if len(found.reduced) >= options.minimise:
                print(f"kernel {number}: {outcome.kind}; {outcome.detail.splitlines()[0] if outcome.detail else ''}")
                continue
            reduce(options, found, number, worker)
            _, kernel, outcome, blamed, path = found.reduced[-1]
            print(
                f"\nkernel {number}: {outcome.kind}; went wrong: {blamed}; {path}\n{outcome.detail}\n{execute.describe(kernel)}",
                flush=True,
            )
    finally:
        worker.stop()
    return 1 if found.failed else 0
