"""SwiGLU, rotary embeddings and dropout: kernels that read their input once and are bound by memory bandwidth."""

from __future__ import annotations

import math
from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.rows import matrix
from blocknb.kernels.strides import strides

MOST = 1 << 30  # elements per row, so that 32-bit indices suffice


@blocknb.kernel
def swiglu_kernel(gate, up, out, gate_row, up_row, out_row, n, blocks, BLOCK: bl.constexpr):
    """Computes one block of a row per program, `blocks` per row; neighbouring programs access neighbouring addresses."""
    WIDE: bl.constexpr = bl.float64 if gate.dtype.element_ty == bl.float64 else bl.float32
    row = (bl.program_id(0) // blocks).to(bl.int64)
    columns = bl.program_id(0) % blocks * BLOCK + bl.arange(0, BLOCK)
    inside = columns < n
    g = bl.load(gate + row * gate_row + columns, mask=inside, other=0.0).to(WIDE)
    u = bl.load(up + row * up_row + columns, mask=inside, other=0.0).to(WIDE)
    bl.store(out + row * out_row + columns, g * bl.sigmoid(g) * u, mask=inside)


@blocknb.kernel
def swiglu_backward_kernel(
    gate, up, dout, dgate, dup, gate_row, up_row, dout_row, dgate_row, dup_row, n, blocks, BLOCK: bl.constexpr, out=None,
    out_row=0,
):  # fmt: skip
    """Computes the gradients of one block of a row per program, and with `out` the result again."""
    WIDE: bl.constexpr = bl.float64 if gate.dtype.element_ty == bl.float64 else bl.float32
    row = (bl.program_id(0) // blocks).to(bl.int64)
    columns = bl.program_id(0) % blocks * BLOCK + bl.arange(0, BLOCK)
    inside = columns < n
    g = bl.load(gate + row * gate_row + columns, mask=inside, other=0.0).to(WIDE)
    u = bl.load(up + row * up_row + columns, mask=inside, other=0.0).to(WIDE)
    d = bl.load(dout + row * dout_row + columns, mask=inside, other=0.0).to(WIDE)
    s = bl.sigmoid(g)
    bl.store(dgate + row * dgate_row + columns, d * u * s * (1.0 + g * (1.0 - s)), mask=inside)
    bl.store(dup + row * dup_row + columns, d * g * s, mask=inside)
    if out is not None:
        bl.store(out + row * out_row + columns, g * s * u, mask=inside)


@blocknb.kernel
def rope_kernel(
    x, cosines, sines, out, x_row, x_head, out_row, out_head, heads, half,
    BACKWARD: bl.constexpr, HEADS: bl.constexpr, BLOCK: bl.constexpr,
):  # fmt: skip
    """Rotates the pairs (i, i + half) of all heads at one position by the same angles."""
    WIDE: bl.constexpr = bl.float64 if x.dtype.element_ty == bl.float64 else bl.float32
    row = bl.program_id(0).to(bl.int64)
    head = bl.program_id(1) * HEADS + bl.arange(0, HEADS)
    columns = bl.arange(0, BLOCK)
    cosine = bl.load(cosines + row * half + columns, mask=columns < half, other=0.0).to(WIDE)[None, :]
    sine = bl.load(sines + row * half + columns, mask=columns < half, other=0.0).to(WIDE)[None, :]
    if BACKWARD:
        sine = -sine
    inside = (head < heads)[:, None] & (columns < half)[None, :]
    first = row * x_row + head[:, None] * x_head + columns[None, :]
    a = bl.load(x + first, mask=inside, other=0.0).to(WIDE)
    b = bl.load(x + first + half, mask=inside, other=0.0).to(WIDE)
    at = row * out_row + head[:, None] * out_head + columns[None, :]
    bl.store(out + at, a * cosine - b * sine, mask=inside)
    bl.store(out + at + half, b * cosine + a * sine, mask=inside)


@blocknb.kernel
def dropout_kernel(x, out, n, p, seed, BLOCK: bl.constexpr):
    """Drops elements at random. The backward pass draws the same numbers from the same seed; a run of Philox gives four."""
    first, second, third, fourth = bl.rand4x(
        seed, bl.program_id(0).to(bl.int64) * (BLOCK // 4) + bl.arange(0, BLOCK // 4)
    )
    draws = bl.join(bl.join(first, second), bl.join(third, fourth))
    offsets = bl.program_id(0).to(bl.int64) * BLOCK + bl.arange(0, BLOCK)
    inside = offsets < n
    kept = bl.reshape(draws, (BLOCK,)) >= p
    values = bl.load(x + offsets, mask=inside, other=0.0).to(bl.float32)
    bl.store(out + offsets, bl.where(kept, values * (1.0 / (1.0 - p)), 0.0), mask=inside)


def swiglu(gate: Any, up: Any, out: Any, *, block: int = 1024, num_warps: int = 4) -> Any:
    """out = gate sigmoid(gate) up for matrices (M, N) with contiguous rows, in fp32 arithmetic; returns `out` (Shazeer 2020).

    Raises ValueError for other shapes and strides.
    """
    m, n = common_shape(gate=gate, up=up, out=out)
    blocks = blocknb.cdiv(n, block)
    swiglu_kernel[(m * blocks,)](
        gate, up, out, strides(gate)[0], strides(up)[0], strides(out)[0], n, blocks, BLOCK=block, num_warps=num_warps
    )
    return out


def swiglu_backward(
    gate: Any, up: Any, dout: Any, dgate: Any, dup: Any, out: Any = None, *, block: int = 1024, num_warps: int = 4
) -> tuple[Any, Any]:
    """Writes the gradients dgate and dup (M, N) from dout (M, N); returns both. `out` receives the result of the forward pass again, so
    that it need not be kept. Raises as `swiglu` does."""
    arrays = {"gate": gate, "up": up, "dout": dout, "dgate": dgate, "dup": dup}
    again = {} if out is None else {"out": out}
    m, n = common_shape(**arrays, **again)
    blocks = blocknb.cdiv(n, block)
    more = {} if out is None else {"out": out, "out_row": strides(out)[0]}
    swiglu_backward_kernel[(m * blocks,)](
        *arrays.values(), *(strides(a)[0] for a in arrays.values()), n, blocks, BLOCK=block, num_warps=num_warps, **more
    )
    return dgate, dup


def rope(x: Any, cosines: Any, sines: Any, out: Any, *, backward: bool = False, num_warps: int = 4) -> Any:
    """Rotary position embedding (Su et al. 2021): rotates the pairs (i, i + D/2) of each head by the angles of their position.

    x and out are (positions, heads, D) with contiguous last axes and even D; out may be x. cosines and sines are contiguous (positions,
    D/2). `backward` rotates the other way, which gives the gradient. Returns `out`. Raises ValueError for other shapes.
    """
    if len(x.shape) != 3 or tuple(out.shape) != tuple(x.shape) or x.shape[2] % 2:
        raise ValueError(f"x and out must be (positions, heads, even), not {tuple(x.shape)} and {tuple(out.shape)}")
    positions, heads, width = x.shape
    half = width // 2
    for array, name in ((cosines, "cosines"), (sines, "sines")):
        if (
            tuple(array.shape) != (positions, half)
            or strides(array)[0] != half
            or (half > 1 and strides(array)[1] != 1)
        ):
            raise ValueError(f"{name} must be contiguous, of shape {(positions, half)}, not {tuple(array.shape)}")
    for array, name in ((x, "x"), (out, "out")):
        if width > 1 and strides(array)[2] != 1:
            raise ValueError(f"the last axis of {name} must be contiguous; its strides are {strides(array)}")
    block = blocknb.next_power_of_2(half)
    heads_per_program = min(blocknb.next_power_of_2(heads), max(1, 2048 // block))
    rope_kernel[(positions, blocknb.cdiv(heads, heads_per_program))](
        x, cosines, sines, out, *strides(x)[:2], *strides(out)[:2], heads, half,
        BACKWARD=backward, HEADS=heads_per_program, BLOCK=block, num_warps=num_warps,
    )  # fmt: skip
    return out


def dropout(x: Any, out: Any, p: float, seed: int, *, block: int = 1024, num_warps: int = 4) -> Any:
    """out = x / (1 - p) where a random number of the seed (Philox, four per run) is at least p, else 0; returns `out`.

    The arrays are contiguous and of one shape. Given the gradient for out, the same call gives the gradient for x. Raises ValueError
    unless 0 <= p < 1 and the shapes agree.
    """
    if not 0 <= p < 1:
        raise ValueError(f"p must be at least 0 and below 1, not {p}")
    if tuple(x.shape) != tuple(out.shape):
        raise ValueError(f"shapes differ: {tuple(x.shape)} and {tuple(out.shape)}")
    n = math.prod(x.shape)
    dropout_kernel[(blocknb.cdiv(n, block),)](x, out, n, p, seed, BLOCK=block, num_warps=num_warps)
    return out


def common_shape(**arrays: Any) -> tuple[int, int]:
    """The common shape of the matrices; a single row if all are contiguous."""
    (first, like), *others = arrays.items()
    m, n = matrix(like, first)
    for name, array in others:
        matrix(array, name, like=like)
    flat = m * n <= MOST and all(m <= 1 or strides(array)[0] == n for array in arrays.values())
    return (1, m * n) if flat else (m, n)
