"""Operand staging on a GPU: operands computed from TMA copies, against float64 and repeatedly, since a changing result is a race.

The consumers release such a stage after the product. On an H200, a release right after the read let TMA overwrite data that was still
being read.
"""

from __future__ import annotations

import numpy as np
import pytest
import seeds
from kernels.prepared import prepared

import blocknb

cupy = pytest.importorskip("cupy")
TILES = [((64, 64), 4), ((64, 128), 4), ((128, 64), 4), ((128, 128), 8), ((128, 256), 8), ((16, 64), 4)]
TOLERANCE = {"weights": 1e-3, "normed": 1e-3, "precise": 1e-6}  # of the norm
AGAIN = 8


def arrays(way, m, n, k):
    generator = seeds.cupy_random()
    random = generator.standard_normal
    if way == "precise":
        return random((m, k), dtype=np.float32), random((n, k), dtype=np.float32), cupy.zeros(1, np.float32)
    x, line = (
        random((m, k), dtype=np.float32).astype(np.float16),
        generator.random(n if way == "weights" else k, np.float32),
    )
    if way == "weights":
        return x, generator.randint(-128, 128, (n, k), dtype=np.int8), line / 64
    return x, random((n, k), dtype=np.float32).astype(np.float16), line


def exact(way, x, w, line):
    x, w, line = (array.astype(np.float64) for array in (x, w, line))
    if way == "weights":
        return x @ (w * line[:, None]).T
    if way == "precise":
        return x @ w.T
    return (x * line) @ w.T / cupy.sqrt((x * x).sum(axis=1) + 1)[:, None]


@pytest.mark.parametrize("num_stages", [2, 3, 5])
@pytest.mark.parametrize(("tile", "num_warps"), TILES)
@pytest.mark.parametrize("way", TOLERANCE)
def test_products_of_computed_operands_match_float64_in_every_run(way, tile, num_warps, num_stages):
    step = 32 if way == "precise" else 64
    if way == "precise" and tile[0] * tile[1] > 128 * 128:
        pytest.skip("three products of such a tile are no tile that one would take")
    for m, n, k in ((2048, 1024, 1024), (1000, 1040, 528), (64, 64, 64)):
        x, w, line = arrays(way, m, n, k)
        first = None
        for _ in range(AGAIN):
            y = cupy.full((m, n), np.nan, np.float32)
            grid = (blocknb.cdiv(m, tile[0]), blocknb.cdiv(n, tile[1]))
            options = {"num_warps": num_warps, "num_stages": num_stages}
            prepared[grid](x, w, line, y, m, n, k, way, *tile, step, **options)
            if first is None:
                first = y
                error = y - exact(way, x, w, line)
                assert float(cupy.linalg.norm(error) / cupy.linalg.norm(y)) < TOLERANCE[way], (m, n, k)
            assert (y == first).all(), f"{int((y != first).sum())} elements differ from those of the first launch"


@pytest.mark.parametrize(
    ("source", "count"), [("int8", 1 << 8), ("uint8", 1 << 8), ("int16", 1 << 16), ("uint16", 1 << 16)]
)
@pytest.mark.parametrize("to", ["float32", "float16"])
def test_integers_convert_to_floats_exactly(source, count, to):
    import blocknb.language as bl

    @blocknb.kernel
    def converted(x, y, BLOCK: bl.constexpr):
        at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
        bl.store(y + at, bl.load(x + at).to(y.dtype.element_ty))

    x = cupy.arange(count, dtype=np.int64).astype(source)
    y = cupy.full(count, np.nan, to)
    converted[(count // 256,)](x, y, 256)
    with np.errstate(over="ignore"):
        expected = x.get().astype(np.float32).astype(to)
    np.testing.assert_array_equal(y.get(), expected)
