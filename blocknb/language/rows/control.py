"""Rows of the op table: loops, branches, the ends of blocks and the barrier."""

from __future__ import annotations

from blocknb.language.op_spec import op
from blocknb.language.rules import need
from blocknb.language.types import Tile, int1


@op("control", operands="lower upper step init...", blocks=1, traits="loop structured")
def for_(types, attrs):
    """Repeats a block for each index of a range and carries values from one iteration to the next.

    Example:
        total = 0
        for i in tl.range(0, 10, 3):
            total += i
        total  # 18

    IR:
        The loop is `for i in range(lower, upper, step)`. Its block takes (i, carried...) and ends with a `yield`.
    """
    need(
        types[0] == types[1] == types[2] and types[0].is_scalar and types[0].dtype.is_integer,
        f"loop bounds are {types[:3]}",
    )
    return tuple(types[3:])


@op("control", operands="condition", attrs="types", blocks=2, traits="structured")
def if_(types, attrs):
    """Runs one of two blocks.

    Example:
        x = 1
        if tl.load(i_ptr + 3) > 2:
            x = tl.load(i_ptr + 5)
        x  # 5

    IR:
        The blocks have no arguments; both yield the results.
    """
    need(types[0] == Tile(int1), f"the condition is {types[0]}")
    return tuple(attrs["types"])


@op("control", operands="init...", blocks=2, traits="loop structured")
def while_(types, attrs):
    """Repeats a block while a condition holds and carries values from one iteration to the next.

    Example:
        i = tl.load(i_ptr + 1)
        while i < 9:
            i += 3
        i  # 10

    IR:
        The first block takes (carried...) and ends with `condition`; the second takes what that passes and ends with `yield`.
    """
    return tuple(types)


@op("control", operands="values...", traits="terminator")
def yield_(types, attrs):
    """Ends a block with its values.

    Example:
        total = 0
        for i in tl.range(0, 3):
            total += i
        total  # 3
    """
    return ()


@op("control", operands="c values...", traits="terminator")
def condition(types, attrs):
    """Ends the first block of a `while`, which continues if `c` is true.

    Example:
        i = tl.load(i_ptr + 1)
        while i < 9:
            i += 3
        i  # 10

    IR:
        The second block receives the values; after the last iteration, they are the results of the loop.
    """
    return ()


@op("control", traits="consumer_only")
def barrier(types, attrs):
    """Waits until all warps of the program have come here. After it they see the memory accesses of each other before it.

    Example:
        i = tl.arange(0, 4)
        tl.store(out_ptr + i, i)
        tl.debug_barrier()
        tl.load(out_ptr + 3 - i)  # [3.0, 2.0, 1.0, 0.0]
    """
    return ()
