"""Explains an error of missing memory: which names hold the most memory on that device, and what frees it.

The report goes below the traceback, so it looks at the variables of the functions that were running as well: a traceback keeps them alive.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from blocknb.notebook import holders, numbers
from blocknb.notebook.tracebacks import is_users

SHOWN = 6


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or the error that led to it, is about missing memory of the host or of a GPU."""
    while error is not None:
        if isinstance(error, MemoryError) or re.search(
            r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation", str(error)
        ):
            return True
        error = error.__cause__
    return False


def lines(error: BaseException, shell: Any) -> list[str]:
    """The report on an error of missing memory, one string a line."""
    gpu = _on_gpu(error)
    found = dict(holders.held(shell.user_ns))
    for namespace in _running(error):
        for key, memory in holders.held(namespace).items():
            found.setdefault(key, memory)
    groups = holders.grouped(m for m in found.values() if m.countable and (m.device != holders.CPU) == gpu)
    where = "the GPU" if gpu else "the CPU"
    said = [f"Arrays that hold the most memory of {where}:" if groups else f"No name holds an array on {where}."]
    width = max((len(holder.label) for holder in groups[:SHOWN]), default=0)
    for holder in groups[:SHOWN]:
        said.append(f"  {holder.label:{width}}  {numbers.size(holder.bytes):>9}  {holder.what}")
    if more := groups[SHOWN:]:
        said.append(f"  and {numbers.plural(len(more), 'more name')}: {numbers.size(sum(h.bytes for h in more))}")
    return [*said, *_pool(found) * gpu, *_advice(groups)]


def _on_gpu(error: BaseException) -> bool:
    """Whether the memory of a GPU ran out: CuPy's own error, or an error of CUDA."""
    found: BaseException | None = error
    while found is not None:
        module = type(found).__module__
        if module.startswith(("cupy", "torch.cuda")) or re.search("CUDA|cudaError", str(found)):
            return True
        found = found.__cause__
    return False


def _running(error: BaseException) -> Iterator[Mapping[str, Any]]:
    """The local variables of the user's functions in a traceback, with the function's name before that of the variable."""
    found: BaseException | None = error
    while found is not None:
        for frame, _ in traceback.walk_tb(found.__traceback__):
            code = frame.f_code
            if code.co_name != "<module>" and is_users(code.co_filename):
                yield {f"{name} (in {code.co_name})": value for name, value in frame.f_locals.items()}
        found = found.__cause__


def _pool(found: Mapping[tuple[int, int], holders.HeldMemory]) -> list[str]:
    """Sentences on the memory of CuPy's pool and of the device."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return []
    try:
        return _pool_of(cupy, found)
    except Exception as error:  # the CUDA context is broken, too
        return [f"CuPy's pool cannot be read: {error}"]


def _pool_of(cupy: Any, found: Mapping[tuple[int, int], holders.HeldMemory]) -> list[str]:
    pool: Any = getattr(cupy.cuda.get_allocator(), "__self__", None)
    said = []
    if hasattr(pool, "used_bytes"):
        used, held, limit = pool.used_bytes(), pool.total_bytes(), pool.get_limit()
        device = int(cupy.cuda.runtime.getDevice())
        named = sum(m.bytes for m in found.values() if m.device == device and not m.kind)
        said.append(
            f"CuPy's pool holds {numbers.size(held)}: {numbers.size(used)} in arrays ({numbers.size(max(used - named, 0))} of them without "
            f"a name), {numbers.size(held - used)} in free blocks."
        )
        if limit:
            said.append(
                f"The pool has a limit of {numbers.size(limit)}: cupy.get_default_memory_pool().set_limit(size=0) removes it."
            )
    free, total = cupy.cuda.runtime.memGetInfo()
    said.append(f"The GPU has {numbers.size(free)} of {numbers.size(total)} free for all processes.")
    return said


def _advice(groups: list[holders.Holder]) -> list[str]:
    """The statement that frees the memory of the largest holder."""
    if not groups:
        return []
    names = list(groups[0].names)
    inside = [name for name in names if " (in " in name]
    if inside:
        return [f"`{inside[0]}` is freed when the function returns: use smaller parts, or del it earlier."]
    mine = [name for name in names if not name.startswith(("Out[", "_"))]
    said = [f"del {', '.join(mine)}"] if mine else []
    if len(mine) < len(names):
        said.append("%reset -f out (IPython keeps results in Out and _)")
    return [f"To free {numbers.size(groups[0].bytes)}: {'; '.join(said)}"]
