"""The arrays that a kernel updates in place: a trial of an autotuner that runs such a kernel again starts from other values.

The front end's IR tells which arrays a kernel loads from and stores to. An array with both is updated, unless its only accesses are the
compare-and-swap and exchange of a lock, which each run leaves as it was.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from blocknb.analysis.provenance import MIXED, Provenance, is_pointer
from blocknb.ir.core import Func, Op
from blocknb.language.ops import OPS
from blocknb.runtime.compile import Compiled


@dataclass(frozen=True)
class Updates:
    """The parameters of arrays that a kernel updates: by atomics alone, and all."""

    by_atomics: tuple[str, ...]
    all: tuple[str, ...]

    def message(self, kernel: str) -> str:
        """The warning for an autotuned kernel without `restore_value` and `reset_to_zero` for these arrays."""
        names = ", ".join(f"`{name}`" for name in self.all)
        first, second = "restore_value", "reset_to_zero"
        if self.by_atomics == self.all:
            first, second = second, first
        return (
            f"autotuning {kernel} runs the kernel many times, and it loads {names} and stores to {'it' if len(self.all) == 1 else 'them'}: "
            f"each run changes what the next one starts from, also the launch after the tuning. "
            f"Write {first}={list(self.all)!r} in @autotune, or {second}={list(self.all)!r}"
        )


def updates(compiled: Compiled, protected: Collection[str]) -> Updates | None:
    """The arrays that a kernel updates in place, except the `protected` parameters; None if there are none."""
    if not {name for name in compiled.stored & compiled.loaded if _parameter(name) not in protected}:
        return None
    func = compiled.trace.stages[0].after
    order = {_parameter(hint.name): None for hint in func.hints}
    loads, stores, atomics = _touched(func)
    every = [name for name in order if name in (loads & stores | atomics) and name not in protected]
    alone = [name for name in every if name not in loads & stores]
    return Updates(tuple(alone), tuple(every)) if every else None


def _touched(func: Func) -> tuple[set[str], set[str], set[str]]:
    """The parameters of arrays with loads, with stores, and with atomics that update a number."""
    provenance = Provenance(func)
    loads: set[str] = set()
    stores: set[str] = set()
    atomics: set[str] = set()
    for op in func.ops():
        spec = OPS[op.name]
        for value in op.args:
            origins = provenance.of(value)
            if not is_pointer(value) or MIXED in origins:
                continue
            names = {_parameter(func.hints[i].name) for i in origins if isinstance(i, int)}
            if spec.reads == "global" and spec.writes == "global":
                atomics |= set() if _is_of_a_lock(op) else names
            elif spec.reads == "global":
                loads |= names
            elif spec.writes == "global":
                stores |= names
    return loads, stores, atomics


def _is_of_a_lock(op: Op) -> bool:
    return op.name == "atomic_cas" or op.attrs.get("kind") == "xchg"


def _parameter(name: str) -> str:
    """The parameter of an array: it may be an element of a tuple, or a field of a descriptor."""
    return name.partition(".")[0]
