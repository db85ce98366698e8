"""Lets Inductor choose among templates (`mode="max-autotune"`) without an installed Triton.

Inductor compiles and times several candidates for a matrix product, a convolution or an attention. A candidate that blocknb cannot compile,
or that needs more shared memory than there is, loses, as it does with Triton. Candidates may be timed in another process
(`autotune_in_subproc`), which needs our hooks, too.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._dynamo.device_interface import CpuInterface
from torch._inductor.autotune_process import TuningProcess
from torch._inductor.select_algorithm import TritonTemplateCaller

import blocknb
from blocknb.errors import CompilationError, KernelError
from blocknb.runtime import machine

_BITS_PER_GIGABYTE = 8e9


def shared_memory() -> int:
    """The bytes of shared memory that a block may use."""
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties().shared_memory_per_block_optin)
    return machine.properties()["max_shared_mem"]


def dram_gbps() -> float:
    """The bandwidth of the GPU's memory in GB/s: two transfers per cycle of its clock (in kHz)."""
    found = torch.cuda.get_device_properties()
    return 2 * found.memory_clock_rate * 1e3 * found.memory_bus_width / _BITS_PER_GIGABYTE


def tma_on_device() -> bool:
    """Whether kernels may make tensor descriptors for the TMA engine."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


#: Patches of Inductor, by the names of the functions and classes that they replace.
PATCHES: dict[str, Any] = {
    "TritonConfig": blocknb.Config,
    "get_gpu_shared_memory": shared_memory,
    "get_gpu_dram_gbps": dram_gbps,
    "has_triton_tma_device": tma_on_device,
}


_put = TuningProcess.put


class FailedCandidate(RuntimeError):
    """A candidate that blocknb could not compile or launch. Inductor leaves candidates with a RuntimeError out."""


def losing(inherited: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a FailedCandidate in place of our errors."""

    @functools.wraps(inherited)
    def tried(*args: Any, **kwargs: Any) -> Any:
        try:
            return inherited(*args, **kwargs)
        except KernelError as error:
            raise FailedCandidate(f"{type(error).__name__}: {error}") from error

    return tried


@contextlib.contextmanager
def _errors_of_triton() -> Iterator[None]:
    """Inductor imports a class of Triton's errors to catch it; without Triton, it finds ours."""
    name = "triton.compiler.errors"
    if name in sys.modules or importlib.util.find_spec("triton") is not None:
        yield
        return
    module = types.ModuleType(name)
    module.CompilationError = CompilationError  # type: ignore[attr-defined]
    sys.modules[name] = module
    try:
        yield
    finally:
        del sys.modules[name]


@contextlib.contextmanager
def applied(run: Callable[..., Any]) -> Iterator[None]:
    """Inside, failed candidates lose. `run(job)` runs a benchmark in Inductor's other process."""

    def put(process: Any, job: Any, *args: Any, **kwargs: Any) -> Any:
        return _put(process, job and functools.partial(run, job), *args, **kwargs)

    with contextlib.ExitStack() as stack:
        stack.enter_context(_errors_of_triton())
        stack.enter_context(mock.patch.object(TuningProcess, "put", put))
        # Where Inductor times two kernels against the fused one, it enters the device, which torch does not define for the CPU.
        stack.enter_context(mock.patch.object(CpuInterface, "device", contextlib.nullcontext))
        for name in ("benchmark", "precompile"):
            failing = losing(getattr(TritonTemplateCaller, name))
            stack.enter_context(mock.patch.object(TritonTemplateCaller, name, failing))
        yield
