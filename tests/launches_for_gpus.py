"""Captures launches of wrappers for GPUs without compiling them for this CPU, which takes as long as the GPU's code that tests look at."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from blocknb.runtime import compile as compiler
from blocknb.runtime import launch_context
from blocknb.runtime.compile import Compiled
from blocknb.runtime.kernel import Kernel, Launch
from blocknb.runtime.kinds import HOST
from blocknb.runtime.plan import LaunchPlan, target_of
from blocknb.target import Target


class CompiledWhenUsed:
    """Stands for a Compiled: `retarget` compiles for the target only, and any other attribute compiles for this CPU first."""

    retarget = Compiled.retarget

    def __init__(self, kernel: Kernel, kinds: Any, options: dict[str, Any], target: Target):
        self.kernel, self.source, self.kinds, self.options, self.target = kernel, kernel.source, kinds, options, target

    def __getattr__(self, name: str) -> Any:
        made = compiler.compile(self.source, self.kinds, self.options, self.target)
        made.kernel = self.kernel
        return getattr(made, name)


@contextlib.contextmanager
def captured(take: Callable[[Launch], None]) -> Iterator[None]:
    """As `launch_context.captured`, which compiles each launch. A launch that needs the code, as for its checks, still compiles it."""

    def plan(self: Kernel, binding: Any, kinds: Any, values: Any) -> Any:
        target = target_of(HOST)
        by_parameter, options = self._compile_arguments(binding, kinds, target, None)
        compiled: Any = CompiledWhenUsed(self, by_parameter, options, target)
        return LaunchPlan(compiled, kinds, HOST, lambda *_: None)

    with pytest.MonkeyPatch.context() as patch, launch_context.captured(take):
        patch.setattr(Kernel, "_plan", plan)
        yield
