"""The record that a notebook would make of a launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blocknb.notebook.observe import KernelRecord, Observation


def observed(*launches: Callable[[], Any]) -> KernelRecord:
    """The record of some launches of one kernel."""
    observation = Observation()
    observation.start()
    try:
        for launch in launches:
            launch()
    finally:
        observation.stop()
    (record,) = observation.records.values()
    return record
