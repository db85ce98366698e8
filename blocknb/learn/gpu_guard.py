"""Whether an answer may run on a GPU, where nothing can stop it: an endless kernel would hold the device until the process ends.

An answer comes here after each case has passed on the CPU, which has a time limit. The same case takes the same path on a GPU, with two
exceptions. A loop may wait for what other programs store: on the CPU they may have run before, and on a GPU they may never run. And a
loop may end by a comparison of floats, which a GPU rounds in another way.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.footprint.value import Footprint
from blocknb.ir.core import Op, within
from blocknb.language.ops import ATOMICS
from blocknb.learn.cell import line_of
from blocknb.learn.running import Attempt, Unchecked


def unfit_for_gpu(attempts: Sequence[Attempt]) -> str:
    """Why a kernel whose attempts passed on the CPU is not launched on the GPU, as a sentence; "" if it is."""
    for made in attempts:
        try:
            line = waiting_line(made.whole_footprint)
        except Unchecked as error:
            return f"not launched on the GPU, where it may not end: the check is impossible because {error}"
        if line is not None:
            where = f" in line {line}" if line else ""
            return f"not launched on the GPU: the `while` loop{where} may not end there (see docs/learn.md)"
    return ""


def waiting_line(seen: Footprint) -> int | None:
    """The line of a `while` loop that reads what the kernel stores, or decides by floats: 0 if unknown, None without such a loop."""
    changed = [seen[name] for name in seen if seen[name].stores or seen[name].atomics]
    reads = {access.op.id for array in changed for access in array.loads.accesses}
    for loop in (op for op in seen.log.launch.func.ops() if op.name == "while"):
        if any(op.name in ATOMICS or op.id in reads or _decides_by_floats(op) for op in within(loop)):
            return line_of(loop.loc) or 0
    return None


def _decides_by_floats(op: Op) -> bool:
    """Whether an op turns a float scalar into a truth value or an integer."""
    if op.name not in ("cmp", "cast") or op.result.type.dtype.is_float:
        return False
    return any(value.type.shape == () and value.type.dtype.is_float for value in op.args)
