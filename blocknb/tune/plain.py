"""`kernel.tune`: measures configurations of a kernel that has no `@autotune`, and returns the table.

Nothing is chosen for later launches: the caller passes `**tuning.best.all_kwargs()`. The autotuner behind a table is kept with its kernel,
so that a search continues after an interrupt.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from blocknb.runtime.kernel import Kernel
from blocknb.tune.autotuner import Autotuner
from blocknb.tune.config import Config
from blocknb.tune.pruning import AutotunerError
from blocknb.tune.tuning import Tuning

_tuners: weakref.WeakKeyDictionary[Kernel, dict[Any, Autotuner]] = weakref.WeakKeyDictionary()


def tune_kernel(
    kernel: Kernel,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    configs: Sequence[Config],
    restore_value: Sequence[str],
    **more: Any,
) -> Tuning:
    """Tunes the launch of `args` and `kwargs` (`Kernel.tune`). `more` holds `grid` and `client`.

    The key of the search is the value of each number among the arguments. Raises AutotunerError without configurations."""
    if not configs:
        raise AutotunerError(
            f"{kernel.__name__}.tune needs configurations", hint='write configs=[blocknb.Config({"BLOCK": 64})]'
        )
    given = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
    key = tuple(
        name for name, value in given.items() if name in kernel.arg_names and isinstance(value, int | float | str)
    )
    known = _tuners.setdefault(kernel, {})
    identity = key, tuple(restore_value), tuple(map(str, configs))
    if identity not in known:
        known[identity] = Autotuner(kernel, kernel.arg_names, configs, key, restore_value=restore_value or None)
    return known[identity].tune(*args, **more, **kwargs)
