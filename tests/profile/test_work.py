"""The work of a launch, against formulas and, for every test kernel, against the interpreter's accesses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels import CASES
from kernels.base import Case, copied, host_address, parameters
from test_counts import by_data, early_return, triangle

import blocknb
import blocknb.language as tl
from blocknb.ir import interp, interp_tile
from blocknb.ir.address import AddressSpace
from blocknb.ir.core import Func
from blocknb.kernels.add import add_kernel
from blocknb.kernels.matmul import matmul_kernel
from blocknb.kernels.softmax import softmax_kernel
from blocknb.profile.work import BUDGET, FLOPS, Work, _Counter, count

CPU = "cpu:x86-64-v3"


def added(n: int, block: int = 1024, **more: Any) -> Work:
    trace = add_kernel.trace(*["*fp32:16"] * 3, "i32", BLOCK=block, target=CPU)
    return count(trace.stages[0].after, {"n": n}, (blocknb.cdiv(n, block), 1, 1), **more)


def multiplied(m: int, n: int, k: int, tile: tuple[int, int, int] = (64, 64, 32), **more: Any) -> Work:
    blocks = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile, strict=True))
    strides = ["i32", 1] * 3
    trace = matmul_kernel.trace(*["*fp16:16"] * 3, *["i32"] * 3, *strides, **blocks, GROUP=4, target=CPU)
    grid = (blocknb.cdiv(m, tile[0]) * blocknb.cdiv(n, tile[1]), 1, 1)
    scalars = {"m": m, "n": n, "k": k, "a_row": k, "b_row": n, "c_row": n}
    return count(trace.stages[0].after, scalars, grid, {"a": 2 * m * k, "b": 2 * k * n, "c": 2 * m * n}, **more)


@pytest.mark.parametrize("n", [1, 1023, 1024, 1025, 1_000_003, 1 << 26])
def test_vector_add_moves_three_arrays_and_adds_each_element_once(n: int) -> None:
    work = added(n)
    assert (work.unique_bytes, work.issued_bytes, work.flops) == (12 * n, 12 * n, n)
    assert work.issued_flops == blocknb.cdiv(n, 1024) * 1024 and work.exact
    assert work.read == {"x": 4 * n, "y": 4 * n} and work.written == {"out": 4 * n}


@pytest.mark.parametrize(("rows", "n"), [(4096, 1000), (7, 1), (300, 1024)])
def test_softmax_moves_two_matrices(rows: int, n: int) -> None:
    trace = softmax_kernel.trace(*["*fp32:16"] * 2, *["i32"] * 3, BLOCK=1024, target=CPU)
    stride = n + 5  # rows that do not touch
    work = count(trace.stages[0].after, {"n": n, "x_stride": stride, "y_stride": stride}, (rows, 1, 1))
    assert work.unique_bytes == 2 * 4 * rows * n and work.special == {"exp": rows * n}
    assert work.flops == rows * (3 * n + 2 * (n - 1))  # sub, exp, div; a maximum and a sum


@pytest.mark.parametrize(
    ("m", "n", "k", "tile"),
    [
        (256, 256, 256, (64, 64, 32)),
        (200, 133, 77, (64, 64, 32)),
        (1, 1, 1, (16, 16, 16)),
        (1024, 512, 2048, (128, 128, 64)),
        (2048, 2048, 2048, (128, 256, 64)),
    ],
)
def test_matmul_is_two_mnk_flops_over_three_matrices(m: int, n: int, k: int, tile: tuple[int, int, int]) -> None:
    work = multiplied(m, n, k, tile)
    assert work.flops == work.dot_flops == 2 * m * n * k and work.exact
    assert work.read == {"a": 2 * m * k, "b": 2 * k * n} and work.written == {"c": 2 * m * n}
    up = [-(-size // t) * t for size, t in zip((m, n, k), tile, strict=True)]
    assert work.issued_flops == 2 * up[0] * up[1] * up[2]


def test_a_launch_too_large_to_follow_is_sampled_and_says_so() -> None:
    few = added(1 << 26, 64, budget=3e6)
    assert not few.exact and 32 <= few.programs < 1 << 20
    assert few.flops == 1 << 26 and few.unique_bytes == few.issued_bytes == 12 << 26


def test_a_sample_of_programs_that_share_an_array_counts_it_once() -> None:
    @blocknb.kernel
    def shift(x, out, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(out + tl.program_id(0) * BLOCK + i, tl.load(x + i + tl.program_id(0) % 64) * 2.0)

    func = shift.trace("*fp32", "*fp32", BLOCK=64, target=CPU).stages[0].after
    work = count(func, {}, (1 << 20, 1, 1), {"x": 4 * 127, "out": 256 << 20}, budget=3e6)
    assert not work.exact and work.read == {"x": 4 * 127} and work.written == {"out": 256 << 20}


def test_a_program_too_large_to_follow_gives_an_estimate_of_its_flops_and_no_bytes() -> None:
    work = multiplied(64, 64, 1 << 24, budget=1e8)
    assert work.flops == work.dot_flops == 2 * 64 * 64 << 24 and not work.exact
    assert work.unique_bytes is None and "exceeds the budget" in work.why_bytes


def traced(kernel: Any, grid: tuple[int, int, int], M: int = 64, K: int = 128) -> Work:
    types = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "M": "i32", "K": "i32"}
    return count(kernel.trace(**types, BLOCK=16, target=CPU).stages[0].after, {"M": M, "K": K}, grid)


def test_programs_that_go_different_ways_are_counted_one_by_one() -> None:
    one = 2 * 16**3
    assert traced(triangle, (60, 20, 1)).issued_flops == 20 * sum(i for p in range(60) for i in range(p + 1)) * one
    assert traced(early_return, (8, 1, 1)).flops == 2 * one


@blocknb.kernel
def doubled_rows(x, out, rows, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        tl.store(out + row * columns + at, 2 * tl.load(x + row * columns + at, mask=at < columns), mask=at < columns)


def test_programs_of_a_loop_that_begin_elsewhere_are_followed_together() -> None:
    trace = doubled_rows.trace(*["*fp32:16"] * 2, "i32", "i32", BLOCK=64, target=CPU)
    func, rows, columns = trace.stages[0].after, 1000, 60
    work = count(func, {"rows": rows, "columns": columns}, (48, 1, 1))  # 40 programs have 21 rows, 8 have 20
    assert work.exact and work.flops == rows * columns
    assert work.read == {"x": 4 * rows * columns} and work.written == {"out": 4 * rows * columns}
    assert work.issued_bytes == 2 * 4 * rows * columns
    steps = []
    for programs in (2, 200):  # five rows each
        counter = _Counter(func, {"rows": 5 * programs, "columns": columns}, (programs, 1, 1), BUDGET)
        counter.follow(np.arange(programs))
        steps.append(counter.evaluator.overhead)
    assert steps[0] == steps[1]


def test_a_bound_that_is_loaded_is_named_as_the_reason() -> None:
    work = traced(by_data, (8, 1, 1))
    assert work.flops is None and work.unique_bytes is None
    assert "depends on the value loaded in line" in work.why_flops


def test_a_gathered_address_leaves_the_flops_known() -> None:
    @blocknb.kernel
    def gather(x, index, out, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        at = tl.load(index + i, mask=i < n, other=0)
        tl.store(out + i, tl.load(x + at, mask=i < n) * 2.0, mask=i < n)

    func = gather.trace("*fp32", "*i32", "*fp32", "i32", BLOCK=64, target=CPU).stages[0].after
    work = count(func, {"n": 100}, (2, 1, 1))
    assert work.flops == 100 and work.unique_bytes is None
    assert "address of the load" in work.why_bytes and "loaded" in work.why_bytes


def test_arrays_read_by_many_programs_count_once_and_atomics_both_ways() -> None:
    @blocknb.kernel
    def histogram(x, out, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(x + i % 50, mask=i < n, other=0)
        tl.atomic_add(out + i % 10, values, mask=i < n)

    func = histogram.trace("*fp32", "*fp32", "i32", BLOCK=64, target=CPU).stages[0].after
    work = count(func, {"n": 100}, (2, 1, 1))
    assert work.read == {"x": 200, "out": 40} and work.written == {"out": 40}
    assert (work.atomics, work.issued_bytes) == (100, 800)


def test_a_while_loop_is_followed_where_its_condition_is_known() -> None:
    @blocknb.kernel
    def halve(x, out, n):
        i, total = n + tl.program_id(0), 0.0
        while i > 0:
            total += tl.load(x + i)
            i = i // 2
        tl.store(out + tl.program_id(0), total)

    func = halve.trace("*fp32", "*fp32", "i32", target=CPU).stages[0].after
    work = count(func, {"n": 62}, (3, 1, 1))  # 62, 63: six iterations; 64: seven
    assert work.flops == 19 and work.issued_bytes == 4 * (19 + 3)
    assert work.read == {"x": 4 * len({62, 31, 15, 7, 3, 1, 63, 64, 32, 16, 8, 4, 2})}


# ---- every kernel of the tests, against the interpreter


class Watched(AddressSpace):
    """Remembers which bytes of which array were loaded and stored."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: set[tuple[int, int]] = set()
        self.stored: set[tuple[int, int]] = set()
        self.issued = self.atomics = 0
        self.updating = False
        self.observer = self.saw
        spaces.append(self)

    def saw(self, array: int, where: np.ndarray, new: np.ndarray | None) -> None:
        touched = {(array, int(byte)) for byte in where.reshape(-1)}
        self.issued += where.size
        if new is None:
            self.loaded |= touched
        if new is not None or self.updating:
            self.stored |= touched

    def update(self, op: Any, program: Any, addresses: np.ndarray, values: Any, mask: Any) -> np.ndarray:
        self.updating = True
        self.atomics += addresses.size if mask is None else int(np.count_nonzero(mask))
        try:
            return super().update(op, program, addresses, values, mask)
        finally:
            self.updating = False


spaces: list[Watched] = []


class Executed:
    """Counts the float operations that the interpreter carries out on tiles and scalars."""

    def __init__(self) -> None:
        self.number, self.inside = 0, False

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = interp_tile.Machine.step

        def step(machine: Any, op: Any, args: list) -> tuple:
            outer, self.inside = self.inside, self.inside or op.name in ("reduce", "scan")
            if not outer:
                self.see(op)
            try:
                return plain(machine, op, args)
            finally:
                self.inside = outer

        monkeypatch.setattr(interp_tile.Machine, "step", step)

    def see(self, op: Any) -> None:
        is_float = lambda value: bool(getattr(value.type.dtype, "is_float", False))  # noqa: E731
        if op.name == "dot":
            self.number += 2 * op.args[0].type.shape[-1] * op.results[0].type.size
        elif op.name in ("reduce", "scan"):
            inner = [o for o in op.blocks[0].ops if o.results and is_float(o.result)]
            each = sum(FLOPS.get(o.name, 0) for o in inner)
            length = op.args[0].type.shape[op.attrs["axis"]]
            self.number += each * (op.args[0].type.size // length) * (length - 1)
        elif op.name in FLOPS and is_float(op.result):
            self.number += FLOPS[op.name] * op.result.type.size


def counted(case: Case, func: Func, arguments: dict[str, Any]) -> Work:
    values = parameters(func, arguments)
    scalars = {
        hint.name: v for hint, p, v in zip(func.hints, func.params, values, strict=True) if not p.type.is_pointer
    }
    return count(func, scalars, (*case.grid, 1, 1)[:3])


#: Whose addresses or iteration counts depend on what is loaded.
BY_DATA = {
    "chained", "combining", "cross_entropy", "descriptor_rows", "gather", "gemm_grouped", "gemm_grouped_wgmma", "grouped_product",
    "limit_in_memory", "locked", "mapped", "newton_root", "returns_in_inner_arms", "returns_in_inner_arms1", "scalars",
    "table_of_pointers", "tickets",
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted(CASES))
def test_the_count_is_what_the_interpreter_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    arguments = case.make(np.random.default_rng(7))
    func = case.parse(arguments)
    got = {key: copied(value) for key, value in arguments.items()}
    case.link(got, host_address)
    work = counted(case, func, got)
    values = parameters(func, got)
    executed = Executed()
    executed.patch(monkeypatch)
    monkeypatch.setattr(interp, "AddressSpace", Watched)
    spaces.clear()
    interp.run(func, values, case.grid)
    (space,) = spaces
    assert work.exact and bool(work.why_bytes) == (name in BY_DATA)
    if not work.why_bytes:
        assert sum(work.read.values()) == len(space.loaded)
        assert sum(work.written.values()) == len(space.stored)
    if work.issued_bytes is not None:
        assert (work.issued_bytes, work.atomics) == (space.issued, space.atomics)
    if not work.why_flops:
        assert work.issued_flops == executed.number
        assert 0 <= work.flops <= work.issued_flops
