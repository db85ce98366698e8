"""The registry of the zoo: the parts of a specimen, and how tests run and check it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo.arrays import place, to_numpy
from zoo.references import FLOAT8

Make = Callable[[np.random.Generator], dict[str, Any]]


@dataclass(frozen=True)
class Specimen:
    """`make(rng)` gives fresh inputs by name, NumPy arrays and numbers; `call` is a project's wrapper around its kernels, and gives
    an array or several; `reference` takes the inputs with floats as float64 and gives what `call` should have.

    `rtol` and `atol` are for an element; `atol` counts in the largest magnitude of an output. Where the inputs decide how much is lost,
    `error` takes them as `reference` does. It gives for each result how far an element may be off. `gpu_only` kernels hold PTX.
    """

    name: str
    call: Callable[..., Any]
    reference: Callable[..., Any]
    make: Make
    rtol: float
    atol: float
    gpu_only: bool = False
    error: Callable[..., tuple[Any, ...]] | None = None

    @property
    def kind(self) -> str:
        return self.name.split("[")[0]

    @property
    def large(self) -> bool:
        """Whether its tiles are those that wgmma has registers for, which other instructions may have to spill."""
        return Path(self.call.__code__.co_filename).name.startswith("tensor_")

    def run(self, inputs: Mapping[str, Any], library: str, device: str) -> tuple[np.ndarray, ...]:
        """The wrapper's results on copies of the inputs in a library's arrays."""
        results = self.call(**{name: place(value, library, device) for name, value in inputs.items()})
        return tuple(map(to_numpy, results if isinstance(results, tuple) else (results,)))

    def check(self, inputs: Mapping[str, Any], results: tuple[np.ndarray, ...]) -> None:
        """Compares with the reference; raises AssertionError naming specimen and output."""
        given = {name: wide(value) for name, value in inputs.items()}
        expected = self.reference(**given)
        expected = expected if isinstance(expected, tuple) else (expected,)
        assert len(results) == len(expected), f"{self.name}: {len(results)} results, not {len(expected)}"
        errors = self.error(**given) if self.error else (None,) * len(results)
        for i, (got, wanted, error) in enumerate(zip(results, expected, errors, strict=True)):
            wanted, message = np.asarray(wanted), f"{self.name}: result {i}"
            assert got.shape == wanted.shape, message
            if got.dtype.kind in "iub":
                np.testing.assert_array_equal(got, wanted, err_msg=message)
                continue
            if error is not None:
                off = np.abs(got.astype(np.float64) - wanted)
                assert (off <= error).all(), f"{message}: off by up to {(off / error).max():.3g} of what is allowed"
                continue
            finite = np.abs(wanted[np.isfinite(wanted)])
            allowed = self.atol * max(float(finite.max(initial=0.0)), 1e-30)
            np.testing.assert_allclose(got.astype(np.float64), wanted, self.rtol, allowed, err_msg=message)


def wide(value: Any) -> Any:
    """Floats as float64, everything else as it is."""
    if isinstance(value, list):
        return [wide(v) for v in value]
    if not isinstance(value, np.ndarray) or value.dtype.kind in "iub":
        return value
    return value.astype(np.float64)


ZOO: dict[str, Specimen] = {}


def specimen(
    name: str,
    call: Callable[..., Any],
    reference: Callable[..., Any],
    rtol: float = 1e-5,
    atol: float = 1e-6,
    gpu_only: bool = False,
    error: Callable[..., tuple[Any, ...]] | None = None,
    **sets: Make,
) -> None:
    """Registers a specimen for each named set of inputs."""
    for which, make in sets.items():
        key = f"{name}[{which}]"
        assert key not in ZOO, key
        ZOO[key] = Specimen(key, call, reference, make, rtol, atol, gpu_only, error)


def normal(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def integers(rng: np.random.Generator, low: int, high: int, *shape: int, dtype: Any = np.int32) -> np.ndarray:
    """Integers from low up to, not including, high."""
    return rng.integers(low, high, shape, dtype=dtype)


def codes(rng: np.random.Generator, rows: int, columns: int, kind: str = "e4m3") -> np.ndarray:
    """Rows of numbers of few bits as bytes: of e2m1 two in each."""
    if kind == "e2m1":
        return integers(rng, 0, 256, rows, columns // 2, dtype=np.uint8)
    return normal(rng, rows, columns, dtype=FLOAT8[kind]).view(np.uint8)
