"""The configurations that an autotuner has chosen before, found by a launch in a loop without naming its arguments.

`Autotuner.run` binds arguments to names, makes the tuning key, and checks the keywords, which takes longer than the launch itself.
`FastChoices` keeps the result of that for each way of calling, and for the values and dtypes on which the tuning key depends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blocknb.runtime import machine
from blocknb.tune import store
from blocknb.tune.config import Config

_MOST = 256  # calls that are kept, for each way of calling


@dataclass(frozen=True, eq=False)
class FastChoice:
    """The choice for a tuning key: the configuration, and the keyword arguments that it adds to the launch."""

    key: tuple[Any, ...]
    config: Config
    constants: dict[str, Any]


@dataclass(frozen=True)
class CallForm:
    """A form of call: the places of the values in the tuning key, of the arrays, and of one array that tells the device.

    `calls` are the choices by these values, dtypes and device. No array tells the device if their type does.
    """

    keys: list[int]
    arrays: list[int]
    device: list[int]
    calls: dict[tuple[Any, ...], FastChoice] = field(default_factory=dict)


class FastChoices:
    """The choices of one autotuner, by the form of a call: how many arguments are positional, the names of the others, and all types.

    `names` are the parameters of the kernel and `keys` those that the tuning key names.
    """

    def __init__(self, names: Sequence[str], keys: Sequence[str]):
        self.names, self.keys = names, keys
        self._forms: dict[tuple[Any, ...], CallForm] = {}

    def find(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FastChoice | None:
        """The choice of an earlier call with the same tuning key, None for a new one."""
        given = (*args, *kwargs.values())
        form = self._forms.get((len(args), *kwargs, *map(type, given)))
        if form is None:
            return None
        try:
            return form.calls.get(
                (
                    *[given[i] for i in form.keys],
                    *[given[i].dtype for i in form.arrays],
                    *[given[i].device for i in form.device],
                )
            )
        except TypeError:  # a value that cannot be a key, which the autotuner reports
            return None

    def keep(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], choice: FastChoice) -> None:
        """Keeps a choice for calls of the same form. A call with a tuple is not kept, because dtypes in tuples belong to the key."""
        given, names = (*args, *kwargs.values()), (*self.names[: len(args)], *kwargs)
        if len(given) != len(names) or any(isinstance(value, tuple) for value in given):
            return
        form = self._forms.setdefault(
            (len(args), *kwargs, *map(type, given)),
            CallForm(
                [names.index(name) for name in self.keys if name in names],
                [i for i, value in enumerate(given) if hasattr(value, "dtype")],
                [i for i, value in enumerate(given) if _tells_device(value)][:1],
            ),
        )
        if len(form.calls) >= _MOST:
            form.calls.clear()
        place = (*[given[i].dtype for i in form.arrays], *[given[i].device for i in form.device])
        form.calls[*[given[i] for i in form.keys], *place] = choice


def _tells_device(value: Any) -> bool:
    """Whether arrays of this type lie on devices of several kinds: a torch tensor, or any on a machine with several models."""
    return hasattr(value, "is_cuda") or (
        hasattr(value, "dtype") and hasattr(value, "device") and machine.has_gpu() and store.several_models()
    )
