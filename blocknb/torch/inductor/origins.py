"""Where a generated kernel comes from: the operators that it fuses, and the lines of the user's program that called them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

#: Begins the comment of a generated graph that names the origins of a kernel, as JSON.
COMMENT = "# origins of a kernel: "
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)')

Line = tuple[str, int, str]


def of_nodes(schedule: Any) -> dict[str, list]:
    """`operators`: the ATen operators of scheduled nodes, in the order of the graph. `lines`: (file, line, text) of the user's program."""
    from torch._inductor.utils import aggregate_origins

    operators: dict[str, None] = {}
    lines: dict[Line, None] = {}
    found = [node for node in aggregate_origins(schedule) if node.op == "call_function"]
    place = {node: i for i, node in enumerate(found[0].graph.nodes)} if found else {}
    for node in sorted(found, key=lambda n: place.get(n, -1)):
        operators.setdefault(operator_of(node))
        if line := line_of(node):
            lines.setdefault(line)
    return {"operators": list(operators), "lines": sorted(map(list, lines))}


def operator_of(node: Any) -> str:
    """The ATen operator that an FX node was made of, such as "aten.gelu"."""
    return packet(node.meta.get("original_aten") or node.target)


def packet(operator: Any) -> str:
    """The name of an operator without its overload: "aten.mul" for aten.mul.Tensor."""
    return str(getattr(operator, "_overloadpacket", None) or getattr(operator, "__name__", operator))


def line_of(node: Any) -> Line | None:
    """(file, line, text) of the user's program that an FX node comes from; None if torch does not know it."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or node.meta.get("fwd_nn_module_stack_trace") or "")
    return innermost([(file, int(line), text) for file, line, text in frames])


def innermost(frames: Sequence[Line]) -> Line | None:
    """The innermost frame outside of torch: a user looks for the call of `F.gelu`, not for its code. Otherwise it is the innermost one."""
    import torch

    package = os.path.dirname(torch.__file__) + os.sep
    own = [frame for frame in frames if not frame[0].startswith(package)] or list(frames)
    return own[-1] if own else None
