"""The range analysis is proved: what it says about a value holds for all operands within their promised bounds.

Each op is proved with unknown and constant operands, for bounds of each sign. Random chains of ops with tiles, casts and selects are
proved, too. `--full` proves all widths and 4,000 chains. What these facts decide (masks, comparisons) is then right, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

pytest.importorskip("z3")

import range_terms as terms
from peephole_terms import INTEGERS

from blocknb.analysis import affine, ranges
from blocknb.ir.build import Builder
from blocknb.ir.core import Value
from blocknb.language import types as t

CHAINS = 4000
#: Chains about which the solver does not decide within its limit: products and quotients of several unknowns.
UNDECIDED = {"chain 1 618", "chain 1 830", "chain 1 2773"}


def proved(found: Iterable[terms.Named]) -> int:
    """The number of proved answers; fails on a wrong one."""
    count = 0
    for name, func in found:
        if any(name.startswith(f"{known} ") for known in UNDECIDED):
            continue
        wrong, answers = terms.refutation(func)
        assert wrong is None, f"{name}: {wrong}"
        count += answers
    return count


def some(found: Iterable[terms.Named], one_in: int) -> list[terms.Named]:
    """One in so many functions, in order: a fixed sample."""
    return [each for i, each in enumerate(found) if i % one_in == 0]


@pytest.fixture
def fewer(request: pytest.FixtureRequest) -> int:
    """How many times fewer functions a quick run proves."""
    return 1 if request.config.getoption("--full") else 3


def test_bounds_of_bytes_hold_for_every_op(fewer):
    assert proved(some(terms.of_two(t.int8), 11 * fewer)) > 500 // fewer
    assert proved(some(terms.of_two(t.uint8), 11 * fewer)) > 200 // fewer
    assert proved(some(terms.of_constant(t.int8), 11 * fewer)) > 500 // fewer
    assert proved(terms.of_one(t.int8)) > 500


def test_bounds_of_words_hold_for_every_op_with_a_constant(fewer):
    assert proved(some(terms.of_constant(t.int32), 11 * fewer)) > 500 // fewer
    assert proved(some(terms.of_one(t.uint64), 2)) > 100


def test_facts_about_random_chains_of_ops_hold():
    assert proved(terms.chains(0, 60)) > 1500


@pytest.mark.full
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_bounds_hold_for_every_op_with_a_constant_and_every_bound(dtype):
    assert proved(terms.of_constant(dtype)) > 4000
    assert proved(terms.of_one(dtype)) > 400


@pytest.mark.full
@pytest.mark.parametrize("dtype", [d for d in INTEGERS if d.bits <= 16], ids=str)
def test_bounds_hold_for_every_op_of_two_unknowns_and_every_bound(dtype):
    assert proved(terms.of_two(dtype)) > 3000


@pytest.mark.full
@pytest.mark.parametrize("part", range(8))
def test_facts_about_many_random_chains_of_ops_hold(part):
    assert proved(some(list(terms.chains(1, CHAINS))[part:], 8)) > 10_000


@pytest.mark.parametrize("name", ["select", "if"])
def test_a_choice_of_equal_forms_is_exact_only_if_both_are(name):
    """int64(pid) + 16 and int64(pid + 16) have one form, but the second may have wrapped: the choice has bounds of neither."""

    def emit(b: Builder, x: Sequence[Value]) -> object:
        pid = b.value("program_id", axis=0)
        wide = b.value("add", b.value("cast", pid, dtype=t.int64), b.const(16, t.int64))
        narrow = b.value("cast", b.value("add", pid, b.const(16, t.int32)), dtype=t.int64)
        if name == "select":
            return b.value("select", x[0], wide, narrow)
        arms = []
        for value in (wide, narrow):
            with b.block() as arm:
                b.op("yield", value)
            arms.append(arm.done)
        return b.op("if", x[0], blocks=arms, types=(wide.type,)).result

    func = terms.function([(t.int1, (None, None))], emit)
    assert func is not None
    assert ranges.bounds(affine.analyze(func), func.body.ops[-1].result)[0] < 0
    assert terms.refutation(func)[0] is None


@pytest.mark.parametrize("name", ["min", "max"])
def test_the_smaller_of_a_sum_that_may_wrap_and_a_constant_is_not_decided(name):
    """The solver found it: pid + 16 wraps around to a negative number, and the analysis said that min(pid + 16, 1) is 1."""

    def emit(b: Builder, x: object) -> object:
        at = b.value("add", b.value("program_id", axis=0), b.const(16, t.int32))
        return b.value("cmp", b.value(name, at, b.const(1, t.int32)), b.const(1, t.int32), pred="eq")

    func = terms.function([], emit)
    assert func is not None
    facts, (*_, least, _, compared) = affine.analyze(func), func.body.ops
    if name == "min":
        assert facts.truth(compared.result) is None
        assert ranges.bounds(facts, least.result)[0] < 0
    assert terms.refutation(func)[0] is None
