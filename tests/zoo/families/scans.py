"""Scans in several launches: a state-space model in chunks, sums of sorted segments, and combine functions with run-time branches."""

import numpy as np
import triton
import triton.language as tl
from zoo.arrays import empty, strides, zeros
from zoo.registry import integers, normal, specimen


@triton.jit
def softplus(x):
    return tl.where(x <= 20.0, tl.math.log(tl.math.exp(x) + 1), x)


@triton.jit
def _ssd_cumsum(
    dt_ptr, A_ptr, bias_ptr, out_ptr, sum_ptr, seqlen, heads, stride_db, stride_dt, stride_dh, stride_ob, stride_oh, stride_oc, stride_ot,
    CHUNK: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    b, c, h0 = tl.program_id(0), tl.program_id(1), tl.program_id(2) * BLOCK_H
    h = h0 + tl.arange(0, BLOCK_H)
    t = tl.arange(0, CHUNK)
    left = min(CHUNK, seqlen - c * CHUNK)
    mask = (h[:, None] < heads) & (t[None, :] < left)
    dt = tl.load(
        dt_ptr + b * stride_db + (c * CHUNK + t[None, :]) * stride_dt + h[:, None] * stride_dh, mask=mask, other=0.0
    )
    dt = softplus(dt.to(tl.float32) + tl.load(bias_ptr + h, mask=h < heads, other=0.0)[:, None])
    dt = tl.where(mask, dt, 0.0)
    at = b * stride_ob + h[:, None] * stride_oh + c * stride_oc + t[None, :] * stride_ot
    tl.store(out_ptr + at, dt, mask=(h < heads)[:, None])
    dA = dt * tl.load(A_ptr + h, mask=h < heads, other=0.0)[:, None]
    tl.store(sum_ptr + at, tl.cumsum(dA, axis=1), mask=(h < heads)[:, None])


@triton.jit
def _ssd_state(
    x_ptr, b_ptr, states_ptr, dt_ptr, sum_ptr, seqlen, P, N, per_group, stride_xb, stride_xt, stride_xh, stride_bb, stride_bt, stride_bg,
    stride_sb, stride_sc, stride_sh, stride_ob, stride_oh, stride_oc, CHUNK: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Computes the contribution of each chunk to the state, (P, N)."""
    b, c, h = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    p, n, t = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_N), tl.arange(0, CHUNK)
    left = min(CHUNK, seqlen - c * CHUNK)
    base = b * stride_ob + h * stride_oh + c * stride_oc
    last = tl.load(sum_ptr + base + CHUNK - 1)
    weight = tl.exp(last - tl.load(sum_ptr + base + t)) * tl.load(dt_ptr + base + t)
    x = tl.load(
        x_ptr + b * stride_xb + (c * CHUNK + t[None, :]) * stride_xt + h * stride_xh + p[:, None],
        mask=(p[:, None] < P) & (t[None, :] < left), other=0.0,
    )  # fmt: skip
    k = tl.load(
        b_ptr + b * stride_bb + (c * CHUNK + t[:, None]) * stride_bt + h // per_group * stride_bg + n[None, :],
        mask=(n[None, :] < N) & (t[:, None] < left), other=0.0,
    ).to(tl.float32)  # fmt: skip
    state = tl.dot(x, (k * weight[:, None]).to(x_ptr.dtype.element_ty), input_precision="ieee")
    out = states_ptr + b * stride_sb + c * stride_sc + h * stride_sh + p[:, None] * N + n[None, :]
    tl.store(out, state, mask=(p[:, None] < P) & (n[None, :] < N))


@triton.jit
def _ssd_pass(
    states_ptr, final_ptr, sum_ptr, size, chunks, stride_sb, stride_sc, stride_sh, stride_ob, stride_oh, stride_oc,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Replaces the contributions of chunks by the states at their starts."""
    b, h = tl.program_id(1), tl.program_id(2)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    states_ptr += b * stride_sb + h * stride_sh
    sum_ptr += b * stride_ob + h * stride_oh + CHUNK - 1
    state = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(chunks):
        added = tl.load(states_ptr + i, mask=i < size, other=0.0)
        tl.store(states_ptr + i, state, mask=i < size)
        state = tl.exp(tl.load(sum_ptr)) * state + added
        states_ptr += stride_sc
        sum_ptr += stride_oc
    tl.store(final_ptr + (b * tl.num_programs(2) + h) * size + i, state, mask=i < size)


@triton.jit
def _ssd_scan(
    x_ptr, b_ptr, c_ptr, states_ptr, dt_ptr, sum_ptr, z_ptr, D_ptr, y_ptr, seqlen, P, N, per_group, stride_xb, stride_xt, stride_xh,
    stride_bb, stride_bt, stride_bg, stride_sb, stride_sc, stride_sh, stride_ob, stride_oh, stride_oc, HAS_Z: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    m_start = tl.program_id(0) * BLOCK_M
    b, c, h = tl.program_id(1) // tl.cdiv(seqlen, CHUNK), tl.program_id(1) % tl.cdiv(seqlen, CHUNK), tl.program_id(2)
    m, p, n = m_start + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_N)
    left = min(CHUNK, seqlen - c * CHUNK)
    first = c * CHUNK
    base = b * stride_ob + h * stride_oh + c * stride_oc
    dA_m = tl.load(sum_ptr + base + m)
    group = h // per_group * stride_bg
    cm = tl.load(
        c_ptr + b * stride_bb + (first + m[:, None]) * stride_bt + group + n[None, :],
        mask=(m[:, None] < left) & (n[None, :] < N), other=0.0,
    )  # fmt: skip
    state = tl.load(
        states_ptr + b * stride_sb + c * stride_sc + h * stride_sh + p[None, :] * N + n[:, None],
        mask=(p[None, :] < P) & (n[:, None] < N), other=0.0,
    ).to(c_ptr.dtype.element_ty)  # fmt: skip
    acc = tl.dot(cm, state, input_precision="ieee") * tl.exp(dA_m)[:, None]
    for k in range(0, min(m_start + BLOCK_M, left), BLOCK_K):
        at = k + tl.arange(0, BLOCK_K)
        bk = tl.load(
            b_ptr + b * stride_bb + (first + at[None, :]) * stride_bt + group + n[:, None],
            mask=(at[None, :] < left) & (n[:, None] < N), other=0.0,
        )  # fmt: skip
        cb = tl.dot(cm, bk, input_precision="ieee")
        dA_k = tl.load(sum_ptr + base + at, mask=at < CHUNK, other=0.0)
        dt_k = tl.load(dt_ptr + base + at, mask=at < CHUNK, other=0.0)
        cb *= tl.exp(tl.minimum(dA_m[:, None] - dA_k[None, :], 0.0)) * dt_k[None, :]
        cb = tl.where(m[:, None] >= at[None, :], cb, 0.0)
        x = tl.load(
            x_ptr + b * stride_xb + (first + at[:, None]) * stride_xt + h * stride_xh + p[None, :],
            mask=(at[:, None] < left) & (p[None, :] < P), other=0.0,
        )  # fmt: skip
        acc += tl.dot(cb.to(x.dtype), x, input_precision="ieee")
    mask = (m[:, None] < left) & (p[None, :] < P)
    where = b * stride_xb + (first + m[:, None]) * stride_xt + h * stride_xh + p[None, :]
    acc += tl.load(x_ptr + where, mask=mask, other=0.0).to(tl.float32) * tl.load(D_ptr + h)
    if HAS_Z:
        z = tl.load(z_ptr + where, mask=mask, other=0.0).to(tl.float32)
        acc *= z * tl.sigmoid(z)
    tl.store(y_ptr + where, acc, mask=mask)


def state_space(x, dt, A, B, C, D, z, dt_bias):
    """x is (batch, time, heads, P), dt (batch, time, heads), B and C (batch, time, groups, N). Returns y and the last states."""
    batch, seqlen, heads, P = x.shape
    groups, N, CHUNK = B.shape[2], B.shape[3], 32
    chunks, block_p, block_n = (
        triton.cdiv(seqlen, 32),
        max(16, triton.next_power_of_2(P)),
        max(16, triton.next_power_of_2(N)),
    )
    step, sums = empty(D, (batch, heads, chunks, CHUNK)), empty(D, (batch, heads, chunks, CHUNK))
    states, final, y = empty(D, (batch, chunks, heads, P, N)), empty(D, (batch, heads, P, N)), empty(x)
    at, of_states = strides(sums)[:3], strides(states)[:3]
    _ssd_cumsum[(batch, chunks, triton.cdiv(heads, 2))](
        dt, A, dt_bias, step, sums, seqlen, heads, *strides(dt), *strides(sums), CHUNK=CHUNK, BLOCK_H=2
    )
    _ssd_state[(batch, chunks, heads)](
        x, B, states, step, sums, seqlen, P, N, heads // groups, *strides(x)[:3], *strides(B)[:3], *of_states, *at, CHUNK=CHUNK,
        BLOCK_P=block_p, BLOCK_N=block_n,
    )  # fmt: skip
    _ssd_pass[(triton.cdiv(P * N, 64), batch, heads)](
        states, final, sums, P * N, chunks, *of_states, *at, CHUNK=CHUNK, BLOCK=64
    )
    _ssd_scan[(CHUNK // 16, batch * chunks, heads)](
        x, B, C, states, step, sums, z, D, y, seqlen, P, N, heads // groups, *strides(x)[:3], *strides(B)[:3], *of_states, *at,
        HAS_Z=z is not None, CHUNK=CHUNK, BLOCK_M=16, BLOCK_K=16, BLOCK_P=block_p, BLOCK_N=block_n,
    )  # fmt: skip
    return y, final


def state_space_reference(x, dt, A, B, C, D, z, dt_bias):
    batch, seqlen, heads, P = x.shape
    B, C = (m.repeat(heads // B.shape[2], 2) for m in (B, C))
    dt = np.logaddexp(dt + dt_bias, 0)
    state, y = np.zeros((batch, heads, P, B.shape[-1])), np.zeros(x.shape)
    for t in range(seqlen):
        drive = (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None, :]
        state = np.exp(dt[:, t] * A)[..., None, None] * state + drive
        y[:, t] = np.einsum("bhpn,bhn->bhp", state, C[:, t]) + D[:, None] * x[:, t]
    return y if z is None else y * z / (1 + np.exp(-z)), state


def state_space_inputs(rng, T, heads, groups, P, N, gated=True, dtype=np.float32):
    x = normal(rng, 2, T, heads, P, dtype=dtype)
    return {
        "x": x, "dt": normal(rng, 2, T, heads), "A": -rng.random(heads).astype(np.float32), "B": normal(rng, 2, T, groups, N, dtype=dtype),
        "C": normal(rng, 2, T, groups, N, dtype=dtype), "D": normal(rng, heads), "z": normal(rng, *x.shape, dtype=dtype) if gated else None,
        "dt_bias": normal(rng, heads),
    }  # fmt: skip


specimen(
    "state_space", state_space, state_space_reference, 1e-4, 1e-5,
    gated=lambda rng: state_space_inputs(rng, 75, 4, 2, 12, 16),
    plain=lambda rng: state_space_inputs(rng, 32, 3, 1, 16, 20, gated=False),
)  # fmt: skip
specimen(
    "state_space", state_space, state_space_reference, 5e-2, 2e-2,
    fp16=lambda rng: state_space_inputs(rng, 45, 2, 1, 16, 16, dtype=np.float16),
)  # fmt: skip


@triton.jit
def _segmented(left_value, left_key, right_value, right_key):
    """Adds as long as the key is the same."""
    return tl.where(left_key == right_key, left_value + right_value, right_value), right_key


@triton.jit
def _segment_blocks(X, Keys, Scanned, Ends, Last, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + i, mask=i < n, other=0.0)
    key = tl.load(Keys + i, mask=i < n, other=-1)
    total, key = tl.associative_scan((x, key), 0, combine_fn=_segmented)
    tl.store(Scanned + i, total, mask=i < n)
    last = i == tl.minimum(n, (tl.program_id(0) + 1) * BLOCK) - 1
    tl.store(Ends + tl.program_id(0) + tl.zeros_like(i), total, mask=last)
    tl.store(Last + tl.program_id(0) + tl.zeros_like(i), key, mask=last)


@triton.jit
def _segment_carries(Ends, Last, Carry, blocks, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(Ends + i, mask=i < blocks, other=0.0)
    key = tl.load(Last + i, mask=i < blocks, other=-1)
    total, key = tl.associative_scan((x, key), 0, _segmented)
    tl.store(Carry + i, total, mask=i < blocks)


@triton.jit
def _segment_sums(Scanned, Keys, Last, Carry, Out, n, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    i = block * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(Keys + i, mask=i < n, other=-1)
    total = tl.load(Scanned + i, mask=i < n, other=0.0)
    if block > 0:
        before, carry = tl.load(Last + block - 1), tl.load(Carry + block - 1)
        # A segment may span whole blocks: the carry applies as long as the key is the same.
        total += tl.where(key == before, carry, 0.0)
    following = tl.load(Keys + i + 1, mask=i + 1 < n, other=-1)
    tl.store(Out + key, total, mask=(i < n) & (key != following))


def segment_sums(x, keys, segments):
    """Sums of x by sorted keys, in three launches."""
    n = x.shape[0]
    blocks = triton.cdiv(n, 32)
    scanned, ends, last, carry, out = (
        empty(x),
        empty(x, blocks),
        empty(keys, blocks),
        empty(x, blocks),
        zeros(x, segments),
    )
    _segment_blocks[(blocks,)](x, keys, scanned, ends, last, n, BLOCK=32, num_warps=1)
    _segment_carries[(1,)](ends, last, carry, blocks, BLOCK=triton.next_power_of_2(blocks))
    _segment_sums[(blocks,)](scanned, keys, last, carry, out, n, BLOCK=32)
    return out


def segment_sums_reference(x, keys, segments):
    return np.bincount(keys, x, segments)


def segments_inputs(rng, n, segments):
    return {"x": normal(rng, n), "keys": np.sort(integers(rng, 0, segments, n)), "segments": segments}


specimen(
    "segment_sums", segment_sums, segment_sums_reference, 1e-4, 1e-5,
    long=lambda rng: segments_inputs(rng, 333, 5),
    short=lambda rng: segments_inputs(rng, 100, 60),
)  # fmt: skip


@triton.jit
def _nearer_to_zero(a, i, b, j):
    """Returns the number nearer to zero, or the first of equals, from run-time branches."""
    if tl.abs(a) < tl.abs(b):
        return a, i
    elif tl.abs(b) < tl.abs(a):
        return b, j
    first = tl.minimum(i, j)
    return tl.where(i < j, a, b), first


@triton.jit
def _nearest_to_zero(X, Values, Places, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    best, place = float("inf"), -1
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(X + row * stride + at, mask=at < columns, other=float("inf"))
        value, where = tl.reduce((x, at), axis=0, combine_fn=_nearer_to_zero)
        if place < 0:
            best, place = value, where
        elif tl.abs(value) < tl.abs(best):
            best, place = value, where
    tl.store(Values + row, best)
    tl.store(Places + row, place)


def nearest_to_zero(x):
    rows, columns = x.shape
    values, places = empty(x, rows), empty(x, rows, "int32")
    _nearest_to_zero[(rows,)](x, values, places, columns, strides(x)[0], BLOCK=32)
    return values, places


def nearest_reference(x):
    places = np.abs(x).argmin(1)
    return x[np.arange(len(x)), places], places.astype(np.int32)


specimen(
    "nearest_to_zero", nearest_to_zero, nearest_reference, 1e-6, 1e-7,
    floats=lambda rng: {"x": normal(rng, 9, 75)},
    ties=lambda rng: {"x": integers(rng, -3, 4, 9, 100).astype(np.float32)},
)  # fmt: skip


@triton.jit
def _checked_lookup(
    Table, Index, Out, n, rows, width, stride, VERBOSE: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(Index + i, mask=i < n, other=0)
    index = tl.where(index < 0, index + rows, index)
    tl.device_assert((index >= 0) & (index < rows), "an index lies outside of the table", mask=i < n)
    if VERBOSE and tl.program_id(0) == 0:
        tl.device_print("rows: ", tl.num_programs(0))
    c = tl.arange(0, COLUMNS)
    mask = (i < n)[:, None] & (c < width)[None, :]
    row = tl.load(Table + index[:, None] * stride + c[None, :], mask=mask, other=0.0)
    tl.store(Out + i[:, None] * width + c[None, :], row, mask=mask)


def checked_lookup(table, index, verbose):
    """table[index], with negative indices counted from the end."""
    out = empty(table, (index.shape[0], table.shape[1]))
    _checked_lookup[(triton.cdiv(index.shape[0], 16),)](
        table, index, out, index.shape[0], *table.shape, strides(table)[0], VERBOSE=verbose, BLOCK=16,
        COLUMNS=triton.next_power_of_2(table.shape[1]), debug=True,
    )  # fmt: skip
    return out


specimen(
    "checked_lookup", checked_lookup, lambda table, index, verbose: table[index],
    ragged=lambda rng: {"table": normal(rng, 20, 12), "index": integers(rng, -20, 20, 37), "verbose": False},
    prints=lambda rng: {"table": normal(rng, 5, 3), "index": integers(rng, -5, 5, 8), "verbose": True},
)  # fmt: skip
