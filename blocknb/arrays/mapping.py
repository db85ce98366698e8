"""`map_blocks` and `map_overlap`: a wrapper on each block of Dask arrays, without and with a halo.

Both build Dask graphs by `dask.array`, and compute nothing. The name of each result is new. Otherwise Dask could return the result of an
earlier call with the same name, although the source of a kernel has changed since.
"""

from __future__ import annotations

import functools
import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.arrays.block_calls import DEVICES, BlockCall
from blocknb.arrays.dask_import import checked_arrays, parsed_limit
from blocknb.arrays.halo import EdgeSlices, HaloPieces, HaloSpec, fits
from blocknb.errors import LaunchError

_BOUNDARIES = ("reflect", "periodic", "nearest")


@dataclass(frozen=True)
class MapCall:
    """The function of one task of `map_blocks`. Dask passes the shape of the result's block in `block_info`."""

    call: BlockCall

    def __call__(self, *blocks: Any, block_info: Any = None) -> Any:
        return self.call.on(blocks, tuple(map(int, block_info[None]["chunk-shape"])))


@dataclass(frozen=True)
class HaloCall:
    """The function of one task of `map_overlap`. It gets the blocks of all arrays; `specs` and `counts` say which belong to which."""

    call: BlockCall
    shape: tuple[int, ...]
    specs: tuple[HaloSpec, ...]
    counts: tuple[int, ...]

    def __call__(self, *given: Any) -> Any:
        ends = np.cumsum((0, *self.counts)).tolist()
        parts = [given[begin:end] for begin, end in itertools.pairwise(ends)]
        blocks = [spec.block(part) for spec, part in zip(self.specs, parts, strict=True)]
        return self.call.on(blocks, self.shape)


def map_blocks(
    wrapper: Callable[..., Any],
    *arrays: Any,
    dtype: Any = None,
    chunks: Any = None,
    drop_axis: int | Sequence[int] | None = None,
    new_axis: int | Sequence[int] | None = None,
    device: str | None = None,
    limit: int | str | None = None,
) -> Any:
    """Calls `wrapper(*blocks, out)` for each block of Dask arrays, and returns the Dask array of all `out`.

    The wrapper launches kernels that fill `out`, an array of this dtype (that of the first array) without defined contents. Sizes and
    strides are those of the block; the last block of an axis may be smaller. Arrays broadcast as in NumPy, and are rechunked to common
    chunks. `chunks`, `drop_axis` and `new_axis` are those of `dask.array.map_blocks`: they give the chunks of the result where they differ
    from those of the arrays.

    `device="cuda"` streams chunks of NumPy through the GPU of each worker. With four threads or more, copies overlap kernels. `limit`, such
    as "1 GiB", bounds the bytes of all blocks in flight in a worker. Raises LaunchError without Dask, and for other arguments than Dask
    arrays.
    """
    da = checked_arrays("map_blocks", arrays)
    call = block_call(wrapper, arrays, dtype, device, limit)
    _, unified = da.core.unify_chunks(*(given for x in arrays for given in (x, range(x.ndim)[::-1])))
    return da.map_blocks(
        MapCall(call),
        *unified,
        name=new_name(wrapper),
        dtype=call.dtype,
        chunks=chunks,
        drop_axis=drop_axis,
        new_axis=new_axis,
        meta=empty_like(arrays[0], call.dtype),
    )


def map_overlap(
    wrapper: Callable[..., Any],
    *arrays: Any,
    depth: int | Mapping[int, int],
    boundary: Any,
    dtype: Any = None,
    device: str | None = None,
    limit: int | str | None = None,
) -> Any:
    """Calls `wrapper(*blocks, out)` for each block with a halo: `depth` more elements on both sides than `out` has.

    So `out[i]` belongs to `block[i + depth]`. `depth` is one number, or one per axis: {0: 1, 1: 2}. `boundary` says what lies outside of
    the array: "reflect", "periodic", "nearest", or a number; a dict gives one per axis. All arrays have one shape and get the same halo.
    The other arguments are those of `map_blocks`. Raises LaunchError as it does, and for the boundary "none", which has no halo.
    """
    da = checked_arrays("map_overlap", arrays)
    from dask.highlevelgraph import HighLevelGraph

    first = arrays[0]
    if any(array.shape != first.shape for array in arrays):
        shapes = ", ".join(str(array.shape) for array in arrays)
        raise LaunchError(f"the arrays of map_overlap have the shapes {shapes}", hint="pass arrays of one shape")
    depths = {axis: int(depth if not isinstance(depth, Mapping) else depth.get(axis, 0)) for axis in range(first.ndim)}
    edges = {axis: boundary.get(axis, "reflect") if isinstance(boundary, Mapping) else boundary for axis in depths}
    if (
        any(edge is None or (isinstance(edge, str) and edge not in _BOUNDARIES) for edge in edges.values())
        or min(depths.values()) < 0
    ):
        raise LaunchError(
            f"map_overlap got depth={depth!r} and boundary={boundary!r}",
            hint='a depth is 0 or more, and a boundary is "reflect", "periodic", "nearest" or a number',
        )
    call = block_call(wrapper, arrays, dtype, device, limit)
    _, unified = da.core.unify_chunks(*(given for x in arrays for given in (x, range(x.ndim)[::-1])))
    unified = [one if fits(one, depths) else _larger_chunks(da, one, depths) for one in unified]
    name = new_name(wrapper)
    graph = HighLevelGraph.from_collections(name, _halo_graph(name, call, unified, depths, edges), dependencies=unified)
    return da.Array(graph, name, unified[0].chunks, meta=empty_like(first, call.dtype))


def _halo_graph(
    name: str, call: BlockCall, arrays: Sequence[Any], depths: Mapping[int, int], edges: Mapping[int, Any]
) -> dict[Any, Any]:
    """The tasks of `map_overlap` on arrays of the same chunks."""
    tasks: dict[Any, Any] = {}
    slices = [EdgeSlices(f"{name}-{n}-slices", one) for n, one in enumerate(arrays)]
    for index in itertools.product(*map(range, arrays[0].numblocks)):
        found = [HaloPieces(one, index, depths, edges) for one in slices]
        specs = tuple(one.spec() for one in found)
        function = HaloCall(call, tuple(found[0].sizes), specs, tuple(len(one.keys) for one in found))
        tasks[(name, *index)] = (function, *(key for one in found for key in one.keys))
    for one in slices:
        tasks.update(one.tasks())
    return tasks


def _larger_chunks(da: Any, array: Any, depths: Mapping[int, int]) -> Any:
    """The array with chunks of at least the depth of the halo. Raises LaunchError if an axis is shorter."""
    if any(size < depths[axis] for axis, size in enumerate(array.shape)):
        raise LaunchError(
            f"map_overlap got depth={dict(depths)} for an array of shape {array.shape}",
            hint="a halo is at most as deep as the array is long",
        )
    least = (da.overlap.ensure_minimum_chunksize(depths[axis], sizes) for axis, sizes in enumerate(array.chunks))
    return array.rechunk(tuple(least))


def block_call(
    wrapper: Any, arrays: Sequence[Any], dtype: Any, device: str | None, limit: int | str | None
) -> BlockCall:
    """The BlockCall for the arguments of a function of this package. Raises LaunchError for wrong ones."""
    if not callable(wrapper):
        raise LaunchError(
            f"the wrapper is a {type(wrapper).__name__}, and not a function",
            hint="write def wrapper(block, out): kernel[grid](block, out, ...)",
        )
    if hasattr(wrapper, "source") and hasattr(wrapper, "__getitem__"):
        raise LaunchError(
            f"{wrapper.__name__} is a kernel, and a wrapper is a function that launches one",
            hint=f"write def wrapper(block, out): {wrapper.__name__}[grid](block, out, ...)",
        )
    if device not in DEVICES:
        raise LaunchError(
            f"device={device!r} is no device for chunks", hint='write device="cuda", or leave it out for the CPU'
        )
    return BlockCall(wrapper, np.dtype(arrays[0].dtype if dtype is None else dtype), device, parsed_limit(limit))


def new_name(wrapper: Any) -> str:
    """A name for a result, which no other result has: "softmax-0f3a..."."""
    while isinstance(wrapper, functools.partial):
        wrapper = wrapper.func
    return f"{getattr(wrapper, '__name__', type(wrapper).__name__)}-{uuid.uuid4().hex}"


def empty_like(array: Any, dtype: Any, ndim: int | None = None) -> Any:
    """An empty array of the library of a Dask array's chunks, which tells Dask the type of a result."""
    kind = array._meta
    return np.empty_like(kind, shape=(0,) * (array.ndim if ndim is None else ndim), dtype=dtype)
