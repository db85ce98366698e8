"""The nightly fuzzing: runs random kernels and cells with a new seed, and appends the counts to the ledger.

    python scripts/nightly.py [--kernels 2000] [--sequences 400] [--seed N] [--out fuzz-findings] [--ledger tests/fuzzing/ledger.json]

The ledger, a JSON file, has the `runs` (seed, counts, time) and the `findings`. A new finding is "open". Whoever fixes it adds its file to
the regression corpus, writes the cause, and closes it. The exit status is 1 if this run had findings.
"""

from __future__ import annotations

import argparse
import datetime
import json
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout's package, not another one that is installed
LEDGER = ROOT / "tests" / "fuzzing" / "ledger.json"


def commit() -> str:
    """The short hash of the checkout; "" without Git."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip()


def append(ledger: Path, run: dict[str, Any], findings: list[dict[str, Any]]) -> None:
    """Adds a run and its findings to the ledger. A finding that is already open stays one entry."""
    found = json.loads(ledger.read_text())
    found["runs"].append(run)
    known = {(entry["what"], entry["status"]) for entry in found["findings"]}
    found["findings"] += [entry for entry in findings if (entry["what"], "open") not in known]
    ledger.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def kernels(seed: int, count: int, jobs: int, out: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Runs random kernels on the CPU; returns the entry of the run and those of its findings."""
    from blocknb.fuzz.run import FuzzOptions, collect, reduce
    from blocknb.fuzz.worker import Worker

    options = FuzzOptions(seed, count=count, jobs=jobs, out=out)
    found = collect(options)
    print(found.summary())
    worker = Worker(options.setup)
    try:
        for number in list(found.failed)[: options.minimise]:
            reduce(options, found, number, worker)
    finally:
        worker.stop()
    findings = [
        entry(
            "kernels",
            seed,
            number,
            f"{outcome.kind}: {outcome.detail.splitlines()[0] if outcome.detail else blamed}",
            path,
        )
        for number, _, outcome, blamed, path in found.reduced
    ]
    return run_entry("kernels", seed, len(found.outcomes), len(found.failed), found.seconds), findings


def cells(seed: int, count: int, jobs: int, out: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Runs random sequences of cells; returns the entry of the run and those of its findings."""
    from blocknb.cell_fuzz.run import CellFuzzOptions, collect, reduce

    options = CellFuzzOptions(seed, count=count, jobs=jobs, out=out)
    found = collect(options)
    print(found.summary())
    for number in list(found.failed)[: options.minimise]:
        reduce(options, found, number)
    findings = [
        entry("cells", seed, number, f"{outcome.kind}: {outcome.detail.strip().splitlines()[0]}", path)
        for number, _, outcome, path in found.reduced
    ]
    more = {"sequences": len(found.outcomes)}
    return run_entry("cells", seed, found.cells, len(found.failed), found.seconds) | more, findings


def run_entry(kind: str, seed: int, count: int, failed: int, seconds: float) -> dict[str, Any]:
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {
        "date": date,
        "commit": commit(),
        "kind": kind,
        "seed": seed,
        "count": count,
        "failed": failed,
        "seconds": round(seconds),
    }


def entry(kind: str, seed: int, number: int, what: str, path: str) -> dict[str, Any]:
    return {"kind": kind, "seed": seed, "number": number, "what": what[:300], "status": "open", "file": path}


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Fuzz kernels and cells with a new seed, and append the counts to the ledger."
    )
    parser.add_argument("--kernels", type=int, default=2000, metavar="N", help="the number of kernels (2000)")
    parser.add_argument(
        "--sequences", type=int, default=400, metavar="N", help="the number of sequences of about ten cells (400)"
    )
    parser.add_argument("--seed", type=int, default=None, metavar="S", help="the seed (random)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="the number of processes (2)")
    parser.add_argument("--out", default="fuzz-findings", metavar="DIR", help="the folder for findings")
    parser.add_argument("--ledger", type=Path, default=LEDGER, metavar="FILE", help="the ledger")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    failed = 0
    for fuzz, count in ((kernels, options.kernels), (cells, options.sequences)):
        if count:
            run, findings = fuzz(seed, count, options.jobs, options.out)
            append(options.ledger, run, findings)
            failed += run["failed"]
            for finding in findings:
                print(f"{finding['kind']} {finding['number']}: {finding['what']}; {finding['file']}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
