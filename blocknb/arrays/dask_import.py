"""Imports Dask when a function of this package is called, so that `import blocknb` neither needs nor loads it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from blocknb.errors import LaunchError

INSTALL = 'pip install "blocknb[dask]"'


def dask_array(function: str) -> ModuleType:
    """Returns `dask.array`. Raises LaunchError with the command that installs it; `function` is what needs it."""
    try:
        import dask.array
    except ImportError:
        raise LaunchError(f"blocknb.{function} needs Dask, which is not installed", hint=INSTALL) from None
    array: ModuleType = dask.array
    return array


def checked_arrays(function: str, arrays: tuple[Any, ...]) -> ModuleType:
    """Returns `dask.array` if all arguments are Dask arrays with known chunks. Raises LaunchError for another argument."""
    da = dask_array(function)
    if not arrays:
        raise LaunchError(f"blocknb.{function} got no Dask array", hint=f"{function}(wrapper, dask_array)")
    for position, array in enumerate(arrays, 1):
        if not isinstance(array, da.Array):
            raise LaunchError(
                f"array {position} of blocknb.{function} is a {type(array).__name__}, not a Dask array",
                hint="dask.array.from_array(x, chunks=...) makes one; functools.partial(wrapper, w) passes a whole array to every block",
            )
        if any(size != size for sizes in array.chunks for size in sizes):
            raise LaunchError(
                f"array {position} of blocknb.{function} has chunks of unknown size",
                hint="call x.compute_chunk_sizes() first",
            )
    return da


def parsed_limit(limit: int | str | None) -> int | None:
    """A limit in bytes: an integer, or a text such as "1 GiB". Raises LaunchError for anything else."""
    if limit is None:
        return None
    from dask.utils import parse_bytes

    try:
        found = int(parse_bytes(limit))
    except (ValueError, TypeError, AttributeError):
        found = 0
    if found < 1:
        raise LaunchError(
            f"the limit {limit!r} is no number of bytes", hint='write limit="1 GiB", or an integer above 0'
        )
    return found
