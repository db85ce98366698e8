"""Plots of sweeps and rooflines with matplotlib, from the same parts of a document that the page draws.

Each function takes a part and returns a Figure that pyplot does not know, so nothing is shown twice and a callback may draw. Series
differ by marker and dash as well as by colour.
"""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blocknb.notebook import numbers
from blocknb.runtime import interrupts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from blocknb.profile.timeline_spans import Timeline

# Colours of stages of a circular buffer, of other work, and of waits, as in labextension/src/core/views/timeline.ts.
STAGE_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D6C81A", "#8A6BBF", "#A6761D")
WORK, WAIT = {"arithmetic": "#8A8A8A", "store": "#D55E00"}, "#BBBBBB"
SIZE, DPI = (6.4, 3.8), 80
MARKERS, DASHES = "os^DvPX*", ("-", "--", "-.", ":")
# The palette of Okabe and Ito, which colour-blind people can distinguish.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
KINDS = {"kernel": "o", "version": "^", "baseline": "s"}


def images(parts: Mapping[str, Any]) -> dict[str, str]:
    """The picture of an output with such a part, as a MIME bundle; empty without such a part or without matplotlib."""
    for name, draw in (("sweep", sweep), ("roofline", roofline)):
        part = parts.get(name)
        if part and (part.get("values") or part.get("points")):
            try:
                return {"image/png": base64.b64encode(png(draw(part))).decode()}
            except ImportError:
                return {}
    return {}


def png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DPI)
    return stream.getvalue()


@functools.cache
def _load() -> None:
    """Imports what draws a figure. An interrupted import would leave matplotlib without some of its functions."""
    with interrupts.deferred():
        import matplotlib.backends.backend_agg
        import matplotlib.figure
        import matplotlib.patches  # noqa: F401


def _figure() -> tuple[Figure, Any]:
    _load()
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    return figure, figure.subplots()


def sweep(part: Mapping[str, Any]) -> Figure:
    """A line plot over the axis, with bands from the lower to the upper quartile."""
    figure, axes = _figure()
    values = part["values"]
    plain = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    xs = values if plain else list(range(len(values)))
    for i, series in enumerate(part["series"]):
        color, dash, marker = COLORS[i % len(COLORS)], DASHES[i % len(DASHES)], MARKERS[i % len(MARKERS)]
        nan = lambda column: [float("nan") if v is None else v for v in column]  # noqa: E731
        axes.plot(xs, nan(series["median"]), dash, color=color, marker=marker, label=series["label"])
        axes.fill_between(xs, nan(series["low"]), nan(series["high"]), color=color, alpha=0.2, linewidth=0)
    if plain and min(values) > 0 and max(values) / min(values) >= 8:
        axes.set_xscale("log", base=2)
    elif not plain:
        axes.set_xticks(xs, [str(v) for v in values])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(part["axis"])
    axes.set_ylabel(part["unit"])
    axes.grid(alpha=0.3)
    if part["series"]:
        axes.legend()
    return figure


def roofline(part: Mapping[str, Any]) -> Figure:
    """Roofs and points with logarithmic axes: flops per byte against TFLOP/s."""
    figure, axes = _figure()
    points = [p for p in part["points"] if p.get("flops") and p.get("bytes")]
    intensities = [p["flops"] / p["bytes"] for p in points]
    memory, compute = roofs(part)
    ridges = [c["value"] * 1e3 / m["value"] for m in memory for c in compute]
    low, high = min([*intensities, *ridges, 0.1]) / 4, max([*intensities, *ridges, 10.0]) * 4
    top = max((c["value"] for c in compute), default=float("inf"))
    for roof in memory:
        end = min(high, top * 1e3 / roof["value"])
        axes.plot([low, end], [low * roof["value"] / 1e3, end * roof["value"] / 1e3], color="#555555")
        label = f" {roof['name']}: {roof['value']:.4g} GB/s"
        axes.annotate(label, (low, low * roof["value"] / 1e3), fontsize=7, va="bottom")
    for roof in compute:
        start = min(roof["value"] * 1e3 / max((m["value"] for m in memory), default=roof["value"]), high)
        axes.plot([start, high], [roof["value"]] * 2, color="#555555", linestyle="--")
        axes.annotate(
            f"{roof['name']}: {numbers.rate_text(roof['value'], 'TFLOP/s')}",
            (high, roof["value"]),
            fontsize=7,
            ha="right",
            va="bottom",
        )
    trail = []
    for point, x in zip(points, intensities, strict=True):
        y = point["flops"] / point["time"]["median"] / 1e9
        color = COLORS[list(KINDS).index(point["kind"]) % len(COLORS)]
        axes.plot([x], [y], KINDS[point["kind"]], color=color, markersize=8)
        axes.annotate(f"  {point['label']}", (x, y), fontsize=8)
        if point["kind"] != "baseline":
            trail.append((x, y))
    if any(p["kind"] == "version" for p in points):
        axes.plot(*zip(*trail, strict=True), ":", color=COLORS[1], linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("arithmetic intensity (FLOP per unique byte)")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(part["device"], fontsize=9)
    axes.grid(alpha=0.25, which="both", linewidth=0.5)
    return figure


def roofs(part: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """The slanted roofs (GB/s) and the flat ones (TFLOP/s).

    Shared memory is left out, because its traffic is unknown; memory is drawn once, for a copy.
    """
    in_table = ("shared memory", "memory reads", "memory writes")
    slanted = [c for c in part["ceilings"] if c["unit"] == "GB/s" and c["name"] not in in_table]
    return slanted, [c for c in part["ceilings"] if c["unit"] == "TFLOP/s"]


def timelines(drawn: Mapping[str, Timeline]) -> Figure:
    """Timelines by title, one below the other, on one scale.

    A copy is pale while it is in flight, and paler while its stage waits to be read. A product has the colour of the stage that it reads.
    """
    _load()
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    heights = [len(found.lanes) + 2 for found in drawn.values()]
    figure = Figure(figsize=(8.5, 0.2 * sum(heights) + 0.8), layout="constrained")
    column = figure.subplots(len(drawn), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, found) in zip(column, drawn.items(), strict=True):
        place = {lane: -number for number, lane in enumerate(found.lanes)}
        for span in found.spans:
            y, length = place[span.lane], span.end - span.start
            color = WORK.get(span.kind, STAGE_COLOURS[max(span.stage, 0) % len(STAGE_COLOURS)])
            if span.kind == "wait":
                axes.plot([span.start, span.end], [y, y], color=WAIT, linewidth=1)
            elif span.kind == "copy":
                held = max(length, span.until - span.start)
                axes.broken_barh([(span.start, held)], (y - 0.4, 0.8), color=color, alpha=0.2)
                axes.broken_barh([(span.start, length)], (y - 0.25, 0.5), color=color, alpha=0.6)
            else:
                axes.broken_barh([(span.start, length)], (y - 0.4, 0.8), color=color, edgecolor="white", linewidth=0.4)
        axes.set_yticks([*place.values()], [*place], fontsize=7)
        axes.tick_params(axis="x", labelsize=7)
        axes.set_title(f"{title}: MMA in flight {found.busy:.0%} of the time", fontsize=9, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    column[-1].set_xlabel("clock cycles (modelled from a table of rates, not measured)", fontsize=8)
    column[-1].set_xlim(left=0)
    keys = [
        ("copy in flight", STAGE_COLOURS[0], 0.8),
        ("data held in a stage", STAGE_COLOURS[0], 0.2),
        ("MMA", STAGE_COLOURS[0], 1.0),
    ]
    keys += [(kind, color, 1.0) for kind, color in WORK.items()]
    keys.append(("wait", WAIT, 1.0))
    handles = [Patch(color=color, alpha=alpha, label=label) for label, color, alpha in keys]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(keys), fontsize=7, frameon=False)
    return figure
