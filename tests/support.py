"""Helpers for tests of the compiler: random arguments for a function, and comparison of the interpreter before and after a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from blocknb import passes
from blocknb.ir.core import Func
from blocknb.ir.interp import run
from blocknb.ir.text import parse_func, print_func
from blocknb.ir.verify import verify
from blocknb.passes.registry import REGISTERED
from blocknb.target import Target

NAMES = [each.name for each in passes.pipeline(Target.parse("sm_90a"))]
#: Passes after which barriers are not placed yet; the interpreter then assumes implicit barriers.
UNPLACED = tuple(NAMES[NAMES.index("lower_conversions") : NAMES.index("barriers")])
# Relative to the largest magnitude in the array: passes may reassociate sums, they may not do more.
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-6, "float64": 1e-14}


def replace_pass(monkeypatch: pytest.MonkeyPatch, name: str, run: Callable[..., Func]) -> None:
    """Replaces a pass of the pipeline by another function."""
    monkeypatch.setitem(REGISTERED, name, replace(REGISTERED[name], run=run))


def random_array(shape: int | tuple[int, ...], dtype: Any, rng: np.random.Generator) -> np.ndarray:
    """Random data of a NumPy dtype (or a blocknb DType): floats around zero, small integers, coin flips for bool."""
    dtype = np.dtype(getattr(dtype, "numpy", dtype))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -50, 50, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def misaligned(values: np.ndarray) -> np.ndarray:
    """A copy of an array at an odd address."""
    made = np.zeros(values.nbytes + 1, np.uint8)[1:].view(values.dtype).reshape(values.shape)
    made[...] = values
    assert made.ctypes.data % values.itemsize
    return made


def random_args(func: Func, sizes: int | Sequence[int], scalars: Sequence[Any] = (), seed: int = 0) -> list[Any]:
    """Arguments for a function: an array for each pointer (of `sizes` elements), the `scalars` in order for the rest."""
    rng, rest = np.random.default_rng(seed), iter(scalars)
    lengths = iter([sizes] * len(func.params) if isinstance(sizes, int) else sizes)
    return [
        random_array(next(lengths), p.type.dtype.element, rng) if p.type.is_pointer else next(rest) for p in func.params
    ]


def outputs(func: Func, args: Sequence[Any], grid: Any, seed: int = 0, **options: Any) -> list[Any]:
    """The arguments after a run on copies of them; `options` are those of `run`."""
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    run(func, copies, grid, seed=seed, **options)
    return copies


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float | None = None) -> None:
    """Equal for integers; for floats within `tolerance` (default by dtype) times the largest finite magnitude; NaN meets NaN."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if actual.dtype.kind in "iub":
        np.testing.assert_array_equal(actual, expected)
        return
    allowed = TOLERANCE[actual.dtype.name] if tolerance is None else tolerance
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.abs(b[np.isfinite(b)])
    np.testing.assert_allclose(a, b, rtol=0, atol=allowed * float(finite.max(initial=0.0)))


def check_same(
    before: Func,
    after: Func,
    args: Sequence[Any],
    grid: Any,
    *,
    seeds: Sequence[int] = (0, 1),
    tolerance: float | None = None,
    barriers_placed: bool = True,
    expected: list[Any] | None = None,
) -> list[Any]:
    """Checks that both functions are valid and give the same arrays; programs and warps run in the order of each seed.

    `barriers_placed=False`: the functions come from before the pass `barriers`, and memory-level IR is run as if it had run.
    `expected`: the outputs of `before` with implicit barriers, if they are known. Returns those of `after` with the first seed.
    """
    verify(before)
    verify(after)
    if expected is None:
        expected = outputs(before, args, grid, implicit_barriers=True)
    runs = [outputs(after, args, grid, seed, implicit_barriers=not barriers_placed) for seed in seeds]
    for found in runs:
        for actual, wanted in zip(found, expected, strict=True):
            if isinstance(wanted, np.ndarray):
                assert_close(actual, wanted, tolerance)
    return runs[0]


def check_pipeline(
    func: Func,
    args: Sequence[Any],
    grid: Any,
    target: str = "sm_90a",
    *,
    without: Sequence[str] = (),
    tolerance: float | None = None,
) -> tuple[Func, tuple[Any, ...]]:
    """Runs all passes of a target; after each the function is valid, survives its text form, and computes the same.

    Returns what `passes.run` does: the last function and the stages.
    """
    last, stages = passes.run(func, Target.parse(target), without)
    placed, known = None, (func, None)  # a function and what it computes
    for stage in stages:
        before, placed = placed, stage.name not in UNPLACED
        if stage.after is stage.before and placed == before:  # the previous stage has checked this
            continue
        text = print_func(stage.after, locs=True)
        assert print_func(parse_func(text), locs=True) == text
        expected = known[1] if known[0] is stage.before else None
        found = check_same(
            stage.before, stage.after, args, grid, tolerance=tolerance, barriers_placed=placed, expected=expected
        )
        explicit = placed and stage.after.level == "memory"  # the next stage compares with a run with implicit barriers
        known = stage.after, None if explicit else found
    return last, stages


class OnlyDlpack:
    """An array that exports its memory by DLPack, and does nothing else."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def running(pid: int) -> bool:
    """Whether a process is running and not a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
