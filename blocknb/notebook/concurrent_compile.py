"""What is done at the same time as something else, so that a card is there sooner.

A card shows code for two targets, and a machine has two processors: while the code that is to run is compiled, another thread compiles
the kernel for the GPU that is only looked at (`Views`), and the card then finds it done. The launch waits for both, so that no compiler
disturbs its time. And while a user still writes the first kernel, `prepare` loads what its card will need.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from blocknb import forks

DEFAULT_VIEW = "sm_90a"  # the GPU whose code is shown after a run on the CPU
#: What the first card needs.
_MODULES = (
    "blocknb.codegen.cpu.module",
    "blocknb.codegen.gpu.generator",
    "blocknb.codegen.loader",
    "blocknb.compat.rewrite",
    "blocknb.notebook.compared",
    "blocknb.notebook.live",
    "blocknb.runtime.compile",
    "blocknb.runtime.extents",
    "blocknb.runtime.job",
    "blocknb.runtime.plan",
    "blocknb.runtime.summary",
    "numpy.ma",  # by np.unique
)


def compiled(source: Any, kinds: Mapping[str, Any], options: Mapping[str, Any], target: str) -> Callable[[], None]:
    """Begins to compile a kernel in another thread; the function that is returned waits until that is done. What goes wrong is not
    said here: whoever asks for the code has it compiled again, and gets the error."""
    from blocknb.errors import KernelError
    from blocknb.runtime import compile as compiler
    from blocknb.target import Target

    def work() -> None:
        with contextlib.suppress(KernelError):
            compiler.compile(source, kinds, options, Target.parse(target))

    thread = threading.Thread(target=work, name="blocknb-view", daemon=True)
    thread.start()
    return thread.join


class Views:
    """The companion of a cell (`runtime.launch_context.companions`): compiles each kernel for the target that its card looks at, the first
    time that it is compiled. A card shows one specialisation, and of a cell with many this one may be the wrong one."""

    def __init__(self, target: str | None):
        self.target, self.begun = target, set[str]()

    def __call__(
        self, source: Any, kinds: Mapping[str, Any], options: Mapping[str, Any], target: Any
    ) -> Callable[[], None] | None:
        view = self.target or (None if target.is_gpu else DEFAULT_VIEW)
        if view in (None, str(target)) or (view == "cpu" and not target.is_gpu) or source.name in self.begun:
            return None
        assert view is not None
        self.begun.add(source.name)
        return compiled(source, kinds, options, view)


def prepare() -> None:
    """Starts two workers and loads the compiler and the card, in the background."""
    threading.Thread(target=_prepare, name="blocknb-prepare", daemon=True).start()


def _prepare() -> None:
    from blocknb import passes
    from blocknb.codegen import llvm
    from blocknb.target import Target

    gpu = Target.parse(DEFAULT_VIEW)
    llvm.shared().warm()
    llvm.shared().warm(gpu)
    for name in _MODULES:
        with forks.guard:
            importlib.import_module(name)
    for target in (gpu, Target.parse("cpu")):
        passes.pipeline(target)
    from blocknb.notebook import extension
    from blocknb.runtime import cache

    cache.shared()
    cache.environment_parts()
    extension.installed()
