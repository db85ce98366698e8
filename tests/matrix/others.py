"""Names that are no elementwise functions: random numbers, hints, loops, compile time; and references to other tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from kernels.functions import philox

import blocknb.language as tl
from blocknb.language import types as t
from matrix.entry import DTYPES, NUMBERS, X, between, entry, exact, from_each, over, wild

TILE = over((16,), (4, 8), (2, 2, 8), (2, 1, 4, 4))

# -- random numbers ----------------------------------------------------------------------------------------------------------------


def bits(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    return [wild(rng, d, n) for d, n in zip(dtypes, sizes, strict=True)]


def offsets(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    """A seed, and non-negative offsets of every magnitude."""
    seed = rng.integers(0, 2**62, sizes[0])
    return [seed.astype(dtypes[0].numpy), np.abs(wild(rng, dtypes[1], sizes[1]) >> 1)]


M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
PARAMETERS = {
    32: (0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85),
    64: (0xD2E7470EE14C6C93, 0xCA5A826395121157, 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B),
}


def rounds(counter: tuple[int, ...], key: tuple[int, int], width: int = 32, count: int = 10) -> tuple[int, ...]:
    """Philox (Salmon et al., SC 2011) on Python integers."""
    m0, m1, w0, w1 = PARAMETERS[width]
    mask = (1 << width) - 1
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(count):
        p, q = m0 * c0, m1 * c2
        c0, c1, c2, c3 = (q >> width) ^ c1 ^ k0, q & mask, (p >> width) ^ c3 ^ k1, p & mask
        k0, k1 = k0 + w0 & mask, k1 + w1 & mask
    return c0, c1, c2, c3


def words(seed: np.ndarray, offset: np.ndarray, count: int = 10) -> list[np.ndarray]:
    """The four words of each offset."""
    s = int(seed.ravel()[0])
    rows = [rounds((int(o) & M32, int(o) >> 32, 0, 0), (s & M32, s >> 32 & M32), 32, count) for o in offset.ravel()]
    return [np.array(column, np.uint32).reshape(offset.shape) for column in zip(*rows, strict=True)]


assert rounds((5, 0, 0, 0), (7, 9))[0] == philox((5, 0, 0, 0), (7, 9))


def uniform(x: np.ndarray) -> np.ndarray:
    signed = x.view(np.int32)
    return np.where(signed < 0, -signed - 1, signed).astype(np.float32) * np.float32(4.6566127342e-10)


def normal(u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r, angle = np.sqrt(-2 * np.log(np.maximum(np.float32(1e-7), u).astype(float))), np.float32(6.283185307179586) * v
    return r * np.cos(angle.astype(float)), r * np.sin(angle.astype(float))


def normals(seed: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, ...]:
    a, b, c, d = (uniform(w) for w in words(seed, offset))
    return *normal(a, b), *normal(c, d)


SEEDED = over(*(((), c.shapes[0]) for c in TILE), ((), ()))
_rest: dict[str, Any] = {
    "dtypes": (t.int32, t.int64),
    "takes": (t.int64, X),
    "cases": SEEDED,
    "domain": offsets,
    "refuses": False,
}
U, F = t.uint32, t.float32
entry("randint4x", "tl.randint4x(a, b)", lambda s, o: tuple(words(s, o)), gives=(U,) * 4, **_rest)
entry("randint", "tl.randint(a, b)", lambda s, o: words(s, o)[0], gives=(U,), **_rest)
entry("randint n_rounds", "tl.randint(a, b, n_rounds=7)", lambda s, o: words(s, o, 7)[0], gives=(U,), **_rest)
entry("rand", "tl.rand(a, b)", lambda s, o: uniform(words(s, o)[0]), gives=(F,), **_rest)
entry("rand4x", "tl.rand4x(a, b)", lambda s, o: tuple(map(uniform, words(s, o))), gives=(F,) * 4, **_rest)
# A radius near zero magnifies the error of the logarithm, and an angle near a multiple of pi/2 its rounding error.
entry("randn", "tl.randn(a, b)", lambda s, o: normals(s, o)[0], gives=(F,), ulps=32, least=0.5, **_rest)
entry("randn4x", "tl.randn4x(a, b)", normals, gives=(F,) * 4, ulps=32, least=0.5, **_rest)
entry(
    "pair_uniform_to_normal",
    "tl.pair_uniform_to_normal(a, b)",
    lambda u, v: normal(u.astype(np.float32), v.astype(np.float32)),
    (F,),
    (X, X),
    (X, X),
    TILE and over(*((c.shapes[0],) * 2 for c in TILE)),
    from_each(between(0.1, 0.9), between(0.05, 0.2)),
    ulps=64,
    refuses=False,
)


def philox_of(*columns: np.ndarray, width: int, seed: int | None = None) -> tuple[np.ndarray, ...]:
    mask = (1 << width) - 1
    rows = []
    for row in zip(*(map(int, c.ravel()) for c in columns), strict=True):
        c = tuple(v & mask for v in row)
        rows.append(
            rounds((c[0], c[1], c[2], c[0]), (c[3], c[1]), width)
            if seed is None
            else rounds(c, (seed & M32, seed >> 32) if width == 32 else (seed, 0), width)
        )
    return tuple(np.array(v, f"u{width // 8}").reshape(columns[0].shape) for v in zip(*rows, strict=True))


FOUR = over(*((c.shapes[0],) * 4 for c in TILE), ((),) * 4)
for _dtype, _width in ((t.int32, 32), (t.uint32, 32), (t.int64, 64), (t.uint64, 64)):
    _word = t.uint32 if _width == 32 else t.uint64
    entry(
        f"philox of {_dtype}",
        "tl.philox(0x123456789ABCDEF, a, b, c, d)",
        lambda *c, w=_width: philox_of(*c, width=w, seed=0x123456789ABCDEF),
        (_dtype,),
        (X,) * 4,
        (_word,) * 4,
        FOUR,
        bits,
        refuses=False,
    )
    if _dtype.kind == "uint":
        entry(
            f"philox_impl of {_dtype}",
            "tl.philox_impl(a, b, c, a, d, b)",
            lambda *c, w=_width: philox_of(*c, width=w),
            (_dtype,),
            (X,) * 4,
            (X,) * 4,
            FOUR,
            bits,
            refuses=False,
        )


def uniform_of(x: np.ndarray) -> np.ndarray:
    signed = x.view(f"i{x.itemsize}")
    folded = np.where(signed < 0, -signed - 1, signed).astype(np.float32)
    return folded * np.float32(4.6566127342e-10 if x.itemsize == 4 else 1.0842020432385337e-19)


entry(
    "uint_to_uniform_float",
    "tl.uint_to_uniform_float(a)",
    uniform_of,
    (t.int32, t.uint32, t.int64, t.uint64),
    gives=(F,),
    domain=bits,
)

# -- hints -----------------------------------------------------------------------------------------------------------------------

_rest = {"dtypes": NUMBERS, "cases": TILE, "domain": bits, "raw": True, "refuses": False}
for _name in ("multiple_of", "max_contiguous", "max_constancy"):
    entry(_name, f"at = tl.{_name}(a_at, 1)\ntl.load(a_ptr + at)", lambda a: a, **_rest)
entry("multiple_of of a pointer", "p = tl.multiple_of(a_ptr, 16)\ntl.load(p + a_at)", lambda a: a, **_rest)
entry("assume", "tl.assume((a_at >= 0) & (a_at < 64))\ntl.load(a_ptr + a_at)", lambda a: a, **_rest)
entry(
    "debug_barrier",
    "tl.store(w0 + a_at, a)\ntl.debug_barrier()\ntl.load(w0 + a_at) + a * 0",
    lambda a: (a, a),
    **_rest | {"gives": (X, X), "domain": exact},
)

# -- loops and compile time ------------------------------------------------------------------------------------------------------------

_rest = {"dtypes": (t.int32, t.int64, t.float32), "cases": over((), (16,), (4, 8)), "domain": exact, "refuses": False}
for _label, _loop in (
    ("range", "for i in tl.range(1, 7, 2):"),
    ("range hints", "for i in tl.range(1, 7, 2, num_stages=2, loop_unroll_factor=2, flatten=True, disable_licm=True):"),
    ("static_range", "for i in tl.static_range(1, 7, 2):"),
):
    entry(_label, f"total = a\n{_loop}\n    total += i\ntotal", lambda a: a + 9, **_rest)
entry(
    "condition",
    "i = 0\ntotal = a\nwhile tl.condition(i < 5, disable_licm=True):\n    total += i\n    i += 1\ntotal",
    lambda a: a + 10,
    **_rest,
)
entry("static_assert", "tl.static_assert(a.dtype == {X}, 'the dtype')\na", lambda a: a, **_rest)
entry("static_print", "tl.static_print('a is', a, sep=' ')\na", lambda a: a, **_rest)
entry("constexpr", "N: tl.constexpr = tl.constexpr(3)\na + N * N", lambda a: a + 9, **_rest)
entry("tuple", "pair = tl.tuple((a, 2))\npair[0] + pair[1]", lambda a: a + 2, **_rest)
entry("tensor", "a + (1 if isinstance(a, tl.tensor) else 0)", lambda a: a + 1, **_rest)
entry(
    "dtype",
    "a + (a.dtype.primitive_bitwidth if isinstance(a.dtype, tl.dtype) else 0)",
    lambda a: a + (64 if a.dtype in (np.int64,) else 32),
    **_rest,
)
entry("block_type", "a + (1 if isinstance(a.type, tl.block_type) else 0)", lambda a: a + (1 if a.ndim else 0), **_rest)
entry("pointer_type", "tl.load(a_ptr.to(tl.int64).to(tl.pointer_type({X})) + a_at)", lambda a: a, **_rest)
entry("str_to_ty", "a.to(tl.str_to_ty('fp32'))", lambda a: a, **_rest | {"gives": (F,)})
entry("TRITON_MAX_TENSOR_NUMEL", "a + (tl.TRITON_MAX_TENSOR_NUMEL >= 1048576)", lambda a: a + 1, **_rest)
entry("PropagateNan", "tl.maximum(a, a, tl.PropagateNan.NONE)", lambda a: a, **_rest)
for _name in ("shape", "numel", "type"):
    entry(
        f"tensor.{_name}",
        {"shape": "a + len(a.shape)", "numel": "a + a.numel", "type": "a + a.type.is_block()"}[_name],
        lambda a, n=_name: a + {"shape": a.ndim, "numel": a.size, "type": a.ndim > 0}[n],
        **_rest,
    )

#: Names that a kernel of one program cannot test, or that are not used in kernels; and where they are tested.
ELSEWHERE = {
    **dict.fromkeys(
        (_d.name.replace("bf16", "bfloat16").replace("fp", "float") for _d in DTYPES),
        "a dtype: every entry of the table is one for each",
    ),
    "float8e4b15": "a dtype that no array has: tests/language/test_float8.py",
    "dot_scaled": "operands of two kinds in one array: tests/kernels/scaled.py",
    **dict.fromkeys(
        ("device_print", "device_assert"), "what a kernel says is no number: tests/runtime/test_what_kernels_say.py"
    ),
    "program_id": "needs a grid: tests/matrix/test_matrix.py",
    "num_programs": "needs a grid: tests/matrix/test_matrix.py",
    "const": "an annotation: tests/language/test_semantics_types.py",
    "slice": "Python's own",
    "void": "no value has this type",
    "pi32_t": "pointer_type(int32) under another name",
    **dict.fromkeys(("extra", "libdevice", "math", "target_info"), "a module"),
    "tensor_descriptor": "the class that isinstance asks for: tests/frontend/test_front_descriptors.py",
    "tensor_descriptor_base": "the class that isinstance asks for: tests/frontend/test_front_descriptors.py",
    **dict.fromkeys(
        ("_experimental_descriptor_load", "_experimental_descriptor_store", "_experimental_make_tensor_descriptor"),
        "old names: tests/frontend/test_front_descriptors.py",
    ),
    **dict.fromkeys(
        (
            f"tensor_descriptor.{_n}"
            for _n in (
                "load",
                "gather",
                "scatter",
                "atomic_add",
                "atomic_and",
                "atomic_max",
                "atomic_min",
                "atomic_or",
                "atomic_xor",
            )
        ),
        "a method: tests/frontend/test_front_descriptors.py, tests/kernels/blocks.py",
    ),
    **dict.fromkeys(
        ("cuda_capability_geq", "current_target", "is_cuda", "is_hip", "is_hip_cdna3", "is_hip_cdna4"),
        "asks for the target: tests/language/test_triton_names.py",
    ),
    **dict.fromkeys(
        ("gdc_launch_dependents", "gdc_wait", "globaltimer", "num_threads", "num_warps", "smid"),
        "asks the machine: tests/language/test_triton_names.py",
    ),
}

#: Ops of the IR that do not correspond to one name of the language.
OPS = {
    **dict.fromkeys(("convert", "alloc", "local_store", "local_load"), "made by passes: the GPU code of every entry"),
    **dict.fromkeys(("stage", "copy_async", "commit", "wait"), "made by passes: tests/ir/test_interp_async_copies.py"),
    **dict.fromkeys(("fence", "dot_wait"), "made by passes: tests/codegen/test_wgmma.py"),
    **dict.fromkeys(
        ("tensor_map", "mbarriers", "expect", "await", "arrive", "copy_bulk", "store_bulk", "store_wait", "roles"),
        "made by passes: tests/ir/test_interp_roles.py",
    ),
    **dict.fromkeys(("part", "warp_barrier"), "made by passes: tests/passes/test_epilogue_subtiling.py"),
    **dict.fromkeys(("cta_id", "num_ctas"), "made by passes: tests/ir/test_interp_roles.py"),
    "consumer_group_id": "made by passes: tests/passes/test_warp_specialization.py",
    **dict.fromkeys(
        ("yield", "condition", "if", "for", "while"), "control flow: the loops of scalars; tests/kernels/control.py"
    ),
    **dict.fromkeys(("program_id", "num_programs"), "needs a grid: tests/matrix/test_matrix.py"),
    **dict.fromkeys(
        ("print", "assert", "inside", "outside"),
        "what a kernel says is no number: tests/runtime/test_what_kernels_say.py",
    ),
    **dict.fromkeys(("shadow", "clock_lock", "clock_join"), "made by passes: tests/races/"),
    "const": "every number",
    "splat": "broadcast_to of a scalar",
    "ptradd": "every access",
    "promise": "multiple_of",
    "barrier": "debug_barrier",
    "asm": "inline_asm_elementwise",
    "mulhi": "umulhi",
    "scan": "associative_scan",
    "atomic": "atomic_add",
    "bitcast": "cast bitcast to int32",
    "cmp": "operator <",
    "select": "where",
}
assert set(ELSEWHERE) and tl
