"""Launches that run the kernel's Python instead of compiled code, one program after another.

Host arrays are used in place. The launch copies arrays of a GPU to the host before the first program, and back after the last one, even
after an error. It copies merged address ranges, so that views which overlap still share memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from blocknb import forks
from blocknb.eager import Interpreter, Run
from blocknb.eager.places import current
from blocknb.eager.record import RecordFull, program_id
from blocknb.eager.recorded_space import RecordingAddressSpace
from blocknb.errors import LaunchError
from blocknb.frontend.parse import ArgType, Constant, TupleArgument
from blocknb.ir.address import AddressSpace
from blocknb.ir.interp_tile import Program
from blocknb.language.check_modes import parse_checks
from blocknb.runtime import interrupts
from blocknb.runtime.binding import OPTIONS, Binding, normal_grid
from blocknb.runtime.extents import UNBOUNDED, device_extent, extent
from blocknb.runtime.job import front_argument
from blocknb.runtime.kinds import Kind, flat, unspecialized_kind
from blocknb.runtime.launch_context import this_thread
from blocknb.runtime.launchable import Launchable
from blocknb.runtime.memory import transfer

UNKNOWN_EXTENT = 1 << 38  # bytes before and after an address without an extent that a kernel may access


def launcher(
    kernel: Launchable, grid: Any, programs: Iterable[Any] | None, watch: Iterable[str], record: Any
) -> Callable[..., Run]:
    """Returns the function that takes the arguments of an interpreted launch."""

    def launch(*args: Any, **kwargs: Any) -> Run:
        binding, values = kernel.bound_call(args, kwargs)
        kinds, raws = kernel.describe(binding, values)
        sizes = normal_grid(kernel.source, grid, binding.bound(values) if callable(grid) else {})
        if programs is None and not this_thread.unobserved:
            with forks.guard:
                from blocknb.runtime.footprint_warnings import examine

            examine(kernel, binding, kinds, raws, values, sizes, interpreted=True)
        found = run(kernel, binding, kinds, raws, values, sizes, programs, watch, record)
        if this_thread.interpreted is not None:
            this_thread.interpreted[kernel.__name__] += 1
        return found

    return launch


def run(
    kernel: Launchable,
    binding: Binding,
    kinds: Sequence[Kind],
    raws: Sequence[Any],
    values: Sequence[Any],
    grid: Program,
    programs: Iterable[Any] | None = None,
    watch: Iterable[str] = (),
    record: Any = None,
    most: int | None = None,
    muted: bool = False,
) -> Run:
    """Interprets the programs of a grid, or the given `programs`, in order, until the record has `most` entries. A `muted` run prints
    nothing. Raises the exceptions of the kernel."""
    chosen = _programs(grid, programs)
    if isinstance(watch, str):
        raise LaunchError(f"watch={watch!r} is a string, not a list of names", hint=f"pass watch=[{watch!r}]")
    report = Run(kernel, grid, frozenset(watch), None if record is None else program_id(record), most=most, muted=muted)
    space = AddressSpace() if record is None else RecordingAddressSpace(report)
    given: dict[str, Constant | tuple[ArgType | TupleArgument, list[Any]]] = {}
    options = dict(kernel.options)
    with _memory(space, binding, kinds, raws, values) as addresses:
        for name, kind, raw, unspecialized in zip(binding.names, kinds, raws, binding.unspecialized, strict=True):
            kind = unspecialized_kind(kind) if unspecialized else kind
            argument = front_argument(kind)
            if isinstance(argument, Constant):
                given[name] = argument
                options |= {name: argument.value} if name in OPTIONS else {}
            else:
                numbers: list[Any] = []
                for leaf, part, x in flat([name], [kind], [raw]):
                    if part.type is not None:
                        first, *rest = _numbers(x)
                        numbers += [addresses.get(leaf, first), *rest]
                given[name] = (argument, numbers)
        ordered = {p.name: given[p.name] for p in kernel.source.parameters}
        interpreter = Interpreter(kernel.source, ordered, options, space, grid, report)
        report.addresses = addresses
        where = functools.partial(current, interpreter.sources)
        if isinstance(space, RecordingAddressSpace):
            space.where = where
        if "race" in parse_checks(options["checked"]):
            space.locate = where
        with contextlib.suppress(RecordFull), interrupts.redelivered():
            for program in chosen:
                interpreter.program(program)
    return report


def _numbers(raw: Any) -> tuple[Any, ...]:
    """The raw values of an argument: one number, or the address, sizes and strides of a tensor descriptor."""
    return raw if isinstance(raw, tuple) else (raw,)


def _programs(grid: Program, programs: Iterable[Any] | None) -> Iterable[Program]:
    if programs is None:
        return ((x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0]))
    chosen = list(map(program_id, programs))
    for program in chosen:
        if not all(0 <= i < n for i, n in zip(program, grid, strict=True)):
            raise LaunchError(f"the grid {grid} has no program {program}")
    return chosen


@contextmanager
def _memory(
    space: AddressSpace, binding: Binding, kinds: Sequence[Kind], raws: Sequence[Any], values: Sequence[Any]
) -> Iterator[dict[str, int]]:
    """Adds the array arguments to the address space, and yields their addresses in it by name."""
    found: dict[str, int] = {}
    remote: list[tuple[str, int, int, int, int, bool]] = []
    for name, kind, raw, value in flat(binding.names, kinds, raws, values):
        if kind.device is None:  # a number, or a constant
            continue
        raw, value = _numbers(raw)[0], value.base if isinstance(raw, tuple) else value
        if kind.device >= 0:
            low, high = device_extent(value, raw, (getattr(kind.type, "element", None) or kind.type.dtype).bytes)
            remote.append((name, raw, low, high, kind.device, kind.readonly))
            continue
        low, high = extent(value, raw)
        if (low, high) == UNBOUNDED:
            low, high = max(raw - UNKNOWN_EXTENT, 0), raw + UNKNOWN_EXTENT
        found[name] = space.add(name, _bytes_at(low, high, kind.readonly)) + raw - low
        space.keep.append(value)  # keeps the memory alive
    copies = _copied(remote)
    for name, raw, low, high, _, _ in remote:
        start, copy = next((c[0], c[2]) for c in copies if c[0] <= low and high <= c[1])
        view = copy[low - start : high - start]
        found[name] = space.add(name, view, low) + raw - low
    try:
        yield found
    finally:
        for start, end, copy, device in copies:
            transfer(device, start, copy.ctypes.data, end - start, back=True)


def _bytes_at(low: int, high: int, readonly: bool) -> np.ndarray:
    raw = memoryview((ctypes.c_ubyte * (high - low)).from_address(low))
    view = np.frombuffer(raw, np.uint8) if high > low else np.empty(0, np.uint8)
    view.flags.writeable = not readonly
    return view


def _copied(remote: list[tuple[str, int, int, int, int, bool]]) -> list[tuple[int, int, np.ndarray, int]]:
    """Copies arrays of GPUs to the host. Returns (start, end, copy, device) of the merged address ranges."""
    ranges: list[list[int]] = []
    for _, _, low, high, device, _ in sorted(remote, key=lambda r: (r[4], r[2])):
        if ranges and ranges[-1][2] == device and low <= ranges[-1][1]:
            ranges[-1][1] = max(ranges[-1][1], high)
        else:
            ranges.append([low, high, device])
    copies = []
    for low, high, device in ranges:
        copy = np.empty(high - low, np.uint8)
        transfer(device, low, copy.ctypes.data, high - low, back=False)
        copies.append((low, high, copy, device))
    return copies
