"""Launches inside `torch.compile`: `kernel[grid](...)` becomes one node of the graph, the operator `blocknb::launch`.

Dynamo, which traces the user's function, takes the branch of `Kernel.__getitem__` that calls `_traced` below. The node gets the tensors in
two lists: those that the kernel stores to, and the others. So torch keeps the order of reads and writes. The compiler tells which tensors a
kernel stores to. Everything else that describes the launch is a constant of the graph, kept here under a number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from blocknb.runtime import kernel as runtime_kernel
from blocknb.runtime.arguments import dtype_of
from blocknb.torch import ops_dispatch


class TracedLaunch(NamedTuple):
    """A launch without its tensors and numbers: the kernel, the names of its values by the list that holds them, and the constants."""

    kernel: Any
    stored: tuple[str, ...]
    loaded: tuple[str, ...]
    integers: tuple[str, ...]
    floats: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]


#: The launches of all graphs, and their numbers.
_launches: list[TracedLaunch] = []
_numbers: dict[Any, int] = {}


class _LaunchOperator:
    """The implementation of `blocknb::launch`."""

    def run(self, number: int, grid: Any, stored: Any, loaded: Any, integers: Any, floats: Any) -> None:
        """Launches the kernel."""
        launch = _launches[number]
        values = dict(launch.constants)
        for names, given in zip(launch[1:5], (stored, loaded, integers, floats), strict=True):
            values.update(zip(names, given, strict=True))
        launch.kernel[tuple(grid)](**values)

    def fake(self, *args: Any) -> None:
        """Does nothing: the launch returns nothing."""

    def batched(self, info: Any, in_dims: Any, *args: Any) -> Any:
        """Refuses `torch.vmap`."""
        raise NotImplementedError("a launch has no rule for torch.vmap: make it an operator with @blocknb.torch_op")

    def differentiable(self, *args: Any) -> Any:
        """Registers no gradient: a launch has none outside of torch.compile either."""


_SCHEMA = "(int number, SymInt[] grid, Tensor(a!)[] stored, Tensor[] loaded, SymInt[] integers, float[] floats) -> ()"
_overload = ops_dispatch.define("blocknb::launch", _SCHEMA, _LaunchOperator()).overload


@torch.compiler.assume_constant_result
def _parameters(number: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a kernel's parameters, and of those that are not constants."""
    parameters = runtime_kernel.by_number[number].params
    return tuple([p.name for p in parameters]), tuple([p.name for p in parameters if not p.is_constexpr])


@torch.compiler.assume_constant_result
def _described(
    number: int,
    tensors: tuple[tuple[str, Any], ...],
    integers: tuple[str, ...],
    floats: tuple[str, ...],
    constants: Any,
) -> tuple[int, tuple[bool, ...]]:
    """(the number of the launch, which of the tensors the kernel stores to), from the dtypes of the tensors."""
    kernel = runtime_kernel.by_number[number]
    types = {name: f"*{dtype_of(dtype).short}" for name, dtype in tensors}
    types |= dict.fromkeys(integers, "i64") | dict.fromkeys(floats, "fp32")
    stored = kernel.compile(target="cpu", **types, **dict(constants)).stored
    is_stored = tuple([name in stored for name, _ in tensors])
    names = tuple([n for n, _ in tensors if n in stored]), tuple([n for n, _ in tensors if n not in stored])
    launch = TracedLaunch(kernel, *names, integers, floats, tuple(constants))
    key = number, launch[1:]
    if key not in _numbers:
        _numbers[key] = len(_launches)
        _launches.append(launch)
    return _numbers[key], is_stored


def _traced(kernel: Any, grid: Any, *args: Any, **kwargs: Any) -> None:
    """Records a launch in the graph. Dynamo traces this function."""
    names, run_time = _parameters(kernel.number)
    bound = {**dict(zip(names, args)), **kwargs}  # noqa: B905
    if callable(grid):
        grid = grid(bound)
    grid = grid if isinstance(grid, (tuple, list)) else (grid,)
    tensors: list[Any] = []
    values: list[Any] = []
    constants: list[Any] = []
    integers: dict[str, Any] = {}
    floats: dict[str, Any] = {}
    for name, value in bound.items():
        if isinstance(value, torch.Tensor):
            tensors.append((name, value.dtype))
            values.append(value)
        elif name not in run_time or isinstance(value, bool) or not isinstance(value, (int, float, torch.SymInt)):
            constants.append((name, value))
        elif isinstance(value, float):
            floats[name] = value
        else:
            integers[name] = value
    described = _described(kernel.number, tuple(tensors), tuple(integers), tuple(floats), tuple(constants))
    stored = [value for value, is_stored in zip(values, described[1]) if is_stored]  # noqa: B905
    loaded = [value for value, is_stored in zip(values, described[1]) if not is_stored]  # noqa: B905
    _overload(described[0], list(grid), stored, loaded, list(integers.values()), list(floats.values()))


def trace_kernels() -> None:
    """Makes launches in functions under `torch.compile` nodes of the graph. `torch_op` and `blocknb.torch.nn` call it."""
    runtime_kernel.in_graph = torch.compiler.is_dynamo_compiling, _traced
