"""`heuristics`: computes constants of a kernel from its arguments before each launch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from blocknb.runtime.binding import arguments
from blocknb.runtime.interface import KernelInterface
from blocknb.runtime.kernel import Kernel
from blocknb.tune.wrapper import Wrapper


class Heuristics(Wrapper):
    """A kernel, autotuner or other heuristics with computed constants. `values` maps names to functions of the arguments."""

    def __init__(self, fn: Any, arg_names: list[str], values: Mapping[str, Callable[[dict[str, Any]], Any]]):
        super().__init__(fn, arg_names)
        self.values = values
        with contextlib.suppress(TypeError):  # a user-defined wrapper may contain no kernel
            # The card's knobs and the tuning cache read the functions here.
            vars(self.kernel)["heuristics"] = (values, *vars(self.kernel).get("heuristics", ()))

    def run(self, *args: Any, **kwargs: Any) -> Any:
        named = {**self.defaults, **dict(zip(self.arg_names, args, strict=False))}
        for name, compute in self.values.items():
            kwargs[name] = compute(arguments(f"the heuristic of `{name}`", self.__name__)({**named, **kwargs}))
        return self.fn.run(*args, **kwargs)


def heuristics(
    values: Mapping[str, Callable[[dict[str, Any]], Any]],
) -> Callable[[Kernel | KernelInterface], Heuristics]:
    """Decorates a kernel: computes the parameter or launch option of each name by a function, before each launch.

        @heuristics({"BLOCK": lambda args: next_power_of_2(args["n"]), "EVEN": lambda args: args["n"] % args["BLOCK"] == 0})

    A function gets a dict of all arguments by name, including None values and the results of the functions before it.
    """
    return lambda fn: Heuristics(fn, fn.arg_names, values)  # type: ignore[union-attr]
