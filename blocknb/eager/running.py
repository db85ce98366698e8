"""The interface of the interpreter for the values, the emitter and the functions of an interpreted kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from blocknb.frontend.scope import Frame
from blocknb.frontend.source import Source
from blocknb.ir.address import AddressSpace
from blocknb.ir.interp_tile import Program


class RunningKernel(Protocol):
    """The interface of a kernel's interpreter. `lanes` tells whether a value represents many scalars at once."""

    space: AddressSpace
    grid: Program
    lanes: bool
    prints: bool
    machine: Any
    emit: Any
    frame: Any

    def callable(self, function: Any) -> Callable[..., Any]:
        """A Python callable for a function of the kernel."""
        ...

    def run_helper(self, frame: Frame, source: Source, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls a helper of the kernel."""
        ...

    def flush_output(self) -> None:
        """Writes the pending output of the kernel."""
        ...
