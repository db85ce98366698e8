"""Compares the machine code of every kernel with the ledger: `python scripts/sass_ledger.py [--update] [--only TEXT ...]`.

The ledger (`tests/golden/sass_ledger.txt`) has registers, spills and counts of instructions for sm_90a. It has every kernel of the tests,
of the zoo and of the ready-made kernels. This command compiles them, which takes minutes and needs no GPU, and prints what became better
and worse. `--update` writes the ledger. `--only` takes the specimens whose names contain a text: "zoo/", "ready/softmax". The exit status
is 1 if something differs and was not written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from ledger import comparison, counters  # noqa: E402
from ledger.requests import TARGET, named_requests, specimens  # noqa: E402

from blocknb.codegen.toolchain import find_ptxas  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--update", action="store_true", help="write the ledger")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="TEXT", help="specimens whose names contain one of these texts"
    )
    options = parser.parse_args()
    tool = find_ptxas(TARGET)
    if tool is None:
        sys.exit("there is no ptxas for sm_90a on this machine: pip install 'blocknb[toolchain]'")
    version, expected = comparison.read()
    present = ".".join(map(str, tool.version))
    if version not in ("", present):
        print(
            f"the ledger is that of ptxas {version}, and this machine has {present}: code differs for that reason, too"
        )
    names = [name for name in specimens() if not options.only or any(text in name for text in options.only)]
    found = dict(counters.counted(named_requests(names)))
    changes = comparison.changes(expected, found, whole=not options.only)
    print(*changes, f"{len(found)} kernels: {comparison.summary(changes)}", sep="\n")
    if options.update:
        comparison.write(present, found if not options.only else expected | found)
    return 1 if changes and not options.update else 0


if __name__ == "__main__":
    sys.exit(main())
