"""What the values, the emitter and the functions of an interpreted kernel use of the interpreter that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from blocknb.frontend.scope import Frame
from blocknb.frontend.source import Source
from blocknb.ir.address import AddressSpace
from blocknb.ir.interp_tile import Program


class RunningKernel(Protocol):
    """The interpreter of one kernel, as its values see it. `lanes` says whether a value stands for many scalars at once."""

    space: AddressSpace
    grid: Program
    lanes: bool
    prints: bool
    machine: Any
    emit: Any
    frame: Any

    def callable(self, function: Any) -> Callable[..., Any]:
        """A function of the kernel as one that Python can call."""
        ...

    def run_helper(self, frame: Frame, source: Source, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls a helper of the kernel."""
        ...

    def tell(self) -> None:
        """Prints what the kernel has printed."""
        ...
