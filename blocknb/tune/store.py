"""Where an autotuner with `cache_results` keeps its times: in the disk cache, by everything that decides them.

That is the kernel and all that it reaches, the configurations, the tuning key, the machine, and the versions of compiler and LLVM. A key
that holds anything but numbers, texts and dtypes is not stored, because nothing would find it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.frontend.dependencies import ATOMS, dependencies
from blocknb.runtime import cache, machine
from blocknb.runtime.arguments import describer
from blocknb.runtime.kernel import Kernel
from blocknb.tune.config import Config


@dataclass(frozen=True)
class Place:
    """One entry: the times of `configs`, in their order."""

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
    ) -> Place | None:
        """The place for this tuning; None when it has none."""
        reached = dependencies(kernel.source)
        if not reached.persistent or not all(isinstance(k, ATOMS) for k in key):
            return None
        where = _machine(any(device >= 0 for device in devices(names, args, kwargs)))
        parts = (
            reached.key,
            [(str(c), c.names_stages) for c in configs],
            list(map(repr, key)),
            where,
            cache.environment_parts(None),
        )
        return Place(cache.key("autotune", *parts), tuple(configs))

    def read(self) -> dict[Config, list[float]] | None:
        entry = cache.shared().get(self.digest)
        return None if entry is None else dict(zip(self.configs, entry.meta["times"], strict=True))

    def write(self, timings: Mapping[Config, Any]) -> None:
        times = [list(t) if isinstance(t, (list, tuple)) else [t] for t in map(timings.__getitem__, self.configs)]
        cache.shared().put(self.digest, {"times": times}, {})


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


def _machine(on_gpu: bool) -> list[Any]:
    """What times depend on: the model of the GPU; on the CPU its name and the number of cores."""
    if on_gpu and machine.has_gpu():
        import cupy

        return [str(machine.current_target()), cupy.cuda.runtime.getDeviceProperties(machine.current_gpu())["name"]]
    from blocknb.target import Target

    return [str(Target.parse("cpu")), machine.properties()["multiprocessor_count"]]
