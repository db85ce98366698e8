"""The cells whose cards are pictures of the course, by the name of the picture. `course_pictures.py` takes them."""

from __future__ import annotations

from typing import Any

import course_cells_attention
import course_cells_matrix
import course_cells_rows

SETUP = """\
%load_ext blocknb
import numpy as np
import blocknb
import blocknb.language as tl
"""

_DOUBLE = """\
@blocknb.kernel
def double(x, out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = {at}
    inside = at < n
    tl.store(out + at, 2 * tl.load(x + at, mask=inside), mask=inside)

n = {n}
x = np.ones(n, np.float32)
out = np.zeros_like(x)
double[blocknb.cdiv(n, {block}),](x, out, n, BLOCK={block})
"""
_PRODUCTS = """\
@blocknb.kernel
def products(x, y, out, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (i[:, None] < rows) & (j[None, :] < columns)
    tile = tl.load(x + i, mask=i < rows)[:, None] * tl.load(y + j, mask=j < columns)[None, :]
    tl.store(out + i[:, None] * columns + j[None, :], tile, mask=inside)

x, y = np.ones(40, np.float32), np.ones(100, np.float32)
out = np.zeros((40, 100), np.float32)
products[3, 4](x, y, out, 40, 100, BM=16, BN=32)
"""
_WIDE = """\
@blocknb.kernel
def double(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at))

x = np.ones(4096, np.float32)
double[8,](x, np.zeros_like(x), BLOCK=512)
"""
_COLUMNS = """\
@blocknb.kernel
def read(x, out):
    lane = tl.arange(0, 32)
    tl.store(out + lane, tl.load(x + {place}))

x, out = np.ones((32, 32), np.float32), np.zeros(32, np.float32)
read[1,](x, out, num_warps=1)
"""
#: Shows the stores to `out` in the Footprint view.
_OUT = "(panel) => [...panel.querySelectorAll('button')].find((b) => b.textContent.startsWith('out')).click()"

CELLS: dict[str, dict[str, Any]] = {
    "blocks": {
        "cell": "%%blockkernel --footprint\n"
        + _DOUBLE.format(at="pid * BLOCK + tl.arange(0, BLOCK)", n=5000, block=1024),
        "view": "Footprint",
        "before": _OUT,
    },
    "overlap": {
        "cell": "%%blockkernel --footprint\n" + _DOUBLE.format(at="tl.arange(0, BLOCK)", n=1024, block=128),
        "view": "Footprint",
        "before": _OUT,
    },
    "tile_map": {"cell": "%%blockkernel --footprint\n" + _PRODUCTS, "view": "Footprint", "before": _OUT},
    "warps": {
        "cell": "%%blockkernel --target sm_90a\n" + _WIDE,
        "view": "Tiles",
    },
    "column_down": {
        "cell": "%%blockkernel --target sm_90a\n" + _COLUMNS.format(place="lane * 32 + 5"),
        "view": "Tiles",
    },
    "column_along": {
        "cell": "%%blockkernel --target sm_90a\n" + _COLUMNS.format(place="5 * 32 + lane"),
        "view": "Tiles",
    },
    **course_cells_rows.CELLS,
    **course_cells_matrix.CELLS,
    **course_cells_attention.CELLS,
}
