"""The sentence that answers a sweep: the best point, which points are within noise of it, and its comparison with the cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blocknb.notebook import numbers, plot_data

if TYPE_CHECKING:
    from blocknb.notebook.sweep import Series, Sweep
    from blocknb.notebook.sweep_launches import ConstantSweep

MOST_NAMED = 4  # points that the sentence names as within noise


def sentence(made: Sweep, constant: ConstantSweep | None = None) -> str:
    """The best point of a Sweep. That of a ConstantSweep is compared with the other points, and with the cell in turns."""
    kernel = next((s for s in made.series if s.kind == "kernel"), None)
    if kernel is None:
        return "; ".join(made.notes) or "interrupted before the first value was measured"
    known = [i for i, median in enumerate(kernel.median) if median is not None]
    best = (min if made.unit == "ms" else max)(known, key=lambda i: kernel.median[i] or 0.0)
    amount, point = kernel.median[best], made.points[best]
    assert amount is not None
    unit, factor = plot_data.fitting(made.unit, amount)
    text = f"{_measured(made, len(known))}, best at {_named(point)}: {numbers.digits(amount * factor)} {unit}"
    parts = [text, *([] if constant is None else _compared(made, kernel, best, constant))]
    omitted = [note for note in made.notes if note.startswith(f"{made.axis} = ")]
    if omitted:
        parts.append(f"{numbers.plural(len(omitted), 'value')} omitted ({omitted[0]})")
    return "; ".join([*parts, *(["interrupted"] if made.cancelled else [])])


def _measured(made: Sweep, count: int) -> str:
    """ "BLOCK over 3 values", or "BLOCK and num_warps over 6 points"."""
    if made.second:
        return f"{made.axis} and {made.second[0]} over {numbers.plural(count, 'point')}"
    return f"{made.axis} over {numbers.plural(count, 'value')}"


def _compared(made: Sweep, kernel: Series, best: int, constant: ConstantSweep) -> list[str]:
    """The best point against the other points, and against the cell."""
    parts, values = list[str](), [point[0] if len(point) == 1 else point for point in made.points]
    value = values[best]
    in_turns = not made.cancelled and constant.value not in (None, value)
    near = [best]
    for i, median in enumerate(kernel.median):
        told = in_turns and values[i] == constant.value  # by the comparison in turns, which decides more
        if i != best and median is not None and not told and _overlap(kernel, i, best):
            near.append(i)
    if len(near) > 1:
        parts.append(_within_noise([_named(made.points[i]) for i in near]))
    if in_turns:
        parts.append(constant.against_cell(value))
    return parts


def _named(point: tuple[Any, ...]) -> str:
    return str(point[0]) if len(point) == 1 else f"({', '.join(map(str, point))})"


def _overlap(series: Series, i: int, j: int) -> bool:
    """Whether the interquartile ranges of two points overlap."""
    low = [series.low[i], series.low[j]]
    high = [series.high[i], series.high[j]]
    return max(v for v in low if v is not None) <= min(v for v in high if v is not None)


def _within_noise(names: list[str]) -> str:
    """ "256 and 8192 are within noise: their interquartile ranges overlap that of the best"."""
    if len(names) > MOST_NAMED:
        names = [*names[: MOST_NAMED - 1], f"{len(names) - MOST_NAMED + 1} more"]
    return f"{', '.join(names[:-1])} and {names[-1]} are within noise: their interquartile ranges overlap"
