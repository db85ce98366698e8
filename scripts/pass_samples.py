"""Lists the kernels of the tests that a pass changes or leaves notes for, with the number of its notes: choices for a golden file.

    python scripts/pass_samples.py PASS [--target sm_90a] [--without coalesce,...] [--checked race]

It takes about ten seconds. `tests/passes/test_golden.py` compares the IR of the chosen kernels with golden files.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from kernels import CASES  # noqa: E402

from blocknb import passes  # noqa: E402
from blocknb.errors import KernelError  # noqa: E402


def samples(name: str, target: str, without: list[str], checked: str | None = None) -> list[tuple[int, int, str]]:
    """For each kernel that the pass changes or notes something for: the number of ops, the number of notes, the kernel's name."""
    found = []
    for case in CASES.values():
        try:
            _, stages = case.lower(case.make(np.random.default_rng(0)), target, without, checked=checked)
        except KernelError:
            continue  # the target has no such instruction
        for stage in stages:
            if stage.name == name and (stage.notes or stage.after is not stage.before):
                found.append((sum(1 for _ in stage.before.ops()), len(stage.notes), case.name))
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", metavar="PASS", choices=[entry.split(".")[1] for entry in passes.ORDER])
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--without", default="", help="optional passes to leave out, separated by commas")
    parser.add_argument("--checked", help='the option of the kernel, such as "bounds" or "race"')
    given = parser.parse_args()
    found = samples(given.name, given.target, [name for name in given.without.split(",") if name], given.checked)
    for ops, notes, kernel in found:
        print(f"{kernel}: {ops} ops, {notes} notes")
    if not found:
        print(f"{given.name} changes no kernel of tests/kernels for {given.target}: add one with case(...)")


if __name__ == "__main__":
    main()
