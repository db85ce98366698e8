"""A generated kernel as the text of a cell, and a kernel of the user in place of a generated one.

`GeneratedKernel.edit` and `replace_with` (`launched`) call these functions. A replacement belongs to the source and the types of a
generated kernel, so a graph that is compiled again gets it, too. Launchers are swapped: nothing is added to a launch. Graphs that CUDA
has captured hold the kernel of their capture.
"""

from __future__ import annotations

import hashlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from blocknb.errors import KernelError, LaunchError
from blocknb.runtime.binding import definition
from blocknb.runtime.kernel import Kernel
from blocknb.torch.inductor import compared, graphs, launched, results, sources
from blocknb.torch.inductor.cell_text import definitions, header, short_name

Grid = Callable[[Mapping[str, Any]], tuple[int, ...]]
_lock = threading.RLock()


def key_of(autotuner: Any) -> str:
    """The key of a generated kernel: a hash of its source, the types of its arguments, and its kind of device."""
    types = {n: t for n, t in autotuner.triton_meta["signature"].items() if t != "constexpr"}
    others = [k.src for n, k in autotuner.fn.fn.__globals__.items() if isinstance(k, Kernel) and n in autotuner.fn.src]
    text = "\n".join((autotuner.fn.src, *others, repr(types), autotuner.device_props.type))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def generated_autotuner(autotuner: Any) -> Any:
    """The autotuner of the generated kernel, also of one that stands in its place."""
    return getattr(autotuner, "replaces", autotuner)


def cell_of(generated: launched.GeneratedKernel) -> str:
    """The kernel as the text of a `%%blockkernel` cell, which runs as it stands."""
    autotuner = generated_autotuner(generated.autotuner)
    origin = graphs.origin_of(autotuner)
    key, name = key_of(autotuner), short_name(origin.kernel)
    with _lock:
        _opened[key] = generated
    body = definitions(autotuner, _original(generated, autotuner)[0], name)
    lines = [
        "%%blockkernel",
        f"# {origin.kernel} fuses {', '.join(generated.operators) or 'no known operators'}.",
        *dict.fromkeys(f"# {file}:{line}: {text}" for file, line, text in generated.lines),
        f'# To put the changed kernel in place of the generated one: blocknb.torch.replace_kernel("{key}", {name})',
        *header(body),
        "",
        "",
        body,
    ]
    return "\n".join(lines) + "\n"


# ---- replacements ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class KernelReplacement:
    """A kernel in place of a generated one. `key` is the hash of the generated kernel, `constants` are the values of its constants and
    `grid` is its grid, where the caller gave them. Graphs that CUDA has captured keep the kernel of their capture."""

    key: str
    generated: str
    kernel: Kernel
    constants: Mapping[str, Any] = field(default_factory=dict)
    grid: Grid | None = None

    def restore(self) -> None:
        """Puts the generated kernel back in its place."""
        restore(self.key)

    def __repr__(self) -> str:
        place = definition(self.kernel.source)
        return f"<{self.kernel.__name__} ({place.file}:{place.line}) in place of {self.generated}, key {self.key}>"


_opened: dict[str, launched.GeneratedKernel] = {}
_replaced: dict[str, KernelReplacement] = {}
_before: dict[int, tuple[Any, list[Any]]] = {}  # the launchers of generated kernels, by the id of their autotuner


def replaced() -> list[KernelReplacement]:
    """The replacements that are in force."""
    return list(_replaced.values())


def replace_kernel(
    key: str | launched.GeneratedKernel, kernel: Any, *, grid: Grid | None = None, **constants: Any
) -> KernelReplacement:
    """Puts a kernel in place of a generated one, once it has computed the same on the recorded arguments and on random ones.

    `key` is a row of `blocknb.torch.kernels(...)`, or the key in the text of its cell. The kernel has the parameters of the generated
    one, and may have more constants. It runs with its own num_warps; `constants` and `grid`, a function of its arguments by name,
    override its defaults. Later launches of graphs use it, forward and backward, also those of graphs that are compiled again. A graph
    that CUDA has captured before keeps the generated kernel. Raises LaunchError if the parameters or the results differ, and what the
    compilation or a launch of the kernel raises.
    """
    generated = _opened.get(key) if isinstance(key, str) else key
    if generated is None:
        raise LaunchError(f"no generated kernel with the key {key!r} was opened", hint="call `found[i].edit()` first")
    if not isinstance(kernel, Kernel):
        raise LaunchError(
            f"a kernel takes the place of a generated one, not an object of type {type(kernel).__name__}",
            hint="put @blocknb.kernel before the function; an autotuner cannot take the place of a kernel",
        )
    autotuner = generated_autotuner(generated.autotuner)
    _check_parameters(kernel, autotuner, _original(generated, autotuner)[0], constants)
    made = KernelReplacement(key_of(autotuner), generated.name, kernel, constants, grid)
    _check_results(made, autotuner, generated)
    with _lock:
        restore(made.key)
        _replaced[made.key] = made
        results.substitute = _substitute
        for other in _alive(made.key):
            if other.launchers:
                _before[id(other)] = other, other.launchers
                _swap(other, [_launcher_of(made, other, other.launchers[0].config)])
    return made


def restore(key: str | launched.GeneratedKernel) -> None:
    """Puts a generated kernel back in its place; nothing happens if none was replaced."""
    name = key if isinstance(key, str) else key_of(generated_autotuner(key.autotuner))
    with _lock:
        if _replaced.pop(name, None) is None:
            return
        for other in _alive(name):
            _, launchers = _before.pop(id(other), (other, None))
            if launchers is None and other.launchers:  # compiled since
                launchers = [found.make_launcher() for found in other.compile_results]
            if launchers is not None:
                _swap(other, launchers)


def _alive(key: str) -> Iterator[Any]:
    """The autotuners of a generated kernel in this process."""
    known = {id(generated_autotuner(k.autotuner)): generated_autotuner(k.autotuner) for k in launched.kernels()}
    return (autotuner for autotuner in known.values() if key_of(autotuner) == key)


def _swap(autotuner: Any, launchers: list[Any]) -> None:
    autotuner.launchers = launchers
    if hasattr(autotuner, "_cached_launcher"):  # since torch 2.13
        autotuner._cached_launcher = None


def _substitute(result: Any) -> Any:
    """The launcher of a replacement for a compiled configuration of a generated kernel; None if it stays."""
    made = _replaced.get(key_of(result.autotuner))
    return None if made is None else _launcher_of(made, result.autotuner, result.config)


def _launcher_of(made: KernelReplacement, autotuner: Any, config: Any) -> Any:
    result = _compiled(made, autotuner, config)
    return results.launcher(result, result.autotuner)


def _compiled(made: KernelReplacement, autotuner: Any, config: Any, **options: Any) -> Any:
    """The replacement, compiled in place of a configuration of a generated kernel."""
    kernel, heuristics = made.kernel, sources.private("triton_heuristics")
    known = {**autotuner.triton_meta["constants"], **config.kwargs}
    constants = {
        p.name: made.constants.get(p.name, p.default if p.default is not inspect.Parameter.empty else known.get(p.name))
        for p in _constants(kernel)
    }
    other = object.__new__(type(autotuner))
    vars(other).update(vars(autotuner))
    other.fn, other.replaces = kernel, autotuner
    other.launchers, other.compile_results = [], []
    other.triton_meta = _meta(autotuner, kernel)
    other.inductor_meta = {**autotuner.inductor_meta, **_grid_meta(made.grid, kernel)}
    graphs.adopt(other, autotuner)
    warps = kernel.options["num_warps"] or config.num_warps
    stages = kernel.options["num_stages"] or config.num_stages
    own = heuristics.Config({**config.kwargs, **constants}, num_warps=warps, num_stages=stages)
    own.found_by_coordesc = own.found_by_combo_autotune = True
    try:
        result = results.compiled_result(other, own, **options)
    except KernelError as error:
        raise results.with_origins(error, other) from None
    result.scope = {"_grid_of": _normal(made.grid)} if made.grid is not None else {}
    return result


def _meta(autotuner: Any, kernel: Kernel) -> dict[str, Any]:
    """The types and divisors of the arguments, at their positions in another kernel."""
    old, names = autotuner.triton_meta, kernel.arg_names
    constants = {p.name for p in _constants(kernel)}
    before = autotuner.fn.arg_names
    attributes = {
        (names.index(before[position[0]]),): facts
        for position, facts in old["configs"][0].items()
        if before[position[0]] in names
    }
    signature = {name: "constexpr" if name in constants else old["signature"][name] for name in names}
    return {**old, "signature": signature, "configs": [attributes]}


def _grid_meta(grid: Grid | None, kernel: Kernel) -> dict[str, Any]:
    """The options by which Inductor's launcher computes the grid by a function."""
    if grid is None:
        return {}
    arguments = ", ".join(f"{p.name}={p.name}" for p in kernel.params if not p.is_constexpr)
    return {
        "grid_type": "FixedGrid",
        "fixed_grid": [f"(_grid := _grid_of(grid_meta, {arguments}))[0]", "_grid[1]", "_grid[2]"],
    }


def _normal(grid: Grid) -> Callable[..., tuple[int, int, int]]:
    def three(meta: Mapping[str, Any], **arguments: Any) -> tuple[int, int, int]:
        found = tuple(map(int, grid({**meta, **arguments})))
        return (*found, 1, 1, 1)[:3]  # type: ignore[return-value]

    return three


def _constants(kernel: Kernel) -> list[Any]:
    return [p for p in kernel.params if p.is_constexpr]


def _check_parameters(kernel: Kernel, autotuner: Any, config: Any, constants: Mapping[str, Any]) -> None:
    old = [p.name for p in autotuner.fn.params if not p.is_constexpr]
    new = [p.name for p in kernel.params if not p.is_constexpr]
    place = definition(kernel.source)
    if old != new:
        raise LaunchError(
            f"{kernel.__name__} has the parameters {', '.join(new)}, and the generated kernel has {', '.join(old)}",
            place,
            "keep the names and the order of the parameters; constants (tl.constexpr) may be added",
        )
    known = {**autotuner.triton_meta["constants"], **config.kwargs, **constants}
    names = [p.name for p in _constants(kernel)]
    if missing := [p.name for p in _constants(kernel) if p.default is inspect.Parameter.empty and p.name not in known]:
        raise LaunchError(
            f"the constant `{missing[0]}` of {kernel.__name__} has no value",
            place,
            f"pass {missing[0]}=..., or give it a default",
        )
    if unknown := [name for name in constants if name not in names]:
        raise LaunchError(
            f"{kernel.__name__} has no constant `{unknown[0]}`",
            place,
            f"its constants are: {', '.join(names) or 'none'}",
        )


def _check_results(made: KernelReplacement, autotuner: Any, generated: launched.GeneratedKernel) -> None:
    """Raises LaunchError if the replacement and the generated kernel compute something else."""
    launch, (config, old) = generated.launch, _original(generated, autotuner)
    if launch is None or launch.kept is None:
        why = "it was not launched in a record" if launch is None else launch.why_not_kept
        raise LaunchError(
            f"{generated.name} has no recorded arguments to compare the kernels on: {why}",
            hint="record a launch: `found = blocknb.torch.kernels(function, *args)`, or a %%torchkernels cell",
        )
    new = _compiled(made, autotuner, config, **_check_options(autotuner))
    if more := sorted(new.kernel.stored - old.stored):
        raise LaunchError(
            f"{made.kernel.__name__} stores to `{more[0]}`, to which the generated kernel does not store",
            compared.store_of(made.kernel, more[0]),
        )
    kept = launch.kept
    with launched.trial():
        found = compared.difference(
            runner(old, launch.grid, autotuner),
            runner_of(new, launch.grid),
            in_float64(autotuner, config, launch.grid),
            sorted(old.stored),
            old.loaded,
            kept,
        )
    if found is not None:
        raise compared.refuse(made.kernel, *found, str(generated.origin))


def _original(generated: launched.GeneratedKernel, autotuner: Any) -> tuple[Any, Any]:
    """The configuration of a generated kernel and its compilation, also if another kernel stands in its place."""
    if autotuner is generated.autotuner:
        return generated.config, generated.compiled
    result = autotuner.compile_results[0]
    return result.config, result.kernel


def _check_options(autotuner: Any) -> dict[str, Any]:
    """Options that find accesses outside arrays. They are the default on the CPU."""
    return {"checked": True} if autotuner.device_props.type != "cpu" else {}


# ---- runs on kept arguments ------------------------------------------------------------------------------------------------


def runner_of(result: Any, grid: tuple[int, int, int]) -> compared.Run:
    """A function that launches a compiled configuration on arguments by name."""
    launcher = results.launcher(result, result.autotuner)
    code = launcher.__code__
    names, on_gpu = code.co_varnames[: code.co_argcount - 1], result.kernel.target.is_gpu
    known = {**result.compile_meta["constants"], **dict(zip(("_grid_0", "_grid_1", "_grid_2"), grid, strict=True))}

    def run(values: Mapping[str, Any]) -> None:
        stream = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device()) if on_gpu else 0
        launcher(*(values[name] if name in values else known[name] for name in names), stream=stream)

    return run


def runner(compiled: Any, grid: tuple[int, int, int], autotuner: Any) -> compared.Run:
    """A function that launches a generated kernel on arguments by name."""
    start = results.starter(compiled, autotuner.triton_meta.get("device") or 0)

    def run(values: Mapping[str, Any]) -> None:
        ordered = [values[name] for name, _ in compiled.parameters]
        start(grid, [value.data_ptr() if hasattr(value, "data_ptr") else value for value in ordered], ordered)

    return run


def in_float64(autotuner: Any, config: Any, grid: tuple[int, int, int]) -> compared.Run | None:
    """The generated kernel in float64; None if it does not compile."""
    other = object.__new__(type(autotuner))
    vars(other).update(vars(autotuner))
    other.fn = compared.in_float64(autotuner.fn)
    other.triton_meta = {**autotuner.triton_meta, "signature": compared.widened(autotuner.triton_meta["signature"])}
    try:
        compiled = results.compiled_result(other, config).kernel
    except KernelError:
        return None
    return runner(compiled, grid, other)
