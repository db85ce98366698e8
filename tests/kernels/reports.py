"""Kernels that report while they run: assertions that hold, and prints."""

import numpy as np

import blocknb
import blocknb.language as tl
from kernels.base import case, integers, normal, poison, wide


@blocknb.kernel
def careful_add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    on = i < n
    a, b = tl.load(x + i, mask=on), tl.load(y + i, mask=on)
    tl.device_assert(tl.abs(a) < 100, "too large", mask=on)
    total = a + b
    assert tl.max(tl.where(on, tl.abs(total), 0.0), 0) < 200, "the sum is too large"
    tl.store(out + i, total, mask=on)


@blocknb.kernel
def loop_of_assertions(x, out, rounds, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for k in range(rounds):
        total += tl.load(x + k * BLOCK + i)
        tl.device_assert(k < rounds, "beyond the loop")
        if k > 1:
            tl.device_assert((total[:, None] - total[None, :]) <= 4000, "apart")
    tl.store(out + i, total)


@blocknb.kernel
def printed_sum(x, out, BLOCK: tl.constexpr):
    values = tl.load(x + tl.arange(0, BLOCK))
    print("values", values)
    total = tl.sum(values)
    tl.device_print("total", total, hex=True)
    tl.store(out, total)


def _add(rng):
    return {"x": normal(rng, 777), "y": normal(rng, 777), "out": poison(900, np.float32), "n": 777, "BLOCK": 256}


def _added(a):
    out = a["out"].copy()
    out[:777] = wide(a["x"]) + wide(a["y"])
    return {"out": out}


def _loop(rng):
    return {"x": integers(rng, 5 * 32, np.int32, -100, 100), "out": poison(32, np.int32), "rounds": 5, "BLOCK": 32}


def _sum(rng):
    return {"x": integers(rng, 64, np.int32, -100, 100), "out": poison(1, np.int32), "BLOCK": 64}


for _debug in (False, True):
    _suffix = "_tested" if _debug else ""
    case(f"careful_add{_suffix}", careful_add, _add, _added, grid=(4,), options={"debug": _debug})
    case(
        f"loop_of_assertions{_suffix}",
        loop_of_assertions,
        _loop,
        lambda a: {"out": a["x"].reshape(5, 32).sum(0)},
        options={"debug": _debug},
    )
case("printed_sum", printed_sum, _sum, lambda a: {"out": np.asarray([a["x"].sum()])})
