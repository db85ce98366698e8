"""The number of stages of a loop: how many iterations have loads in flight or in use at a time (`num_stages`)."""

from __future__ import annotations

from blocknb.ir.core import Func, Op

#: The default for loops without products: with one stage, no load is issued early.
STAGES = 1
#: The default for loops with products, as in Triton.
DOT_STAGES = 3
COPIES_FROM = 80  # the first compute capability with asynchronous copies
#: From this capability on, cp.async takes no eviction policy. An H200 reported an illegal instruction: ptxas passes the policy in the
#: second half of a pair of uniform registers. https://github.com/IST-DASLab/marlin/issues/44 shows such code of CUDA 13.1.
NO_POLICY_FROM = 90


def multiplies(loop: Op) -> bool:
    """Whether a loop's own block, without nested loops, holds a product."""
    return any(op.name == "dot" or (op.name == "if" and multiplies(op)) for block in loop.blocks for op in block.ops)


def num_stages(func: Func, loop: Op) -> int:
    """The number of stages of a loop: its own, that of the launch, or the default."""
    named = loop.attrs.get("num_stages", func.attrs.get("num_stages"))
    if named is not None:
        return int(named)
    return DOT_STAGES if multiplies(loop) else STAGES
