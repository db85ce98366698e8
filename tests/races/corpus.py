"""The form of the corpus: kernels with a race and their expected error, and kernels without one.

The lines of a race are marked by comments `# race` in the kernel's source. `array` and `element` are those of the error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import blocknb


@dataclass(frozen=True)
class RaceCase:
    """A kernel and how to launch it. `make()` gives its arguments; `array` and `element` are None for a kernel without a race.

    `element` may be a function of the error, if the programs of the race depend on the order in which they run.
    `concurrent`: all programs must run at the same time, because they wait for each other.
    """

    kernel: Any
    grid: tuple[int, ...]
    make: Callable[[], Mapping[str, Any]]
    array: str | None = None
    element: int | Callable[[blocknb.RaceError], int] | None = None
    concurrent: bool = False

    @property
    def lines(self) -> set[int]:
        """The lines of the source that are marked."""
        first = self.kernel.source.first_line
        text = inspect.getsource(self.kernel.fn).splitlines()
        return {first + i for i, line in enumerate(text) if line.rstrip().endswith("# race")}


RACY: dict[str, RaceCase] = {}
RIGHT: dict[str, RaceCase] = {}


Make = Callable[[], Mapping[str, Any]]


def first_of_others(error: blocknb.RaceError) -> int:
    """The first element that another program stores than the one that loads them all, if each program stores that of its number."""
    return 1 if error.other_program == (0, 0, 0) else 0


def racy(grid: int | tuple[int, ...], array: str, element: Any, make: Make, concurrent: bool = False) -> Callable:
    """Registers a kernel with a race. Decorates the kernel."""
    return _registering(RACY, grid, make, array, element, concurrent)


def right(grid: int | tuple[int, ...], make: Make, concurrent: bool = False) -> Callable:
    """Registers a kernel without a race."""
    return _registering(RIGHT, grid, make, None, None, concurrent)


def _registering(
    table: dict[str, RaceCase], grid: Any, make: Make, array: str | None, element: Any, concurrent: bool
) -> Callable:
    def register(function: Any) -> Any:
        kernel = blocknb.kernel(function)
        assert function.__name__ not in table
        sizes = grid if isinstance(grid, tuple) else (grid,)
        table[function.__name__] = RaceCase(kernel, sizes, make, array, element, concurrent)
        return kernel

    return register


def floats(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 17


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def ints(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


def launch(case: RaceCase, convert: Callable[[np.ndarray], Any] = lambda x: x) -> blocknb.RaceError | None:
    """Launches a kernel and returns the race that it reports. `convert` copies an array to a device."""
    made = {name: convert(x) if isinstance(x, np.ndarray) else x for name, x in case.make().items()}
    try:
        case.kernel[case.grid](**made, checked="race")
    except blocknb.RaceError as error:
        return error
    return None


def check(case: RaceCase, error: blocknb.RaceError | None) -> None:
    """The error names both lines, two programs, the array and the element."""
    assert error is not None, "the race is not found"
    assert error.loc is not None
    assert error.other_loc is not None
    element = case.element(error) if callable(case.element) else case.element
    assert (error.array, error.index) == (case.array, element), str(error)
    if case.element is first_of_others:
        assert error.program == (element, 0, 0), str(error)
    assert {error.loc.line, error.other_loc.line} == case.lines, str(error)
    assert error.program != error.other_program
    assert f"element {element} of `{case.array}`" in error.message
    assert error.hint
