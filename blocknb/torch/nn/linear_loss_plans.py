"""How the gradients of a fused linear cross entropy share memory: a plan in rows and classes, without tensors.

For x (M, H) and a weight (V, H), the unit of memory is the logits of a chunk of rows. A chunk has as many rows as have about M H logits,
rounded up to a power of two. Implementations that split the rows hold such a chunk, the gradient of x and that of the weight. The plan here
never needs more:

- Until a block of the weight's gradient is written, its memory keeps logits of the first H rows. They are not computed again.
- With the mean or the sum of the losses, the gradient of the losses is known in the forward pass. Groups of H rows then have their logits
  in this memory one after the other, and the gradient of x is one product per group. No sums of it exist.
- Otherwise the gradient of x is added up in fp32 for other rows. Half of them use the memory of the gradient of x itself, the others
  memory of their own.
- If the chunk is too small for that, the gradient of the last rows is one product per chunk. Its logits are computed once more.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_ELEMENTS = (
    1 << 24
)  # logits of one block; 32 MiB in 16 bits, which the L2 cache of a large GPU keeps until the next product
FEWEST, MOST = 1024, 16384  # classes per block
STATISTICS = 8  # elements of 16 bits per row for the losses, their gradients and the logsumexp


def wanted_block(rows: int) -> int:
    """The classes per block for a number of rows, before the limit of the memory."""
    wanted = max(FEWEST, min(MOST, BLOCK_ELEMENTS // max(rows, 1)))
    return wanted // 64 * 64 or wanted


def rows_of_chunk(m: int, h: int, v: int) -> int:
    """The rows of a chunk: M over ceil(V / H), rounded up to a power of two, at most M."""
    parts = -(-v // max(h, 1))
    rows = -(-m // max(parts, 1))
    return min(m, 1 << max(rows - 1, 0).bit_length())


def forward_block(rows: int, m: int, h: int, v: int) -> int:
    """The classes per block of the forward pass for `rows` of the M rows. Their logits take at most the memory of a chunk and of the
    gradient of x."""
    room = rows_of_chunk(m, h, v) * v + m * h - STATISTICS * m
    return _rounded(max(1, min(wanted_block(rows), v, room // max(rows, 1))))


def kept_rows(m: int, h: int) -> int:
    """The rows whose logits fit into the memory of the weight's gradient. An odd number would leave the others' memory unaligned."""
    return m if m <= h else h // 8 * 8


@dataclass(frozen=True)
class LossPlan:
    """The numbers of rows by how their gradient of x is computed, in the order of the rows. The logits of `kept` rows exist already. The
    gradients of `in_place` rows are added up in the memory of the gradient of x, those of `extra_memory` rows in other memory. `recomputed`
    rows are computed in chunks of `chunk` rows. `block` classes of all rows exist at a time; 0 without a pass over classes."""

    kept: int
    in_place: int
    extra_memory: int
    recomputed: int
    chunk: int
    block: int

    def elements(self, m: int, h: int, v: int, ratio: int) -> int:
        """The most elements in memory in addition to both gradients, in the dtype of x; a sum in fp32 takes `ratio` of them."""
        blocks = min(self.block, v) * m + self.extra_memory * h * ratio
        return max(blocks, min(self.chunk, self.recomputed) * v)


def loss_plan(
    m: int, h: int, v: int, kept: int, ratio: int, needs_x: bool, needs_weight: bool, early: bool = False
) -> LossPlan:
    """The plan of the backward pass. `ratio` is the size of a sum over that of an element: 2 for 16 bits, 1 for fp32 and fp64. `early`:
    the forward pass has computed the gradient of x for all rows but the kept ones."""
    room = max(rows_of_chunk(m, h, v) * v - STATISTICS * m, 1)
    chunk = max(room // max(v, 1), 1)
    rest, wanted = m - kept, min(wanted_block(m), v)
    if not needs_weight:
        return LossPlan(0, 0, 0, m, chunk, 0)
    if not needs_x:
        return LossPlan(kept, 0, 0, 0, chunk, _rounded(min(wanted, (room + m * h) // m)))
    if early:
        return LossPlan(kept, 0, 0, 0, chunk, _rounded(min(wanted, room // max(m, 1))))
    own = rest // ratio
    others = rest - own
    block = (room - others * h * ratio) // max(m, 1)
    if block >= min(FEWEST, wanted):
        return LossPlan(kept, own, others, 0, chunk, _rounded(min(wanted, block)))
    block = _rounded(min(wanted, room // 2 // max(m, 1)))
    extra = max(0, min(others, (room - block * m) // (h * ratio) // 64 * 64))
    return LossPlan(kept, own, extra, others - extra, chunk, block)


def _rounded(classes: int) -> int:
    return max(classes // 64 * 64 or classes, 1)
