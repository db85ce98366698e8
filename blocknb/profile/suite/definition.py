"""What a benchmark is: arrays for a shape and a dtype, our call, a float64 reference, and where each is measured by default.

Definitions are written once for every array library. `Make` makes random inputs and poisoned outputs of NumPy, CuPy or torch, and a
reference gets the library as `xp` with all inputs in float64: NumPy, CuPy and torch share the few names that references need
(torch takes `axis` and `keepdims`, too). Peers' calls are found by the benchmark's name, see `peers_torch` and `peers_numpy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Config = dict[str, Any]
Arrays = dict[str, Any]
#: rtol and atol by dtype: fp32 as a few roundings leave it; fp16 as one or two roundings of the result do.
TOLERANCE = {"fp32": (2e-5, 2e-5), "fp16": (2e-3, 2e-3)}
#: Dtypes by the names that cases have for them; tf32 is how fp32 is multiplied. fp8 is e4m3 without infinities.
DTYPES = {
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "int8": "int8",
}


class Make:
    """Makes a case's arrays with NumPy or CuPy (`xp`), fresh random numbers each time."""

    def __init__(self, xp: Any, dtype: str) -> None:
        self.xp, self.dtype, self.random = xp, DTYPES[dtype], xp.random.default_rng()

    def normal(self, *shape: int, dtype: str | None = None) -> Any:
        """Normal random numbers; of integers with a standard deviation of 30."""
        numbers = self.random.standard_normal(shape, dtype=np.float32)
        return self.cast(numbers * 30 if (dtype or self.dtype) == "int8" else numbers, dtype)

    def below(self, high: int, *shape: int) -> Any:
        """Integers from 0 to high - 1, int64."""
        return self.random.integers(0, high, shape, dtype=np.int64)

    def poison(self, *shape: int, dtype: str | None = None) -> Any:
        return self.spoil(self.xp.empty(shape, numpy_dtype(dtype or self.dtype)))

    @staticmethod
    def spoil(array: Any) -> Any:
        """Fills an array with what no result holds by chance."""
        array[...] = -99 if "int" in str(array.dtype) else np.nan
        return array

    def wide(self, array: Any) -> Any:
        """In float64; classes and other large integers as they are."""
        return array if array.dtype.kind in "iu" and array.dtype.itemsize > 4 else array.astype(np.float64)

    def cast(self, array: Any, dtype: str | None = None) -> Any:
        return array.astype(numpy_dtype(dtype or self.dtype), copy=False)

    @staticmethod
    def nbytes(array: Any) -> int:
        return int(array.nbytes)


class MakeTorch(Make):
    """The same with torch, on a device."""

    def __init__(self, device: str, dtype: str) -> None:
        import torch

        self.xp, self.dtype, self.device = torch, DTYPES[dtype], device

    def _kind(self, dtype: str | None) -> Any:
        return getattr(self.xp, dtype or self.dtype)

    def normal(self, *shape: int, dtype: str | None = None) -> Any:
        name = dtype or self.dtype
        if name in ("int8", "float8_e4m3fn"):  # torch makes no such numbers
            return self.cast(self.xp.randn(*shape, device=self.device) * (30 if name == "int8" else 1), name)
        return self.xp.randn(*shape, device=self.device, dtype=self._kind(name))

    def below(self, high: int, *shape: int) -> Any:
        return self.xp.randint(0, high, shape, device=self.device, dtype=self.xp.int64)

    def poison(self, *shape: int, dtype: str | None = None) -> Any:
        return self.spoil(self.xp.empty(shape, device=self.device, dtype=self._kind(dtype)))

    def wide(self, array: Any) -> Any:
        return array if array.dtype == self.xp.int64 else array.double()

    def cast(self, array: Any, dtype: str | None = None) -> Any:
        return array.to(self._kind(dtype))

    @staticmethod
    def nbytes(array: Any) -> int:
        return int(array.numel() * array.element_size())


def numpy_dtype(name: str) -> Any:
    """A dtype of NumPy or ml_dtypes."""
    if name not in ("bfloat16", "float8_e4m3fn"):
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name))


@dataclass(frozen=True)
class BenchmarkCase:
    """One row of a benchmark's table."""

    name: str
    shape: Shape
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} {shape_text(self.shape)} {self.dtype}"


@dataclass(frozen=True)
class Variant:
    """Another of our own ways to a benchmark's results, or Triton's way with another source of ours: a peer of its own.

    `language` is one of `triton_source.REWRITING`; `call(kernels, arrays, **config)` fills the outputs, by kernels of
    blocknb.kernels.<module>. Where there is a `sweep`, the peer is measured in its best configuration, before a search has been made in
    that which is `known` to be good for a shape and a dtype.
    """

    language: str
    call: Callable[..., Any]
    module: str
    sweep: Callable[[Shape], Iterable[Config]] | None = None
    known: Callable[[Shape, str], Config] | None = None


@dataclass(frozen=True)
class SuiteBenchmark:
    """`arrays(make, *shape)` gives inputs and outputs; `ours(kernels, arrays, **config)` fills the outputs with the wrappers that
    `kernels` offers; `exact(xp, *inputs in float64)` gives the outputs, a tuple where there are several.

    `module` of blocknb.kernels holds the wrapper, whose `tile` chooses a configuration where it has one; `sweep` gives the
    configurations that a search tries beside. `flops` of a shape turns the rate into TFLOP/s; otherwise it is bytes: every array once.
    `check(xp, inputs, outputs)` replaces the comparison with `exact` where results are random, and says what is wrong.
    `variants` are further peers, by name; `peers` are those a GPU is measured with unless the command line says otherwise, in the
    table's order. `timed` is the most rounds, where one takes long.
    """

    name: str
    module: str
    arrays: Callable[..., tuple[Arrays, Arrays]]
    ours: Callable[..., Any]
    exact: Callable[..., Any] | None
    gpu: Mapping[str, tuple[Shape, ...]]
    cpu: tuple[Shape, ...]
    sweep: Callable[[Shape], Iterable[Config]]
    tolerance: Mapping[str, tuple[float, float]] = field(default_factory=lambda: TOLERANCE)
    flops: Callable[..., int] | None = None
    check: Callable[[Any, Arrays, Arrays], str] | None = None
    variants: Mapping[str, Variant] = field(default_factory=dict)
    peers: tuple[str, ...] = ()
    timed: int | None = None

    def cases(self, device: str) -> list[BenchmarkCase]:
        shapes: Mapping[str, tuple[Shape, ...]] = self.gpu if device == "gpu" else {"fp32": self.cpu}
        return [BenchmarkCase(self.name, shape, dtype) for dtype, found in shapes.items() for shape in found]


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
