"""Launches that overlap (programmatic dependent launch): both are hints, and do nothing where launches do not overlap."""

from __future__ import annotations

from blocknb.language.surface import builtin


@builtin
def gdc_wait():
    """Waits until the launches before this one have ended and their stores are seen. On a CPU, and below sm_90, they have."""


@builtin
def gdc_launch_dependents():
    """Lets the next launch begin. On a CPU, and below sm_90, it does nothing."""


__all__ = ["gdc_launch_dependents", "gdc_wait"]
