"""The card as HTML without JavaScript: facts at the top, a few folded sections, readable even if styles are stripped.

Pages that cannot show the document use it: nbconvert, code hosts, JupyterLab without the extension. All text is escaped. Colours are the
notebook's own (`--jp-*`), with fallbacks that are readable on light and dark backgrounds. Kinds of notes differ by sign as well as by
colour. The page must stay small, so the sections share a budget: each gets what it needs up to a common level (`fair_share`). A truncated
section names the expression that returns the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

from blocknb.notebook.sections import ListingLine, Section

LONGEST_LINE, LONGEST_FACT = 600, 1500
INSTALL = (
    "To see all passes, the machine code and the knobs, install the extension in JupyterLab's environment: "
    "`pip install blocknb`, then reload the page."
)

# `&` is the card. Its class appears twice, so that these rules override the notebook's own rules for tables.
STYLE = """
&{max-height:34em;overflow:auto;resize:vertical;padding:.5em .8em;border:1px solid
var(--jp-border-color2,rgba(128,128,128,.4));border-radius:4px;color:var(--jp-content-font-color1,inherit);
font-size:var(--jp-ui-font-size1,13px);line-height:1.45}
& .bn-head{font-size:1.1em;margin-bottom:.3em}
& table{margin:.2em 0 .5em;border:none;border-collapse:collapse;width:auto;table-layout:auto;font-size:1em}
& tr,& tr:nth-child(n),& tr:hover{background:none}
& th,& td{text-align:left;vertical-align:top;padding:.05em 1.2em .05em 0;border:none;white-space:normal;max-width:none;
line-height:inherit}
& th{font-weight:normal;color:var(--jp-content-font-color2,inherit);white-space:nowrap}
& .bn-rows tr{border-bottom:1px solid var(--jp-border-color2,rgba(128,128,128,.3))}
& .bn-figures td:not(:last-child),& .bn-figures th:not(:last-child){text-align:right;font-variant-numeric:tabular-nums}
& .bn-figures tr.bn-first{font-weight:600}
& .bn-group{margin:.5em 0 .1em;font-weight:600;color:var(--jp-content-font-color2,inherit)}
& details{margin:0}
& summary{cursor:pointer;padding:.02em 0}
& code{background:none;padding:0;font-family:var(--jp-code-font-family,monospace)}
& summary b{display:inline-block;min-width:10.5em;margin-right:.3em}
& .bn-detail{float:right;padding-left:1em;color:var(--jp-content-font-color2,inherit);font-variant-numeric:tabular-nums}
& pre{margin:.2em 0 .6em;padding:.4em .6em;max-height:40em;overflow:auto;white-space:pre;line-height:1.35;
font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:var(--jp-code-font-size,12px);
color:var(--jp-content-font-color1,inherit);background:rgba(128,128,128,.1)}
& i{font-style:normal;color:var(--jp-brand-color1,#3b82f6)}
& i.m{color:var(--jp-warn-color1,#d97706)}
& i.w{color:var(--jp-error-color1,#dc2626)}
& .bn-wrong{color:var(--jp-error-color1,#dc2626);font-weight:600}
& u{text-decoration:none;background:rgba(46,160,67,.2)}
@media print{&,& pre{max-height:none;overflow:visible}& pre{white-space:pre-wrap}}
""".strip().replace("&", ".blocknb-card.blocknb-card")

_OPENING = {"info": "<i>", "missed": "<i class=m>", "warning": "<i class=w>"}


def render(
    headline: tuple[str, str],
    facts: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[str]],
    sections: Sequence[Section],
    opened: Collection[str],
    budget: int,
    footer: str = INSTALL,
) -> str:
    """Renders the whole card in at most about `budget` bytes.

    `headline` is the kernel's name and where it ran; `rows` is a table with its head, or empty; `opened` holds the keys of unfolded
    sections.
    """
    name, where = headline
    title = f"<div class=bn-head><b>{escape(_clipped(name))}</b> &nbsp;{escape(_clipped(where))}</div>"
    head = [title, _table(facts, "bn-facts")]
    if rows:
        head.append(_table(rows, "bn-rows", head=True))
    foot = f"<div>{marked(footer)}</div>\n</div>"
    frames = [_summary(section) for section in sections]
    spent = sum(map(_size, (STYLE, foot, *head))) + sum(_size(f) + 400 for f in frames)
    last = {section.group: section for section in sections if section.language == "ir"}
    wanted = [section.key in opened or section is last.get(section.group) for section in sections]
    bodies = [
        [_line(line, section) for line in _lines(section, named)]
        for section, named in zip(sections, wanted, strict=True)
    ]
    level = fair_share([sum(_size(row) + 1 for row in rows) for rows in bodies], max(budget - spent, 0))
    parts, group = [f'<div class="blocknb-card"><style>{STYLE}</style>', *head], ""
    for section, summary, lines, named in zip(sections, frames, bodies, wanted, strict=True):
        if section.group != group:
            group = section.group
            parts.append(f"<div class=bn-group>{escape(group)}</div>")
        state = " open" if section.key in opened or "all" in opened else ""
        parts.append(f"<details{state}><summary>{summary}</summary>{_body(section, lines, named, level)}</details>")
    return "\n".join([*parts, foot])


def figures(headline: tuple[str, str], rows: Sequence[Sequence[str]]) -> str:
    """A table of numbers in the style of a card; the last column holds text, the head is the first of `rows`, and the first row is
    emphasized."""
    name, about = headline
    title = f"<div class=bn-head><b>{escape(_clipped(name))}</b> &nbsp;{escape(_clipped(about))}</div>"
    table = _table(rows, '"bn-rows bn-figures"', head=True).replace("<tr><td", "<tr class=bn-first><td", 1)
    return f'<div class="blocknb-card"><style>{STYLE}</style>\n{title}\n{table}\n</div>'


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))


def _clipped(text: str) -> str:
    return text if len(text) <= LONGEST_FACT else text[:LONGEST_FACT] + " …"


def fair_share(sizes: Sequence[int], budget: int) -> int:
    """The largest level for which the sum of all sizes, each cut to the level, fits into the budget (max-min fairness)."""
    left, waiting = budget, sorted(sizes)
    while waiting:
        share = left // len(waiting)
        if waiting[0] > share:
            return share
        left -= waiting.pop(0)
    return max(sizes, default=0)


def message(text: str) -> str:
    """A line of text that is not part of a card."""
    return f'<div class="blocknb-line">{marked(text)}</div>'


def marked(text: str) -> str:
    """Escaped text in which `backquotes` mark code."""
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _table(rows: Sequence[Sequence[str]], name: str, head: bool = False) -> str:
    made = []
    for i, row in enumerate(rows):
        header = (lambda column: True) if head and i == 0 else (lambda column: column == 0 and not head)
        cells = [
            f"<th>{escape(_clipped(c))}</th>"
            if header(j)
            else f"<td{' class=bn-wrong' * ('✗' in c)}>{marked(_clipped(c))}</td>"
            for j, c in enumerate(row)
        ]
        made.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table class={name}>{''.join(made)}</table>"


def _summary(section: Section) -> str:
    detail = f" <span class=bn-detail>{escape(section.detail)}</span>" if section.detail else ""
    return f"<b>{escape(section.title)}</b> {escape(section.about)}{detail}"


def _lines(section: Section, wanted: bool) -> Sequence[ListingLine]:
    """The lines to list. A stage that changed nothing lists only its notes, unless its text is `wanted`."""
    if wanted or not section.same:
        return section.lines
    return [*(line for line in section.lines if line.note), ListingLine("unchanged from the previous stage", None)]


def _line(line: ListingLine, section: Section) -> str:
    text = line.text if len(line.text) <= LONGEST_LINE else line.text[:LONGEST_LINE] + " …"
    if section.key in ("times", "llvm"):
        return escape(text, quote=False)
    number = "" if line.line is None or (line.note and section.key == "source") else str(line.line)
    body = f"{number:>4} {'+' if line.new else ' '} {escape(text, quote=False)}"
    if line.note:
        return f"{_OPENING[line.note]}{body}</i>"
    return f"<u>{body}</u>" if line.new else body


def _body(section: Section, lines: list[str], wanted: bool, level: int) -> str:
    """The listing, truncated at a line end to `level` bytes. The numbers below it count no notes, which the call does not return."""
    kept, spent = 0, 0
    while kept < len(lines) and spent + _size(lines[kept]) + 1 <= level:
        spent += _size(lines[kept]) + 1
        kept += 1
    text = "\n".join(lines[:kept])
    if kept == len(lines):
        return f"<pre>{text}</pre>"
    is_text = [not line.note for line in _lines(section, wanted)]
    rest = (
        f"… {sum(is_text[kept:])} of {sum(is_text)} lines are omitted. All lines: <code>{escape(section.call)}</code>"
    )
    return f"<pre>{text}</pre><div>{rest}</div>"
