"""Library functions that move elements, written in the language itself: join, split, sort, topk, histogram...

`join` selects between two tiles by the index on a new axis of size two. `_pick` is a reduction that keeps one index of an axis. Both are
free if the axis lies in a thread's registers. `sort` is a bitonic network (Batcher, 1968). Each step compares elements at distance 2^k
through `xor_shuffle`, and swaps them if needed. Both elements use the same comparison, so no element is lost, NaN included.
"""

from __future__ import annotations

from blocknb.language import surface as tl
from blocknb.language import target_info
from blocknb.language.constants import constexpr
from blocknb.language.library import inline, inline_method
from blocknb.language.types import int8, int16, int32, int64

# ruff: noqa: RUF005 (a kernel has no `*` inside a tuple)
# mypy: disable-error-code="operator,assignment"

#: Up to this number of comparisons, a sort on a GPU is fully unrolled. A larger one would take too long to compile.
WRITTEN_OUT = constexpr(1 << 19)
#: The integer of a float's width.
_INTEGERS = constexpr({8: int8, 16: int16, 32: int32, 64: int64})


def _log2(n):
    """Computed at compile time."""
    return n.bit_length() - 1


@inline
def _index(shape, axis):
    """The index along an axis, as a tile of the shape's rank that broadcasts to it."""
    index = tl.arange(0, shape[axis])
    for other in tl.static_range(len(shape)):
        if other != axis:
            index = tl.expand_dims(index, other)
    return index


@inline
def _keep_marked(a, marked_a, b, marked_b):
    return tl.where(marked_a, a, b), marked_a | marked_b


@inline
def _pick(x, axis, at):
    """The elements of x at one index of an axis, without that axis."""
    marked = tl.broadcast_to(_index(x.shape, axis) == at, x.shape)
    picked, _ = tl.reduce((x, marked), axis, _keep_marked)
    return picked


@inline
def join(a, b):
    """Joins two tiles, broadcast to one shape, along a new last axis of size two.

    Example:
        tl.join(tl.arange(0, 2), tl.arange(2, 4))  # [[0, 2], [1, 3]]
    """
    a, b = tl.broadcast(a, b)
    rank: constexpr = len(a.shape)
    first = _index((1,) * rank + (2,), rank) == 0
    return tl.where(first, tl.expand_dims(a, rank), tl.expand_dims(b, rank))


@inline_method
def split(a):
    """Splits a tile along its last axis, which has size two; the inverse of `join`.

    Example:
        a, b = tl.split(tl.reshape(tl.arange(0, 4), (2, 2)))
        a  # [0, 2]
        b  # [1, 3]
    """
    tl.static_assert(
        a.shape[-1] == 2, "split takes a tile whose last axis has size two; reshape first: x.reshape(..., 2)"
    )
    axis: constexpr = len(a.shape) - 1
    return _pick(a, axis, 0), _pick(a, axis, 1)


@inline
def interleave(a, b):
    """Interleaves the elements of two tiles along the last axis: a0, b0, a1, b1...

    Example:
        tl.interleave(tl.arange(0, 2), tl.arange(2, 4))  # [0, 2, 1, 3]
    """
    both = join(a, b)
    if len(both.shape) == 1:
        return both
    return tl.reshape(both, both.shape[:-2] + (2 * both.shape[-2],))


@inline
def cat(input, other, can_reorder=False, dim=0):
    """Concatenates two tiles of one shape along an axis, in order; `can_reorder` has no effect.

    Example:
        tl.cat(tl.arange(0, 2), tl.arange(2, 4))  # [0, 1, 2, 3]
    """
    rank: constexpr = len(input.shape)
    axis: constexpr = dim % rank
    both = tl.permute(join(input, other), tuple(range(axis)) + (rank,) + tuple(range(axis, rank)))
    return tl.reshape(both, input.shape[:axis] + (2 * input.shape[axis],) + input.shape[axis + 1 :])


@inline
def _stacked_dot(a, b, acc, input_precision, allow_tf32, max_num_imprecise_acc, out_dtype):
    """A batched product as one `dot` per pair of matrices, so that each may use tensor cores."""
    dtype = acc.dtype if acc is not None and out_dtype is None else out_dtype
    first = tl.dot(_pick(a, 0, 0), _pick(b, 0, 0), None, input_precision, allow_tf32, max_num_imprecise_acc, dtype)
    total = tl.broadcast_to(tl.expand_dims(first, 0), (a.shape[0],) + first.shape)
    for i in range(1, a.shape[0]):
        product = tl.dot(
            _pick(a, 0, i), _pick(b, 0, i), None, input_precision, allow_tf32, max_num_imprecise_acc, dtype
        )
        total = tl.where(_index(total.shape, 0) == i, tl.expand_dims(product, 0), total)
    return total if acc is None else total + acc


# -- sorting -----------------------------------------------------------------------------------------------------------------


@inline
def _exchange(x, axis, distance, falls):
    """Sorts pairs of elements at a distance: ascending, or descending where the mask `falls` holds."""
    other = tl.xor_shuffle(x, axis, distance)
    late = (_index(x.shape, axis) & distance) != 0
    return tl.where(late == falls, tl.minimum(x, other), tl.maximum(x, other))


@inline
def _merge(x, axis, size, falls):
    """Sorts aligned groups of `size` that rise and then fall (or the other way round)."""
    for step in tl.static_range(_log2(size)):
        x = _exchange(x, axis, size >> (step + 1), falls)
    return x


@inline
def _sort_groups(x, axis, size, falls):
    """Sorts aligned groups of `size` elements along the axis."""
    levels: constexpr = _log2(size)
    if target_info.is_cuda() and x.numel * levels * (levels + 1) // 2 > WRITTEN_OUT:
        x = _sort_groups_in_loops(x, axis, levels, falls)
    else:
        for level in tl.static_range(1, levels):
            x = _merge(x, axis, 2**level, (_index(x.shape, axis) & 2**level) != 0)
        x = _merge(x, axis, size, falls)
    return x


@inline
def _sort_groups_in_loops(x, axis, levels, falls):
    """The same network with its steps in loops, for large tiles. Every step goes through shared memory, and the code stays short."""
    at = _index(x.shape, axis) + tl.zeros(x.shape, int32)
    for level in range(1, levels + 1):
        falling = tl.where(level < levels, ((at >> level) & 1) != 0, falls)
        for step in range(level):
            distance = 1 << (level - 1 - step)
            other = tl.gather(x, at ^ distance, axis)
            late = (at & distance) != 0
            x = tl.where(late == falling, tl.minimum(x, other), tl.maximum(x, other))
    return x


@inline
def _keys(x):
    """Integers in the order of the elements: of floats the bits, those below the sign flipped where it is set. No two floats have one
    key, so that exchanges by minimum and maximum lose no element, NaN and -0 included."""
    if x.dtype.is_bool():
        return x.to(int32)
    if not x.dtype.is_floating():
        return x
    wide: constexpr = int64 if x.dtype.primitive_bitwidth == 64 else int32
    bits = x.to(_INTEGERS[x.dtype.primitive_bitwidth], bitcast=True).to(wide)
    return _flipped(bits, x.dtype.primitive_bitwidth)


@inline
def _flipped(bits, width):
    """Flips the bits below the sign of sign-extended numbers of that width where the sign is set."""
    return bits ^ ((bits >> width - 1) & 2 ** (width - 1) - 1)


@inline
def _elements(keys, dtype):
    """The elements of these keys."""
    if not dtype.is_floating():
        return keys.to(dtype)
    return _flipped(keys, dtype.primitive_bitwidth).to(_INTEGERS[dtype.primitive_bitwidth]).to(dtype, bitcast=True)


@inline_method
def sort(x, dim=None, descending=False):
    """Sorts the elements along an axis, by default the last, in ascending order, or descending. A NaN may end up anywhere.

    The result has the shape and the dtype of `x`.

    Example:
        tl.sort((tl.arange(0, 8) * 3) % 8)  # [0, 1, 2, 3, 4, 5, 6, 7]
    """
    axis: constexpr = (-1 if dim is None else dim) % len(x.shape)
    falls = (_index(x.shape, axis) < 0) ^ descending
    return _elements(_sort_groups(_keys(x), axis, x.shape[axis], falls), x.dtype)


@inline
def bitonic_merge(x, dim=None, descending=False):
    """Sorts elements along an axis, by default the last, that ascend and then descend, or the reverse.

    Example:
        i = tl.arange(0, 8)
        tl.bitonic_merge(tl.where(i < 4, i, 11 - i))  # [0, 1, 2, 3, 4, 5, 6, 7]
    """
    axis: constexpr = (-1 if dim is None else dim) % len(x.shape)
    keys = _merge(_keys(x), axis, x.shape[axis], (_index(x.shape, axis) < 0) ^ descending)
    return _elements(keys, x.dtype)


@inline
def topk(x, k, dim=None, descending=True):
    """Returns the k largest elements along an axis, by default the last, in descending order. k is a power of two.

    With `descending=False` it returns the k smallest, in ascending order. `k` and `descending` are known at compile time.

    Example:
        tl.topk((tl.arange(0, 8) * 3) % 8, 2)  # [7, 6]
        tl.topk((tl.arange(0, 8) * 3) % 8, 2, descending=False)  # [0, 1]
    """
    axis: constexpr = (-1 if dim is None else dim) % len(x.shape)
    tl.static_assert(k > 0 and k & (k - 1) == 0 and k <= x.shape[axis], "k is a power of two, at most the axis's size")
    before: constexpr = x.shape[:axis]
    after: constexpr = x.shape[axis + 1 :]
    groups: constexpr = x.shape[axis] // k
    dtype: constexpr = x.dtype
    x = tl.reshape(_keys(x), before + (groups, k) + after)
    x = _sort_groups(x, axis + 1, k, (_index(x.shape, axis + 1) < 0) ^ descending)
    for level in tl.static_range(_log2(groups)):
        pairs = tl.reshape(x, before + (groups >> (level + 1), 2, k) + after)
        a, b = _pick(pairs, axis + 1, 0), tl.flip(_pick(pairs, axis + 1, 1), axis + 1)
        # The k best of both; they descend and then ascend, or the reverse.
        x = tl.maximum(a, b) if descending else tl.minimum(a, b)
        x = _merge(x, axis + 1, k, (_index(x.shape, axis + 1) < 0) ^ descending)
    return _elements(tl.reshape(x, before + (k,) + after), dtype)


# -- histogram -----------------------------------------------------------------------------------------------------------------


@inline_method
def histogram(input, num_bins, mask=None):
    """Counts the elements of a row of integers that equal 0, 1, ... num_bins - 1, where the mask holds, as int32.

    `num_bins` is a power of two known at compile time. The result is int32, of shape (num_bins,).

    Example:
        tl.histogram(tl.arange(0, 8) // 3, 4)  # [3, 3, 2, 0]
    """
    tl.static_assert(len(input.shape) == 1, "histogram takes a tile with one axis; tl.ravel makes one")
    tl.static_assert(
        input.dtype.is_int() and not input.dtype.is_bool(),
        f"histogram counts integers, not {input.dtype}; convert with .to(tl.int32)",
    )
    group: constexpr = min(num_bins, 16)
    counts = tl.zeros((num_bins // group, group), int32)
    row = tl.arange(0, num_bins // group)[:, None]
    for start in range(0, num_bins, group):
        found = input[:, None] == start + tl.arange(0, group)[None, :]
        if mask is not None:
            found = found & tl.broadcast_to(mask != 0, input.shape)[:, None]
        counts = tl.where(row == start // group, tl.sum(found.to(int32), 0)[None, :], counts)
    return tl.reshape(counts, (num_bins,))
