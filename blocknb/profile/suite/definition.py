"""What a benchmark is: arrays for a shape and a dtype, our call, a float64 reference, and where each is measured by default.

Definitions are written once for every array library. `Make` makes random inputs and poisoned outputs of NumPy, CuPy or torch, and a
reference gets the library as `xp` with all inputs in float64: NumPy, CuPy and torch share the few names that references need
(torch takes `axis` and `keepdims`, too). Peers' calls are found by the benchmark's name, see `peers_torch` and `peers_numpy`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Config = dict[str, Any]
Arrays = dict[str, Any]
#: rtol and atol by dtype: fp32 as a few roundings leave it; fp16 as one or two roundings of the result do.
TOLERANCE = {"fp32": (2e-5, 2e-5), "fp16": (2e-3, 2e-3)}
NUMPY_NAMES = {"fp32": "float32", "fp16": "float16"}


class Make:
    """Makes a case's arrays with NumPy or CuPy (`xp`), fresh random numbers each time."""

    def __init__(self, xp: Any, dtype: str) -> None:
        self.xp, self.dtype, self.random = xp, NUMPY_NAMES[dtype], xp.random.default_rng()

    def normal(self, *shape: int, dtype: str | None = None) -> Any:
        return self.random.standard_normal(shape, dtype=np.float32).astype(dtype or self.dtype, copy=False)

    def below(self, high: int, *shape: int) -> Any:
        """Integers from 0 to high - 1, int64."""
        return self.random.integers(0, high, shape, dtype=np.int64)

    def poison(self, *shape: int, dtype: str | None = None) -> Any:
        return self.xp.full(shape, np.nan, dtype or self.dtype)

    def wide(self, array: Any) -> Any:
        return array.astype(np.float64) if array.dtype.kind == "f" else array

    def cast(self, array: Any, dtype: str | None = None) -> Any:
        return array.astype(dtype or self.dtype)

    @staticmethod
    def nbytes(array: Any) -> int:
        return int(array.nbytes)


class MakeTorch(Make):
    """The same with torch, on a device."""

    def __init__(self, device: str, dtype: str) -> None:
        import torch

        self.xp, self.dtype, self.device = torch, NUMPY_NAMES[dtype], device

    def _kind(self, dtype: str | None) -> Any:
        return getattr(self.xp, dtype or self.dtype)

    def normal(self, *shape: int, dtype: str | None = None) -> Any:
        return self.xp.randn(*shape, device=self.device, dtype=self._kind(dtype))

    def below(self, high: int, *shape: int) -> Any:
        return self.xp.randint(0, high, shape, device=self.device, dtype=self.xp.int64)

    def poison(self, *shape: int, dtype: str | None = None) -> Any:
        return self.xp.full(shape, math.nan, device=self.device, dtype=self._kind(dtype))

    def wide(self, array: Any) -> Any:
        return array.double() if array.dtype.is_floating_point else array

    def cast(self, array: Any, dtype: str | None = None) -> Any:
        return array.to(self._kind(dtype))

    @staticmethod
    def nbytes(array: Any) -> int:
        return int(array.numel() * array.element_size())


@dataclass(frozen=True)
class Case:
    """One row of a benchmark's table."""

    name: str
    shape: Shape
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {shape_text(self.shape)} {self.dtype}"


@dataclass(frozen=True)
class Benchmark:
    """`arrays(make, *shape)` gives inputs and outputs; `ours(kernels, arrays, **config)` fills the outputs with the wrappers that
    `kernels` offers; `exact(xp, *inputs in float64)` gives the outputs, a tuple where there are several.

    `module` of blocknb.kernels holds the wrapper, whose `tile` chooses a configuration where it has one; `sweep` gives the
    configurations that a search tries beside. `flops` of a shape turns the rate into TFLOP/s; otherwise it is bytes: every array once.
    `check(xp, inputs, outputs)` replaces the comparison with `exact` where results are random, and says what is wrong.
    """

    name: str
    module: str
    arrays: Callable[..., tuple[Arrays, Arrays]]
    ours: Callable[..., Any]
    exact: Callable[..., Any] | None
    gpu: Mapping[str, tuple[Shape, ...]]
    cpu: tuple[Shape, ...]
    sweep: Callable[[Shape], Iterator[Config]]
    tolerance: Mapping[str, tuple[float, float]] = field(default_factory=lambda: TOLERANCE)
    flops: Callable[..., int] | None = None
    check: Callable[[Any, Arrays, Arrays], str] | None = None

    def cases(self, device: str) -> list[Case]:
        shapes: Mapping[str, tuple[Shape, ...]] = self.gpu if device == "gpu" else {"fp32": self.cpu}
        return [Case(self.name, shape, dtype) for dtype, found in shapes.items() for shape in found]


def shape_text(shape: Shape) -> str:
    """4096x1024; a vector of a power of two is 2^26."""
    if len(shape) == 1 and shape[0] >= 1 << 16 and shape[0] & (shape[0] - 1) == 0:
        return f"2^{shape[0].bit_length() - 1}"
    return "x".join(map(str, shape))


def parse_shape(text: str) -> Shape:
    """The shape that `shape_text` wrote. Raises ValueError for other texts."""
    if text.startswith("2^"):
        return (1 << int(text[2:]),)
    return tuple(int(part) for part in text.split("x"))


# -- configurations worth trying: each thread holds between 4 and 64 elements of the tile

LEAST, MOST = 4, 64


def warps(elements: int) -> Iterator[int]:
    yield from (w for w in (1, 2, 4, 8, 16, 32) if LEAST <= elements / (32 * w) <= MOST or (w == 1 and elements < 128))


def over_rows(shape: Shape) -> Iterator[Config]:
    """ROWS of a matrix (M, N) a program, as long as they are at most 8192 elements, and num_warps."""
    block = 1 << max(shape[1] - 1, 0).bit_length()
    for rows in (1, 2, 4, 8, 16, 32):
        if rows == 1 or (rows * block <= 8192 and rows <= shape[0]):
            yield from ({"ROWS": rows, "num_warps": w} for w in warps(rows * block))


def over_blocks(shape: Shape) -> Iterator[Config]:
    """The block of a program, and num_warps."""
    for block in (256, 512, 1024, 2048, 4096, 8192):
        yield from ({"block": block, "num_warps": w} for w in warps(block) if block / (32 * w) <= 32)


def over_warps(shape: Shape) -> Iterator[Config]:
    yield from ({"num_warps": w} for w in (1, 2, 4, 8, 16))


def over_squares(shape: Shape) -> Iterator[Config]:
    """The side of a square tile, and num_warps."""
    for side in (32, 64, 128):
        yield from ({"tile": side, "num_warps": w} for w in warps(side * side))


def over_products(shape: Shape) -> Iterator[Config]:
    """Tiles (M, N, K) of a matrix product, and num_warps."""
    for tile, count in (
        ((128, 128, 64), 4), ((128, 128, 32), 4), ((128, 256, 64), 8), ((128, 128, 64), 8), ((64, 128, 64), 4),
        ((256, 128, 64), 8),
    ):  # fmt: skip
        yield {"tile": tile, "num_warps": count}
