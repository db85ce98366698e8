"""A compiled kernel ready to start: where it runs, on which library's stream, and which of a launch's values go where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blocknb.frontend.source import Source
from blocknb.language import types as t
from blocknb.language.constants import like
from blocknb.language.types import Descriptor
from blocknb.runtime import cuda, kinds
from blocknb.runtime.binding import Binding, launch_error
from blocknb.runtime.descriptor import parse_descriptor
from blocknb.runtime.divisor_specialization import FINER
from blocknb.runtime.interface import MockTensor
from blocknb.runtime.kinds import ANYWHERE, HOST, Kind, Tuple, flat, spelled
from blocknb.runtime.launch_context import Grid, Start

if TYPE_CHECKING:
    from blocknb.runtime.compile import Compiled
    from blocknb.target import Target


@dataclass(frozen=True, eq=False)
class LaunchPlan:
    """A compiled kernel ready to start: `start(grid, raws, values)` takes raw and given values in the binding's order."""

    compiled: Compiled
    kinds: tuple[Kind, ...]
    device: int
    start: Start


def parse_type(text: str) -> Kind | None:
    """The Kind that a type text stands for: "*fp32", "*fp16:16", "i32", "i32:16", "fp32", "tensordesc<fp16[64,64]>"; None if it is
    no type text."""
    name, _, divisor = text.partition(":")
    if described := parse_descriptor(name):
        return (
            kinds.descriptor_kind(described, divisor == "16", ANYWHERE, False, "")
            if divisor in ("", "16", "1")
            else None
        )
    star = name.startswith("*")
    known = {**t.BY_SHORT, **t.BY_NAME}.get(name.removeprefix("*"))
    multiples = ("", "1", "16") if star else ("", "1", "8", "16", *map(str, FINER))
    if known is None or divisor not in multiples or (known.is_fp8() and not star):
        return None
    if star:
        return kinds.pointer_kind(known, divisor == "16", ANYWHERE)
    return kinds.multiple_kind(known, int(divisor or 1))


def typed(value: Any, fixed: bool) -> Any:
    """A type text for a run-time parameter as the Kind that it stands for, also in a tuple; everything else as it is."""
    if isinstance(value, tuple) and not fixed:
        return like(value, (typed(element, False) for element in value))
    return (parse_type(value) or value) if isinstance(value, str) and not fixed else value


def mocked(value: Any, fixed: bool) -> Any:
    """A dtype or type text for a run-time parameter as something that stands for an array of it."""
    if isinstance(value, tuple) and not fixed:
        return like(value, (mocked(element, False) for element in value))
    return value if fixed else MockTensor.wrap_dtype(typed(value, fixed))


def library(kinds: Iterable[Kind]) -> str:
    """The library whose stream a launch joins: "torch" or ""."""
    return "torch" if any(kind.library == "torch" for kind in kinds) else ""


def target_of(device: int) -> Target:
    """The target that kernels on a device are compiled for."""
    from blocknb.target import Target

    return Target.parse("cpu") if device == HOST else cuda.target(device)


def common_device(source: Source, names: Sequence[str], kinds: Sequence[Kind], values: Sequence[Any]) -> int:
    """The device all arrays agree on; for arrays that are not there the current GPU; HOST when there is neither."""
    places = [
        (spelled(name), kind.device, value)
        for name, kind, value in flat(names, kinds, values)
        if kind.device is not None
    ]
    devices = {device: name for name, device, _ in reversed(places) if device != ANYWHERE}
    if not devices and places:
        from blocknb.runtime import machine

        gpu = machine.current_gpu()
        return HOST if gpu is None else gpu
    if len(devices) <= 1:
        return next(iter(devices), HOST)
    if HOST in devices:
        name, _, value = next(p for p in places if p[1] == HOST)
        torch = type(value).__module__.startswith("torch")
        what = (
            "a torch tensor of the CPU"
            if torch
            else f"a {'NumPy array' if type(value).__module__ == 'numpy' else type(value).__name__} in the CPU's memory"
        )
        fix = f"{name}.cuda()" if torch else f"cupy.asarray({name})"
        other = next(n for d, n in devices.items() if d >= 0)
        raise launch_error(source, name, f"`{name}` is {what}, while `{other}` lies on a GPU", f"pass {fix}")
    (a, first), (b, second) = sorted(devices.items())[:2]
    raise launch_error(
        source,
        second,
        f"`{first}` lies on GPU {a} and `{second}` on GPU {b}",
        "a launch takes arrays of one GPU",
    )


def starter(compiled: Compiled, binding: Binding, kinds: tuple[Kind, ...], device: int) -> Start:
    """What starts a compiled kernel on a device, with the values of a binding."""
    from blocknb.frontend.descriptors import field_names

    fields = [
        field
        for name, kind in flat(binding.names, kinds)
        for field in (field_names(name, kind.type.rank) if isinstance(kind.type, Descriptor) else [name])
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
            start = driver.Launcher(compiled, device, positions, library(kinds))
    shapes = [_shape(kind) for kind in kinds]
    return start if shapes.count(None) == len(kinds) else _flattened(start, shapes)


def _shape(kind: Kind) -> Any:
    """What an argument is taken apart into: a list for a tuple, () for a tensor descriptor, None where it stays whole."""
    if isinstance(kind.type, Tuple):
        return [_shape(part) for part in kind.type.parts]
    return () if isinstance(kind.type, Descriptor) else None


def _flattened(start: Start, shapes: Sequence[Any]) -> Start:
    """A starter whose arguments may be tensor descriptors, of which each becomes its array, sizes and strides, and tuples, which
    become their elements."""

    def take(shapes: Sequence[Any], raws: Sequence[Any], values: Sequence[Any], flat: list, given: list) -> None:
        for shape, raw, value in zip(shapes, raws, values, strict=True):
            if shape is None:
                flat.append(raw)
                given.append(value)
            elif shape:
                take(shape, raw, value, flat, given)
            else:
                flat += raw
                given += [value.base, *raw[1:]]

    def start_flat(grid: Grid, raws: Sequence[Any], values: Sequence[Any]) -> None:
        flat: list[Any] = []
        given: list[Any] = []
        take(shapes, raws, values, flat, given)
        start(grid, flat, given)

    start_flat.keep = start  # type: ignore[attr-defined]
    return start_flat
