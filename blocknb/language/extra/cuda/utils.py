"""What a program can ask of the GPU that it runs on."""

from __future__ import annotations

from blocknb.language.surface import builtin


@builtin
def globaltimer():
    """Nanoseconds of the GPU's clock, int64; each thread reads it for itself. Needs a GPU.

    On a GPU:
        start = tl.extra.cuda.globaltimer()
        start > 0  # True
    """


@builtin
def smid():
    """The number of the multiprocessor that the program runs on, int32. Needs a GPU.

    On a GPU:
        tl.extra.cuda.smid() >= 0  # True
    """


@builtin
def num_threads():
    """Threads of the program, known while compiling: 32 for each warp."""


@builtin
def num_warps():
    """Warps of the program, known while compiling (on a CPU what the launch asked for, which is without effect there)."""


__all__ = ["globaltimer", "num_threads", "num_warps", "smid"]
