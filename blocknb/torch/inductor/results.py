"""Compiles the configurations of a generated kernel, and launches them: the parts of Inductor's autotuner that need Triton."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from blocknb.compat import host
from blocknb.errors import KernelError
from blocknb.language.types import Pointer
from blocknb.runtime.compile import Compiled
from blocknb.runtime.machine import GPUTarget
from blocknb.torch.inductor import launched, sources
from blocknb.torch.inductor.direct_launch import direct_runner
from blocknb.torch.inductor.graphs import explained, origin_of

_LIMITED = ("num_warps", "num_stages", "debug")  # the options of Triton's compiler that blocknb's has, too


@functools.cache
def install() -> Callable[..., Any]:
    """Makes the private copy of Inductor's autotuner compile and launch with blocknb, and returns what compiles a configuration."""
    heuristics: Any = sources.private("triton_heuristics")

    class BlocknbResult(heuristics.CompileResult):
        """A compiled configuration, from which Inductor's autotuner makes its launcher."""

        autotuner: Any
        scope: Mapping[str, Any] = MappingProxyType({})  # more names of the launcher

        def make_launcher(self) -> Any:
            return substitute(self) or launcher(self, self.autotuner)

    def made(autotuner: Any, cfg: Any, **more: Any) -> Any:
        meta = autotuner._create_compile_meta(cfg)
        result = BlocknbResult(compile_config(autotuner, cfg, meta, **more), cfg, meta, autotuner.inductor_meta)
        result.autotuner = autotuner
        return result

    def precompile_config(self: Any, cfg: Any, **_: Any) -> Any:
        result = made(self, cfg)
        launched.compiled(self, cfg, result.kernel)
        return result

    def precompile_worker(self: Any) -> None:
        if not self.compile_results:
            inherited(self)

    def bench(self: Any, *args: Any, **kwargs: Any) -> Any:
        with launched.trial():
            return inherited_bench(self, *args, **kwargs)

    inherited = heuristics.CachingAutotuner._precompile_worker
    inherited_bench = heuristics.CachingAutotuner.bench
    heuristics.CachingAutotuner._precompile_config = precompile_config
    heuristics.CachingAutotuner._precompile_worker = precompile_worker
    heuristics.CachingAutotuner.bench = bench
    return made


def compiled_result(autotuner: Any, config: Any, **more: Any) -> Any:
    """A compiled configuration of a kernel, with `more` options of the compiler. Raises KernelError."""
    return install()(autotuner, config, **more)


#: Returns the launcher of a kernel that the user has put in place of a compiled configuration, else None. `edited` sets it.
substitute: Callable[[Any], Any] = lambda result: None  # noqa: E731


def compiler_input(autotuner: Any, cfg: Any, meta: dict[str, Any]) -> tuple[host.ASTSource, GPUTarget, dict[str, Any]]:
    """The source, target and options with which one configuration is compiled for the device of its graph."""
    source = host.ASTSource(autotuner.fn, meta["signature"], meta["constants"], meta["configs"][0])
    on_cpu = autotuner.device_props.type == "cpu"
    target = GPUTarget("cpu", 0, 32) if on_cpu else GPUTarget("cuda", int(meta["cc"]), 32)
    wanted = autotuner._create_compile_options(cfg, meta)
    options = {name: wanted[name] for name in _LIMITED if wanted.get(name)}
    if on_cpu:
        options.pop("num_stages", None)
    elif options.get("debug") and os.environ.get("CUDA_LAUNCH_BLOCKING") != "1":
        options["debug"] = "trap"  # as in torch: the host does not wait for the kernel, and a CUDA graph can capture it
    return source, target, options


def compile_config(autotuner: Any, cfg: Any, meta: dict[str, Any], **more: Any) -> Compiled:
    """Compiles one configuration for the device of its graph. Raises KernelError with the name of the kernel."""
    source, target, options = compiler_input(autotuner, cfg, meta)
    try:
        return host.compile(source, target, {**options, **more})
    except KernelError as error:
        error.generated_kernel = autotuner.inductor_meta.get("kernel_name")  # type: ignore[attr-defined]
        raise


def starter(compiled: Compiled, device: int) -> Callable[..., None]:
    """Returns `start(grid, raws, values)` for the kernel's parameters in their order. On a GPU it runs on torch's current stream."""
    positions = range(len(compiled.parameters))
    if not compiled.target.is_gpu:
        from blocknb.runtime import host as cpu

        return cpu.starter(compiled, positions)
    if compiled.code.reports:
        from blocknb.runtime import reports

        return reports.starter(compiled, device, positions, "torch", len(positions))
    from blocknb.runtime.driver import Launcher

    return Launcher(compiled, device, positions, "torch")


def with_origins(error: KernelError, autotuner: Any) -> KernelError:
    """Adds the origins of its kernel to an error."""
    origin = origin_of(autotuner)
    error.generated_kernel = origin.kernel  # type: ignore[attr-defined]
    return explained(error, {origin.kernel: origin})


def launcher(result: Any, autotuner: Any) -> Any:
    """The function by which Inductor launches a configuration: `launcher(*arguments, stream=...)`; it computes the grid itself."""
    compiled, heuristics = result.kernel, sources.private("triton_heuristics")
    fn = compiled.kernel
    names = [name for name, _ in compiled.parameters]
    pointers = [isinstance(kind, Pointer) for _, kind in compiled.parameters]
    _, def_args, _ = result._get_arg_lists(fn.arg_names, heuristics.get_constexprs(fn))
    try:
        start = starter(compiled, result.compile_meta.get("device") or 0)
    except KernelError as error:
        error.generated_kernel = autotuner.inductor_meta.get("kernel_name")  # type: ignore[attr-defined]
        raise

    def general(x: int, y: int, z: int, stream: int, *values: Any) -> None:
        if not (x and y and z):
            return
        raws = [value.data_ptr() if pointer else value for value, pointer in zip(values, pointers, strict=True)]
        try:
            launched.launch(autotuner, result.config, compiled, start, (x, y, z), raws, values)
        except KernelError as error:
            raise with_origins(error, autotuner) from None

    runner = direct_runner(start, pointers, general, launched.open_records)
    made = result._gen_launcher_code(
        {"runner": runner, "grid_meta": result.config.kwargs, **result.scope},
        def_args,
        ["grid_0", "grid_1", "grid_2", "stream", *names],
    )
    made.config, made.shared = result.config, compiled.metadata.shared
    made.n_regs, made.n_spills = compiled.n_regs, compiled.n_spills
    made.cache_hash, made.store_cubin = None, False
    return made
