"""Where a generated kernel comes from: the operators that it fuses, and the lines of the user's program that called them."""

from __future__ import annotations

import re
from typing import Any

#: Begins the comment of a generated graph that names the origins of a kernel, as JSON.
COMMENT = "# origins of a kernel: "
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in [^\n]*\n\s*([^\n]*)')


def of_nodes(schedule: Any) -> dict[str, list]:
    """`operators`: the ATen operators of scheduled nodes, in the order of the graph. `lines`: (file, line, text) of the user's program."""
    from torch._inductor.utils import aggregate_origins

    operators: dict[str, None] = {}
    lines: dict[tuple[str, int, str], None] = {}
    found = [node for node in aggregate_origins(schedule) if node.op == "call_function"]
    place = {node: i for i, node in enumerate(found[0].graph.nodes)} if found else {}
    for node in sorted(found, key=lambda n: place.get(n, -1)):
        operator = node.meta.get("original_aten") or node.target
        operators.setdefault(str(getattr(operator, "_overloadpacket", operator)))
        if line := line_of(node):
            lines.setdefault(line)
    return {"operators": list(operators), "lines": sorted(map(list, lines))}


def line_of(node: Any) -> tuple[str, int, str] | None:
    """(file, line, text) of the user's program that called a node of the graph; None if it is unknown."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or node.meta.get("fwd_nn_module_stack_trace") or "")
    return (frames[-1][0], int(frames[-1][1]), frames[-1][2]) if frames else None
