"""The kernels that every part of the compiler is tested with, each with random arguments and a NumPy reference.

A `Case` says how to make fresh arguments and what each written array must hold afterwards, in float64. Outputs start as poison
(NaN, or a bit pattern), and the reference starts from a copy of it, so an element that the kernel must leave alone is checked as
well. The same cases run through the interpreter before and after every pass, through ptxas for every target, on the CPU, and on
a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blocknb import passes
from blocknb.frontend.parse import ArgType, Constant, parse
from blocknb.ir import interp
from blocknb.ir.core import Func
from blocknb.language.types import Tile
from blocknb.target import Target
from blocknb.trace import Stage


@dataclass(frozen=True)
class Case:
    """`make(rng)` gives the arguments by name; `reference(arguments)` the expected arrays by name, from unharmed arguments.

    `addresses`: tables of pointers among the arguments, and the arrays whose addresses they hold.
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
        """Makes the tables of pointers, from where the arrays are now; `place` brings a table to them."""
        for table, names in self.addresses.items():
            arguments[table] = place(np.array([address(arguments[name]) for name in names], np.int64))

    def check(self, arguments: Mapping[str, Any], got: Mapping[str, Any]) -> None:
        """Compares written arrays with the reference; raises AssertionError naming case and array."""
        for name, expected in self.reference(arguments).items():
            actual = np.asarray(got[name])
            message = f"{self.name}: {name}"
            if actual.dtype.kind in "iub":
                np.testing.assert_array_equal(actual, expected.astype(actual.dtype), err_msg=message)
            else:
                np.testing.assert_allclose(
                    actual.astype(np.float64), expected.astype(np.float64), self.rtol, self.atol, err_msg=message
                )

    def parse(self, arguments: Mapping[str, Any]) -> Func:
        """The tile IR for these arguments, specialised as a launch would."""
        binding, values = self.kernel._called((), dict(arguments))
        kinds = dict(zip(binding.names, self.kernel._describe(binding, values)[0], strict=True))
        given = {
            name: Constant(kind.constant[0]) if kind.type is None else ArgType(Tile(kind.type), kind.divisibility)
            for name, kind in kinds.items()
        }
        ordered = {p.name: given[p.name] for p in self.kernel.source.parameters}
        return parse(self.kernel.source, ordered, {**self.kernel.options, **self.options})

    def lower(
        self, arguments: Mapping[str, Any], target: str, without: Iterable[str] = ()
    ) -> tuple[Func, tuple[Stage, ...]]:
        """The IR after the last pass, and every stage."""
        return passes.run(self.parse(arguments), Target.parse(target), without)

    def interpret(self, func: Func, arguments: Mapping[str, Any], **options: Any) -> None:
        """Runs a Func of this case in the interpreter, on copies of the arguments, and checks what it wrote."""
        got = {name: copied(value) for name, value in arguments.items()}
        self.link(got, host_address)
        interp.run(func, [got[hint.name] for hint in func.hints], self.grid, **options)
        self.check(arguments, got)


def host_address(array: np.ndarray) -> int:
    return array.ctypes.data


def copied(value: Any) -> Any:
    """A copy of an array with its order of axes; anything else as it is."""
    return value.copy(order="K") if isinstance(value, np.ndarray) else value


CASES: dict[str, Case] = {}


def case(name: str, kernel: Any, make: Callable, reference: Callable, **rest: Any) -> None:
    CASES[name] = Case(name, kernel, make, reference, **rest)


def poison(shape: Any, dtype: Any) -> np.ndarray:
    """An array that no kernel would leave by chance: NaN, or 0xA5 bytes."""
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
