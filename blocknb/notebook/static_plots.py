"""The plots of a document's parts as HTML without JavaScript: `<figure>` elements with an SVG image, for saved and printed pages.

Converters such as nbconvert, and editors without the extension, show an output's `text/html` and drop its `image/png`, so the page holds
the picture itself. The SVG is a data URI: an image can neither run scripts nor take up styles of the page, and prints sharply.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping
from html import escape
from typing import Any

from blocknb.notebook import numbers, plot_data, plots

MOST_BYTES = 60_000  # of one figure; a larger one becomes a PNG
MOST_VALUES = 6  # of the alternative text


def figures(parts: Mapping[str, Any]) -> str:
    """The figures of all parts that can be drawn; "" without Matplotlib."""
    try:
        drawn = [name for name in plots.DRAWN if plots.drawable(name, parts.get(name))]
        return "".join(_figure(name, json.dumps(parts[name])) for name in drawn)
    except ImportError:
        return ""


@functools.lru_cache(maxsize=16)
def _figure(name: str, text: str) -> str:
    """The figure of a part in JSON. It is kept, because each change of a knob shows the plots of the cell again."""
    part = json.loads(text)
    figure = plots.figure(name, part)
    picture, kind = plots.svg(figure), "svg+xml"
    if len(picture) > MOST_BYTES:
        picture, kind = plots.png(figure), "png"
    source = f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"
    alt = escape(described(name, part))
    return f'<figure class="blocknb-plot" data-part="{name}"><img alt="{alt}" src="{source}"></figure>\n'


def described(name: str, part: Mapping[str, Any]) -> str:
    """The content of a plot in words and numbers, for readers who do not see it."""
    return _DESCRIBED[name](part)


def _sweep(part: Mapping[str, Any]) -> str:
    shown, values = plot_data.sweep(part), part["values"]
    if second := part.get("second"):
        values = [f"{v}, {w}" for v in values for w in second["values"]]
        axis = f"{part['axis']} and {second['axis']}"
    else:
        axis = part["axis"]
    lines = []
    for series in shown.series:
        known = [(v, m) for v, m in zip(values, series.median, strict=True) if m is not None]
        texts = [f"{m:.3g} at {v}" for v, m in known[:MOST_VALUES]]
        more = [f"and {len(known) - MOST_VALUES} more"] if len(known) > MOST_VALUES else []
        lines.append(f"{series.label}: {', '.join([*texts, *more])}")
    return f"Plot of a sweep over {axis} in {shown.unit}. {'; '.join(lines)}."


def _roofline(part: Mapping[str, Any]) -> str:
    points = [
        f"{p['label']}: {numbers.rate_text(p['rate'], 'TFLOP/s')} at {numbers.digits(p['intensity'])} FLOP per byte"
        for p in plot_data.roofline(part)
    ]
    return f"Roofline of {part['device']}. {'; '.join(points)}."


def _bench(part: Mapping[str, Any]) -> str:
    rows = [f"{row['label']}: {numbers.time(row['time']['median'])}" for row in part["rows"] if row.get("time")]
    return f"Times measured in turns. {'; '.join(rows)}."


def _history(part: Mapping[str, Any]) -> str:
    rows = [f"version {v['number']}: {numbers.time(v['time']['median'])}" for v in part["versions"] if v["time"]]
    return f"Times of the versions of a kernel. {'; '.join(rows)}."


_DESCRIBED = {"sweep": _sweep, "roofline": _roofline, "bench": _bench, "history": _history}
