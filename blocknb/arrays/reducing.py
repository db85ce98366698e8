"""`reduction` and `contraction`: results to which many blocks of Dask arrays contribute.

`reduction` computes a partial result per block, and combines them in a tree. The shape of the tree depends on the chunks only, not on the
order in which tasks end. So results are the same bit for bit in every run. `contraction` adds up products of blocks, in the order of the
chunks.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.arrays.block_calls import BlockCall
from blocknb.arrays.dask_import import checked_arrays
from blocknb.arrays.mapping import block_call, empty_like, new_name
from blocknb.errors import LaunchError


@dataclass(frozen=True)
class PartialCall:
    """A task of `reduction`: the partial result of one block. Its reduced axes have one element, and the axes of `shape` follow."""

    call: BlockCall
    axes: tuple[int, ...]
    shape: tuple[int, ...]

    def __call__(self, block: Any) -> Any:
        kept = tuple(n for axis, n in enumerate(block.shape) if axis not in self.axes)
        found = self.call.on([block], (*kept, *self.shape))
        return found.reshape(*(1 if axis in self.axes else n for axis, n in enumerate(block.shape)), *self.shape)


@dataclass(frozen=True)
class CombineCall:
    """A task of `reduction`: combines partial results, which it stacks along a new first axis."""

    call: BlockCall
    axes: tuple[int, ...]

    def __call__(self, block: Any) -> Any:
        others = [axis for axis in range(block.ndim) if axis not in self.axes]
        kept = tuple(block.shape[axis] for axis in others)
        stacked = block.transpose(*self.axes, *others).reshape(-1, *kept)
        return self.call.on([stacked], kept).reshape(
            tuple(1 if a in self.axes else n for a, n in enumerate(block.shape))
        )


def reduction(
    wrapper: Callable[..., Any],
    combine: Callable[..., Any],
    array: Any,
    *,
    axis: int | Sequence[int] | None = None,
    shape: int | Sequence[int] = (),
    dtype: Any = None,
    split_every: int = 8,
    device: str | None = None,
    limit: int | str | None = None,
) -> Any:
    """Reduces axes of a Dask array (all for None): `wrapper(block, out)` for each block, then `combine(partials, out)` in a tree.

    `out` has the axes of the block that are not reduced, followed by `shape`. So the sums of rows have `axis=1` and no shape, and a
    histogram has `shape=bins`. `partials` stacks up to `split_every` results along a new first axis (for several reduced axes, per axis).
    A wrapper also gets empty blocks, for which it stores the neutral element. The other arguments are those of `map_blocks`. Raises
    LaunchError as it does.
    """
    da = checked_arrays("reduction", (array,))
    axes = _axes(axis, array.ndim)
    more = (shape,) if isinstance(shape, int) else tuple(map(int, shape))
    if split_every < 2:
        raise LaunchError(
            f"split_every={split_every} combines nothing", hint="combine two or more partial results at once"
        )
    first, second = (block_call(one, [array], dtype, device, limit) for one in (wrapper, combine))
    meta = empty_like(array, first.dtype, array.ndim + len(more))
    sizes = [(1,) * len(chunks) if n in axes else chunks for n, chunks in enumerate(array.chunks)]
    found = da.map_blocks(
        PartialCall(first, axes, more),
        array,
        name=new_name(wrapper),
        dtype=first.dtype,
        chunks=(*sizes, *((n,) for n in more)),
        new_axis=list(range(array.ndim, array.ndim + len(more))) or None,
        meta=meta,
    )
    while any(found.numblocks[n] > 1 for n in axes):
        found = found.rechunk(dict.fromkeys(axes, split_every))
        sizes = [(1,) * len(chunks) if n in axes else chunks for n, chunks in enumerate(found.chunks)]
        found = da.map_blocks(
            CombineCall(second, axes), found, name=new_name(combine), dtype=first.dtype, chunks=tuple(sizes), meta=meta
        )
    return found.squeeze(axis=axes)


def _axes(axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    wanted = range(ndim) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    if any(not -ndim <= one < ndim for one in wanted):
        raise LaunchError(
            f"axis={axis!r} is no axis of an array of {ndim} axes", hint=f"write {1 - ndim} to {ndim - 1}"
        )
    return tuple(sorted({one % ndim for one in wanted}))


@dataclass(frozen=True)
class ContractionCall:
    """A task of `contraction`: one block of the result. `terms` are the indices of the arrays, `result` those of the result."""

    call: BlockCall
    terms: tuple[str, ...]
    result: str
    summed: str

    def __call__(self, *given: Any) -> Any:
        rows = [blocks if self.summed in term else [blocks] for blocks, term in zip(given, self.terms, strict=True)]
        count = max(map(len, rows))
        pairs = [tuple(row[i if len(row) > 1 else 0] for row in rows) for i in range(count)]
        sizes = {
            index: n
            for block, term in zip(pairs[0], self.terms, strict=True)
            for index, n in zip(term, block.shape, strict=True)
        }
        shape = tuple(sizes[index] for index in self.result)
        full = [] if 0 in shape else [pair for pair in pairs if all(block.size for block in pair)]
        return self.call.sum_of(full, shape) if full else self.call.zeros(pairs[0], shape)


def contraction(
    subscripts: str,
    wrapper: Callable[..., Any],
    *arrays: Any,
    dtype: Any = None,
    device: str | None = None,
    limit: int | str | None = None,
) -> Any:
    """Sums products of Dask arrays over one index: `contraction("ik,kj->ij", wrapper, a, b)` is a matrix product.

    `wrapper(*blocks, out)` adds the product of the blocks to `out`, which begins as zeros. It is called for the blocks of the summed
    index in their order, so a result is the same bit for bit in every run. With `device="cuda"`, the next blocks are copied while a kernel
    runs. `subscripts` are those of numpy.einsum, with exactly one index that the result lacks. The other arguments are those of
    `map_blocks`. Raises LaunchError as it does, and for other subscripts.
    """
    da = checked_arrays("contraction", arrays)
    terms, result, summed = _indices(subscripts, arrays)
    call = block_call(wrapper, arrays, dtype, device, limit)
    return da.blockwise(
        ContractionCall(call, terms, result, summed),
        result,
        *(given for array, term in zip(arrays, terms, strict=True) for given in (array, term)),
        name=new_name(wrapper),
        dtype=call.dtype,
        concatenate=False,
        meta=empty_like(arrays[0], call.dtype, len(result)),
    )


def _indices(subscripts: str, arrays: Sequence[Any]) -> tuple[tuple[str, ...], str, str]:
    """The indices of the arrays, those of the result, and the summed one."""
    left, arrow, result = subscripts.replace(" ", "").partition("->")
    terms = tuple(left.split(","))
    summed = set("".join(terms)) - set(result)
    fits = len(terms) == len(arrays) and all(len(t) == array.ndim for t, array in zip(terms, arrays, strict=False))
    distinct = all(len(set(t)) == len(t) and set(t) <= set(string.ascii_letters) for t in (*terms, result))
    if not arrow or not fits or not distinct or len(summed) != 1 or set(result) - set("".join(terms)):
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise LaunchError(
            f"the subscripts {subscripts!r} do not name the axes of arrays of shapes {shapes}, with one index to sum over",
            hint='write one letter per axis, as in "ik,kj->ij"; to sum over more indices, reshape them to one',
        )
    return terms, result, summed.pop()
