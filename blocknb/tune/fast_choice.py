"""The configurations that an autotuner has chosen before, found by a launch in a loop without naming its arguments.

`Autotuner.run` binds arguments to names, makes the tuning key, and checks the keywords, which takes longer than the launch itself.
`FastChoices` keeps the result of that for each way of calling, and for the values and dtypes on which the tuning key depends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.tune.config import Config

_MOST = 256  # calls that are kept, for each way of calling


@dataclass(frozen=True, eq=False)
class FastChoice:
    """The choice for a tuning key: the configuration, and the keyword arguments that it adds to the launch."""

    key: tuple[Any, ...]
    config: Config
    constants: dict[str, Any]


class FastChoices:
    """The choices of one autotuner, by the way of calling: the number of positional arguments and the names of the others.

    `names` are the parameters of the kernel and `keys` those that the tuning key names.
    """

    def __init__(self, names: Sequence[str], keys: Sequence[str]):
        self.names, self.keys = names, keys
        self._forms: dict[tuple[Any, ...], tuple[list[int], dict[tuple[Any, ...], FastChoice]]] = {}

    def find(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FastChoice | None:
        """The choice of an earlier call with the same tuning key, None for a new one."""
        form = self._forms.get((len(args), *kwargs))
        if form is None:
            return None
        given = (*args, *kwargs.values())
        try:
            return form[1].get(self._call(form[0], given))
        except TypeError:  # a value that cannot be a key, which the autotuner reports
            return None

    def keep(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], choice: FastChoice) -> None:
        """Keeps a choice for calls of the same form. A call with a tuple is not kept, because dtypes in tuples belong to the key."""
        given = (*args, *kwargs.values())
        if any(isinstance(value, tuple) for value in given) or len(args) > len(self.names):
            return
        names = (*self.names[: len(args)], *kwargs)
        places, calls = self._forms.setdefault(
            (len(args), *kwargs), ([names.index(name) for name in self.keys if name in names], {})
        )
        if len(calls) >= _MOST:
            calls.clear()
        calls[self._call(places, given)] = choice

    @staticmethod
    def _call(places: list[int], given: tuple[Any, ...]) -> tuple[Any, ...]:
        """What the tuning key depends on. The type of a value without a dtype tells a tuple."""
        return (*[given[i] for i in places], *[getattr(value, "dtype", type(value)) for value in given])
