"""Declares the builtins that apply PTX or a kernel function of scalars to each element."""

from __future__ import annotations

from blocknb.language.declarations import builtin


@builtin
def inline_asm_elementwise(asm, constraints, args, dtype, is_pure, pack):
    """Applies PTX to the elements of tiles; needs a GPU. Returns a tile, or a tuple of tiles where `dtype` is a tuple of dtypes.

    `args` (tiles, scalars, numbers) are broadcast to one shape, which is the shape of the results. Without `args` the results are
    scalars. One execution of the text works on `pack` elements of each operand. Elements of 32 and 64 bits take a register each.
    Narrower elements share a 32-bit register: with pack=4, a uint8 tile takes one register, with the first element in the lowest byte.
    `constraints` lists the registers of the results and then those of the arguments. "=r,r,r" is one result and two arguments of 32
    bits; h is 16 bits, l is 64 bits, f is fp32 and d is fp64. `$0`, `$1`... in the text are these registers in order, and `$$` is a
    dollar sign. Put several instructions into braces, with their own `.reg`.

    With `is_pure` the compiler may remove a text without used results. Otherwise the text runs in order with stores, barriers and other
    texts. It runs in each thread that holds the element; layouts may give an element or a scalar to several threads. The grouping of
    elements is not defined. Raises an error with ptxas's message if the text is invalid.

    On a GPU:
        x = tl.inline_asm_elementwise("shl.b32 $0, $1, 3;", "=r,r", [tl.arange(0, 16)], dtype=tl.int32, is_pure=True, pack=1)
        tl.sum(x)  # 960
    """


@builtin
def map_elementwise(scalar_fn, *args, pack=1):
    """Applies a kernel function of scalars to each element of tiles, broadcast to one shape. Returns a tile, or a tuple of
    tiles where the function returns several scalars.

    The function may branch and loop on its arguments. A branch runs for the whole tile if any element takes it, and only those elements
    keep its results. A loop runs until its last element leaves. Loads are masked by the conditions around them. The function must have no
    other side effects. With `pack` above 1, it takes that many neighbours along the last axis of each argument, and returns as many values
    per result. For two arguments and pack=2, its parameters are x0, x1, y0, y1.

    Example:
        x = tl.arange(0, 4)
        y = tl.map_elementwise(tl.cdiv, x + 5, 4)
        y  # [2, 2, 2, 2]
    """
