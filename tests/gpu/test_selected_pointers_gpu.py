"""Checked mode on a GPU: pointers that may come from several arrays, made in every way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import seeds
from bounds.selected_pointer_kernels import WAYS
from bounds.test_selected_pointers import BLOCK, CASES, SIZE, held

from blocknb import AccessError

cupy = pytest.importorskip("cupy")


def arguments_of(whole: Any, chosen: str, off: int, n: int, action: str) -> dict[str, Any]:
    x, y = whole[2 * SIZE : 3 * SIZE], whole[3 * SIZE : 4 * SIZE]
    table, out = cupy.asarray([x.data.ptr, y.data.ptr], np.int64), cupy.full(BLOCK, -7, np.int32)
    rest = {"c": 2 if chosen == "x" else 1, "off": off, "n": n, "ACTION": action, "BLOCK": BLOCK}
    return {"x": x, "y": y, "table": table, "out": out, **rest}


@pytest.mark.parametrize("chosen", ["x", "y"])
@pytest.mark.parametrize(("name", "action"), CASES)
def test_out_of_bounds_accesses_are_skipped_and_reported(name, action, chosen):
    before = seeds.rng().integers(-50, 50, 6 * SIZE).astype(np.int32)
    whole, at = cupy.asarray(before), 2 * SIZE if chosen == "x" else 3 * SIZE
    WAYS[name][(1,)](**arguments_of(whole, chosen, 0, SIZE, action), checked=True)
    for off in (0, 2**40, -(2**40), 2**62, -(2**63)):
        with pytest.raises(AccessError) as caught:
            WAYS[name][(1,)](**arguments_of(whole, chosen, off, SIZE + 1, action), checked=True)
        if off == 0:
            held(caught.value, chosen, SIZE, action)
        assert f"of `{chosen}`" in caught.value.message
    after = whole.get()
    after[at : at + SIZE] = before[at : at + SIZE]
    np.testing.assert_array_equal(after, before)
