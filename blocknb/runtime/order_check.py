"""Runs the programs of a launch in other orders, and with poisoned outputs, on copies of its arrays.

The programs of a right kernel may run in any order: all orders give the same result, up to rounding where atomics add floats. The CPU's
machine code runs them one after another, so each order is exact and can be repeated. An array that a kernel only stores to begins as
poison; what still is poison at the end was never stored.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.codegen.cpu.status import NEXT, STOP
from blocknb.footprint.launch import MemoryLaunch
from blocknb.ir.interp import waits
from blocknb.language.ops import ATOMICS
from blocknb.runtime.arguments import describer
from blocknb.runtime.host import HostKernel
from blocknb.runtime.kinds import HOST
from blocknb.runtime.launch_context import unobserved
from blocknb.runtime.launch_snapshot import LaunchSnapshot
from blocknb.runtime.plan import starter
from blocknb.target import Target

POISON = 0xA5
MOST_BYTES = 1 << 28  # of the arrays that are copied for a run
MOST_PARTS = 4096  # groups of neighbouring programs that are shuffled
TOLERANCE = {2: 2e-2, 4: 1e-4, 8: 1e-9}  # of floats that atomics add in another order, by bytes


class OrderedKernel(HostKernel):
    """Machine code whose programs run one after another, in the order of `seed`: None is the order of their numbers, -1 the reverse."""

    seed: int | None = None

    def _run_on_threads(self, total: int, on_caller: bool, pointers: tuple[int, int], status: int) -> None:
        counter, stop = ctypes.c_int64.from_address(status + 8 * NEXT), ctypes.c_int64.from_address(status + 8 * STOP)
        scratch = self.scratch()
        step = -(-total // min(total, MOST_PARTS))
        firsts = np.arange(0, total, step)
        if self.seed is not None:
            firsts = firsts[::-1] if self.seed < 0 else np.random.default_rng(self.seed).permutation(firsts)
        for first in firsts.tolist():
            if stop.value:
                break
            counter.value = first
            self._function(1, min(first + step, total), total, *pointers, scratch, status)


@dataclass(frozen=True)
class Difference:
    """An element that differs. `name` is the array, `index` its element in row-major order, `count` the number of such elements; `first`
    and `second` are its values, and `orders` what the programs were run in."""

    name: str
    index: int
    count: int
    first: Any
    second: Any
    orders: tuple[str, str]


@dataclass(frozen=True)
class OrderCheck:
    """The result of the runs. It has the `orders` that were run, and an element that depends on the order. For each array it has the
    elements that no program stored (bool per element, in row-major order). `skipped` gives the reason if nothing was run."""

    orders: tuple[str, ...] = ()
    difference: Difference | None = None
    unstored: Mapping[str, np.ndarray] | None = None
    skipped: str = ""


def check_orders(
    kernel: Any, grid: Any, snapshot: LaunchSnapshot | None, launch: MemoryLaunch, seeds: int = 3, seconds: float = 2.0
) -> OrderCheck:
    """Runs a launch on copies: in the order of the program numbers, in reverse, in `seeds` random orders, and with poison. It stops after
    `seconds`. Raises KernelError."""
    if reason := _unsuitable(launch, snapshot):
        return OrderCheck(skipped=reason)
    assert snapshot is not None
    deadline, stored = time.monotonic() + seconds, _stored(launch)
    ways: list[tuple[str, int | None]] = [("ascending order", None), ("descending order", -1)]
    ways += [(f"random order {seed}", seed) for seed in range(1, seeds + 1)]
    first, done, difference = None, [], None
    for label, seed in ways:
        found = _run(kernel, launch, snapshot, stored, seed)
        if isinstance(found, str):
            return OrderCheck(skipped=found)
        done.append(label)
        first = first or found
        difference = difference or _difference(launch, first, found, (done[0], label))
        if difference or time.monotonic() > deadline:
            break
    poisoned = _only_stored(launch)
    unstored = {}
    if poisoned and time.monotonic() < deadline:
        found = _run(kernel, launch, snapshot, stored, None, poisoned)
        if not isinstance(found, str):
            unstored = {
                name: (found[name].view(np.uint8) == POISON).reshape(found[name].size, -1).all(1) for name in poisoned
            }
    return OrderCheck(tuple(done), difference, {name: flags for name, flags in unstored.items() if flags.any()})


def tests_hints(launch: MemoryLaunch) -> bool:
    """Whether the IR of a launch, parsed with `checked=True`, tests hints of the author."""
    return any(op.name == "assert" and len(op.args) > 1 for op in launch.func.ops())


def takes_turns(launch: MemoryLaunch) -> bool:
    """Whether programs use what an atomic returns, such as a ticket: then the order of the programs decides on purpose."""
    results = {value for op in launch.func.ops() if op.name in ATOMICS for value in op.results}
    return any(value in results for op in launch.func.ops() for value in op.args)


def _unsuitable(launch: MemoryLaunch, snapshot: LaunchSnapshot | None) -> str:
    if snapshot is None:
        return "an argument cannot be copied"
    if waits(launch.func.body):
        return "its programs wait for each other"
    if sum(region.high - region.low for region in launch.regions) > MOST_BYTES:
        return f"its arrays have more than {MOST_BYTES >> 20} MiB"
    return ""


def _stored(launch: MemoryLaunch) -> list[str]:
    """The arrays that the kernel may change, and those that share memory with one."""
    from blocknb.footprint.static import changed

    found = changed(launch)
    return [array.name for array in launch.arrays if array.parameter in found]


def _only_stored(launch: MemoryLaunch) -> list[str]:
    """The arrays that the kernel stores to and reads nothing from, also not through another argument."""
    from blocknb.runtime.effects import memory_use

    stored, loaded = memory_use(launch.func)
    alone = {region.arrays[0].name for region in launch.regions if len(region.arrays) == 1}
    dense = {array.name for array in launch.arrays if array.dense}
    return sorted((stored - loaded) & alone & dense)


def _run(
    kernel: Any,
    launch: MemoryLaunch,
    snapshot: LaunchSnapshot,
    stored: list[str],
    seed: int | None,
    poisoned: Sequence[str] = (),
) -> dict[str, np.ndarray] | str:
    """The stored arrays after one run, flat, by name; or why there is none."""
    given = snapshot.arguments(stored)
    if given is None:
        return "an array of it no longer exists"
    given = {name: on_host(value) for name, value in given.items()}
    for name in poisoned:
        np.asarray(_array(given[name])).reshape(-1).view(np.uint8)[:] = POISON
    options = {"checked": True} if tests_hints(launch) else {}
    binding, values = kernel.bound_call((), {**given, **options})
    kinds, raws = kernel.describe(binding, values)
    compiled = kernel._compile(binding, kinds, Target.parse("cpu"), None)
    kernel_class = type("OrderedKernel", (OrderedKernel,), {"seed": seed})
    with unobserved():  # it mutes what the kernel prints
        starter(compiled, binding, kinds, HOST, kernel_class)(launch.grid, raws, values)
    return {name: np.ascontiguousarray(_array(_leaf(given, name))).reshape(-1) for name in stored}


def _leaf(given: Mapping[str, Any], name: str) -> Any:
    """An argument by name; `x.0` is the first element of the tuple `x`."""
    first, *rest = name.split(".")
    value = given[first]
    for index in rest:
        value = value[int(index)]
    return value


def _array(value: Any) -> np.ndarray:
    """The NumPy array of an argument on the host."""
    while not isinstance(value, np.ndarray) and hasattr(value, "base") and not hasattr(value, "numpy"):
        value = value.base
    if hasattr(value, "view") and type(value).__module__.startswith("torch"):
        import torch

        plain = value.detach()
        return (
            plain.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[plain.element_size()]).numpy()
            if (plain.dtype in (torch.bfloat16,) or "float8" in str(plain.dtype))
            else plain.numpy()
        )
    return np.asarray(value)


def on_host(value: Any) -> Any:
    """An argument in host memory: arrays of a GPU are copied."""
    kind, _ = describer(value)(value) if not isinstance(value, (tuple, str, type(None))) else (None, None)
    if kind is None or kind.device is None or kind.device < 0:
        return value
    if hasattr(value, "get"):
        return value.get()
    return value.cpu() if hasattr(value, "cpu") else value


def _difference(
    launch: MemoryLaunch, first: dict[str, np.ndarray], second: dict[str, np.ndarray], orders: tuple[str, str]
) -> Difference | None:
    atomics = any(op.name in ATOMICS for op in launch.func.ops())
    for name, a in first.items():
        b = second[name]
        bits = [x.view(np.uint8).reshape(x.size, -1) for x in (a, b)]
        wrong = (bits[0] != bits[1]).any(1)
        if atomics and a.dtype.kind not in "iub" and wrong.any():
            x, y = a.astype(np.float64), b.astype(np.float64)
            scale = max(float(np.abs(x[np.isfinite(x)]).max(initial=0.0)), 1e-30)
            with np.errstate(invalid="ignore"):
                wrong &= ~(np.abs(x - y) <= TOLERANCE[a.itemsize] * scale) & ~(np.isnan(x) & np.isnan(y))
        if wrong.any():
            at = int(np.argmax(wrong))
            return Difference(name, at, int(np.count_nonzero(wrong)), a[at], b[at], orders)
    return None
