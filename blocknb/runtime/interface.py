"""The host interface that Triton's wrappers expect of kernels, and stand-ins for arrays.

An autotuner, a set of heuristics, or a user's wrapper is a `KernelInterface`: it defines `run(*args, grid=..., **kwargs)` and inherits
`wrapper[grid](...)`. A `TensorWrapper` shows an array as another dtype of the same size. A `MockTensor` describes an array without
memory, for `kernel.warmup`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from blocknb.errors import LaunchError
from blocknb.runtime.arguments import describe_by, describer, dtype_of
from blocknb.runtime.kinds import ANYWHERE, HOST, Kind, pointer_kind


class KernelInterface:
    """The base class of objects that are launched as `wrapper[grid](*args, **kwargs)`. Subclasses define `run`."""

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launches on the grid, or only compiles with `warmup`."""
        raise NotImplementedError(f"{type(self).__name__} does not define run(*args, grid, warmup, **kwargs)")

    def warmup(self, *args: Any, grid: Any = None, **kwargs: Any) -> Any:
        """Compiles for these arguments without a launch. A dtype stands for an array."""
        return self.run(*map(MockTensor.wrap_dtype, args), grid=grid, warmup=True, **kwargs)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return functools.partial(self.run, grid=grid, warmup=False)


class MockTensor:
    """An array without memory: a dtype of torch, NumPy or the language, and an address that is a multiple of 16."""

    def __init__(self, dtype: Any, shape: Any = None):
        self.dtype, self.shape = dtype, tuple(shape or (1,))

    def __repr__(self) -> str:
        return f"MockTensor({self.dtype})"

    @staticmethod
    def wrap_dtype(argument: Any) -> Any:
        """Returns a MockTensor for a dtype of torch or NumPy, and any other argument unchanged."""
        kind = type(argument)
        is_dtype = isinstance(argument, np.dtype) or (kind.__module__, kind.__name__) == ("torch", "dtype")
        return MockTensor(argument) if is_dtype else argument

    def data_ptr(self) -> int:
        return 0

    def stride(self) -> tuple[int, ...]:
        strides = [1]
        for size in reversed(self.shape[1:]):
            strides.append(strides[-1] * size)
        return tuple(reversed(strides))


class TensorWrapper:
    """An array (`base`) whose bits are read as another dtype of the same size. `reinterpret` makes it."""

    def __init__(self, base: Any, dtype: Any):
        self.base, self.dtype = base, dtype
        self.data, self.shape, self.device = base, base.shape, getattr(base, "device", None)

    def __str__(self) -> str:
        return f"TensorWrapper[{self.dtype}]({self.base})"

    def data_ptr(self) -> int:
        return describer(self.base)(self.base)[1]

    def stride(self, *axis: int) -> Any:
        if hasattr(self.base, "stride"):
            return self.base.stride(*axis)
        strides = tuple(s // self.element_size() for s in self.base.strides)
        return strides[axis[0]] if axis else strides

    def element_size(self) -> int:
        return self.base.element_size() if hasattr(self.base, "element_size") else self.base.itemsize

    def cpu(self) -> TensorWrapper:
        return TensorWrapper(self.base.cpu(), self.dtype)

    def copy_(self, other: Any) -> None:
        self.base.copy_(other.base if isinstance(other, TensorWrapper) else other)

    def clone(self) -> TensorWrapper:
        return TensorWrapper(self.base.clone(), self.dtype)

    def to(self, device: Any) -> TensorWrapper:
        return TensorWrapper(self.base.to(device), self.dtype)

    def new_empty(self, sizes: Any) -> TensorWrapper:
        return TensorWrapper(self.base.new_empty(sizes), self.dtype)


def reinterpret(tensor: Any, dtype: Any) -> Any:
    """Returns the array with its bits read as another dtype of the same size. Raises LaunchError for another size or a non-array."""
    base = tensor.base if isinstance(tensor, TensorWrapper) else tensor
    wanted, kind = dtype_of(dtype), describer(base)(base)[0]
    if not kind.is_pointer:
        raise LaunchError(f"reinterpret takes an array, not a {type(base).__name__}")
    if kind.type.element.bytes != wanted.bytes:
        message = f"{kind.type.element} and {wanted} differ in size"
        raise LaunchError(message, hint="reinterpret keeps the bits, so both dtypes must have the same size")
    return base if kind.type.element == wanted else TensorWrapper(base, dtype)


def _reinterpreted(wrapper: TensorWrapper) -> tuple[Kind, int]:
    kind, address = describer(wrapper.base)(wrapper.base)
    place = HOST if kind.device is None else kind.device
    return pointer_kind(dtype_of(wrapper.dtype), address % 16 == 0, place, kind.readonly, kind.library), address


def _mock(tensor: MockTensor) -> tuple[Kind, int]:
    return pointer_kind(dtype_of(tensor.dtype), True, ANYWHERE), 0


describe_by(TensorWrapper, _reinterpreted)
describe_by(MockTensor, _mock)
