"""`matmul`: a product of any matrices by the kernel, tile, warps and stages that suit them, so that nothing need be searched.

From Hopper on arrays that tensor descriptors describe go that way, others by pointers, as everything does elsewhere; results too small
for all multiprocessors are split along K. Hopper's instruction takes operands that are not of 16 bits along K only, one of 32 bits aside:
large ones that are stored the other way are transposed first, which takes less time than the product would lose.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blocknb.kernels.descriptors import by_descriptors
from blocknb.kernels.matmul import by_pointers
from blocknb.kernels.operands import ALIGNMENT, MatmulProblem
from blocknb.kernels.shapes import TileShape, choose, without_turns
from blocknb.kernels.split_k import by_parts
from blocknb.kernels.strides import device, dtype_name, empty
from blocknb.kernels.transpose import transpose

DESCRIPTORS_FROM = 90  # the compute capability from which on something is gained by them

LEAST_TRANSPOSED = 1024  # of sizes: where turning an operand pays
ALONE = (128, 128, 4)  # the tile and warps that leave no registers for an operand


def suited(p: MatmulProblem, t: TileShape) -> tuple[MatmulProblem, TileShape, bool]:
    """The same product of described arrays as Hopper's instruction takes operands, the tile, and whether its kernel is to add up the
    transposed result.

    What is not of 16 bits it reads from shared memory along K only. The first operand, if it has 32 bits, may lie along either axis, since
    it may come from registers; the second one is the first of the transposed product. The other is transposed, and so are large operands
    of 8 bits.
    """
    a_turned, b_turned = p.a_strides[2] != 1, p.b_strides[1] != 1
    if p.itemsize != 4 or p.precision != "tf32" or p.batched or not (a_turned or b_turned):
        return along_k(p), t, False
    swapped = b_turned and (not a_turned or p.m <= p.n)
    m, n = (p.n, p.m) if swapped else (p.m, p.n)
    found = choose(m, n, p.k, p.itemsize, device(p.a))
    found = without_turns(found, p.itemsize, device(p.a)) if n > ALONE[1] else found
    if (found.m, found.n, found.num_warps) == ALONE:
        return along_k(p), t, False
    if a_turned and b_turned:
        half = along_k(p, a=swapped, b=not swapped)
        if half is p:
            return p, t, False
        p = half
    return p, found._replace(m=found.n, n=found.m) if swapped else found, swapped


def along_k(p: MatmulProblem, a: bool = True, b: bool = True) -> MatmulProblem:
    """The same product of described arrays, large operands of 8 and 32 bits (`a`, `b`: which) copied so that elements along K lie side by
    side."""
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
    """out = activation(a @ b * a_scale * b_scale + bias) for (M, K) by (K, N), or batches of them; returns `out`, a new array if None.

    Operands are float16, bfloat16, float32, float64, int8 or 8-bit floats with any strides, added up in fp32, int32 or float64; `out`
    is of any dtype, by default (`out_dtype`) that of the operands, int32 of int8 and bfloat16 of 8-bit floats. `bias` is a vector of
    N elements; `a_scale` and `b_scale` are fp32, of one element each or of the M rows of a and the N columns of b; `activation` is
    "relu", "leaky_relu", "silu", "gelu" or "". fp32 is multiplied as `precision` says: "tf32", "tf32x3" or "ieee" (by a CPU always as
    the last). `tile` (M, N, K of a program), `num_warps` and `num_stages` are chosen by shape, dtype and device unless given. Raises
    ValueError where arrays do not fit each other.
    """
    p = MatmulProblem.of(
        a, b, out, bias=bias, activation=activation, a_scale=a_scale, b_scale=b_scale, out_dtype=out_dtype, precision=precision
    )  # fmt: skip
    if p.empty:
        return p.out
    t = p.tile(tile, num_warps, num_stages, splittable=not p.batched)
    if t.splits > 1:
        return by_parts(p, t, group)
    if device(a).capability >= DESCRIPTORS_FROM and not isinstance(p.blocks, str):
        p, t, swapped = suited(p, t) if tile is None else (along_k(p), t, False)
        return by_descriptors(p, t, group, swapped=swapped)
    return by_pointers(p, t, group)
