"""Scans, moves along an axis, sorting, and products of stacks of matrices."""

from __future__ import annotations

import numpy as np

import blocknb
import blocknb.language as bl
from kernels.base import case, integers, normal, poison, wide


@blocknb.kernel
def _combine_affine(a, b, c, d):
    return a * c, b * c + d


@blocknb.kernel
def scans(x, decay, total0, total1, back, product, state, M: bl.constexpr, N: bl.constexpr):
    at = bl.arange(0, M)[:, None] * N + bl.arange(0, N)[None, :]
    v, a = bl.load(x + at), bl.load(decay + at)
    bl.store(total0 + at, bl.cumsum(v, 0))
    bl.store(total1 + at, bl.cumsum(v, axis=1))
    bl.store(back + at, bl.cumsum(v, 1, reverse=True))
    bl.store(product + at, bl.cumprod(a, 0, reverse=True))
    _, h = bl.associative_scan((a, v), 1, _combine_affine)
    bl.store(state + at, h)


def _scans_reference(a):
    x, decay = wide(a["x"]), wide(a["decay"])
    state = np.zeros_like(x)
    h = 0.0
    for i in range(x.shape[1]):
        h = h * decay[:, i] + x[:, i]
        state[:, i] = h
    return {
        "total0": x.cumsum(0),
        "total1": x.cumsum(1),
        "back": x[:, ::-1].cumsum(1)[:, ::-1],
        "product": decay[::-1].cumprod(0)[::-1],
        "state": state,
    }


for _m, _n, _dtype in ((1, 512, np.float32), (16, 64, np.float32), (64, 8, np.float64), (2, 4, np.int32)):

    def _make(rng, m=_m, n=_n, dtype=_dtype):
        whole = np.dtype(dtype).kind == "i"
        return {
            "x": integers(rng, (m, n), dtype, -9, 9) if whole else normal(rng, (m, n), dtype),
            "decay": integers(rng, (m, n), dtype, -3, 3) if whole else rng.uniform(0.5, 1, (m, n)).astype(dtype),
            **{name: poison((m, n), dtype) for name in ("total0", "total1", "back", "product", "state")},
            "M": m,
            "N": n,
        }

    case(f"scans_{_m}x{_n}_{np.dtype(_dtype).name}", scans, _make, _scans_reference, rtol=1e-4, atol=1e-4)


@blocknb.kernel
def long_scan(x, y, n, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    bl.store(y + i, bl.cumsum(bl.load(x + i, mask=i < n, other=0)), mask=i < n)


case(
    "long_scan", long_scan,
    lambda rng: {"x": integers(rng, 4000, np.int16, -9, 9), "y": poison(4050, np.int32), "n": 4000, "BLOCK": 4096},
    lambda a: {"y": np.concatenate([wide(a["x"]).cumsum(), a["y"][4000:]])},
)  # fmt: skip


@blocknb.kernel
def moves(x, index, joined, flipped, mixed, picked, N: bl.constexpr):
    i, j = bl.arange(0, 8)[:, None], bl.arange(0, N)[None, :]
    v = bl.load(x + i * N + j)
    a, b = bl.split(bl.reshape(v, (8, N // 2, 2)))
    half = bl.arange(0, N // 2)[None, :]
    bl.store(joined + i * N + half, a - b)
    bl.store(joined + i * N + half + N // 2, bl.flip(b, 1))
    bl.store(flipped + i * N + j, bl.flip(v, 0))
    bl.store(mixed + i * N + j, bl.interleave(b, a))
    bl.store(picked + i * N + j, bl.gather(v, bl.load(index + i * N + j), 1))
    bl.store(picked + 8 * N + j, bl.gather(v, bl.load(index + j) & 7, axis=0))


def _moves_reference(a):
    x, index = a["x"], a["index"]
    even, odd = x[:, ::2], x[:, 1::2]
    return {
        "joined": np.concatenate([even - odd, odd[:, ::-1]], 1),
        "flipped": x[::-1],
        "mixed": np.stack([odd, even], 2).reshape(x.shape),
        "picked": np.concatenate([np.take_along_axis(x, index, 1), np.take_along_axis(x, index[:1] & 7, 0)]),
    }


for _n, _dtype in ((64, np.float32), (256, np.float16), (4, np.int64)):

    def _make(rng, n=_n, dtype=_dtype):
        x = (
            integers(rng, (8, n), dtype)
            if np.dtype(dtype).kind == "i"
            else integers(rng, (8, n), np.int8).astype(dtype)
        )
        return {
            "x": x,
            "index": integers(rng, (8, n), np.int32, 0, n - 1),
            **{name: poison((8, n), dtype) for name in ("joined", "flipped", "mixed")},
            "picked": poison((9, n), dtype),
            "N": n,
        }  # fmt: skip

    case(f"moves_{_n}_{np.dtype(_dtype).name}", moves, _make, _moves_reference, rtol=0, atol=0)


@blocknb.kernel
def stacks(x, y, z, A: bl.constexpr, B: bl.constexpr, C: bl.constexpr, D: bl.constexpr):
    at = bl.arange(0, A * B * C * D)
    v = bl.reshape(bl.load(x + at), (A, B, C, D))
    bl.store(y + at, bl.ravel(bl.permute(bl.flip(v, 2), (2, 0, 3, 1))))
    bl.store(z + at, bl.ravel(bl.cumsum(v, 1) + bl.cumsum(v, 2, reverse=True)))


case(
    "stacks", stacks,
    lambda rng: {
        "x": normal(rng, (4, 8, 2, 16)), "y": poison((2, 4, 16, 8), np.float32), "z": poison((4, 8, 2, 16), np.float32),
        "A": 4, "B": 8, "C": 2, "D": 16,
    },
    lambda a: {
        "y": wide(a["x"])[:, :, ::-1].transpose(2, 0, 3, 1),
        "z": wide(a["x"]).cumsum(1) + wide(a["x"])[:, :, ::-1].cumsum(2)[:, :, ::-1],
    },
    rtol=1e-4, atol=1e-4,
)  # fmt: skip


@blocknb.kernel
def sorting(x, up, down, best, first, M: bl.constexpr, N: bl.constexpr, K: bl.constexpr):
    i, j = bl.arange(0, M)[:, None], bl.arange(0, N)[None, :]
    v = bl.load(x + i * N + j)
    bl.store(up + i * N + j, bl.sort(v))
    bl.store(down + i * N + j, bl.sort(v, 0, descending=True))
    bl.store(best + i * K + bl.arange(0, K)[None, :], bl.topk(v, K))
    bl.store(first + j, bl.topk(v, 1, dim=0))


def _sorting_reference(a):
    x = wide(a["x"])
    return {
        "up": np.sort(x, 1),
        "down": np.sort(x, 0)[::-1],
        "best": np.sort(x, 1)[:, ::-1][:, : a["K"]],
        "first": x.max(0, keepdims=True),
    }


for _m, _n, _k, _dtype in ((4, 64, 8, np.float32), (1, 512, 2, np.float32), (8, 16, 16, np.int16)):

    def _make(rng, m=_m, n=_n, k=_k, dtype=_dtype):
        x = normal(rng, (m, n), dtype) if np.dtype(dtype).kind == "f" else integers(rng, (m, n), dtype, -20, 20)
        outs = {"up": (m, n), "down": (m, n), "best": (m, k), "first": (1, n)}
        return {"x": x} | {name: poison(s, dtype) for name, s in outs.items()} | {"M": m, "N": n, "K": k}

    case(f"sorting_{_m}x{_n}_{np.dtype(_dtype).name}", sorting, _make, _sorting_reference, rtol=0, atol=0)


@blocknb.kernel
def counting(x, counts, some, n, N: bl.constexpr, BINS: bl.constexpr):
    i = bl.arange(0, N)
    v = bl.load(x + i, mask=i < n, other=-1)
    bl.store(counts + bl.arange(0, BINS), bl.histogram(v, BINS))
    bl.store(some + bl.arange(0, BINS), bl.histogram(v, BINS, mask=i % 2 == 0))


case(
    "counting", counting,
    lambda rng: {
        "x": integers(rng, 300, np.int32, 0, 40), "counts": poison(32, np.int32), "some": poison(32, np.int32),
        "n": 300, "N": 512, "BINS": 32,
    },
    lambda a: {
        "counts": np.bincount(a["x"], minlength=41)[:32], "some": np.bincount(a["x"][::2], minlength=41)[:32],
    },
)  # fmt: skip


@blocknb.kernel
def _best_of(a, i, b, j):
    wins = (a > b) | ((a == b) & (i > j))
    return bl.where(wins, a, b), bl.where(wins, i, j)


@blocknb.kernel
def tuple_reductions(x, value, place, bits, spread, whole, M: bl.constexpr, N: bl.constexpr):
    i, j = bl.arange(0, M)[:, None], bl.arange(0, N)[None, :]
    v = bl.load(x + i * N + j)
    best, at = bl.reduce((v, bl.broadcast_to(j, (M, N))), 1, _best_of, keep_dims=True)
    bl.store(value + i, best)
    bl.store(place + i, at)
    bl.store(bits + j, bl.xor_sum(v, 0, keep_dims=True))
    bl.store(spread + i, bl.reduce_or(v, 1, keep_dims=True))
    top, where = bl.max(v, return_indices=True)
    low, _ = bl.min(v, 0, return_indices=True, return_indices_tie_break_left=False)
    bl.store(whole, top * 10000 + where)
    bl.store(whole + 1 + bl.arange(0, N), low)


def _tuple_reference(a):
    x = a["x"]
    n = x.shape[1]
    return {
        "value": x.max(1),
        "place": n - 1 - x[:, ::-1].argmax(1),
        "bits": np.bitwise_xor.reduce(x, 0),
        "spread": np.bitwise_or.reduce(x, 1),
        "whole": np.concatenate([[x.max() * 10000 + x.argmax()], x.min(0)]),
    }


for _m, _n in ((16, 64), (128, 4)):

    def _make(rng, m=_m, n=_n):
        outs = {"value": m, "place": m, "bits": n, "spread": m, "whole": n + 1}
        return (
            {"x": integers(rng, (m, n), np.int32, -9, 9)}
            | {name: poison(size, np.int32) for name, size in outs.items()}
            | {"M": m, "N": n}
        )

    case(f"tuple_reductions_{_m}x{_n}", tuple_reductions, _make, _tuple_reference)


@blocknb.kernel
def stacked_products(a, b, c, d, S: bl.constexpr, M: bl.constexpr, N: bl.constexpr, K: bl.constexpr):
    s = bl.arange(0, S)[:, None, None]
    m, n = bl.arange(0, M)[None, :, None], bl.arange(0, N)[None, None, :]
    ta = bl.load(a + (s * M + m) * K + bl.arange(0, K)[None, None, :])
    tb = bl.load(b + (s * K + bl.arange(0, K)[None, :, None]) * N + n)
    at = (s * M + m) * N + n
    first = bl.dot(ta, tb, input_precision="ieee")
    bl.store(c + at, first)
    bl.store(d + at, bl.dot(ta, tb, acc=first, input_precision="ieee"))


for _s, _dtype, _tolerance in ((4, np.float16, 2e-3), (2, np.float32, 1e-4), (1, np.float16, 2e-3)):

    def _make(rng, s=_s, dtype=_dtype):
        return {
            "a": normal(rng, (s, 32, 16), dtype),
            "b": normal(rng, (s, 16, 16), dtype),
            "c": poison((s, 32, 16), np.float32),
            "d": poison((s, 32, 16), np.float32),
            "S": s,
            "M": 32,
            "N": 16,
            "K": 16,
        }

    case(
        f"stacked_products_{_s}_{np.dtype(_dtype).name}",
        stacked_products,
        _make,
        lambda a: {"c": wide(a["a"]) @ wide(a["b"]), "d": 2 * (wide(a["a"]) @ wide(a["b"]))},
        rtol=_tolerance,
        atol=_tolerance,
    )


@blocknb.kernel
def long_states(x, decay, back, state, N: bl.constexpr):
    i = bl.arange(0, N)
    v, a = bl.load(x + i), bl.load(decay + i)
    _, h = bl.associative_scan((a, v), 0, _combine_affine)
    bl.store(state + i, h)
    _, h = bl.associative_scan((a, v), 0, _combine_affine, reverse=True)
    bl.store(back + i, h)


def _long_states_reference(a):
    x, decay = wide(a["x"]), wide(a["decay"])
    found = {}
    for name, order in (("state", range(len(x))), ("back", range(len(x) - 1, -1, -1))):
        found[name], h = np.zeros_like(x), 0.0
        for i in order:
            found[name][i] = h = h * decay[i] + x[i]
    return found


case(
    "long_states", long_states,
    lambda rng: {
        "x": normal(rng, 1024), "decay": rng.uniform(0.5, 1, 1024).astype(np.float32), "back": poison(1024, np.float32),
        "state": poison(1024, np.float32), "N": 1024,
    },
    _long_states_reference, rtol=1e-4, atol=1e-4,
)  # fmt: skip
