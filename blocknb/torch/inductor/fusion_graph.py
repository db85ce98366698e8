"""The graph of a fusion: the operators of one graph of Inductor, the kernels and external calls that they became, and why not fewer.

While Inductor generates a graph's file, `described` collects the FX nodes after AOTAutograd and the groups of Inductor's scheduler. They
stay in the file as a comment, so a graph from Inductor's cache has them, too. `OperatorGraph` is what the comment says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from blocknb.torch.inductor import origins

#: Begins the comment of a generated graph with its operators and groups, as JSON.
COMMENT = "# graph of a fusion: "
MOST_REASONS = 400  # of a graph
KERNEL, EXTERNAL = "kernel", "external"
_REASONS = "_blocknb_fusion_reasons"  # of Inductor's graph: {(scheduler node, scheduler node): reason}


@dataclass(frozen=True)
class GraphOperator:
    """An FX node. It has its `operator`, such as "aten.mul", and the operator that it was decomposed from ("aten.gelu"). It also has the
    shape and dtype of its result ("float32[8, 64]"), the indices of its inputs, and the user's line. `bytes` are those of the result, or
    None for a shape that is known at run time only. An input of the graph has no operator."""

    name: str
    operator: str
    original: str
    result: str
    bytes: int | None
    inputs: tuple[int, ...]
    line: tuple[str, int, str] | None


@dataclass(frozen=True)
class FusionGroup:
    """Operators that run together: in a generated kernel, or in an external call, such as a matrix product of a library. `call` names the
    kernel (empty until its definition is known) or the called function. An operator may be in several groups, which compute it again."""

    kind: str
    call: str
    operators: tuple[int, ...]


@dataclass(frozen=True)
class Unfused:
    """Why two groups were not fused, in Inductor's words. `first` and `second` are indices of groups; the second reads what the first
    writes, or both read the same."""

    first: int
    second: int
    reason: str


@dataclass(frozen=True)
class OperatorGraph:
    """One compiled graph: `name` is "forward", "backward" or "inference"."""

    name: str
    operators: tuple[GraphOperator, ...]
    groups: tuple[FusionGroup, ...]
    unfused: tuple[Unfused, ...]

    @classmethod
    def parsed(cls, told: Mapping[str, Any], calls: Mapping[int, str]) -> OperatorGraph:
        """The graph of a comment. `calls` are the names of the kernels by group."""
        lines = [(file, number, text) for file, number, text in told["lines"]]
        made = tuple(
            GraphOperator(name, operator, original, result, size, tuple(inputs), None if line < 0 else lines[line])
            for name, operator, original, result, size, inputs, line in told["operators"]
        )
        groups = tuple(
            FusionGroup(kind, calls.get(i, call), tuple(members))
            for i, (kind, call, members) in enumerate(told["groups"])
        )
        return cls(told["name"], made, groups, tuple(Unfused(*row) for row in told["unfused"]))

    def external_bytes(self) -> int | None:
        """The bytes that the external calls read and write at least: their inputs and results. None if a shape is unknown."""
        total = 0
        for member in (one for group in self.groups if group.kind == EXTERNAL for one in group.operators):
            sizes = [self.operators[i].bytes for i in (member, *self.operators[member].inputs)]
            if None in sizes:
                return None
            total += sum(size or 0 for size in sizes)
        return total


# ---- while Inductor generates a graph ------------------------------------------------------------------------------------------


def note_reason(graph: Any, first: str, second: str, reason: str, values: tuple[Any, ...]) -> None:
    """Keeps why two nodes of Inductor's scheduler were not fused, as a text and its values; the last reason of a pair counts."""
    vars(graph).setdefault(_REASONS, {})[first, second] = reason, values


def described(graph: Any, scheduler: Any) -> dict[str, Any]:
    """The comment of a graph, as JSON: its operators, the groups of the scheduler after fusion, and the reasons between groups."""
    nodes = [node for node in graph.graph.nodes if node.op in ("placeholder", "get_attr", "call_function")]
    place = {node: i for i, node in enumerate(nodes)}
    lines: dict[tuple[str, int, str], int] = {}
    operators = [_operator(node, place, lines) for node in nodes]
    return {
        "name": _name(graph),
        "operators": operators,
        "lines": list(lines),
        "groups": [_group(node, place) for node in scheduler.nodes],
        "unfused": _unfused(graph, scheduler),
    }


def group_of(scheduler: Any, schedule: Iterable[Any]) -> int:
    """The index of the group that a kernel's scheduled nodes belong to; -1 if there is none."""
    by_name = {name: i for i, node in enumerate(scheduler.nodes) for name in _names(node)}
    found = [by_name[name] for node in schedule for name in _names(node) if name in by_name]
    return found[0] if found else -1


def _names(node: Any) -> Iterator[str]:
    """The names of a scheduler node and of the nodes that it fuses; nothing for the markers in a schedule."""
    if hasattr(node, "get_nodes") and hasattr(node, "get_name"):
        yield node.get_name()
        for inner in node.get_nodes():
            yield inner.get_name()


def _name(graph: Any) -> str:
    return "backward" if graph.is_backward else "inference" if graph.is_inference else "forward"


def _operator(node: Any, place: Mapping[Any, int], lines: dict[tuple[str, int, str], int]) -> list[Any]:
    value = node.meta.get("val")
    result, size = _result(value)
    inputs = [place[other] for other in node.all_input_nodes if other in place]
    line = origins.line_of(node)
    number = -1 if line is None else lines.setdefault(line, len(lines))
    if node.op != "call_function":
        return [node.name, "", "", result, size, inputs, number]
    return [node.name, origins.packet(node.target), origins.operator_of(node), result, size, inputs, number]


def _result(value: Any) -> tuple[str, int | None]:
    """A result as text, "float32[8, 64]", and its bytes."""
    if isinstance(value, list | tuple):
        parts = [_result(one) for one in value]
        sizes = [size for _, size in parts]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        return f"({', '.join(text for text, _ in parts)})", total
    if not hasattr(value, "shape"):
        return "" if value is None else str(value), 0
    shape = [str(size) for size in value.shape]
    known = all(isinstance(size, int) for size in value.shape)
    size = value.numel() * value.element_size() if known else None
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(shape)}]", size


def _group(node: Any, place: Mapping[Any, int]) -> list[Any]:
    from torch._inductor.utils import aggregate_origins

    members = sorted(place[one] for one in aggregate_origins(list(node.get_nodes())) if one in place)
    if node.is_extern():
        # The origins of a call include those of its inputs; the operator itself is the last.
        inner = node.node
        call = getattr(inner, "python_kernel_name", None) or type(inner).__name__
        return [EXTERNAL, str(call), members[-1:]]
    is_nop = type(node).__name__ == "NopKernelSchedulerNode"
    return ["none" if is_nop else KERNEL, "", members]


def _unfused(graph: Any, scheduler: Any) -> list[list[Any]]:
    """The reasons between groups of which one reads what the other writes, or which read the same, in the order of the graph."""
    nodes = list(scheduler.nodes)
    by_name = {name: i for i, node in enumerate(nodes) for name in _names(node)}
    reads = [{dep.name for dep in node.read_writes.reads} for node in nodes]
    writes = [set(node.get_buffer_names()) for node in nodes]
    found: dict[tuple[int, int], str] = {}
    for names, (text, values) in vars(graph).get(_REASONS, {}).items():
        firsts, seconds = ({by_name[part] for part in _parts(name, by_name)} for name in names)
        for low, high in {(min(a, b), max(a, b)) for a in firsts for b in seconds if a != b}:
            if reads[high] & (writes[low] | reads[low]):
                found[low, high] = text % values if values else text
    return [[low, high, reason] for (low, high), reason in sorted(found.items())][:MOST_REASONS]


def _parts(name: str, known: Mapping[str, int]) -> list[str]:
    """The names in the name of a fused node: "op1_op2" is "op1" and "op2"."""
    return [name] if name in known else [part for part in name.split("_") if part in known]


def comment(graph: Any, scheduler: Any) -> str:
    """The comment itself."""
    return COMMENT + json.dumps(described(graph, scheduler), separators=(",", ":"))
