"""Tiles that every iteration multiplies stay in registers, where there are enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels import CASES

from blocknb.ir.core import Func, Op


def lowered(name: str, **changed: Any) -> tuple[Any, dict[str, Any], Func]:
    case = CASES[name]
    arguments = case.make(np.random.default_rng(5)) | changed
    return case, arguments, case.lower(arguments, "sm_90a")[0]


def products(func: Func) -> list[Op]:
    (loop,) = (op for op in func.ops() if op.name == "for" and sum(x.name == "dot" for x in op.blocks[0].ops) > 2)
    return [op for op in loop.blocks[0].ops if op.name == "dot"]


def test_keys_and_values_are_read_from_shared_memory_once() -> None:
    case, arguments, func = lowered("attention_gradients_ahead")
    *first, part, last = products(func)
    assert all(op.attrs["registers"] for op in (*first, last)) and not part.attrs["registers"]
    case.interpret(func, arguments)


@pytest.mark.parametrize("name", ["attention_gradients_long", "attention_key_gradients_tf32"])
def test_wide_heads_and_32_bit_tiles_stay_in_shared_memory(name: str) -> None:
    *_, func = lowered(name)
    assert not all(op.attrs["registers"] for op in products(func))


def test_lines_that_a_loop_carries_are_loaded_as_products_need_them() -> None:
    """The logarithms are loaded one iteration early. No thread gets them from another one, so the only barriers are those of dS."""
    *_, func = lowered("attention_gradients_ahead")
    (loop,) = (op for op in func.ops() if op.name == "for" and sum(x.name == "dot" for x in op.blocks[0].ops) > 2)
    names = [op.name for op in loop.blocks[0].ops]
    assert names.count("load") == 2 and "local_load" not in names and names.count("barrier") == 2
