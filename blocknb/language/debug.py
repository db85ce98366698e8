"""Declares the builtins for prints and assertions in a running kernel, as `surface` declares the others."""

from __future__ import annotations

from blocknb.language.declarations import builtin


@builtin
def device_print(prefix, *args, hex=False):
    """Prints run-time values of any shape and dtype, one line `pid (0, 0, 0) idx (3) x: 1.5` per element.

    The launch waits for the kernel, and then writes the lines to standard output. They are sorted by program, call and element. A
    launch prints at most 4096 lines. `prefix` is a compile-time string. With `hex`, the bits are printed instead of the number.
    Python's `print("x", x)` in a kernel does the same. Unlike in Triton, floats have the fewest digits that identify them, and a scalar
    is printed once.

    Example:
        x = tl.arange(0, 4)
        tl.device_print("x", x)
        print("twice", x * 2)
        tl.sum(x)  # 6
    """


@builtin
def device_assert(cond, msg="", mask=None):
    """Ends the launch with an error if the condition fails for an element where `mask` is on.

    The error names the line, the program, the element and `msg`, a compile-time string. Python's `assert cond, msg` in a kernel does the
    same. The CPU always tests the condition. A GPU tests it with `debug=True` or `checked=True` at the launch or the decorator, or with
    BLOCKNB_DEBUG=1 or TRITON_DEBUG=1 in the environment. On the CPU the failing program stops at once. On a GPU all programs run to
    their end before the launch raises the error, and the GPU stays usable.

    Example:
        x = tl.arange(0, 4)
        tl.device_assert(x < 4, "an index beyond the block")
        assert tl.sum(x) == 6, "a wrong sum"
        tl.max(x)  # 3
    """
