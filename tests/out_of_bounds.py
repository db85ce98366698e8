"""Kernels with out-of-bounds accesses, and the expected result of checked mode: the error, and the arrays afterwards.

Every array is a view into a larger one; a kernel must not read or write elements outside the view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import seeds

import blocknb
import blocknb.language as tl


@dataclass(frozen=True)
class OutOfBoundsCase:
    """`arrays`: for each array the larger one and the index that makes the view; `result` the views afterwards, of those written.

    `message` is the beginning of the error, `text` is the line of the kernel, `total` counts the accesses outside.
    """

    kernel: Any
    arrays: Mapping[str, tuple[np.ndarray, Any]]
    rest: Mapping[str, Any]
    grid: tuple[int, ...]
    message: str
    text: str
    program: tuple[int, int, int]
    index: int
    total: int
    result: Mapping[str, np.ndarray]


OUT_OF_BOUNDS: dict[str, Callable[[], OutOfBoundsCase]] = {}


def out_of_bounds_case(make: Callable[[], OutOfBoundsCase]) -> Callable[[], OutOfBoundsCase]:
    OUT_OF_BOUNDS[make.__name__] = make
    return make


def views(arrays: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    return {name: big[index] for name, (big, index) in arrays.items()}


def padded(data: np.ndarray, before: int = 8, after: int = 300) -> tuple[np.ndarray, Any]:
    """A view with the data, surrounded by guard values that no result may contain."""
    big = np.full(before + data.size + after, 77, data.dtype)
    big[before : before + data.size] = data
    return big, slice(before, before + data.size)


def numbers(n: int, dtype: Any = np.float32) -> np.ndarray:
    return seeds.rng().integers(1, 50, n).astype(dtype)


@blocknb.kernel
def copy(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i))


@out_of_bounds_case
def load_past_the_end() -> OutOfBoundsCase:
    x = numbers(1000)
    arrays = {"x": padded(x), "out": padded(np.full(1024, 77, np.float32))}
    message = "program (3, 0, 0) loads element 1000 of `x`, which has 1000 elements"
    result = {"out": np.concatenate([x, np.zeros(24, np.float32)])}
    return OutOfBoundsCase(copy, arrays, {"BLOCK": 256}, (4,), message, "tl.load(x + i)", (3, 0, 0), 1000, 24, result)


@out_of_bounds_case
def store_past_the_end() -> OutOfBoundsCase:
    x = numbers(1024)
    arrays = {"x": padded(x), "out": padded(np.zeros(1000, np.float32))}
    message = "program (3, 0, 0) stores to element 1000 of `out`, which has 1000 elements"
    return OutOfBoundsCase(
        copy, arrays, {"BLOCK": 256}, (4,), message, "tl.store(", (3, 0, 0), 1000, 24, {"out": x[:1000]}
    )


@blocknb.kernel
def with_other(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i - 2, mask=i < n, other=-5))


@out_of_bounds_case
def load_before_the_start_gives_other() -> OutOfBoundsCase:
    x = numbers(64, np.float16)
    arrays = {"x": padded(x), "out": padded(np.zeros(128, np.float16))}
    expected = np.full(128, -5, np.float16)
    expected[2:60] = x[:58]
    message = "program (0, 0, 0) loads element -2 of `x`, which has 64 elements"
    return OutOfBoundsCase(
        with_other, arrays, {"n": 60, "BLOCK": 128}, (1,), message, "tl.load(", (0, 0, 0), -2, 2, {"out": expected}
    )


@blocknb.kernel
def count(index, bins, BLOCK: tl.constexpr):
    at = tl.load(index + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.atomic_add(bins + at, 1)


@out_of_bounds_case
def atomics_at_out_of_bounds_indices() -> OutOfBoundsCase:
    index = seeds.rng().integers(0, 16, 256).astype(np.int64)
    index[[70, 130, 255]] = -1, 16, 1 << 40
    arrays = {"index": padded(index), "bins": padded(np.zeros(16, np.int32))}
    inside = index[(index >= 0) & (index < 16)]
    message = "program (1, 0, 0) updates element -1 of `bins`, which has 16 elements"
    result = {"bins": np.bincount(inside, minlength=16).astype(np.int32)}
    return OutOfBoundsCase(
        count, arrays, {"BLOCK": 64}, (4,), message, "tl.atomic_add(bins + at, 1)", (1, 0, 0), -1, 3, result
    )


@blocknb.kernel
def claim(flags, out):
    i = tl.program_id(0)
    tl.store(out + i, tl.atomic_cas(flags + i, 0, i + 5))


@out_of_bounds_case
def compare_and_swap_of_a_scalar() -> OutOfBoundsCase:
    arrays = {"flags": padded(np.zeros(3, np.int32)), "out": padded(np.full(4, 9, np.int32))}
    message = "program (3, 0, 0) updates element 3 of `flags`, which has 3 elements"
    result = {"flags": np.array([5, 6, 7], np.int32), "out": np.zeros(4, np.int32)}
    return OutOfBoundsCase(
        claim, arrays, {}, (4,), message, "tl.atomic_cas(flags + i, 0, i + 5)", (3, 0, 0), 3, 1, result
    )


@blocknb.kernel
def matrix_copy(x, out, stride_x, stride_out, M: tl.constexpr, N: tl.constexpr):
    r = tl.program_id(1) * M + tl.arange(0, M)
    c = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(out + r[:, None] * stride_out + c[None, :], tl.load(x + r[:, None] * stride_x + c[None, :]))


@out_of_bounds_case
def rows_past_the_end_of_a_matrix() -> OutOfBoundsCase:
    big = numbers(40 * 80).reshape(40, 80)
    out = np.full((48, 64), 77, np.float32)
    arrays = {"x": (big, (slice(2, 22), slice(5, 69))), "out": (out, (slice(0, 32), slice(0, 64)))}
    # The view ends with the last element of its last row; elements between its rows belong to it.
    x = big[2:22, 5:69]
    expected = np.zeros((32, 64), np.float32)
    expected[:20] = x
    message = "program (0, 1, 0) loads element 1600 of `x`, which has 1584 elements"
    rest = {"stride_x": 80, "stride_out": 64, "M": 16, "N": 32}
    return OutOfBoundsCase(
        matrix_copy, arrays, rest, (2, 2), message, "tl.load(x + r", (0, 1, 0), 1600, 12 * 64, {"out": expected}
    )


@blocknb.kernel
def walk(x, out, rounds, BLOCK: tl.constexpr):
    p = x + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(rounds):
        total += tl.load(p)
        p += BLOCK
    tl.store(out + tl.arange(0, BLOCK), total)


@out_of_bounds_case
def loop_carried_pointer_past_the_end() -> OutOfBoundsCase:
    x = numbers(150)
    arrays = {"x": padded(x), "out": padded(np.zeros(64, np.float32))}
    rows = np.concatenate([x, np.zeros(42, np.float32)]).reshape(3, 64)
    message = "program (0, 0, 0) loads element 150 of `x`, which has 150 elements"
    rest = {"rounds": 3, "BLOCK": 64}
    return OutOfBoundsCase(walk, arrays, rest, (1,), message, "tl.load(p)", (0, 0, 0), 150, 42, {"out": rows.sum(0)})


@blocknb.kernel
def chosen(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(tl.where(i % 2 == 0, x + i, x + 2 * i)))


@out_of_bounds_case
def pointer_selected_by_where() -> OutOfBoundsCase:
    x = numbers(100, np.float64)
    i = np.arange(64)
    at = np.where(i % 2 == 0, i, 2 * i)
    arrays = {"x": padded(x), "out": padded(np.zeros(64))}
    expected = np.where(at < 100, x[np.minimum(at, 99)], 0)
    message = "program (0, 0, 0) loads element 102 of `x`, which has 100 elements"
    rest = {"BLOCK": 64}
    total = int((at >= 100).sum())
    return OutOfBoundsCase(
        chosen, arrays, rest, (1,), message, "tl.load(tl.where(", (0, 0, 0), 102, total, {"out": expected}
    )


@blocknb.kernel
def strided(x, out, step, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i * step))


@out_of_bounds_case
def view_with_a_negative_stride() -> OutOfBoundsCase:
    data = numbers(300, np.int16)
    arrays = {"x": (data, slice(200, 80, -2)), "out": padded(np.full(64, 5, np.int16))}
    expected = np.zeros(64, np.int16)
    expected[:60] = data[200:80:-2]
    message = "program (0, 0, 0) loads element -120 of `x`, which has elements -118 to 0"
    return OutOfBoundsCase(
        strided, arrays, {"step": -2, "BLOCK": 64}, (1,), message, "tl.load(", (0, 0, 0), -120, 4, {"out": expected}
    )


@blocknb.kernel
def one_element(x, out, n):
    i = tl.program_id(0) + tl.program_id(2) * tl.num_programs(0)
    tl.store(out + i, tl.load(x + i), mask=i < n)


@out_of_bounds_case
def scalars_in_a_grid_of_three_axes() -> OutOfBoundsCase:
    x = numbers(10, np.int8)
    arrays = {"x": padded(x), "out": padded(np.full(12, 4, np.int8))}
    expected = np.concatenate([x, np.zeros(1, np.int8), np.full(1, 4, np.int8)])
    message = "program (2, 0, 2) loads element 10 of `x`, which has 10 elements"
    return OutOfBoundsCase(
        one_element, arrays, {"n": 11}, (4, 1, 3), message, "tl.load(x + i)", (2, 0, 2), 10, 2, {"out": expected}
    )


@blocknb.kernel
def twice(x, y, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) + tl.load(y + i + 1))


@out_of_bounds_case
def one_array_under_two_names() -> OutOfBoundsCase:
    big, place = padded(numbers(32, np.int32))
    data = big[place].copy()
    arrays = {"x": (big, place), "y": (big, place), "out": padded(np.zeros(32, np.int32))}
    expected = data + np.append(data[1:], 0).astype(np.int32)
    message = "program (0, 0, 0) loads element 32 of `y`, which has 32 elements"
    return OutOfBoundsCase(
        twice, arrays, {"BLOCK": 32}, (1,), message, "tl.load(y + i + 1)", (0, 0, 0), 32, 1, {"out": expected}
    )


@blocknb.kernel
def one_of_two(x, y, out, c, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    p = x if c > 1 else y
    tl.store(out + i, tl.load(p + i))


@out_of_bounds_case
def pointer_into_one_of_two_arrays() -> OutOfBoundsCase:
    x, y = numbers(64), numbers(60)
    arrays = {"x": padded(x), "y": padded(y), "out": padded(np.zeros(64, np.float32))}
    result = {"out": np.concatenate([y, np.zeros(4, np.float32)])}
    message = "program (0, 0, 0) loads element 60 of `y`, which has 60 elements"
    return OutOfBoundsCase(
        one_of_two, arrays, {"c": 1, "BLOCK": 64}, (1,), message, "tl.load(p + i)", (0, 0, 0), 60, 4, result
    )


@blocknb.kernel
def interleaved(x, y, value, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(tl.where(i % 2 == 0, x, y) + i // 2, tl.load(value + i))


@out_of_bounds_case
def lanes_that_select_between_two_arrays() -> OutOfBoundsCase:
    value = numbers(64, np.int16)
    arrays = {
        "x": padded(np.zeros(32, np.int16)),
        "y": padded(np.zeros(30, np.int16)),
        "value": padded(value),
    }
    message = "program (0, 0, 0) stores to element 30 of `y`, which has 30 elements"
    result = {"x": value[::2], "y": value[1:60:2]}
    return OutOfBoundsCase(
        interleaved, arrays, {"BLOCK": 64}, (1,), message, "tl.store(tl.where(", (0, 0, 0), 30, 2, result
    )


@blocknb.kernel
def taking_turns(x, y, rounds, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    p, q = x, y
    for k in range(rounds):
        tl.atomic_add(p + i + k * BLOCK // 2, 1)
        p, q = q, p


@out_of_bounds_case
def pointers_swapped_by_a_loop() -> OutOfBoundsCase:
    arrays = {"x": padded(np.zeros(64, np.int32)), "y": padded(np.zeros(64, np.int32))}
    x, y = np.zeros(64, np.int32), np.zeros(64, np.int32)
    for k in range(4):
        (x if k % 2 == 0 else y)[16 * k : 16 * k + 32] += 1
    message = "program (0, 0, 0) updates element 64 of `y`, which has 64 elements"
    rest, text = {"rounds": 4, "BLOCK": 32}, "tl.atomic_add(p + i"
    return OutOfBoundsCase(taking_turns, arrays, rest, (1,), message, text, (0, 0, 0), 64, 16, {"x": x, "y": y})
