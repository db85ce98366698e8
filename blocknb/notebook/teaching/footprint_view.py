"""The document's part for the Footprint view: for each array the program that accesses each element, and the findings.

Large arrays are binned. A cell of the picture then stands for `scale` elements along each axis, and shows the first of them. It says
whether any of its elements has several writers or none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.footprint.value import NEVER, SEVERAL, AccessMap, Footprint
from blocknb.notebook.sections import line_of
from blocknb.notebook.teaching.pictures import ArrayPicture

ROWS, COLUMNS = 128, 160  # the most cells of a picture
MOST_FINDINGS = 50
CLASHES, HOLES = 1, 2  # the bits of a cell's marks


def footprint_part(found: Footprint, file: str, scale: int = 1) -> dict[str, Any]:
    """The part for all arrays that the kernel accesses. `scale` makes the cells coarser, so that the part is smaller."""
    maps = []
    for name, array in found.arrays.items():
        picture = ArrayPicture.of(array.array)
        for kind in ("stores", "atomics", "loads"):
            accesses: AccessMap = getattr(array, kind)
            if accesses and picture.drawable:
                maps.append(_map(name, kind, accesses, picture, file, scale))
    return {
        "grid": list(found.grid),
        "scope": found.scope,
        "sampled": found.sampled,
        "maps": maps,
        "findings": [_finding(finding, file) for finding in found.findings[:MOST_FINDINGS]],
        "more": max(0, len(found.findings) - MOST_FINDINGS),
    }


def _finding(finding: Any, file: str) -> dict[str, Any]:
    lines = [line_of(loc, file) for loc in (finding.loc, finding.other)]
    return {
        "level": finding.level,
        "kind": finding.kind,
        "text": finding.text,
        "hint": finding.hint,
        "lines": sorted({line for line in lines if line}),
    }


@dataclass(frozen=True)
class CellGrid:
    """The cells of a picture: `tall` × `wide` elements each, in `rows` and `columns`."""

    picture: ArrayPicture
    tall: int
    wide: int

    @staticmethod
    def of(picture: ArrayPicture, scale: int) -> CellGrid:
        tall = wide = 1
        while -(-picture.rows // tall) * scale > ROWS:
            tall *= 2
        while -(-picture.columns // wide) * scale > COLUMNS:
            wide *= 2
        return CellGrid(picture, tall, wide)

    def cells(self, values: np.ndarray, fill: Any) -> np.ndarray:
        """Values per element as [rows, columns, elements of a cell]; `fill` for cells that reach over the edge."""
        picture = self.picture
        rows, columns = -(-picture.rows // self.tall), -(-picture.columns // self.wide)
        flat = np.full(rows * self.tall * picture.columns, fill, values.dtype)
        flat[: values.size] = values.reshape(-1)
        whole = np.full((rows * self.tall, columns * self.wide), fill, values.dtype)
        whole[:, : picture.columns] = flat.reshape(-1, picture.columns)
        parts = whole.reshape(rows, self.tall, columns, self.wide).transpose(0, 2, 1, 3)
        return parts.reshape(rows, columns, -1)


def _map(name: str, kind: str, accesses: AccessMap, picture: ArrayPicture, file: str, scale: int) -> dict[str, Any]:
    array, grid = accesses.array, CellGrid.of(picture, scale)
    total = math.prod(array.shape)
    owner = grid.cells(accesses.owner, NEVER - 2)  # NEVER - 2: beyond the array
    beyond = owner == NEVER - 2
    marks = (owner == SEVERAL).any(axis=2) * CLASHES + ((owner == NEVER) & ~beyond).any(axis=2) * HOLES
    number = grid.cells(np.arange(total), -1)
    shown = _shown(owner, number)
    first = _first_accesses(accesses, np.where(shown < 0, 0, shown).reshape(-1))
    table = accesses.to_numpy().reshape(-1)
    at = np.where(shown < 0, 0, shown).reshape(-1)
    clashes = int(np.count_nonzero(accesses.owner == SEVERAL))
    return {
        "array": name,
        "kind": kind,
        "dtype": array.dtype,
        "shape": list(array.shape),
        "rows": int(owner.shape[0]),
        "columns": int(owner.shape[1]),
        "tall": grid.tall,
        "wide": grid.wide,
        "width": picture.columns,
        "wrapped": picture.wrapped,
        "shared": clashes,
        "holes": total - accesses.elements,
        "moved": _moved(shown, number[:, :, 0]),
        "first": np.where(shown.reshape(-1) < 0, -1, table["first"][at]).tolist(),
        "last": np.where(shown.reshape(-1) < 0, -1, table["last"][at]).tolist(),
        "count": table["count"][at].tolist(),
        "iteration": first[0].tolist(),
        "op": first[1].tolist(),
        "marks": marks.reshape(-1).tolist(),
        "lines": [line_of(access.op.loc, file) or 0 for access in accesses.accesses],
    }


def _shown(owner: np.ndarray, number: np.ndarray) -> np.ndarray:
    """The element that each cell shows. It is the first one with several programs, else the first accessed one, else the first one. A value
    of -1 means that the cell lies beyond the array."""
    rank = np.where(owner == SEVERAL, 0, np.where(owner >= 0, 1, np.where(number >= 0, 2, 3)))
    best = np.argmin(rank, axis=2)
    return np.take_along_axis(number, best[:, :, None], axis=2)[:, :, 0]


def _moved(shown: np.ndarray, corner: np.ndarray) -> list[int]:
    """The cells that do not show the element in their corner, flat: the cell, then its element."""
    cells = np.flatnonzero((shown != corner).reshape(-1))
    return np.stack([cells, shown.reshape(-1)[cells]], axis=1).reshape(-1).tolist()


def _first_accesses(accesses: AccessMap, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each element the iteration, and the index of the op, of the first access by the lowest program; -1 if there is none."""
    array = accesses.array
    places = elements if array.dense else array.places[elements]
    order = np.argsort(places, kind="stable")
    sorted_places = places[order]
    best = np.full(len(places), np.iinfo(np.int64).max)
    iteration, which = np.full(len(places), -1), np.full(len(places), -1)
    for index, access in enumerate(accesses.accesses):
        runs = access.runs
        low, high = np.searchsorted(sorted_places, runs.starts), np.searchsorted(sorted_places, runs.ends)
        hits = np.flatnonzero(high > low)
        if not len(hits):
            continue
        counts = high[hits] - low[hits]
        run = np.repeat(hits, counts)
        at = np.repeat(low[hits] - np.r_[0, np.cumsum(counts)[:-1]], counts) + np.arange(int(counts.sum()))
        key = runs.programs[run].astype(np.int64) << 32 | runs.iterations[run].astype(np.int64)
        lowest = np.full(len(places), np.iinfo(np.int64).max)
        np.minimum.at(lowest, at, key)
        better = lowest < best
        best[better] = lowest[better]
        iteration[better], which[better] = lowest[better] & 0xFFFFFFFF, index
    found = np.full(len(places), -1), np.full(len(places), -1)
    found[0][order], found[1][order] = iteration, which
    return found
