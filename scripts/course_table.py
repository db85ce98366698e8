"""Prints what the proofs of the course's exercises found, as a Markdown table.

    python scripts/course_table.py            # all exercises, compiled: about 20 minutes on two cores
    python scripts/course_table.py --quick    # interpreted, with one seed: about 3 minutes
    python scripts/course_table.py add-1 max-1 --jobs 1

Each row counts the refused wrong answers, and those whose cause was named. It also counts the refused mutants and cheats, and the right
alternatives that were refused by mistake. `blocknb.learn.prove` explains these counts. The exit status is 1 if an exercise is not sound.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from blocknb import learn  # noqa: E402
from blocknb.learn.proving import ProofReport  # noqa: E402

HEAD = "| exercise | wrong answers refused | cause named | mutants refused | cheats refused | right answers refused | seconds |"


def proof(name: str, quick: bool) -> ProofReport:
    """The proof of one exercise."""
    return learn.prove(learn.exercise(name), compiled=not quick, seeds=(1,) if quick else (1, 2, 3))


def row(report: ProofReport) -> str:
    """The row of an exercise. Right answers are its alternatives."""
    good, tried = report.alternatives
    cells = [*map(_of, (report.mistakes, report.named, report.mutants, report.cheats)), f"{tried - good} of {tried}"]
    return f"| {report.name} | {' | '.join(cells)} | {report.seconds:.1f} |"


def total(reports: list[ProofReport]) -> ProofReport:
    """The sums over all exercises."""
    found = ProofReport(f"{len(reports)} exercises", seconds=sum(report.seconds for report in reports))
    for what in ("mistakes", "named", "mutants", "cheats", "alternatives"):
        good, tried = zip(*(getattr(report, what) for report in reports), strict=True)
        setattr(found, what, (sum(good), sum(tried)))
    return found


def _of(counts: tuple[int, int]) -> str:
    good, tried = counts
    return f"{good} of {tried}" if good != tried else str(tried)


def main() -> int:
    """Prints the table; returns the exit status."""
    parser = argparse.ArgumentParser(description="Prints the proofs of the course's exercises as a table.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="exercises; all by default")
    parser.add_argument("--quick", action="store_true", help="interpret only, with one seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    options = parser.parse_args()
    names = options.names or [item.name for item in learn.exercises() if isinstance(item, learn.Exercise)]
    start, reports = time.perf_counter(), []
    print(f"{HEAD}\n{'|---' * HEAD.count(' | ')}|---|")
    with ProcessPoolExecutor(options.jobs) as pool:
        for report in pool.map(proof, names, [options.quick] * len(names)):
            reports.append(report)
            print(row(report), flush=True)
    every = total(reports)
    print(row(every))
    named, tried = every.named
    failures = [f"{report.name}: {text}" for report in reports for text in report.failures]
    print(f"\n{named / max(1, tried):.1%} of the wrong answers have their cause named. {len(failures)} failures.")
    print(*failures, f"{time.perf_counter() - start:.0f} s", sep="\n")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
