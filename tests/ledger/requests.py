"""The kernels of the ledger: launches whose compilations are recorded and that do not run.

A specimen is a case of `tests/kernels` or of the zoo, or a benchmark of the ready-made kernels in one shape and dtype. It launches one or
more kernels; an autotuned one launches each of its configurations.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from kernels import CASES, GPU_CASES
from zoo import ZOO
from zoo.launches import launching

from blocknb import kernels as ready
from blocknb.bench.suite.catalogue import BENCHMARKS
from blocknb.bench.suite.definition import BenchmarkCase, Make, numpy_dtype
from blocknb.kernels.strides import Device
from blocknb.runtime import machine
from blocknb.runtime.interface import KernelInterface
from blocknb.runtime.request import Request
from blocknb.target import Target
from blocknb.tune.autotuner import Autotuner

TARGET = Target.parse("sm_90a")
H200 = {
    "multiprocessor_count": 132, "max_shared_mem": 227 << 10, "max_num_regs": 65536, "warpSize": 32, "sm_clock_rate": 1980000,
    "mem_clock_rate": 3201000, "mem_bus_width": 6144,
}  # fmt: skip


ALIGNED = 256  # bytes: where a GPU's arrays begin


def unwritten(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An array of zeros, whose memory the system does not provide before it is used. It begins where an array on a GPU would."""
    kind = numpy_dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    memory = np.zeros(size + ALIGNED, np.uint8)
    start = -memory.ctypes.data % ALIGNED
    return memory[start : start + size].view(kind).reshape(shape)


class Unwritten(Make):
    """Makes arrays by `unwritten`."""

    def __init__(self, dtype: str) -> None:
        super().__init__(np, dtype)

    def normal(self, *shape: int, dtype: str | None = None) -> Any:
        return unwritten(shape, dtype or self.dtype)

    poison = normal

    def below(self, high: int, *shape: int) -> Any:
        return unwritten(shape, "int64")

    def wide(self, array: Any) -> Any:
        return array[..., :1]  # for the statistics of rows, whose values do not matter


def specimens() -> dict[str, Callable[[], Any]]:
    """The launches of each specimen, by its name: "kernels/add_float16", "zoo/softmax[ragged]", "ready/softmax 4096x781 fp16"."""
    found: dict[str, Callable[[], Any]] = {}
    for name, case in (*CASES.items(), *GPU_CASES.items()):
        found[f"kernels/{name}"] = functools.partial(_launch_case, case)
    for name, specimen in ZOO.items():
        found[f"zoo/{name}"] = functools.partial(_launch_specimen, specimen)
    for benchmark in BENCHMARKS.values():
        for case in benchmark.cases("gpu"):
            found[f"ready/{case}"] = functools.partial(_launch_benchmark, case)
    return found


def _launch_case(case: Any) -> None:
    case.kernel[case.grid](**case.make(np.random.default_rng(0)), **case.options)


def _launch_specimen(specimen: Any) -> None:
    specimen.run(specimen.make(np.random.default_rng(0)), "numpy", "cpu")


def _launch_benchmark(case: BenchmarkCase) -> None:
    benchmark = BENCHMARKS[case.name]
    inputs, outputs = benchmark.arrays(Unwritten(case.dtype), *case.shape)
    benchmark.ours(ready, inputs | outputs)


def _each_configuration(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
    """Launches each configuration once, in order: no time and no choice of an earlier run decides what is compiled."""
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    for config in self.prune_configs(kwargs):
        self._describe(config, args, kwargs)
        found = self.fn.run(*args, **{**config.launched(self.arg_names), **kwargs})
    return found


@contextlib.contextmanager
def _on_an_h200() -> Iterator[None]:
    """Wrappers inside choose what they choose for arrays on an H200."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "properties", lambda device=None: dict(H200))
        patch.setattr(machine, "current_target", lambda: machine.describe(TARGET))
        patch.setattr(Autotuner, "run", _each_configuration)
        patch.setattr(Autotuner, "__getitem__", KernelInterface.__getitem__)
        for name, module in list(sys.modules.items()):
            if name.startswith("blocknb.kernels."):
                for function, value in (("on_host", False), ("device", Device(132, 90, 227 << 10)), ("stream", 0)):
                    if hasattr(module, function):
                        patch.setattr(module, function, lambda array, value=value: value)
        yield


def named_requests(names: Iterable[str]) -> Iterator[tuple[str, Request]]:
    """The compilations of specimens, as "specimen kernel", and with a number where a specimen has several of one kernel."""
    launches = specimens()
    for name in names:
        numbers = Counter[str]()
        for request in requests_of(launches[name]):
            numbers[kernel := request.source.name] += 1
            yield f"{name} {kernel}" + (f" #{numbers[kernel]}" if numbers[kernel] > 1 else ""), request


def requests_of(launch: Callable[[], Any]) -> list[Request]:
    """The compilations of what is launched inside, each once."""
    found: dict[Any, Request] = {}

    def record(self: Any, grid: Any, args: Any, kwargs: Any, tried: Any = None) -> None:
        binding, values = self.bound_call(args, kwargs)
        kinds, _ = self.describe(binding, values)
        request = Request(self.source, *self._compile_arguments(binding, kinds, TARGET, None), TARGET)
        found.setdefault(request.key, request)

    with launching(record), _on_an_h200(), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        launch()
    return list(found.values())
