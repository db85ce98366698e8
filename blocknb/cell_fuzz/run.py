"""`blocknb fuzz --cells`: runs random sequences of cells in worker processes, and reduces each failure to a few cells.

A finding is a file of cells (`cell`), which `blocknb fuzz --replay FILE` runs. The tests replay all files of tests/fuzzing/found.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blocknb.cell_fuzz.cell import CellSequence, parse
from blocknb.cell_fuzz.generate import generate
from blocknb.cell_fuzz.oracles import KINDS, CellOutcome
from blocknb.cell_fuzz.shrink import shrink
from blocknb.fuzz.worker import Died, Setup, Worker

PATIENCE = 75.0  # seconds for one cell; the worker interrupts a slow one before
SETUP = Setup(prepare="blocknb.cell_fuzz.requests")


@dataclass(frozen=True)
class CellFuzzOptions:
    """The work of a run: sequences `first` to `first + count` of a seed (`count` 0: until `seconds` have passed), in `jobs` processes.

    Findings are written to the folder `out`. At most `minimise` of them are reduced, for up to `patience` seconds each.
    """

    seed: int
    seconds: float = 0.0
    count: int = 0
    first: int = 0
    jobs: int = 1
    out: str = "fuzz-findings"
    minimise: int = 10
    patience: float = 60.0
    setup: Setup = SETUP


@dataclass
class CellFindings:
    """The outcomes by number of the sequence, the number of cells that ran, and the reduced failures with their files."""

    outcomes: dict[int, CellOutcome] = field(default_factory=dict)
    cells: int = 0
    seconds: float = 0.0
    reduced: list[tuple[int, CellSequence, CellOutcome, str]] = field(default_factory=list)

    @property
    def failed(self) -> dict[int, CellOutcome]:
        return {number: outcome for number, outcome in sorted(self.outcomes.items()) if outcome.failed}

    def summary(self) -> str:
        counts = Counter(outcome.kind for outcome in self.outcomes.values())
        rate = self.cells / self.seconds if self.seconds else 0.0
        parts = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
        return (
            f"{self.cells} cells in {len(self.outcomes)} sequences in {self.seconds:.1f} s, {rate:.1f} cells/s: {parts}"
        )


def outcome_of(worker: Worker, request: str, *args: Any) -> tuple[CellOutcome, int]:
    """Runs a sequence in a worker; returns the outcome and the number of cells that began. A dead or silent worker is an outcome."""
    cell = 0
    worker.post(request, *args)
    while True:
        folder = worker.folder.name
        stacks = Path(folder) / "hung.txt"
        try:
            found = worker.take(PATIENCE)
        except Died as death:
            if death.outcome.kind == "hung" and stacks.is_file():
                return CellOutcome("hung", f"{death.outcome.detail}\n{stacks.read_text()[-3000:]}", cell), cell + 1
            return CellOutcome(death.outcome.kind, death.outcome.detail, cell), cell + 1
        if isinstance(found, CellOutcome):
            return found, cell + 1
        cell = found


def collect(options: CellFuzzOptions) -> CellFindings:
    """Runs the sequences without reducing failures."""
    found, begin, lock = CellFindings(), time.monotonic(), threading.Lock()
    numbers = _numbers(options, begin)

    def work() -> None:
        worker = Worker(options.setup)
        try:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                outcome, cells = outcome_of(worker, "generated", options.seed, number)
                with lock:
                    found.outcomes[number] = outcome
                    found.cells += cells
                    found.seconds = time.monotonic() - begin
                if outcome.failed:
                    print(f"sequence {number}: {_headline(outcome)}", file=sys.stderr, flush=True)
        finally:
            worker.stop()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for thread in threads:
            thread.join(15 / len(threads))
        print(found.summary(), file=sys.stderr, flush=True)
    return found


def _numbers(options: CellFuzzOptions, begin: float) -> Iterator[int]:
    number = options.first
    while number < options.first + options.count if options.count else time.monotonic() - begin < options.seconds:
        yield number
        number += 1


def reduce(options: CellFuzzOptions, found: CellFindings, number: int) -> None:
    """Reduces the sequence of a finding in a fresh process, and writes it to a file."""
    sequence, outcome = generate(options.seed, number), found.outcomes[number]
    worker = Worker(options.setup)
    try:
        sequence, outcome = reduced(sequence, outcome, lambda s: outcome_of(worker, "given", s)[0], options.patience)
    finally:
        worker.stop()
    os.makedirs(options.out, exist_ok=True)
    path = Path(options.out) / f"seed{options.seed}_sequence{number}.txt"
    command = f"blocknb fuzz --cells --seed {options.seed} --first {number} --count 1"
    path.write_text(f"{outcome.kind}: {outcome.detail.strip()}\nFound by `{command}`.\n{sequence.text()}")
    found.reduced.append((number, sequence, outcome, str(path)))


def reduced(
    sequence: CellSequence, outcome: CellOutcome, run: Callable[[CellSequence], CellOutcome], seconds: float
) -> tuple[CellSequence, CellOutcome]:
    """A small sequence with the same defect, and its outcome. The whole sequence, if a fresh process does not show the defect."""
    again = run(sequence)
    if again.key != outcome.key:
        return sequence, CellOutcome(
            outcome.kind, f"only after other sequences, or not always: {outcome.detail}", outcome.cell
        )
    return shrink(sequence, again, run, seconds)


def run(options: CellFuzzOptions) -> int:
    """Runs the command; returns 0 if no sequence failed."""
    print(f"seed {options.seed}, cells, {options.jobs} processes", flush=True)
    found = collect(options)
    print(found.summary())
    seen: set[str] = set()
    for number, outcome in found.failed.items():
        if outcome.key in seen or len(found.reduced) >= options.minimise:
            print(f"sequence {number}: {_headline(outcome)}")
            continue
        seen.add(outcome.key)
        reduce(options, found, number)
        _, sequence, outcome, path = found.reduced[-1]
        print(f"\nsequence {number}: {outcome.kind}; {path}\n{outcome.detail.strip()}\n{sequence.text()}", flush=True)
    return 1 if found.failed else 0


def _headline(outcome: CellOutcome) -> str:
    return f"{outcome.kind}: {outcome.detail.strip().split(chr(10))[0]}"


def replay(files: list[str]) -> int:
    """Runs the cells of files; returns 1 if a defect stands."""
    worker, failed = Worker(SETUP), 0
    try:
        for file in files:
            outcome, _ = outcome_of(worker, "given", parse(Path(file).read_text(), file))
            failed += outcome.failed
            print(f"{file}: {outcome.kind}{f' in cell {outcome.cell}: {outcome.detail}' if outcome.failed else ''}")
    finally:
        worker.stop()
    return 1 if failed else 0
