"""The arrays that a kernel reads and those that it writes, by parameter name.

A launch refuses a read-only array for a parameter that the kernel stores through, and the figures of a launch count reads and writes.
`analysis.provenance` follows pointers from the parameters. If a pointer depends on several arrays, a checked kernel tests it at run time.
"""

from __future__ import annotations

from blocknb.analysis.provenance import MIXED, Provenance, is_pointer
from blocknb.ir.core import Func
from blocknb.language.ops import OPS


def memory_use(func: Func) -> tuple[frozenset[str], frozenset[str]]:
    """Returns (the names of the arrays that a function stores to, the names of those that it loads from)."""
    provenance = Provenance(func)
    stored: set[str] = set()
    loaded: set[str] = set()
    for op in func.ops():
        spec, unknown = OPS[op.name], op.name == "asm"  # inline assembly may read and write through its pointers
        for value in op.args:
            origins = provenance.of(value)
            if not is_pointer(value) or MIXED in origins:
                continue
            names = {func.hints[i].name for i in origins if isinstance(i, int)}
            stored |= names if unknown or spec.writes == "global" else set()
            loaded |= names if unknown or spec.reads == "global" else set()
    return frozenset(stored), frozenset(loaded)
