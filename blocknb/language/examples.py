"""Additional documentation of each name of the language: shapes, dtypes, errors, and an example.

The example is a kernel's body. A line with a comment is a claim, and the tests run it everywhere a kernel runs. It may use the arrays
`a_ptr` (fp32: 0.0 to 15.0), `i_ptr` (int32: 0 to 15) and `out_ptr` (16 fp32 zeros). A declaration with an `Example:` of its own keeps
that one, as those of libdevice do. The example of an op is in the op table.
"""

from __future__ import annotations

import inspect

from blocknb.language.ops import OPS
from blocknb.language.rows.elementwise import FLOAT

ANY = "Operands broadcast to one shape, in the dtype that the two promote to."
REDUCED = "The axis goes away (`keep_dims=True`: it has size one); without an axis all elements become a scalar."
PLACES = (
    "`pointer` and `val` broadcast to one shape, that of the result; `val` is cast to the pointer's element type. Integers "
    "of 8 and 16 bits are refused."
)
PHILOX = "`offset` is an integer tile or scalar and gives the shape, `seed` an integer scalar. Equal seed and offset give equal bits."

#: name -> (shapes, dtypes and errors; the example).
EXAMPLES: dict[str, tuple[str, str]] = {
    # -- programs and sources
    "full": (
        "The sizes of `shape` are powers of two known at compile time; an empty shape gives a scalar.",
        "tl.full((2, 2), 3, tl.int32)  # [[3, 3], [3, 3]]",
    ),
    "zeros": ("", "tl.zeros((4,), tl.float32) + 1  # [1.0, 1.0, 1.0, 1.0]"),
    "zeros_like": ("", "tl.zeros_like(tl.arange(0, 4))  # [0, 0, 0, 0]"),
    "to_tensor": (
        "The dtype of a number alone: int32, or the narrowest of uint32, int64 and uint64 that holds it; fp32, int1.",
        "x = tl.to_tensor(3)\nx.dtype  # tl.int32",
    ),
    # -- memory
    "atomic_add": (PLACES, "before = tl.atomic_add(i_ptr + 5, 3)\nbefore  # 5\ntl.load(i_ptr + 5)  # 8"),
    "atomic_max": (PLACES, "before = tl.atomic_max(i_ptr + tl.arange(0, 4), 2)\nbefore  # [0, 1, 2, 3]\n"
        "tl.load(i_ptr + 1)  # 2"),
    "atomic_min": (PLACES, "before = tl.atomic_min(i_ptr + 5, 2)\nbefore  # 5\ntl.load(i_ptr + 5)  # 2"),
    "atomic_and": ("Integers only. " + PLACES, "before = tl.atomic_and(i_ptr + 7, 3)\nbefore  # 7\ntl.load(i_ptr + 7)  # 3"),
    "atomic_or": ("Integers only. " + PLACES, "before = tl.atomic_or(i_ptr + 4, 3)\nbefore  # 4\ntl.load(i_ptr + 4)  # 7"),
    "atomic_xor": ("Integers only. " + PLACES, "before = tl.atomic_xor(i_ptr + 5, 1)\nbefore  # 5\ntl.load(i_ptr + 5)  # 4"),
    "atomic_xchg": (PLACES, "before = tl.atomic_xchg(i_ptr + 5, 40)\nbefore  # 5\ntl.load(i_ptr + 5)  # 40"),
    "debug_barrier": (
        "",
        "i = tl.arange(0, 4)\ntl.store(out_ptr + i, i)\ntl.debug_barrier()\ntl.load(out_ptr + 3 - i)  # [3.0, 2.0, 1.0, 0.0]",
    ),
    # -- shapes
    "view": ("As for `reshape`.", "tl.view(tl.arange(0, 4), 2, 2)  # [[0, 1], [2, 3]]"),
    "broadcast_to": (
        "Sizes that differ must be one in the input, else an error.",
        "tl.broadcast_to(tl.arange(0, 2), (2, 2))  # [[0, 1], [0, 1]]",
    ),
    "broadcast": ("Sizes that differ must be one in one of them, else an error.",
        "x, y = tl.broadcast(tl.arange(0, 2)[:, None], tl.arange(0, 2)[None, :])\nx  # [[0, 0], [1, 1]]"),
    "ravel": ("", "tl.ravel(tl.full((2, 2), 5, tl.int32))  # [5, 5, 5, 5]"),
    "permute": ("As for `trans`.", "x = tl.reshape(tl.arange(0, 4), (1, 2, 2))\ntl.permute(x, (2, 1, 0))  # [[[0], [2]], [[1], [3]]]"),
    # -- types and selection
    "to": ("As for `cast`.", "(tl.arange(0, 4) / 2).to(tl.int32)  # [0, 0, 1, 1]"),
    "where": (
        "`condition` is int1, or numbers compared with zero. " + ANY,
        "x = tl.arange(0, 4)\ntl.where(x > 1, x, -1)  # [-1, -1, 2, 3]",
    ),
    # -- arithmetic
    "sqrt_rn": (FLOAT, "tl.sqrt_rn(tl.load(a_ptr + 2))  # 1.4142135"),
    "maximum": (ANY, "tl.maximum(tl.arange(0, 4), 2)  # [2, 2, 2, 3]"),
    "minimum": (ANY, "tl.minimum(tl.arange(0, 4), 2)  # [0, 1, 2, 2]"),
    "clamp": (ANY, "tl.clamp(tl.load(a_ptr + tl.arange(0, 4)), 1.0, 2.0)  # [1.0, 1.0, 2.0, 2.0]"),
    "umulhi": (ANY, "tl.umulhi(tl.full((), 2**31 - 1, tl.int32), 8)  # 3"),
    "fdiv": ("Floats only. " + ANY, "tl.fdiv(tl.load(a_ptr + 3), 2.0)  # 1.5"),
    "div_rn": ("Floats only. " + ANY, "tl.div_rn(tl.load(a_ptr + 3), 2.0)  # 1.5"),
    "logical_and": ("int1. " + ANY, "x = tl.arange(0, 4)\n(x > 0).logical_and(x < 3)  # [False, True, True, False]"),
    "logical_or": ("int1. " + ANY, "x = tl.arange(0, 4)\n(x < 1).logical_or(x > 2)  # [True, False, False, True]"),
    # -- reductions
    "sum": (REDUCED, "x = tl.reshape(tl.arange(0, 4), (2, 2))\ntl.sum(x)  # 6\ntl.sum(x, axis=0)  # [2, 4]"),
    "max": (
        REDUCED + " Narrow integers become int32, bf16 and fp16 stay in fp32.",
        "x = tl.arange(0, 8)\ntl.max(x * (7 - x))  # 12\ntl.max(x, axis=0, return_indices=True)  # (7, 7)",
    ),
    "min": (REDUCED + " Dtypes as for `max`.", "x = tl.arange(0, 8)\ntl.min(x * 3 + 1)  # 1"),
    "argmax": ("int32. " + REDUCED, "x = tl.arange(0, 8)\ntl.argmax(x * (6 - x), 0)  # 3"),
    "argmin": ("int32. " + REDUCED, "x = tl.arange(0, 8)\ntl.argmin((x - 5) * (x - 5), 0)  # 5"),
    "xor_sum": ("Integers only. " + REDUCED, "tl.xor_sum(tl.arange(0, 8) * 3, 0)  # 8"),
    "reduce_or": ("Integers only. " + REDUCED, "tl.reduce_or(tl.arange(0, 4) * 4, 0)  # 12"),
    # -- scans and moves
    "cumsum": ("The shape stays.", "tl.cumsum(tl.arange(0, 4) + 1, 0)  # [1, 3, 6, 10]\n"
        "tl.cumsum(tl.arange(0, 4) + 1, 0, reverse=True)  # [10, 9, 7, 4]"),
    "cumprod": ("The shape stays.", "tl.cumprod(tl.arange(0, 4) + 1, 0)  # [1, 2, 6, 24]"),
    "xor_shuffle": ("Shape and dtype stay; `mask` is known at compile time and below the size of the axis.",
        "tl.xor_shuffle(tl.arange(0, 4), 0, 1)  # [1, 0, 3, 2]"),
    # -- loops and compile time
    "range": (
        "Bounds are integer scalars of int32 or int64, the step may be negative. With `num_stages=k` a GPU issues loads k - 1 "
        "turns ahead. No keyword changes a result.",
        "total = 0\nfor i in tl.range(0, 10, 3):\n    total += i\ntotal  # 18",
    ),
    "static_range": (
        "More than 10000 turns are an error.",
        "total = 0\nfor i in tl.static_range(4):\n    total += i\ntotal  # 6",
    ),
    "static_assert": ("A condition known only at run time is an error.",
        "x = tl.arange(0, 4)\ntl.static_assert(x.numel == 4)\nx.numel  # 4"),
    "static_print": ("", "x = tl.arange(0, 4)\ntl.static_print(\"a tile:\", x)\ntl.sum(x)  # 6"),
    # -- the library
    "cdiv": ("Integers, or constants. " + ANY, "tl.cdiv(7, 2)  # 4\ntl.cdiv(tl.arange(0, 4), 2)  # [0, 1, 1, 2]"),
    "sigmoid": ("The shape stays.", "tl.sigmoid(tl.zeros((2,), tl.float32))  # [0.5, 0.5]"),
    "softmax": ("The shape stays; fp32 or fp64.", "tl.softmax(tl.zeros((4,), tl.float32))  # [0.25, 0.25, 0.25, 0.25]"),
    "swizzle2d": ("Integer scalars or tiles.", "i, j = tl.swizzle2d(0, 1, 4, 4, 2)\ni  # 1\nj  # 0"),
    "join": ("", "tl.join(tl.arange(0, 2), tl.arange(2, 4))  # [[0, 2], [1, 3]]"),
    "split": ("", "a, b = tl.split(tl.reshape(tl.arange(0, 4), (2, 2)))\na  # [0, 2]\nb  # [1, 3]"),
    "interleave": ("", "tl.interleave(tl.arange(0, 2), tl.arange(2, 4))  # [0, 2, 1, 3]"),
    "cat": ("", "tl.cat(tl.arange(0, 2), tl.arange(2, 4))  # [0, 1, 2, 3]"),
    "sort": ("Shape and dtype stay.", "tl.sort((tl.arange(0, 8) * 3) % 8)  # [0, 1, 2, 3, 4, 5, 6, 7]"),
    "bitonic_merge": ("", "x = tl.arange(0, 4)\ntl.bitonic_merge(tl.where(x < 2, x, 5 - x))  # [0, 1, 2, 3]"),
    "topk": ("`k` is known at compile time.", "tl.topk((tl.arange(0, 8) * 3) % 8, 2)  # [7, 6]"),
    "histogram": ("`num_bins` is a power of two known at compile time. int32 of shape (num_bins,).",
        "tl.histogram(tl.arange(0, 8) // 3, 4)  # [3, 3, 2, 0]"),
    # -- random numbers
    "philox": ("The counter's words have one dtype of 32 or 64 bits.",
        "a, b, c, d = tl.philox(0, tl.arange(0, 1), 0, 0, 0)\na.to(tl.int64)  # [1713891541]"),
    "philox_impl": ("", "k = tl.full((1,), 0, tl.uint32)\na, b, c, d = tl.philox_impl(k, k, k, k, k, k)\na.to(tl.int64)  # [1713891541]"),
    "randint4x": (PHILOX, "a, b, c, d = tl.randint4x(0, tl.arange(0, 1))\na.to(tl.int64)  # [1713891541]"),
    "randint": (PHILOX, "tl.randint(0, tl.arange(0, 1)).to(tl.int64)  # [1713891541]"),
    "uint_to_uniform_float": ("", "tl.uint_to_uniform_float(tl.full((), 2**30, tl.uint32))  # 0.5"),
    "rand": (PHILOX, "x = tl.rand(0, tl.arange(0, 2))\ntl.min(x) >= 0  # True"),
    "rand4x": (PHILOX, "a, b, c, d = tl.rand4x(0, tl.arange(0, 2))\ntl.max(d) < 1  # True"),
    "randn": (PHILOX, "x = tl.randn(0, tl.arange(0, 2))\ntl.sum(x * x) < 60  # True"),
    "randn4x": (PHILOX, "a, b, c, d = tl.randn4x(0, tl.arange(0, 2))\ntl.sum(a * a) < 60  # True"),
    "pair_uniform_to_normal": ("fp32 tiles of one shape.",
        "a, b = tl.pair_uniform_to_normal(tl.full((), 0.5, tl.float32), tl.full((), 0.25, tl.float32))\nb  # 1.17741"),
    # -- what it is compiled for
    "current_target": ("", "tl.target_info.current_target().backend == \"hip\"  # False"),
    "is_cuda": ("", "tl.target_info.is_cuda() | True  # True"),
    "cuda_capability_geq": ("", "tl.target_info.cuda_capability_geq(100, 0) & False  # False"),
    "is_hip": ("", "tl.target_info.is_hip()  # False"),
    "is_hip_cdna3": ("", "tl.target_info.is_hip_cdna3()  # False"),
    "is_hip_cdna4": ("", "tl.target_info.is_hip_cdna4()  # False"),
    "gdc_wait": ("", "tl.extra.cuda.gdc_wait()\ntl.load(i_ptr + 3)  # 3"),
    "gdc_launch_dependents": ("", "tl.extra.cuda.gdc_launch_dependents()\ntl.load(i_ptr + 3)  # 3"),
    "num_threads": ("", "tl.extra.cuda.num_threads() % 32  # 0"),
    "num_warps": ("", "tl.extra.cuda.num_warps() > 0  # True"),
}  # fmt: skip


def documented(name: str, doc: str | None) -> str | None:
    """A docstring with the details and the example of its name, from here or from the op table. A docstring with an `Example:` of its own
    stays as it is."""
    if not doc or not (name in EXAMPLES or name in OPS) or "Example:" in doc or "On a GPU:" in doc:
        return doc
    details, example = EXAMPLES[name] if name in EXAMPLES else (OPS[name].help.details, OPS[name].help.example)
    lines = "\n".join(f"    {line}" for line in example.splitlines())
    return "\n\n".join(part for part in (inspect.cleandoc(doc), details, f"Example:\n{lines}") if part)
