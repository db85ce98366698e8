"""Rotary position embedding (Su et al. 2021) of queries and keys in one launch, with any strides.

One program has one position, and rotates the pairs (i, i + D/2) of all heads of q and of k by the same angles.
"""

from __future__ import annotations

from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.strides import strides

TILE = 4096  # elements of heads that a program rotates at a time, at most


@blocknb.kernel
def load_heads(x, begin, heads, half, x_head, HEADS: bl.constexpr, BLOCK: bl.constexpr):
    """The first and the second halves of HEADS heads of one position, (HEADS, BLOCK) each; x points to its first head."""
    WIDE: bl.constexpr = bl.float64 if x.dtype.element_ty == bl.float64 else bl.float32
    head, columns = begin + bl.arange(0, HEADS), bl.arange(0, BLOCK)
    inside = (head < heads)[:, None] & (columns < half)[None, :]
    first = x + head[:, None] * x_head + columns[None, :]
    return bl.load(first, mask=inside, other=0.0).to(WIDE), bl.load(first + half, mask=inside, other=0.0).to(WIDE)


@blocknb.kernel
def store_rotated(
    a, b, out, cos, sin, begin, heads, half, out_head, BACKWARD: bl.constexpr, HEADS: bl.constexpr, BLOCK: bl.constexpr
):
    """Stores the halves a and b of HEADS heads rotated; cos and sin point to the angles of the position.

    Every thread loads the angles of its own columns, which the L1 cache holds. Loaded once per program, they would have to be exchanged
    through shared memory before the first product."""
    head, columns = begin + bl.arange(0, HEADS), bl.arange(0, BLOCK)
    inside = (head < heads)[:, None] & (columns < half)[None, :]
    angle = columns[None, :] + bl.zeros((HEADS, 1), bl.int32)
    cosine = bl.load(cos + angle, mask=inside, other=0.0).to(a.dtype)
    sine = bl.load(sin + angle, mask=inside, other=0.0).to(a.dtype)
    if BACKWARD:
        sine = -sine
    target = out + head[:, None] * out_head + columns[None, :]
    bl.store(target, a * cosine - b * sine, mask=inside)
    bl.store(target + half, b * cosine + a * sine, mask=inside)


@blocknb.kernel
def rotary_kernel(
    q, k, cos, sin, q_out, k_out, q_heads, k_heads, half, positions,
    q_batch, q_row, q_head, k_batch, k_row, k_head, cos_batch, cos_row, sin_batch, sin_row, q_out_row, q_out_head, k_out_row, k_out_head,
    BACKWARD: bl.constexpr, WHOLE: bl.constexpr, Q_HEADS: bl.constexpr, K_HEADS: bl.constexpr, BLOCK: bl.constexpr,
):  # fmt: skip
    """Rotates q and k at one position of one batch. WHOLE: all heads fit into one tile, and both are loaded before the first store."""
    at = bl.program_id(0).to(bl.int64)
    batch, row = (bl.program_id(0) // positions).to(bl.int64), (bl.program_id(0) % positions).to(bl.int64)
    cosines, sines = cos + batch * cos_batch + row * cos_row, sin + batch * sin_batch + row * sin_row
    of_q, of_k = q + batch * q_batch + row * q_row, k + batch * k_batch + row * k_row
    to_q, to_k = q_out + at * q_out_row, k_out + at * k_out_row
    if WHOLE:
        a, b = load_heads(of_q, 0, q_heads, half, q_head, Q_HEADS, BLOCK)
        c, d = load_heads(of_k, 0, k_heads, half, k_head, K_HEADS, BLOCK)
        store_rotated(a, b, to_q, cosines, sines, 0, q_heads, half, q_out_head, BACKWARD, Q_HEADS, BLOCK)
        store_rotated(c, d, to_k, cosines, sines, 0, k_heads, half, k_out_head, BACKWARD, K_HEADS, BLOCK)
    else:
        for begin in range(0, q_heads, Q_HEADS):
            a, b = load_heads(of_q, begin, q_heads, half, q_head, Q_HEADS, BLOCK)
            store_rotated(a, b, to_q, cosines, sines, begin, q_heads, half, q_out_head, BACKWARD, Q_HEADS, BLOCK)
        for begin in range(0, k_heads, K_HEADS):
            c, d = load_heads(of_k, begin, k_heads, half, k_head, K_HEADS, BLOCK)
            store_rotated(c, d, to_k, cosines, sines, begin, k_heads, half, k_out_head, BACKWARD, K_HEADS, BLOCK)


def rotary(q: Any, k: Any, cos: Any, sin: Any, q_out: Any, k_out: Any, *, backward: bool = False) -> None:
    """Rotates q (B, T, H, D) and k (B, T, K, D) by the angles of their positions into q_out and k_out, contiguous.

    cos and sin are (B or 1, T, at least D/2); only the first D/2 columns are read. Last axes are contiguous, and D is even. `backward`
    rotates the other way, which gives the gradient. Raises ValueError for other shapes and strides.
    """
    batches, positions, heads, width = q.shape
    half = width // 2
    if tuple(k.shape[:2]) != (batches, positions) or k.shape[3] != width or width % 2:
        raise ValueError(
            f"q {tuple(q.shape)} and k {tuple(k.shape)} must agree but for their heads, and their last axis be even"
        )
    for array, like, name in ((q, q, "q"), (k, k, "k"), (q_out, q, "q_out"), (k_out, k, "k_out")):
        if tuple(array.shape) != tuple(like.shape) or (width > 1 and strides(array)[3] != 1):
            raise ValueError(f"{name} must have the shape {tuple(like.shape)} and a contiguous last axis")
    for array, name in ((cos, "cos"), (sin, "sin")):
        fits = len(array.shape) == 3 and array.shape[0] in (1, batches) and array.shape[1] == positions
        if not fits or array.shape[2] < half or (half > 1 and strides(array)[2] != 1):
            raise ValueError(f"{name} must be ({batches} or 1, {positions}, {half}), not {tuple(array.shape)}")
    if not batches * positions * half:
        return
    block = blocknb.next_power_of_2(half)
    tiles = [min(blocknb.next_power_of_2(n), max(1, TILE // (2 * block))) for n in (heads, k.shape[2])]
    of_batch = [strides(a)[0] if a.shape[0] > 1 else 0 for a in (cos, sin)]
    rotary_kernel[(batches * positions,)](
        q, k, cos, sin, q_out, k_out, heads, k.shape[2], half, positions, *strides(q)[:3], *strides(k)[:3],
        of_batch[0], strides(cos)[1], of_batch[1], strides(sin)[1], *strides(q_out)[1:3], *strides(k_out)[1:3],
        BACKWARD=backward, WHOLE=tiles[0] >= heads and tiles[1] >= k.shape[2], Q_HEADS=tiles[0], K_HEADS=tiles[1], BLOCK=block, num_warps=4,
    )  # fmt: skip
