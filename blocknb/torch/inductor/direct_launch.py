"""The fast path of a generated kernel's launch on a GPU: a Python function for one kernel, which packs the arguments and calls the driver.

Inductor has already computed the grid and looked up the stream, so the function only takes the addresses of the tensors. Other launches
take the general path (`slow`). They are launches during a record, with a grid that is empty or too large, or with another current device. A
call that raises also takes it, because the general path explains the error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from blocknb.runtime.driver import MAX_GRID, Launcher

_TEXT = """
def make(slow, recording, free, fresh, pack_into, launch, address, current_device, note):
    def runner(x, y, z, stream, {names}):
        if recording or not (0 < x <= {MAX_GRID[0]} and 0 < y <= {MAX_GRID[1]} and 0 < z <= {MAX_GRID[2]}){elsewhere}:
            return slow(x, y, z, stream, {names})
        try:
            slots = free.pop()
        except IndexError:
            slots = fresh()
        try:
            pack_into(slots[0], 0, {packed})
            launch(address, x, y, z, {threads}, 1, 1, {shared}, stream, slots[1], 0)
        except Exception:
            return slow(x, y, z, stream, {names})
        free.append(slots)
        note({kernel!r})
    return runner
"""


def direct_runner(
    start: Any, pointers: Sequence[bool], slow: Callable[..., None], recording: Sequence[Any]
) -> Callable[..., None]:
    """`runner(x, y, z, stream, *values)` for the parameters of a kernel in their order, `pointers` of which are tensors.

    `start` launches the kernel in general. Only a `Launcher` that packs its arguments as they are has a fast path. For others the function
    is `slow`, which takes the same arguments. The fast path is off while `recording` has elements.
    """
    if (
        not isinstance(start, Launcher)
        or not start.packs_unchanged
        or start.buffers.maps is not None
        or start.kernel.resident
    ):
        return slow
    if not pointers or list(start.positions) != list(range(len(pointers))):
        return slow
    queue, kernel, buffers = start.queue, start.kernel, start.buffers
    make = _made(tuple(pointers), kernel.threads, kernel.shared, kernel.name, None if queue.only_gpu else queue.device)
    found: Callable[..., None] = make(
        slow, recording, buffers.free, buffers.fresh, buffers.pack_into, start.launch, kernel.address,
        queue.current_device, start.note,
    )  # fmt: skip
    return found


@functools.lru_cache(512)
def _made(pointers: tuple[bool, ...], threads: int, shared: int, kernel: str, device: int | None) -> Callable[..., Any]:
    """The maker of the function; `device` is the one that must be the current one, None where there is only one."""
    names = [f"a{i}" for i in range(len(pointers))]
    text = _TEXT.format(
        names=", ".join(names),
        packed=", ".join(f"{n}.data_ptr()" if pointer else n for n, pointer in zip(names, pointers, strict=True)),
        MAX_GRID=MAX_GRID,
        elsewhere="" if device is None else f" or current_device() != {device}",
        threads=threads,
        shared=shared,
        kernel=kernel,
    )
    space: dict[str, Any] = {}
    exec(compile(text, f"<launch of {kernel}>", "exec"), space)
    made: Callable[..., Any] = space["make"]
    return made
