"""Lets libraries that ask torch for a GPU run without one, so that their kernels can be compiled. Tensors stay on the CPU."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

#: The properties of an H200 that libraries read.
PROPERTIES = {
    "name": "NVIDIA H200",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "total_memory": 141 << 30,
    "warp_size": 32,
    "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 65536,
    "shared_memory_per_block_optin": 232448,
    "L2_cache_size": 60 << 20,
    "gcnArchName": "",
}
DRIVER = {
    "multiprocessor_count": 132,
    "max_shared_mem": 232448,
    "max_num_regs": 65536,
    "warpSize": 32,
    "sm_clock_rate": 1980000,
    "mem_clock_rate": 3201000,
    "mem_bus_width": 6144,
}


class TritonDriver:
    """A driver of Triton for a target as "sm_90a", without a GPU: it only tells about the device."""

    def __init__(self, target: str) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", int(target.removeprefix("sm_").rstrip("a")), 32)
        self.utils = SimpleNamespace(get_device_properties=lambda device=None: dict(DRIVER))

    def get_current_target(self) -> Any:
        """The target."""
        return self.target

    def get_current_device(self) -> int:
        """0: there is one device."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """The default stream."""
        return 0

    def get_active_torch_device(self) -> str:
        """Tensors stay on the CPU."""
        return "cpu"


def gpu(torch: Any) -> None:
    """Makes torch.cuda and blocknb's `triton.runtime.driver` answer as on a machine with an H200, until the process ends."""
    from blocknb.runtime import machine

    properties = SimpleNamespace(**PROPERTIES)

    class Context(contextlib.nullcontext):
        idx = 0

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()

    for name, answer in {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": PROPERTIES["name"],
        "get_device_capability": (9, 0),
        "get_device_properties": properties,
        "synchronize": None,
        "set_device": None,
        "current_stream": SimpleNamespace(cuda_stream=0),
        "is_current_stream_capturing": False,
        "get_arch_list": ["sm_90"],
        "mem_get_info": (140 << 30, 141 << 30),
        "is_bf16_supported": True,
    }.items():
        setattr(torch.cuda, name, lambda *_, _answer=answer, **__: _answer)
    torch._C._cuda_getCurrentRawStream = lambda index: 0
    torch.cuda.device = torch.cuda.device_of = Context
    torch.Tensor.is_cuda = property(lambda self: True)
    machine.current_target = lambda: machine.GPUTarget("cuda", 90, 32)
    machine.properties = lambda device=None: dict(DRIVER)

    def on_cpu(function: Any) -> Any:
        def made(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop("pin_memory", None)
            if "cuda" in str(kwargs.get("device", "")):
                kwargs["device"] = "cpu"
            return function(*args, **kwargs)

        return made

    for name in ("empty", "zeros", "ones", "full", "arange", "tensor", "randn", "rand", "randint", "empty_strided"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    torch.Tensor.cuda = lambda self, *_, **__: self
    before = torch.Tensor.to

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple("cpu" if isinstance(a, (str, torch.device)) and "cuda" in str(a) else a for a in args)
        return before(self, *args, **{n: "cpu" if "cuda" in str(v) else v for n, v in kwargs.items()})

    torch.Tensor.to = to
