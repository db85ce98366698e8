"""A sweep on every kind of device of a cluster: one worker per kind measures it, and the results become one Sweep.

The launch travels with copies of its arrays, as cloudpickle packs it. A worker launches it on its own device, and measures as a notebook
does. Kinds are measured one after another, because two workers of one machine would disturb each other. Each kind gets a line, and a line
for its roof: the ceiling of the device that bounds the work of each point first.
"""

from __future__ import annotations

import itertools
import pickle
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blocknb.errors import KernelError, LaunchError
from blocknb.notebook import numbers, plot_data, sweep, sweep_answer
from blocknb.notebook.check_compare import to_numpy
from blocknb.notebook.observe import Observation, without_recording
from blocknb.notebook.progress import Progress
from blocknb.notebook.roofline import ERROR
from blocknb.notebook.sweep import Series, Sweep
from blocknb.notebook.sweep_launches import ConstantSweep, LaunchSweep, assigned
from blocknb.profile import ceilings, machines
from blocknb.profile.replay import Replay
from blocknb.profile.roof import bounds
from blocknb.runtime import memory
from blocknb.runtime.binding import OPTIONS
from blocknb.runtime.kinds import HOST

ROOF = "roof"
ABOVE = (
    "the kernel is above the roof. Part of the data may stay in a cache, or the ceilings were measured on a busy machine "
    "(`blocknb bench ceilings` on that machine measures them again)"
)


@dataclass
class SweepTask:
    """The task of a worker: the axes `names`, the `values` (tuples for two axes), and either a launch or an expression.

    `kernel` with `grid` and `arguments` by name is the launch of a cell. An `expression` is evaluated in `space` for each value, and so is
    `check`; `kernel` is the one whose launches count."""

    kernel: Any
    names: list[str]
    values: list[Any]
    grid: Any = None
    arguments: dict[str, Any] = field(default_factory=dict)
    expression: str = ""
    check: str = ""
    space: dict[str, Any] = field(default_factory=dict)

    @property
    def axis(self) -> Any:
        return self.names[0] if len(self.names) == 1 else (self.names[0], self.names[1])

    def settings(self, point: Any) -> dict[str, Any]:
        """The values of the axes at a point, by name."""
        return dict(zip(self.names, point if len(self.names) > 1 else (point,), strict=True))


@dataclass
class RemoteSweep:
    """The measurements of one worker: the Sweep, and for each of its points the least milliseconds that the roof allows."""

    found: Sweep
    roofs: list[float | None]


def task_of_launch(record: Any, names: Sequence[str], values: Sequence[Any]) -> SweepTask:
    """The task for other constants of a cell's last launch. Raises LaunchError if the launch cannot be sent."""
    ConstantSweep(record, names)  # raises for names that the kernel lacks, and for launches that cannot be repeated
    made = record.latest
    given = made.snapshot.arguments(())
    if given is None:
        raise LaunchError("an array of the launch no longer exists")
    options = {name: value for name, value in made.compiled.options.items() if name in OPTIONS}
    arguments = {name: _portable(value) for name, value in given.items()}
    return SweepTask(record.kernel, list(names), list(values), made.snapshot.grid.given(), {**options, **arguments})


def _portable(value: Any) -> Any:
    """An argument of a launch without memory of a GPU, which the worker may lack."""
    if hasattr(value, "detach"):
        return value.detach().cpu()
    return to_numpy(value) if memory.owner_and_view(value) is not None else value


def task_of_expression(record: Any, names: Sequence[str], values: Sequence[Any], launch: Any, check: Any) -> SweepTask:
    """The task for a launch expression, with the objects that it and the check name."""
    space = launch.shell.user_ns
    wanted = launch.names | (check.names if check is not None else set())
    kept = {name: space[name] for name in sorted(wanted) if name in space}
    text = "" if check is None else check.text
    return SweepTask(record.kernel, list(names), list(values), expression=launch.text, check=text, space=kept)


def on_each_kind(client: Any, task: SweepTask) -> Sweep:
    """Measures a task on one worker of each kind of device, and returns one Sweep with a line and a roof per kind."""
    import cloudpickle

    try:
        packed = cloudpickle.dumps(task)
    except Exception as error:  # of any object that the user's functions reach
        raise LaunchError(f"the launch cannot be sent to a worker: {error}", hint="pass arrays and numbers") from None
    results: dict[str, RemoteSweep] = {}
    notes: list[str] = []
    kinds = machines.one_per_kind(client)
    with Progress(len(kinds), "sweep on the cluster") as progress:
        for kind in kinds:
            progress.step(kind.name)
            try:
                results[kind.name] = machines.run_on(client, kind, measure, packed)
            except KernelError as error:
                notes.append(f"{kind.name}: {numbers.complaint(error)}")
    return combined(task, results, notes)


# ---- on the worker ------------------------------------------------------------------------------------------------------


def measure(packed: bytes) -> RemoteSweep:
    """Measures a task on the device of this process."""
    task: SweepTask = pickle.loads(packed)
    number, name = machines.own_device()
    roofs: dict[str, float | None] = {}
    limits = ceilings.ceilings(number)
    arrays = {name: _on_device(value, number) for name, value in task.arguments.items()}  # alive to the end
    launches = _Expression(task) if task.expression else _launched(task, arrays)

    def replays(point: Any) -> Sequence[Replay]:
        made = launches(point)
        roofs[repr(point)] = _roof(made, limits)
        return made

    def setting(point: Any) -> Any:
        return assigned(task.space, task.settings(point))

    with without_recording(launches.kernel):
        found = sweep.run(launches.kernel.__name__, task.axis, task.values, replays, setting=setting)
        found.notes += launches.notes
        sweep_answer.answer(found)
    found.device = name
    points = found.points if found.second else [point[0] for point in found.points]
    return RemoteSweep(found, [roofs.get(repr(point)) for point in points])


def _launched(task: SweepTask, arguments: Mapping[str, Any]) -> ConstantSweep:
    """The launch of the task on this device, as a record of a cell."""
    observation = Observation()
    observation.start()
    try:
        task.kernel.launch(task.grid, **arguments)
    finally:
        observation.stop()
    return ConstantSweep(observation.records[task.kernel], task.names)


def _on_device(value: Any, number: int) -> Any:
    """An argument of `_portable` in the memory of a device."""
    if number == HOST or memory.owner_and_view(value) is None:
        return value
    if hasattr(value, "detach"):
        return value.to(f"cuda:{number}")
    import cupy

    with cupy.cuda.Device(number):
        return cupy.asarray(value)


class _Expression(LaunchSweep):
    """The launches of an expression that is evaluated in the names of a task."""

    def __init__(self, task: SweepTask):
        self.task = task
        check = (lambda: bool(to_numpy(self._value(task.check)).all())) if task.check else None
        super().__init__(task.kernel, lambda: self._value(task.expression), check, task.check)
        own = [f.__globals__ for f in task.space.values() if isinstance(f, types.FunctionType)]
        self.globals = [space for space in own if space.get("__name__") == "__main__" and space is not globals()]

    def _value(self, text: str) -> Any:
        for space in self.globals:  # functions of the notebook read its variables
            space.update({name: self.task.space[name] for name in self.task.names})
        return eval(text, self.task.space)


def _roof(launches: Sequence[Replay], limits: ceilings.Ceilings) -> float | None:
    """The least milliseconds of some launches, one after another; None if one is unknown."""
    total = 0.0
    for launch in launches:
        if not (found := bounds(launch.work, launch.compiled, limits)):
            return None
        total += max(found.values())
    return total


# ---- in the notebook ----------------------------------------------------------------------------------------------------


def combined(task: SweepTask, results: Mapping[str, RemoteSweep], notes: Iterable[str] = ()) -> Sweep:
    """One Sweep of the results by kind of device: a series and a roof per kind, in a unit that all have."""
    found = Sweep(task.kernel.__name__, task.names[0])
    sweeps = [one.found for one in results.values()]
    units = {one.unit for one in sweeps if one.values}
    found.unit = "ms" if "ms" in units or not units else "GB/s" if "GB/s" in units else "TFLOP/s"
    keys = _axes(found, task, sweeps)
    tables = {name: _Table(one) for name, one in results.items()}
    found.amounts = [_amount(found.unit, key, tables.values()) for key in keys]
    found.series = [*_lines(found, "kernel", keys, tables), *_lines(found, ROOF, keys, tables)]
    sweep.fit_unit(found)
    notes = [*notes, *(f"{name}: {ABOVE}" for name, table in tables.items() if table.above)]
    found.notes = [*notes, *(f"{name}: {note}" for name, one in results.items() for note in one.found.notes)]
    _describe(found, results)
    return found


def _describe(found: Sweep, results: Mapping[str, RemoteSweep]) -> None:
    """Sets the facts that hold for all devices: the fewest runs, whether a sweep was interrupted, and the answers."""
    sweeps = [one.found for one in results.values()]
    found.runs = min((one.runs for one in sweeps), default=0)
    found.device = next(iter(results)) if len(results) == 1 else f"{len(results)} kinds of devices"
    found.busy = next((one.busy for one in sweeps if one.busy), "")
    found.cancelled = any(one.cancelled for one in sweeps)
    found.undecided = all(one.undecided for one in sweeps)
    found.answer = "; ".join(f"{name}: {one.found.answer}" for name, one in results.items()) or "; ".join(found.notes)


class _Table:
    """The milliseconds (median, low, high) of a worker's points and of their roofs, and the amounts of work, by the point as text."""

    def __init__(self, one: RemoteSweep):
        made = one.found
        kernel = next((s for s in made.series if s.kind == "kernel"), None)
        keys = [repr(point if made.second else point[0]) for point in made.points]
        columns = plot_data.times(made.part)[made.series.index(kernel)] if kernel else ([], [], [])
        rows = zip(keys, *columns, strict=False)
        self.times = {key: [ms for ms in times if ms is not None] for key, *times in rows if None not in times}
        self.roofs = {key: [ms] * 3 for key, ms in zip(keys, one.roofs, strict=True) if ms is not None}
        self.above = any(self.times[key][0] * ERROR < ms[0] for key, ms in self.roofs.items() if key in self.times)
        scale = 1e-3 if made.unit == "GFLOP/s" else 1.0
        self.amounts = {key: a * scale for key, a in zip(keys, made.amounts, strict=False) if a is not None}


def _lines(found: Sweep, kind: str, keys: Sequence[str], tables: Mapping[str, _Table]) -> Iterator[Series]:
    """The lines of the kernel or of the roofs, one per device that has any."""
    for name, table in tables.items():
        times = table.times if kind == "kernel" else table.roofs
        series = Series(f"{found.kernel if kind == 'kernel' else kind}, {name}", kind, device=name)
        for key, amount in zip(keys, found.amounts, strict=True):
            series.add(_in_unit(found.unit, amount, times.get(key)))
        if any(median is not None for median in series.median):
            yield series


def _axes(found: Sweep, task: SweepTask, sweeps: Sequence[Sweep]) -> list[str]:
    """Fills in the values of the axes that a worker measured; returns the points as texts, in the order of the series."""
    measured = {repr(point if one.second else point[0]) for one in sweeps for point in one.points}
    points = [point for point in task.values if repr(point) in measured]
    if len(task.names) == 1:
        found.values = points
        return [repr(point) for point in points]
    columns = [list(dict.fromkeys(point[i] for point in points)) for i in (0, 1)]
    found.values, found.second = columns[0], (task.names[1], columns[1])
    return [repr(pair) for pair in itertools.product(*columns)]


def _amount(unit: str, key: str, tables: Iterable[_Table]) -> float | None:
    """The amount of work at a point: divided by milliseconds, it gives a rate. It is the same on all devices."""
    return None if unit == "ms" else next((t.amounts[key] for t in tables if key in t.amounts), None)


def _in_unit(unit: str, amount: float | None, times: Sequence[float] | None) -> tuple[float, float, float] | None:
    if times is None or (unit != "ms" and amount is None):
        return None
    median, low, high = times
    return (median, low, high) if unit == "ms" or amount is None else (amount / median, amount / high, amount / low)
