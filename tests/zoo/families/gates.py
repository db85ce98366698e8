"""Gated activations, forward and backward, and dropout whose backward pass computes the mask again from the seed."""

import numpy as np
import triton
import triton.language as tl
from triton.language.extra import libdevice
from zoo.arrays import empty, strides
from zoo.registry import integers, normal, specimen

SQRT_2_OVER_PI: tl.constexpr = tl.constexpr(0.7978845608028654)


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def gelu_tanh(x):
    return 0.5 * x * (1 + libdevice.tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)))


@triton.jit
def gelu_tanh_grad(x):
    t = libdevice.tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x))
    inner = SQRT_2_OVER_PI * (1 + 3 * 0.044715 * x * x)
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner


@triton.jit
def _glu_fwd(gate, up, out, stride, n_cols, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    gate += row * stride
    up += row * stride
    out += row * stride
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n_cols
    g = tl.load(gate + cols, mask=mask, other=0).to(tl.float32)
    u = tl.load(up + cols, mask=mask, other=0)
    activated = ACTIVATION(g)
    tl.store(out + cols, activated.cast(u.dtype) * u, mask=mask)


@triton.jit
def _swiglu_bwd(dout, gate, up, stride, n_cols, BLOCK: tl.constexpr):
    # The gradients overwrite gate and up, which are no longer needed.
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    offs = row * stride + cols
    mask = cols < n_cols
    d = tl.load(dout + offs, mask=mask, other=0)
    g = tl.load(gate + offs, mask=mask, other=0).to(tl.float32)
    u = tl.load(up + offs, mask=mask, other=0)
    s = tl.sigmoid(g)
    tl.store(up + offs, d * silu(g), mask=mask)
    tl.store(gate + offs, d * (s * (1 + g * (1 - s))) * u, mask=mask)


@triton.jit
def _geglu_bwd(dout, gate, up, stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    offs = row * stride + cols
    mask = cols < n_cols
    d = tl.load(dout + offs, mask=mask, other=0)
    g = tl.load(gate + offs, mask=mask, other=0).to(tl.float32)
    u = tl.load(up + offs, mask=mask, other=0)
    tl.store(up + offs, d * gelu_tanh(g), mask=mask)
    tl.store(gate + offs, d * u * gelu_tanh_grad(g), mask=mask)


def glu(gate, up, dout, kind):
    """Returns out, dgate and dup of arrays (..., columns)."""
    cols = gate.shape[-1]
    shape, gate, up, dout = gate.shape, gate.reshape(-1, cols), up.reshape(-1, cols), dout.reshape(-1, cols)
    out = empty(gate)
    grid = lambda meta: (gate.shape[0], triton.cdiv(cols, meta["BLOCK"]))  # noqa: E731 (as projects write it)
    _glu_fwd[grid](gate, up, out, strides(gate)[0], cols, silu if kind == "silu" else gelu_tanh, BLOCK=128)
    backward = _swiglu_bwd if kind == "silu" else _geglu_bwd
    backward[grid](dout, gate, up, strides(gate)[0], cols, BLOCK=128)
    return out.reshape(shape), gate.reshape(shape), up.reshape(shape)


def glu_reference(gate, up, dout, kind):
    if kind == "silu":
        s = 1 / (1 + np.exp(-gate))
        value, slope = gate * s, s * (1 + gate * (1 - s))
    else:
        t = np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))
        inner = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * gate**2)
        value, slope = 0.5 * gate * (1 + t), 0.5 * (1 + t) + 0.5 * gate * (1 - t**2) * inner
    return value * up, dout * up * slope, dout * value


def glu_inputs(rng, kind, *shape, dtype=np.float32):
    return {**{name: normal(rng, *shape, dtype=dtype) for name in ("gate", "up", "dout")}, "kind": kind}


specimen(
    "glu", glu, glu_reference, 1e-5, 1e-5,
    silu=lambda rng: glu_inputs(rng, "silu", 3, 5, 200),
    gelu=lambda rng: glu_inputs(rng, "gelu", 7, 129),
)  # fmt: skip
specimen(
    "glu", glu, glu_reference, 3e-2, 1e-2,
    bf16=lambda rng: glu_inputs(rng, "gelu", 4, 256, dtype="bfloat16"),
    fp16=lambda rng: glu_inputs(rng, "silu", 4, 100, dtype=np.float16),
)  # fmt: skip


@triton.jit
def _dropout(x_ptr, y_ptr, n_elements, p, seed, BLOCK_SIZE: tl.constexpr):
    offsets = tl.program_id(axis=0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    keep = tl.rand(seed, offsets) > p
    tl.store(y_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=mask)


def dropout(x, dy, p, seed):
    """Returns the results of the forward and the backward pass."""
    y, dx, n = empty(x), empty(x), x.shape[0]
    grid = (triton.cdiv(n, 256),)
    _dropout[grid](x, y, n, p, seed, BLOCK_SIZE=256)
    _dropout[grid](dy, dx, n, p, seed, BLOCK_SIZE=256)
    return y, dx


def dropout_reference(x, dy, p, seed):
    """Philox 4x32-10 in Python integers."""
    low = 0xFFFFFFFF
    keep = []
    for offset in range(len(x)):
        counter, key = [offset, 0, 0, 0], [seed & low, seed >> 32 & low]
        for _ in range(10):
            a, b = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
            counter = [b >> 32 ^ counter[1] ^ key[0], b & low, a >> 32 ^ counter[3] ^ key[1], a & low]
            key = [key[0] + 0x9E3779B9 & low, key[1] + 0xBB67AE85 & low]
        word = counter[0] - (1 << 32) if counter[0] >> 31 else counter[0]
        keep.append((-word - 1 if word < 0 else word) * 4.6566127342e-10 > p)
    keep = np.array(keep)
    return np.where(keep, x / (1 - p), 0), np.where(keep, dy / (1 - p), 0)


specimen(
    "dropout", dropout, dropout_reference,
    small=lambda rng: {"x": normal(rng, 1000), "dy": normal(rng, 1000), "p": 0.3, "seed": int(integers(rng, 0, 2**31 - 1)[()])},
    long_seed=lambda rng: {"x": normal(rng, 300), "dy": normal(rng, 300), "p": 0.5, "seed": 0x123456789ABC},
)  # fmt: skip
