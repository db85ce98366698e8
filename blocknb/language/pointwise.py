"""The builtins that apply something of the author's own to each element: PTX, or a kernel function of scalars."""

from __future__ import annotations

from blocknb.language.surface import builtin


@builtin
def inline_asm_elementwise(asm, constraints, args, dtype, is_pure, pack):
    """Applies PTX to the elements of tiles; needs a GPU. Returns a tile, or a tuple of tiles where `dtype` is a tuple of dtypes.

    `args` (tiles, scalars, numbers) are broadcast to one shape, that of the results; without any the results are scalars. A call of
    the text works on `pack` elements of each. Elements of 32 and 64 bits take a register each, narrower ones share one of 32 bits:
    of a uint8 tile with pack=4 the text gets one register, with the first element in the lowest byte. `constraints` names the
    registers of the results and then those of the arguments ("=r,r,r": one result and two arguments in 32 bits; h is 16 bits, l 64,
    f fp32, d fp64), and `$0`, `$1`... in the text are these in order (`$$` is a dollar sign). Several instructions go into braces,
    with their own `.reg`.

    With `is_pure` a text may be dropped where nobody needs its results. Without, it runs in its place among stores, other texts and
    barriers, once in each thread that holds the element: where a layout gives an element (or a scalar) to several threads, once in
    each of them. Which elements share a call is not said. Raises an error with ptxas's message where the text is wrong.

    On a GPU:
        x = tl.inline_asm_elementwise("shl.b32 $0, $1, 3;", "=r,r", [tl.arange(0, 16)], dtype=tl.int32, is_pure=True, pack=1)
        tl.sum(x)  # 960
    """


@builtin
def map_elementwise(scalar_fn, *args, pack=1):
    """Applies a kernel function of scalars to each element of tiles, broadcast to one shape. Returns a tile, or a tuple of
    tiles where the function returns several scalars.

    The function may branch and loop on its arguments. What it computes under a condition is computed for a block where the
    condition holds for one of its elements at least, and kept for those elements; a loop runs until all have left it. It may
    load, under the conditions that lead there, and has no other effects. With `pack` above 1 it gets that many neighbours along
    the last axis of each argument (x0, x1, y0, y1 for two and two) and returns as many of each result.

    Example:
        x = tl.arange(0, 4)
        y = tl.map_elementwise(tl.cdiv, x + 5, 4)
        y  # [2, 2, 2, 2]
    """
