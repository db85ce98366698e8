"""Places the graph of a fusion on a plane: kernels are boxes around the operators that they fuse, and data flows from top to bottom.

It is a layered layout (Sugiyama, Tagawa and Toda 1981) at two levels: operators inside of a box, and boxes. A long edge runs through a
lane of its own in each layer between. Operators that run no code, such as views between kernels, are left out, and edges pass through
them. An operator that several kernels compute is in each of them. The page and the static picture use the same places.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from blocknb.torch.inductor.fusion_graph import EXTERNAL, KERNEL, OperatorGraph

NODE_HEIGHT, CHARACTER, NODE_PADDING = 20, 6.4, 14  # CSS pixels; the width of a character of the labels
NODE_GAP, ROW_GAP = 10, 14
BOX_PADDING, BOX_HEAD = 9, 19
BOX_GAP, LAYER_GAP, LANE = 26, 34, 8
WIDEST_BOX, WIDEST_LAYER = 480, 1100
SWEEPS = 6

T = TypeVar("T")


@dataclass
class PlacedOperator:
    """An operator in a box: indices of its group and of its operator, and its rectangle."""

    group: int
    operator: int
    label: str
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0


@dataclass
class PlacedGroup:
    """The box of a kernel, or of an external call."""

    group: int
    label: str
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0


@dataclass(frozen=True)
class PlacedEdge:
    """Data flow between two placed operators, by index. `path` is the value of an SVG path's attribute d."""

    start: int
    end: int
    path: str


@dataclass(frozen=True)
class FusionPicture:
    """A placed graph; sizes are in CSS pixels."""

    operators: list[PlacedOperator]
    groups: list[PlacedGroup]
    edges: list[PlacedEdge]
    width: float
    height: float


def label_of(operator: str) -> str:
    """ "mul" for "aten.mul"; a long name is cut."""
    name = operator.rsplit(".", 1)[-1]
    return name if len(name) <= 26 else name[:25] + "…"


def call_label(call: str) -> str:
    """The kind and number of a kernel, or the name of a called function: "pointwise 3" for "triton_poi_fused_gelu_view_3"."""
    if not call.startswith("triton_"):
        return call.removeprefix("extern_kernels.")
    *words, number = call.split("_")
    kind = {"poi": "pointwise", "per": "reduction", "red": "reduction", "tem": "template"}
    shown = kind.get(words[1] if len(words) > 1 else "", "kernel")
    return f"{shown} {number}"


def placed(graph: OperatorGraph) -> FusionPicture:
    """Places a graph."""
    operators = [
        PlacedOperator(g, i, label_of(graph.operators[i].operator))
        for g, group in enumerate(graph.groups)
        if group.kind in (KERNEL, EXTERNAL)
        for i in group.operators
        if graph.operators[i].operator
    ]
    flows = _flows(graph, operators)
    members: dict[int, list[int]] = defaultdict(list)
    for n, operator in enumerate(operators):
        members[operator.group].append(n)
    boxes = {
        g: _box(graph, g, own, operators, [(a, b) for a, b in flows if a in own and b in own])
        for g, own in members.items()
    }
    between = {(operators[a].group, operators[b].group) for a, b in flows if operators[a].group != operators[b].group}
    layers, lanes = _layers(boxes, between)
    _place_layers(layers, between, boxes, lanes)
    width, height = _moved_into_view(layers, boxes, lanes)
    for operator in operators:
        operator.x += boxes[operator.group].x
        operator.y += boxes[operator.group].y
    routes = _Routes(layers, lanes)
    edges = [PlacedEdge(a, b, routes.path(operators[a], operators[b])) for a, b in flows]
    return FusionPicture(operators, list(boxes.values()), edges, width, height)


# ---- data flow ---------------------------------------------------------------------------------------------------------------


def _flows(graph: OperatorGraph, operators: Sequence[PlacedOperator]) -> list[tuple[int, int]]:
    """The edges between placed operators, by index. Operators without a place are passed through."""
    at = {(one.group, one.operator): n for n, one in enumerate(operators)}
    groups: dict[int, list[int]] = defaultdict(list)
    for one in operators:
        groups[one.operator].append(one.group)

    @cache
    def sources(group: int, operator: int) -> frozenset[int]:
        """The placed operators whose results an operator of a group reads under the name of another operator."""
        if (group, operator) in at:
            return frozenset([at[group, operator]])
        earlier = [g for g in groups[operator] if g < group]
        if earlier:
            return frozenset([at[earlier[0], operator]])
        inner = graph.operators[operator].inputs
        return frozenset(n for i in inner if i < operator for n in sources(group, i))

    found = dict.fromkeys(
        (source, n)
        for n, one in enumerate(operators)
        for i in graph.operators[one.operator].inputs
        for source in sorted(sources(one.group, i))
        if source != n
    )
    return list(found)


# ---- inside of a box -----------------------------------------------------------------------------------------------------------


def _box(
    graph: OperatorGraph, g: int, own: Sequence[int], operators: list[PlacedOperator], inner: Sequence[tuple[int, int]]
) -> PlacedGroup:
    """Places the operators of a group relative to its box, and returns the box with its size."""
    group = graph.groups[g]
    head = BOX_HEAD if group.kind == KERNEL else 0
    box = PlacedGroup(g, call_label(group.call) if group.kind == KERNEL else "")
    if group.kind == EXTERNAL:
        for n in own:
            operators[n].label = f"{call_label(group.call)} (external)"
    for n in own:
        operators[n].width = len(operators[n].label) * CHARACTER + NODE_PADDING
    rows = _wrapped(_ordered(_ranked(own, inner), inner), lambda n: operators[n].width, NODE_GAP, WIDEST_BOX)
    widths = [sum(operators[n].width for n in row) + NODE_GAP * (len(row) - 1) for row in rows]
    head_width = (len(box.label) + len(", 100 %")) * CHARACTER if box.label else 0.0
    box.width = max([*widths, head_width]) + 2 * BOX_PADDING
    y = float(BOX_PADDING + head)
    for row, width in zip(rows, widths, strict=True):
        x = (box.width - width) / 2
        for n in row:
            operators[n].x, operators[n].y = x, y
            x += operators[n].width + NODE_GAP
        y += NODE_HEIGHT + ROW_GAP
    box.height = y - ROW_GAP + BOX_PADDING
    return box


def _ranked(items: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Items by layer: each in the layer after its latest source. Items come in an order that the edges follow."""
    before: dict[int, list[int]] = defaultdict(list)
    for a, b in edges:
        before[b].append(a)
    rank: dict[int, int] = {}
    for item in items:
        rank[item] = max((rank[a] + 1 for a in before[item] if a in rank), default=0)
    layers: list[list[int]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    for item in items:
        layers[rank[item]].append(item)
    return layers


def _ordered(layers: list[list[T]], edges: Sequence[tuple[T, T]]) -> list[list[T]]:
    """The layers with their items near those that they are connected with (the barycentre heuristic)."""
    near: dict[T, list[T]] = defaultdict(list)
    for a, b in edges:
        near[a].append(b)
        near[b].append(a)
    place = {item: i - len(layer) / 2 for layer in layers for i, item in enumerate(layer)}
    for sweep in range(SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            middle = {
                item: sum(place[other] for other in near[item]) / len(near[item]) if near[item] else place[item]
                for item in layer
            }
            layer.sort(key=lambda item: middle[item])
            place |= {item: i - len(layer) / 2 for i, item in enumerate(layer)}
    return layers


def _wrapped(layers: Sequence[Sequence[T]], width: Callable[[T], float], gap: float, most: float) -> list[list[T]]:
    """Cuts layers that are wider than `most` into several."""
    rows: list[list[T]] = []
    for layer in layers:
        row: list[T] = []
        total = 0.0
        for item in layer:
            wide = width(item) + gap
            if row and total + wide > most:
                rows.append(row)
                row, total = [], 0.0
            row.append(item)
            total += wide
        rows.append(row)
    return rows


# ---- the boxes -----------------------------------------------------------------------------------------------------------------

Item = tuple[int, int]  # a box (group, -1), or the lane of a group in a layer (group, layer)


@dataclass
class _Lane:
    """The place where the edges of a group pass a layer."""

    x: float = 0.0


@dataclass
class _Layer:
    """A layer of boxes and lanes, from left to right."""

    items: list[Item]
    y: float = 0.0
    height: float = 0.0


def _layers(boxes: Mapping[int, PlacedGroup], between: set[tuple[int, int]]) -> tuple[list[_Layer], dict[Item, _Lane]]:
    """The boxes by layer, with lanes where edges pass."""
    edges = sorted(edge for edge in between if edge[0] < edge[1])
    ranked = _wrapped(_ranked(sorted(boxes), edges), lambda g: boxes[g].width, BOX_GAP, WIDEST_LAYER)
    rank = {g: r for r, layer in enumerate(ranked) for g in layer}
    last: dict[int, int] = {}
    for a, b in edges:
        last[a] = max(last.get(a, 0), rank[b])
    rows: list[list[Item]] = [[(g, -1) for g in layer] for layer in ranked]
    lanes: dict[Item, _Lane] = {}
    for g, end in last.items():
        for r in range(rank[g] + 1, end):
            rows[r].append((g, r))
            lanes[g, r] = _Lane()
    _ordered(rows, _steps(edges, rank, lanes))
    return [_Layer(row) for row in rows], lanes


def _steps(
    edges: Sequence[tuple[int, int]], rank: Mapping[int, int], lanes: Mapping[Item, _Lane]
) -> list[tuple[Item, Item]]:
    """The edges as steps from layer to layer."""
    found: dict[tuple[Item, Item], None] = {}
    for a, b in edges:
        stops: list[Item] = [(a, -1), *((a, r) for r in range(rank[a] + 1, rank[b]) if (a, r) in lanes), (b, -1)]
        found |= dict.fromkeys(itertools.pairwise(stops))
    return list(found)


def _place_layers(
    layers: Sequence[_Layer],
    between: set[tuple[int, int]],
    boxes: Mapping[int, PlacedGroup],
    lanes: Mapping[Item, _Lane],
) -> None:
    """Sets the places of boxes and lanes: each near the mean place of its neighbours in the graph, without overlaps."""
    middle = _middles(layers, between, boxes, lanes)
    y = 0.0
    for layer in layers:
        layer.y, layer.height = y, max((boxes[g].height for g, lane in layer.items if lane < 0), default=0.0)
        for item in layer.items:
            if item[1] < 0:
                box = boxes[item[0]]
                box.x, box.y = middle[item] - box.width / 2, y + (layer.height - box.height) / 2
            else:
                lanes[item].x = middle[item]
        y += layer.height + LAYER_GAP


def _middles(
    layers: Sequence[_Layer],
    between: set[tuple[int, int]],
    boxes: Mapping[int, PlacedGroup],
    lanes: Mapping[Item, _Lane],
) -> dict[Item, float]:
    """The middles of boxes and lanes: at first side by side, then moved to the mean place of their neighbours in the graph."""
    rank = {g: r for r, layer in enumerate(layers) for g, lane in layer.items if lane < 0}
    near: dict[Item, list[Item]] = defaultdict(list)
    for a, b in _steps(sorted(edge for edge in between if edge[0] < edge[1]), rank, lanes):
        near[a].append(b)
        near[b].append(a)
    widths = {item: boxes[item[0]].width if item[1] < 0 else LANE for layer in layers for item in layer.items}
    middle: dict[Item, float] = {}
    for layer in layers:
        middle |= dict(
            zip(layer.items, _apart([0.0] * len(layer.items), [widths[i] for i in layer.items]), strict=True)
        )
    for sweep in range(SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted = [_mean([middle[other] for other in near[item]] or [middle[item]]) for item in layer.items]
            middle |= dict(zip(layer.items, _apart(wanted, [widths[i] for i in layer.items]), strict=True))
    return middle


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _apart(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """Middles near the wanted ones, in the same order and without overlaps: the mean of pushing to the right and to the left."""
    right, left = list(wanted), list(wanted)
    for i in range(1, len(right)):
        right[i] = max(right[i], right[i - 1] + (widths[i - 1] + widths[i]) / 2 + BOX_GAP)
    for i in reversed(range(len(left) - 1)):
        left[i] = min(left[i], left[i + 1] - (widths[i + 1] + widths[i]) / 2 - BOX_GAP)
    return [(a + b) / 2 for a, b in zip(right, left, strict=True)]


def _moved_into_view(
    layers: Sequence[_Layer], boxes: Mapping[int, PlacedGroup], lanes: Mapping[Item, _Lane]
) -> tuple[float, float]:
    """Moves everything so that the picture begins at 0, with a margin; returns its width and height."""
    margin = 12.0
    lefts = [*(box.x for box in boxes.values()), *(lane.x for lane in lanes.values())]
    left = min(lefts, default=0.0) - margin
    for box in boxes.values():
        box.x, box.y = box.x - left, box.y + margin
    for lane in lanes.values():
        lane.x -= left
    for layer in layers:
        layer.y += margin
    rights = [*(box.x + box.width for box in boxes.values()), *(lane.x for lane in lanes.values())]
    bottom = max((layer.y + layer.height for layer in layers), default=0.0)
    return max(rights, default=0.0) + margin, bottom + margin


class _Routes:
    """The paths of edges through the lanes of the layers between."""

    def __init__(self, layers: Sequence[_Layer], lanes: Mapping[Item, _Lane]):
        self.layers, self.lanes = layers, lanes
        self.rank = {g: r for r, layer in enumerate(layers) for g, lane in layer.items if lane < 0}

    def path(self, start: PlacedOperator, end: PlacedOperator) -> str:
        """The path from the lower side of one operator to the upper side of another."""
        x, y = start.x + start.width / 2, start.y + NODE_HEIGHT
        parts = [f"M{x:.0f} {y:.0f}"]
        for r in range(self.rank[start.group] + 1, self.rank[end.group]):
            if lane := self.lanes.get((start.group, r)):
                layer = self.layers[r]
                parts += [
                    _curve(x, y, lane.x, layer.y - LAYER_GAP / 3),
                    f"V{layer.y + layer.height + LAYER_GAP / 3:.0f}",
                ]
                x, y = lane.x, layer.y + layer.height + LAYER_GAP / 3
        parts.append(_curve(x, y, end.x + end.width / 2, end.y))
        return "".join(parts)


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    """A curve that begins and ends vertically."""
    bend = max(8.0, (to_y - y) / 2)
    return f"C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f} {to_x:.0f} {to_y:.0f}"
