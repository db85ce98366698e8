"""`kernel.footprint(grid)(*args, **kwargs)`: the launch of a call, as `footprint.launch` describes it, without a launch.

The kernel is parsed for the Kinds of the arguments, and not compiled further. Extents and addresses of arrays come from the arguments; only
launches in which data decide copy contents, those of GPU arrays to the host.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blocknb.errors import LaunchError
from blocknb.footprint.access_log import Budget
from blocknb.footprint.follow import footprint
from blocknb.footprint.launch import ArrayLayout, MemoryLaunch
from blocknb.footprint.value import Footprint
from blocknb.frontend.parse import parse
from blocknb.ir.core import Func
from blocknb.language.types import Descriptor
from blocknb.runtime.binding import OPTIONS, Binding, launch_error, normal_grid
from blocknb.runtime.extents import UNBOUNDED, adopted, device_extent, extent
from blocknb.runtime.job import front_argument
from blocknb.runtime.kinds import HOST, Kind, flat, unspecialized_kind
from blocknb.runtime.launch_context import Grid
from blocknb.runtime.launchable import Launchable
from blocknb.runtime.memory import transfer
from blocknb.runtime.plan import common_device, target_of
from blocknb.runtime.summary import scalars_of, summary


def footprints(kernel: Launchable, grid: Any, budget: Budget | None = None) -> Callable[..., Footprint]:
    """Returns the function that takes the arguments of a launch and returns its Footprint."""

    def call(*args: Any, **kwargs: Any) -> Footprint:
        return footprint(memory_launch(kernel, grid, args, kwargs), budget)

    return call


def memory_launch(kernel: Launchable, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> MemoryLaunch:
    """The launch of a call. Raises LaunchError like a launch, and for an array of unknown extent."""
    binding, values = kernel.bound_call(args, kwargs)
    kinds, raws = kernel.describe(binding, values)
    sizes = normal_grid(kernel.source, grid, binding.bound(values) if callable(grid) else {})
    return launch_of(kernel, binding, kinds, raws, values, sizes)


def launch_of(
    kernel: Launchable,
    binding: Binding,
    kinds: Sequence[Kind],
    raws: Sequence[Any],
    values: Sequence[Any],
    sizes: Grid,
    invoke: Callable[..., Any] | None = None,
) -> MemoryLaunch:
    """The launch of described arguments on a grid of three sizes. `invoke` makes the calls of host functions (see `parse`)."""
    kinds = [unspecialized_kind(k) if u else k for k, u in zip(kinds, binding.unspecialized, strict=True)]
    func = _parsed(kernel, binding, kinds, values, invoke)
    summaries = {name: summary(value, kind) for name, kind, value in flat(binding.names, kinds, values)}
    scalars = {name: value for name, value in scalars_of(summaries).items() if value is not None}
    arrays = _layouts(kernel, func, binding, kinds, raws, values, summaries)
    return MemoryLaunch(func, sizes, scalars, arrays, _contents)


def _parsed(
    kernel: Launchable,
    binding: Binding,
    kinds: Sequence[Kind],
    values: Sequence[Any],
    invoke: Callable[..., Any] | None,
) -> Func:
    options = dict(kernel.options)
    given: dict[str, Any] = {}
    for name, kind in zip(binding.names, kinds, strict=True):
        if name in OPTIONS:
            options[name] = kind.constant[0]
        given[name] = front_argument(kind)
    attributes = {name: value for name, value in options.items() if name != "without" and value is not None}
    target = target_of(common_device(kernel.source, binding.names, kinds, values))
    by_parameter = {p.name: given[p.name] for p in kernel.source.parameters}
    # static_print prints when the kernel is compiled. In another thread, as that of a card's page, a cell may print at the same time.
    alone = threading.current_thread() is threading.main_thread()
    with contextlib.redirect_stdout(io.StringIO()) if alone else contextlib.nullcontext():
        return parse(kernel.source, by_parameter, attributes, target, invoke=invoke)


def _layouts(
    kernel: Launchable,
    func: Func,
    binding: Binding,
    kinds: Sequence[Kind],
    raws: Sequence[Any],
    values: Sequence[Any],
    summaries: dict[str, dict[str, Any]],
) -> list[ArrayLayout]:
    parameters = {hint.name: i for i, hint in enumerate(func.hints)}
    places: list[tuple[str, int, int, int, int, int]] = []
    for name, kind, raw, value in flat(binding.names, kinds, raws, values):
        if kind.device is None:
            continue
        described = isinstance(kind.type, Descriptor)
        raw, value = (raw[0], value.base) if described else (raw, value)
        size = (kind.type.dtype if described else kind.type.element).bytes
        low, high = device_extent(value, raw, size) if kind.device >= 0 else extent(value, raw)
        places.append((name, raw, low, high, size, kind.device))
    known = [(low, high) for _, _, low, high, _, _ in places]
    found = []
    for name, raw, low, high, size, device in places:
        if (low, high) == UNBOUNDED:
            low, high = adopted(raw, known)
        if (low, high) == UNBOUNDED:
            hint = "pass an array: its shape says which elements there are"
            raise launch_error(kernel.source, name, f"the extent of `{name}` is unknown: it is an address only", hint)
        shape, strides = summaries[name]["shape"], summaries[name]["strides"]
        if "parts" in summaries[name]:  # a descriptor: its own sizes and strides need not cover the array
            shape, strides = ((high - low) // size,), (1,)
        dtype = summaries[name]["type"].lstrip("*").split(":")[0]
        if low >= 1 << 63:  # an empty array without an address
            low = high = raw
        found.append(ArrayLayout(name, parameters[name], dtype, size, shape, strides, raw, low, high, device))
    return found


def _contents(array: ArrayLayout, low: int, high: int) -> np.ndarray:
    """A copy of bytes of an array, on the host."""
    copy = np.empty(high - low, np.uint8)
    if array.device == HOST:
        ctypes.memmove(copy.ctypes.data, low, high - low)
    elif array.device >= 0:
        transfer(array.device, low, copy.ctypes.data, high - low, back=False)
    else:
        raise LaunchError(f"`{array.name}` has no memory")
    return copy
