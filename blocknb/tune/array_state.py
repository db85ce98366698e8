"""Sets arrays to zero and restores arrays between two runs of a kernel that updates them, for the autotuner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blocknb.runtime.descriptor import TensorDescriptor


class ArrayState:
    """The arrays that a kernel updates, by parameter name.

    `prepare` sets those of `reset_to_zero` to zero and copies those of `restore_value`. `restore` writes the copies back.
    """

    def __init__(self, reset_to_zero: Sequence[str] | None, restore_value: Sequence[str] | None):
        self.reset_to_zero, self.restore_value = list(reset_to_zero or ()), list(restore_value or ())
        self.copies: dict[str, Any] = {}

    def prepare(self, arguments: dict[str, Any], reset_only: bool = False) -> None:
        """Sets arrays to zero, and unless `reset_only` copies the arrays of `restore_value`. An argument that is None is skipped."""
        for name in self.reset_to_zero:
            if arguments[name] is not None:
                _fill_zero(_array(arguments[name]))
        if not reset_only:
            present = (name for name in self.restore_value if arguments[name] is not None)
            self.copies = {name: _copy(_array(arguments[name])) for name in present}

    def restore(self, arguments: dict[str, Any], exception: BaseException | None) -> None:
        """Writes the copies back. The autotuner calls it after an error, too."""
        for name, saved in self.copies.items():
            _assign(_array(arguments[name]), saved)
        self.copies = {}


def _array(value: Any) -> Any:
    return value.base if isinstance(value, TensorDescriptor) else value


def _fill_zero(array: Any) -> None:
    array.zero_() if hasattr(array, "zero_") else array.fill(0)


def _copy(array: Any) -> Any:
    return array.clone() if hasattr(array, "clone") else array.copy()


def _assign(array: Any, saved: Any) -> None:
    if hasattr(array, "copy_"):
        array.copy_(saved)
    else:
        array[...] = saved
