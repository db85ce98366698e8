"""`heuristics`: constants of a kernel computed from its arguments at each launch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from blocknb.runtime.binding import arguments
from blocknb.runtime.interface import KernelInterface
from blocknb.runtime.kernel import Kernel
from blocknb.tune.wrapper import Wrapper


class Heuristics(Wrapper):
    """A kernel (or an autotuner, or other heuristics) with constants that are computed: `values` maps names to functions of the
    arguments."""

    def __init__(self, fn: Any, arg_names: list[str], values: Mapping[str, Callable[[dict[str, Any]], Any]]):
        super().__init__(fn, arg_names)
        self.values = values
        with contextlib.suppress(TypeError):  # somebody's own wrapper without a kernel in it
            # For whoever launches the kernel with other constants than these heuristics were last called with.
            vars(self.kernel)["heuristics"] = (values, *vars(self.kernel).get("heuristics", ()))

    def run(self, *args: Any, **kwargs: Any) -> Any:
        named = {**self.defaults, **dict(zip(self.arg_names, args, strict=False))}
        for name, compute in self.values.items():
            kwargs[name] = compute(arguments(f"the heuristic of `{name}`", self.__name__)({**named, **kwargs}))
        return self.fn.run(*args, **kwargs)


def heuristics(
    values: Mapping[str, Callable[[dict[str, Any]], Any]],
) -> Callable[[Kernel | KernelInterface], Heuristics]:
    """Decorates a kernel: before each launch every function is called with a dict of all arguments by name (also those that are
    None, and what heuristics before it computed), and its result is passed as the parameter or launch option of that name.

        @heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0, "BLOCK": lambda args: next_power_of_2(args["n"])})
    """
    return lambda fn: Heuristics(fn, fn.arg_names, values)  # type: ignore[union-attr]
