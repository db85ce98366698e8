"""The interpreter runs the IR of any level with NumPy. It is the oracle for passes and code generators.

At the tile level (`interp_tile`) a tile is an array of its shape. At the distributed level (`interp_distributed`) it is an array
[warp, lane, register], so an op that moves data between threads unnoticed is an error. At the memory level (`interp_memory`) every warp
is a coroutine, and shared memory is an array of bytes. A masked-off element without `other` is zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from blocknb.ir.address import AddressSpace, programs_of
from blocknb.ir.core import Block, Func, Value, is_volatile, walk
from blocknb.ir.interp_distributed import DistributedMachine
from blocknb.ir.interp_memory import run_warps
from blocknb.ir.interp_roles import run_roles
from blocknb.ir.interp_tile import STEPS, Machine, Program
from blocknb.ir.report import lines
from blocknb.language import semantics
from blocknb.language.ops import ATOMICS
from blocknb.language.types import Pointer


def run(
    func: Func,
    args: Sequence[Any],
    grid: int | Sequence[int],
    *,
    seed: int = 0,
    programs: Iterable[Program] | None = None,
    check_races: bool = True,
    implicit_barriers: bool = False,
    ctas: int | None = None,
) -> None:
    """Runs the programs of a grid in a random order from `seed`. Arguments are numbers, and NumPy arrays, which it writes in place.

    `programs` selects ids of the grid. `implicit_barriers` runs memory IR without barriers as if one preceded every memory access.
    `ctas` is the number of CTAs that share the programs of a persistent function, by default a random number up to three. The output
    of the kernel is printed at the end, in order. Raises AccessError for an access outside its array, and DeviceAssertionFailed. Raises
    CompilerBug if the IR is wrong: replicas differ, a thread lacks data, shared memory has a race, or the program deadlocks.
    """
    if len(args) != len(func.params):
        raise ValueError(f"{func.name} takes {len(func.params)} arguments, not {len(args)}")
    space, values = AddressSpace(), {}
    for i, (param, arg) in enumerate(zip(func.params, args, strict=True)):
        values[param] = _argument(space, func.hints[i].name if func.hints else param.name, param, arg)
        space.of_argument.append(len(space.bytes) - 1)
    sizes, everyone = programs_of(grid)
    chosen = list(everyone if programs is None else programs)
    order = np.random.default_rng(seed)
    count = len(chosen)
    if func.attrs.get("persistent"):  # CTAs run the programs one after another
        if programs is not None:
            raise ValueError("the CTAs of a persistent function run all programs of the grid")
        count = min(count, int(order.integers(1, 4)) if ctas is None else ctas)
        chosen = [(cta, 0, 0) for cta in range(count)]
    # A program may wait only for lower ids, and these must have ended before.
    rising = waits(func.body)
    try:
        for number in range(len(chosen)) if rising else order.permutation(len(chosen)):
            if func.level == "memory":
                checks = check_races, implicit_barriers
                if any(op.name in (*STEPS, "cta_id") for op in func.ops()):
                    run_roles(func, values, space, sizes, chosen[number], count, order, *checks)
                else:
                    run_warps(func, values, space, sizes, chosen[number], order, *checks)
            else:
                _one(func, dict(values), space, sizes, chosen[number])
    finally:
        print(lines(space.printed, len(space.printed)), end="")


def waits(block: Block) -> bool:
    """Whether a program may wait for another one, by a `while` on memory that other programs change."""
    loops = (op for op in walk(block) if op.name == "while")
    inside = (op for loop in loops for inner in loop.blocks for op in walk(inner))
    return any(op.name in ATOMICS or is_volatile(op) for op in inside)


def _argument(space: AddressSpace, name: str, param: Value, arg: Any) -> np.ndarray:
    if not isinstance(param.type.dtype, Pointer):
        return semantics.constant(arg, param.type.dtype)
    if not isinstance(arg, np.ndarray):
        raise TypeError(f"the pointer `{name}` takes a NumPy array, not {type(arg).__name__}")
    return space.pointer(space.add(name or "an argument", arg))


def _one(func: Func, env: dict, space: AddressSpace, sizes: Program, program: Program) -> None:
    """Runs one program at the tile or the distributed level, where barriers have no effect."""
    if func.level == "distributed":
        machine: Machine = DistributedMachine(func, space, sizes, program)
    else:
        machine = Machine(func, space, sizes, program)
    for _ in machine.execute(func.body, env):
        pass
