"""The kernels of a model compiled by `torch.compile` as HTML without scripts: a row for each launch, and a fold for each kernel.

JupyterLab, nbconvert and a saved file show the same HTML. It has at most `LIMIT` bytes: the rows come first, and the kernels share the
rest. The colours are the notebook's own. Where there are none, they follow the theme of the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from blocknb.errors import LaunchError
from blocknb.notebook import html, numbers, program_lines, torch_graph
from blocknb.notebook.card import Card, View
from blocknb.notebook.observe import KernelRecord, Specialisation
from blocknb.runtime import whole_files
from blocknb.runtime.kinds import HOST
from blocknb.torch.inductor.fusion_graph import EXTERNAL

LIMIT = 600_000  # bytes of the whole output
ROWS_LIMIT = 250_000  # bytes of the rows
LARGEST_KERNEL, SMALLEST_KERNEL = 40_000, 9_000  # bytes of the fold of a kernel
MOST_LINES = 8  # of the user's program in a row
SHOWN_OPERATORS = 6  # of an eager step

_STYLE = """
& td,& th{padding-right:.9em}
& .bn-launches{width:100%}
& .bn-launches tr{border-bottom:1px solid var(--jp-border-color2,rgba(128,128,128,.3))}
& .bn-launches th{vertical-align:bottom;white-space:normal}
& .bn-launches td:nth-child(2){min-width:14em}
& .bn-launches td:nth-child(3){min-width:19em}
& td.bn-n,& th.bn-n{text-align:right;font-variant-numeric:tabular-nums}
& td.bn-n{white-space:nowrap}
& .bn-launches td code{display:block;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.92em}
& .bn-launches small,& .bn-about{color:var(--jp-content-font-color2,inherit)}
& .bn-launches small{display:block;overflow-wrap:anywhere}
& .bn-bar{display:block;height:.35em;margin-top:.15em;background:var(--jp-brand-color1,#3b82f6);border-radius:2px}
& .bn-share{width:5em;min-width:5em}
& .bn-graph{overflow:auto;max-height:40em}
& .blocknb-card.blocknb-card{max-height:none;border:none;padding:.2em 0 .2em 1em;resize:none}
""".strip().replace("&", ".blocknb-torch.blocknb-torch")
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>:root{{color-scheme:light dark}}body{{font-family:system-ui,sans-serif;margin:1em;background:Canvas;color:CanvasText}}
body>.blocknb-torch.blocknb-torch{{max-height:none;border:none;resize:none}}</style>
</head>
<body>
{body}
</body>
</html>
"""
_HEADS = ("#", "kernel", "lines of the program", "ATen operators", "time (µs)", "share of kernel time (%)",
          "unique bytes (kB)", "GB/s", "MFLOP", "of the roof (%)")  # fmt: skip
_NUMBERS = _HEADS[4:]
_ROOF = _HEADS.index("of the roof (%)")  # the last column, left out where no roof is known


def torch_kernels_html(kernels: Any, limit: int | None = None) -> str:
    """The table of `blocknb.torch.kernels(...)` with the graph, in at most `limit` bytes (LIMIT)."""
    limit = limit or LIMIT
    rows_limit = min(ROWS_LIMIT, limit // 2)
    parts = [f'<div class="blocknb-card blocknb-torch"><style>{html.STYLE}\n{_STYLE}</style>', _head(kernels)]
    parts.append(_rows(kernels, rows_limit))
    parts += torch_graph.sections(kernels, limit // 4)
    left = limit - sum(_size(part) + 1 for part in parts) - 500
    return "\n".join([*parts, *_folds(kernels, left), "</div>"])


def save_torch_kernels(kernels: Any, path: str | Path) -> Path:
    """Writes the table to one HTML file, which needs no network and no kernel. Raises LaunchError for a path of another type."""
    if not isinstance(path, str | Path):
        raise LaunchError(
            f"a path is a string or a Path, not of type {type(path).__name__}", hint="write 'kernels.html'"
        )
    file = Path(path)
    whole_files.write_text(file, _PAGE.format(title=escape(title_of(kernels)), body=torch_kernels_html(kernels)))
    return file


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))


def title_of(kernels: Any) -> str:
    """ "9 launches of generated kernels", or "9 compiled kernels" without a launch."""
    count = sum(k.launches for k in kernels if k.launch is not None)
    if not count:
        return numbers.plural(len(kernels), "compiled kernel")
    return f"{numbers.plural(count, 'launch') if count == 1 else f'{count} launches'} of generated kernels"


def about(kernels: Any) -> list[str]:
    """Sentences that explain the numbers of the table."""
    measured = [k for k in kernels if k.milliseconds is not None]
    if not measured:
        return []
    time = measured[0].launch.time
    clock = "by the clock of the host" if measured[0].launch.device == HOST else "by events of the GPU"
    found = [
        f"Sum of the times: {numbers.time(kernels.milliseconds)}. Each time is the median of repetitions with "
        f"{'cold' if time.cold else 'warm'} caches, {clock}, on copies of what the kernel writes. Unique bytes are the fewest that a "
        "launch must move. Operators that Inductor leaves to torch, such as products, are not in the table."
    ]
    if not _roofs(kernels):
        found.append(
            "The roof is unknown: `blocknb.roofline` measures the ceilings of a device, and no result of it is stored here."
        )
    return found


def step_rows(kernels: Any) -> list[dict[str, Any]]:
    """The compiled and the eager step next to each other: `time` of the whole step, number of launches, and bytes; None is unknown."""
    launched = [k for k in kernels if k.launch is not None]
    if not launched:
        return []
    steps = {label: time.entry for label, time in (kernels.steps or {}).items()}
    rows = [{"label": "compiled", "time": steps.get("compiled"), **_compiled_step(kernels.graphs, launched)}]
    if (eager := kernels.eager) is not None:
        named = [f"{count} × {name}" for name, count in list(eager.counts.items())[:SHOWN_OPERATORS]]
        what = ", ".join([*named, *(["…"] if len(eager.counts) > SHOWN_OPERATORS else [])])
        row = {"launches": eager.launches, "what": what, "bytes": eager.bytes}
        rows.append({"label": "eager", "time": steps.get("eager"), **row})
    return rows


def _compiled_step(files: Any, launched: list[Any]) -> dict[str, Any]:
    """The number of launches and the bytes of a compiled step, with its external calls."""
    external = sum(group.kind == EXTERNAL for file in files for group in file.graph.groups)
    generated = sum(k.launches for k in launched)
    moved = [None if k.bytes is None else k.bytes * k.launches for k in launched]
    moved += [file.graph.external_bytes() for file in files]
    launches = "1 launch" if generated == 1 else f"{generated} launches"
    return {
        "launches": generated + external,
        "what": f"{launches} of generated kernels, {numbers.plural(external, 'external call')}",
        "bytes": None if None in moved else sum(size or 0 for size in moved),
    }


def _head(kernels: Any) -> str:
    """The title, the times of the step, and what the numbers mean."""
    lines = [f"<div class=bn-head><b>{escape(title_of(kernels))}</b></div>"]
    for row in step_rows(kernels):
        time = numbers.timing(kernels.steps[row["label"]]) if row["time"] else "not timed as a whole"
        moved = "unknown bytes" if row["bytes"] is None else f"at least {numbers.size(row['bytes'])}"
        text = f"{time}; {row['launches']} launches ({row['what']}); {moved}"
        lines.append(f"<div><b>{row['label']}</b>: {escape(text)}</div>")
    return "\n".join([*lines, *(f"<div class=bn-about>{html.marked(text)}</div>" for text in about(kernels))])


def _roofs(kernels: Any) -> bool:
    """Whether the place under the roof of any launch is known."""
    return any(k.launch is not None and k.launch.roof[1] is not None for k in kernels)


def _rows(kernels: Any, limit: int) -> str:
    roofs = _roofs(kernels)
    heads = _HEADS if roofs else _HEADS[:_ROOF]
    cells = "".join(f"<th{' class=bn-n' * (head in _NUMBERS)}>{escape(head)}</th>" for head in heads)
    parts, spent = [f"<table class=bn-launches><thead><tr>{cells}</tr></thead><tbody>"], 0
    for i, kernel in enumerate(kernels):
        row = _row(i, kernel, kernels.share(kernel), roofs)
        spent += _size(row)
        if spent > limit:
            parts.append(f"<tr><td></td><td colspan={len(heads) - 1}>and {len(kernels) - i} more</td></tr>")
            break
        parts.append(row)
    return "\n".join([*parts, "</tbody></table>"])


def _row(number: int, kernel: Any, share: float | None, roofs: bool) -> str:
    launch = kernel.launch
    facts = [kernel.configuration]
    if launch is not None:
        facts.append(f"grid {numbers.grid(launch.grid)}")
    if kernel.launches > 1:
        facts.append(f"{kernel.launches} launches")
    name = f"{_broken(kernel.name)}<small>{escape(', '.join(facts))}</small>"
    why_bytes = launch.work.why_bytes if launch is not None else "not launched"
    why_flops = launch.work.why_flops if launch is not None else "not launched"
    about = "" if launch is None or launch.work.exact else "an estimate from a sample of the programs"
    why_time = "not launched" if launch is None else launch.why
    near, percent = (None, None) if launch is None else launch.roof
    texts = [
        _number(kernel.milliseconds, 1e3, why_time),
        _share(share),
        _number(kernel.bytes, 1e-3, why_bytes, about),
        _number(kernel.gbytes, 1, why_bytes or why_time, about),
        _number(kernel.flops, 1e-6, why_flops, about),
        *([_number(percent, 1, why_bytes or why_flops or why_time, f"of the ceiling {near}")] if roofs else []),
    ]
    first = f"<td class=bn-n>{number}</td><td>{name}</td><td>{_lines(kernel.lines)}</td><td>{escape(', '.join(kernel.operators))}</td>"
    return f"<tr>{first}{''.join(texts)}</tr>"


def _broken(name: str) -> str:
    """A name that may break after an underscore."""
    return escape(name).replace("_", "_<wbr>")


def _number(value: float | None, scale: float, why: str, about: str = "") -> str:
    """A cell; without a value it says why in its title."""
    if value is None:
        return f'<td class=bn-n title="{escape(why)}">{"unknown" if why else ""}</td>'
    return f'<td class=bn-n title="{escape(about)}">{"≈ " * about.startswith("an estimate")}{numbers.digits(value * scale)}</td>'


def _share(share: float | None) -> str:
    if share is None:
        return "<td></td>"
    return f'<td class="bn-n bn-share">{100 * share:.1f}<span class=bn-bar style="width:{max(100 * share, 0.5):.1f}%"></span></td>'


def _lines(lines: Sequence[tuple[str, int, str]]) -> str:
    found = []
    for file, line, text in lines[:MOST_LINES]:
        where = f"{program_lines.named(file)}:{line}"
        found.append(f'<small title="{escape(file)}">{escape(where)}</small><code>{escape(text.strip()[:200])}</code>')
    if len(lines) > MOST_LINES:
        found.append(f"<small>and {len(lines) - MOST_LINES} more</small>")
    return "".join(found)


# ---- the folds of the kernels ----------------------------------------------------------------------------------------------


def _folds(kernels: Any, budget: int) -> list[str]:
    """A fold for each distinct kernel, in the order of the first launches, with at most `budget` bytes together."""
    rows: dict[int, list[int]] = {}
    for i, kernel in enumerate(kernels):
        rows.setdefault(id(kernel.compiled), []).append(i)
    parts: list[str] = []
    for done, indices in enumerate(rows.values()):
        limit = min(LARGEST_KERNEL, budget // (len(rows) - done))
        part = _fold(kernels[indices[0]], indices, limit) if limit >= SMALLEST_KERNEL else None
        if part is None or _size(part) + 200 > budget:
            call = f"`found[{indices[0]}].source` and `found[{indices[0]}].trace`"
            count = numbers.plural(len(rows) - done, "kernel")
            rest = f"{count} without a fold, to keep the page small: {call} have the text of the first."
            return [*parts, f"<div class=bn-about>{html.marked(rest)}</div>"]
        parts.append(part)
        budget -= _size(part) + 1
    return parts


def _fold(kernel: Any, indices: Sequence[int], limit: int) -> str:
    named = ", ".join(f"#{i}" for i in indices[:12]) + " …" * (len(indices) > 12)
    summary = f"<b>{escape(kernel.name)}</b> {escape(named)}: source, notes and IR"
    page = card_of(kernel, f"found[{indices[0]}].trace").html(limit - 500 + _size(html.STYLE), _footer(indices[0]))
    return f"<details><summary>{summary}</summary>{page.replace(f'<style>{html.STYLE}</style>', '', 1)}</details>"


def _footer(index: int) -> str:
    return f"All stages and the machine code of the kernel: `found[{index}].trace`, if `found` is this table."


def card_of(kernel: Any, expression: str) -> Card:
    """The card of a generated kernel with the code that ran."""
    launch, compiled = kernel.launch, kernel.compiled
    made = Specialisation(compiled, HOST if launch is None else launch.device)
    if launch is not None:
        made.grid, made.arguments, made.launches = launch.grid, launch.arguments, kernel.launches
        made.repeats, made.why = launch.time, launch.why
    label, place = (
        (str(compiled.target) if compiled.target.is_gpu else "CPU"),
        numbers.place(compiled.target, made.device),
    )
    record = KernelRecord(compiled.kernel, {id(compiled): made}, made)
    role = "compiled" if launch is None else "ran"
    return Card(record, (View(role, label, place, expression, compiled.trace),))
