"""The launch plan: a compiled kernel with its device, and the function that starts it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blocknb.frontend.source import Source
from blocknb.language import types as t
from blocknb.language.constants import like
from blocknb.language.types import Descriptor
from blocknb.runtime import cuda, kinds, machine
from blocknb.runtime.binding import Binding, launch_error
from blocknb.runtime.descriptor import parse_descriptor
from blocknb.runtime.divisor_specialization import FINER
from blocknb.runtime.interface import MockTensor
from blocknb.runtime.kinds import ANYWHERE, HOST, Kind, Tuple, flat, spelled
from blocknb.runtime.launch_context import Grid, Start
from blocknb.target import Target

if TYPE_CHECKING:
    from blocknb.runtime.compile import Compiled
    from blocknb.runtime.host import HostKernel


@dataclass(frozen=True, eq=False)
class LaunchPlan:
    """A compiled kernel on a device. `start(grid, raws, values)` takes the raw values and the arguments in the binding's order."""

    compiled: Compiled
    kinds: tuple[Kind, ...]
    device: int
    start: Start


def parse_type(text: str) -> Kind | None:
    """Returns the Kind of a type text, such as "*fp32", "*fp16:16", "i32", "i32:16", "fp32" or "tensordesc<fp16[64,64]>"; None for other
    texts."""
    name, _, divisor = text.partition(":")
    if described := parse_descriptor(name):
        if divisor not in ("", "1", "16"):
            return None
        return kinds.descriptor_kind(described, divisor == "16", ANYWHERE, False, "")
    star = name.startswith("*")
    known = {**t.BY_SHORT, **t.BY_NAME}.get(name.removeprefix("*"))
    multiples = ("", "1", "16") if star else ("", "1", "8", "16", *map(str, FINER))
    if known is None or divisor not in multiples or (known.is_fp8() and not star):
        return None
    if star:
        return kinds.pointer_kind(known, divisor == "16", ANYWHERE)
    return kinds.multiple_kind(known, int(divisor or 1))


def typed(value: Any, fixed: bool) -> Any:
    """Replaces the type texts of run-time parameters by Kinds, also in tuples."""
    if isinstance(value, tuple) and not fixed:
        return like(value, (typed(element, False) for element in value))
    return (parse_type(value) or value) if isinstance(value, str) and not fixed else value


def mocked(value: Any, fixed: bool) -> Any:
    """Replaces the dtypes and type texts of run-time parameters by a MockTensor or a Kind, also in tuples."""
    if isinstance(value, tuple) and not fixed:
        return like(value, (mocked(element, False) for element in value))
    return value if fixed else MockTensor.wrap_dtype(typed(value, fixed))


def library(kinds: Iterable[Kind]) -> str:
    """The library on whose stream a launch runs: "torch", or "" for CuPy."""
    return "torch" if any(kind.library == "torch" for kind in kinds) else ""


def target_of(device: int) -> Target:
    """The target of kernels that run on a device."""
    return Target.parse("cpu") if device == HOST else cuda.target(device)


def common_device(source: Source, names: Sequence[str], kinds: Sequence[Kind], values: Sequence[Any]) -> int:
    """Returns the device of all arrays. Arrays without memory run on the current GPU, or else on the CPU. Raises LaunchError for several
    devices."""
    places = [
        (spelled(name), kind.device, value)
        for name, kind, value in flat(names, kinds, values)
        if kind.device is not None
    ]
    devices = {device: name for name, device, _ in reversed(places) if device != ANYWHERE}
    if not devices and places:
        gpu = machine.current_gpu()
        return HOST if gpu is None else gpu
    if len(devices) <= 1:
        return next(iter(devices), HOST)
    if HOST in devices:
        name, _, value = next(p for p in places if p[1] == HOST)
        if type(value).__module__.startswith("torch"):
            what, fix = "a torch tensor of the CPU", f"{name}.cuda()"
        else:
            array = "NumPy array" if type(value).__module__ == "numpy" else type(value).__name__
            what, fix = f"a {array} in the CPU's memory", f"cupy.asarray({name})"
        other = next(n for d, n in devices.items() if d >= 0)
        raise launch_error(source, name, f"`{name}` is {what}, while `{other}` lies on a GPU", f"pass {fix}")
    (a, first), (b, second) = sorted(devices.items())[:2]
    message = f"`{first}` lies on GPU {a} and `{second}` on GPU {b}"
    raise launch_error(source, second, message, "pass arrays of one GPU")


def check_writable(source: Source, names: Sequence[str], kinds: Sequence[Kind], stored: Collection[str]) -> None:
    """Raises LaunchError if a kernel stores through a read-only array."""
    for name, kind in flat(names, kinds):
        if kind.readonly and name in stored:
            shown = spelled(name)
            message = f"the kernel {source.name} stores through `{shown}`, and that array is read-only"
            raise launch_error(source, name, message, f"pass a copy: {shown}.copy()")


def prepared(compiled: Compiled, binding: Binding, kinds: tuple[Kind, ...], device: int) -> LaunchPlan:
    """The launch plan of a compiled kernel. If its code comes from the disk and cannot be started, it is compiled again."""
    try:
        start = starter(compiled, binding, kinds, device)
    except Exception:
        if not compiled.trace.from_cache:
            raise
        from blocknb.runtime.compile import recompiled

        compiled = recompiled(compiled)
        start = starter(compiled, binding, kinds, device)
    return LaunchPlan(compiled, kinds, device, start)


def starter(
    compiled: Compiled,
    binding: Binding,
    kinds: tuple[Kind, ...],
    device: int,
    kernel_class: type[HostKernel] | None = None,
) -> Start:
    """Returns the function that starts a compiled kernel on a device, from the values of a binding.

    `kernel_class` runs the machine code on the CPU, by default `host.HostKernel`."""
    from blocknb.frontend.descriptors import field_names

    fields = [
        field
        for name, kind in flat(binding.names, kinds)
        for field in (field_names(name, kind.type.rank) if isinstance(kind.type, Descriptor) else [name])
    ]
    positions = [fields.index(name) for name, _ in compiled.parameters]
    if device == HOST:
        from blocknb.runtime import host

        start = host.starter(compiled, positions, kernel_class or host.HostKernel)
    else:
        from blocknb.runtime import driver, reports

        if compiled.code.reports:
            start = reports.starter(compiled, device, positions, library(kinds), len(fields))
        else:
            start = driver.Launcher(compiled, device, positions, library(kinds))
    shapes = [_shape(kind) for kind in kinds]
    return start if shapes.count(None) == len(kinds) else _flattened(start, shapes)


def _shape(kind: Kind) -> Any:
    """The structure of an argument: a list for a tuple, () for a tensor descriptor, None for a number or an array."""
    if isinstance(kind.type, Tuple):
        return [_shape(part) for part in kind.type.parts]
    return () if isinstance(kind.type, Descriptor) else None


def _flattened(start: Start, shapes: Sequence[Any]) -> Start:
    """Wraps a starter so that its arguments may be tuples, which become their elements, and tensor descriptors, which become an array,
    sizes and strides."""

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

    start_flat.inner = start  # type: ignore[attr-defined]
    return start_flat
