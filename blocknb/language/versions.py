"""The versions of Triton that have a name of the language. `docs/language.md` states them.

Compared with the sources of Triton 3.6 to 3.9; `python scripts/compare_triton.py names` lists what an installed Triton has in addition.
"""

from __future__ import annotations

OLDEST, NEWEST = "3.6", "3.9"
#: Names that came after `OLDEST`.
SINCE = {"squeeze": "3.7", "unsqueeze": "3.7", "atomic_poll": "3.9"}
#: Names that Triton does not have.
OWN = frozenset(("xor_shuffle", "powi"))
#: Names that a version keeps but refuses to compile.
REMOVED = {"make_block_ptr": "3.9", "advance": "3.9"}


def triton_version(name: str) -> str:
    """The version of a name such as `tl.load` in the reference: the first version of Triton that has it."""
    last = name.rpartition(".")[2]
    if last in OWN:
        return "blocknb only"
    since = SINCE.get(last, f"{OLDEST} or earlier")
    return f"{since}, not in {REMOVED[last]}" if last in REMOVED else since
