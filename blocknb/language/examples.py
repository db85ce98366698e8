"""Additional documentation of the builtins in `surface`: shapes, dtypes, errors, and an example.

The example is a kernel's body. A line with a comment is a claim, and the tests run it everywhere a kernel runs. It may use the arrays
`a_ptr` (fp32: 0.0 to 15.0), `i_ptr` (int32: 0 to 15) and `out_ptr` (16 fp32 zeros). A declaration with an `Example:` of its own keeps
that one, as those of libdevice do. The example of an op is in the op table.
"""

from __future__ import annotations

import inspect
import textwrap

from blocknb.language.ops import OPS
from blocknb.language.rows.elementwise import FLOAT

ANY = "Operands broadcast to one shape, in the dtype that the two promote to."
REDUCED = "The result has no such axis, or one of size one with `keep_dims=True`. Without `axis`, all elements are combined into a scalar."
PLACES = (
    "`pointer` and `val` broadcast to the shape of the result, and `val` is cast to the element type of the pointer. Integers of 8 and "
    "16 bits are an error."
)

#: name -> (shapes, dtypes and errors; the example).
EXAMPLES: dict[str, tuple[str, str]] = {
    # -- programs and sources
    "full": (
        "The sizes of `shape` are powers of two known at compile time. An empty shape gives a scalar.",
        "tl.full((2, 2), 3, tl.int32)  # [[3, 3], [3, 3]]",
    ),
    "zeros": ("", "tl.zeros((4,), tl.float32) + 1  # [1.0, 1.0, 1.0, 1.0]"),
    "zeros_like": ("", "tl.zeros_like(tl.arange(0, 4))  # [0, 0, 0, 0]"),
    "to_tensor": (
        "An integer gets the first of int32, uint32, int64 and uint64 that holds it, a float gets fp32, and a bool gets int1.",
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
    "view": ("The sizes follow the rules of `reshape`.", "tl.view(tl.arange(0, 4), 2, 2)  # [[0, 1], [2, 3]]"),
    "broadcast_to": (
        "A size of the input that differs from that of `shape` must be one; otherwise the call is an error.",
        "tl.broadcast_to(tl.arange(0, 2), (2, 2))  # [[0, 1], [0, 1]]",
    ),
    "broadcast": ("Where the sizes of an axis differ, one of them must be one; otherwise the call is an error.",
        "x, y = tl.broadcast(tl.arange(0, 2)[:, None], tl.arange(0, 2)[None, :])\nx  # [[0, 0], [1, 1]]"),
    "ravel": ("", "tl.ravel(tl.full((2, 2), 5, tl.int32))  # [5, 5, 5, 5]"),
    "permute": ("`dims` names every axis of the input once, as for `trans`.",
        "x = tl.reshape(tl.arange(0, 4), (1, 2, 2))\ntl.permute(x, (2, 1, 0))  # [[[0], [2]], [[1], [3]]]"),
    # -- types and selection
    "to": ("The dtypes and the rounding are those of `cast`.", "(tl.arange(0, 4) / 2).to(tl.int32)  # [0, 0, 1, 1]"),
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
    "logical_and": ("Numbers are compared with zero. The result is int1. " + ANY,
        "x = tl.arange(0, 4)\n(x > 0).logical_and(x < 3)  # [False, True, True, False]"),
    "logical_or": ("Numbers are compared with zero. The result is int1. " + ANY,
        "x = tl.arange(0, 4)\n(x < 1).logical_or(x > 2)  # [True, False, False, True]"),
    # -- reductions
    "sum": (REDUCED, "x = tl.reshape(tl.arange(0, 4), (2, 2))\ntl.sum(x)  # 6\ntl.sum(x, axis=0)  # [2, 4]"),
    "max": (
        REDUCED + " Integers narrower than 32 bits give int32, and fp16 and bf16 give fp32.",
        "x = tl.arange(0, 8)\ntl.max(x * (7 - x))  # 12\ntl.max(x, axis=0, return_indices=True)  # (7, 7)",
    ),
    "min": (REDUCED + " The dtypes are those of `max`.", "x = tl.arange(0, 8)\ntl.min(x * 3 + 1)  # 1"),
    "argmax": ("The result is int32. " + REDUCED, "x = tl.arange(0, 8)\ntl.argmax(x * (6 - x), 0)  # 3"),
    "argmin": ("The result is int32. " + REDUCED, "x = tl.arange(0, 8)\ntl.argmin((x - 5) * (x - 5), 0)  # 5"),
    "xor_sum": ("Integers only. " + REDUCED, "tl.xor_sum(tl.arange(0, 8) * 3, 0)  # 8"),
    "reduce_or": ("Integers only. " + REDUCED, "tl.reduce_or(tl.arange(0, 4) * 4, 0)  # 12"),
    # -- scans and moves
    "cumsum": ("The result has the shape of `input`.", "tl.cumsum(tl.arange(0, 4) + 1, 0)  # [1, 3, 6, 10]\n"
        "tl.cumsum(tl.arange(0, 4) + 1, 0, reverse=True)  # [10, 9, 7, 4]"),
    "cumprod": ("The result has the shape of `input`.", "tl.cumprod(tl.arange(0, 4) + 1, 0)  # [1, 2, 6, 24]"),
    "xor_shuffle": ("The result has the shape and the dtype of `x`. `mask` is known at compile time and below the size of the axis.",
        "tl.xor_shuffle(tl.arange(0, 4), 0, 1)  # [1, 0, 3, 2]"),
    # -- loops and compile time
    "range": (
        "The bounds are integers, computed in int32 or int64. The step may be negative. With `num_stages=k`, a GPU issues loads `k-1` "
        "iterations early. No keyword changes a result.",
        "total = 0\nfor i in tl.range(0, 10, 3):\n    total += i\ntotal  # 18",
    ),
    "static_range": (
        "More than 10000 iterations are an error.",
        "total = 0\nfor i in tl.static_range(4):\n    total += i\ntotal  # 6",
    ),
    "static_assert": ("A condition known only at run time is an error.",
        "x = tl.arange(0, 4)\ntl.static_assert(x.numel == 4)\nx.numel  # 4"),
    "static_print": ("", "x = tl.arange(0, 4)\ntl.static_print(\"a tile:\", x)\ntl.sum(x)  # 6"),
}  # fmt: skip


def documented(name: str, doc: str | None) -> str | None:
    """Adds the details and the example of a name to its docstring, from here or from the op table.

    A docstring with an `Example:` of its own stays as it is.
    """
    if not doc or not (name in EXAMPLES or name in OPS) or "Example:" in doc or "On a GPU:" in doc:
        return doc
    details, example = EXAMPLES[name] if name in EXAMPLES else (OPS[name].help.details, OPS[name].help.example)
    lines = "\n".join(f"    {line}" for line in example.splitlines())
    return "\n\n".join(
        part for part in (inspect.cleandoc(doc), textwrap.fill(details, 120), f"Example:\n{lines}") if part
    )
