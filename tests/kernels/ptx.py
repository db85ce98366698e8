"""Inline PTX, which runs on a GPU only; elsewhere it is only assembled."""

from __future__ import annotations

import numpy as np

import blocknb
import blocknb.language as bl
from kernels.base import case, integers, normal, poison, wide


@blocknb.kernel
def unpacked_maximum(a, b, as_int, larger, n, BLOCK: bl.constexpr):
    i = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    number, value = bl.inline_asm_elementwise(
        asm="""
        {   // four bytes of one register
            .reg .b8 t<4>;
            mov.b32 {t0, t1, t2, t3}, $8;
            cvt.u32.u8 $0, t0;  cvt.u32.u8 $1, t1;  cvt.u32.u8 $2, t2;  cvt.u32.u8 $3, t3;
        }
        cvt.rn.f32.s32 $4, $0;  cvt.rn.f32.s32 $5, $1;  cvt.rn.f32.s32 $6, $2;  cvt.rn.f32.s32 $7, $3;
        max.f32 $4, $4, $9;  max.f32 $5, $5, $10;  max.f32 $6, $6, $11;  max.f32 $7, $7, $12;
        """,
        constraints="=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r,r",
        args=[bl.load(a + i, mask=i < n), bl.load(b + i, mask=i < n)],
        dtype=(bl.int32, bl.float32),
        is_pure=True,
        pack=4,
    )
    bl.store(as_int + i, number, mask=i < n)
    bl.store(larger + i, value, mask=i < n)


case(
    "ptx_unpacked_maximum",
    unpacked_maximum,
    lambda rng: {
        "a": integers(rng, 777, np.uint8),
        "b": (normal(rng, 777) * 100).astype(np.float32),
        "as_int": poison(777, np.int32),
        "larger": poison(777, np.float32),
        "n": 777,
        "BLOCK": 512,
    },
    lambda a: {"as_int": a["a"].astype(np.int32), "larger": np.maximum(wide(a["a"]), wide(a["b"]))},
    grid=(2,),
    gpu_only=True,
)


@blocknb.kernel
def every_width(x, h, wide_ints, small, flags, out, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    f = bl.load(x + i)
    doubled = bl.inline_asm_elementwise("add.f32 $0, $1, $1;", "=f,f", [f], bl.float32, True, 1)
    halves = bl.inline_asm_elementwise(
        "add.rn.f16x2 $0, $1, $2;", "=r,r,r", [bl.load(h + i), 1.5 + 0 * bl.load(h + i)], bl.float16, True, 2
    )
    alone = bl.inline_asm_elementwise("neg.f16 $0, $1;", "=h,h", [halves], dtype=bl.float16, is_pure=True, pack=1)
    more = bl.inline_asm_elementwise(
        "add.s64 $0, $1, $2;", "=l,l,l", [bl.load(wide_ints + i), 3000000000], bl.int64, True, 1
    )
    exact = bl.inline_asm_elementwise(
        "fma.rn.f64 $0, $1, $1, $2;", "=d,d,0", [f.to(bl.float64), f.to(bl.float64)], bl.float64, True, 1
    )
    byte = bl.inline_asm_elementwise("add.u32 $0, $1, 1;", "=r,r", [bl.load(small + i)], bl.int8, is_pure=True, pack=1)
    flag = bl.inline_asm_elementwise(
        "xor.b32 $0, $1, 1;", "=r,r", [bl.load(flags + i) > 0], bl.int1, is_pure=True, pack=1
    )
    lanes = bl.inline_asm_elementwise("mov.u32 $0, %laneid;", "=r", [], dtype=bl.int32, is_pure=False, pack=1)
    reach = bl.inline_asm_elementwise("ld.global.f32 $0, [$1];", "=f,l", [x + i], bl.float32, is_pure=False, pack=1)
    row = out + i * 8
    bl.store(row, doubled)
    bl.store(row + 1, alone.to(bl.float32))
    bl.store(row + 2, (more - 3000000000).to(bl.float32))
    bl.store(row + 3, exact.to(bl.float32))
    bl.store(row + 4, byte.to(bl.float32))
    bl.store(row + 5, flag.to(bl.float32))
    bl.store(row + 6, bl.where(lanes < 32, 1.0, 0.0) + bl.zeros((BLOCK,), bl.float32))
    bl.store(row + 7, reach)


def _widths(a):
    x, h = wide(a["x"]), wide(a["h"])
    byte = (a["small"].astype(np.int16) + 1).astype(np.int8)
    columns = [2 * x, -(h + 1.5), wide(a["wide_ints"]), x * x + x, wide(byte), wide(a["flags"] <= 0), np.ones(64), x]
    return {"out": np.stack(columns, 1)}


case(
    "ptx_every_width",
    every_width,
    lambda rng: {
        "x": normal(rng, 64),
        "h": normal(rng, 64, np.float16),
        "wide_ints": integers(rng, 64, np.int64, -1000, 1000),
        "small": integers(rng, 64, np.int8),
        "flags": integers(rng, 64, np.int8),
        "out": poison((64, 8), np.float32),
        "BLOCK": 64,
    },
    _widths,
    rtol=2e-3,
    gpu_only=True,
)


@blocknb.kernel
def in_order(log, count, n, BLOCK: bl.constexpr):
    """Impure inline PTX writes in program order, even if its results are unused."""
    i = bl.arange(0, BLOCK)
    for k in range(n):
        bl.inline_asm_elementwise(
            "{ st.global.s32 [$1], $2; mov.s32 $0, 0; }", "=r,l,r", [log + i, k], bl.int32, False, 1
        )
        bl.inline_asm_elementwise(
            "{ .reg .s32 t; ld.global.s32 t, [$1]; add.s32 t, t, 100; st.global.s32 [$1], t; mov.s32 $0, t; }",
            "=r,l",
            [log + i],
            bl.int32,
            False,
            1,
        )
    bl.store(count + i, bl.load(log + i) + 1)


case(
    "ptx_in_order",
    in_order,
    lambda rng: {"log": poison(128, np.int32), "count": poison(128, np.int32), "n": 7, "BLOCK": 128},
    lambda a: {"log": np.full(128, 106), "count": np.full(128, 107)},
    gpu_only=True,
)
