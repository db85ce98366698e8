"""Every test kernel interpreted as Python matches its reference and the IR interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz.generator import generate
from fuzz.program import check_native
from kernels import CASES
from kernels.base import array_of, copied, host_address, parameters
from support import TOLERANCE

from blocknb.ir import interp
from blocknb.ir.address import programs_of


def arguments_of(case, seed):
    made = case.make(np.random.default_rng(seed))
    case.link(made, host_address)
    return made


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_an_interpreted_kernel_agrees_with_its_reference_and_the_ir(name):
    case = CASES[name]
    arguments = arguments_of(case, 11)
    got = {n: copied(v) for n, v in arguments.items()}
    case.link(got, host_address)
    case.kernel.interpret(case.grid)(**got, **case.options)
    case.check(arguments, got)
    expected = {n: copied(v) for n, v in arguments.items()}
    case.link(expected, host_address)
    run_in_order(case.parse(arguments), expected, case.grid)
    for n, value in expected.items():
        array = array_of(value)
        if isinstance(array, np.ndarray) and n not in case.addresses:
            assert_same(array_of(got[n]), array, n)


def run_in_order(func, arguments, grid):
    for program in programs_of(grid)[1]:
        interp.run(func, parameters(func, arguments), grid, programs=[program])


def assert_same(actual, expected, name):
    """Compares integers exactly, and floats within the error of reordered sums."""
    if actual.dtype.kind in "iub":
        np.testing.assert_array_equal(actual, expected, err_msg=name)
        return
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.abs(b[np.isfinite(b)])
    allowed = TOLERANCE.get(actual.dtype.name, 0.0) * float(finite.max(initial=0.0))
    np.testing.assert_allclose(a, b, rtol=0, atol=allowed, err_msg=name)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", [*range(0, 240, 8)])
def test_an_interpreted_random_kernel_agrees_with_the_ir_and_the_cpu(seed):
    program = generate(seed)
    got, expected = program.make(np.random.default_rng(seed)), program.make(np.random.default_rng(seed))
    program.case.kernel.interpret((program.grid,))(**got, **program.case.options)
    run_in_order(program.case.parse(expected), expected, (program.grid,))
    for array in program.arrays:
        assert_same(got[array.name], expected[array.name], f"{array.name}\n{program}")
    if seed % 3 == 0:
        check_native(program)
