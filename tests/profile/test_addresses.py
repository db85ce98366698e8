"""Addresses that are computed without arrays equal those that the interpreter accesses."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from observed import observed
from warp_specialized_kernels import PRODUCTS

import blocknb
import blocknb.language as tl
from blocknb.bench.suite.steps import STEPS
from blocknb.bench.suite.steps import matmul as steps_matmul
from blocknb.ir import interp
from blocknb.ir.address import AddressSpace
from blocknb.kernels.matmul import matmul_kernel
from blocknb.kernels.softmax import softmax_kernel
from blocknb.notebook import numbers
from blocknb.profile.addresses import Addresses, is_bulk, program_at


@blocknb.kernel
def transposed(x, y, m, n, B: tl.constexpr):
    rows = tl.program_id(0) * B + tl.arange(0, B)
    columns = tl.program_id(1) * B + tl.arange(0, B)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tile = tl.load(x + rows[:, None] * n + columns[None, :], mask=inside)
    tl.store(y + columns[:, None] * m + rows[None, :], tl.trans(tile), mask=tl.trans(inside))


@blocknb.kernel
def persistent(x, y, n, tiles, B: tl.constexpr):
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        at = tile * B + tl.arange(0, B)
        if tile % 2 == 0:
            tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)
        else:
            tl.atomic_add(y + n - 1 - at, 1.0, mask=at < n)


@blocknb.kernel
def nested(x, y, n, B: tl.constexpr):
    total = tl.zeros((B,), tl.float32)
    for i in range(tl.program_id(0) + 1):
        for j in range(i):
            total += tl.load(x + (i * 4 + j) * B + tl.arange(0, B))
    tl.store(y + tl.program_id(0) * B + tl.arange(0, B), total)


@blocknb.kernel
def halving(x, y, n, B: tl.constexpr):
    left = n
    while left > 1:
        left = left // 2
        tl.store(y + left, tl.load(x + left * B))


@blocknb.kernel
def histogram(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    where = tl.load(x + at, mask=at < n).to(tl.int32)
    tl.atomic_add(y + where, 1.0, mask=at < n)


def fp32(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).random(shape, dtype=np.float32)


CASES = {
    "softmax": (softmax_kernel, (3,), [fp32(3, 100), fp32(3, 100), 100, 100, 97], {"BLOCK": 128}),
    "matmul": (
        matmul_kernel,
        (6,),
        [fp32(40, 48), fp32(48, 33), fp32(40, 33), 40, 33, 48, 48, 1, 33, 1, 33, 1],
        {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "GROUP": 2},
    ),
    "transposed": (transposed, (3, 2), [fp32(70, 40), fp32(40, 70), 70, 40], {"B": 32}),
    "persistent": (persistent, (2,), [fp32(300), fp32(300), 300, 5], {"B": 64}),
    "nested": (nested, (4,), [fp32(1024), fp32(256), 4], {"B": 32}),
    "halving": (halving, (1,), [fp32(64), fp32(64), 9], {"B": 8}),
}


def launched(kernel, grid, arguments, constants, without=(), **options):
    """The last IR for the GPU, the scalars and the full grid of a launch."""
    made = observed(lambda: kernel[grid](*arguments, **constants, without=without, **options)).latest
    func = made.compiled.retarget("sm_90a", without).trace.stages[-1].after
    return func, numbers.scalars(made), made.grid


def touched(func, arguments, grid, program, monkeypatch):
    """The bytes that the interpreter accesses, by op."""
    found = defaultdict(set)
    original = AddressSpace._locate

    def locate(self, op, ids, flat, on, size):
        for chosen, number, offsets in original(self, op, ids, flat, on, size):
            found[op.id] |= {(self.names[number], int(x)) for x in offsets}
            yield chosen, number, offsets

    monkeypatch.setattr(AddressSpace, "_locate", locate)
    by_name = dict(arguments)
    interp.run(func, [by_name[hint.name] for hint in func.hints], grid, programs=program and [program])
    return found


@pytest.mark.parametrize("name", CASES)
def test_every_iteration_of_every_program_has_the_interpreters_addresses(name, monkeypatch):
    kernel, grid, arguments, constants = CASES[name]
    func, scalars, full = launched(kernel, grid, arguments, constants)
    names = [p.name for p in kernel.source.parameters]
    given = list(zip(names, [a.copy() if isinstance(a, np.ndarray) else a for a in arguments], strict=False))
    addresses = Addresses(func, scalars, full)
    for number in range(np.prod(full)):
        program = program_at(number, full)
        wanted = touched(func, given, full, program, monkeypatch)
        monkeypatch.undo()
        found = defaultdict(set)
        for iteration in range(6):
            for op, access in addresses.of(program, iteration).items():
                assert access.offsets is not None
                assert not access.guessed
                found[op] |= {(access.array, int(x)) for x in access.offsets[access.on]}
        if name in ("nested",):  # one number cannot select the iterations of two loops
            assert all(found[op] <= wanted[op] for op in found)
        else:
            assert {op: x for op, x in found.items() if x} == wanted


@pytest.mark.parametrize("name", ["softmax", "matmul", "transposed", "persistent", "nested"])
def test_origins_of_all_programs_are_their_first_addresses(name):
    kernel, grid, arguments, constants = CASES[name]
    func, scalars, full = launched(kernel, grid, arguments, constants)
    addresses = Addresses(func, scalars, full)
    programs = [program_at(number, full) for number in range(np.prod(full))]
    each = [addresses.of(program) for program in programs]
    for op in {op for accesses in each for op in accesses}:
        wanted = [int(a[op].offsets.reshape(-1)[0]) if op in a else None for a in each]
        assert addresses.origins(op, programs) == wanted


def test_a_loaded_address_is_unknown_with_a_reason():
    x, y = np.zeros(100, np.float32), np.zeros(8, np.float32)
    func, scalars, grid = launched(histogram, (2,), [x, y, 100], {"B": 64})
    load, atomic = Addresses(func, scalars, grid).of((1, 0, 0)).values()
    assert load.on.sum() == 36
    assert atomic.offsets is None
    assert "loaded data" in atomic.why


def test_a_loop_with_loaded_bounds_shows_its_first_iteration():
    @blocknb.kernel
    def bounded(x, y, n, B: tl.constexpr):
        for i in range(tl.load(x).to(tl.int32)):
            tl.store(y + i * B + tl.arange(0, B), 1.0)

    func, scalars, grid = launched(bounded, (1,), [np.ones(4, np.float32), np.zeros(64, np.float32), 1], {"B": 16})
    _, store = Addresses(func, scalars, grid).of((0, 0, 0)).values()
    assert store.iterations is None
    assert store.offsets.tolist() == list(range(0, 64, 4))


def test_values_derived_from_an_unknown_scalar_are_unknown():
    func, _, grid = launched(*CASES["transposed"])
    first = Addresses(func, {}, grid).of((0, 0, 0))
    assert all(access.offsets is None or access.guessed for access in first.values())


def test_the_tests_of_checked_mode_leave_addresses_and_masks_as_they_are():
    plain, checked = (Addresses(*launched(*CASES["transposed"], checked=on)) for on in (False, True))
    assert any(op.name == "inside" for op in checked.func.ops())
    for one, other in zip(plain.of((2, 1, 0)).values(), checked.of((2, 1, 0)).values(), strict=True):
        assert (one.offsets == other.offsets).all()
        assert (one.on == other.on).all()
        assert plain.origins(one.op.id, [(2, 1, 0)]) == checked.origins(other.op.id, [(2, 1, 0)])


def test_a_mask_that_is_loaded_is_taken_to_be_on():
    @blocknb.kernel
    def masked(x, y, n, B: tl.constexpr):
        at = tl.arange(0, B)
        tl.store(y + at, 1.0, mask=tl.load(x + at) > 0)

    func, scalars, grid = launched(masked, (1,), [np.ones(32, np.float32), np.zeros(32, np.float32), 1], {"B": 32})
    _, store = Addresses(func, scalars, grid).of((0, 0, 0)).values()
    assert store.guessed
    assert store.on.all()


def test_the_selected_iteration_moves_the_pointers():
    func, scalars, grid = launched(*CASES["matmul"])
    addresses = Addresses(func, scalars, grid)
    first, later, beyond = (addresses.of((0, 0, 0), iteration) for iteration in (0, 2, 99))
    op = next(
        op for op, access in first.items() if access.array == "a" and access.iterations != 1
    )  # the others are before the loop
    assert first[op].iterations == 3
    assert (later[op].offsets - first[op].offsets == 2 * 16 * 4).all()
    assert (beyond[op].offsets == later[op].offsets).all()


@pytest.mark.parametrize("name", ["a warp that copies", "results by TMA"])
def test_boxes_cover_the_bytes_that_tma_copies(name, monkeypatch):
    """Over all programs and iterations, also if the array ends inside a box."""
    step, (m, n, k) = next(s for s in STEPS if s.name == name), (144, 96, 80)
    a, b, c = np.zeros((m, k), np.float16), np.zeros((n, k), np.float16), np.zeros((m, n), np.float16)
    constants = {"BM": 64, "BN": 64, "BK": 64, "num_warps": 4}
    names, given = ["a", "b", "c", "M", "N", "K"], [a, b, c, m, n, k]
    func, scalars, full = launched(steps_matmul, (6,), given, constants, step.without)
    bulk = {op.id for op in func.ops() if is_bulk(op)}
    assert len(bulk) == (2 if step.without else 3)
    wanted = touched(func, list(zip(names, given, strict=True)), full, None, monkeypatch)
    addresses, found = Addresses(func, scalars, full), defaultdict(set)
    for number in range(6):
        for iteration in range(2):
            for op, access in addresses.of((number, 0, 0), iteration).items():
                found[op] |= {(access.array, int(x)) for x in access.offsets[access.on]}
    assert {op: found[op] for op in bulk} == {op: wanted[op] for op in bulk}


@pytest.mark.parametrize("product", [p for p in PRODUCTS if not p.bulk], ids=lambda p: p.name)
def test_accesses_of_consumer_warps_are_those_of_one_program(product):
    """This holds for several programs per CTA, too. The producer's copies are boxes of the same program."""
    func, (m, n, k) = product.finished(), (128, 192, 128)
    scalars = {"m": m, "n": n, "k": k, "lda": m, "ldb": n, "ldc": n}
    found = Addresses(func, scalars, (6, 1, 1))
    first = [(row * n + column) * 2 for row in (0, 64) for column in (0, 64, 128)]
    for number in range(6):
        accesses = found.of((number, 0, 0))
        copies = [a for a in accesses.values() if a.op.name == "copy_bulk"]
        assert {(a.array, a.iterations) for a in copies} == {("a", k // 64), ("b", k // 64)}
        ((op, access),) = [(op, a) for op, a in accesses.items() if a not in copies]
        assert (access.array, access.offsets[0, 0], access.iterations) == ("c", first[number], 1)
    assert found.origins(op, [(i, 0, 0) for i in range(6)]) == first
