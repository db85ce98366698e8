"""`PYTHONPATH=tests python -m fuzz --first 0 --count 1000 --check cpu`: searches for failing programs and reduces them.

Checks: sm_90a, sm_75... (the interpreter after every pass for that target), cpu, ptxas, gpu.
"""

from __future__ import annotations

import argparse
import sys

from fuzz.generator import generate
from fuzz.program import Program, check_assembles, check_gpu, check_native, check_passes
from fuzz.shrink import shrink

CHECKS = {"cpu": check_native, "ptxas": check_assembles, "gpu": check_gpu}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=100, help="how many seeds")
    parser.add_argument("--check", default="sm_90a", help="what must hold")
    parser.add_argument("--whole", action="store_true", help="do not make failing programs small")
    options = parser.parse_args()

    def check(program: Program) -> None:
        (CHECKS.get(options.check) or (lambda p: check_passes(p, options.check)))(program)

    failures = 0
    for seed in range(options.first, options.first + options.count):
        program = generate(seed)
        try:
            check(program)
        except Exception as error:
            failures += 1
            print(f"seed {seed}: {type(error).__name__}: {error}\n", flush=True)
            print(program if options.whole else shrink(program, check), end="\n\n", flush=True)
    print(f"{failures} of {options.count} programs failed")
    return failures > 0


sys.exit(main())
