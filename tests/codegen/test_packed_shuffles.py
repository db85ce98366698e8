"""Shuffles of small elements: words of several elements travel together, and each element arrives, as the simulated code shows."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz import reports

from blocknb.ir.build import Builder
from blocknb.ir.core import Block, Func, Hint, Value
from blocknb.language import types as t
from blocknb.language.types import Pointer, Tile
from blocknb.layouts.convert import plan
from blocknb.layouts.linear import Layout

DTYPES = {8: (t.int8, np.int8), 16: (t.int16, np.int16), 32: (t.int32, np.int32)}


def converted(source: Layout, target: Layout, dtype: t.DType) -> Func:
    """A kernel that loads a line in one layout and stores it in another one."""
    b, size = Builder("test"), source.size
    pointers = [Value(Tile(Pointer(dtype)), name) for name in ("x", "y")]

    def places(pointer: Value, layout: Layout) -> Value:
        base = b.value("splat", pointer, shape=(size,), layout=layout)
        return b.value("ptradd", base, b.value("arange", start=0, end=size, layout=layout))

    loaded = b.value("load", places(pointers[0], source))
    b.op("store", places(pointers[1], target), b.value("convert", loaded, layout=target))
    hints = tuple(Hint(p.name, 16) for p in pointers)
    attrs = {"num_warps": source.num_warps, "num_stages": 1, "shared_bytes": 0}
    return Func("converted", tuple(pointers), Block((), b.finish()), attrs=attrs, level="memory", hints=hints)


def shuffled_layouts(seed: int, bits: int) -> tuple[Layout, Layout]:
    """Two layouts of a line in which bits of registers and lanes have changed places, but some pairs stay in one thread."""
    rng = np.random.default_rng(seed)
    registers = 5
    basis = [1 << i for i in range(registers + 5)]
    warp = (basis.pop(),) if seed % 2 else ()
    stays = basis[: {8: 2, 16: 1, 32: 0}[bits]]
    others = basis[len(stays) :]
    made = []
    for _ in range(2):
        order = list(rng.permutation(others))
        lane, rest = order[:5], order[5:]
        reg = [int(x) for x in rng.permutation([*stays, *rest])] if seed % 3 else [*stays, *map(int, rest)]
        made.append(Layout((1 << registers + 5,), tuple(reg), tuple(map(int, lane)), warp))
    return made[0], made[1]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("bits", DTYPES)
def test_every_element_arrives(bits, seed, monkeypatch):
    monkeypatch.setattr("blocknb.layouts.convert.SELECT_CYCLES", 0)
    source, target = shuffled_layouts(seed, bits)
    dtype, kind = DTYPES[bits]
    x = np.random.default_rng(seed).integers(-128, 128, source.size).astype(kind)
    arguments = {"x": x, "y": np.zeros_like(x)}
    plan.cache_clear()
    try:
        way = plan(source, target, bits)
        assert way.kind == "shuffle" and len(way.shuffle.packed) == {8: 2, 16: 1, 32: 0}[bits]
        reports.run(converted(source, target, dtype), arguments, (1,))
    finally:
        plan.cache_clear()
    assert np.array_equal(arguments["y"], x)
