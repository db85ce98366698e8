"""Block pointers: their addresses, control flow and calls, and error messages for wrong ones."""

import re

import numpy as np
import pytest
from frontend_helpers import failure, kernel, launch, place, text

import blocknb.language as tl
from blocknb.errors import TypeMismatch

A = np.arange(24, dtype=np.float32).reshape(4, 6)


def run(k, dtype=np.float32, shape=(4, 4), **arguments):
    out = np.full(shape, 99, dtype)
    launch(k, 1, a=A.copy(), out=out, **arguments)
    return out


@kernel
def keep(out, x):
    tl.store(tl.make_block_ptr(out, x.shape, (x.shape[1], 1), (0, 0), x.shape, (1, 0)), x)


@kernel
def block(a, out, i, j, CHECK: tl.constexpr, PADDING: tl.constexpr):
    p = tl.make_block_ptr(a, (4, 6), (6, 1), (i, j), (4, 4), (1, 0))
    keep(out, tl.load(p, boundary_check=CHECK, padding_option=PADDING))


@pytest.mark.parametrize(("i", "j"), [(0, 0), (2, 3), (-1, -2), (4, 0), (0, 6), (-4, 5), (1 << 30, -(1 << 31))])
@pytest.mark.parametrize("padding", ["", "zero", "nan", None])
def test_elements_outside_the_array_are_padding(i, j, padding):
    found = run(block, i=i, j=j, CHECK=(0, 1), PADDING=padding)
    expected = np.full((4, 4), np.nan if padding == "nan" else 0.0, np.float32)
    for y in range(4):
        for x in range(4):
            if 0 <= i + y < 4 and 0 <= j + x < 6:
                expected[y, x] = A[i + y, j + x]
    np.testing.assert_array_equal(found, expected)


def test_boundary_check_checks_only_the_named_axes():
    found = run(block, i=0, j=4, CHECK=1, PADDING="")
    np.testing.assert_array_equal(found, np.pad(A[:, 4:], ((0, 0), (0, 2))))
    for axes, count in (((), 0), (None, 0), ((0,), 1), ([0, 1], 2)):
        assert text(block, a="*f32", out="*f32", i="i32", j="i32", CHECK=axes, PADDING=None).count("cmp") == count


@kernel
def wide(a, out, m, stride, offset):
    p = tl.make_block_ptr(a, (m, 4), (stride, 1), (offset, 0), (2, 4), (1, 0))
    keep(out, tl.load(p, boundary_check=(0,)))


@pytest.mark.parametrize(
    "dtypes", [("i32", "i32", "i32"), ("i64", "i64", "i64"), ("i32", "i64", "i32"), ("u32", "i32", "i64")]
)
def test_sizes_and_offsets_may_have_any_width(dtypes):
    kinds = {"i32": np.int32, "i64": np.int64, "u32": np.uint32}
    numbers = {n: kinds[d](v) for n, d, v in zip(("m", "stride", "offset"), dtypes, (4, 6, 3), strict=True)}
    np.testing.assert_array_equal(run(wide, shape=(2, 4), **numbers), [A[3, :4], [0] * 4])


def test_offsets_within_a_block_are_32_bits_only_if_constants_prove_that_they_fit():
    @kernel
    def constants(a, STRIDE: tl.constexpr):
        tl.store(tl.make_block_ptr(a, (8, 8), (STRIDE, 1), (0, 0), (8, 8), (1, 0)), 1.0)

    assert "xi64" not in text(constants, a="*f32", STRIDE=1 << 20)
    assert "tile<8x8xi64>" in text(constants, a="*f32", STRIDE=1 << 29)
    assert "tile<2x4xi64>" in text(wide, a="*f32", out="*f32", m="i32", stride="i32", offset="i32")


@kernel
def axis_of_each_rank(a, out, RANK: tl.constexpr):
    if RANK == 1:
        p = tl.make_block_ptr(a, 24, 1, 20, 8, 0)
        x = tl.load(p, boundary_check=0)
    elif RANK == 3:
        p = tl.make_block_ptr(a, (2, 3, 4), (12, 4, 1), (1, 2, 0), (1, 2, 4), (2, 1, 0))
        x = tl.load(p, boundary_check=(1, 2))
    else:
        p = tl.make_block_ptr(a, (2, 1, 3, 1, 4), (12, 7, 4, 9, 1), (1, 0, 2, 0, 0), (1, 1, 2, 1, 4), (4, 3, 2, 1, 0))
        x = tl.load(p, boundary_check=(0, 2))
    tl.store(out + tl.arange(0, 8), tl.reshape(x, (8,)))


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_blocks_may_have_any_rank(rank):
    np.testing.assert_array_equal(run(axis_of_each_rank, shape=8, RANK=rank), [20, 21, 22, 23, 0, 0, 0, 0])


def test_a_stride_of_zero_repeats_elements():
    @kernel
    def repeated(a, out):
        keep(out, tl.load(tl.make_block_ptr(a, (4, 6), (0, 1), (2, 1), (4, 4), (1, 0))))

    np.testing.assert_array_equal(run(repeated), np.tile(A[0, 1:5], (4, 1)))


def test_stores_skip_elements_outside_the_array_and_cast():
    @kernel
    def corner(out):
        p = tl.make_block_ptr(out, (4, 4), (4, 1), (2, -2), (4, 4), (1, 0))
        p.store(tl.full((4, 4), 7.9, tl.float32), boundary_check=(0, 1))

    expected = np.full((4, 4), 99, np.int16)
    expected[2:, :2] = 7
    out = np.full((4, 4), 99, np.int16)
    launch(corner, 1, out=out)
    np.testing.assert_array_equal(out, expected)


# -- control flow --------------------------------------------------------------------------------------------------------------


@kernel
def walked(p, n):
    total = tl.zeros((2, 2), tl.float32)
    for _ in range(n):
        total += tl.load(p, boundary_check=(1,))
        p = tl.advance(p, (0, 2))
    return total, p


@kernel
def two_walks(a, out, n):
    both = (tl.make_block_ptr(a, (4, 6), (6, 1), (0, 0), (2, 2), (1, 0)), 0)
    total, p = walked(both[0], n)
    p = p.advance((2, -2))
    tl.store(tl.make_block_ptr(out, (2, 2), (2, 1), (0, 0), (2, 2), (1, 0)), total + tl.load(p))


def test_loops_helpers_and_tuples_carry_block_pointers():
    found = run(two_walks, shape=(2, 2), n=3)
    expected = sum(A[:2, j : j + 2] for j in (0, 2, 4)) + A[2:4, 4:6]
    np.testing.assert_array_equal(found, expected)
    loop = next(line for line in text(two_walks, a="*f32", out="*f32", n="i32").splitlines() if "= for" in line)
    assert loop.endswith(": i32, i32, tile<2x2xf32> {")  # the offsets and the sum; unchanged values are not carried


@kernel
def chosen(a, out, n, TRANSPOSED: tl.constexpr):
    straight = tl.make_block_ptr(a, (4, 6), (6, 1), (0, 0), (4, 4), (1, 0))
    transposed = tl.make_block_ptr(a, (6, 4), (1, 6), (0, 0), (4, 4), (0, 1))
    p = transposed if TRANSPOSED else straight
    if n > 3:
        q = tl.make_block_ptr(a, (6, n), (1, 6), (1, 0), (4, 4), (0, 1))
    else:
        q = p
    keep(out, tl.load(p) + tl.load(q, boundary_check=(0, 1)))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("n", [3, 4])
def test_branches_join_block_pointers_with_equal_blocks(transposed, n):
    p = A.T[:4] if transposed else A[:, :4]
    np.testing.assert_array_equal(run(chosen, n=n, TRANSPOSED=transposed), p + (A.T[1:5] if n > 3 else p))


@kernel
def remade(a, out, n):
    p = tl.make_block_ptr(a, (4, 6), (6, 1), (0, 0), (4, 4), (1, 0))
    x = tl.zeros((4, 4), tl.float32)
    i = 0
    while i < n:
        x += tl.load(p, boundary_check=(0, 1))
        p = tl.make_block_ptr(a + 1, (4, 6 - n), (6, 1), (i, 0), (4, 4), (1, 0))
        i += 1
    keep(out, x)


def test_a_loop_may_recreate_its_block_pointer():
    second = np.pad(A[:, 1:4], ((0, 0), (0, 1)))
    np.testing.assert_array_equal(run(remade, n=2), A[:, :4] + A[:, 1:5])
    np.testing.assert_array_equal(run(remade, n=3), A[:, :4] + second + np.pad(A[1:, 1:4], ((0, 1), (0, 1))))


def test_types_equal_tritons():
    @kernel
    def types(a, out):
        p = tl.make_block_ptr(a, (4, 6), (6, 1), (0, 0), (4, 4), (1, 0))
        tl.static_assert(p.dtype.is_ptr() and not p.dtype.is_block())
        tl.static_assert(p.type.element_ty.element_ty == tl.float32)
        tl.static_assert(p.dtype.element_ty.shape[1] == 4)
        tl.static_assert(isinstance(p, tl.tensor) and not isinstance(p, tl.tensor_descriptor))
        tl.static_assert(isinstance(p.type.element_ty, tl.block_type))
        tl.static_assert(p is not None)
        keep(out, tl.load(p).to(p.dtype.element_ty) + tl.zeros((4, 4), dtype=p.type.element_ty.element_ty))

    np.testing.assert_array_equal(run(types), A[:, :4])


# -- mistakes ------------------------------------------------------------------------------------------------------------------


@kernel
def rank_differs(a):
    tl.make_block_ptr(a, (4, 6), (6, 1), (0,), (4, 4), (1, 0))


@kernel
def order_twice(a):
    tl.make_block_ptr(a, (4, 6), (6, 1), (0, 0), (4, 4), (1, 1))


@kernel
def odd_block(a):
    tl.make_block_ptr(a, (4, 6), (6, 1), (0, 0), (4, 6), (1, 0))


@kernel
def tile_base(a):
    tl.make_block_ptr(a + tl.arange(0, 4), (4, 6), (6, 1), (0, 0), (4, 4), (1, 0))


@kernel
def none_stride(a, s):
    tl.make_block_ptr(a, (4, 6), (s, 1), (0, 0), (4, 4), (1, 0))


@kernel
def float_size(a):
    tl.make_block_ptr(a, (4.0, 6), (6, 1), (0, 0), (4, 4), (1, 0))


@kernel
def masked(a):
    tl.load(tl.make_block_ptr(a, (4, 6), (6, 1), (0, 0), (4, 4), (1, 0)), mask=True)


@kernel
def with_other(a):
    tl.load(tl.make_block_ptr(a, (4,), (1,), (0,), (4,), (0,)), other=0.0)


@kernel
def checked_beyond(a):
    tl.load(tl.make_block_ptr(a, (4,), (1,), (0,), (4,), (0,)), boundary_check=(0, 1))


@kernel
def checked_twice(a):
    tl.load(tl.make_block_ptr(a, (4, 6), (6, 1), (0, 0), (4, 4), (1, 0)), boundary_check=(1, 1))


@kernel
def nan_of_integers(i):
    tl.load(tl.make_block_ptr(i, (4,), (1,), (0,), (4,), (0,)), boundary_check=(0,), padding_option="nan")


@kernel
def unknown_padding(a):
    tl.load(tl.make_block_ptr(a, (4,), (1,), (0,), (4,), (0,)), boundary_check=(0,), padding_option="one")


@kernel
def advance_pointer(a):
    tl.advance(a, (1,))


@kernel
def advance_rank(a):
    tl.advance(tl.make_block_ptr(a, (4, 6), (6, 1), (0, 0), (4, 4), (1, 0)), (1,))


@kernel
def advance_wide(a, n):
    tl.advance(tl.make_block_ptr(a, (4,), (1,), (0,), (4,), (0,)), (n,))


@kernel
def arithmetic(a):
    tl.make_block_ptr(a, (4,), (1,), (0,), (4,), (0,)) + 1


@kernel
def atomic_block(a):
    tl.atomic_add(tl.make_block_ptr(a, (4,), (1,), (0,), (4,), (0,)), 1.0)


@kernel
def wrong_value(a):
    tl.store(tl.make_block_ptr(a, (4,), (1,), (0,), (4,), (0,)), tl.zeros((8,), tl.float32))


@kernel
def other_blocks_meet(a, n):
    p = tl.make_block_ptr(a, (4,), (1,), (0,), (4,), (0,))
    if n > 0:
        p = tl.make_block_ptr(a, (4,), (1,), (0,), (8,), (0,))
    tl.load(p)


@kernel
def block_changes_in_loop(a, n):
    p = tl.make_block_ptr(a, (4,), (1,), (0,), (4,), (0,))
    for _ in range(n):
        p = tl.make_block_ptr(a, (4,), (1,), (0,), (8,), (0,))
    tl.load(p)


@kernel
def unknown_method(a):
    tl.make_block_ptr(a, (4,), (1,), (0,), (4,), (0,)).advanec((1,))


MISTAKES = [
    (rank_differs, {}, "with 2 axes got 1 in `offsets`", "(0,)"),
    (order_twice, {}, "does not name each axis once", "(1, 1)"),
    (odd_block, {}, "the size 6 in the shape .* is not a power of two", "(4, 6)"),
    (tile_base, {}, "needs the pointer of an array as its base", "a + tl.arange(0, 4)"),
    (none_stride, {"s": None}, "`strides` must hold integer scalars, not None", "(s, 1)"),
    (float_size, {}, r"`shape` must hold integer scalars, not the constant 4\.0", "(4.0, 6)"),
    (masked, {}, "`load` through a block pointer takes no `mask`", "True"),
    (with_other, {}, "takes no `other`", "0.0"),
    (checked_beyond, {}, "boundary_check names axis 1 of a block with 1 axis", "(0, 1)"),
    (checked_twice, {}, "names an axis twice", "(1, 1)"),
    (nan_of_integers, {"i": "*i32", "a": None}, "a block of int32 cannot be padded with NaN", '"nan"'),
    (unknown_padding, {}, "unknown padding 'one'", '"one"'),
    (advance_pointer, {}, "`advance` needs a block pointer, not a pointer to fp32", "a"),
    (advance_rank, {}, "with 2 axes got 1 in `offsets`", "(1,)"),
    (advance_wide, {"n": "i64"}, "int64 may not fit", "(n,)"),
    (arithmetic, {}, r"`\+` cannot combine .*a block pointer to fp32 of shape \(4,\)", None),
    (atomic_block, {}, "`atomic_add` needs a pointer, not a block pointer", None),
    (wrong_value, {}, r"`value` has shape \(8,\), but the pointers have shape \(4,\)", "tl.zeros((8,), tl.float32)"),
    (
        other_blocks_meet,
        {"n": "i32"},
        r"`p` is of different types .*shape \(4,\).*shape \(8,\)|shape \(8,\).*shape \(4,\)",
        None,
    ),
    (block_changes_in_loop, {"n": "i32"}, "`p` changes its type in the loop", None),
    (unknown_method, {}, "has no `advanec`", None),
]


@pytest.mark.parametrize(("k", "arguments", "message", "where"), MISTAKES, ids=[m[0].source.name for m in MISTAKES])
def test_mistakes_are_reported_at_their_place(k, arguments, message, where):
    given = {n: a for n, a in {"a": "*f32", **arguments}.items() if n in {p.name for p in k.source.parameters}}
    found = failure(k, TypeMismatch, **given)
    assert re.search(message, found.message), found.message
    if where is not None:
        assert place(k, found)[1] == where


@pytest.mark.parametrize(
    "k", [masked, with_other, advance_pointer, none_stride, advance_wide, order_twice, nan_of_integers]
)
def test_mistakes_come_with_a_hint(k):
    kinds = {"a": "*f32", "i": "*i32", "s": None, "n": "i64"}
    assert failure(k, TypeMismatch, **{p.name: kinds[p.name] for p in k.source.parameters}).hint


def test_a_scalar_can_be_indexed_with_none_like_a_row_or_column():
    @kernel
    def k(out, n):
        at = n[:, None] * 2 + n[None, :]
        tl.static_assert(at.shape == (1,) and n[None, None, :].shape == (1, 1))
        tl.store(out + at, n + 1)

    out = np.zeros(8, np.int32)
    launch(k, 1, out=out, n=2)
    np.testing.assert_array_equal(out, [0, 0, 0, 0, 0, 0, 3, 0])
