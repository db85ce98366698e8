"""The definition of a benchmark: arrays for a shape and a dtype, our call, a float64 reference, and the default shapes.

A definition serves every array library. `Make` makes random inputs and poisoned outputs of NumPy, CuPy or torch. A reference gets the
library as `xp` and all inputs in float64; it uses only names that NumPy, CuPy and torch share (torch also takes `axis` and `keepdims`).
`peers_torch` and `peers_numpy` define the calls of peers under the name of the benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Config = dict[str, Any]
Arrays = dict[str, Any]
#: rtol and atol by dtype: a few roundings of fp32; one or two roundings of an fp16 result.
TOLERANCE = {"fp32": (2e-5, 2e-5), "fp16": (2e-3, 2e-3)}
#: NumPy dtypes by the names in cases. tf32 is fp32 data for tf32 tensor cores. fp8 is e4m3 without infinities.
DTYPES = {
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "int8": "int8",
}


class Make:
    """Makes the arrays of a case with NumPy or CuPy (`xp`), from fresh random numbers."""

    def __init__(self, xp: Any, dtype: str) -> None:
        self.xp, self.dtype, self.random = xp, DTYPES[dtype], xp.random.default_rng()

    def normal(self, *shape: int, dtype: str | None = None) -> Any:
        """Normal random numbers, with a standard deviation of 30 for int8 and of 1 otherwise."""
        numbers = self.random.standard_normal(shape, dtype=np.float32)
        return self.cast(numbers * 30 if (dtype or self.dtype) == "int8" else numbers, dtype)

    def integers_below(self, high: int, *shape: int) -> Any:
        """Integers from 0 to high - 1, int64."""
        return self.random.integers(0, high, shape, dtype=np.int64)

    def poison(self, *shape: int, dtype: str | None = None) -> Any:
        return self.spoil(self.xp.empty(shape, numpy_dtype(dtype or self.dtype)))

    @staticmethod
    def spoil(array: Any) -> Any:
        """Fills an array with NaN, or -99 for integers, so that missing writes are detected."""
        array[...] = -99 if "int" in str(array.dtype) else np.nan
        return array

    def wide(self, array: Any) -> Any:
        """Converts to float64, except integers of more than 4 bytes."""
        return array if array.dtype.kind in "iu" and array.dtype.itemsize > 4 else array.astype(np.float64)

    def cast(self, array: Any, dtype: str | None = None) -> Any:
        return array.astype(numpy_dtype(dtype or self.dtype), copy=False)

    @staticmethod
    def nbytes(array: Any) -> int:
        return int(array.nbytes)


class MakeTorch(Make):
    """Makes the arrays of a case with torch, on a device."""

    def __init__(self, device: str, dtype: str) -> None:
        import torch

        self.xp, self.dtype, self.device = torch, DTYPES[dtype], device

    def _kind(self, dtype: str | None) -> Any:
        return getattr(self.xp, dtype or self.dtype)

    def normal(self, *shape: int, dtype: str | None = None) -> Any:
        name = dtype or self.dtype
        if name in ("int8", "float8_e4m3fn"):  # torch has no random numbers of these dtypes
            return self.cast(self.xp.randn(*shape, device=self.device) * (30 if name == "int8" else 1), name)
        return self.xp.randn(*shape, device=self.device, dtype=self._kind(name))

    def integers_below(self, high: int, *shape: int) -> Any:
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
    """The dtype of NumPy or ml_dtypes with this name."""
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
    """A peer that runs another of our kernels for the same benchmark, compiled by blocknb or by Triton.

    `language` is a key of `triton_source.REWRITING`. `call(kernels, arrays, **config)` fills the outputs with kernels of
    blocknb.kernels.<module>. If `sweep` is given, the peer is measured in its best configuration. Before a search, `known(shape, dtype)`
    gives a good one.
    """

    language: str
    call: Callable[..., Any]
    module: str
    sweep: Callable[[Shape], Iterable[Config]] | None = None
    known: Callable[[Shape, str], Config] | None = None


@dataclass(frozen=True)
class SuiteBenchmark:
    """The definition of one benchmark.

    `arrays(make, *shape)` returns inputs and outputs. `ours(kernels, arrays, **config)` fills the outputs with wrappers of `kernels`.
    `exact(xp, *inputs in float64)` returns the expected outputs, a tuple if there are several. `check(xp, inputs, outputs)` replaces the
    comparison with `exact` for random results; it returns an error text or "".

    `module` of blocknb.kernels holds the wrapper; its function `tile`, if any, chooses a configuration. `sweep` yields the configurations
    of a search. With `flops(*shape)` the rate is in TFLOP/s; without it, it counts the bytes of every array once. `variants` are further
    peers by name. `peers` are the default peers on a GPU, in the order of the columns. `timed` limits the rounds of slow benchmarks.
    `drawn(seed)` returns random shapes; `gpu` holds those of seed 1.
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
    drawn: Callable[[int], tuple[Shape, ...]] | None = None

    def cases(self, device: str, seed: int | None = None) -> list[BenchmarkCase]:
        """The cases on a "gpu" or "cpu". With `seed`, a benchmark of random shapes draws its shapes on a GPU from it."""
        shapes: Mapping[str, tuple[Shape, ...]] = self.gpu if device == "gpu" else {"fp32": self.cpu}
        if device == "gpu" and seed is not None and self.drawn is not None:
            shapes = dict.fromkeys(shapes, self.drawn(seed))
        return [BenchmarkCase(self.name, shape, dtype) for dtype, found in shapes.items() for shape in found]


def shape_text(shape: Shape) -> str:
    """The text of a shape: "4096x1024", or "2^26" for a large vector with a power of two elements."""
    if len(shape) == 1 and shape[0] >= 1 << 16 and shape[0] & (shape[0] - 1) == 0:
        return f"2^{shape[0].bit_length() - 1}"
    return "x".join(map(str, shape))


def parse_shape(text: str) -> Shape:
    """The inverse of `shape_text`. Raises ValueError for other texts."""
    if text.startswith("2^"):
        return (1 << int(text[2:]),)
    return tuple(int(part) for part in text.split("x"))


# -- configurations for a search: each thread holds between LEAST and MOST elements of the tile

LEAST, MOST = 4, 64


def warps(elements: int) -> Iterator[int]:
    yield from (w for w in (1, 2, 4, 8, 16, 32) if LEAST <= elements / (32 * w) <= MOST or (w == 1 and elements < 128))


def over_rows(shape: Shape) -> Iterator[Config]:
    """ROWS of a matrix (M, N) per program, of at most 8192 elements together, and num_warps."""
    block = 1 << max(shape[1] - 1, 0).bit_length()
    for rows in (1, 2, 4, 8, 16, 32):
        if rows == 1 or (rows * block <= 8192 and rows <= shape[0]):
            yield from ({"ROWS": rows, "num_warps": w} for w in warps(rows * block))


def over_blocks(shape: Shape) -> Iterator[Config]:
    """Elements per program, and num_warps."""
    for block in (256, 512, 1024, 2048, 4096, 8192):
        yield from ({"block": block, "num_warps": w} for w in warps(block) if block / (32 * w) <= 32)


def over_warps(shape: Shape) -> Iterator[Config]:
    yield from ({"num_warps": w} for w in (1, 2, 4, 8, 16))


def over_squares(shape: Shape) -> Iterator[Config]:
    """The side of a square tile, and num_warps."""
    for side in (32, 64, 128):
        yield from ({"tile": side, "num_warps": w} for w in warps(side * side))
