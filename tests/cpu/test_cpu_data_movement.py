"""Scans, moves and sorting over dtypes and ranks: interpreter and machine code against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernels.base import Case, copied, poison
from native import run_native

import blocknb
import blocknb.language as bl

DTYPES = [
    np.int8,
    np.uint8,
    np.int16,
    np.int32,
    np.uint32,
    np.int64,
    np.float16,
    ml_dtypes.bfloat16,
    np.float32,
    np.float64,
]
SHAPES = [(1,), (32,), (4, 8), (2, 4, 8), (2, 1, 4, 8)]
#: A quick run takes every other shape of a dtype, in turn.
EACH = [
    pytest.param(dtype, shape, marks=pytest.mark.full if (i + j) % 2 else (), id=f"{np.dtype(dtype).name}-{shape}")
    for i, dtype in enumerate(DTYPES)
    for j, shape in enumerate(SHAPES)
]


@blocknb.kernel
def along(x, index, flipped, summed, taken, ordered, SHAPE: bl.constexpr, AXIS: bl.constexpr, SIZE: bl.constexpr):
    i = bl.arange(0, SIZE)
    v = bl.reshape(bl.load(x + i), SHAPE)
    bl.store(flipped + i, bl.ravel(bl.flip(v, AXIS)))
    bl.store(summed + i, bl.ravel(bl.cumsum(v, AXIS)))
    bl.store(taken + i, bl.ravel(bl.gather(v, bl.reshape(bl.load(index + i), SHAPE), AXIS)))
    bl.store(ordered + i, bl.ravel(bl.sort(v, AXIS)))


@blocknb.kernel
def sideways(x, y, joined, first, second, mixed, after, SHAPE: bl.constexpr, SIZE: bl.constexpr):
    i, twice = bl.arange(0, SIZE), bl.arange(0, 2 * SIZE)
    a, b = bl.reshape(bl.load(x + i), SHAPE), bl.reshape(bl.load(y + i), SHAPE)
    both = bl.join(a, b)
    bl.store(joined + twice, bl.ravel(both))
    one, two = bl.split(both)
    bl.store(first + i, bl.ravel(one))
    bl.store(second + i, bl.ravel(two))
    bl.store(mixed + twice, bl.ravel(bl.interleave(a, b)))
    bl.store(after + twice, bl.ravel(bl.cat(a, b, can_reorder=True)))


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: object) -> np.ndarray:
    """Small whole numbers, so that sums are exact in every dtype."""
    return rng.integers(0 if np.dtype(dtype).kind == "u" else -4, 5, shape).astype(dtype)


def check(kernel: object, arguments: dict, reference: object) -> None:
    case = Case("moves", kernel, None, reference, rtol=0, atol=0)
    func = case.parse(arguments)
    case.interpret(func, arguments)
    got = {name: copied(value) for name, value in arguments.items()}
    run_native(func, [got[hint.name] for hint in func.hints], case.grid)
    case.check(arguments, got)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "shape"), EACH)
def test_flips_scans_and_moves_along_every_axis(dtype, shape):
    rng = np.random.default_rng(1)
    for axis in range(-1, len(shape) - 1):
        x = numbers(rng, shape, dtype)
        index = rng.integers(0, shape[axis], shape).astype(np.int32)
        outs = {name: poison(shape, dtype) for name in ("flipped", "summed", "taken", "ordered")}

        def reference(a, axis=axis):
            x = a["x"].astype(np.float64)
            return {
                "flipped": np.flip(x, axis),
                "summed": x.cumsum(axis).astype(a["x"].dtype),
                "taken": np.take_along_axis(x, a["index"], axis),
                "ordered": np.sort(x, axis),
            }

        check(along, {"x": x, "index": index, **outs, "SHAPE": shape, "AXIS": axis, "SIZE": x.size}, reference)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "shape"), EACH)
def test_join_split_interleave_and_cat_match_numpy(dtype, shape):
    rng = np.random.default_rng(2)
    x, y = numbers(rng, shape, dtype), numbers(rng, shape, dtype)
    wide = (*shape[:-1], 2 * shape[-1])
    outs = {"joined": (*shape, 2), "first": shape, "second": shape, "mixed": wide, "after": (2 * shape[0], *shape[1:])}

    def reference(a):
        both = np.stack([a["x"], a["y"]], -1)
        return {
            "joined": both,
            "first": a["x"],
            "second": a["y"],
            "mixed": both.reshape(wide),
            "after": np.concatenate([a["x"], a["y"]]),
        }

    arguments = {"x": x, "y": y} | {name: poison(s, dtype) for name, s in outs.items()}
    check(sideways, {**arguments, "SHAPE": shape, "SIZE": x.size}, reference)


@blocknb.kernel
def ordered(x, up, down, best, N: bl.constexpr, K: bl.constexpr):
    i = bl.arange(0, N)
    v = bl.load(x + i)
    bl.store(up + i, bl.sort(v))
    bl.store(down + i, bl.sort(v, descending=True))
    bl.store(best + bl.arange(0, K), bl.topk(v, K))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("n", "k"), [(2, 1), (8, 8), (64, 4), (256, 16)])
def test_rows_of_every_size_are_sorted(n, k):
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    x[0], x[-1] = np.inf, -0.0
    outs = {name: poison(size, np.float32) for name, size in (("up", n), ("down", n), ("best", k))}

    def reference(a):
        rising = np.sort(a["x"])
        return {"up": rising, "down": rising[::-1], "best": rising[::-1][:k]}

    check(ordered, {"x": x, **outs, "N": n, "K": k}, reference)


def test_sorting_loses_no_element_to_a_nan():
    x = np.arange(64, dtype=np.float32)
    x[[3, 17, 40]] = np.nan
    up, down, best = np.zeros(64, np.float32), np.zeros(64, np.float32), np.zeros(2, np.float32)
    ordered[(1,)](np.random.default_rng(0).permutation(x), up, down, best, N=64, K=2)
    for found in (up, down):
        np.testing.assert_array_equal(np.sort(found), np.sort(x))


@blocknb.kernel
def ties(x, left, right, M: bl.constexpr, N: bl.constexpr):
    i, j = bl.arange(0, M), bl.arange(0, N)
    v = bl.load(x + i[:, None] * N + j[None, :])
    bl.store(left + i, bl.argmax(v, 1))
    bl.store(left + M + i, bl.argmin(v, 1))
    _, where = bl.max(v, return_indices=True, keep_dims=True)
    bl.store(right + bl.arange(0, 1)[:, None], where)


def test_argmax_and_argmin_of_equal_elements_return_the_lowest_index():
    x = np.random.default_rng(3).integers(0, 3, (16, 32)).astype(np.int32)
    arguments = {"x": x, "left": poison(32, np.int32), "right": poison(1, np.int32), "M": 16, "N": 32}
    check(
        ties, arguments, lambda a: {"left": np.concatenate([x.argmax(1), x.argmin(1)]), "right": np.array([x.argmax()])}
    )
