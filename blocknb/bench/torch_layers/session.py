"""The parts that the benchmarks of this package share: the device, the head of a table, timings as JSON, and verdicts."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from blocknb.bench.suite.measure import Ratio, ratio_of
from blocknb.errors import Unsupported
from blocknb.profile.timing import Timing, interleaved
from blocknb.runtime.cache import versions_of

LIBRARIES = ("torch", "triton", "liger_kernel", "transformers", "cupy-cuda13x", "cupy-cuda12x")
Call = Callable[[], Any]
Keep = Callable[[list[dict[str, Any]]], None]


def require(*modules: str, device: str = "cuda") -> None:
    """Raises Unsupported, with one line that says what is missing, unless the modules and the device are there."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            hint = f"pip install {(error.name or name).partition('.')[0].replace('_', '-')}"
            raise Unsupported(f"{name} cannot be imported ({error})", hint=hint) from None
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise Unsupported(f"torch {torch.__version__} found no GPU, which this benchmark needs")


def versions() -> dict[str, str]:
    """The versions of the installed libraries."""
    return versions_of(("blocknb", *LIBRARIES))


def device_name(device: str) -> str:
    """The name of torch's GPU, or "CPU"."""
    import torch

    return str(torch.cuda.get_device_name()) if device == "cuda" else "CPU"


def head(device: str, title: str) -> str:
    """The first line of a table: the title, the device and the versions."""
    return f"\n{title}\n{device_name(device)}: {', '.join(f'{k} {v}' for k, v in versions().items())}"


def described(device: str) -> dict[str, Any]:
    """The device and the versions, as the first row of a document."""
    return {"device": device_name(device), **versions()}


def wait(device: str) -> None:
    """Waits for the GPU."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


@dataclass(frozen=True)
class StepClock:
    """How calls are timed: `rounds` in turns and in random order, at most `seconds` of them. `clean` flushes the L2 cache by reading."""

    device: str = "cuda"
    rounds: int = 30
    seconds: float | None = None
    clean: bool = False

    def cold(self, calls: Mapping[str, Call]) -> dict[str, Timing]:
        """Times on the device with a cold L2 cache; the host is ahead, so the gaps between launches do not count."""
        gpu = self.device == "cuda"
        return self._times(calls, gpu=gpu, warmup=2, clean=self.clean)

    def loop(self, calls: Mapping[str, Call], batch: int) -> dict[str, Timing]:
        """Times by the clock of the host, of `batch` calls one after another, per call, with a warm cache."""

        def clock(call: Call) -> float:
            wait(self.device)
            begin = time.perf_counter()
            for _ in range(batch):
                call()
            wait(self.device)
            return (time.perf_counter() - begin) * 1e3 / batch

        return self._times(calls, gpu=False, warmup=1, cold=False, clock=clock)

    def _times(self, calls: Mapping[str, Call], **how: Any) -> dict[str, Timing]:
        """Raises KeyboardInterrupt if an interrupt ended the measurement."""
        return dict(interleaved(calls, rounds=self.rounds, seconds=self.seconds, **how).complete())


def entry(timing: Timing) -> dict[str, Any]:
    """A Timing as JSON, in milliseconds."""
    return {"median": timing.median, "low": timing.low, "high": timing.high, "runs": timing.runs}


def ratio(times: Mapping[str, Timing], peer: str, ours: str) -> Ratio | None:
    """The peer's time over ours, with the quartiles of single rounds; None if either is missing."""
    return ratio_of(times[ours], times[peer]) if {peer, ours} <= times.keys() else None


def verdict(figure: float, floor: float, goal: float, *, lower: bool = False) -> str:
    """ "goal", "floor" or "MISSED" for a figure; with `lower`, smaller figures are better."""
    sign = -1 if lower else 1
    return "goal" if sign * figure >= sign * goal else "floor" if sign * figure >= sign * floor else "MISSED"
