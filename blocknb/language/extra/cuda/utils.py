"""Queries of the GPU that runs the program."""

from __future__ import annotations

from blocknb.language.declarations import builtin


@builtin
def globaltimer():
    """Returns the nanoseconds of the GPU's clock as int64, read by each thread. Needs a GPU.

    On a GPU:
        start = tl.extra.cuda.globaltimer()
        start > 0  # True
    """


@builtin
def smid():
    """Returns the number of the SM that runs the program, as int32. Needs a GPU.

    On a GPU:
        tl.extra.cuda.smid() >= 0  # True
    """


@builtin
def num_threads():
    """Returns the number of threads of the program, a compile-time constant: 32 per warp.

    Example:
        tl.extra.cuda.num_threads() % 32  # 0
    """


@builtin
def num_warps():
    """Returns the number of warps of the program, a compile-time constant. On a CPU it is the number that the launch names.

    Example:
        tl.extra.cuda.num_warps() > 0  # True
    """


__all__ = ["globaltimer", "num_threads", "num_warps", "smid"]
