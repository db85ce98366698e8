"""`kernel.tune`: measures configurations of a kernel that has no `@autotune`, and returns the table.

Nothing is chosen for later launches: the caller passes `**tuning.launch_kwargs()`. After an interrupt, the kernel keeps the autotuner of
the search, and the next call with the same arguments continues.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from blocknb.runtime.kernel import Kernel
from blocknb.tune.autotuner import Autotuner
from blocknb.tune.config import Config
from blocknb.tune.pruning import AutotunerError
from blocknb.tune.tuning import Tuning

_VALUES = (numbers.Number, np.generic, str)


class PlainTuner(Autotuner):
    """An autotuner whose tuning key also holds the shape of each array. Its `keys` name the numbers and texts of a launch."""

    def tuning_key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The key of Autotuner, and one text at its end that holds the shapes."""
        given = _by_name(self.arg_names, args, kwargs)
        shapes = ", ".join(f"{name} {_shape(x)}" for name, x in given.items() if name not in self.keys)
        found = super().tuning_key(args, kwargs)
        return *(x.item() if isinstance(x, np.generic) else x for x in found), shapes

    def _named_key(self, key: tuple[Any, ...]) -> dict[str, Any]:
        return super()._named_key(key[:-1]) | ({"shapes": key[-1]} if key[-1] else {})


def tune_kernel(
    kernel: Kernel,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    configs: Sequence[Config],
    restore_value: Sequence[str],
    **more: Any,
) -> Tuning:
    """Tunes the launch of `args` and `kwargs` (`Kernel.tune`). `more` holds `grid` and `client`.

    The key of the search is the value of each number and text, and the dtype and shape of each array. Raises AutotunerError without
    configurations."""
    if not configs:
        raise AutotunerError(
            f"{kernel.__name__}.tune needs configurations", hint='write configs=[blocknb.Config({"BLOCK": 64})]'
        )
    given = _by_name(kernel.arg_names, args, kwargs)
    key = tuple(name for name, value in given.items() if isinstance(value, _VALUES))
    # They are an attribute, because a table of this module would keep the kernel alive: a tuner refers to its kernel.
    interrupted: dict[Any, PlainTuner] = vars(kernel).setdefault("_interrupted_tuners", {})
    identity = key, tuple(restore_value), tuple(configs)
    tuner = interrupted.pop(identity, None)
    if tuner is None:
        tuner = PlainTuner(kernel, kernel.arg_names, configs, key, restore_value=restore_value or None)
    try:
        found: Tuning = tuner.tune(*args, **more, **kwargs)
    except KeyboardInterrupt:
        interrupted[identity] = tuner
        raise
    return found


def _by_name(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a launch by parameter, in the order of the parameters."""
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return {name: given[name] for name in names if name in given}


def _shape(value: Any) -> str:
    """The text for an argument: the shape of an array, the elements of a tuple, the value of a number or text, else the type."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_shape, value))})"
    if isinstance(value, _VALUES):
        return repr(value)
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else str(tuple(map(int, shape)))
