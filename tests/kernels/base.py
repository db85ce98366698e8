"""The kernels that test every part of the compiler, each with random arguments and a NumPy reference.

A `Case` makes fresh arguments and the expected contents of each written array, in float64. Outputs start as poison (NaN, or a bit pattern),
and the reference starts from a copy of it. So the tests also check the elements that the kernel must not write. The same cases run through
the interpreter before and after every pass, through ptxas for every target, on the CPU, and on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blocknb import passes
from blocknb.frontend.descriptors import field_names
from blocknb.frontend.parse import parse
from blocknb.ir import interp
from blocknb.ir.core import Func
from blocknb.runtime.descriptor import TensorDescriptor
from blocknb.runtime.job import front_argument
from blocknb.runtime.kinds import unspecialized_kind
from blocknb.target import Target
from blocknb.trace import Stage


@dataclass(frozen=True)
class Case:
    """`make(rng)` returns the arguments by name, and `reference(arguments)` the expected arrays by name, from unchanged arguments.

    `addresses` maps tables of pointers among the arguments to the arrays whose addresses they hold.
    """

    name: str
    kernel: Any
    make: Callable[[np.random.Generator], dict[str, Any]]
    reference: Callable[[Mapping[str, Any]], dict[str, np.ndarray]]
    grid: tuple[int, ...] = (1,)
    options: Mapping[str, Any] = field(default_factory=dict)
    rtol: float = 1e-5
    atol: float = 1e-6
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def link(self, arguments: dict[str, Any], address: Callable[[Any], int], place: Callable = np.asarray) -> None:
        """Fills the tables of pointers with the current addresses of the arrays; `place` moves a table to their device."""
        for table, names in self.addresses.items():
            arguments[table] = place(np.array([address(arguments[name]) for name in names], np.int64))

    def check(self, arguments: Mapping[str, Any], got: Mapping[str, Any]) -> None:
        """Compares written arrays with the reference; raises AssertionError naming case and array."""
        for name, expected in self.reference(arguments).items():
            actual = np.asarray(array_of(got[name]))
            message = f"{self.name}: {name}"
            if actual.dtype.kind in "iub":
                np.testing.assert_array_equal(actual, expected.astype(actual.dtype), err_msg=message)
            else:
                np.testing.assert_allclose(
                    actual.astype(np.float64), expected.astype(np.float64), self.rtol, self.atol, err_msg=message
                )

    def parse(self, arguments: Mapping[str, Any], target: Target | None = None, **options: Any) -> Func:
        """The tile IR for these arguments, specialized as for a launch; `options` are added to the case's own. The kernel can query
        `target` at compile time."""
        binding, values = self.kernel.bound_call((), dict(arguments))
        described = self.kernel.describe(binding, values)[0]
        kinds = {
            name: unspecialized_kind(kind) if unspecialized else kind
            for name, kind, unspecialized in zip(binding.names, described, binding.unspecialized, strict=True)
        }
        ordered = {p.name: front_argument(kinds[p.name]) for p in self.kernel.source.parameters}
        options = {**self.kernel.options, **self.options, **options}
        return parse(self.kernel.source, ordered, {name: x for name, x in options.items() if x is not None}, target)

    def lower(
        self, arguments: Mapping[str, Any], target: str, without: Iterable[str] = (), **options: Any
    ) -> tuple[Func, tuple[Stage, ...]]:
        """The IR after the last pass, and every stage."""
        return passes.run(self.parse(arguments, **options), Target.parse(target), without)

    def interpret(self, func: Func, arguments: Mapping[str, Any], **options: Any) -> None:
        """Runs a Func of this case in the interpreter, on copies of the arguments, and checks what it wrote."""
        got = {name: copied(value) for name, value in arguments.items()}
        self.link(got, host_address)
        interp.run(func, parameters(func, got), self.grid, **options)
        self.check(arguments, got)


def host_address(array: np.ndarray) -> int:
    return array.ctypes.data


def copied(value: Any) -> Any:
    """A copy of an array, or of a descriptor, with the same order of axes; other values unchanged."""
    if isinstance(value, TensorDescriptor):
        return described(value, copied(value.base))
    return value.copy(order="K") if isinstance(value, np.ndarray) else value


def described(like: TensorDescriptor, base: Any) -> TensorDescriptor:
    """A descriptor of another array of the same shape."""
    return TensorDescriptor(base, like.shape, like.strides, like.block_shape, like.padding)


def array_of(value: Any) -> Any:
    """The array of a descriptor, or the array itself."""
    return value.base if isinstance(value, TensorDescriptor) else value


def parameters(func: Func, given: Mapping[str, Any]) -> list[Any]:
    """The arguments of a Func's parameters, with descriptors and tuples split into their parts."""
    flat: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, TensorDescriptor):
            parts = (value.base, *value.shape, *value.strides[:-1])
            flat.update(zip(field_names(name, value.rank), parts, strict=True))
        elif isinstance(value, tuple):
            flat.update({f"{name}.{i}": element for i, element in enumerate(value)})
        else:
            flat[name] = value
    return [flat[hint.name] for hint in func.hints]


CASES: dict[str, Case] = {}
GPU_CASES: dict[str, Case] = {}  # what runs on a GPU only, and is assembled everywhere


def case(name: str, kernel: Any, make: Callable, reference: Callable, gpu_only: bool = False, **rest: Any) -> None:
    (GPU_CASES if gpu_only else CASES)[name] = Case(name, kernel, make, reference, **rest)


def poison(shape: Any, dtype: Any) -> np.ndarray:
    """An array of values that no kernel computes: NaN, or 0xA5 bytes."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return np.frombuffer(b"\xa5" * (int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape).copy()
    return np.full(shape, np.nan, dtype)


def normal(rng: np.random.Generator, shape: Any, dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def integers(
    rng: np.random.Generator, shape: Any, dtype: Any, low: int | None = None, high: int | None = None
) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.integers(
        info.min if low is None else low, info.max if high is None else high, shape, dtype=dtype, endpoint=True
    )


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)
