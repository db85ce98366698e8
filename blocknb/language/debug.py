"""What a running kernel says to its user: prints and assertions (declared here as the other names are in `surface`)."""

from __future__ import annotations

from blocknb.language.surface import builtin


@builtin
def device_print(prefix, *args, hex=False):
    """Prints run-time values of any shape and dtype, one line `pid (0, 0, 0) idx (3) x: 1.5` per element.

    The lines appear where the cell (or the program) prints, once the launch is done, which therefore waits for it: in the order of
    programs, within one in the order of the calls, then of elements; of one launch at most 4096. `prefix` is a string known at
    compile time. `hex`: the bits instead of the number. Python's `print("x", x)` in a kernel is the same. Unlike Triton's, floats
    show as few digits as tell them apart, and a scalar is printed once.

    Example:
        x = tl.arange(0, 4)
        tl.device_print("x", x)
        print("twice", x * 2)
        tl.sum(x)  # 6
    """


@builtin
def device_assert(cond, msg="", mask=None):
    """Ends the launch with an error if the condition fails for an element where `mask` is on.

    The error names the line, the program, the element and `msg`, a string known at compile time. Python's `assert cond, msg` in a kernel
    is the same. Tested on the CPU always; on a GPU with `debug=True` or `checked=True` at the launch or the decorator, or with
    BLOCKNB_DEBUG=1 or TRITON_DEBUG=1 in the environment. On the CPU the failing program stops there; on a GPU all programs run on to
    their end before the error is raised, and the GPU stays usable.

    Example:
        x = tl.arange(0, 4)
        tl.device_assert(x < 4, "an index beyond the block")
        assert tl.sum(x) == 6, "a wrong sum"
        tl.max(x)  # 3
    """
