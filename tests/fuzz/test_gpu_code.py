"""The GPU code of every kernel of tests/kernels, simulated in NumPy, gives the right results without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import seeds
from kernels import CASES, quick
from kernels.base import array_of, copied, host_address

from blocknb.passes.memory import program_packing
from fuzz import reports

RUNS = [name for name in CASES if name not in quick.NOT_SIMULATED]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if quick.interpreted(name) else ()) for name in RUNS]
)
def test_gpu_code_computes_what_the_reference_says(name):
    case = CASES[name]
    arguments = case.make(seeds.rng())
    func, _ = case.lower(arguments, "sm_90a")
    got = {key: copied(value) for key, value in arguments.items()}
    case.link(got, host_address)
    arrays = [array for value in got.values() if isinstance(array := array_of(value), np.ndarray)]
    reports.run(func, got, case.grid, reachable=arrays)
    case.check(arguments, got)


#: Every twelfth kernel; the rest with --full. tests/passes has the checks of all of them in the IR.
CHECKED = [
    pytest.param(name, marks=() if i % 12 == 1 and name not in quick.SLOW else pytest.mark.full)
    for i, name in enumerate(RUNS)
]


@pytest.mark.parametrize("name", CHECKED)
def test_checked_gpu_code_computes_the_same_and_has_nothing_to_report(name):
    case = CASES[name]
    arguments = case.make(seeds.rng())
    func, _ = case.lower(arguments, "sm_90a", checked=True)
    got = {key: copied(value) for key, value in arguments.items()}
    case.link(got, host_address)
    arrays = [array for value in got.values() if isinstance(array := array_of(value), np.ndarray)]
    report = reports.run(func, got, case.grid, reachable=arrays)
    assert report.error is None
    case.check(arguments, got)


@pytest.mark.parametrize("name", ["cross_entropy", "rms_norm", "add_int32", "grid_of_three", "careful_add_tested"])
def test_programs_that_share_a_cta_compute_the_same(name, monkeypatch):
    monkeypatch.setattr(program_packing, "MOST_BYTES", 1 << 20)
    case = CASES[name]
    arguments = case.make(seeds.rng())
    func, _ = case.lower(arguments, "sm_90a", num_warps=1, num_stages=1)
    assert func.attrs["programs"] == 8
    got = {key: copied(value) for key, value in arguments.items()}
    reports.run(func, got, case.grid)
    case.check(arguments, got)
