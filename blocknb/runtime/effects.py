"""Which arrays a kernel reads and which it writes, by parameter name.

A read-only array may be passed only where nothing is stored through it, and the figures of a launch count what is read and
written. Pointers are followed from the parameters by `analysis.provenance`; where several addresses went into one number, the code of
a checked kernel tells at run time.
"""

from __future__ import annotations

from blocknb.analysis.provenance import MIXED, Provenance, is_pointer
from blocknb.ir.core import Func
from blocknb.language.ops import OPS


def memory_use(func: Func) -> tuple[frozenset[str], frozenset[str]]:
    """(names of the arrays that are stored through, names of those that are loaded from)."""
    provenance = Provenance(func)
    stored: set[str] = set()
    loaded: set[str] = set()
    for op in func.ops():
        spec, unknown = OPS[op.name], op.name == "asm"  # who gives assembly a pointer lets it do as it likes
        for value in op.args:
            origins = provenance.of(value)
            if not is_pointer(value) or MIXED in origins:
                continue
            names = {func.hints[i].name for i in origins if isinstance(i, int)}
            stored |= names if unknown or spec.writes == "global" else set()
            loaded |= names if unknown or spec.reads == "global" else set()
    return frozenset(stored), frozenset(loaded)
