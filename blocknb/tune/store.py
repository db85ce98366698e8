"""Where an autotuner keeps its choices: in the disk cache, by everything that decides them.

That is the kernel and all that it reaches, its options and heuristics, the configurations, the tuning key, constants and options that
the launch gives, the machine, and the versions of compiler, LLVM, ptxas and driver. What holds anything but numbers, texts, dtypes and
functions is not stored, because nothing would find it again; nor are configurations with hooks. The cache writes each entry whole and
renames it, so that processes that tune the same at the same time do not meet; an entry that cannot be read is dropped, and tuned again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.codegen import toolchain
from blocknb.frontend.dependencies import dependencies
from blocknb.frontend.description import ATOMS, Collector
from blocknb.runtime import cache, host, machine
from blocknb.runtime.arguments import describer
from blocknb.runtime.kernel import Kernel
from blocknb.runtime.kinds import HOST
from blocknb.runtime.launch_context import enforced
from blocknb.tune.config import Config
from blocknb.tune.tuning import FATES, Trial, Tuning

FORMAT = 2  # of entries, and of the way in which times are taken: another number tunes anew


@dataclass(frozen=True)
class StorePlace:
    """One entry: the trials of `configs`, in their order."""

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
        """The place for this tuning; None when it has none."""
        reached = dependencies(kernel.source)
        if not reached.persistent or not all(isinstance(k, ATOMS) for k in key) or any(c.pre_hook for c in configs):
            return None
        collector = Collector()
        told = [collector.describe(x) for x in (_given(kernel, names, args, kwargs), _rules(kernel), kernel.options)]
        if not collector.persistent:
            return None
        parts = (
            FORMAT,
            reached.key,
            *told,
            collector.parts,
            [(str(c), c.names_stages) for c in configs],
            list(map(repr, key)),
            _machine(gpu_of(names, args, kwargs)),
        )
        return StorePlace(cache.key("autotune", *parts), tuple(configs))

    def read(self) -> tuple[list[Trial], Config] | None:
        """The trials and the best configuration; None where there is no entry, or none that can be read."""
        entry = cache.shared().get(self.digest)
        if entry is None:
            return None
        try:
            rows, best = entry.meta["trials"], self.configs[entry.meta["best"]]
            trials = [_trial(c, *row) for c, row in zip(self.configs, rows, strict=True)]
        except (KeyError, IndexError, TypeError, ValueError):  # whole, but not what this version writes
            cache.shared().drop(self.digest)
            return None
        return trials, best

    def write(self, tuning: Tuning) -> None:
        """Keeps a tuning that has come to its end."""
        rows = [[_numbers(t.times), t.rounds, t.fate, t.reason] for t in tuning.trials]
        best = next(i for i, config in enumerate(self.configs) if config is tuning.best)
        cache.shared().put(self.digest, {"trials": rows, "best": best}, {})


def _numbers(times: Any) -> Any:
    return tuple(float(t) for t in times) if isinstance(times, (list, tuple)) else float(times)


def _trial(config: Config, times: Any, rounds: Any, fate: Any, reason: Any) -> Trial:
    if fate not in FATES or not isinstance(reason, str):
        raise ValueError(f"no trial: {fate!r}, {reason!r}")
    return Trial(config, _numbers(times), int(rounds), fate, reason)


def wanted(cache_results: bool | None, ours: bool) -> bool:
    """Whether choices are kept: as the tuner says, or BLOCKNB_CACHE_AUTOTUNING or TRITON_CACHE_AUTOTUNING; else if the times are
    `ours`, and not a `do_bench`'s, of which nothing is known."""
    asked = [os.environ[n] for n in ("BLOCKNB_CACHE_AUTOTUNING", "TRITON_CACHE_AUTOTUNING") if os.environ.get(n)]
    if cache_results or any(word != "0" for word in asked):
        return True
    return cache_results is None and ours and not asked


def elements(values: Iterable[Any]) -> Iterator[Any]:
    """The values, with those of tuples in their places."""
    for value in values:
        if isinstance(value, tuple):
            yield from elements(value)
        else:
            yield value


def devices(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> set[int]:
    """Where the arrays of a launch lie: numbers of GPUs, HOST, ANYWHERE."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    values = elements(v for n, v in given.items() if n in names)
    # A descriptor's block may not be one yet, before a configuration's pre_hook: its array says where it lies.
    bases = [getattr(v, "base", v) if hasattr(v, "block_shape") else v for v in values]
    arrays = [v for v in bases if hasattr(v, "dtype") and hasattr(v, "shape")]
    found = (describer(v)(v)[0].device for v in arrays)
    return {device for device in found if device is not None}


def gpu_of(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """The GPU that a launch runs on, by its arrays, or by default where they say nothing; None for the CPU."""
    found = devices(names, args, kwargs)
    return next((device for device in found if device >= 0), None if HOST in found else machine.current_gpu())


def _given(kernel: Kernel, names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The constants and options that a launch gives: everything that is no run-time argument."""
    constants = {p.name for p in kernel.source.parameters if p.constexpr}
    given = {**enforced, **dict(zip(names, args, strict=False)), **kwargs}
    return {n: v for n, v in sorted(given.items()) if n in constants or n not in (*names, "grid", "warmup")}


def _rules(kernel: Kernel) -> list[Any]:
    """The functions of heuristics around the kernel, which compute constants of their own."""
    return [sorted(rules.items(), key=lambda item: item[0]) for rules in vars(kernel).get("heuristics", ())]


def _machine(gpu: int | None) -> list[Any]:
    """What times depend on: the model of the GPU, its driver and ptxas; the CPU and how many threads a launch may use; our versions."""
    from blocknb.target import Target

    if gpu is not None:
        import cupy

        from blocknb.runtime import cuda

        target, runtime = cuda.target(gpu), cupy.cuda.runtime
        model = runtime.getDeviceProperties(gpu)["name"]
        versions = cache.environment_parts(toolchain.find_ptxas(target))
        return [str(target), model, runtime.driverGetVersion(), versions]
    return [str(Target.parse("cpu")), host.thread_count(), cache.environment_parts(None)]
