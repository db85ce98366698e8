"""The remaining parts of Triton's host API: the driver, `compile`, and small decorators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from blocknb.errors import LaunchError
from blocknb.language import types
from blocknb.runtime import cache, machine
from blocknb.runtime.compile import Compiled
from blocknb.runtime.kernel import Kernel
from blocknb.runtime.machine import GPUTarget
from blocknb.runtime.request import Request
from blocknb.target import known


class Utils:
    """`driver.active.utils`."""

    @staticmethod
    def get_device_properties(device: int | None = None) -> dict[str, int]:
        """multiprocessor_count, max_num_regs, max_shared_mem, warpSize... of a GPU; nominal figures for the CPU without one."""
        return machine.properties(device)


class Driver:
    """`triton.runtime.driver.active`: the properties of the machine that wrappers read. Without a GPU they are those of the CPU."""

    utils = Utils()

    @staticmethod
    def is_active() -> bool:
        """Whether kernels run through this driver, which is always the case."""
        return True

    def get_current_target(self) -> GPUTarget:
        """The target that kernels are compiled for."""
        return machine.current_target()

    def get_current_device(self) -> int:
        """The number of the current GPU; 0 without one, as for Triton's own CPU backends."""
        return machine.current_gpu() or 0

    def set_current_device(self, device: int) -> None:
        """Makes a GPU current."""
        if machine.has_gpu():
            from blocknb.runtime import cuda

            cuda.api().Device(device).use()

    def get_current_stream(self, device: int | None = None) -> int:
        """The handle of the current stream; 0 without a GPU."""
        if not machine.has_gpu():
            return 0
        from blocknb.testing.benching import current_stream

        return current_stream()

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        """(9, 0) for an H200; (0, 0) without a GPU."""
        return divmod(machine.current_target().arch, 10)

    def get_active_torch_device(self) -> Any:
        """The torch device that kernels run on."""
        import torch

        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    def get_device_interface(self) -> Any:
        """torch.cuda, or torch.cpu without a GPU."""
        import torch

        return torch.cuda if torch.cuda.is_available() else torch.cpu

    def get_benchmarker(self) -> Callable[..., Any]:
        """The function that measures a call, as Triton's autotuner uses it."""
        from blocknb.testing import do_bench

        return do_bench

    def get_empty_cache_for_benchmark(self) -> Any:
        """A tensor larger than the L2 cache."""
        import torch

        return torch.empty(64 << 20, dtype=torch.int32, device=self.get_active_torch_device())

    def clear_cache(self, cache: Any) -> None:
        """Overwrites the buffer of `get_empty_cache_for_benchmark`, which evicts everything else from the L2 cache."""
        cache.zero_()


class DriverConfig:
    """`triton.runtime.driver`. The arrays of a launch decide where it runs, so there is one driver, always active."""

    active = default = Driver()

    def set_active(self, driver: Any) -> None:
        """Accepts only the one driver."""
        raise LaunchError(
            "blocknb has one driver for CPU and GPU",
            hint="the arrays of a launch decide where it runs; drop set_active",
        )

    def reset_active(self) -> None:
        """Changes nothing: the one driver is active."""


driver = DriverConfig()


class Backend(NamedTuple):
    """An entry of `triton.backends.backends`. `compiler` is None, since the target alone decides how blocknb compiles."""

    compiler: Any
    driver: type[Driver]


#: The only backend, under its own name: code that looks for Triton's `nvidia` or `cpu` backend does not find it.
backends = {"blocknb": Backend(None, Driver)}


def triton_key() -> str:
    """A key of this version of the compiler, which changes with every edit of its source."""
    return cache.key("triton_key", *cache.environment_parts())


class ASTSource:
    """The input of `compile`: a kernel, the types of its run-time arguments ("*fp32", "i32", tuples of such) and its constants.

    Types and constants are given by name or position. `attrs` is {(position,): [["tt.divisibility", 16]]} for arguments that are
    multiples of 16.
    """

    def __init__(
        self,
        fn: Kernel,
        signature: Mapping[Any, Any],
        constexprs: Mapping[Any, Any] | None = None,
        attrs: Mapping[Any, Any] | None = None,
    ):
        names = fn.arg_names

        def name(key: Any) -> str:
            key = key[0] if isinstance(key, tuple) else key
            return names[key] if isinstance(key, int) else key

        self.fn = fn
        self.constants = {name(key): value for key, value in (constexprs or {}).items()}
        divisible = {
            name(key) for key, facts in (attrs or {}).items() if ["tt.divisibility", 16] in list(map(list, facts))
        }
        self.signature = {
            name(key): text + ":16" if name(key) in divisible else text
            for key, text in signature.items()
            if text != "constexpr" and name(key) not in self.constants
        }


def compile(src: ASTSource, target: GPUTarget | None = None, options: Mapping[str, Any] | None = None) -> Compiled:
    """Compiles a kernel without launching it, by default for the target that kernels run on."""
    if not isinstance(src, ASTSource):
        raise LaunchError(
            f"compile takes an ASTSource, not a {type(src).__name__}", hint="ASTSource(kernel, signature, constexprs)"
        )
    return src.fn.compile(**_arguments(src, target or machine.current_target(), options or {}))


def request(src: ASTSource, target: GPUTarget, options: Mapping[str, Any]) -> Request:
    """The Request that `compile` would compile. Compiles nothing. Raises KernelError."""
    return src.fn.request(**_arguments(src, target, options))


def _arguments(src: ASTSource, target: GPUTarget, options: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `Kernel.compile`."""
    backend, arch, _ = target
    names = ("cpu",) if backend == "cpu" else (f"sm_{arch}a", f"sm_{arch}")
    chosen = next((n for n in names if n in known()), names[-1])
    return {"target": chosen, **src.signature, **src.constants, **options}


#: Maps the names of dtypes in numpy, torch and Triton to those in signatures: "float32" to "fp32", "int32" to "i32".
type_canonicalisation_dict = {
    name: dtype.name if dtype.is_float else dtype.short for name, dtype in types.BY_NAME.items()
}


class InterpretedFunction:
    """The class of kernels in Triton's interpreter. Libraries test for it; here a kernel is a JITFunction in any case."""


def constexpr_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a plain function that kernels call with constants. It changes nothing, since kernels can call any plain function so."""
    return function


def must_use_result(function: Any, *_: Any) -> Any:
    """Returns its argument unchanged, since unused results are allowed."""
    return function if callable(function) else (lambda decorated: decorated)


def set_allocator(allocator: Callable[[int, int, int | None], Any]) -> None:
    """Accepts an allocator and never calls it, since tensor descriptors need no scratch memory here."""
