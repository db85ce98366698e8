"""Programmatic dependent launch. Both functions are hints, which have no effect if launches do not overlap."""

from __future__ import annotations

from blocknb.language.declarations import builtin


@builtin
def gdc_wait():
    """Waits until the previous launches have ended and their stores are visible. On a CPU, and below sm_90, it does nothing.

    Example:
        tl.extra.cuda.gdc_wait()
        tl.load(i_ptr + 3)  # 3
    """


@builtin
def gdc_launch_dependents():
    """Allows the next launch to begin. On a CPU, and below sm_90, it does nothing.

    Example:
        tl.extra.cuda.gdc_launch_dependents()
        tl.load(i_ptr + 3)  # 3
    """


__all__ = ["gdc_launch_dependents", "gdc_wait"]
