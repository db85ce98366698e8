"""Runs a Python script and passes each of its launches on, with copies of the arrays from before and after the launch.

The commands `blocknb bisect` and `blocknb compile` take their kernels and arguments from a script that launches them. The scripts of
`blocknb fuzz` for an architecture such as sm_90a launch nothing: they interpret the last IR of a compilation, which counts as a launch.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blocknb.errors import ElementError, LaunchError
from blocknb.frontend.descriptors import field_names
from blocknb.ir import interp
from blocknb.ir.core import Func
from blocknb.runtime import cache, launch_context
from blocknb.runtime import compile as compiler
from blocknb.runtime.binding import definition
from blocknb.runtime.compile import Compiled
from blocknb.runtime.edited_kernel import EditedKernel
from blocknb.runtime.interface import TensorWrapper
from blocknb.runtime.kernel import Launch
from blocknb.runtime.launch_snapshot import scratch

#: A function that returns fresh arguments in the order of a Func's parameters, and the arrays among them by name.
Arguments = Callable[[Func], tuple[list[Any], dict[str, np.ndarray]]]


@dataclass(frozen=True)
class CapturedLaunch:
    """One launch: what was compiled for it, the grid, its arguments before it, and the arrays after it (None if no code ran).

    `error` is what the launch raised.
    """

    compiled: Compiled
    grid: Sequence[int]
    arguments: Arguments
    results: Mapping[str, np.ndarray] | None
    error: Exception | None = None


@contextlib.contextmanager
def fresh_cache() -> Iterator[None]:
    """Compiles without what earlier processes stored: the cache's keys do not cover a compiler that a script changes."""
    before = os.environ.get("BLOCKNB_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="blocknb-") as folder:
        os.environ["BLOCKNB_CACHE_DIR"] = folder
        try:
            _forget()
            yield
        finally:
            if before is None:
                os.environ.pop("BLOCKNB_CACHE_DIR", None)
            else:
                os.environ["BLOCKNB_CACHE_DIR"] = before
            _forget()


def _forget() -> None:
    cache.shared.cache_clear()
    compiler.forget()


def run_script(path: str, take: Callable[[CapturedLaunch], None], say: Callable[[str], None]) -> int:
    """Runs a script as `python path`, and calls `take` after each launch. Returns its exit status; an exception, which `say` gets, is 1."""
    arguments, folder = sys.argv, str(Path(path).resolve().parent)
    sys.argv = [path]
    sys.path.insert(0, folder)
    try:
        with launch_context.captured(lambda launch: _launched(launch, take)), _interpretations(take):
            runpy.run_path(path, run_name="__main__")
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        say(f"{path} ends with an exception: {''.join(traceback.format_exception_only(error)).strip()}")
        return 1
    finally:
        sys.argv = arguments
        sys.path.remove(folder)


def _launched(launch: Launch, take: Callable[[CapturedLaunch], None]) -> None:
    """Launches what was captured, on the arrays of the script, and copies them before and after."""
    snapshot = launch.snapshot
    originals = None if snapshot is None else snapshot.arguments(())
    before = None if snapshot is None else snapshot.arguments(list(snapshot.arrays))
    if snapshot is None or originals is None or before is None:
        name = launch.compiled.name
        raise LaunchError(
            f"an array of {name} cannot be copied",
            definition(launch.compiled.source),
            "pass NumPy, CuPy or torch arrays",
        )
    given = _copying(flattened(before))
    try:
        with launch_context.unobserved():
            again = launch.compiled if isinstance(launch.compiled, EditedKernel) else launch.kernel
            again.launch(launch.grid, **originals)
    except ElementError as error:  # of the running code
        take(CapturedLaunch(launch.compiled, launch.grid, given, None, error))
        raise
    after = snapshot.arguments(list(snapshot.arrays))
    assert after is not None
    take(CapturedLaunch(launch.compiled, launch.grid, given, arrays_of(flattened(after))))


@contextlib.contextmanager
def _interpretations(take: Callable[[CapturedLaunch], None]) -> Iterator[None]:
    """Passes each interpretation of the last IR of a compilation to `take`, too."""
    original = interp.run

    def run(func: Func, args: Sequence[Any], grid: Any, **options: Any) -> None:
        made = next((c for c in compiler.newest() if c.name == func.name and c.trace.stages[-1].after is func), None)
        names = [hint.name for hint in func.hints]
        values = dict(zip(names, args, strict=True))
        given = _copying(values | scratch(values))
        original(func, args, grid, **options)
        if made is not None:
            take(CapturedLaunch(made, grid, given, None))

    interp.run = run
    try:
        yield
    finally:
        interp.run = original


def _copying(given: Mapping[str, Any]) -> Arguments:
    """Arrays that share memory in the launch share it in each copy."""
    arrays = arrays_of(given)
    kept = {name: array.copy(order="K") for name, array in arrays.items()}

    def fresh(func: Func) -> tuple[list[Any], dict[str, np.ndarray]]:
        for name, array in arrays.items():
            if array.flags.writeable:
                array[...] = kept[name]
        return [arrays.get(hint.name, given[hint.name]) for hint in func.hints], arrays

    return fresh


def arrays_of(given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays among some values, in host memory."""
    found = {name: host_array(value) for name, value in given.items()}
    return {name: array for name, array in found.items() if array is not None}


def host_array(value: Any) -> np.ndarray | None:
    """The NumPy array for an array, in place if it lies in host memory; None for a number."""
    if isinstance(value, TensorWrapper):
        base = host_array(value.base)
        assert base is not None
        viewed: np.ndarray = base.view(value.dtype.numpy)
        return viewed
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__cuda_array_interface__") or type(value).__module__.startswith("torch"):
        return np.asarray(value.get() if hasattr(value, "get") else value.detach().cpu().numpy())
    return None


def flattened(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names of a Func's parameters: a tuple gives its elements, a tensor descriptor its array, sizes and strides."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, tuple):
            found |= flattened({f"{name}.{i}": element for i, element in enumerate(value)})
        elif hasattr(value, "block_shape"):
            fields = (value.base, *value.shape, *value.strides[:-1])
            found |= dict(zip(field_names(name, len(value.shape)), fields, strict=True))
        else:
            found[name] = value
    return found
