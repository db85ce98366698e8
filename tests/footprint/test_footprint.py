"""The footprint as a value: static and recorded access logs agree with each other and with a run; the caller's arrays stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.footprint.access_log import Budget
from blocknb.footprint.findings import footprint_of
from blocknb.footprint.recorded import record
from blocknb.footprint.static import follow
from blocknb.runtime.footprints import memory_launch

N = 300
RNG = np.random.default_rng(0)
X = RNG.standard_normal(N).astype(np.float32)
A = RNG.standard_normal((24, 40)).astype(np.float32)


@blocknb.kernel
def masked(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@blocknb.kernel
def tiled(x, out, m, n, stride, BM: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(1) * BM + tl.arange(0, BM)[:, None]
    column = tl.program_id(0) * BN + tl.arange(0, BN)[None, :]
    inside = (row < m) & (column < n)
    tl.store(out + column * m + row, tl.load(x + row * stride + column, mask=inside), mask=inside)


@blocknb.kernel
def looped(x, out, n, BLOCK: tl.constexpr):
    if tl.program_id(0) == 1:
        return
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


@blocknb.kernel
def gathered(x, index, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    where = tl.load(index + at, mask=at < n, other=0)
    tl.store(out + where, tl.load(x + at, mask=at < n), mask=at < n)


@blocknb.kernel
def counted(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bucket = tl.load(x + at, mask=at < n, other=0.0) > 0
    tl.atomic_add(out + bucket.to(tl.int32), 1.0, mask=at < n)


@blocknb.kernel
def chased(links, out, steps):
    at = tl.program_id(0)
    for _ in range(steps):
        at = tl.load(links + at)
    tl.store(out + at, 1.0)


@blocknb.kernel
def reversed_view(x, out, n, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at * stride, mask=at < n), mask=at < n)


CALLS: dict[str, Callable[[], tuple[Any, Any, tuple, dict]]] = {
    "masked": lambda: (masked, 5, (X, np.zeros(N, np.float32), N), {"BLOCK": 64}),
    "tiled": lambda: (tiled, (3, 2), (A, np.zeros((40, 24), np.float32), 24, 40, 40), {"BM": 16, "BN": 16}),
    "looped": lambda: (looped, 3, (X, np.zeros(N, np.float32), N), {"BLOCK": 32}),
    "gathered": lambda: (
        gathered,
        5,
        (X, RNG.permutation(N).astype(np.int32), np.zeros(N, np.float32), N),
        {"BLOCK": 64},
    ),
    "counted": lambda: (counted, 5, (X, np.zeros(2, np.float32), N), {"BLOCK": 64}),
    "chased": lambda: (chased, 8, (RNG.permutation(8).astype(np.int32), np.zeros(8, np.float32), 3), {}),
    "reversed_view": lambda: (reversed_view, 1, (X[::-2], np.zeros(150, np.float32), 150, -2), {"BLOCK": 256}),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_static_account_is_that_of_a_run(name: str) -> None:
    kernel, grid, args, constants = CALLS[name]()
    launch = memory_launch(kernel, grid, args, constants)
    known, run = footprint_of(follow(launch, Budget())), footprint_of(record(launch, Budget(), "of the test"))
    assert (known.how, run.how, known.sampled, run.sampled) == ("static", "recorded", False, False)
    touched = 0
    for array in known:
        for kind in ("loads", "stores", "atomics"):
            a, b = getattr(known[array], kind), getattr(run[array], kind)
            np.testing.assert_array_equal(a.to_numpy(), b.to_numpy(), f"{kind} of {array}")
            assert a.issued == b.issued
            assert a.holes == b.holes
            for program in range(launch.programs):
                for iteration in (None, 0, 1):
                    np.testing.assert_array_equal(a.of(program, iteration), b.of(program, iteration))
            touched += a.elements
    assert touched
    assert [f.text for f in known.findings] == [f.text for f in run.findings]


@pytest.mark.parametrize("name", CALLS)
def test_what_a_launch_stores_is_what_its_footprint_says(name: str) -> None:
    kernel, grid, args, constants = CALLS[name]()
    arrays = {parameter.name: value for parameter, value in zip(kernel.params, args, strict=False)}
    before = {n: v.copy() for n, v in arrays.items() if isinstance(v, np.ndarray)}
    found = kernel.footprint(grid)(*args, **constants)
    for n, v in before.items():
        np.testing.assert_array_equal(arrays[n], v)
    out = arrays["out"]
    if out.size > 2:
        out[...] = np.nan
        kernel[grid if isinstance(grid, tuple) else (grid,)](*args, **constants)
        np.testing.assert_array_equal(found["out"].stores.count > 0, ~np.isnan(out))


def test_the_maps_of_an_array_have_owners_counts_holes_and_elements() -> None:
    found = masked.footprint(4)(X, np.zeros(N, np.float32), N, BLOCK=64)
    stores = found["out"].stores
    owner = np.where(np.arange(N) < 256, np.arange(N) // 64, blocknb.footprint.value.NEVER)
    np.testing.assert_array_equal(stores.owner, owner)
    assert (stores.owner.dtype, stores.count.dtype) == (np.int32, np.int64)
    assert stores.holes == [(256, 300)]
    assert (stores.elements, stores.issued) == (256, 256)
    np.testing.assert_array_equal(stores.of(3), np.arange(192, 256))
    np.testing.assert_array_equal(stores.programs, np.arange(4))
    assert found["out"].shape == (N,)
    assert found["out"].dtype == "fp32"
    assert not found["out"].loads
    assert not found.problems
    assert list(found) == ["x", "out"]
    assert "4 programs, from the arguments" in str(found)


def test_an_element_of_several_programs_has_no_owner() -> None:
    found = masked.footprint(2)(X, X.copy(), 64, BLOCK=64)
    assert set(np.unique(found["x"].loads.owner)) == {-1, 0}
    twice = tiled.footprint((1, 2))(A, np.zeros((40, 24), np.float32), 8, 16, 40, BM=16, BN=16)
    assert twice["out"].stores.count.max() == 1


def test_iterations_of_a_loop_are_apart() -> None:
    loads = looped.footprint(2)(X, np.zeros(N, np.float32), N, BLOCK=32)["x"].loads
    for iteration in range(5):
        start = iteration * 64
        np.testing.assert_array_equal(loads.of(0, iteration), np.arange(start, min(start + 32, N)))
    assert not len(loads.of(1))


def test_a_budget_ends_with_a_sample_of_whole_programs_that_says_so() -> None:
    n = 1 << 22
    x = np.zeros(n, np.float32)
    found = masked.footprint(n // 64, Budget(seconds=0.0))(x, x.copy(), n, BLOCK=64)
    assert found.sampled
    assert 0 < len(found.programs) < n // 64
    assert f"{len(found.programs)} of {n // 64} programs (a sample)" in str(found)
    assert found["out"].stores.elements == 64 * len(found.programs)
    assert not [f for f in found.findings if f.kind in ("holes", "unread", "idle")]


def test_a_recorded_footprint_says_why_and_stops_at_its_budget() -> None:
    links, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)

    @blocknb.kernel
    def moved(links, out):
        at = tl.program_id(0)
        tl.store(links + at, tl.load(links + at))
        tl.store(out + tl.load(links + at), 1)

    found = moved.footprint(64)(links, out)
    assert found.how == "recorded"
    assert "depends on the value loaded in line" in found.why
    assert not found.sampled
    some = moved.footprint(64, Budget(seconds=0.0))(links, out)
    assert some.sampled
    assert len(some.programs) < 8


def test_ten_thousand_programs_are_followed_at_once() -> None:
    n = 10_000 * 1024
    x, out = np.zeros(n, np.float32), np.zeros(n, np.float32)
    launch = memory_launch(masked, 10_000, (x, out, n - 5), {"BLOCK": 1024})
    log = follow(launch, Budget())
    assert len(log.programs) == 10_000
    assert log.runs == 20_000  # a run per program and array: no array of all elements is made
    assert footprint_of(log)["out"].stores.holes == [(n - 5, n)]


def test_two_arguments_of_one_memory_are_one_region() -> None:
    x = np.ones(64, np.float32)
    assert not masked.footprint(1)(x, x, 64, BLOCK=64).problems
    (race,) = masked.footprint(2)(x[1:], x[:-1], 63, BLOCK=32).problems
    assert "`x`, which program" in race.text
    assert "through `out`" in race.text


def test_an_address_without_an_extent_is_refused_with_its_name() -> None:
    class Address:
        def data_ptr(self) -> int:
            return X.ctypes.data

        dtype = np.dtype(np.float32)

    with pytest.raises(blocknb.LaunchError, match="the extent of `x` is unknown"):
        masked.footprint(1)(Address(), np.zeros(N, np.float32), N, BLOCK=64)


def test_a_program_that_is_too_long_and_a_grid_that_is_too_large_are_told() -> None:
    @blocknb.kernel
    def long(x, out, n):
        for i in range(n):
            tl.store(out, tl.load(x + i % 256))

    found = long.footprint(2, Budget(seconds=0.1, elements=1 << 20))(X, np.zeros(1, np.float32), 1 << 30)
    assert str(found).startswith("long: footprint of no program: one program alone takes longer than the budget")
    assert not found.problems
    with pytest.raises(blocknb.LaunchError, match="too large for a footprint"):
        masked.footprint(1 << 30)(X, np.zeros(N, np.float32), N, BLOCK=64)


def test_an_empty_array_has_an_empty_footprint() -> None:
    empty = np.empty(0, np.float32)
    found = masked.footprint(1)(empty, empty.copy(), 0, BLOCK=64)
    assert found["out"].stores.owner.shape == (0,)
    assert found["out"].stores.holes == []


def test_a_launch_of_no_programs_accesses_nothing() -> None:
    seen = masked.footprint((0,))(X, np.zeros_like(X), N, BLOCK=64)
    assert not seen["x"].loads
    assert not seen["out"].stores
    assert not seen["out"].stores.count.any()
