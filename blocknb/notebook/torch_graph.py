"""The graph of a fusion, and why it has no fewer kernels, as HTML without scripts."""

from __future__ import annotations

from html import escape
from typing import Any

from blocknb.notebook import fusion_layout, program_lines
from blocknb.notebook.fusion_layout import NODE_HEIGHT, FusionPicture, PlacedOperator
from blocknb.torch.inductor.fusion_graph import EXTERNAL, OperatorGraph

MOST_REASONS = 60  # of a page


def sections(kernels: Any, limit: int) -> list[str]:
    """A fold for each graph as a picture, and a fold with the reasons, in at most `limit` bytes."""
    parts: list[str] = []
    shares = _shares(kernels)
    for i, file in enumerate(kernels.graphs):
        drawn = svg(file.graph, {group: share for (path, group), share in shares.items() if path == file.path})
        size = len(drawn.encode())
        if size > limit:
            parts.append(f"<div class=bn-about>The {escape(file.graph.name)} graph is too large for this page.</div>")
            continue
        limit -= size
        summary = f"graph {i}, {escape(file.graph.name)}: {len(file.graph.groups)} kernels and external calls"
        parts.append(f"<details><summary>{summary}</summary><div class=bn-graph>{drawn}</div></details>")
    reasons = [*_breaks(kernels), *_unfused(kernels)]
    if reasons and sum(map(len, reasons)) < limit:
        rows = "".join(f"<li>{reason}</li>" for reason in reasons[:MOST_REASONS])
        more = f"<li>and {len(reasons) - MOST_REASONS} more</li>" if len(reasons) > MOST_REASONS else ""
        parts.append(
            f"<details><summary>Why there are no fewer kernels ({len(reasons)})</summary><ul>{rows}{more}</ul></details>"
        )
    return parts


def _shares(kernels: Any) -> dict[tuple[str, int], float]:
    """The share of the time of each group, by the path of its graph and its index."""
    found: dict[tuple[str, int], float] = {}
    for kernel in kernels:
        for site in kernel.sites:
            found[site.file.path, site.group] = (kernels.share(kernel) or 0.0) / len(kernel.sites)
    return found


def svg(graph: OperatorGraph, shares: dict[int, float]) -> str:
    """The picture of a graph. A kernel's box is the darker, the larger its share of the time."""
    picture = fusion_layout.placed(graph)
    size = f'width="{picture.width:.0f}" height="{picture.height:.0f}" viewBox="0 0 {picture.width:.0f} {picture.height:.0f}"'
    title = f"The {graph.name} graph: operators in the boxes of their kernels, data flows down"
    parts = [f'<svg {size} role="img" aria-label="{escape(title)}" font-size="11" font-family="system-ui,sans-serif">']
    parts += [_box(graph, picture, n, shares) for n in range(len(picture.groups))]
    parts += [
        f'<path d="{edge.path}" fill="none" stroke="currentColor" stroke-opacity=".55"/>' for edge in picture.edges
    ]
    parts += [_node(graph, one) for one in picture.operators]
    return "".join([*parts, "</svg>"])


def _node(graph: OperatorGraph, one: PlacedOperator) -> str:
    operator = graph.operators[one.operator]
    dash = ' stroke-dasharray="4 2"' if graph.groups[one.group].kind == EXTERNAL else ""
    where = f'x="{one.x:.0f}" y="{one.y:.0f}" width="{one.width:.0f}" height="{NODE_HEIGHT}"'
    rect = f'<rect {where} rx="4" fill="Canvas" stroke="currentColor"{dash}/>'
    at = f'x="{one.x + one.width / 2:.0f}" y="{one.y + 14:.0f}"'
    text = f'<text {at} text-anchor="middle" fill="CanvasText">{escape(one.label)}</text>'
    return f"<g><title>{escape(f'{operator.operator} {operator.result}')}</title>{rect}{text}</g>"


def _box(graph: OperatorGraph, picture: FusionPicture, n: int, shares: dict[int, float]) -> str:
    box = picture.groups[n]
    if not box.label:
        return ""
    share = shares.get(box.group)
    where = f'x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}"'
    text = f"{box.label}, {100 * share:.0f} %" if share is not None else box.label
    fill = 0.08 + 0.6 * (share or 0.0)
    rect = f'<rect {where} rx="8" fill="#3b82f6" fill-opacity="{fill:.2f}" stroke="#3b82f6"/>'
    title = f"<title>{escape(graph.groups[box.group].call)}</title>"
    return (
        f'<g>{title}{rect}<text x="{box.x + 8:.0f}" y="{box.y + 14:.0f}" fill="currentColor">{escape(text)}</text></g>'
    )


def _breaks(kernels: Any) -> list[str]:
    found = []
    for i, file in enumerate(kernels.graphs):
        if file.graph_break is not None:
            where = _where(file.graph_break.line)
            found.append(f"graph {i} ends{where}: {escape(file.graph_break.title)}")
    return found


def _unfused(kernels: Any) -> list[str]:
    found = []
    for i, file in enumerate(kernels.graphs):
        for one in file.graph.unfused:
            names = [fusion_layout.call_label(file.graph.groups[g].call) or "a copy" for g in (one.first, one.second)]
            lines = [file.graph.operators[o].line for o in file.graph.groups[one.second].operators]
            where = _where(next((line for line in lines if line is not None), None))
            found.append(f"graph {i}, {escape(names[0])} and {escape(names[1])}{where}: {escape(one.reason)}")
    return found


def _where(line: tuple[str, int, str] | None) -> str:
    return f" at <code>{escape(program_lines.named(line[0]))}:{line[1]}</code>" if line else ""
