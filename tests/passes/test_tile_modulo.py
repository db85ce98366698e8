"""Tile modulo: wrapped rows become contiguous rows if no tile is cut, and only then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.base import Case

import blocknb
import blocknb.language as bl
from blocknb.ir import interp
from blocknb.ir.core import Func
from blocknb.trace import Stage


@blocknb.kernel
def rows(out, m, n, BLOCK: bl.constexpr, HOW: bl.constexpr):
    pid = bl.program_id(0)
    steps = bl.arange(0, BLOCK)
    if HOW == "straight":
        found = (pid * BLOCK + steps) % m
    elif HOW == "sum in reverse":
        found = (steps + pid * BLOCK) % m
    elif HOW == "wide":
        found = ((pid * BLOCK).to(bl.int64) + steps) % m
    elif HOW == "swizzled":
        found = ((pid // n * 2 + pid % n) * BLOCK + steps) % m
    elif HOW == "promised":
        found = bl.max_contiguous(bl.multiple_of((pid * BLOCK + steps) % m, BLOCK), BLOCK)
    elif HOW == "column":
        found = ((pid * BLOCK + steps)[:, None] % m + bl.arange(0, 1)[None, :]).reshape(BLOCK)
    elif HOW == "first":
        found = steps % m
    elif HOW == "constant":
        found = (pid * BLOCK + steps) % 256
    elif HOW == "before":
        found = ((pid - 1) * BLOCK + steps) % m
    elif HOW == "halves":
        found = (pid * (BLOCK // 2) + steps) % m
    elif HOW == "from one on":
        found = (pid * BLOCK + 1 + steps) % m
    elif HOW == "stretched":
        found = (pid * BLOCK + steps * 2) % m
    elif HOW == "by the product":
        found = (pid * BLOCK + steps) % (m * n)
    bl.store(out + pid * BLOCK + steps, found)


def lowered(how: str, m: int, n: int = 3, block: int = 64) -> tuple[Func, Stage]:
    arguments = {"out": np.zeros(16 * block, np.int64), "m": m, "n": n, "BLOCK": block, "HOW": how}
    case = Case("rows", rows, dict, dict)
    _, stages = case.lower(arguments, "cpu")
    for func in (stages[0].before, stages[-1].after):
        out = np.zeros(16 * block, np.int64)
        interp.run(func, [{"out": out, "m": m, "n": n}[h.name] for h in func.hints], 16)
        np.testing.assert_array_equal(out, expected(how, m, n, block))
    return stages[-1].after, stages[0]


def expected(how: str, m: int, n: int, block: int) -> np.ndarray:
    pid, steps = np.arange(16)[:, None], np.arange(block)[None, :]
    at = pid * block + steps
    match how:
        case "swizzled":
            at = (pid // n * 2 + pid % n) * block + steps
        case "first":
            at = steps + 0 * pid
        case "before":
            at = (pid - 1) * block + steps
        case "halves":
            at = pid * (block // 2) + steps
        case "from one on":
            at = at + 1
        case "stretched":
            at = pid * block + steps * 2
    modulus = {"constant": 256, "by the product": m * n}.get(how, m)
    return np.fmod(at, modulus).reshape(-1)  # truncates, like a kernel


def tiles(func: Func, name: str = "rem") -> int:
    return sum(op.name == name and bool(op.result.type.shape) for op in func.ops())


WHOLE = ["straight", "sum in reverse", "wide", "swizzled", "promised", "column", "first", "constant", "by the product"]


@pytest.mark.parametrize("how", WHOLE)
@pytest.mark.parametrize("m", [64, 128, 320])
def test_modulo_of_whole_tiles_becomes_contiguous(how: str, m: int) -> None:
    func, stage = lowered(how, m)
    assert tiles(func) == 0
    name = "256 wraps" if how == "constant" else "m*n wraps" if how == "by the product" else "m wraps"
    (note,) = [note for note in stage.notes if "between tiles" in note.text]
    assert note.text.startswith(f"% {name} around between tiles, never within one") and note.loc is not None
    chosen = "the launch chooses this version, in which m is a multiple of 64"
    assert note.text.endswith(
        "256 is a multiple of 64" if how == "constant" else chosen.replace("m ", f"{name[:-6]} ", 1)
    )


@pytest.mark.parametrize(
    ("how", "m", "block"),
    [
        ("straight", 65, 64),
        ("straight", 48, 16),  # whole ones, since 16 divides 48
        ("straight", 64, 128),
        ("straight", 192, 128),
        *((how, 128, 64) for how in ("before", "halves", "from one on", "stretched")),
    ],
)
def test_modulo_of_tiles_that_may_wrap_is_kept(how: str, m: int, block: int) -> None:
    func, stage = lowered(how, m, block=block)
    whole = how == "straight" and block == 16
    assert tiles(func) == (0 if whole else 1)
    assert any("between tiles" in note.text for note in stage.notes) == whole


def test_modulo_by_a_modulus_of_unknown_divisibility_is_kept() -> None:
    plain: Any = rows.trace("*i64:16", "i32", "i32", BLOCK=64, HOW="straight", target="cpu")
    assert tiles(plain.stages[-1].after) == 1
