"""GEGLU: out = gelu(gate) up (Shazeer 2020), with the exact GELU or its approximation by tanh (Hendrycks, Gimpel 2016), and gradients."""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.elementwise import common_shape
from blocknb.kernels.strides import strides

SQRT_HALF = bl.constexpr(0.7071067811865476)
SQRT_2_BY_PI = bl.constexpr(0.7978845608028654)
INVERSE_SQRT_2PI = bl.constexpr(0.3989422804014327)
CUBIC = bl.constexpr(0.044715)


@blocknb.kernel
def normal_part(g, TANH: bl.constexpr):
    """The factor of g in gelu(g), between 0 and 1."""
    if TANH:  # (1 + tanh(z)) / 2 = sigmoid(2 z)
        return bl.sigmoid(2.0 * SQRT_2_BY_PI * (g + CUBIC * g * g * g))
    return 0.5 * (1.0 + bl.erf(g * SQRT_HALF))


@blocknb.kernel
def geglu_kernel(gate, up, out, gate_row, up_row, out_row, n, blocks, TANH: bl.constexpr, BLOCK: bl.constexpr):
    """Computes one block of a row per program, `blocks` per row."""
    WIDE: bl.constexpr = bl.float64 if gate.dtype.element_ty == bl.float64 else bl.float32
    row = (bl.program_id(0) // blocks).to(bl.int64)
    columns = bl.program_id(0) % blocks * BLOCK + bl.arange(0, BLOCK)
    inside = columns < n
    g = bl.load(gate + row * gate_row + columns, mask=inside, other=0.0).to(WIDE)
    u = bl.load(up + row * up_row + columns, mask=inside, other=0.0).to(WIDE)
    bl.store(out + row * out_row + columns, g * normal_part(g, TANH) * u, mask=inside)


@blocknb.kernel
def geglu_backward_kernel(
    gate, up, dout, dgate, dup, gate_row, up_row, dout_row, dgate_row, dup_row, n, blocks, TANH: bl.constexpr,
    BLOCK: bl.constexpr, out=None, out_row=0,
):  # fmt: skip
    """Computes the gradients of one block of a row per program, and with `out` the result again."""
    WIDE: bl.constexpr = bl.float64 if gate.dtype.element_ty == bl.float64 else bl.float32
    row = (bl.program_id(0) // blocks).to(bl.int64)
    columns = bl.program_id(0) % blocks * BLOCK + bl.arange(0, BLOCK)
    inside = columns < n
    g = bl.load(gate + row * gate_row + columns, mask=inside, other=0.0).to(WIDE)
    u = bl.load(up + row * up_row + columns, mask=inside, other=0.0).to(WIDE)
    d = bl.load(dout + row * dout_row + columns, mask=inside, other=0.0).to(WIDE)
    part = normal_part(g, TANH)
    if TANH:
        slope = 2.0 * part * (1.0 - part) * SQRT_2_BY_PI * (1.0 + 3.0 * CUBIC * g * g)
    else:
        slope = INVERSE_SQRT_2PI * bl.exp(-0.5 * g * g)
    bl.store(dgate + row * dgate_row + columns, d * u * (part + g * slope), mask=inside)
    bl.store(dup + row * dup_row + columns, d * g * part, mask=inside)
    if out is not None:
        bl.store(out + row * out_row + columns, g * part * u, mask=inside)


def geglu(gate: Any, up: Any, out: Any, *, tanh: bool = False, block: int = 1024, num_warps: int = 4) -> Any:
    """out = gelu(gate) up for matrices (M, N) with contiguous rows, in fp32 arithmetic; returns `out`. `tanh` chooses the approximation.

    Raises ValueError for other shapes and strides."""
    m, n = common_shape(gate=gate, up=up, out=out)
    blocks = blocknb.cdiv(n, block)
    geglu_kernel[(m * blocks,)](
        gate, up, out, strides(gate)[0], strides(up)[0], strides(out)[0], n, blocks, TANH=tanh, BLOCK=block,
        num_warps=num_warps,
    )  # fmt: skip
    return out


def geglu_backward(
    gate: Any, up: Any, dout: Any, dgate: Any, dup: Any, out: Any = None, *, tanh: bool = False, block: int = 1024,
    num_warps: int = 4,
) -> tuple[Any, Any]:  # fmt: skip
    """Writes the gradients dgate and dup (M, N) from dout (M, N); returns both. `out` receives the result of the forward pass again, so
    that it need not be kept. Raises as `geglu` does."""
    arrays = {"gate": gate, "up": up, "dout": dout, "dgate": dgate, "dup": dup}
    again = {} if out is None else {"out": out}
    m, n = common_shape(**arrays, **again)
    blocks = blocknb.cdiv(n, block)
    more = {} if out is None else {"out": out, "out_row": strides(out)[0]}
    geglu_backward_kernel[(m * blocks,)](
        *arrays.values(), *(strides(a)[0] for a in arrays.values()), n, blocks, TANH=tanh, BLOCK=block,
        num_warps=num_warps, **more,
    )  # fmt: skip
    return dgate, dup
