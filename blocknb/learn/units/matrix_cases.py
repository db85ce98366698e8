"""Cases, references and texts that the exercises on matrix products share (units 8, 9 and 10).

Elements are small integers where an exercise does not ask about rounding. Their products and sums are exact in tf32 and fp32. So a right
kernel agrees with float64 to the last bit on every device, and a single missing product is visible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from blocknb.learn.exercise import Case

Make = Callable[[np.random.Generator], dict[str, Any]]


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "float32", most: int = 8) -> np.ndarray:
    """Random integers from -most to most, without 0, so that every product counts."""
    numbers: np.ndarray = (rng.integers(1, most + 1, shape) * rng.choice([-1, 1], shape)).astype(dtype)
    return numbers


def operands(rng: np.random.Generator, m: int, n: int, k: int, dtype: str = "float32", most: int = 8) -> dict[str, Any]:
    """`a` (m, k), `b` (k, n) and `c` (m, n), row-major."""
    return {
        "a": integers(rng, (m, k), dtype, most),
        "b": integers(rng, (k, n), dtype, most),
        "c": np.empty((m, n), dtype),
    }


def product_case(
    m: int, n: int, k: int, *, dtype: str = "float32", bias: bool = False, most: int = 8, **constants: Any
) -> Case:
    """The case "70x40, K=50": `a`, `b`, with `bias` a vector of n elements, `c`, the sizes M, N and K, and the constants."""

    def make(rng: np.random.Generator) -> dict[str, Any]:
        arrays = operands(rng, m, n, k, dtype, most)
        if (
            bias
        ):  # as large as a sum, whose sign then depends on it, and in quarters, so that sums lie between -1 and 0, too
            arrays = {"a": arrays["a"], "b": arrays["b"], "bias": integers(rng, (n,), dtype, 160) / 4, "c": arrays["c"]}
        return {**arrays, "M": m, "N": n, "K": k, **constants}

    return Case(f"{m}x{n}, K={k}", make)


def fraction_case(m: int, n: int, k: int, least: float, **constants: Any) -> Case:
    """A case of random fractions from `least` to 1 in float16. With positive ones the sums grow with K, and so does the rounding of a sum
    in float16."""
    constants = {name: value for name, value in constants.items() if name not in ("dtype", "most")}

    def make(rng: np.random.Generator) -> dict[str, Any]:
        a, b = (rng.uniform(least, 1, shape).astype(np.float16) for shape in ((m, k), (k, n)))
        return {"a": a, "b": b, "c": np.empty((m, n), np.float16), "M": m, "N": n, "K": k, **constants}

    return Case(f"fractions, {m}x{n}, K={k}", make)


def wide_range(rng: np.random.Generator, m: int, n: int, k: int) -> dict[str, Any]:
    """Operands in float32 that are exact in tf32, but neither in float16, whose exponents do not reach them, nor in bfloat16, which has
    fewer digits."""
    given = operands(rng, m, n, k, most=500)
    return {**given, "a": given["a"] * np.float32(2.0**12), "b": given["b"] * np.float32(2.0**-30)}


def product(a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    """a @ b in float64."""
    return {"c": a.astype(np.float64) @ b}


def biased_product(a: np.ndarray, b: np.ndarray, bias: np.ndarray) -> dict[str, Any]:
    """The leaky ReLU of a @ b + bias in float64."""
    total = a.astype(np.float64) @ b + bias
    return {"c": np.where(total > 0, total, 0.01 * total)}


def patched(source: str, *patches: tuple[str, str]) -> str:
    """A source with texts replaced. Raises ValueError if it does not contain one of them."""
    for old, new in patches:
        if old not in source:
            raise ValueError(f"the source does not contain {old!r}")
        source = source.replace(old, new)
    return source
