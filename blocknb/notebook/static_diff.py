"""The diff of two texts as HTML without JavaScript, for saved and printed pages: hunks with line numbers, changed lines marked.

Each changed line begins with `-` or `+`, so that the diff is readable where a page strips styles; `<del>` and `<ins>` give it colours and
a meaning for screen readers. A diff beyond the budget is cut, and says so.
"""

from __future__ import annotations

import difflib
from html import escape

CONTEXT, MOST_BYTES, LONGEST_LINE = 2, 24_000, 300
_STYLE = (
    "<style>.blocknb-diff.blocknb-diff pre{overflow:auto;line-height:1.35;font-size:12px;font-family:ui-monospace,monospace}"
    ".blocknb-diff del{background:rgba(248,81,73,.2);"
    "text-decoration:none}.blocknb-diff ins{background:rgba(46,160,67,.2);text-decoration:none}"
    "@media print{.blocknb-diff.blocknb-diff pre{white-space:pre-wrap;overflow:visible}}</style>"
)


def rendered(a: tuple[str, str], b: tuple[str, str], most: int = MOST_BYTES) -> str:
    """The diff of two texts, each with its label, as HTML of about `most` bytes at most."""
    (one, before), (two, after) = a, b
    old, new = before.splitlines(), after.splitlines()
    head = f"<p>Differences from <del>- {escape(one)}</del> to <ins>+ {escape(two)}</ins></p>"
    rows = [
        row
        for group in difflib.SequenceMatcher(None, old, new, False).get_grouped_opcodes(CONTEXT)
        for row in _hunk(group, old, new)
    ]
    if not rows:
        return f'<div class="blocknb-diff"><p>{escape(one)} and {escape(two)} are identical.</p></div>\n'
    kept, spent = 0, 0
    while kept < len(rows) and spent + len(rows[kept].encode()) <= most:
        spent += len(rows[kept].encode()) + 1
        kept += 1
    rest = f"<p>{len(rows) - kept} more lines of the diff are omitted.</p>" if kept < len(rows) else ""
    listing = "\n".join(rows[:kept])
    return f'<div class="blocknb-diff">{_STYLE}{head}<pre>{listing}</pre>{rest}</div>\n'


def _hunk(group: list[tuple[str, int, int, int, int]], old: list[str], new: list[str]) -> list[str]:
    """The lines of a hunk with its head in the form of `diff -u`."""
    first, last = group[0], group[-1]
    rows = [f"@@ -{first[1] + 1},{last[2] - first[1]} +{first[3] + 1},{last[4] - first[3]} @@"]
    for kind, i1, i2, j1, j2 in group:
        if kind == "equal":
            rows += [f"  {_clipped(line)}" for line in old[i1:i2]]
        else:
            rows += [f"<del>- {_clipped(line)}</del>" for line in old[i1:i2]]
            rows += [f"<ins>+ {_clipped(line)}</ins>" for line in new[j1:j2]]
    return rows


def _clipped(line: str) -> str:
    return escape(line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + " …", quote=False)
