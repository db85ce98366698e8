"""Keeps the choices of an autotuner in the disk cache, under a key of everything that influences them.

The key holds the kernel, all functions and constants that it uses, and its options and heuristics. It holds the configurations, the tuning
key, and the constants and options of the launch. It also holds the machine and the versions of compiler, LLVM, ptxas and driver. A key part
that is no number, text, dtype or function has no stable description, so such a choice is not stored. Neither are configurations with hooks.
The cache writes an entry to a temporary file and renames it, so processes may tune the same kernel at the same time. It drops an entry that
it cannot read, and the kernel is tuned again.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.codegen import toolchain
from blocknb.frontend.dependencies import dependencies
from blocknb.frontend.description import ATOMS, Collector
from blocknb.profile.ceilings import name_of
from blocknb.runtime import cache, host, machine
from blocknb.runtime.arguments import describer
from blocknb.runtime.kernel import Kernel
from blocknb.runtime.kinds import HOST
from blocknb.runtime.launch_context import enforced
from blocknb.tune.config import Config
from blocknb.tune.tuning import STATUSES, Trial, Tuning

FORMAT = 2  # version of entries and of the way in which times are measured; a new number invalidates all entries


@dataclass(frozen=True)
class StorePlace:
    """One entry of the cache: the trials of `configs`, in their order."""

    digest: str
    configs: tuple[Config, ...]

    @staticmethod
    def of(
        kernel: Kernel,
        names: Sequence[str],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        configs: Sequence[Config],
        key: tuple[Any, ...],
    ) -> StorePlace | None:
        """The entry of this tuning; None if it cannot be stored."""
        used = dependencies(kernel.source)
        if not used.persistent or not all(isinstance(k, ATOMS) for k in key) or any(c.pre_hook for c in configs):
            return None
        collector = Collector()
        described = [
            collector.describe(x) for x in (_given(kernel, names, args, kwargs), _heuristics(kernel), kernel.options)
        ]
        if not collector.persistent:
            return None
        settings = [(str(c), c.sets_stages) for c in configs]
        machine_key = _machine(gpu_of(names, args, kwargs))
        parts = (FORMAT, used.key, *described, collector.parts, settings, list(map(repr, key)), machine_key)
        return StorePlace(cache.key("autotune", *parts), tuple(configs))

    def read(self) -> tuple[list[Trial], Config] | None:
        """The trials and the best configuration; None if there is no valid entry."""
        entry = cache.shared().get(self.digest)
        if entry is None:
            return None
        try:
            rows, number = entry.meta["trials"], entry.meta["best"]
            if type(number) is not int or number < 0:
                raise ValueError(f"no configuration: {number!r}")
            best = self.configs[number]
            trials = [_trial(c, *row) for c, row in zip(self.configs, rows, strict=True)]
        except (KeyError, IndexError, TypeError, ValueError, OverflowError):  # not the format of this version
            cache.shared().drop(self.digest)
            return None
        return trials, best

    def write(self, tuning: Tuning) -> None:
        """Stores a finished tuning."""
        rows = [[_numbers(t.times), t.rounds, t.status, t.reason] for t in tuning.trials]
        best = next(i for i, config in enumerate(self.configs) if config is tuning.best)
        cache.shared().put(self.digest, {"trials": rows, "best": best}, {})


def _numbers(times: Any) -> Any:
    return tuple(float(t) for t in times) if isinstance(times, (list, tuple)) else float(times)


def _trial(config: Config, times: Any, rounds: Any, status: Any, reason: Any) -> Trial:
    if status not in STATUSES or not isinstance(reason, str):
        raise ValueError(f"no trial: {status!r}, {reason!r}")
    return Trial(config, _numbers(times), int(rounds), status, reason)


def wanted(cache_results: bool | None, own_clock: bool) -> bool:
    """Whether choices are kept on disk: by the tuner's `cache_results`, then BLOCKNB_CACHE_AUTOTUNING or TRITON_CACHE_AUTOTUNING.

    By default they are kept if blocknb's own clock measures. A user's `do_bench` may measure anything.
    """
    variables = [os.environ[n] for n in ("BLOCKNB_CACHE_AUTOTUNING", "TRITON_CACHE_AUTOTUNING") if os.environ.get(n)]
    if cache_results or any(word != "0" for word in variables):
        return True
    return cache_results is None and own_clock and not variables


def hashable(value: Any) -> bool:
    """Whether a value can be part of a tuning key."""
    try:
        hash(value)
    except (TypeError, ValueError):  # a memoryview raises ValueError
        return False
    return True


def elements(values: Iterable[Any]) -> Iterator[Any]:
    """The values, with tuples flattened."""
    for value in values:
        if isinstance(value, tuple):
            yield from elements(value)
        else:
            yield value


def devices(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> set[int]:
    """The devices of the arrays of a launch: numbers of GPUs, HOST, ANYWHERE."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    values = elements(v for n, v in given.items() if n in names)
    # A descriptor may have no valid block before a configuration's pre_hook, so its array is described instead.
    bases = [getattr(v, "base", v) if hasattr(v, "block_shape") else v for v in values]
    arrays = [v for v in bases if hasattr(v, "dtype") and hasattr(v, "shape")]
    found = (describer(v)(v)[0].device for v in arrays)
    return {device for device in found if device is not None}


def gpu_of(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """The GPU that a launch runs on: that of its arrays, or the current one for a launch without arrays. None for the CPU."""
    found = devices(names, args, kwargs)
    return next((device for device in found if device >= 0), None if HOST in found else machine.current_gpu())


def _given(kernel: Kernel, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The constants and options of a launch, without the run-time arguments."""
    constants = {p.name for p in kernel.source.parameters if p.constexpr}
    given = {**enforced, **dict(zip(names, args, strict=False)), **kwargs}
    return {n: v for n, v in sorted(given.items()) if n in constants or n not in (*names, "grid", "warmup")}


def _heuristics(kernel: Kernel) -> list[Any]:
    """The functions of the heuristics around a kernel, by name."""
    return [sorted(values.items(), key=lambda item: item[0]) for values in vars(kernel).get("heuristics", ())]


def device_kind(gpu: int | None) -> str:
    """The kind of a device, within which times are comparable: its name."""
    return name_of(HOST if gpu is None else gpu)


def other_device(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """The part of a tuning key for the device: empty for the first GPU's model, and on a machine without a GPU; else the kind."""
    if not machine.has_gpu():
        return ()
    gpu = gpu_of(names, args, kwargs)
    if gpu is None:
        return ("cpu",)
    return (device_kind(gpu),) if several_models() and device_kind(gpu) != device_kind(0) else ()


@functools.cache
def several_models() -> bool:
    """Whether this machine has GPUs of several models."""
    from blocknb.runtime import cuda

    return len({device_kind(number) for number in range(cuda.api().runtime.getDeviceCount())}) > 1


def unique_name(gpu: int) -> str:
    """The UUID of a GPU, which identifies it among all machines."""
    from blocknb.runtime import cuda

    identity: str = cuda.api().runtime.getDeviceProperties(gpu)["uuid"].hex()
    return identity


def _machine(gpu: int | None) -> list[Any]:
    """The machine that times depend on: the GPU with driver and ptxas, or the CPU with its number of threads; and blocknb's version."""
    from blocknb.target import Target

    if gpu is not None:
        from blocknb.runtime import cuda

        target, runtime = cuda.target(gpu), cuda.api().runtime
        model = runtime.getDeviceProperties(gpu)["name"]
        versions = cache.environment_parts(toolchain.find_ptxas(target))
        return [str(target), model, runtime.driverGetVersion(), versions]
    return [str(Target.parse("cpu")), host.thread_count(), cache.environment_parts(None)]
