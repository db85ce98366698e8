"""The cost of a step without a compiler: the operators that eager PyTorch runs, and the bytes that they read and write."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Operators that allocate or rename and run nothing; views are known by their schema.
_NO_WORK = (
    "_unsafe_view",
    "_reshape_alias",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
)


@dataclass(frozen=True)
class EagerOperators:
    """The operators of an eager step. `launches` is their number without views, and `bytes` are those of their inputs and results. `counts`
    has the number of each operator, the most frequent first."""

    launches: int
    bytes: int
    counts: dict[str, int]


def eager_operators(step: Callable[[], Any]) -> EagerOperators:
    """Runs a step once and counts its operators, forward and backward."""
    from torch.utils._python_dispatch import TorchDispatchMode

    counts: collections.Counter[str] = collections.Counter()
    moved = 0

    class Counted(TorchDispatchMode):
        """Counts each operator that reaches the dispatcher."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal moved
            result = func(*args, **(kwargs or {}))
            if _works(func):
                counts[str(func.overloadpacket)] += 1
                moved += _bytes((args, kwargs or {}, result))
            return result

    with Counted():
        step()
    return EagerOperators(counts.total(), moved, dict(counts.most_common()))


def _works(func: Any) -> bool:
    """Whether an operator runs code on the data of its tensors."""
    returns = func._schema.returns
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    return not is_view and func.overloadpacket.__name__ not in _NO_WORK


def _bytes(value: Any) -> int:
    """The bytes of all tensors in a value; an expanded tensor counts as its memory."""
    if hasattr(value, "untyped_storage"):
        return min(value.numel() * value.element_size(), value.untyped_storage().nbytes())
    if isinstance(value, dict):
        return sum(map(_bytes, value.values()))
    return sum(map(_bytes, value)) if isinstance(value, list | tuple) else 0
