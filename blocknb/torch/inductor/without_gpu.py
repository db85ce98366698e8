"""The CUDA kernels of compiled functions, generated and compiled on a machine without a GPU.

`torch.compile(function, backend=CudaKernels().backend)` runs the function eager on the CPU. Inductor gets each of its graphs, forward and
backward, as a graph on an H200, and generates the kernels for it. blocknb compiles every configuration of them for sm_90a, and launches
none. The example tensors may be fake: then nothing is computed at all.
"""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch._C as native
from torch._dynamo import device_interface
from torch._inductor import utils
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.runtime import hints
from torch._inductor.select_algorithm import AlgorithmSelectorCache, TritonTemplateCaller
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.utils._pytree import tree_map_only

from blocknb.errors import KernelError
from blocknb.torch.inductor import backend as backends
from blocknb.torch.inductor import compile_pool, patches, results

#: The properties of an H200 that Inductor reads.
H200 = types.SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    total_memory=141 << 30,
    L2_cache_size=60 << 20,
    shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10,
    gcnArchName="",
    is_integrated=0,
)


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


#: The answers of an H200, by the names of functions of torch.cuda and of Inductor's interface to it.
_CUDA: dict[str, Callable[..., Any]] = {
    "is_available": _always(True),
    "device_count": _always(1),
    "current_device": _always(0),
    "get_device_properties": _always(H200),
    "get_device_capability": _always((H200.major, H200.minor)),
    "get_device_name": _always(H200.name),
    "is_bf16_supported": _always(True),
    "is_tf32_supported": _always(True),
    "synchronize": _always(None),
    "memory_allocated": _always(0),
    "get_rng_state": torch.get_rng_state,
    "set_rng_state": _always(None),
    "_exchange_device": _always(0),
    "_maybe_exchange_device": _always(0),
}
_INTERFACE: dict[str, Callable[..., Any]] = {
    **{name: _CUDA[name] for name in ("is_available", "device_count", "current_device", "synchronize")},
    **{name: _CUDA[name] for name in ("get_device_properties", "is_bf16_supported", "memory_allocated")},
    "get_compute_capability": _always(10 * H200.major + H200.minor),
    "set_device": _always(None),
    "exchange_device": _always(0),
    "maybe_exchange_device": _always(0),
    "get_raw_stream": _always(0),
    "is_triton_capable": _always(True),
    "raise_if_triton_unavailable": _always(None),
}
#: Methods whose bindings refuse fake tensors on CUDA in a build of torch without CUDA. The operators themselves take them.
_METHODS: dict[str, Callable[..., Any]] = {
    "copy_": lambda self, source, non_blocking=False: torch.ops.aten.copy_.default(self, source, non_blocking),
    "__invert__": lambda self: torch.ops.aten.bitwise_not.default(self),
}
#: Nothing comes from caches, and nothing is timed.
_SETTINGS = {"force_disable_caches": True, "benchmark_epilogue_fusion": False, "autotune_num_choices_displayed": 0}
#: Functions of Inductor that remember an answer about the device.
_REMEMBERED = ("get_max_num_sms", "is_big_gpu", "using_b200", "get_gpu_dram_gbps")


def _forget() -> None:
    hints.DeviceProperties.create.cache_clear()
    for name in _REMEMBERED:
        if (clear := getattr(getattr(utils, name, None), "cache_clear", None)) is not None:
            clear()


@contextlib.contextmanager
def nominal_gpu() -> Iterator[None]:
    """Inside, torch says that there is an H200, which Inductor generates code for. Kernels cannot be launched on it."""
    worker = device_interface.CudaInterface.Worker
    with contextlib.ExitStack() as stack:
        for name, answer in _CUDA.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        for name, answer in _INTERFACE.items():
            owner = device_interface.CudaInterface
            stack.enter_context(mock.patch.object(owner, name, staticmethod(answer), create=True))
        for name, value in {"set_device": None, "current_device": 0, "get_device_properties": H200}.items():
            stack.enter_context(mock.patch.object(worker, name, staticmethod(_always(value))))
        stack.enter_context(mock.patch.object(native, "_cuda_getCurrentRawStream", _always(0), create=True))
        for name, operator in _METHODS.items():
            stack.enter_context(mock.patch.object(torch.Tensor, name, operator))
        stack.enter_context(mock.patch.object(fake_tensor, "init_gpu_context", _always(None)))
        stack.enter_context(mock.patch.object(results, "starter", _always(_cannot_start)))
        stack.enter_context(mock.patch.object(AlgorithmSelectorCache, "make_benchmark_fn", _make_benchmark_fn))
        stack.enter_context(mock.patch.object(AlgorithmSelectorCache, "make_precompile_fn", _always(_always({}))))
        _forget()
        stack.callback(_forget)
        yield


def _make_benchmark_fn(*_: Any, **__: Any) -> Callable[..., Any]:
    """The first template wins: nothing can be timed."""
    return lambda choices: {choice: 1.0 + (not isinstance(choice, TritonTemplateCaller)) for choice in choices}


def _cannot_start(*_: Any) -> None:
    raise RuntimeError("a kernel that was compiled without a GPU cannot be launched")


@dataclass(frozen=True, eq=False)
class CudaKernel:
    """A kernel that Inductor generated for CUDA: its name, the text of its file, and the results of compiling it. These are one `Compiled`
    for each configuration, or the error of the first one that failed."""

    name: str
    source: str
    autotuner: Any = None
    compiled: tuple[Any, ...] = ()
    error: KernelError | None = None


def _on_cuda(graph: Any, examples: Any) -> tuple[Any, list[Any]]:
    """A copy of a graph of ATen operators, and of its example inputs, on CUDA."""
    device = torch.device("cuda", 0)
    mode = next((value.fake_mode for value in examples if isinstance(value, FakeTensor)), None) or FakeTensorMode()
    made = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    for node in made.graph.nodes:
        node.args, node.kwargs = tree_map_only(torch.device, lambda _: device, (node.args, node.kwargs))
        node.meta.pop("tensor_meta", None)
    made.recompile()
    with mode:
        ours = [
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
            if isinstance(value, torch.Tensor)
            else value
            for value in examples
        ]
    FakeTensorProp(made, mode).propagate_dont_convert_inputs(*ours)
    return made, ours


@dataclass
class CudaKernels:
    """The kernels of the graphs that went through `backend`, in their order. Equal kernels count once."""

    options: dict[str, Any] = field(default_factory=dict)
    kernels: list[CudaKernel] = field(default_factory=list)

    @property
    def failed(self) -> list[CudaKernel]:
        """The kernels that blocknb could not compile."""
        return [kernel for kernel in self.kernels if kernel.error is not None]

    def backend(self, graph: Any, inputs: Any, mode: str | None = None, options: Any = None, **_: Any) -> Any:
        """Generates the kernels of a graph for CUDA, and returns a function that runs the graph eager."""
        from torch._functorch.aot_autograd import make_boxed_func
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        backends._ready()
        settings = {**_SETTINGS, **self.options, **backends._settings(mode, options)[0]}

        def inner(graph: Any, examples: Any, **kwargs: Any) -> Any:
            with nominal_gpu(), patches.applied(settings), self._collected(), compile_pool.suspended():
                made, ours = _on_cuda(graph, examples)
                compile_fx_inner(made, ours, **kwargs)
            return make_boxed_func(graph.forward)

        with patches.applied(settings):
            return compile_fx(graph, inputs, inner_compile=inner)

    @contextlib.contextmanager
    def _collected(self) -> Iterator[None]:
        known = {kernel.source for kernel in self.kernels}

        def triton(compiler: Any, name: str, source: str, *args: Any, **kwargs: Any) -> Any:
            try:
                autotuner, error = inherited(compiler, name, source, *args, **kwargs), None
            except KernelError as found:
                autotuner, error = None, found
            if source not in known:
                known.add(source)
                compiled = tuple(r.kernel for r in autotuner.compile_results) if autotuner else ()
                self.kernels.append(CudaKernel(name, source, autotuner, compiled, error))
            return autotuner

        inherited = AsyncCompile.triton
        with mock.patch.object(AsyncCompile, "triton", triton):
            yield
