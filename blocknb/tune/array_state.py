"""What an autotuner does to arrays between two runs of a kernel that updates them: set some to zero, put others back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blocknb.runtime.descriptor import TensorDescriptor


class ArrayState:
    """The arrays that a kernel updates, by the names of its parameters. `reset_to_zero` are set to zero before each run; `restore_value`
    are copied before it and put back after it."""

    def __init__(self, reset_to_zero: Sequence[str] | None, restore_value: Sequence[str] | None):
        self.reset_to_zero, self.restore_value = list(reset_to_zero or ()), list(restore_value or ())
        self.copies: dict[str, Any] = {}

    def prepare(self, arguments: dict[str, Any], reset_only: bool = False) -> None:
        """Sets arrays to zero and, unless `reset_only`, copies those that are to be restored."""
        for name in self.reset_to_zero:
            if arguments[name] is not None:
                _fill_zero(_array(arguments[name]))
        if not reset_only:
            kept = (name for name in self.restore_value if arguments[name] is not None)
            self.copies = {name: _copy(_array(arguments[name])) for name in kept}

    def restore(self, arguments: dict[str, Any], exception: BaseException | None) -> None:
        """Puts the copies back, also after an error."""
        for name, saved in self.copies.items():
            _put_back(_array(arguments[name]), saved)
        self.copies = {}


def _array(value: Any) -> Any:
    return value.base if isinstance(value, TensorDescriptor) else value


def _fill_zero(array: Any) -> None:
    array.zero_() if hasattr(array, "zero_") else array.fill(0)


def _copy(array: Any) -> Any:
    return array.clone() if hasattr(array, "clone") else array.copy()


def _put_back(array: Any, saved: Any) -> None:
    if hasattr(array, "copy_"):
        array.copy_(saved)
    else:
        array[...] = saved
