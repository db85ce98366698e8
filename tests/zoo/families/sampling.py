"""Selection and sorting: top-k and top-p sampling from logits, argmax with the first index, and a bitonic sort with values. There are also
compaction by prefix sums, counting with atomics, and nearest neighbours."""

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty, full, strides, zeros
from zoo.registry import integers, normal, specimen


@triton.jit
def _sample(Logits, Uniform, Out, Kept, stride, n, top_k, top_p, temperature, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(Logits + row * stride + i, mask=i < n, other=-float("inf")) / temperature
    e = tl.exp(x - tl.max(x, axis=0))
    p = e / tl.sum(e, axis=0)
    ordered = tl.sort(p, descending=True)
    before = tl.cumsum(ordered, axis=0) - ordered
    stays = (before < top_p) & (i < top_k)
    # The least probability that is kept; equally likely tokens are kept, too.
    least = tl.min(tl.where(stays, ordered, 2.0), axis=0)
    p = tl.where((p >= least) & (i < n), p, 0.0)
    tl.store(Kept + row, tl.sum((p > 0).to(tl.int32), axis=0))
    u = tl.load(Uniform + row) * tl.sum(p, axis=0)
    # The first position where the running sum exceeds u.
    passed = tl.cumsum(p, axis=0) > u
    tl.store(Out + row, tl.min(tl.where(passed, i, BLOCK - 1), axis=0))


def sample(logits, uniform, top_k, top_p, temperature):
    """Returns the sampled token of each row, and the number of candidates."""
    rows, n = logits.shape
    out, kept = empty(logits, rows, "int64"), empty(logits, rows, "int32")
    _sample[(rows,)](
        logits, uniform, out, kept, strides(logits)[0], n, top_k, top_p, temperature, BLOCK=triton.next_power_of_2(n)
    )
    return out, kept


def sample_reference(logits, uniform, top_k, top_p, temperature):
    tokens, kept = [], []
    for x, u in zip(logits / temperature, uniform, strict=True):
        p = np.exp(x - x.max())
        p /= p.sum()
        order = np.argsort(-p)
        before = np.cumsum(p[order]) - p[order]
        chosen = order[(before < top_p) & (np.arange(len(p)) < top_k)]
        kept.append(len(chosen))
        p = np.where(np.isin(np.arange(len(p)), chosen), p, 0)
        tokens.append(int(np.argmax(np.cumsum(p) > u * p.sum())))
    return np.array(tokens), np.array(kept)


def sample_inputs(rng, rows, n, **limits):
    # The running sums of these probabilities are not close to top_p or u, so rounding decides nothing.
    steps = np.stack([rng.permutation(n) for _ in range(rows)])
    logits = -0.5 * steps.astype(np.float32)
    p = np.exp(logits.astype(np.float64) / limits["temperature"])
    picked = integers(rng, 0, 2, rows)
    middle = []
    for row, at in zip(p, picked, strict=True):
        order = np.argsort(-row)
        before = np.cumsum(row[order]) / row.sum() - row[order] / row.sum()
        kept = order[(before < limits["top_p"]) & (np.arange(n) < limits["top_k"])]
        kept_p = np.where(np.isin(np.arange(n), kept), row, 0)
        token = kept[at % len(kept)]
        middle.append((kept_p[:token].sum() + 0.5 * kept_p[token]) / kept_p.sum())
    return {"logits": logits, "uniform": np.array(middle, np.float32), **limits}


specimen(
    "top_p_sampling", sample, sample_reference,
    top_k=lambda rng: sample_inputs(rng, 5, 100, top_k=3, top_p=1.0, temperature=1.0),
    top_p=lambda rng: sample_inputs(rng, 4, 64, top_k=64, top_p=0.7, temperature=0.9),
)  # fmt: skip


@triton.jit
def _top_k(X, Values, Indices, stride, n, K: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(X + row * stride + i, mask=i < n, other=-float("inf"))
    # Packs value and index into one word whose integer order is that of the floats, with the smaller index first among equals.
    bits = x.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    packed = (key << 32) | (0x7FFFFFFF - i).to(tl.int64)
    best = tl.topk(packed, K)
    k = tl.arange(0, K)
    index = 0x7FFFFFFF - (best & 0x7FFFFFFF)
    high = (best >> 32).to(tl.int32)
    value = tl.where(high < 0, high ^ 0x7FFFFFFF, high).to(tl.float32, bitcast=True)
    tl.store(Values + row * K + k, value)
    tl.store(Indices + row * K + k, index)


def top_k(x, k):
    rows, n = x.shape
    values, indices = empty(x, (rows, k)), empty(x, (rows, k), "int64")
    _top_k[(rows,)](x, values, indices, strides(x)[0], n, K=k, BLOCK=triton.next_power_of_2(n))
    return values, indices


def top_k_reference(x, k):
    order = np.argsort(-x, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(x, order, 1), order


specimen(
    "top_k", top_k, top_k_reference,
    ties=lambda rng: {"x": integers(rng, -5, 5, 4, 100).astype(np.float32), "k": 8},
    floats=lambda rng: {"x": normal(rng, 3, 33), "k": 4},
)  # fmt: skip


@triton.jit
def _compare_and_swap(key, value, FLIP: tl.constexpr, i: tl.constexpr, LOG: tl.constexpr):
    outer: tl.constexpr = 2 ** (LOG - i - 1)
    inner: tl.constexpr = 2**i
    a = tl.reshape(key, [outer, 2, inner])
    b = tl.reshape(value, [outer, 2, inner])
    second = tl.arange(0, 2)[None, :, None]
    a_left = tl.broadcast_to(tl.sum(a * (1 - second), 1)[:, None, :], [outer, 2, inner])
    a_right = tl.broadcast_to(tl.sum(a * second, 1)[:, None, :], [outer, 2, inner])
    b_left = tl.broadcast_to(tl.sum(b * (1 - second), 1)[:, None, :], [outer, 2, inner])
    b_right = tl.broadcast_to(tl.sum(b * second, 1)[:, None, :], [outer, 2, inner])
    swap = ((a_left > a_right) ^ FLIP) != 0
    a = tl.where(swap, tl.where(second == 0, a_right, a_left), a)
    b = tl.where(swap, tl.where(second == 0, b_right, b_left), b)
    return tl.reshape(a, key.shape), tl.reshape(b, value.shape)


@triton.jit
def _bitonic_sort(Keys, Values, n, LOG: tl.constexpr):
    size: tl.constexpr = 2**LOG
    Keys += tl.program_id(0) * n
    Values += tl.program_id(0) * n
    i = tl.arange(0, size)
    key = tl.load(Keys + i, mask=i < n, other=2147483647)
    value = tl.load(Values + i, mask=i < n, other=0)
    for stage in tl.static_range(1, LOG + 1):
        if stage < LOG:
            flip = (i >> stage) & 1
        else:
            flip = tl.zeros_like(i)
        for step in tl.static_range(stage):
            at: tl.constexpr = stage - 1 - step
            flip3 = tl.reshape(flip, [2 ** (LOG - at - 1), 2, 2**at])
            key, value = _compare_and_swap(key, value, flip3, at, LOG)
    tl.store(Keys + i, key, mask=i < n)
    tl.store(Values + i, value, mask=i < n)


def bitonic_sort(keys, values):
    """Sorts the rows of `keys`, and `values` with them."""
    rows, n = keys.shape
    _bitonic_sort[(rows,)](keys, values, n, LOG=max(triton.next_power_of_2(n).bit_length() - 1, 1))
    return keys, values


def sort_reference(keys, values):
    order = np.argsort(keys, axis=1)
    return np.take_along_axis(keys, order, 1), np.take_along_axis(values, order, 1)


def distinct(rng, rows, n):
    keys = np.stack([rng.permutation(10 * n)[:n] - 5 * n for _ in range(rows)]).astype(np.int32)
    return {"keys": keys, "values": integers(rng, -100, 100, rows, n)}


specimen(
    "bitonic_sort",
    bitonic_sort,
    sort_reference,
    ragged=lambda rng: distinct(rng, 3, 50),
    full=lambda rng: distinct(rng, 1, 32),
)


@triton.jit
def _compact(X, Y, Count, n, threshold, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < n, other=0.0)
    keep = (i < n) & (x > threshold)
    ones = keep.to(tl.int32)
    rank = tl.cumsum(ones, 0) - ones
    base = tl.atomic_add(Count, tl.sum(ones, 0))
    tl.store(Y + base + rank, x, mask=keep)


def compact(x, threshold):
    """Returns the elements above a threshold, sorted because the kernel writes them in any order, and their number."""
    y, count = full(x, x.shape, 0.0), zeros(x, 1, "int32")
    _compact[(triton.cdiv(x.shape[0], 64),)](x, y, count, x.shape[0], threshold, BLOCK=64)
    y = y.sort()[0] if hasattr(y, "numpy") else (y.sort(), y)[1]
    return y, count


def compact_reference(x, threshold):
    kept = x[x > threshold]
    return np.sort(np.concatenate([kept, np.zeros(len(x) - len(kept))])), np.array([len(kept)])


specimen("compact", compact, compact_reference, some=lambda rng: {"x": normal(rng, 500), "threshold": 0.25})


@triton.jit
def _bincount(X, Weights, Counts, Sums, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    counts = tl.zeros([BINS], dtype=tl.int32)
    for start in range(pid * BLOCK, n, BLOCK * tl.num_programs(0)):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(X + i, mask=i < n, other=0)
        counts += tl.histogram(x, BINS)
        spare = BLOCK - tl.minimum(n - start, BLOCK)
        counts -= tl.where(tl.arange(0, BINS) == 0, spare, 0)
        tl.atomic_add(Sums + x, tl.load(Weights + i, mask=i < n, other=0.0), mask=i < n, sem="relaxed")
    tl.atomic_add(Counts + tl.arange(0, BINS), counts, mask=counts != 0)


def bincount(x, weights, bins):
    counts, sums = zeros(x, bins, "int32"), zeros(weights, bins)
    _bincount[(3,)](x, weights, counts, sums, x.shape[0], BINS=bins, BLOCK=64)
    return counts, sums


specimen(
    "bincount", bincount, lambda x, weights, bins: (np.bincount(x, minlength=bins), np.bincount(x, weights, bins)), 1e-4, 1e-5,
    ragged=lambda rng: {"x": integers(rng, 0, 32, 500), "weights": normal(rng, 500), "bins": 32},
)  # fmt: skip


@triton.jit
def _nearer(d_a, i_a, d_b, i_b):
    closer = (d_b < d_a) | ((d_b == d_a) & (i_b < i_a))
    return tl.where(closer, d_b, d_a), tl.where(closer, i_b, i_a)


@triton.jit
def _nearest(P, Q, Distance, Index, m, n, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    i = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    best = tl.full([BLOCK_M], float("inf"), tl.float32)
    where = tl.full([BLOCK_M], -1, tl.int32)
    for start in range(0, n, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        d = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for c in tl.static_range(DIM):
            p = tl.load(P + i * DIM + c, mask=i < m, other=0.0)
            q = tl.load(Q + j * DIM + c, mask=j < n, other=0.0)
            gap = p[:, None] - q[None, :]
            d = tl.fma(gap, gap, d)
        d = tl.where(j[None, :] < n, d, float("inf"))
        index = tl.broadcast_to(j[None, :], [BLOCK_M, BLOCK_N])
        d_min, i_min = tl.reduce((d, index), 1, _nearer)
        best, where = _nearer(best, where, d_min, i_min)
    tl.store(Distance + i, tl.sqrt(best), mask=i < m)
    tl.store(Index + i, where, mask=i < m)


def nearest(p, q):
    """Returns the distance and the index of the nearest point of q, for every point of p."""
    m, dim = p.shape
    distance, index = empty(p, m), empty(p, m, "int32")
    _nearest[(triton.cdiv(m, 16),)](p, q, distance, index, m, q.shape[0], DIM=dim, BLOCK_M=16, BLOCK_N=32)
    return distance, index


def nearest_reference(p, q):
    d = np.sqrt(((p[:, None] - q[None]) ** 2).sum(-1))
    return d.min(1), d.argmin(1)


specimen(
    "nearest",
    nearest,
    nearest_reference,
    1e-4,
    1e-5,
    points=lambda rng: {"p": normal(rng, 37, 3), "q": normal(rng, 75, 3)},
)
