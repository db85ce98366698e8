"""The launches on the workers of a cluster while a cell runs: observed there, and collected in the notebook.

Each worker has an Observation per cell. Its launches come back as numbers, types and the kernel itself, never as arrays. The notebook
compiles each kernel for the same types, options and target. This launches nothing and needs no such device. Then it passes a Launch to its
own observers, so the card of a distributed launch is made like any other card.
"""

from __future__ import annotations

import os
import statistics
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.notebook import numbers
from blocknb.notebook.observe import Observation
from blocknb.profile import machines
from blocknb.runtime import compile as compiler
from blocknb.runtime import kernel as kernels
from blocknb.runtime import launch_context
from blocknb.runtime.kernel import Kernel, Launch
from blocknb.runtime.kinds import HOST
from blocknb.target import Target

Row = dict[str, Any]


@dataclass(frozen=True)
class WorkerLaunches:
    """The launches of one specialization on one worker. `bytes` are those of the arrays of all its launches."""

    kernel: Kernel
    kinds: Mapping[str, Any]
    options: Mapping[str, Any]
    target: Target
    grid: tuple[int, int, int]
    arguments: Mapping[str, dict[str, Any]]
    milliseconds: list[float]
    bytes: int
    compile_ms: float | None


@dataclass(frozen=True)
class WorkerReport:
    """The launches of a worker during a cell. `process` is its host and process, and `device` the name of its device."""

    process: tuple[str, int]
    device: str
    launches: list[WorkerLaunches]


# ---- on a worker --------------------------------------------------------------------------------------------------------


class WorkerObservation(Observation):
    """An Observation that also adds up the bytes of the arrays of each specialization."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: dict[int, int] = {}

    def _record_launch(self, launch: Launch) -> None:
        super()._record_launch(launch)
        count = sum(int(summary.get("bytes", 0)) for summary in launch.arguments.values())
        with self._lock:
            self.bytes[id(launch.compiled)] = self.bytes.get(id(launch.compiled), 0) + count


_observations: dict[str, WorkerObservation] = {}


def own_process() -> tuple[str, int]:
    """The host and the number of this process."""
    return os.uname().nodename, os.getpid()


def begin(token: str) -> None:
    """Starts to observe the launches of this process."""
    if token not in _observations:  # several workers may be threads of one process
        _observations[token] = WorkerObservation()
        _observations[token].start()


def end(token: str) -> WorkerReport | None:
    """Stops to observe, and returns what was launched; None for the second worker of a process, and after a restart of the worker."""
    observation = _observations.pop(token, None)
    if observation is None:
        return None
    observation.stop()
    made = [(r.kernel, s) for r in observation.records.values() for s in r.specialisations.values()]
    launches = [
        WorkerLaunches(
            kernel,
            dict(one.compiled.kinds),
            dict(one.compiled.options),
            one.compiled.target,
            one.grid,
            one.arguments,
            one.milliseconds,
            observation.bytes[id(one.compiled)],
            None if one.compiled.trace.from_cache else sum(one.compiled.trace.milliseconds.values()),
        )
        for kernel, one in made
    ]
    return WorkerReport(own_process(), machines.own_device()[1], launches)


# ---- in the notebook ----------------------------------------------------------------------------------------------------


def start(client: Any) -> str:
    """Makes all workers observe their launches, and returns the token of this observation."""
    token = uuid.uuid4().hex
    client.run(begin, token)
    return token


def stop(client: Any, token: str) -> dict[str, WorkerReport | None]:
    """Ends the observation. Returns the reports of the workers by address."""
    return dict(client.run(end, token))


def collect(client: Any, token: str) -> dict[Kernel, list[Row]]:
    """Ends the observation. Passes its launches to the observers of this process, and returns the rows of the workers by kernel.

    The observers have already seen launches of workers that are threads of this process."""
    found: dict[Kernel, list[Row]] = {}
    for address, report in sorted(stop(client, token).items()):
        if report is None:
            continue
        for launched in report.launches:
            kernel = local_kernel(launched.kernel)
            found.setdefault(kernel, []).append(row(address, report.device, launched))
            if report.process != own_process():
                for launch in _local_launches(kernel, launched):
                    for observer in list(launch_context.observers):
                        observer(launch)
    return {kernel: _merged(rows) for kernel, rows in found.items()}


def local_kernel(received: Kernel) -> Kernel:
    """The newest kernel of this process with the name and the text of a received one. So its card is that of the user's kernel."""
    same = [
        k
        for k in list(kernels.by_number.values())
        if k is not received and k.__name__ == received.__name__ and k.source.text == received.source.text
    ]
    return max(same, key=lambda k: k.number, default=received)


def _local_launches(kernel: Kernel, launched: WorkerLaunches) -> Iterator[Launch]:
    """The launches of a worker as Launches of this process, whose code is compiled here for the target of the worker."""
    compiled = compiler.compile(kernel.source, launched.kinds, launched.options, launched.target)
    compiled.kernel = kernel
    kernel.latest = compiled
    for milliseconds in launched.milliseconds:
        yield Launch(kernel, compiled, launched.grid, launched.arguments, milliseconds, HOST)


def row(address: str, device: str, launched: WorkerLaunches) -> Row:
    """One row of the part "workers". Times are in milliseconds; `compile_ms` is None for code from the cache of the worker's host."""
    return {
        "worker": address,
        "device": device,
        "launches": len(launched.milliseconds),
        "compile_ms": launched.compile_ms,
        "ms": statistics.median(launched.milliseconds),
        "total_ms": sum(launched.milliseconds),
        "bytes": launched.bytes,
    }


def _merged(rows: Sequence[Row]) -> list[Row]:
    """One row per worker: a worker may have launched several specializations. The median is that of the most frequent one."""
    found: dict[str, Row] = {}
    for one in sorted(rows, key=lambda row: -row["launches"]):
        known = found.setdefault(one["worker"], {**one, "launches": 0, "total_ms": 0.0, "bytes": 0, "compile_ms": None})
        for name in ("launches", "total_ms", "bytes"):
            known[name] += one[name]
        if one["compile_ms"] is not None:
            known["compile_ms"] = (known["compile_ms"] or 0.0) + one["compile_ms"]
    return [found[name] for name in sorted(found)]


def part(client: Any, rows: Sequence[Row]) -> dict[str, Any]:
    """The part "workers" of a document: the rows, and the address of Dask's dashboard, "" without one."""
    link = str(getattr(client, "dashboard_link", None) or "")
    return {"dashboard": link if link.startswith(("http://", "https://")) else "", "rows": list(rows)}


def facts(part: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The part as facts at the top of a card."""
    rows = part["rows"]
    total = sum(row["launches"] for row in rows)
    launches = f"{total} launches" if total != 1 else "1 launch"
    found = [("workers", f"{launches} on {numbers.plural(len(rows), 'worker')}")]
    for one in rows:
        compiled = "from the cache" if one["compile_ms"] is None else f"compiled in {numbers.time(one['compile_ms'])}"
        text = (
            f"{one['launches']} × {numbers.time(one['ms'])}, {numbers.size(one['bytes'])}, {compiled}, {one['device']}"
        )
        found.append((f"  {one['worker']}", text))
    return found + ([("dashboard", part["dashboard"])] if part["dashboard"] else [])
