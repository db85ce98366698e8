"""Runs one kernel in every way: compiled for CPUs, interpreted as IR, as Python, and as simulated GPU code.

Results are compared bit for bit, with equal NaNs, with arrays that the test computes itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from cpu.native import compile_native, launch_native
from fuzz import simt
from host_cpus import OLDER
from kernels.base import Case, copied, parameters

from blocknb import passes, reinterpret
from blocknb.codegen import cpu, gpu, llvm
from blocknb.ir import interp
from blocknb.language.types import from_numpy
from blocknb.runtime.host import HostKernel
from blocknb.target import Target

#: Python, the IR interpreter, three CPUs without passes and one with them, the IR of a GPU, and simulated GPU code.
WAYS = ("eager", "ir", *OLDER, "cpu", "passes cpu", "ir sm_90a", "simt sm_75", "simt sm_90a")


def same_bits(actual: np.ndarray, expected: np.ndarray, message: str) -> None:
    """Checks that arrays are equal to the bit; NaNs may differ in their bits."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), message
    if actual.dtype.kind in "iub":
        np.testing.assert_array_equal(actual, expected, message)
        return
    nan = np.isnan(expected.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(actual.astype(np.float64)), nan, message)
    bits = f"u{actual.dtype.itemsize}"
    np.testing.assert_array_equal(actual.view(bits)[~nan], expected.view(bits)[~nan], message)


def check(kernel: Any, arguments: Mapping[str, Any], expected: Mapping[str, np.ndarray], ways: Iterable[str]) -> None:
    """Runs one program in each of the ways, on copies, and compares the arrays named in `expected`."""
    case = Case(kernel.__name__, kernel, lambda rng: {}, lambda _: {})
    for way in ways:
        got = {name: copied(value) for name, value in arguments.items()}
        _run(case, kernel, got, way)
        for name, array in expected.items():
            same_bits(got[name], array, f"{kernel.__name__}, {way}: {name}")


def check_on_gpu(kernel: Any, arguments: Mapping[str, Any], expected: Mapping[str, np.ndarray]) -> None:
    """Runs one program on a GPU. CuPy has no bf16 and no fp8, so those arrays are passed as integers."""
    import cupy

    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    known = {n for n, x in arrays.items() if x.dtype.isbuiltin == 1}
    bits = {n: cupy.asarray(x if n in known else x.view(f"u{x.dtype.itemsize}")) for n, x in arrays.items()}
    seen = {n: bits[n] if n in known else reinterpret(bits[n], from_numpy(x.dtype)) for n, x in arrays.items()}
    kernel[(1,)](**{**arguments, **seen})
    for name, array in expected.items():
        same_bits(cupy.asnumpy(bits[name]).view(array.dtype), array, f"{kernel.__name__}: {name}")


def _run(case: Case, kernel: Any, got: dict[str, Any], way: str) -> None:
    how, _, target = way.rpartition(" ")
    if way == "eager":
        kernel.interpret(1)(**got)
    elif way == "ir":
        func = case.parse(got)
        interp.run(func, parameters(func, got), 1)
    elif how == "ir":
        func, _ = case.lower(got, target)
        interp.run(func, parameters(func, got), 1)
    elif how == "simt":
        func, _ = case.lower(got, target, num_warps=4)
        simt.run(gpu.generate(func, Target.parse(target)), parameters(func, got), (1,))
    elif how == "passes":
        launch_native(_with_passes(case, got, target), _given(case, got), 1)
    else:
        launch_native(compile_native(case.parse(got), target, opt=1), _given(case, got), 1)


def _given(case: Case, got: Mapping[str, Any]) -> list[Any]:
    return parameters(case.parse(got), got)


def _with_passes(case: Case, got: Mapping[str, Any], target: str) -> HostKernel:
    parsed = Target.parse(target)
    func, _ = passes.run(case.parse(got, parsed), parsed)
    module = cpu.generate(func, parsed, True)
    made = llvm.compile_cpu(module.text, parsed, opt=2).result()
    kinds = [(hint.name, value.type.dtype) for hint, value in zip(func.hints, func.params, strict=True)]
    return HostKernel(made.object, module.entry, kinds, module.sites, module.scratch_bytes, module.may_loop)
