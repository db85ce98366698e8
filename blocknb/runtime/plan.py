"""A compiled kernel ready to start: where it runs, on which library's stream, and which of a launch's values go where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blocknb.language.types import Descriptor
from blocknb.runtime import arguments
from blocknb.runtime.arguments import HOST, Kind
from blocknb.runtime.binding import Binding

if TYPE_CHECKING:
    from blocknb.runtime.compile import Compiled
    from blocknb.target import Target

Grid = tuple[int, int, int]
Start = Callable[[Grid, Sequence[Any], Sequence[Any]], None]


@dataclass(frozen=True, eq=False)
class Plan:
    """A compiled kernel ready to start: `start(grid, raws, values)` takes raw and given values in the binding's order."""

    compiled: Compiled
    kinds: tuple[Kind, ...]
    device: int
    start: Start


def typed(value: Any, fixed: bool) -> Any:
    """A type text for a run-time parameter as the Kind that it stands for, everything else as it is."""
    return (arguments.parse_type(value) or value) if isinstance(value, str) and not fixed else value


def library(kinds: Iterable[Kind]) -> str:
    """The library whose stream a launch joins: "torch" or ""."""
    return "torch" if any(kind.library == "torch" for kind in kinds) else ""


def target_of(device: int) -> Target:
    """The target that kernels on a device are compiled for."""
    from blocknb.target import Target

    if device == HOST:
        return Target.parse("cpu")
    from blocknb.runtime import driver

    return driver.target(device)


def starter(compiled: Compiled, binding: Binding, kinds: tuple[Kind, ...], device: int) -> Start:
    """What starts a compiled kernel on a device, with the values of a binding."""
    from blocknb.frontend.descriptors import field_names

    ranks = [kind.type.rank if isinstance(kind.type, Descriptor) else None for kind in kinds]
    fields = [
        field
        for n, rank in zip(binding.names, ranks, strict=True)
        for field in ([n] if rank is None else field_names(n, rank))
    ]
    positions = [fields.index(name) for name, _ in compiled.parameters]
    if device == HOST:
        from blocknb.runtime import host

        start = host.starter(compiled, positions)
    else:
        from blocknb.runtime import driver, reports

        if compiled.code.reports:
            start = reports.starter(compiled, device, positions, library(kinds), len(fields))
        else:
            start = driver.starter(compiled, device, positions, library(kinds))
    return start if len(fields) == len(kinds) and not any(ranks) else _flattened(start, ranks)


def _flattened(start: Start, ranks: Sequence[int | None]) -> Start:
    """A starter whose arguments may be tensor descriptors: each becomes its array, sizes and strides."""

    def start_flat(grid: Grid, raws: Sequence[Any], values: Sequence[Any]) -> None:
        flat: list[Any] = []
        given: list[Any] = []
        for rank, raw, value in zip(ranks, raws, values, strict=True):
            if rank is None:
                flat.append(raw)
                given.append(value)
            else:
                flat += raw
                given += [value.base, *raw[1:]]
        start(grid, flat, given)

    start_flat.keep = start  # type: ignore[attr-defined]
    return start_flat
