"""Rows of the op table: loops, branches, the ends of blocks and the barrier."""

from __future__ import annotations

from blocknb.language import rules
from blocknb.language.op_spec import Help, OpSpec, traits

_UNTIL = "i = tl.load(i_ptr + 1)\nwhile i < 9:\n    i += 3\ni  # 10"

ROWS = (
    OpSpec(
        "for",
        "control",
        rules.for_loop,
        Help(
            "Repeats a block for each index of a range and carries values from one iteration to the next.",
            example="total = 0\nfor i in tl.range(0, 10, 3):\n    total += i\ntotal  # 18",
            ir="The loop is `for i in range(lower, upper, step)`. Its block takes (i, carried...) and ends with a `yield`.",
        ),
        operands="lower upper step init...",
        blocks=1,
        traits=traits("loop structured"),
    ),
    OpSpec(
        "if",
        "control",
        rules.branch,
        Help(
            "Runs one of two blocks.",
            example="x = 1\nif tl.load(i_ptr + 3) > 2:\n    x = tl.load(i_ptr + 5)\nx  # 5",
            ir="The blocks have no arguments; both yield the results.",
        ),
        operands="condition",
        attrs=("types",),
        blocks=2,
        traits=traits("structured"),
    ),
    OpSpec(
        "while",
        "control",
        lambda types, attrs: tuple(types),
        Help(
            "Repeats a block while a condition holds and carries values from one iteration to the next.",
            example=_UNTIL,
            ir="The first block takes (carried...) and ends with `condition`; the second takes what that passes and ends with `yield`.",
        ),
        operands="init...",
        blocks=2,
        traits=traits("loop structured"),
    ),
    OpSpec(
        "yield",
        "control",
        rules.nothing,
        Help(
            "Ends a block with its values.",
            example="total = 0\nfor i in tl.range(0, 3):\n    total += i\ntotal  # 3",
        ),
        operands="values...",
        traits=traits("terminator"),
    ),
    OpSpec(
        "condition",
        "control",
        rules.nothing,
        Help(
            "Ends the first block of a `while`, which goes on if `c` holds.",
            example=_UNTIL,
            ir="The second block, or what follows the loop, takes the values.",
        ),
        operands="c values...",
        traits=traits("terminator"),
    ),
    OpSpec(
        "barrier",
        "control",
        rules.nothing,
        Help(
            "Waits until all warps of the program have come here. After it they see the memory accesses of each other before it.",
            example="i = tl.arange(0, 4)\ntl.store(out_ptr + i, i)\ntl.debug_barrier()\ntl.load(out_ptr + 3 - i)  # [3.0, 2.0, 1.0, 0.0]",
        ),
        traits=traits("consumer_only"),
    ),
)
