"""The cells whose cards are the pictures of units 4 to 7: reductions of rows, programs that meet, softmax, and times."""

from __future__ import annotations

from typing import Any

_LARGEST = """\
@blocknb.kernel
def largest(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(out, tl.max(values, axis=0))

x = np.array([-3, -5, -2], np.float32)
out = np.empty(1, np.float32)
largest[1,](x, out, 3, BLOCK=4)
"""
_SHORT_ROWS = """\
@blocknb.kernel
def scale_rows(x, out, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row[:, None] * columns + column[None, :]
    tl.store(out + at, 2 * tl.load(x + at, mask=inside), mask=inside)

x = np.ones((30, 12), np.float32)
out = np.zeros_like(x)
scale_rows[4,](x, out, 30, 12, ROWS=8, BLOCK=16)
"""
_SHIFT = """\
@blocknb.kernel
def shift(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at + 1, mask=at + 1 < n), mask=at + 1 < n)

x = np.arange(1024, dtype=np.float32)
shift[8,](x, 1024, BLOCK=128)
"""
_CENTRE = """\
@blocknb.kernel
def centre(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0.0)
    tl.store(out + row * columns + at, values - tl.sum(values, axis=0) / columns, mask=inside)

x = np.ones((4, 32768), np.float32)
out = np.zeros_like(x)
centre[4,](x, out, 32768, BLOCK=32768, num_warps=4)
"""

_DOUBLE = """\
@blocknb.kernel
def double(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at))

x = np.ones(4096, np.float32)
out = np.zeros_like(x)
double[4096 // {block},](x, out, BLOCK={block}, num_warps=4)
"""

CELLS: dict[str, dict[str, Any]] = {
    "masked_lane": {
        "cell": "%%blockkernel --step 0\n" + _LARGEST,
        "view": "Step",
        "before": "(panel) => [...panel.querySelectorAll('button')].find((b) => b.textContent.trim() === '›').click()",
    },
    "short_rows": {"cell": "%%blockkernel --footprint\n" + _SHORT_ROWS, "view": "Footprint"},
    "shift_race": {"cell": "%%blockkernel --footprint\n" + _SHIFT, "view": "Footprint"},
    "spills": {"cell": "%%blockkernel --target sm_90a\n" + _CENTRE, "view": "Resources"},
    "one_element": {
        "cell": "%%blockkernel --target sm_90a\n" + _DOUBLE.format(block=128),
        "view": "Tiles",
        "most": 330,
    },
    "four_elements": {
        "cell": "%%blockkernel --target sm_90a\n" + _DOUBLE.format(block=512),
        "view": "Tiles",
        "most": 330,
    },
}
