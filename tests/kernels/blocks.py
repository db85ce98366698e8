"""Block pointers and tensor descriptors: ragged copies of every rank, products and attention written with them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import blocknb
import blocknb.language as bl
from blocknb import TensorDescriptor
from kernels.base import array_of, case, integers, normal, poison, wide

# -- copies --------------------------------------------------------------------------------------------------------------------


@blocknb.kernel
def shift_1d(x, out, n, start, BLOCK: bl.constexpr, PADDING: bl.constexpr):
    """out[i] = x[i + start], where x has n elements; out-of-bounds elements are padding."""
    at = bl.program_id(0) * BLOCK
    source = bl.make_block_ptr(x, (n,), (1,), (at + start,), (BLOCK,), (0,))
    target = bl.make_block_ptr(out, (n,), (1,), (at,), (BLOCK,), (0,))
    bl.store(target, bl.load(source, boundary_check=(0,), padding_option=PADDING), boundary_check=(0,))


def _shifted(x, start, padding):
    out = np.full(x.shape, padding, np.float64)
    index = np.arange(len(x)) + start
    inside = (index >= 0) & (index < len(x))
    out[inside] = wide(x)[index[inside]]
    return out


for _name, _n, _start, _padding in (
    ("blocks_1d_even", 512, 0, "zero"), ("blocks_1d_behind", 300, 37, "nan"), ("blocks_1d_before", 300, -150, "zero"),
    ("blocks_1d_beyond", 77, 1000, ""), ("blocks_1d_far", 77, -(2**31), "nan"),
):  # fmt: skip
    case(
        _name, shift_1d,
        lambda rng, n=_n, start=_start, padding=_padding: {
            "x": normal(rng, n), "out": poison(n, np.float32), "n": n, "start": start, "BLOCK": 128, "PADDING": padding,
        },
        lambda a: {"out": _shifted(a["x"], a["start"], np.nan if a["PADDING"] == "nan" else 0.0)},
        grid=(-(-_n // 128),),
    )  # fmt: skip


@blocknb.kernel
def transpose_blocks(x, out, m, n, xm, xn, om, on, BM: bl.constexpr, BN: bl.constexpr, CHECK: bl.constexpr):
    i, j = bl.program_id(0) * BM, bl.program_id(1) * BN
    source = bl.make_block_ptr(x, shape=(m, n), strides=(xm, xn), offsets=(i, j), block_shape=(BM, BN), order=(1, 0))
    view = bl.make_block_ptr(x, shape=(n, m), strides=(xn, xm), offsets=(j, i), block_shape=(BN, BM), order=(0, 1))
    target = bl.make_block_ptr(out, shape=(n, m), strides=(om, on), offsets=(j, i), block_shape=(BN, BM), order=(1, 0))
    both = bl.load(view, boundary_check=CHECK) + bl.trans(bl.load(source, boundary_check=CHECK))
    bl.store(target, both.to(target.dtype.element_ty), boundary_check=CHECK)


def _transpose_case(name, m, n, tile, check, dtype, column_major=False):
    def make(rng):
        x = normal(rng, (n, m), dtype).T if column_major else normal(rng, (m, n), dtype)
        out = poison((n, m), dtype)
        steps = [s // x.itemsize for s in (*x.strides, *out.strides)]
        names = dict(zip(("xm", "xn", "om", "on"), steps, strict=True))
        return {"x": x, "out": out, "m": m, "n": n, **names, "BM": tile[0], "BN": tile[1], "CHECK": check}

    grid = (-(-m // tile[0]), -(-n // tile[1]))
    case(name, transpose_blocks, make, lambda a: {"out": 2 * wide(a["x"]).T}, grid=grid, rtol=1e-2)


_transpose_case("blocks_transpose", 50, 37, (16, 32), (0, 1), np.float32)
_transpose_case("blocks_transpose_columns", 33, 64, (32, 16), (1, 0), np.float16, column_major=True)
_transpose_case("blocks_transpose_whole", 32, 32, (16, 16), (), ml_dtypes.bfloat16)


@blocknb.kernel
def copy_4d(x, out, a, b, c, d, BLOCK: bl.constexpr):
    first, second = bl.program_id(0) * 2, bl.program_id(1) * 2
    steps = (b * c * d, c * d, d, 1)
    source = bl.make_block_ptr(x, (a, b, c, d), steps, (first, second, 0, 0), BLOCK, (3, 2, 1, 0))
    target = bl.make_block_ptr(out, (a, b, c, d), steps, (first, second, 0, 0), BLOCK, (3, 2, 1, 0))
    for _ in range(0, c, 4):
        bl.store(target, bl.load(source, boundary_check=(0, 1, 2, 3)) * 2, boundary_check=(0, 1, 2, 3))
        source, target = bl.advance(source, (0, 0, 4, 0)), target.advance((0, 0, 4, 0))


case(
    "blocks_4d", copy_4d,
    lambda rng: {"x": integers(rng, (3, 5, 7, 11), np.int32, -99, 99), "out": poison((3, 5, 7, 11), np.int32)}
    | dict(zip("abcd", (3, 5, 7, 11), strict=True)) | {"BLOCK": (2, 2, 4, 16)},
    lambda a: {"out": a["x"] * 2}, grid=(2, 3),
)  # fmt: skip


@blocknb.kernel
def column_sums(x, out, m, n, BM: bl.constexpr, BN: bl.constexpr):
    """Sums of columns that add the rows downwards and upwards in turns."""
    j = bl.program_id(0) * BN
    down = bl.program_id(0) % 2 == 0
    last = (bl.cdiv(m, BM) - 1) * BM
    if down:
        p = bl.make_block_ptr(x, (m, n), (n, 1), (0, j), (BM, BN), (1, 0))
        step = BM
    else:
        p = bl.make_block_ptr(x, (m, n), (n, 1), (last, j), (BM, BN), (1, 0))
        step = -BM
    total, i = bl.zeros((BN,), bl.float32), 0
    while i < m:
        total += bl.sum(bl.load(p, boundary_check=(0, 1)), axis=0)
        p = bl.advance(p, (step, 0))
        i += BM
    bl.store(bl.make_block_ptr(out, (n,), (1,), (j,), (BN,), (0,)), total, boundary_check=0)


case(
    "blocks_column_sums", column_sums,
    lambda rng: {"x": normal(rng, (45, 70)), "out": poison(70, np.float32), "m": 45, "n": 70, "BM": 16, "BN": 16},
    lambda a: {"out": wide(a["x"]).sum(0)}, grid=(5,), rtol=1e-4, atol=1e-4,
)  # fmt: skip


@blocknb.kernel
def flags(x, out, n, BLOCK: bl.constexpr):
    p = bl.make_block_ptr(x, (n,), (1,), (0,), (BLOCK,), (0,))
    q = bl.make_block_ptr(out, (n,), (1,), (0,), (BLOCK,), (0,))
    bl.store(q, bl.load(p, boundary_check=(0,)) == 0, boundary_check=(0,))


case(
    "blocks_of_bools", flags,
    lambda rng: {"x": rng.integers(0, 2, 50).astype(bool), "out": np.ones(50, bool), "n": 50, "BLOCK": 64},
    lambda a: {"out": ~a["x"]},
)  # fmt: skip

# -- products ------------------------------------------------------------------------------------------------------------------


@blocknb.kernel
def step_through(a, b, acc, k, BK: bl.constexpr):
    for _ in range(0, k, BK):
        acc = bl.dot(bl.load(a, boundary_check=(0, 1)), bl.load(b, boundary_check=(0, 1)), acc)
        a, b = bl.advance(a, (0, BK)), bl.advance(b, (BK, 0))
    return acc


@blocknb.kernel
def batched_matmul(
    a, b, c, m, n, k, abatch, am, ak, bbatch, bk, bn, cbatch, cm, cn,
    BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr,
):  # fmt: skip
    i, j, batch = bl.program_id(0) * BM, bl.program_id(1) * BN, bl.program_id(2).to(bl.int64)
    pa = bl.make_block_ptr(a + batch * abatch, (m, k), (am, ak), (i, 0), (BM, BK), (1, 0))
    pb = bl.make_block_ptr(b + batch * bbatch, (k, n), (bk, bn), (0, j), (BK, BN), (1, 0))
    acc = step_through(pa, pb, bl.zeros((BM, BN), bl.float32), k, BK)
    pc = bl.make_block_ptr(c + batch * cbatch, (m, n), (cm, cn), (i, j), (BM, BN), (1, 0))
    bl.store(pc, acc.to(pc.dtype.element_ty), boundary_check=(0, 1))


def _batched_case(name, batch, m, n, k, tile, transposed=False):
    def make(rng):
        a = normal(rng, (batch, m, k), np.float16)
        b = (
            normal(rng, (batch, n, k), np.float16).transpose(0, 2, 1)
            if transposed
            else normal(rng, (batch, k, n), np.float16)
        )
        c = poison((batch, m, n), np.float32)
        steps = [s // x.itemsize for x in (a, b, c) for s in x.strides]
        names = ("abatch", "am", "ak", "bbatch", "bk", "bn", "cbatch", "cm", "cn")
        blocks = dict(zip(("BM", "BN", "BK"), tile, strict=True))
        return {"a": a, "b": b, "c": c, "m": m, "n": n, "k": k} | dict(zip(names, steps, strict=True)) | blocks

    grid = (-(-m // tile[0]), -(-n // tile[1]), batch)
    case(name, batched_matmul, make, lambda x: {"c": wide(x["a"]) @ wide(x["b"])}, grid=grid, rtol=1e-4, atol=1e-3)


_batched_case("blocks_matmul", 1, 64, 64, 64, (32, 32, 32))
_batched_case("blocks_matmul_ragged", 2, 50, 41, 37, (32, 16, 16), transposed=True)


@blocknb.kernel
def descriptor_matmul(a, b, c, m, n, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr):
    i, j = bl.program_id(0) * BM, bl.program_id(1) * BN
    da = bl.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[BM, BK])
    db = bl.make_tensor_descriptor(b, shape=[n, k], strides=[k, 1], block_shape=[BN, BK])
    dc = bl.make_tensor_descriptor(c, shape=[m, n], strides=[n, 1], block_shape=[BM, BN])
    acc = bl.zeros((BM, BN), bl.float32)
    for at in range(0, k, BK):
        acc = bl.dot(da.load([i, at]), db.load([j, at]).T, acc)
    dc.store([i, j], acc)


case(
    "descriptor_matmul", descriptor_matmul,
    lambda rng: {"a": normal(rng, (70, 48), np.float16), "b": normal(rng, (40, 48), np.float16), "c": poison((70, 40), np.float16),
                 "m": 70, "n": 40, "k": 48, "BM": 32, "BN": 32, "BK": 32},
    lambda x: {"c": wide(x["a"]) @ wide(x["b"]).T}, grid=(3, 2), rtol=2e-3, atol=2e-2,
)  # fmt: skip


@blocknb.kernel
def persistent_matmul(a, b, c, m, n, k, PROGRAMS: bl.constexpr):
    BM: bl.constexpr = a.block_shape[0]
    BN: bl.constexpr = b.block_shape[0]
    BK: bl.constexpr = a.block_shape[1]
    across = bl.cdiv(n, BN)
    for tile in bl.range(bl.program_id(0), bl.cdiv(m, BM) * across, PROGRAMS, flatten=True):
        i, j = tile // across * BM, tile % across * BN
        acc = bl.zeros((BM, BN), bl.float32)
        for step in range(bl.cdiv(k, BK)):
            acc = bl.dot(a.load([i, step * BK]), b.load([j, step * BK]).T, acc)
        c.store([i, j], acc.to(c.dtype))


def _persistent_case(name, dtype, m, n, k, tile):
    def make(rng):
        a, b, c = normal(rng, (m, k), dtype), normal(rng, (n, k), dtype), poison((m, n), dtype)
        bm, bn, bk = tile
        return {
            "a": TensorDescriptor.from_tensor(a, [bm, bk]), "b": TensorDescriptor.from_tensor(b, [bn, bk]),
            "c": TensorDescriptor.from_tensor(c, [bm, bn]), "m": m, "n": n, "k": k, "PROGRAMS": 3,
        }  # fmt: skip

    def reference(x):
        return {"c": wide(array_of(x["a"])) @ wide(array_of(x["b"])).T}

    rough = 2e-2 if dtype == ml_dtypes.bfloat16 else 5e-3
    case(name, persistent_matmul, make, reference, grid=(3,), rtol=rough, atol=rough * 10)


_persistent_case("host_descriptor_matmul", np.float16, 80, 48, 64, (32, 32, 32))
_persistent_case("host_descriptor_matmul_ragged", ml_dtypes.bfloat16, 50, 40, 40, (32, 16, 16))
_persistent_case("host_descriptor_matmul_tf32", np.float32, 33, 36, 20, (16, 32, 16))

# -- attention, as tutorials wrote it with block pointers ------------------------------------------------------------------------


@blocknb.kernel
def block_attention(
    q, k, v, out, scale, heads, length, batch_step, head_step, row_step,
    ROWS: bl.constexpr, COLUMNS: bl.constexpr, HEAD: bl.constexpr, CAUSAL: bl.constexpr,
):  # fmt: skip
    start = bl.program_id(0)
    batch, head = bl.program_id(1) // heads, bl.program_id(1) % heads
    base = batch.to(bl.int64) * batch_step + head.to(bl.int64) * head_step
    tq = bl.make_block_ptr(q + base, (length, HEAD), (row_step, 1), (start * ROWS, 0), (ROWS, HEAD), (1, 0))
    tk = bl.make_block_ptr(k + base, (HEAD, length), (1, row_step), (0, 0), (HEAD, COLUMNS), (0, 1))
    tv = bl.make_block_ptr(v + base, (length, HEAD), (row_step, 1), (0, 0), (COLUMNS, HEAD), (1, 0))
    to = bl.make_block_ptr(out + base, (length, HEAD), (row_step, 1), (start * ROWS, 0), (ROWS, HEAD), (1, 0))
    rows, columns = start * ROWS + bl.arange(0, ROWS), bl.arange(0, COLUMNS)
    top = bl.zeros([ROWS], dtype=bl.float32) - float("inf")
    total = bl.zeros([ROWS], dtype=bl.float32)
    acc = bl.zeros([ROWS, HEAD], dtype=bl.float32)
    x = bl.load(tq, boundary_check=(0,), padding_option="zero")
    x = (x * (scale * 1.44269504)).to(tq.dtype.element_ty)
    end = bl.minimum((start + 1) * ROWS, length) if CAUSAL else length
    for at in range(0, end, COLUMNS):
        scores = bl.dot(x, bl.load(tk, boundary_check=(1,)))
        seen = (at + columns)[None, :] < length
        if CAUSAL:
            seen = seen & (rows[:, None] >= (at + columns)[None, :])
        scores = bl.where(seen, scores, float("-inf"))
        highest = bl.maximum(top, bl.max(scores, 1))
        p = bl.math.exp2(scores - highest[:, None])
        factor = bl.math.exp2(top - highest)
        acc = bl.dot(p.to(v.dtype.element_ty), bl.load(tv, boundary_check=(0,)), acc * factor[:, None])
        total = total * factor + bl.sum(p, 1)
        top = highest
        tk, tv = bl.advance(tk, (0, COLUMNS)), bl.advance(tv, (COLUMNS, 0))
    bl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), boundary_check=(0,))


def _attention_reference(a):
    q, k, v = (wide(a[name]) for name in "qkv")
    scores = np.einsum("bhik,bhjk->bhij", q, k) * a["scale"]
    if a["CAUSAL"]:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return {"out": e / e.sum(-1, keepdims=True) @ v}


for _name, _length, _causal in (("blocks_attention", 64, False), ("blocks_attention_causal", 75, True)):
    case(
        _name, block_attention,
        lambda rng, length=_length, causal=_causal: {x: normal(rng, (2, 2, length, 32), np.float16) for x in "qkv"}
        | {"out": poison((2, 2, length, 32), np.float16), "scale": 32**-0.5, "heads": 2, "length": length,
           "batch_step": 2 * length * 32, "head_step": length * 32, "row_step": 32,
           "ROWS": 32, "COLUMNS": 32, "HEAD": 32, "CAUSAL": causal},
        _attention_reference, grid=(-(-_length // 32), 4), rtol=1e-2, atol=1e-2,
    )  # fmt: skip

# -- what else descriptors do ----------------------------------------------------------------------------------------------------


@blocknb.kernel
def rows_by_number(x, out, numbers, column, ROWS: bl.constexpr):
    chosen = bl.load(numbers + bl.arange(0, ROWS))
    block = x.gather(chosen, column)
    out.scatter(block, bl.arange(0, ROWS) * 2, 0)


def _gathered(a):
    x, out = wide(array_of(a["x"])), wide(array_of(a["out"]))
    for i, number in enumerate(a["numbers"]):
        if 2 * i >= len(out):
            continue
        row = np.zeros(16)
        if 0 <= number < len(x):
            part = x[number, a["column"] : a["column"] + 16]
            row[: len(part)] = part
        out[2 * i, :] = row[: out.shape[1]]
    return {"out": out}


case(
    "descriptor_rows", rows_by_number,
    lambda rng: {"x": TensorDescriptor.from_tensor(normal(rng, (9, 24)), [1, 16]),
                 "out": TensorDescriptor.from_tensor(poison((13, 12), np.float32), [1, 16]),
                 "numbers": integers(rng, 8, np.int32, -3, 12), "column": 12, "ROWS": 8},
    _gathered,
)  # fmt: skip


@blocknb.kernel
def histogram_blocks(total, highest, bits, m, n, BM: bl.constexpr, BN: bl.constexpr):
    d = bl.make_tensor_descriptor(total, (m, n), (n, 1), (BM, BN))
    i = bl.program_id(0)
    d.atomic_add([i * 3, 2], bl.full((BM, BN), 1, bl.int32) + i)
    highest.atomic_max([i * 3, i], bl.full((BM, BN), 10, bl.int32) * i)
    bits.atomic_or([0, 0], bl.full((BM, BN), 1, bl.int32) << i)


def _histogram_reference(a):
    total, highest, bits = (array_of(a[name]).astype(np.int64) for name in ("total", "highest", "bits"))
    for i in range(5):
        total[i * 3 : i * 3 + 4, 2:10] += 1 + i
        part = highest[i * 3 : i * 3 + 4, i : i + 8]
        np.maximum(part, 10 * i, out=part)
        bits[:4, :8] |= 1 << i
    return {"total": total, "highest": highest, "bits": bits}


case(
    "descriptor_atomics", histogram_blocks,
    lambda rng: {"total": integers(rng, (10, 12), np.int32, 0, 99), "m": 10, "n": 12, "BM": 4, "BN": 8}
    | {name: TensorDescriptor.from_tensor(integers(rng, (14, 12), np.int32, 0, 40), [4, 8]) for name in ("highest", "bits")},
    _histogram_reference, grid=(5,),
)  # fmt: skip


@blocknb.kernel
def pad_3d(x, out, BLOCK: bl.constexpr):
    at = [bl.program_id(0), bl.program_id(1) * 2 - 1, -2]
    value = x.load(at)
    bl.store_tensor_descriptor(out, [bl.program_id(0), bl.program_id(1) * 2, 0], value)


case(
    "descriptor_3d_nan", pad_3d,
    lambda rng: {"x": TensorDescriptor.from_tensor(normal(rng, (3, 5, 8)), (1, 2, 16), padding="nan"),
                 "out": TensorDescriptor.from_tensor(poison((3, 6, 12), np.float32), (1, 2, 16)), "BLOCK": 2},
    lambda a: {"out": np.pad(wide(array_of(a["x"])), ((0, 0), (1, 0), (2, 2)), constant_values=np.nan)}, grid=(3, 3),
)  # fmt: skip
