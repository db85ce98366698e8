"""Inline PTX in the front end and the passes, and its errors; GPU tests check its results (kernels.ptx)."""

from __future__ import annotations

import numpy as np
import pytest
from frontend_helpers import failure, ir, kernel, kind, place
from kernels import GPU_CASES

import blocknb
import blocknb.language as tl
from blocknb.errors import AssemblyError, TypeMismatch, Unsupported
from blocknb.ir.interp import run
from blocknb.ir.text import parse_func, print_func
from blocknb.ir.verify import verify


@pytest.mark.parametrize("name", GPU_CASES)
def test_assembly_survives_every_pass_and_the_text_form(name):
    case = GPU_CASES[name]
    _, stages = case.lower(case.make(np.random.default_rng(0)), "sm_90a")
    for stage in stages:
        verify(stage.after)
        text = print_func(stage.after, locs=True)
        assert print_func(parse_func(text), locs=True) == text


def test_only_pure_assembly_may_be_dropped():
    @blocknb.kernel
    def k(out):
        tl.inline_asm_elementwise("mov.u32 $0, 1;", "=r", [], dtype=tl.int32, is_pure=True, pack=1)
        tl.inline_asm_elementwise("mov.u32 $0, 2;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
        tl.inline_asm_elementwise("mov.u32 $0, 2;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
        tl.store(out, 1)

    func = k.trace(np.zeros(1, np.int32)).stages[-1].after
    assert [op.attrs["text"] for op in func.ops() if op.name == "asm"] == ["mov.u32 $0, 2;"] * 2


def test_arguments_are_broadcast_and_results_have_their_shape():
    @kernel
    def k(out, x):
        a = tl.inline_asm_elementwise(
            "add.u32 $0, $1, $2;", "=r,r,r", [tl.arange(0, 8)[:, None], tl.arange(0, 4)], tl.int32, True, 1
        )
        b, c = tl.inline_asm_elementwise("mov.b64 {$0, $1}, $2;", "=r,=r,l", [x], (tl.int32, tl.float32), True, 1)
        tl.static_assert(a.shape == (8, 4) and b.shape == () and c.dtype == tl.float32)
        tl.store(out, tl.sum(a) + b)

    verify(ir(k, out="*i32", x="i64"))


def test_constants_are_written_into_the_text():
    @blocknb.kernel
    def pick(x, out, LUT: tl.constexpr):
        i = tl.arange(0, 64)
        mask: tl.constexpr = 0x0F0F
        picked = tl.inline_asm_elementwise(
            "lop3.b32 $0, $1, $2, ${3}, $4; // $$2", "=r,r,n,r,n", [tl.load(x + i), mask, i, LUT], tl.int32, True, 1
        )
        high = tl.inline_asm_elementwise("mov.u32 $0, $1;", "=r,n,~{memory}", [-7], tl.int32, True, 1)
        tl.store(out + i, picked + high)

    ints = np.zeros(64, np.int32)
    compiled = pick.compile(ints, ints, LUT=0xEA, target="sm_90a")
    assert (
        "3855, %r" in compiled.asm["ptx"] and ", 234; // $2" in compiled.asm["ptx"] and ", -7;" in compiled.asm["ptx"]
    )
    texts = [op.attrs["text"] for op in compiled.trace.stages[0].after.ops() if op.name == "asm"]
    assert texts == ["lop3.b32 ${0}, ${1}, 3855, ${2}, 234; // $$2", "mov.u32 ${0}, -7;"]


@pytest.mark.parametrize(
    ("asm", "constraints", "dtype", "pack", "says", "under"),
    [
        ("mov.b32 $0, $1;", "=r,q", tl.int32, 1, "the constraint 'q' is unknown", "constraints"),
        ("mov.b32 $0, $1;", "r,=r", tl.int32, 1, "comes after an argument", "constraints"),
        ("mov.b32 $0, $1;", "=r", tl.int32, 1, "name 0 registers of arguments", "constraints"),
        ("mov.b32 $0, $1;", "=r,r", (tl.int32, tl.int32), 1, "name 1 registers of results", "constraints"),
        ("mov.b32 $0, $1;", "=r,r", tl.int32, 4, "the results take 4 with pack=4", "constraints"),
        (
            "mov.b32 $0, $1;",
            "=r,h",
            tl.int32,
            1,
            "a register 'h' has 16 bits, but its elements of int32 have 32",
            "constraints",
        ),
        (
            "mov.b32 $0, $1;",
            "=d,r",
            tl.float32,
            1,
            "a register '=d' has 64 bits, but its elements of fp32 have 32",
            "constraints",
        ),
        (
            "mov.b32 $0, $1;",
            "=r,n",
            tl.int32,
            1,
            "the constraint 'n' of $1 takes an integer known at compile time",
            "[i]",
        ),
        ("mov.b32 $0, $1;", "=r,n,n", tl.int32, 1, "name 2 registers of arguments", "constraints"),
        ("mov.b32 $0, $2;", "=r,r", tl.int32, 1, "the text uses $2", "asm"),
        ("mov.b32 $0, %1;", "=r,r", tl.int32, 1, "`%1` in the text is not an operand", "asm"),
        ("mov.b32 $0, $x;", "=r,r", tl.int32, 1, "`$x` in the text is not an operand", "asm"),
        ("{ mov.b32 $0, $1;", "=r,r", tl.int32, 1, "opens 1 braces and closes 0", "asm"),
    ],
)
def test_invalid_argument_is_an_error_at_its_place(asm, constraints, dtype, pack, says, under):
    @kernel
    def k(out):
        i = tl.arange(0, 8)
        tl.inline_asm_elementwise(asm, constraints, [i], dtype=dtype, is_pure=True, pack=pack)

    error = failure(k, TypeMismatch, out="*i32")
    assert says in error.message
    assert place(k, error) == (3, under)


@blocknb.kernel
def misspelt(out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    fine = tl.inline_asm_elementwise("shl.b32 $0, $1, 3;", "=r,r", [i], tl.int32, is_pure=True, pack=1)
    tl.store(out + i, tl.inline_asm_elementwise("shll.b32 $0, $1, 3;", "=r,r", [fine], tl.int32, is_pure=True, pack=1))


@blocknb.kernel
def without_semicolon(out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.inline_asm_elementwise("shl.b32 $0, $1, 3", "=r,r", [i], tl.int32, is_pure=True, pack=1))


@blocknb.kernel
def too_new(out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.inline_asm_elementwise("griddepcontrol.wait; mov.u32 $0, $1;", "=r,r", [i], tl.int32, True, 1))


@pytest.mark.parametrize(
    ("bad", "target", "line", "says"),
    [
        (misspelt, "sm_90a", 4, "'shll'"),
        (without_semicolon, "sm_80", 3, "syntax error"),
        (too_new, "sm_80", 3, "needs sm_90"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_ptxas_error_is_reported_once_at_the_line_of_the_assembly(bad, target, line, says):
    with pytest.raises(AssemblyError) as caught:
        bad.compile(np.zeros(64, np.int32), BLOCK=64, target=target)
    assert caught.value.loc is not None
    assert caught.value.loc.line == bad.source.first_line + line
    assert says in caught.value.message
    assert bad.compile(np.zeros(64, np.int32), BLOCK=64, target="sm_90a").asm["ptx"] if bad is too_new else True


def test_without_a_gpu_assembly_is_refused_at_its_line():
    with pytest.raises(Unsupported, match="inline PTX needs a GPU, and a CPU is none") as caught:
        misspelt[(1,)](np.zeros(64, np.int32), BLOCK=64)
    assert caught.value.loc is not None
    assert caught.value.loc.line == misspelt.source.first_line + 3

    @kernel
    def k(out):
        tl.store(out, tl.inline_asm_elementwise("mov.u32 $0, 1;", "=r", [], tl.int32, True, 1))

    assert kind("*i32").divisibility == 16
    with pytest.raises(Unsupported, match="the interpreter is none"):
        run(ir(k, out="*i32"), [np.zeros(1, np.int32)], 1)


def test_map_elementwise_functions_have_no_effects_and_return_scalars():
    @kernel
    def storing(x, p):
        if x > 0:
            tl.store(p, x)
        return x

    @kernel
    def growing(x):
        return x + tl.arange(0, 2)

    @kernel
    def k(out):
        tl.map_elementwise(storing, tl.arange(0, 8), out)

    @kernel
    def k2(out):
        tl.store(out, tl.sum(tl.map_elementwise(growing, tl.arange(0, 8))))

    error = failure(k, TypeMismatch, out="*i32")
    assert error.message == "`store` in the function `storing` of map_elementwise"
    assert place(storing, error)[1] == "tl.store(p, x)"
    assert "must return a scalar per element, not a tile of shape (2,)" in failure(k2, TypeMismatch, out="*i32").message
