"""`tl.const` marks pointers that stores may not use; the IR does not have the mark."""

from __future__ import annotations

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.errors import TypeMismatch
from blocknb.frontend.parse import ArgType, Constant, parse
from blocknb.ir.text import print_func
from blocknb.language.types import Pointer, Tile, float32, int32

F32, BOOL, I32 = Tile(Pointer(float32)), Tile(Pointer(tl.int1)), Tile(int32)


@blocknb.kernel
def store(x: tl.const, out, c):
    tl.store(x + tl.arange(0, 4) + c, 1)


@blocknb.kernel
def add(x: tl.const, out, c):
    tl.atomic_add(x + c, 1)


@blocknb.kernel
def swap(x: tl.const, out, c):
    tl.atomic_cas(x.to(tl.pointer_type(tl.int32), bitcast=True) + c, 0, 1)
    tl.atomic_cas(x, 0, 1)


@blocknb.kernel
def block(x: tl.const, out, c):
    tl.store(tl.make_block_ptr(x, (c,), (1,), (0,), (4,), (0,)), tl.zeros((4,), tl.float32))


@blocknb.kernel
def ternary(x: tl.const, out, c):
    tl.store(x if c else out, 1)


@blocknb.kernel
def branch(x: tl.const, out, c):
    if c:
        p = x
    else:
        p = out
    tl.store(p, 1)


@blocknb.kernel
def either(x, out, c):
    if c:
        return x
    else:
        return out


@blocknb.kernel
def call(x: tl.const, out, c):
    tl.store(either(x, out, c), 1)


@blocknb.kernel
def loop(x: tl.const, out, c):
    p = out
    for _ in range(c):
        tl.store(p, 1)
        p = x + 1


CONSTANT = "Cannot store to a constant pointer"


@pytest.mark.parametrize(
    ("kernel", "kind", "words"),
    [(k, F32, CONSTANT) for k in (store, add, block)]
    + [(store, BOOL, CONSTANT), (swap, Tile(Pointer(int32)), CONSTANT)]
    + [(ternary, F32, "Ternary expression with dynamic condition has inconsistent types")]
    + [(branch, F32, "Mismatched type for p"), (call, F32, "Inconsistent return types")],
    ids=lambda x: getattr(x, "name", None),
)
def test_a_store_through_a_constant_pointer_is_an_error_in_tritons_words(kernel, kind, words):
    with pytest.raises(TypeMismatch) as error:
        parse(kernel.source, {"x": ArgType(kind), "out": ArgType(kind), "c": ArgType(I32)})
    assert error.value.error_message.startswith(words) and error.value.loc.file == __file__


def test_a_loop_cannot_make_a_pointer_constant():
    with pytest.raises(TypeMismatch, match="a constant pointer to fp32"):
        parse(loop.source, {"x": ArgType(F32), "out": ArgType(F32), "c": ArgType(I32)})


@blocknb.kernel
def copy(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for _ in range(2):
        tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)
        x += n


@blocknb.kernel
def constant(x: tl.const, out, n, BLOCK: tl.constexpr):
    copy(x, out, n, BLOCK)


@blocknb.kernel
def plain(x, out, n, BLOCK: tl.constexpr):
    copy(x, out, n, BLOCK)


def test_the_ir_of_a_constant_pointer_is_that_of_any_pointer():
    arguments = {"x": ArgType(F32), "out": ArgType(F32), "n": ArgType(I32), "BLOCK": Constant(16)}
    funcs = [parse(kernel.source, arguments) for kernel in (constant, plain)]
    assert print_func(funcs[0]) == print_func(funcs[1]).replace("plain", "constant")
    for op in funcs[0].ops():
        assert not any(v.type.is_pointer and v.type.dtype.const for v in op.args)


@blocknb.kernel
def told(x: tl.const, out, n, BLOCK: tl.constexpr):
    tl.static_assert(x.dtype.is_const() and (x + 1).dtype.is_const() and not out.dtype.is_const())
    copy(x, out, n, BLOCK)


def test_a_kernel_with_a_constant_pointer_computes_and_is_interpreted():
    x, found = np.arange(20, dtype=np.float32), [np.zeros(10, np.float32) for _ in range(2)]
    told[1,](x, found[0], 10, BLOCK=16)
    told.interpret(1)(x, found[1], 10, BLOCK=16)
    assert all((out == x[10:] + 1).all() for out in found)


def test_an_interpreted_store_through_a_constant_pointer_is_an_error():
    x = np.zeros(8, np.float32)
    with pytest.raises(TypeMismatch, match="derives from a parameter annotated with `tl.const`"):
        store.interpret(1)(x, x, 1)
