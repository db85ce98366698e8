"""The op table: every operation of the IR, once.

A row is a function in `blocknb.language.rows`. Its decorator has operands, attributes, effects and traits; its docstring is the help. The
function of an elementwise op computes its meaning in NumPy. It takes arrays of any shape: a scalar, a tile, or a tile spread over warps,
lanes and registers. The function of any other op is its type rule. The builder infers result types from a row, the verifier checks with it
and the interpreter computes with it. Passes ask for its traits, and the roofline counts with its costs.
"""

from __future__ import annotations

from blocknb.language.op_spec import TRAITS, Cost, Help, OpSpec
from blocknb.language.rows import control, elementwise, memory, shared_memory, tiles, tma
from blocknb.language.rules import TypeRule, need
from blocknb.language.semantics import PREDICATES

__all__ = [
    "ACCESSES",
    "ATOMICS",
    "LOOPS",
    "MASK_AT",
    "OPS",
    "PREDICATES",
    "PRESERVING",
    "REDUCTIONS",
    "STRUCTURED",
    "TERMINATORS",
    "Cost",
    "Help",
    "OpSpec",
    "TypeRule",
    "infer",
    "lane_cost",
    "named",
    "need",
]

_GROUPS = (tiles, elementwise, memory, control, shared_memory, tma)

OPS: dict[str, OpSpec] = {row.name: row for group in _GROUPS for row in vars(group).values() if isinstance(row, OpSpec)}


def named(*traits: str) -> frozenset[str]:
    """The names of the ops that have one of the traits. Raises KeyError for a trait that `TRAITS` does not name."""
    for trait in traits:
        TRAITS[trait]
    return frozenset(name for name, spec in OPS.items() if not spec.traits.isdisjoint(traits))


TERMINATORS = named("terminator")
ATOMICS = named("atomic")
ACCESSES = named("access")
#: The accesses that read an array into registers, and those that write one from registers (`copy_async` does neither).
READS, WRITES = ATOMICS | {"load"}, ATOMICS | {"store"}
LOOPS = named("loop")
STRUCTURED = named("structured")
REDUCTIONS = named("reduce")
PRESERVING = named("preserves_elements")


def _mask_at(operands: str) -> int:
    names = operands.replace("[buffer]", "").removeprefix("buffer").split()
    return next(i for i, name in enumerate(names) if name.startswith("[mask"))


#: The index of the mask among the operands of an access, without the buffer of a copy or of an atomic.
MASK_AT = {name: _mask_at(OPS[name].operands) for name in ACCESSES}


def infer(name: str, types: tuple, attrs: dict) -> tuple:
    """The result types of an op. Raises TypeRule for invalid operands, and KeyError for an unknown op."""
    return tuple(OPS[name].infer(types, attrs))


def lane_cost(name: str) -> int:
    """The time of an op in one lane of a CPU, relative to an addition; 1 where the op table has no cost."""
    cost = OPS[name].cost
    return 1 if cost is None else cost.cpu
