"""The fast path of a launch: a Python function generated for one launch plan, which repeats the launch without describing its arguments.

The general path describes every argument and looks up the plan by the resulting specialization key. A launch in a loop has the same
key every time, and a test for equality is cheaper than a description. The generated function makes one test per argument. It tests every
element of a tuple, and the array, sizes and strides of a tensor descriptor. It has one parameter for each value of the call, so
Python itself binds them. It also starts GPU kernels that print nothing: it packs the arguments into a buffer and calls the driver once.

The function is generated when a plan is used for the second time. A call that it rejects takes the general path, so it changes
speed alone. It must reject every call whose specialization key differs, every stale plan, and every call while an observer is registered.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np

from blocknb.errors import LaunchError
from blocknb.frontend.source import MISSING
from blocknb.language.constants import constexpr
from blocknb.language.types import Descriptor, DType, Pointer
from blocknb.runtime import arguments, launch_context
from blocknb.runtime.binding import LEFT_OUT, Binding, place
from blocknb.runtime.descriptor import TensorDescriptor
from blocknb.runtime.divisor_specialization import divides
from blocknb.runtime.driver import MAX_GRID, Launcher
from blocknb.runtime.kinds import HOST, NONE, ONE, Kind, Tuple
from blocknb.runtime.launch_context import slow_path_threads
from blocknb.runtime.launchable import Launchable
from blocknb.runtime.plan import LaunchPlan

Launch = Callable[..., Any]
#: The file name of generated code. It lies in this package, so that messages name the caller's line.
_FILE = os.path.join(os.path.dirname(__file__), "<a repeated launch>")
_INT32, _INT64 = "-0x80000000 <= {0} <= 0x7FFFFFFF", "-0x8000000000000000 <= {0} <= 0x7FFFFFFFFFFFFFFF"
_IMMUTABLE = (int, float, bool, str, type(None))


@dataclass(frozen=True, eq=False)
class FastLaunch:
    """The fast path of one plan and one way of calling.

    `launch(grid, *args, **kwargs)` starts the calls that it recognises and passes the others to the general path.
    `attempt(grid, *values)` takes the values of a call in the binding's order. It returns None for a call that it does not recognise;
    otherwise it makes `launch` the first function that the kernel tries. Both return the plan's Compiled."""

    plan: LaunchPlan
    launch: Callable[..., Any]
    attempt: Callable[..., Any]


def fast_launch(kernel: Launchable, binding: Binding, plan: LaunchPlan, values: Sequence[Any]) -> FastLaunch | None:
    """Returns the FastLaunch of a plan, from values that have its Kinds, or None where no short test recognises a Kind."""
    writer = _FastLaunchWriter(kernel, binding, plan, values)
    if not writer.recognised:
        return None
    make = _compiled(writer.text(), tuple(writer.names))
    return FastLaunch(plan, *make(*writer.names.values()))


@functools.lru_cache(512)
def _compiled(text: str, names: tuple[str, ...]) -> Callable[..., Any]:
    """Returns a function that takes objects by these names and runs the text. Kernels that are called alike share its code."""
    space: dict[str, Any] = {}
    exec(compile(f"def make({', '.join(names)}):\n{text}", _FILE, "exec"), space)
    return space["make"]


def _unchanging(value: Any) -> bool:
    """Whether a constant is immutable, so that its description never changes."""
    return all(map(_unchanging, value)) if isinstance(value, tuple) else not isinstance(value, (list, set, constexpr))


class _FastLaunchWriter:
    """Writes the function. `names` are the objects that it closes over. Their names begin with more underscores than any keyword of
    the call does."""

    def __init__(self, kernel: Launchable, binding: Binding, plan: LaunchPlan, values: Sequence[Any]):
        self.kernel, self.binding, self.plan = kernel, binding, plan
        self.mark = "_"
        while any(name.startswith(self.mark) for name in binding.keywords):
            self.mark += "_"
        self.names: dict[str, Any] = {}
        for name, known in (("type", type), ("len", len), ("int", int), ("tuple", tuple), ("left", LEFT_OUT)):
            self.name(known, name)
        self.name(kernel, "kernel")
        self.name(plan.compiled, "compiled")
        given = [f"{self.mark}{i}" for i in range(binding.positional)] + list(binding.keywords)
        defaults = [self.name(value) for value in values[len(given) :]]
        self.given, self.values = given, [*given, *defaults]
        self.tests: list[str] = []
        tests: list[tuple[bool, bool, str]] = []
        self.raws: list[str] = []
        self.flat: list[str] = []  # the same with tuples and descriptors taken apart
        start = getattr(plan.start, "inner", plan.start)
        self.launcher = start if isinstance(start, Launcher) else None
        self.locals = 0
        self.recognised = True
        for i, (name, value, kind, fixed) in enumerate(
            zip(self.values, values, plan.kinds, binding.fixed, strict=True)
        ):
            found = self.constant(name, value) if fixed else self.argument(name, value, kind, i in binding.moduli)
            if fixed:
                self.flat.append("None")
            if name in defaults and (_unchanging(value) if fixed else type(value) in _IMMUTABLE):
                found = "", name  # the call left it out, and an immutable default cannot change
            if found is None:
                self.recognised = False
                return
            tests.append((fixed, not isinstance(kind.type, Pointer), found[0]))
            self.raws.append(found[1])
        # The tests that fail most often and cost least come first.
        self.tests = [test for *_, test in sorted(tests, key=operator.itemgetter(0, 1), reverse=True) if test]

    def name(self, value: Any, name: str = "") -> str:
        """Returns the name under which the function finds an object."""
        name = f"{self.mark}{name or f'c{len(self.names)}'}"
        self.names[name] = value
        return name

    # ---- tests of arguments -----------------------------------------------------------------------------------------------

    def local(self, what: str = "a") -> str:
        """Returns the name of a new variable of the function."""
        self.locals += 1
        return f"{self.mark}{what}{self.locals}"

    def is_a(self, name: str, type_: type) -> str:
        return f"{self.mark}type({name}) is {self.name(type_)}"

    def constant(self, name: str, value: Any) -> tuple[str, str] | None:
        """(the test whether an argument is the same constant, its raw value)."""
        same = f"{name} is {self.name(value)}"
        empty = type(value) is tuple and not value
        if value is None or empty or isinstance(value, (DType, FunctionType, type(self.kernel))):
            return same, "None"
        # Floats that are equal may differ in the sign of a zero, and a NaN is not equal to itself.
        if type(value) in (int, str, bool) or (type(value) is float and value and value == value):
            return f"({same} or {self.is_a(name, type(value))} and {name} == {self.name(value)})", "None"
        return (same, "None") if type(value) is float else None

    def argument(self, name: str, value: Any, kind: Kind, modulus: bool = False) -> tuple[str, str] | None:
        """(the test whether an argument has the same Kind, its raw value). Adds the value to `flat`. `modulus`: its Kind may be finer."""
        if isinstance(kind.type, Tuple):
            return self.elements(name, value, kind)
        if isinstance(kind.type, Descriptor):
            return self.descriptor(name, value, kind)
        found = (
            self.array(name, value, kind) if isinstance(kind.type, Pointer) else self.number(name, value, kind, modulus)
        )
        if found is not None:
            self.flat.append(found[1])
        return found

    def elements(self, name: str, value: Any, kind: Kind) -> tuple[str, str] | None:
        """The test whether the elements of a tuple have the same Kinds, and their raw values."""
        tests, raws = [f"{self.is_a(name, type(value))} and {self.mark}len({name}) == {len(value)}"], []
        for i, (part, of_part) in enumerate(zip(value, kind.type.parts, strict=True)):
            element = self.local("e")
            if (found := self.argument(element, part, of_part)) is None:
                return None
            tests.append(f"({element} := {name}[{i}]) is not {self.mark}left and {found[0]}")
            raws.append(found[1])
        return " and ".join(tests), f"[{', '.join(raws)}]"

    def descriptor(self, name: str, value: Any, kind: Kind) -> tuple[str, str] | None:
        """The test whether a tensor descriptor has the same block, and an aligned array of the same Kind; and its raw values."""
        if type(value) is not TensorDescriptor or type(value.block_shape) not in (list, tuple):
            return None
        base, shape, strides, rank = self.local("b"), self.local("s"), self.local("s"), len(value.shape)
        if (found := self.array(base, value.base, arguments.describer(value.base)(value.base)[0])) is None:
            return None
        block = self.name(value.block_shape[:])
        tests = [
            f"{self.is_a(name, TensorDescriptor)} and {name}.block_shape == {block}",
            f"{name}.padding == {self.name(value.padding)} and ({base} := {name}.base) is not {self.mark}left",
            found[0],
            f"{self.mark}len({shape} := {name}.shape) == {self.mark}len({strides} := {name}.strides) == {rank}",
            f"{'not ' * (kind.divisibility == 16)}{shape}[{rank - 1}] & 15",
        ]
        raws = [found[1], *(f"{shape}[{i}]" for i in range(rank)), *(f"{strides}[{i}]" for i in range(rank - 1))]
        self.flat += raws
        return " and ".join(tests), f"({', '.join(raws)})"

    def number(self, name: str, value: Any, kind: Kind, modulus: bool) -> tuple[str, str] | None:
        if kind is NONE:
            return f"{name} is None", "None"
        raw, same = name, self.is_a(name, type(value))
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            value, raw = value.item(), self.local()
            same += f" and (({raw} := {name}.item()) or True)"
        if type(value) not in (int, float, bool):
            found = self.constant(name, value) if kind.constant else None
            return found and (found[0], name)
        if type(value) is not int:
            return same, raw
        if kind is ONE:
            return f"{same} and {raw} == 1", raw
        same += f" and {raw} != 1 and {divides(raw, kind.divisibility, modulus)}"
        if raw != name:  # a NumPy scalar, whose type fixes its number of bits
            return same, raw
        if kind.type.name == "int32":
            return f"{same} and {_INT32.format(name)}", raw
        wide = kind.type.name == "int64"
        return (f"{same} and {_INT64.format(name)} and not {_INT32.format(name)}", raw) if wide else None

    def array(self, name: str, value: Any, kind: Kind) -> tuple[str, str] | None:
        address = self.local()
        mask = kind.type.element.bytes - 1
        match arguments.DESCRIBE.get(type(value)):
            case arguments.describe_numpy if not kind.readonly and arguments.numpy_address is arguments.direct_address:
                where = f"{name}.flags.writeable"
                place = f"{self.name(id)}({name}) + {arguments.DATA_OFFSET}"
                read = f"{self.name(arguments.read_pointer)}({place}).value or 0"
            case arguments.describe_cupy:
                memory = f"{self.mark}m"
                where, read = f"({memory} := {name}.data).device_id == {kind.device}", f"{memory}.ptr"
            case arguments.describe_torch if kind.device == HOST:
                where, read = f"{name}.is_cpu and not {name}.is_neg()", f"{name}.data_ptr()"
            case arguments.describe_torch:
                where, read = f"{name}.is_cuda and not {name}.is_neg()", f"{name}.data_ptr()"
                if self.launcher is None or not self.launcher.queue.only_gpu:
                    where += f" and {name}.get_device() == {kind.device}"
            case _:
                return None
        dtype = f"{name}.dtype is {self.name(value.dtype)}"
        found = f"({address} := {read})"
        aligned = f"not {found} & 15" if kind.divisibility == 16 else f"{found} & 15 and not {address} & {mask}"
        return f"{self.is_a(name, type(value))} and {dtype} and {where} and {aligned}", address

    def current(self) -> list[str]:
        """The tests whether the names that the source uses still have the values that were compiled."""
        reached = self.plan.compiled.reached
        tests = [f"{self.mark}kernel.source is {self.name(self.binding.source)}"]
        for where, name, found in {(id(p), n): (p, n, f) for each in reached for p, n, f in each.places}.values():
            if found is MISSING:
                tests.append(f"{self.name(name)} not in {self.name(where)}")
            else:  # None may also mean that the name is gone
                otherwise = f", {self.name(MISSING)}" if found is None else ""
                tests.append(f"{self.name(where.get)}({self.name(name)}{otherwise}) is {self.name(found)}")
        for owner, name, found in {(id(o), n): (o, n, f) for each in reached for o, n, f in each.fields}.values():
            tests.append(f"{self.name(owner)}.{name} is {self.name(found)}")
        if self.plan.compiled.calls or any(each.checks for each in reached):
            tests.append(f"not {self.name(self.plan.compiled.stale)}()")
        return tests

    # ---- the function ----------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """Returns the text of both functions, which test the arguments, compute the grid and start the kernel."""
        _, binding, module = self.mark, self.name(self.binding), self.name(launch_context)
        positional, keywords = self.given[: self.binding.positional], self.binding.keywords
        parameters = [f"{_}grid", *(f"{name}={_}left" for name in positional), "/", f"*{_}rest"]
        parameters += [*(f"{name}={_}left" for name in keywords), f"**{_}more"]
        args = "".join(f"{name}, " for name in positional)
        kwargs = "".join(f"{name!r}: {name}, " for name in keywords)
        given = ", ".join([f"{_}grid", *self.given])
        matches, start = self.matches(), self.start()
        return f"""
    def {_}launch({", ".join(parameters)}):
        if {_}rest or {_}more or {module}.observers or {module}.enforced or {self.name(slow_path_threads)} or {_}kernel.interpreted:
            return {_}kernel._general({_}grid, ({args}*{_}rest,), {{{kwargs}**{_}more}})
{matches}
        if {_}same:
{start}
        else:
            for {_}other in {binding}.attempts:
                if {_}other is not {_}attempt and ({_}found := {_}other({given})) is not None:
                    return {_}found
        return {_}kernel._general({_}grid, ({args}), {{{kwargs}}}, {binding})
    def {_}attempt({given}):
{matches}
        if not {_}same:
            return None
        {_}kernel._launch = {_}launch
        if True:
{start}
        return {_}kernel._general({_}grid, ({args}), {{{kwargs}}}, {binding})
    return {_}launch, {_}attempt
"""

    def matches(self) -> str:
        tests = " and ".join([*self.tests, *self.current()])
        return f"""\
        try:
            {self.mark}same = {tests}
        except Exception:  # for example a tensor without memory: the general path reports it
            {self.mark}same = False"""

    def start(self) -> str:
        """Writes the code from the grid to the end. It leaves unusual grids to the general path, which reports errors."""
        _ = self.mark
        bound = ", ".join(f"{key!r}: {name}" for key, name in zip(self.binding.names, self.values, strict=True))
        largest, second, third = MAX_GRID
        start, here, ending = self.launcher, "", ""
        if start is not None and start.packs_unchanged:
            ending = self.direct(start)
            if not start.queue.only_gpu:
                here = f" and {self.name(start.queue.current_device)}() == {start.queue.device}"
            if start.kernel.resident:
                here += f" and {_}x * {_}y * {_}z <= {largest}"
        return f"""\
            {_}kind = {_}type({_}grid)
            if {_}kind is not {_}tuple and {_}kind is not {_}int and {self.name(callable)}({_}grid):
                {_}grid = {_}grid({self.name(self.binding.arguments)}({{{bound}}}))
                {_}kind = {_}type({_}grid)
            {_}axes = {_}len({_}grid) if {_}kind is {_}tuple else 0
            {_}y = {_}z = 1
            if {_}axes == 1:
                ({_}x,) = {_}grid
            elif {_}axes == 2:
                {_}x, {_}y = {_}grid
            elif {_}axes == 3:
                {_}x, {_}y, {_}z = {_}grid
            else:
                {_}x = {_}grid
            if {_}type({_}x) is {_}int and 0 < {_}x <= {largest} and (
                {_}axes < 2 or {_}type({_}y) is {_}type({_}z) is {_}int and 0 < {_}y <= {second} and 0 < {_}z <= {third}
            ){here}:
                {_}kernel.latest = {_}compiled
{ending or self.by_starter()}
                    return {_}compiled"""

    def direct(self, start: Launcher) -> str:
        """Writes the code that packs the arguments and calls the driver."""
        kernel, buffers, queue = start.kernel, start.buffers, start.queue
        _, slots, given = self.mark, f"{self.mark}slots", [self.flat[i] for i in start.positions]
        grid, encoded, maps = ", ".join(_ + axis for axis in "xyz"), "", []
        if buffers.maps is not None:  # `_structs` keeps them alive until the driver has copied them
            maps, reads = (
                [f"{_}map{i}" for i in range(len(buffers.maps.specs))],
                "".join(f"{given[i]}, " for i in buffers.maps.reads),
            )
            known, encode = self.name(buffers.maps.get), self.name(buffers.maps.encode)
            encoded = f"({', '.join(maps)},), {_}structs = {known}(({reads})) or {encode}({reads})"
        packed = "".join(f", {value}" for value in [*maps, *given, *([grid] if kernel.resident else [])])
        if kernel.resident:
            grid = f"({_}ctas if ({_}ctas := {_}x * {_}y * {_}z) < {kernel.resident} else {kernel.resident}), 1, 1"
        append, pop, fresh = (self.name(x) for x in (buffers.free.append, buffers.free.pop, buffers.fresh))
        fixed = ", ".join(self.name(x) for x in (kernel.threads, 1, 1, kernel.shared))
        stream = f"{self.name(queue.current)}({queue.device}){'.ptr' if queue.library != 'torch' else ''}"
        return f"""\
                try:
                    {encoded}
                    try:
                        {slots} = {pop}()
                    except IndexError:
                        {slots} = {fresh}()
                    {self.name(buffers.pack_into)}({slots}[0], 0{packed})
                    {self.name(start.launch)}({self.name(kernel.address)}, {grid}, {fixed}, {stream}, {slots}[1], 0)
                except Exception:
                    pass
                else:
                    {append}({slots})
                    {self.name(start.note)}({self.name(kernel.name)})"""

    def by_starter(self) -> str:
        """Writes the code that calls the plan's starter."""
        _, error = self.mark, f"{self.mark}error"
        raws, values = ", ".join(self.raws), "".join(f"{name}, " for name in self.values)
        return f"""\
                try:
                    {self.name(self.plan.start)}(({_}x, {_}y, {_}z), [{raws}], ({values}))
                except {self.name(LaunchError)} as {error}:  # the device knows no source locations
                    {error}.loc = {error}.loc or {self.name(functools.partial(place, self.binding.source))}()
                    raise
                else:"""
