"""Scalars on the CPU: accesses and views of single elements, and unsupported ops."""

from __future__ import annotations

import itertools

import frontend_helpers
import numpy as np
import pytest
import seeds
from decision_kernels import single_row, softmax
from frontend_helpers import ir, kernel
from native import compile_native, launch_native

import blocknb.language as tl
from blocknb import passes
from blocknb.codegen import cpu
from blocknb.errors import Unsupported
from blocknb.frontend.parse import parse
from blocknb.ir.text import parse_func
from blocknb.target import Target

CPU = Target.parse("cpu")


def compiled(k, **arguments):
    """Compiles for these arguments and returns a function that launches the code, with other arguments if given."""
    func = parse(k.source, {n: frontend_helpers.argument(k, n, v) for n, v in arguments.items()}, {})
    native = compile_native(func, opt=0)

    def go(**changed):
        launch_native(native, [(arguments | changed)[hint.name] for hint in func.hints], 1)

    return go


@kernel
def accesses(x, y, n, m):
    """Each access of one element, with and without its optional operands."""
    tl.store(y, tl.load(x))
    tl.store(y + 1, tl.load(x + 1, mask=n > 0) + 1)
    tl.store(y + 2, tl.load(x + 2, mask=n > 0, other=50) + 1)
    tl.store(y + 3, 7, mask=m > 0)
    tl.store(y + 4, tl.atomic_add(y + 5, 3))
    tl.store(y + 6, tl.atomic_add(y + 7, 4, mask=m > 0))
    tl.store(y + 8, tl.atomic_cas(y + 9, 99, 5))
    tl.store(y + 10, tl.atomic_cas(y + 11, 98, 5))


def test_single_elements_are_accessed_where_their_masks_hold():
    x, y = np.array([10, 20, 30], np.int32), np.zeros(12, np.int32)
    go = compiled(accesses, x=x, y=y, n=1, m=1)
    for n, m in itertools.product((0, 1), (0, 1)):
        y[:] = 99
        go(n=n, m=m)
        expected = [10, 21 if n else 1, 31 if n else 51, 7 if m else 99, 99, 102]
        expected += [99 if m else 0, 103 if m else 99, 99, 5, 99, 99]
        assert y.tolist() == expected, f"n = {n}, m = {m}"


@pytest.mark.parametrize("view", ["splat %v", "broadcast %v", "reshape %v", "trans %v {perm=()}"])
def test_a_view_of_a_scalar_is_the_scalar(view):
    def text(stored: str) -> str:
        body = f"%v = load %x : f32\n%w = {view} : f32\nstore %x, {stored}"
        return cpu.generate(parse_func(f"func @f(%x: ptr<f32>) tile {{num_warps=4}} {{\n{body}\n}}"), CPU).text

    assert text("%w") == text("%v")
    assert text("%w").count("store float %v") == 1


def test_operation_for_another_target_is_refused_by_name():
    func = parse_func(
        "func @f(%x: ptr<f32>) tile {num_warps=4} {\n%v = load %x : f32\n%w = convert %v : f32\nstore %x, %w\n}"
    )
    with pytest.raises(Unsupported, match="the CPU backend cannot compile the operation `convert`"):
        cpu.generate(func, CPU)


def test_only_a_kernel_with_nontemporal_stores_ends_with_a_fence():
    func = passes.run(ir(kernel(softmax), x="*f32", y="*f32", n="i32", BLOCK=512), CPU)[0]
    assert "fence seq_cst" in cpu.generate(func, CPU).text
    assert "fence seq_cst" not in cpu.generate(func, CPU, without=["nontemporal_stores"]).text


@kernel
def mirrored(x, y):
    """The sum is used twice, and is written while the transposed tile is still read."""
    i = tl.arange(0, 32)
    v = tl.load(x + i[:, None] * 32 + i[None, :])
    v = v * tl.sum(v, axis=1)[:, None]
    w = v + tl.trans(v)
    u = w * 2 - tl.max(w, axis=0)[None, :]
    tl.store(y + i[:, None] * 32 + i[None, :], u + tl.max(u, axis=1)[:, None])


def test_buffer_of_a_transposed_tile_is_not_reused_while_it_is_read():
    x = seeds.rng().integers(-9, 9, (32, 32)).astype(np.int32)
    y = np.full_like(x, 99)
    compiled(mirrored, x=x, y=y)()
    v = x * x.sum(1, keepdims=True)
    w = v + v.T
    u = w * 2 - w.max(0)
    np.testing.assert_array_equal(y, u + u.max(1, keepdims=True))


def test_reduction_along_an_axis_of_size_one_covers_masked_elements():
    x, y = np.arange(5, 261, dtype=np.float32), np.zeros(256, np.float32)
    go = compiled(kernel(single_row), x=x, y=y, n=1, BLOCK=256)
    for n in (0, 5, 130, 256):
        y[:] = 99
        go(n=n)
        s = np.where(np.arange(256) < n, x, 1) * 2
        np.testing.assert_array_equal(y, s + s.max(), err_msg=f"n = {n}")
