"""Right launches are not accused: every launch of the zoo, of the tests' kernels and of the ready-made ones, each before it runs.

The quick tier takes a sample; `--full` takes all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from kernels import CASES
from kernels.base import copied
from zoo import ZOO
from zoo.launches import launching

from blocknb import kernels
from blocknb.footprint.value import Footprint
from blocknb.runtime.binding import without_left_out
from blocknb.runtime.kernel import Kernel

ON_CPU = [name for name, specimen in ZOO.items() if not specimen.gpu_only]


@contextmanager
def footprints() -> Iterator[list[Footprint]]:
    """Collects the footprints of all launches inside, each before its launch."""
    found: list[Footprint] = []
    launch = Kernel._general

    def way(self: Kernel, grid: Any, args: tuple, kwargs: dict, tried: Any = None) -> Any:
        given, named = without_left_out(args, kwargs)
        found.append(self.footprint(grid)(*given, **named))
        return launch(self, grid, args, kwargs, tried)

    with launching(way):
        yield found


def unaccused(call: Callable[[], Any]) -> None:
    with footprints() as found:
        call()
    assert found
    for footprint in found:
        assert not footprint.problems, str(footprint)


@pytest.mark.sampled(48)
@pytest.mark.parametrize("name", ON_CPU)
def test_a_launch_of_the_zoo_is_not_accused(name: str) -> None:
    unaccused(lambda: ZOO[name].run(ZOO[name].make(np.random.default_rng(0)), "numpy", "cpu"))


@pytest.mark.sampled(48)
@pytest.mark.parametrize("name", CASES)
def test_a_launch_of_the_tests_is_not_accused(name: str) -> None:
    case = CASES[name]
    arguments = {key: copied(value) for key, value in case.make(np.random.default_rng(3)).items()}
    case.link(arguments, lambda x: x.ctypes.data)
    unaccused(lambda: case.kernel[case.grid](**arguments, **case.options))


RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


A, B, Q, ROWS = normal(96, 80), normal(80, 72), normal(1, 2, 100, 32), normal(33, 200)
READY: dict[str, Callable[[], Any]] = {
    "add": lambda: kernels.add(A, A, np.empty_like(A)),
    "copy": lambda: kernels.copy(A, np.empty_like(A)),
    "softmax": lambda: kernels.softmax(ROWS, np.empty_like(ROWS)),
    "softmax in place": lambda: kernels.softmax(*[ROWS.copy()] * 2),
    "matmul": lambda: kernels.matmul(A, B, np.empty((96, 72), np.float32)),
    "matmul_pointers": lambda: kernels.matmul_pointers(A, B, np.empty((96, 72), np.float32)),
    "matmul_split": lambda: kernels.matmul_split(A, B, np.empty((96, 72), np.float32), splits=2),
    "attention": lambda: kernels.attention(Q, Q, Q, np.empty_like(Q)),
    "transpose": lambda: kernels.transpose(A, np.empty((80, 96), np.float32)),
    "rms_norm": lambda: kernels.rms_norm(ROWS, normal(200), np.empty_like(ROWS)),
    "layer_norm": lambda: kernels.layer_norm(ROWS, normal(200), normal(200), np.empty_like(ROWS)),
}


@pytest.mark.parametrize("name", READY)
def test_a_launch_of_a_ready_made_kernel_is_not_accused(name: str) -> None:
    unaccused(READY[name])
