"""`matmul`: a product of any matrices, with the kernel, tile, warps and stages chosen by shape, dtype and device.

From Hopper on, arrays that tensor descriptors can describe use the descriptor kernels. Operands whose rows begin inside of a line of 128
bytes are copied first where that pays (`shapes.plan`). Other arrays and other devices use pointers. A result too small for all
multiprocessors is split along K, and a product of a row vector reads the matrix once (`matvec`). Hopper's wgmma reads 8-bit and 32-bit
operands from shared memory only if K is contiguous. The first 32-bit operand is an exception, since it can come from registers. So large
operands that are stored the other way are transposed first, which costs less than the product would lose.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blocknb.kernels import plans
from blocknb.kernels.descriptors import by_descriptors
from blocknb.kernels.last_wave import by_last_wave
from blocknb.kernels.matmul import by_pointers
from blocknb.kernels.matvec import matvec
from blocknb.kernels.operands import ALIGNMENT, DESCRIPTORS_FROM, MatmulProblem
from blocknb.kernels.padding import padded
from blocknb.kernels.plans import ITEM
from blocknb.kernels.shapes import FEW_ROWS, SWAPPED_ROWS, OperandRows, Plan, TileShape, choose, plan, without_ping_pong
from blocknb.kernels.split_k import by_parts
from blocknb.kernels.strides import device, dtype_name, empty
from blocknb.kernels.transpose import transpose
from blocknb.kernels.wide_tiles import by_wide_tiles

LEAST_TRANSPOSED = 1024  # size from which transposing an operand pays
FULL_REGISTER_TILE = (128, 128, 4)  # the tile and warps that leave no registers for an operand


def rewritten_for_wgmma(p: MatmulProblem, t: TileShape) -> tuple[MatmulProblem, TileShape, bool]:
    """Rewrites a product of described arrays for wgmma: the product, the tile, and whether the kernel computes the transposed result.

    wgmma reads operands that are not 16 bits wide from shared memory along K only. A first operand of 32 bits may be stored along either
    axis, since it can come from registers; the second operand becomes the first one of the transposed product. Any other operand of 32
    bits and large operands of 8 bits are transposed in memory.
    """
    a_transposed, b_transposed = p.a_strides[2] != 1, p.b_strides[1] != 1
    if p.itemsize != 4 or p.precision != "tf32" or p.batched or not (a_transposed or b_transposed):
        return along_k(p), t, False
    swapped = b_transposed and (not a_transposed or p.m <= p.n)
    m, n = (p.n, p.m) if swapped else (p.m, p.n)
    found = choose(m, n, p.k, p.itemsize, device(p.a))
    found = without_ping_pong(found, p.itemsize, device(p.a)) if n > FULL_REGISTER_TILE[1] else found
    if (found.m, found.n, found.num_warps) == FULL_REGISTER_TILE:
        return along_k(p), t, False
    if a_transposed and b_transposed:
        half = along_k(p, a=swapped, b=not swapped)
        if half is p:
            return p, t, False
        p = half
    return p, found._replace(m=found.n, n=found.m) if swapped else found, swapped


def along_k(p: MatmulProblem, a: bool = True, b: bool = True) -> MatmulProblem:
    """The same product with large 8-bit and 32-bit operands (`a`, `b`: which of them) copied so that K is contiguous."""
    size, large = p.itemsize, min(p.m, p.n, p.k) >= LEAST_TRANSPOSED and len(p.out.shape) == 2
    if size not in (1, 4) or not large or p.precision != "tf32" or p.k * size % ALIGNMENT:
        return p
    if a and p.a_strides[2] != 1:
        p = replace(p, a=transpose(p.a.T, empty(p.a, (p.m, p.k), dtype_name(p.a))), a_strides=(0, p.k, 1))
    if b and p.b_strides[1] != 1:
        p = replace(p, b=transpose(p.b, empty(p.b, (p.n, p.k), dtype_name(p.b))), b_strides=(0, 1, p.k))
    return p


def matmul(
    a: Any, b: Any, out: Any = None, *, bias: Any = None, activation: str = "", a_scale: Any = None, b_scale: Any = None,
    out_dtype: str = "", precision: str = "tf32", tile: tuple[int, int, int] | None = None, group: int = 8,
    num_warps: int | None = None, num_stages: int | None = None,
) -> Any:  # fmt: skip
    """Computes out = activation(a @ b * a_scale * b_scale + bias) for (M, K) by (K, N), or batches of them; returns `out`, a new array for
    None.

    Operands are float16, bfloat16, float32, float64, int8 or 8-bit floats with any strides; sums are fp32, int32 or float64. `out` has
    any dtype. Its default (`out_dtype`) is that of the operands, int32 for int8, and bfloat16 for 8-bit floats. `bias` is a vector of N
    elements. `a_scale` and `b_scale` are fp32, of one element each, or of the M rows of a and the N columns of b. `activation` is "relu",
    "leaky_relu", "silu", "gelu" or "". `precision` applies to fp32: "tf32", "tf32x3" or "ieee" (a CPU always uses "ieee"). `tile` (M, N,
    K of a program), `num_warps` and `num_stages` are chosen by shape, dtype and device by default. Raises ValueError for arrays that do
    not fit each other.
    """
    p = MatmulProblem.of(
        a, b, out, bias=bias, activation=activation, a_scale=a_scale, b_scale=b_scale, out_dtype=out_dtype, precision=precision
    )  # fmt: skip
    if p.empty:
        return p.out
    by_tma = device(a).capability >= DESCRIPTORS_FROM
    if by_tma and p.is_vector and tile is None and num_warps is None and num_stages is None:
        return matvec(p)
    if by_tma and tile is None and not p.batched:
        chosen = planned(p)
        named = {"num_warps": num_warps, "num_stages": num_stages}
        given = {name: value for name, value in named.items() if value is not None}
        return carry_out(p, chosen._replace(tile=chosen.tile._replace(**given)), group)
    t = p.tile(tile, num_warps, num_stages, splittable=not p.batched)
    if t.splits > 1:
        return by_parts(p, t, group)
    if by_tma and not isinstance(p.blocks if p.batched else p.operand_blocks, str):
        p, t, swapped = rewritten_for_wgmma(p, t) if tile is None else (along_k(p), t, False)
        return by_descriptors(p, t, group, swapped=swapped)
    return by_pointers(p, t, group)


def planned(p: MatmulProblem) -> Plan:
    """The plan of a single product on a device with TMA: by measured times of 16-bit products on Hopper, else by the general model."""
    on = device(p.a)
    if (
        on.capability == DESCRIPTORS_FROM
        and p.itemsize == ITEM
        and p.m > FEW_ROWS.m
        and p.k
        and OperandRows.POINTERS_ONLY not in p.operand_rows
    ):
        return plans.plan(p.m, p.n, p.k, on, p.operand_rows, p.aligned, p.along_k)
    return plan(p.m, p.n, p.k, p.itemsize, on, p.operand_rows, True)


def carry_out(p: MatmulProblem, chosen: Plan, group: int = 8) -> Any:
    """Computes a single non-empty product on a device with TMA as planned; returns its result."""
    p, t, swapped = padded(p, *chosen.copied), chosen.tile, chosen.swapped
    if isinstance(p.operand_blocks, str):
        return by_parts(p, t, group) if t.splits > 1 else by_pointers(p, t, group)
    if chosen.last_wave:
        return by_last_wave(p, t, group)
    if t.splits > 1:
        return by_parts(p, t, group)
    if t.n & (t.n - 1) or (swapped and t.m > SWAPPED_ROWS):
        return by_wide_tiles(p, t, group, swapped)
    if not swapped:
        p, t, swapped = rewritten_for_wgmma(p, t)
    return by_descriptors(p, t, group, swapped=swapped)
