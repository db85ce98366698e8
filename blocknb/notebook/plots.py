"""Plots of the parts of a document with Matplotlib: sweeps, heat maps, rooflines, benchmarks and histories.

Each function draws a part into Matplotlib axes; the numbers are those of `plot_data`, as on the page. `image` and `svg` draw into a Figure
that pyplot does not know, so nothing is shown twice and a callback may draw. Series differ by marker and dash as well as by colour.
"""

from __future__ import annotations

import base64
import functools
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blocknb.notebook import numbers, plot_data
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
HEAT_COLOURS = "cividis"  # of equal steps in lightness, for colour-blind people and for a grey print
LABEL_DISTANCE = 1.5  # factor between two roofs whose labels do not touch
MOST_LABELLED = 120  # cells of a heat map with their number


def images(parts: Mapping[str, Any]) -> dict[str, str]:
    """The picture of an output with such a part, as a MIME bundle; empty without such a part or without Matplotlib."""
    for name in DRAWN:
        if drawable(name, parts.get(name)):
            try:
                return {"image/png": _picture(name, json.dumps(parts[name]))}
            except ImportError:
                return {}
    return {}


@functools.lru_cache(maxsize=16)
def _picture(name: str, text: str) -> str:
    """The picture of a part in JSON, in base64."""
    return base64.b64encode(png(figure(name, json.loads(text)))).decode()


def drawable(name: str, part: Any) -> bool:
    """Whether a part of this name has something to draw."""
    if not part:
        return False
    if name == "history":
        return sum(bool(v["time"]) for v in part["versions"]) > 1
    return bool(part.get("values") or part.get("points") or part.get("rows"))


def png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DPI)
    return stream.getvalue()


def svg(figure: Figure) -> bytes:
    """The figure as SVG, with its texts as texts. The same figure gives the same bytes."""
    import matplotlib

    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "blocknb"}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


@functools.cache
def _load() -> None:
    """Imports what draws a figure. An interrupted import would leave Matplotlib without some of its functions."""
    with interrupts.deferred():
        import matplotlib.backends.backend_agg
        import matplotlib.backends.backend_svg
        import matplotlib.figure
        import matplotlib.patches  # noqa: F401


def figure(name: str, part: Mapping[str, Any], **options: Any) -> Figure:
    """A figure of a part, which pyplot does not know; `options` are those of the function that draws it."""
    _load()
    from matplotlib.figure import Figure

    made = Figure(figsize=SIZE, layout="constrained")
    DRAWN[name](part, made.subplots(), **options)
    return made


def own_axes() -> Any:
    """New axes of pyplot, which a notebook shows at the end of its cell."""
    _load()
    from matplotlib import pyplot

    return pyplot.subplots(figsize=SIZE, layout="constrained")[1]


def sweep(
    part: Mapping[str, Any],
    axes: Any,
    show: str | None = None,
    xscale: str | None = None,
    yscale: str = "linear",
    series: str | None = None,
) -> None:
    """A line for each series over the axis, with bands from the lower to the upper quartile; a heat map for two axes.

    `show`: "time" or "rate". `xscale` and `yscale`: "linear" or "log". `series`: the label of the series in a heat map."""
    for scale in (xscale, yscale):
        if scale not in (None, "linear", "log"):
            raise ValueError(f"a scale is 'linear' or 'log', not {scale!r}")
    shown = plot_data.sweep(part, show)
    if part.get("second"):
        _heat_map(part, shown, axes, series)
        return
    values = part["values"]
    places = plot_data.positions(values)
    xs = places if places is not None else [float(i) for i in range(len(values))]
    for i, line in enumerate(shown.series):
        color, dash, marker = COLORS[i % len(COLORS)], DASHES[i % len(DASHES)], MARKERS[i % len(MARKERS)]
        median, low, high = (_gaps(column) for column in (line.median, line.low, line.high))
        axes.plot(xs, median, dash, color=color, marker=marker, label=line.label, gid=f"series-{i}")
        axes.fill_between(xs, low, high, color=color, alpha=0.2, linewidth=0)
    logarithmic = plot_data.is_logarithmic(values) if xscale is None else xscale == "log"
    if places is None:
        axes.set_xticks(xs, [str(v) for v in values])
    elif logarithmic:
        axes.set_xscale("log", base=2)
    if yscale == "log":
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(part["axis"])
    axes.set_ylabel(_quantity(shown.unit))
    axes.grid(alpha=0.3)
    if part["series"]:
        axes.legend()


def _gaps(column: Sequence[float | None]) -> list[float]:
    return [float("nan") if v is None else v for v in column]


def _quantity(unit: str) -> str:
    return f"time ({unit})" if unit in ("ns", "µs", "ms", "s") else unit


def _heat_map(part: Mapping[str, Any], shown: plot_data.PlottedSweep, axes: Any, label: str | None) -> None:
    """The medians of one series as cells. A cell without a number was not measured."""
    line = next((s for s in shown.series if s.label == label), None) if label else next(iter(shown.series), None)
    if line is None:
        there = ", ".join(repr(s.label) for s in shown.series) or "none"
        raise ValueError(f"there is no series {label!r}; the series are: {there}")
    first, second = part["values"], part["second"]["values"]
    columns = len(second)
    grid = [_gaps(line.median[i * columns : (i + 1) * columns]) for i in range(len(first))]
    rows = [[grid[i][j] for i in range(len(first))] for j in range(columns)]  # the second axis points up
    mesh = axes.pcolormesh(rows, cmap=HEAT_COLOURS, edgecolors="white", linewidth=0.5, gid="heat-map")
    if len(first) * columns <= MOST_LABELLED:
        _label_cells(rows, axes)
    axes.set_xticks([i + 0.5 for i in range(len(first))], [str(v) for v in first])
    axes.set_yticks([j + 0.5 for j in range(columns)], [str(v) for v in second])
    axes.set_xlabel(part["axis"])
    axes.set_ylabel(part["second"]["axis"])
    axes.set_title(line.label, fontsize=9)
    axes.figure.colorbar(mesh, ax=axes, label=_quantity(shown.unit))


def _label_cells(rows: Sequence[Sequence[float]], axes: Any) -> None:
    """Writes the number of each cell into it, light on the dark half of the colours."""
    known = [v for row in rows for v in row if v == v]
    middle = (min(known) + max(known)) / 2 if known else 0.0
    for j, row in enumerate(rows):
        for i, v in enumerate(row):
            missing = v != v
            color = "#333333" if missing or v > middle else "white"
            text = "–" if missing else numbers.digits(v)
            axes.text(i + 0.5, j + 0.5, text, ha="center", va="center", color=color, fontsize=8)


def bench(part: Mapping[str, Any], axes: Any) -> None:
    """A bar for each candidate that was timed: the median, with a whisker over the interquartile range."""
    shown = plot_data.timed((row["label"], row.get("time")) for row in part["rows"])
    kinds = {row["label"]: row["kind"] for row in part["rows"]}
    for i, row in enumerate(shown.series):
        (median,), (low,), (high,) = row.median, row.low, row.high
        color = COLORS[("kernel", "without", "baseline").index(kinds[row.label]) % len(COLORS)]
        bars = axes.barh([i], [median], height=0.6, color=color, alpha=0.75)
        bars.patches[0].set_gid(f"row-{i}")
        axes.plot([low, high], [i, i], color="#222222", linewidth=1.5)
    axes.set_yticks(range(len(shown.series)), [row.label for row in shown.series])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(f"time ({shown.unit}), median and interquartile range")
    axes.grid(alpha=0.3, axis="x")


def history(part: Mapping[str, Any], axes: Any) -> None:
    """The time of each version by its number, with the interquartile range; a wrong version is crossed out."""
    versions = [v for v in part["versions"] if v["time"]]
    shown = plot_data.timed((f"version {v['number']}", v["time"]) for v in versions)
    xs = [v["number"] for v in versions]
    median, low, high = ([getattr(s, name)[0] for s in shown.series] for name in ("median", "low", "high"))
    axes.plot(xs, median, "-o", color=COLORS[0], gid="series-0")
    axes.vlines(xs, low, high, color=COLORS[0], alpha=0.5)
    wrong = [i for i, v in enumerate(versions) if v["ok"] is False]
    axes.plot([xs[i] for i in wrong], [median[i] for i in wrong], "x", color=COLORS[1], markersize=12, label="wrong")
    axes.set_xticks(xs)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("version")
    axes.set_ylabel(f"time ({shown.unit})")
    axes.grid(alpha=0.3)
    if wrong:
        axes.legend()


def roofline(part: Mapping[str, Any], axes: Any) -> None:
    """Roofs and points with logarithmic axes: flops per byte against TFLOP/s."""
    points = plot_data.roofline(part)
    intensities = [p["intensity"] for p in points]
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
    for level, label in roof_labels(compute):
        axes.annotate(label, (high, level), fontsize=7, ha="right", va="bottom")
    trail = []
    for point in points:
        x, y = point["intensity"], point["rate"]
        color = COLORS[list(KINDS).index(point["kind"]) % len(COLORS)]
        axes.plot([x], [y], KINDS[point["kind"]], color=color, markersize=8, gid=f"point-{points.index(point)}")
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


def roof_labels(roofs: Sequence[Mapping[str, Any]]) -> list[tuple[float, str]]:
    """The labels of flat roofs with their heights (TFLOP/s). Roofs that are too close for two lines of text share a label."""
    groups: list[list[Mapping[str, Any]]] = []
    for roof in sorted(roofs, key=lambda r: r["value"]):
        if groups and roof["value"] < LABEL_DISTANCE * groups[-1][-1]["value"]:
            groups[-1].append(roof)
        else:
            groups.append([roof])
    return [
        (group[-1]["value"], ", ".join(f"{r['name']}: {numbers.rate_text(r['value'], 'TFLOP/s')}" for r in group))
        for group in groups
    ]


#: The functions that draw a part, by its key in the document.
DRAWN: dict[str, Callable[..., None]] = {"sweep": sweep, "roofline": roofline, "bench": bench, "history": history}


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
