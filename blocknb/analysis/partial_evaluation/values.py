"""The value of one op in a partial evaluation: its NumPy meaning in the op table, on factored tiles.

Index arithmetic and masks stay factored where their form allows. Other elementwise ops are computed on arrays that are broadcast only as
far as necessary. The interpreter (`ir.interp_tile.Machine`) computes ops that move or reduce elements, program by program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from blocknb.analysis.effects import global_operands, mask_of
from blocknb.analysis.partial_evaluation import factored_tiles
from blocknb.analysis.partial_evaluation.factored_tiles import FactoredTile
from blocknb.analysis.provenance import flows
from blocknb.ir.address import AddressSpace
from blocknb.ir.core import Func, Op, Value, walk
from blocknb.ir.interp_tile import Machine, elementwise, numpy_dtype
from blocknb.ir.traversal import reachable
from blocknb.language.ops import OPS, STRUCTURED, named
from blocknb.language.types import Pointer

SHAPES = named("shape")
INTERPRETED = named("move", "reduce", "preserves_elements")
SAME = frozenset({"convert", "promise"})  # a tile is its value, whichever thread holds it


def control_operands(op: Op) -> Sequence[Value]:
    """The bounds of a `for`, or the condition of an `if` or of a `while`."""
    if op.name == "while":
        return op.blocks[0].terminator.args[:1]
    return op.args[:3] if op.name == "for" else op.args[:1]


def access_operands(op: Op) -> list[Value]:
    """The pointer of an access, and its mask if it has one."""
    mask = mask_of(op)
    return [global_operands(op)[0]] + ([] if mask is None else [mask])


def needed(func: Func, wants: Callable[[Op], Iterable[Value]]) -> set[Value]:
    """The values from which bounds, conditions and the operands that `wants` returns are computed."""
    sources: dict[Value, list[Value]] = {}
    wanted: list[Value] = []
    for op in func.ops():
        wanted += wants(op)
        found: Iterable[tuple[Value, Sequence[Value]]]
        if op.name in STRUCTURED:
            wanted += control_operands(op)
            found = flows(op)
        elif op.name == "local_store":
            found = [(op.args[0], op.args[1:])]
        else:
            found = [(result, [*op.args, *outside(op)]) for result in op.results]
        for value, given in found:
            sources.setdefault(value, []).extend(given)
    return set(reachable(wanted, lambda value: sources.get(value, ())))


def outside(op: Op) -> list[Value]:
    """The values that the blocks of a reduction use."""
    return [arg for block in op.blocks for inner in walk(block) for arg in inner.args]


def results_of(
    op: Op, args: list[FactoredTile], env: dict[Any, Any], func: Func
) -> FactoredTile | list[FactoredTile] | None:
    """The result of an op with known operands, or the list of its results; None if they cannot be computed. The names of programs and
    CTAs belong to the evaluator."""
    type = op.results[0].type
    rank = len(getattr(type, "shape", ()))
    match op.name:
        case "const":
            return (np.full((1,) * (1 + rank), op.attrs["value"]).astype(numpy_dtype(type.dtype)),)
        case "arange":
            return (np.arange(op.attrs["start"], op.attrs["end"], dtype=np.int32)[None],)
        case "inside":  # the bounds check of checked mode; a launch that succeeded has passed it
            return (np.ones((1,) * (1 + rank), bool),)
        case name if name in SHAPES:
            return reshaped(op, args[0])
        case name if name in SAME:
            return args[0]
        case name if OPS[name].kind == "elementwise":
            return (rank and lazily(op, args)) or written_out(op, args)
        case name if name in INTERPRETED and "keep" not in op.attrs:
            return interpreted(op, args, env, func)
    return None


def interpreted(op: Op, args: list[FactoredTile], env: dict[Any, Any], func: Func) -> list[FactoredTile] | None:
    """The results of an op by the interpreter, program by program."""
    free = [value for value in outside(op) if value in env]
    if any(type(env[value]) is not tuple for value in free):
        return None
    wholes = [factored_tiles.whole(arg) for arg in (*args, *(env[value] for value in free))]
    types = [value.type for value in (*op.args, *free)]
    programs = max((len(array) for array in wholes), default=1)
    machine, found = Machine(func, AddressSpace(), (1, 1, 1), (0, 0, 0)), []
    for program in range(programs):
        one = [
            np.broadcast_to(array[min(program, len(array) - 1)], kind.shape)
            for array, kind in zip(wholes, types, strict=True)
        ]
        machine.env = dict(zip(free, one[len(args) :], strict=True))
        found.append(machine.plain_step(op, one[: len(args)]))
    return [(np.stack(arrays),) for arrays in zip(*found, strict=True)]


def reshaped(op: Op, parts: FactoredTile) -> FactoredTile:
    """Applies a shape op to each part."""
    rank = len(op.result.type.shape)
    match op.name:
        case "splat":
            return tuple(p.reshape(-1, *[1] * rank) for p in parts)
        case "broadcast":
            return parts
        case "expand_dims":
            return tuple(np.expand_dims(p, 1 + op.attrs["axis"]) for p in parts)
        case "trans":
            order = (0, *(1 + axis for axis in op.attrs["perm"]))
            return tuple(p.transpose(order) for p in parts)
    old = op.args[0].type.shape
    return tuple(
        p.reshape(-1, *[1] * rank)
        if p.size == len(p)
        else np.broadcast_to(p, (len(p), *old)).reshape(len(p), *op.result.type.shape)
        for p in parts
    )


def lazily(op: Op, args: list[FactoredTile]) -> FactoredTile | None:
    """The result of an op as a factored tile, computed part by part; None if the op needs the whole arrays."""
    type = op.result.type.dtype
    if op.name == "cmp":
        kind = op.args[0].type.dtype
        small = isinstance(kind, Pointer) or (kind.is_integer and (kind.is_signed or kind.bits < 64))
        return factored_tiles.decided(op.attrs["pred"], *args) if small else None
    if isinstance(type, Pointer):
        if op.name == "ptradd":
            size = op.args[0].type.dtype.element.bytes
            moved = factored_tiles.scaled(tuple(p.astype(np.int64) for p in args[1]), np.asarray(size, np.int64))
            return None if moved is None else factored_tiles.add(args[0], moved)
        return None
    if op.name == "and" and type.kind == "bool":
        return factored_tiles.gathered((*args[0], *args[1]))
    return _integers_lazily(op, args) if type.kind in ("int", "uint") else None


def _integers_lazily(op: Op, args: list[FactoredTile]) -> FactoredTile | None:
    """The same for integer arithmetic."""
    type = op.result.type.dtype
    match op.name:
        case "add":
            return factored_tiles.add(*args)
        case "mul":
            for a, b in (args, args[::-1]):
                if len(b) == 1 and b[0].size == len(b[0]):
                    return factored_tiles.scaled(a, b[0])
        case "cast":
            source, low_high = op.args[0].type.dtype, np.iinfo(type.numpy)
            if source.kind in ("int", "uint"):
                low, high = factored_tiles.bounds(args[0])
                ends = [f(p) for p in args[0] for f in (np.min, np.max)]
                if low_high.min <= min(low, *ends) and max(high, *ends) <= low_high.max:
                    return tuple(p.astype(type.numpy) for p in args[0])
    return None


def written_out(op: Op, args: list[FactoredTile]) -> FactoredTile:
    """The result of an op by its NumPy meaning, on arrays that are broadcast only as far as necessary."""
    return (elementwise(op, np.broadcast_arrays(*map(factored_tiles.whole, args))),)
