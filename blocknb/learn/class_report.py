"""`blocknb learn report *.json`: the progress files of a class as one HTML page: a row per learner, a column per exercise.

A file is named after its learner. Its texts come from another machine, so the page shows them as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from blocknb.learn import progress
from blocknb.learn.listing import NOTHING, groups, state, title
from blocknb.learn.progress import ItemProgress

Class = Mapping[str, Mapping[str, ItemProgress]]

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>blocknb: a class's progress</title>
<style>
:root{{color-scheme:light dark}}
body{{font:14px/1.4 system-ui,sans-serif;margin:1.5em}}
.scroll{{overflow:auto;max-height:85vh}}
table{{border-collapse:collapse}}
th,td{{border:1px solid rgba(128,128,128,.4);padding:.2em .5em;text-align:center;white-space:nowrap}}
thead th{{position:sticky;top:0;background:Canvas;z-index:1}}
thead tr:first-child+tr th{{top:1.85em}}
tbody th{{position:sticky;left:0;background:Canvas;text-align:left}}
.passed{{background:rgba(46,160,67,.25)}}
.helped{{background:rgba(46,160,67,.12)}}
.tried{{background:rgba(217,119,6,.25)}}
</style></head><body>
<h1>Progress</h1>
<p>{about}</p>
<div class="scroll"><table>
<thead>
{head}
</thead>
<tbody>
{body}
</tbody>
</table></div>
<p>A number counts the tries up to the first pass; h: hints. <span class="passed">passed</span> <span class="helped">passed after the
solution</span> <span class="tried">tried</span></p>
{problems}</body></html>
"""


def read(files: Sequence[str]) -> tuple[dict[str, dict[str, ItemProgress]], list[str]]:
    """The progress by learner, and a sentence for each file that is not readable."""
    found: dict[str, dict[str, ItemProgress]] = {}
    problems = []
    for name in files:
        path = Path(name)
        learner = path.stem if path.stem != "progress" else path.resolve().parent.name
        if learner in found:
            learner = str(path)
        try:
            with open(path, "rb") as file:
                found[learner] = progress.parsed(file.read(progress.MOST_BYTES))
        except (OSError, ValueError) as error:
            problems.append(f"{name}: {error}")
    return dict(sorted(found.items())), problems


def page(learners: Class, problems: Sequence[str] = ()) -> str:
    """The HTML page. It has the units that somebody has tried, and all their exercises."""
    shown = [
        (unit, items)
        for unit, items in groups()
        if any(items_of.get(item.name, NOTHING).tries for items_of in learners.values() for item in items)
    ]
    names = [item for _, items in shown for item in items]
    first = "".join(f'<th colspan="{len(items)}">{escape(title(unit))}</th>' for unit, items in shown)
    second = "".join(f'<th title="{escape(item.title)}">{escape(item.name)}</th>' for item in names)
    rows = []
    for learner, done in learners.items():
        cells = "".join(
            _mark(state(item, done.get(item.name, NOTHING)), done.get(item.name, NOTHING)) for item in names
        )
        passed = sum(bool(done.get(item.name, NOTHING).passed) for item in names)
        rows.append(f"<tr><th>{escape(learner)}</th><td>{passed}</td>{cells}</tr>")
    totals = "".join(f"<td>{_share(item.name, learners)}</td>" for item in names)
    rows.append(f"<tr><th>passed by</th><td></td>{totals}</tr>")
    listed = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
    return PAGE.format(
        about=f"{len(learners)} learners, {len(names)} exercises",
        head=f"<tr><th></th><th></th>{first}</tr>\n<tr><th>learner</th><th>passed</th>{second}</tr>",
        body="\n".join(rows),
        problems=f"<h2>Files that are not readable</h2>\n<ul>{listed}</ul>\n" if problems else "",
    )


def _mark(tooltip: str, done: ItemProgress) -> str:
    if not done.tries:
        return "<td></td>"
    kind = "tried" if not done.passed else "helped" if done.solution else "passed"
    hints = f" {done.hints}h" if done.hints else ""
    return f'<td class="{kind}" title="{escape(tooltip)}">{"✓ " if done.passed else ""}{done.tries}{hints}</td>'


def _share(name: str, learners: Class) -> str:
    passed = sum(bool(done.get(name, NOTHING).passed) for done in learners.values())
    return f"{passed} of {len(learners)}"
