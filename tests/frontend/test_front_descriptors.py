"""Tensor descriptors in kernels: loads, stores, attributes, and error messages for wrong ones."""

import re

import numpy as np
import pytest
from frontend_helpers import failure, ir, kernel, launch, place

import blocknb.language as tl
from blocknb.errors import TypeMismatch
from blocknb.frontend.parse import ArgType, parse
from blocknb.ir.interp import run
from blocknb.ir.verify import verify
from blocknb.language import types as t

A = np.arange(32, dtype=np.float32).reshape(4, 8)


@kernel
def copy_block(a, out, i, j, PADDING: tl.constexpr):
    d = tl.make_tensor_descriptor(a, shape=[4, 8], strides=[8, 1], block_shape=[2, 4], padding_option=PADDING)
    e = tl.make_tensor_descriptor(out, [2, 4], [4, 1], [2, 4])
    e.store([0, 0], d.load([i, j]))


@pytest.mark.parametrize(("i", "j"), [(0, 0), (2, 4), (3, 6), (-1, -3), (9, 0)])
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_descriptor_load_pads_outside_the_array(i, j, padding):
    out = np.full((2, 4), 99, np.float32)
    launch(copy_block, 1, a=A.copy(), out=out, i=i, j=j, PADDING=padding)
    whole = np.pad(A, 16, constant_values=np.nan if padding == "nan" else 0)
    np.testing.assert_array_equal(out, whole[16 + i : 18 + i, 16 + j : 20 + j])


@kernel
def questions(a, n):
    d = tl.make_tensor_descriptor(a, (n, 8), (8, 1), (2, 8))
    tl.static_assert(isinstance(d, tl.tensor_descriptor) and isinstance(d, tl.tensor_descriptor_base))
    tl.static_assert(not isinstance(d, tl.tensor) and not isinstance(n, tl.tensor_descriptor))
    tl.static_assert(d.dtype == tl.float32 and d.block_shape == (2, 8) and d.block_shape[1] == 8)
    tl.static_assert(d.type.block_type.element_ty == tl.float32 and len(d.shape) == 2 and d is not None)
    tl.store(a, (d.shape[0] + d.strides[0] * 100 + d.strides[1] * 10).to(tl.float32))


def test_attributes_of_a_descriptor_are_constants_or_values():
    a = A.copy()
    launch(questions, 1, a=a, n=4)
    assert a[0, 0] == 4 + 800 + 10


@kernel
def pick(a, b, n):
    if n > 2:
        d = tl.make_tensor_descriptor(a, (4, 8), (8, 1), (1, 4))
    else:
        d = tl.make_tensor_descriptor(b, (n, 8), (8, 1), (1, 4))
    return d, n


@kernel
def travelling(a, b, out, n):
    d, _ = pick(a, b, n)
    total = tl.zeros((1, 4), tl.float32)
    for i in range(4):
        total += d.load((i, 4))
    tl.store(out + tl.arange(0, 4)[None, :], total)


@pytest.mark.parametrize("n", [2, 3])
def test_descriptors_pass_through_branches_tuples_and_loops(n):
    a, b, out = A.copy(), 100 + A, np.zeros(4, np.float32)
    launch(travelling, 1, a=a, b=b, out=out, n=n)
    np.testing.assert_array_equal(out, (a if n > 2 else b[:2])[:, 4:].sum(0))


@kernel
def older_names(a, out):
    d = tl._experimental_make_tensor_descriptor(a, [4, 8], [8, 1], [2, 4])
    e = tl.make_tensor_descriptor(out, [2, 4], [4, 1], [2, 4])
    x = tl._experimental_descriptor_load(d, [1, 2], [2, 4], tl.float32)
    tl._experimental_descriptor_store(e, x + tl.load_tensor_descriptor(d, [0, 0]), [0, 0])


def test_older_names_are_aliases():
    out = np.zeros((2, 4), np.float32)
    launch(older_names, 1, a=A.copy(), out=out)
    np.testing.assert_array_equal(out, A[1:3, 2:6] + A[:2, :4])


@kernel
def passed(d, out, n):
    if d is not None:
        tl.static_assert(isinstance(d, tl.tensor_descriptor))
        tl.store(out + tl.arange(0, 8), tl.ravel(d.load([n, 2])))
    else:
        tl.store(out, -1.0)


def test_a_descriptor_parameter_becomes_a_pointer_sizes_and_strides():
    kind = ArgType(t.Descriptor(t.float32, (2, 4)), 16)
    pointer, scalar = ArgType(t.Tile(t.Pointer(t.float32)), 16), ArgType(t.Tile(t.int32))
    func = parse(passed.source, {"d": kind, "out": pointer, "n": scalar}, {})
    verify(func)
    assert [(h.name, h.divisibility) for h in func.hints] == [
        ("d", 16), ("d.shape0", 1), ("d.shape1", 16), ("d.stride0", 4), ("out", 16), ("n", 1),
    ]  # fmt: skip
    out = np.zeros(8, np.float32)
    run(func, [A.copy(), 4, 8, 8, out, 3], 1)
    np.testing.assert_array_equal(out, [26, 27, 28, 29, 0, 0, 0, 0])


def test_a_descriptor_may_be_none():
    assert "store" in [op.name for op in ir(passed, d=None, out="*f32", n="i32").ops()]


# -- mistakes ------------------------------------------------------------------------------------------------------------------


@kernel
def last_stride(a):
    tl.make_tensor_descriptor(a, (4, 8), (8, 2), (2, 4))


@kernel
def run_time_last_stride(a, n):
    tl.make_tensor_descriptor(a, (4, 8), (8, n), (2, 4))


@kernel
def odd_stride(a):
    tl.make_tensor_descriptor(a, (4, 8), (9, 1), (2, 4))


@kernel
def short_block(a):
    tl.make_tensor_descriptor(a, (4, 8), (8, 1), (4, 2))


@kernel
def six_axes(a):
    tl.make_tensor_descriptor(a, (1, 1, 1, 1, 1, 4), (4, 4, 4, 4, 4, 1), (1, 1, 1, 1, 1, 4))


@kernel
def ranks(a):
    tl.make_tensor_descriptor(a, (4, 8), (8, 1), (4,))


@kernel
def nan_of_integers(i):
    tl.make_tensor_descriptor(i, (8,), (1,), (4,), padding_option="nan")


@kernel
def too_large(a):
    tl.make_tensor_descriptor(a, (4, 8), (8, 1), (1024, 2048))


@kernel
def too_few_offsets(a):
    tl.make_tensor_descriptor(a, (4, 8), (8, 1), (2, 4)).load([0])


@kernel
def wrong_block(a):
    tl.make_tensor_descriptor(a, (4, 8), (8, 1), (2, 4)).store([0, 0], tl.zeros((4, 4), tl.float32))


@kernel
def loaded_as_pointer(a):
    tl.load(tl.make_tensor_descriptor(a, (8,), (1,), (4,)))


@kernel
def pointer_as_descriptor(a):
    tl.load_tensor_descriptor(a, [0])


@kernel
def none_descriptor(d):
    tl.load_tensor_descriptor(d, [0])


@kernel
def gather_of_rows(a):
    tl.make_tensor_descriptor(a, (4, 8), (8, 1), (2, 8)).gather(tl.arange(0, 8), 0)


@kernel
def gather_of_few(a):
    tl.make_tensor_descriptor(a, (4, 8), (8, 1), (1, 8)).gather(tl.arange(0, 4), 0)


@kernel
def atomic_on_floats(a):
    tl.make_tensor_descriptor(a, (8,), (1,), (4,)).atomic_xor([0], tl.zeros((4,), tl.float32))


@kernel
def other_dtype(a):
    tl._experimental_descriptor_load(tl.make_tensor_descriptor(a, (8,), (1,), (4,)), [0], [4], tl.float16)


@kernel
def unknown_attribute(a):
    tl.make_tensor_descriptor(a, (8,), (1,), (4,)).blockshape


MISTAKES = [
    (last_stride, {}, "the last stride of a tensor descriptor must be 1, not 2", "(8, 2)"),
    (run_time_last_stride, {"n": "i32"}, "must be the constant 1", "(8, n)"),
    (odd_stride, {}, "a stride of 9 elements is 36 bytes, not a multiple of 16", "(9, 1)"),
    (short_block, {}, r"the last axis of the block \(4, 2\) has 8 bytes", "(4, 2)"),
    (six_axes, {}, "at most 5 axes, not 6", "(1, 1, 1, 1, 1, 4)"),
    (ranks, {}, "of a block with 1 axis got 2 in `shape`", "(4, 8)"),
    (nan_of_integers, {}, "a block of int32 cannot be padded with NaN", '"nan"'),
    (too_large, {}, "2097152 elements; the maximum is", "(1024, 2048)"),
    (too_few_offsets, {}, "`load` of a block with 2 axes got 1 in `offsets`", "[0]"),
    (wrong_block, {}, r"writes a block of shape \(2, 4\), not fp32 of shape \(4, 4\)", "tl.zeros((4, 4), tl.float32)"),
    (
        loaded_as_pointer,
        {},
        "`load` needs a pointer, not a tensor descriptor",
        "tl.make_tensor_descriptor(a, (8,), (1,), (4,))",
    ),
    (pointer_as_descriptor, {}, "needs a tensor descriptor, not a pointer to fp32", "a"),
    (none_descriptor, {"d": None}, "needs a tensor descriptor, not None", "d"),
    (gather_of_rows, {}, r"needs a descriptor of one-row blocks, not of shape \(2, 8\)", None),
    (gather_of_few, {}, "needs at least 8 rows and 8 columns", "tl.arange(0, 4)"),
    (atomic_on_floats, {}, "`atomic_xor` does not work on fp32", None),
    (other_dtype, {}, "reads fp16 of shape .* blocks of fp32", "tl.float16"),
    (unknown_attribute, {}, "has no `blockshape`", None),
]


@pytest.mark.parametrize(("k", "arguments", "message", "where"), MISTAKES, ids=[m[0].source.name for m in MISTAKES])
def test_mistakes_are_reported_at_their_place(k, arguments, message, where):
    kinds = {"a": "*f32", "i": "*i32", **arguments}
    found = failure(k, TypeMismatch, **{p.name: kinds[p.name] for p in k.source.parameters})
    assert re.search(message, found.message), found.message
    assert found.hint
    if where is not None:
        assert place(k, found)[1] == where
