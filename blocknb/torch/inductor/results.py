"""Compiles the configurations of a generated kernel, and launches them: the parts of Inductor's autotuner that need Triton."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from blocknb.compat import host
from blocknb.errors import KernelError
from blocknb.language.types import Pointer
from blocknb.runtime.compile import Compiled
from blocknb.runtime.machine import GPUTarget
from blocknb.torch.inductor import launched, sources
from blocknb.torch.inductor.graphs import explained, origin_of

_LIMITED = ("num_warps", "num_stages", "debug")  # the options of Triton's compiler that blocknb's has, too


@functools.cache
def install() -> None:
    """Makes the private copy of Inductor's autotuner compile and launch with blocknb."""
    heuristics: Any = sources.private("triton_heuristics")

    class BlocknbResult(heuristics.CompileResult):
        """A compiled configuration, from which Inductor's autotuner makes its launcher."""

        autotuner: Any

        def make_launcher(self) -> Any:
            return _launcher(self, self.autotuner)

    def precompile_config(self: Any, cfg: Any, **_: Any) -> Any:
        meta = self._create_compile_meta(cfg)
        compiled = _compile(self, cfg, meta)
        launched.compiled(self, cfg, compiled)
        result = BlocknbResult(compiled, cfg, meta, self.inductor_meta)
        result.autotuner = self
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


def _compile(autotuner: Any, cfg: Any, meta: dict[str, Any]) -> Compiled:
    """Compiles one configuration for the device of its graph. Raises KernelError with the name of the kernel."""
    source = host.ASTSource(autotuner.fn, meta["signature"], meta["constants"], meta["configs"][0])
    on_cpu = autotuner.device_props.type == "cpu"
    target = GPUTarget("cpu", 0, 32) if on_cpu else GPUTarget("cuda", int(meta["cc"]), 32)
    wanted = autotuner._create_compile_options(cfg, meta)
    options = {name: wanted[name] for name in _LIMITED if wanted.get(name)}
    if on_cpu:
        options.pop("num_stages", None)
    try:
        return host.compile(source, target, options)
    except KernelError as error:
        error.generated_kernel = autotuner.inductor_meta.get("kernel_name")  # type: ignore[attr-defined]
        raise


def _starter(compiled: Compiled, device: int) -> Callable[..., None]:
    """Returns `start(grid, raws, values)` for the kernel's parameters in their order. On a GPU it runs on torch's current stream."""
    positions = range(len(compiled.parameters))
    if not compiled.target.is_gpu:
        from blocknb.runtime.host import starter

        return starter(compiled, positions)
    if compiled.code.reports:
        from blocknb.runtime import reports

        return reports.starter(compiled, device, positions, "torch", len(positions))
    from blocknb.runtime.driver import Launcher

    return Launcher(compiled, device, positions, "torch")


def _launcher(result: Any, autotuner: Any) -> Any:
    """The function by which Inductor launches a configuration: `launcher(*arguments, stream=...)`; it computes the grid itself."""
    compiled, heuristics = result.kernel, sources.private("triton_heuristics")
    fn = compiled.kernel
    names = [name for name, _ in compiled.parameters]
    pointers = [isinstance(kind, Pointer) for _, kind in compiled.parameters]
    _, def_args, _ = result._get_arg_lists(fn.arg_names, heuristics.get_constexprs(fn))
    start = _starter(compiled, result.compile_meta.get("device") or 0)

    def runner(x: int, y: int, z: int, stream: int, *values: Any) -> None:
        if not (x and y and z):
            return
        raws = [value.data_ptr() if pointer else value for value, pointer in zip(values, pointers, strict=True)]
        try:
            launched.launch(autotuner, result.config, compiled, start, (x, y, z), raws, values)
        except KernelError as error:
            origin = origin_of(autotuner)
            error.generated_kernel = origin.kernel  # type: ignore[attr-defined]
            raise explained(error, {origin.kernel: origin}) from None

    launcher = result._gen_launcher_code(
        {"runner": runner, "grid_meta": result.config.kwargs},
        def_args,
        ["grid_0", "grid_1", "grid_2", "stream", *names],
    )
    launcher.config, launcher.shared = result.config, compiled.metadata.shared
    launcher.n_regs, launcher.n_spills = compiled.n_regs, compiled.n_spills
    launcher.cache_hash, launcher.store_cubin = None, False
    return launcher
