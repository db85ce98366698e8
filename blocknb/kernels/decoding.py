"""The checked arguments of attention over a cache of keys and values (`attention_decoding`): sizes, strides, options and pages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import blocknb
from blocknb.kernels.heads import DTYPES, LEAST, LONGEST, SHORTEST, Heads, Tile
from blocknb.kernels.strides import contiguous, device, dtype_name, need_arrays, strides

MOST_QUERIES = 16
LEAST_PAGE = 16  # keys per page
INDICES = ("int32", "int64")
MOST_ROWS = 64  # of a tile of queries: one warpgroup
COLUMNS, TILE_BYTES = 64, 1 << 14  # the most keys per tile, and its bytes
LEAST_STEPS = 6  # tiles of keys per split, for two programs per multiprocessor


@dataclass(frozen=True)
class DecodingProblem(Heads):
    """The sizes of an attention over a cache. `page` is the number of keys per page, 0 for a contiguous cache."""

    page: int = 0

    @property
    def rows(self) -> int:
        """The queries of a group of heads, which share one head of keys and values."""
        return self.queries * self.group

    @property
    def kv_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.heads // self.group

    @staticmethod
    def of(q: Any, k: Any, v: Any, block_table: Any) -> DecodingProblem:
        """The sizes of q, k and v (see `attention_decoding`). Raises ValueError where they do not fit."""
        need_arrays(q=q, k=k, v=v)
        shapes = {"q": tuple(q.shape), "k": tuple(k.shape), "v": tuple(v.shape)}
        paged = block_table is not None
        for name, shape in shapes.items():
            axes = "(pages, kv heads, page size, head)" if paged and name != "q" else "(batch, heads, rows, head)"
            if len(shape) != 4:
                raise ValueError(f"{name} must have the shape {axes}, not {shape}")
        (batch, heads, queries, width), (batches, shared, keys, depth) = shapes["q"], shapes["k"]
        if shapes["v"] != shapes["k"]:
            raise ValueError(f"v must have the shape of k, {shapes['k']}, not {shapes['v']}")
        if depth != width or (batches != batch and not paged):
            same = "size of a head" if paged else "batch size and the same size of a head"
            raise ValueError(f"k has the shape {shapes['k']} and q {shapes['q']}, but both need the same {same}")
        if heads and (not shared or heads % shared):
            raise ValueError(f"q has {heads} heads, which is not a multiple of the {shared} heads of k and v")
        if not SHORTEST <= width <= LONGEST:
            raise ValueError(f"a head must have {SHORTEST} to {LONGEST} elements, not {width}")
        if queries > MOST_QUERIES:
            raise ValueError(
                f"q has {queries} queries per sequence, and decoding takes up to {MOST_QUERIES}; use attention for more"
            )
        page = 0
        if paged:
            keys, page = _pages(block_table, batch, keys), keys
        found = DecodingProblem(
            batch, heads, heads // shared if shared else 1, queries, keys, width, dtype_name(q), page
        )
        for name, array in (("q", q), ("k", k), ("v", v)):
            found.check_rows(name, array)
        return found

    def tile(self, q: Any) -> Tile:
        """The extents of a program's tiles of queries and keys, and the launch options."""
        rows = min(MOST_ROWS, max(LEAST, blocknb.next_power_of_2(self.rows)))
        columns = max(16, min(COLUMNS, TILE_BYTES // (self.block * q.dtype.itemsize)))
        return {"ROWS": rows, "COLUMNS": columns, "num_warps": 4, "num_stages": 3}

    def splits(self, q: Any, tile: Tile, window: int | None = None, wanted: int | None = None) -> int:
        """The number of programs over which the keys of a sequence are split, at most `wanted`; `window` bounds the keys that count.

        Two programs per SM keep memory busy, and hide each other's products. More would not run at once. One program per SM is as fast if
        it copies large tiles. That holds for few keys, since each split costs time at its beginning and end, and for the wide products of
        one or two tiles.
        """
        tiles, columns = blocknb.cdiv(self.rows, tile["ROWS"]), tile["COLUMNS"]
        keys = self.keys if window is None else min(self.keys, window + self.queries + columns)
        programs, steps = self.batch * self.kv_heads * tiles, blocknb.cdiv(keys, columns)
        if wanted is None:
            processors, large = device(q).processors, columns * self.block * q.dtype.itemsize >= TILE_BYTES
            wanted = 2 * processors // programs
            if large and (steps < LEAST_STEPS * wanted or (tile["ROWS"] == MOST_ROWS and tiles <= 2)):
                wanted = processors // programs
        return blocknb.cdiv(steps, blocknb.cdiv(steps, max(1, min(wanted, steps))))

    def check_rows(self, name: str, array: Any) -> None:
        """Raises ValueError unless an array has a supported dtype, that of q, and contiguous rows."""
        if self.dtype not in DTYPES:
            raise ValueError(f"q is {self.dtype}, and attention takes {', '.join(DTYPES)}")
        if dtype_name(array) != self.dtype:
            raise ValueError(f"{name} must be {self.dtype}, as q is, not {dtype_name(array)}")
        if math.prod(array.shape) and strides(array)[-1] != 1:
            raise ValueError(f"the last axis of {name} must be contiguous; its strides are {strides(array)}")

    def check_out(self, out: Any) -> None:
        """Raises ValueError unless `out` can hold the result."""
        need_arrays(out=out)
        shape = (self.batch, self.heads, self.queries, self.width)
        if tuple(out.shape) != shape:
            raise ValueError(f"out must have the shape {shape}, not {tuple(out.shape)}")
        self.check_rows("out", out)

    def check_lengths(self, lengths: Any) -> None:
        """Raises ValueError for lengths that do not fit; None is skipped."""
        if lengths is None:
            return
        need_arrays(lengths=lengths)
        if tuple(lengths.shape) != (self.batch,) or dtype_name(lengths) not in INDICES:
            raise ValueError(
                f"lengths must hold the number of keys of each sequence, int32 or int64, of shape {(self.batch,)}; it is "
                f"{dtype_name(lengths)}, {tuple(lengths.shape)}"
            )
        if not contiguous(lengths):
            raise ValueError(f"lengths must be contiguous; its strides are {strides(lengths)}")


def _pages(block_table: Any, batch: int, page: int) -> int:
    """The most keys of a sequence of a paged cache. Raises ValueError for a table or a page size that does not fit."""
    need_arrays(block_table=block_table)
    shape = tuple(block_table.shape)
    if len(shape) != 2 or shape[0] != batch or dtype_name(block_table) not in INDICES:
        raise ValueError(
            f"block_table must hold the pages of each sequence, int32 or int64, of shape ({batch}, pages per sequence); it is "
            f"{dtype_name(block_table)}, {shape}"
        )
    if shape[1] > 1 and strides(block_table)[1] != 1:
        raise ValueError(f"the last axis of block_table must be contiguous; its strides are {strides(block_table)}")
    if page < LEAST_PAGE:
        raise ValueError(
            f"a page has {page} keys, and the least is {LEAST_PAGE}; k must be (pages, kv heads, page size, head)"
        )
    return shape[1] * page
