"""The kernels whose decisions `test_cpu_decisions` keeps, each with the types and constants that it is compiled for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from varied_kernels import KERNELS

import blocknb.language as tl


def softmax(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + tl.program_id(0) * n + i, e / tl.sum(e, axis=0), mask=i < n)


def streams(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


def streams_4(x, a, b, c, d, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(a + i, v, mask=i < n)
    tl.store(b + i, v, mask=i < n)
    tl.store(c + i, v, mask=i < n)
    tl.store(d + i, v, mask=i < n)


def streams_5(x, a, b, c, d, e, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(a + i, v, mask=i < n)
    tl.store(b + i, v, mask=i < n)
    tl.store(c + i, v, mask=i < n)
    tl.store(d + i, v, mask=i < n)
    tl.store(e + i, v, mask=i < n)


def one_of_two(x, a, b, n, BLOCK: tl.constexpr):
    """One store of two is to every other element."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(a + i, v)
    tl.store(b + i * 2, v)


def carried_pointer(x, y, n, BLOCK: tl.constexpr):
    """The loop-carried pointer changes in each iteration."""
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(n):
        v = tl.load(x + i)
        total += tl.exp(v - tl.max(v, axis=0))
        x += BLOCK
    tl.store(y + i, total)


def whole_grid(x, y, n, BLOCK: tl.constexpr):
    """Contiguous rows of a tile of two axes."""
    r, c = tl.arange(0, 4), tl.arange(0, BLOCK)
    v = tl.load(x + (tl.program_id(0) * 4 + r[:, None]) * BLOCK + c[None, :])
    e = tl.exp(v - tl.max(v, axis=1)[:, None])
    tl.store(y + (tl.program_id(0) * 4 + r[:, None]) * BLOCK + c[None, :], e / tl.sum(e, axis=1)[:, None])


def strided(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i * 2, tl.load(x + i), mask=i < n)


def either(x, y, z, n, BLOCK: tl.constexpr):
    """A pointer that comes from one of two arguments."""
    i = tl.arange(0, BLOCK)
    p = tl.where(n > 3, y, z)
    tl.store(p + i, tl.load(x + i))


def costly(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.exp(tl.sin(tl.load(x + i, mask=i < n))), mask=i < n)


def loads(x, y, n, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Several rows, each of which is used before and after a reduction."""
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(COUNT):
        v = tl.load(x + (tl.program_id(0) * COUNT + k) * BLOCK + i)
        total += tl.exp(v - tl.max(v, axis=0))
    tl.store(y + tl.program_id(0) * BLOCK + i, total)


def same_row(x, y, n, BLOCK: tl.constexpr):
    """Every program loads the same row, so there is nothing to prefetch."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(y + tl.program_id(0) * BLOCK + i, tl.exp(v - tl.max(v, axis=0)))


def results(x, y, n, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """COUNT reductions of a row that ends early."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    for k in tl.static_range(COUNT):
        tl.store(y + k, tl.sum(v * k, axis=0))


def ends(x, y, n, m, BLOCK: tl.constexpr):
    """Two masks, and a reduction that cannot take the padding at once."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=1) + tl.load(x + BLOCK + i, mask=i < m, other=0)
    tl.store(y, tl.sum(v, axis=0))
    tl.store(y + 1 + i, v * 2 - tl.max(v, axis=0), mask=i < n)
    tl.store(y + BLOCK + 1 + i, tl.flip(v) + tl.min(v * i, axis=0))


def whole(x, y, n, BLOCK: tl.constexpr):
    """A mask that is always true shortens no row."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < BLOCK, other=0)
    tl.store(y + i, v - tl.max(v, axis=0))


def uneven(x, y, n, BLOCK: tl.constexpr):
    """A mask that is no prefix, and an `other` that varies between lanes."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i % 3 != 0, other=0)
    w = tl.load(x + i, mask=i < n, other=i)
    tl.store(y + i, v - tl.max(v, axis=0))
    tl.store(y + BLOCK + i, w - tl.max(w, axis=0))


def uneven_other(x, y, n, BLOCK: tl.constexpr):
    """An `other` that varies between lanes, so the padding is no scalar."""
    i = tl.arange(0, BLOCK)
    w = tl.load(x + i, mask=i < n, other=i)
    tl.store(y + i, w - tl.max(w, axis=0))


def product(x, y, n, BLOCK: tl.constexpr):
    m, k = tl.arange(0, 32), tl.arange(0, 16)
    total = tl.zeros((32, 32), tl.float32)
    for step in range(0, n, 16):
        a = tl.load(x + m[:, None] * n + step + k[None, :])
        b = tl.load(x + (step + k[:, None]) * 32 + m[None, :])
        total += tl.dot(a, b)
    total = tl.where(total > 0, total, total * 2)
    tl.store(y + m[:, None] * 32 + m[None, :], total)


def twice(x, y, n, BLOCK: tl.constexpr):
    """Tiles that are used once, twice, and after a branch."""
    i, j = tl.arange(0, 16), tl.arange(0, 32)
    v = tl.load(x + i[:, None] * 32 + j[None, :])
    w = v - tl.sum(v, axis=1)[:, None]
    u = w * tl.max(w, axis=0)[None, :]
    if n > 3:
        u = u + tl.trans(tl.reshape(v, (32, 16)))
    tl.store(y + j[None, :] * 16 + i[:, None], u + w)


def mirrored(x, y, n, BLOCK: tl.constexpr):
    """The sum with a transposed tile must not overwrite that tile while it is read."""
    i = tl.arange(0, 32)
    v = tl.load(x + i[:, None] * 32 + i[None, :])
    v = v * tl.sum(v, axis=1)[:, None]
    w = v + tl.trans(v)
    u = w * 2 - tl.max(w, axis=0)[None, :]
    tl.store(y + i[:, None] * 32 + i[None, :], u + tl.max(u, axis=1)[:, None])


def single_row(x, y, n, BLOCK: tl.constexpr):
    """A reduction along an axis of size one, whose result is a tile as long as the row."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i[None, :], mask=(i < n)[None, :], other=1)
    s = tl.sum(v * 2, axis=0)
    tl.store(y + i, s + tl.max(s, axis=0))


def one_element(x, y, n, BLOCK: tl.constexpr):
    """Each row loads one element for all of its columns."""
    r, c = tl.arange(0, 4), tl.arange(0, BLOCK)
    v = tl.load(x + r[:, None] * 7 + c[None, :] * 0)
    tl.store(y + r[:, None] * BLOCK + c[None, :], v)


def wrapped_and_masked(x, y, n, BLOCK: tl.constexpr):
    """Rows in two forms, of which neither ends early."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + (tl.program_id(0) * 3 + i) % n, mask=i < n, other=0)
    tl.store(y + tl.program_id(0) * BLOCK + i, tl.exp(v - tl.max(v, axis=0)))


def partly_masked(x, y, n, BLOCK: tl.constexpr):
    """One load of two is masked: the row is as long as its tile."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0) + tl.load(y + i)
    tl.store(y + BLOCK, tl.sum(v, axis=0))


def read_inside(x, y, n, BLOCK: tl.constexpr):
    """A row that ends early is read inside of a branch."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    w = v * 2 + tl.sum(v, axis=0)
    tl.store(y + i, w - tl.max(w, axis=0), mask=i < n)
    if n > 20:
        tl.store(y + BLOCK + i, w + 1)


def copied(x, y, n, BLOCK: tl.constexpr):
    """Scans and flips of views use a row-major copy, whose memory is free afterwards."""
    i = tl.arange(0, 32)
    v = tl.load(x + i[:, None] * 32 + i[None, :])
    u = tl.cumsum(tl.trans(v), axis=0)
    w = tl.flip(tl.trans(u), 0)
    tl.store(y + i[:, None] * 32 + i[None, :], u + w + v)


def exchanged(x, y, n, BLOCK: tl.constexpr):
    """Two loop-carried tiles are exchanged: one of them is copied at the end of each iteration."""
    i = tl.arange(0, BLOCK)
    a, b = tl.load(x + i), tl.load(x + BLOCK + i)
    for k in range(n):
        a, b = b, a
        tl.store(y + k * BLOCK + i, a * 2 + b)
    tl.store(y + n * BLOCK + i, a - tl.sum(b, axis=0))


def one_read(x, y, n, BLOCK: tl.constexpr):
    """Two rows end early, of which a row as long as its tile reads one: the padding of the other is not written."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    w = tl.exp(v * 2) + tl.sum(v, axis=0)
    total = tl.sum(v * tl.max(w, axis=0) + tl.load(y + i), axis=0)
    tl.store(y + i, w - total, mask=i < n)


def places(x, y, n, BLOCK: tl.constexpr):
    """The index of the largest element: a reduction of two operands, which needs the whole tile."""
    i = tl.arange(0, BLOCK)
    tl.store(y, tl.argmax(tl.load(x + i, mask=i < n, other=0), axis=0).to(tl.float32))


def cube(x, y, n, BLOCK: tl.constexpr):
    """Vectors run along the middle axis. After the reduction of the first axis, it is the first axis of the sum."""
    i, j, k = tl.arange(0, 4)[:, None, None], tl.arange(0, 32)[None, :, None], tl.arange(0, 8)[None, None, :]
    s = tl.sum(tl.load(x + i * 256 + j + k * 32), axis=0)
    j, k = tl.arange(0, 32)[:, None], tl.arange(0, 8)[None, :]
    tl.store(y + j + k * 32, s + tl.sum(s, axis=1)[:, None])


def cube_in_a_cube(x, y, n, BLOCK: tl.constexpr):
    """The same with an axis of size one in front, which no loop runs along."""
    i, j, k = (
        tl.arange(0, 4)[None, :, None, None],
        tl.arange(0, 32)[None, None, :, None],
        tl.arange(0, 8)[None, None, None, :],
    )
    s = tl.sum(tl.load(x + i * 256 + j + k * 32), axis=1)
    j, k = tl.arange(0, 32)[None, :, None], tl.arange(0, 8)[None, None, :]
    tl.store(y + j + k * 32, s + tl.sum(s, axis=2)[:, :, None])


def no_neighbours(x, y, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """If no axis is contiguous, vectors run along the last one, even if it is short."""
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    tl.store(y + i * 1000 + j * 3, tl.load(x + i * 1000 + j * 2))


def carried_crosswise(x, y, n, BLOCK: tl.constexpr):
    """The next value of a carried tile is computed along the other axis: it gets its own buffer and is copied."""
    r, c = tl.arange(0, 32)[:, None], tl.arange(0, 32)[None, :]
    total = tl.zeros((32, 32), tl.float32)
    for k in range(n):
        total += tl.load(x + k * 1024 + r + c * 32).to(tl.float32)
    tl.store(y + r * 32 + c, total)


def leisure(x, y, z, n, BLOCK: tl.constexpr):
    """Two loop nests have time for prefetches; one of them accesses no array."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * BLOCK + i)
    m = tl.max(v, axis=0)
    w = tl.exp(tl.load(z + i + m.to(tl.int32)) - m)
    u = tl.exp(w * tl.sum(w, axis=0))
    tl.store(y + tl.program_id(0) * BLOCK + i, u / tl.sum(u, axis=0) + v)


def crosswise(x, y, n, SQUARE: tl.constexpr, BLOCK: tl.constexpr):
    """The loop nest with time for prefetches runs along the other axis, where the addresses are not contiguous."""
    r, c = tl.arange(0, 32), tl.arange(0, 32)
    rows = r * r if SQUARE else r * 32
    v = tl.load(x + tl.program_id(0) * 1024 + rows[:, None] + c[None, :])
    e = tl.exp(v - tl.sum(v, axis=1)[:, None])
    tl.store(y + tl.program_id(0) * 1024 + c[None, :] * 32 + r[:, None], e)


def apart(x, y, z, n, BLOCK: tl.constexpr):
    """Code for overlapping arrays has no prefetch, no mask bounds and no non-temporal stores."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    s = tl.sum(e, axis=0)
    w = tl.load(z + tl.program_id(0) * n + s.to(tl.int32) + i, mask=i < n)
    u = e / s + w
    tl.store(y + tl.program_id(0) * n + i, u, mask=i < n)
    tl.store(y + i, tl.exp(u - tl.max(u, axis=0)))


def chosen(x, y, n, BLOCK: tl.constexpr):
    """Masks as data: the tile of bools ends where the mask ends."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * n + i, mask=i < n)
    e = tl.where(i < n, tl.exp(v), 0)
    keep = (e > 1) & (i < n)
    s = tl.sum(e, axis=0)
    tl.store(y + tl.program_id(0) * n + i, e / s, mask=keep)


def wrapped_rows(x, y, n, BLOCK: tl.constexpr):
    """Rows that may wrap around are prefetched only where they do not."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + (tl.program_id(0) * 3 + i) % n)
    tl.store(y + tl.program_id(0) * BLOCK + i, tl.exp(v - tl.max(v, axis=0)))


F32, I8 = {"x": "*f32", "y": "*f32", "n": "i32"}, {"x": "*i8", "y": "*i8", "n": "i32"}
CASES: dict[str, tuple[Callable, dict[str, Any]]] = {
    "softmax": (softmax, F32 | {"BLOCK": 512}),
    "softmax_short": (softmax, F32 | {"BLOCK": 64}),
    "softmax_two_vectors": (softmax, F32 | {"BLOCK": 32}),
    "single_row": (single_row, F32 | {"BLOCK": 256}),
    "wrapped_and_masked": (wrapped_and_masked, F32 | {"BLOCK": 512}),
    "partly_masked": (partly_masked, F32 | {"BLOCK": 256}),
    "read_inside": (read_inside, F32 | {"BLOCK": 256}),
    "exchanged": (exchanged, F32 | {"BLOCK": 256}),
    "one_read": (one_read, F32 | {"BLOCK": 256}),
    "places": (places, F32 | {"BLOCK": 256}),
    "cube": (cube, F32 | {"BLOCK": 256}),
    "cube_in_a_cube": (cube_in_a_cube, F32 | {"BLOCK": 256}),
    "no_neighbours_tall": (no_neighbours, F32 | {"ROWS": 64, "COLUMNS": 4, "BLOCK": 256}),
    "no_neighbours_wide": (no_neighbours, F32 | {"ROWS": 4, "COLUMNS": 64, "BLOCK": 256}),
    "carried_crosswise": (carried_crosswise, F32 | {"x": "*f64", "BLOCK": 256}),
    "copied": (copied, F32 | {"BLOCK": 256}),
    "one_element": (one_element, F32 | {"BLOCK": 256}),
    "streams": (streams, F32 | {"BLOCK": 256}),
    "streams_4": (streams_4, dict.fromkeys("xabcd", "*f32") | {"n": "i32", "BLOCK": 256}),
    "streams_5": (streams_5, dict.fromkeys("xabcde", "*f32") | {"n": "i32", "BLOCK": 256}),
    "streams_short": (streams, F32 | {"BLOCK": 4}),
    "streams_shorter": (streams, F32 | {"BLOCK": 2}),
    "streams_one": (streams, F32 | {"BLOCK": 1}),
    "streams_bytes": (streams, I8 | {"BLOCK": 16}),
    "one_of_two": (one_of_two, dict.fromkeys("xab", "*f32") | {"n": "i32", "BLOCK": 256}),
    "leisure": (leisure, F32 | {"z": "*f32", "BLOCK": 512}),
    "crosswise": (crosswise, F32 | {"y": "*f64", "SQUARE": False, "BLOCK": 32}),
    "crosswise_squares": (crosswise, F32 | {"y": "*f64", "SQUARE": True, "BLOCK": 32}),
    "apart": (apart, F32 | {"z": "*f32", "BLOCK": 512}),
    "chosen": (chosen, F32 | {"BLOCK": 512}),
    "wrapped_rows": (wrapped_rows, F32 | {"BLOCK": 512}),
    "carried_pointer": (carried_pointer, F32 | {"BLOCK": 512}),
    "whole_grid": (whole_grid, F32 | {"BLOCK": 512}),
    "strided": (strided, F32 | {"BLOCK": 256}),
    "either": (either, F32 | {"z": "*f32", "BLOCK": 256}),
    "costly": (costly, F32 | {"BLOCK": 256}),
    "loads_2": (loads, F32 | {"COUNT": 2, "BLOCK": 128}),
    "loads_5": (loads, F32 | {"COUNT": 5, "BLOCK": 256}),
    "loads_too_short": (loads, F32 | {"COUNT": 1, "BLOCK": 64}),
    "loads_longest": (loads, F32 | {"COUNT": 1, "BLOCK": 1 << 15}),
    "loads_too_long": (loads, F32 | {"COUNT": 1, "BLOCK": 1 << 16}),
    "same_row": (same_row, F32 | {"BLOCK": 512}),
    "results_8": (results, F32 | {"COUNT": 8, "BLOCK": 256}),
    "results_9": (results, F32 | {"COUNT": 9, "BLOCK": 256}),
    "ends": (ends, F32 | {"m": "i32", "BLOCK": 256}),
    "whole": (whole, F32 | {"BLOCK": 256}),
    "uneven": (uneven, F32 | {"BLOCK": 256}),
    "uneven_other": (uneven_other, F32 | {"BLOCK": 256}),
    "product": (product, F32 | {"BLOCK": 256}),
    "twice": (twice, F32 | {"BLOCK": 256}),
    "mirrored": (mirrored, F32 | {"BLOCK": 256}),
    "twice_bytes": (twice, I8 | {"BLOCK": 256}),
    **{name: (case.kernel, F32 | {"BLOCK": 128}) for name, case in KERNELS.items()},
}
