"""The function of one Dask task: it calls a wrapper on blocks, and returns the block that the wrapper filled.

Where it runs depends on the blocks. Blocks of CuPy are used in place, on their GPU. Blocks of NumPy are used in place by kernels for the
CPU, or with `device="cuda"` stream through the current GPU of the process. A wrapper sees NumPy blocks as read-only: the chunks belong to
Dask, and another task, or the same task on another worker, may read them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blocknb.arrays.halo import HaloBlock
from blocknb.arrays.in_flight import BytesInFlight, add
from blocknb.arrays.streaming import Streamer
from blocknb.errors import LaunchError
from blocknb.runtime import cuda
from blocknb.runtime.misaligned import is_aligned

SHARE = 0.5  # of a GPU's free memory, which blocks in flight take without a limit
DEVICES = (None, "cuda")


@dataclass(frozen=True)
class BlockCall:
    """Calls `wrapper(*blocks, out)`; `out` has a dtype and no defined contents. It pickles if the wrapper does.

    `device` is "cuda" to stream blocks of NumPy through the current GPU of the process. `limit` bounds the bytes of the blocks in flight
    in the process; None is half of a GPU's free memory, and no limit on the CPU."""

    wrapper: Callable[..., Any]
    dtype: Any
    device: str | None = None
    limit: int | None = None

    def on(self, blocks: Sequence[Any], shape: tuple[int, ...]) -> Any:
        """Runs the wrapper on blocks, unless the result, which has this shape, is empty."""
        if 0 in shape:
            return (cuda.cupy() if _on_gpu(blocks) else np).empty(shape, self.dtype)
        if _on_gpu(blocks):
            with _device_of(blocks):
                return self._in_place(cuda.cupy(), [list(blocks)], shape, zero=False)
        given = [host_block(block) for block in blocks]
        if self.device == "cuda":
            return streamer(current_gpu(), self.limit).run(self.wrapper, given, shape, self.dtype)
        return self._in_place(np, [given], shape, zero=False)

    def sum_of(self, terms: Sequence[Sequence[Any]], shape: tuple[int, ...]) -> Any:
        """Runs the wrapper on the blocks of each term, in order, on one result that starts as zeros."""
        if terms and _on_gpu(terms[0]):
            with _device_of(terms[0]):
                return self._in_place(cuda.cupy(), terms, shape, zero=True)
        given = [[host_block(block) for block in term] for term in terms]
        if self.device == "cuda":
            return streamer(current_gpu(), self.limit).accumulate(self.wrapper, given, shape, self.dtype)
        return self._in_place(np, given, shape, zero=True)

    def zeros(self, blocks: Sequence[Any], shape: tuple[int, ...]) -> Any:
        """A block of zeros, in the memory of the blocks."""
        return (cuda.cupy() if _on_gpu(blocks) else np).zeros(shape, self.dtype)

    def _in_place(self, xp: Any, terms: Sequence[Sequence[Any]], shape: tuple[int, ...], zero: bool) -> Any:
        """Runs the wrapper where the blocks are. On a GPU it waits for the kernels, so that their memory is counted while they run."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize
        moved = sum(block.nbytes for term in terms for block in term)
        with in_flight(self.limit).hold(moved + size):
            begin = time.perf_counter()
            out = (xp.zeros if zero else xp.empty)(shape, self.dtype)
            for term in terms:
                self.wrapper(*(_whole(block, xp) for block in term), out)
            if xp is not np:
                xp.cuda.get_current_stream().synchronize()
            add(blocks=1, bytes_in=moved, bytes_out=size, compute_ms=(time.perf_counter() - begin) * 1e3)
        return out


def _whole(block: Any, xp: Any) -> Any:
    """A block as one array, where it runs: assembled if it is a chunk with a halo."""
    if not isinstance(block, HaloBlock):
        return block
    found = block.assembled(xp.empty(block.shape, block.dtype))
    if xp is np:
        found.flags.writeable = False
    return found


def host_block(block: Any) -> Any:
    """A block of host memory that a kernel takes: a read-only view, or a copy if the address is not aligned to the element size.

    Arrays that arrive through Dask's network layer may have any address. The pieces of a HaloBlock are handled one by one."""
    if isinstance(block, HaloBlock):
        frame = ((region, host_block(p) if isinstance(p, np.ndarray) else p) for region, p in block.frame)
        return replace(block, chunk=host_block(block.chunk), frame=tuple(frame))
    if isinstance(block, np.generic):
        block = np.asarray(block)
    if type(block) is not np.ndarray:
        raise LaunchError(
            f"a chunk is a {type(block).__name__}, and kernels take chunks of NumPy or CuPy",
            hint="x.map_blocks(numpy.asarray) converts the chunks of a Dask array",
        )
    if not is_aligned(block) or not block.dtype.isnative:
        block = block.astype(block.dtype.newbyteorder("="), copy=True)
        add(aligned=1)
    view = block.view()
    view.flags.writeable = False
    return view


def _on_gpu(blocks: Sequence[Any]) -> bool:
    return any(hasattr(_chunk(block), "__cuda_array_interface__") for block in blocks)


def _chunk(block: Any) -> Any:
    return block.chunk if isinstance(block, HaloBlock) else block


def _device_of(blocks: Sequence[Any]) -> Any:
    """The GPU of the first block that is on one, as a context: a process may have several."""
    return next(one for one in map(_chunk, blocks) if hasattr(one, "__cuda_array_interface__")).device


def current_gpu() -> int:
    """The current GPU of this process. Raises LaunchError without CuPy."""
    return int(cuda.cupy().cuda.runtime.getDevice())


@functools.cache
def streamer(gpu: int, limit: int | None) -> Streamer:
    """The Streamer of this process for a GPU and a limit."""
    from blocknb.arrays.cupy_device import CupyDevice

    device = CupyDevice(gpu)
    return Streamer(device, int(device.free_memory() * SHARE) if limit is None else limit)


@functools.cache
def in_flight(limit: int | None) -> BytesInFlight:
    """The bytes that blocks used in place hold in this process, for a limit."""
    return BytesInFlight(limit)
