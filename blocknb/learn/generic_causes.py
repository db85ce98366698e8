"""Causes that need no list of mistakes: facts of the footprint, of the IR, and of the wrong numbers themselves.

Each function yields sentences that are certain, or so likely that they are right in practice: a false cause is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from blocknb.errors import KernelError
from blocknb.footprint.error_causes import error_causes
from blocknb.footprint.value import Footprint
from blocknb.learn.cell import Answer, line_of
from blocknb.learn.exercise import CheckFinding
from blocknb.learn.mistake_matching import answer_in
from blocknb.learn.running import Attempt, called, copies, differs, region_text

#: Kinds of `error_causes` that name a cause. The others are questions that a right kernel may raise, too.
CERTAIN = ("zero", "dropped", "overwritten", "masked", "range", "wraps", "fraction", "view")
#: The numbers that a kernel may compute of each row instead of the right one.
REDUCED: dict[str, Any] = {
    "minimum": np.min,
    "maximum": np.max,
    "sum": np.sum,
    "mean": np.mean,
    "variance": np.var,
    "standard deviation": np.std,
    "place of the maximum": np.argmax,
    "place of the minimum": np.argmin,
}
FEWEST = 8  # elements that a pattern of numbers must explain


def of_accesses(made: Attempt) -> Iterator[CheckFinding]:
    """Outputs that the kernel reads before anything is in them, and inputs that it does not load although the solution does."""
    seen = made.footprint
    if seen is None or seen.sampled or seen.log.unknown or seen.log.foreign is not None:
        return
    for name in made.exercise.outputs:
        array = seen.arrays.get(made.parameter(name))
        if name in made.exercise.updated or array is None:
            continue
        if array.atomics.accesses and np.asarray((array.atomics.count > 0) & (array.stores.count == 0)).any():
            line = line_of(array.atomics.accesses[0].op.loc)
            text = f"an atomic changes `{array.name}`, which holds nothing before the launch: tl.store"
            yield CheckFinding(text, "generic", True, line)
        if not array.loads:
            continue
        if np.asarray((array.loads.count > 0) & (array.stores.count == 0)).any() or _is_poisoned(made, name):
            line = line_of(array.loads.accesses[0].op.loc)
            yield CheckFinding(
                f"the kernel loads `{array.name}`, which holds nothing before the launch", "generic", True, line
            )
    solution = _solution(made)
    if solution is not None:
        yield from _not_loaded(made, seen, solution)


def _not_loaded(made: Attempt, seen: Footprint, solution: Footprint) -> Iterator[CheckFinding]:
    """Inputs, or parts of them, that the solution loads and the kernel does not."""
    for name in sorted(set(made.names.values()) - set(made.exercise.outputs)):
        mine, theirs = seen.arrays.get(made.parameter(name)), solution.arrays.get(name)
        if mine is None or theirs is None or not theirs.loads or mine.shape != theirs.shape:
            continue
        missing = np.asarray((theirs.loads.count > 0) & (mine.loads.count == 0))
        if not missing.any() or not _matters(made, name, missing):
            continue
        if not mine.loads:
            yield CheckFinding(f"the kernel never loads `{mine.name}`", "generic", True)
            continue
        line = line_of(mine.loads.accesses[0].op.loc)
        yield CheckFinding(f"no program loads {region_text(mine.name, missing)}", "generic", True, line)


def _matters(made: Attempt, name: str, missing: np.ndarray) -> bool:
    """Whether other numbers in the missing elements of an input would change the wrong elements of a right result."""
    changed = copies(made.given)
    if not isinstance(changed[name], np.ndarray):
        return True
    values = changed[name][missing]
    changed[name][missing] = ~values if values.dtype.kind in "iub" else values * -3 - 5
    with np.errstate(all="ignore"):
        try:
            want = called(made.exercise.reference, changed)
        except Exception:  # other numbers may be invalid, such as indices outside of an array
            return True
    return any((np.asarray(want[output]) != made.want[output])[flags].any() for output, flags in made.wrong.items())


def _is_poisoned(made: Attempt, name: str) -> bool:
    """Whether NaN stands in wrong elements of an output, as after a load of poison."""
    flags = made.wrong.get(name)
    return flags is not None and made.left[name].dtype.kind == "f" and bool(np.isnan(made.left[name][flags]).any())


def _solution(made: Attempt) -> Footprint | None:
    """The footprint of the solution on the same case."""
    answer = answer_in(made.exercise, made.exercise.solution)
    if not isinstance(answer, Answer):
        return None
    other = Attempt(made.exercise, answer, made.case, made.seed, given=made.given, grid=made.grid)
    return other.footprint


def of_values(made: Attempt) -> Iterator[CheckFinding]:
    """The causes that the IR's interpreter sees in the programs of wrong elements, such as masked lanes that enter a maximum."""
    seen = made.footprint
    if seen is None:
        return
    try:
        found = error_causes(seen, sorted(programs_of(made))[:2] or [0])
    except KernelError:
        return
    for cause in found:
        if (
            cause.kind in CERTAIN
            or (cause.kind == "half" and _nearly(made))
            or (cause.kind == "overflow" and _not_finite(made))
        ):
            yield CheckFinding(cause.text, "generic", True, line_of(cause.loc))


def _not_finite(made: Attempt) -> bool:
    """Whether inf or NaN stands in wrong elements whose right number is finite."""
    pairs = [(*_pair(made, name), flags) for name, flags in made.wrong.items()]
    return any((flags & ~np.isfinite(got) & np.isfinite(want)).any() for got, want, flags in pairs)


def programs_of(made: Attempt) -> set[int]:
    """The programs that stored the first wrong element of each output."""
    seen, found = made.footprint, set()
    for name, flags in made.wrong.items():
        array = seen.arrays.get(made.parameter(name)) if seen is not None else None
        if array is not None and array.stores:
            found.add(int(array.stores.to_numpy().reshape(-1)[int(np.argmax(flags.reshape(-1)))]["first"]))
    return found - {-1}


def _nearly(made: Attempt) -> bool:
    """Whether all wrong elements are near the right ones: within 5% of them, or of the root mean square of the result."""
    for name, flags in made.wrong.items():
        got, want = _pair(made, name)
        usual = np.sqrt(np.mean(np.square(want[np.isfinite(want)]))) if np.isfinite(want).any() else 0.0
        if not (np.abs(got - want)[flags] <= 0.05 * np.maximum(usual, np.abs(want))[flags]).all():
            return False
    return bool(made.wrong)


def _pair(made: Attempt, name: str) -> tuple[np.ndarray, np.ndarray]:
    got = np.asarray(made.left[name]).astype(np.float64)
    return got, np.broadcast_to(made.want[name], got.shape).astype(np.float64)


def of_numbers(made: Attempt) -> Iterator[CheckFinding]:
    """Patterns of the wrong numbers: transposed, copied, shifted, scaled, negated, or nearly right."""
    for name in made.wrong:
        got, want = _pair(made, name)
        if got.size < FEWEST or len(np.unique(want)) < FEWEST:
            continue
        with np.errstate(all="ignore"):
            text, named = _pattern(made, name, got, want)
        if text:
            yield CheckFinding(text, "generic", named)


def _pattern(made: Attempt, name: str, got: np.ndarray, want: np.ndarray) -> tuple[str, bool]:
    """The sentence about a pattern, and whether it names the cause."""
    stored = np.asarray(made.left[name])
    shown = made.parameter(name)

    def equal(a: np.ndarray, b: np.ndarray) -> bool:
        return not differs(a.astype(stored.dtype), b, made.exercise.tolerance).any()

    if got.ndim == 2 and 1 not in got.shape and equal(got.reshape(want.T.shape), want.T):
        return f"`{shown}` holds the right result transposed: rows and columns are exchanged", True
    if text := _of_an_input(made, shown, got, equal):
        return text, True
    if equal(got, -want):
        return f"every element of `{shown}` has the wrong sign", True
    if text := _shifted(shown, got, want, stored, made):
        return text, True
    scaled = _scaled(made, shown, got, want)
    if scaled[0]:
        return scaled
    if np.isfinite(got).all() and _nearly(made) and stored.dtype.kind == "f":
        largest = float(np.abs(got - want).max())
        return f"`{shown}` is nearly right: the largest error is {largest:.2g}, and rounding explains less", False
    return "", False


def _of_an_input(made: Attempt, shown: str, got: np.ndarray, equal: Callable[[np.ndarray, np.ndarray], bool]) -> str:
    """The sentence about an output that is a copy of an input, or another reduction of its rows."""
    for name, value in made.given.items():
        if not isinstance(value, np.ndarray) or name in made.exercise.outputs:
            continue
        if value.shape == got.shape and equal(got, value):
            return f"`{shown}` is a copy of `{made.parameter(name)}`"
        if value.ndim == 2 and value.shape[:1] == got.shape:
            for what, reduced in REDUCED.items():
                if equal(got, reduced(value.astype(np.float64), axis=1)):
                    return f"`{shown}` holds the {what} of each row of `{made.parameter(name)}`"
    return ""


def _scaled(made: Attempt, shown: str, got: np.ndarray, want: np.ndarray) -> tuple[str, bool]:
    """The sentence about a common factor. One that is an argument names the cause."""
    used = np.isfinite(got) & (np.abs(want) > 1e-3)
    if used.sum() < FEWEST or not np.isfinite(got).all():
        return "", False
    factor = float(np.median(got[used] / want[used]))
    if not np.isfinite(factor) or abs(factor) < 1e-6 or not np.allclose(got, factor * want, rtol=1e-3, atol=1e-6):
        return "", False
    for own, name in made.names.items():
        value = made.given[name]
        if isinstance(value, int | float | np.number) and value not in (0, 1):
            if np.isclose(factor, float(value), rtol=1e-4):
                text = f"every element of `{shown}` is `{own}` = {value} times too large"
                return f"{text}: is the division by `{own}` missing?", True
            if np.isclose(factor, 1 / float(value), rtol=1e-4):
                return f"every element of `{shown}` is `{own}` = {value} times too small", True
    return f"every element of `{shown}` is {factor:.6g} times the right one", False


def _shifted(shown: str, got: np.ndarray, want: np.ndarray, stored: np.ndarray, made: Attempt) -> str:
    """Whether the right result stands some elements further along the last axis."""
    size = got.shape[-1]
    for step in (
        1,
        -1,
        *sorted({s for v in made.given.values() if isinstance(v, int) and 1 < v < size for s in (v, -v)}),
    ):
        a = got[..., step:] if step > 0 else got[..., :step]
        b = want[..., :-step] if step > 0 else want[..., -step:]
        if (
            b.size >= FEWEST
            and len(np.unique(b)) >= FEWEST
            and not differs(a.astype(stored.dtype), b, made.exercise.tolerance).any()
        ):
            where = "after" if step > 0 else "before"
            count = abs(step)
            return f"the right values stand {count} element{'s' * (count > 1)} {where} their place in `{shown}`"
    return ""
