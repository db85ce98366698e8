"""The passes that use axis info keep the stores of random kernels: the same values at the same addresses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_integer_programs import Evaluator, Maker, Undefined, programs

from blocknb.ir.verify import verify
from blocknb.passes.tile import pointers, simplify, unroll
from blocknb.trace import Notes

PASSES = {
    "simplify": (simplify.simplify,),
    "unroll": (unroll.unroll,),
    "pointers": (pointers.pointers,),
    "all": (simplify.simplify, unroll.unroll, pointers.pointers),
}
scalars = st.one_of(st.integers(-40, 200), st.sampled_from((0, 16, -16, 2**31 - 1)))
samples = st.lists(st.tuples(scalars, scalars, st.integers(0, 9)), min_size=2, max_size=3)


def executed(func, sample, divisor: int, speculative: bool = False) -> Evaluator:
    n, m, index = sample
    arguments = np.int32(n // divisor * divisor), np.int32(m), np.int64(0)
    return Evaluator(func, arguments, (index, index + 1, 3), speculative=speculative)


@pytest.mark.parametrize("name", PASSES)
@given(programs, st.sampled_from((1, 16)), samples)
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_random_kernel_stores_the_same_values_after_the_pass(name, program, divisor, samples):
    before = Maker((divisor, 1)).func(program, stores=8)
    after = before
    for run in PASSES[name]:
        after = run(after, None, Notes(run.__name__))
        verify(after)
    for sample in samples:
        try:
            expected = executed(before, sample, divisor)
        except Undefined:
            continue
        if not expected.assumed:
            continue
        found = executed(after, sample, divisor, speculative=True)
        for (place, value), (other_place, other_value) in zip(expected.stored, found.stored, strict=True):
            np.testing.assert_array_equal(place, other_place)
            np.testing.assert_array_equal(value, other_value)
