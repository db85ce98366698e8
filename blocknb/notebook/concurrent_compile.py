"""Compiles in the background, so that a card appears sooner.

A card shows code for two targets. While one thread compiles the code that runs, another one compiles the kernel for the GPU whose code is
only displayed (`Views`). The card then finds that code in the cache. The launch waits for both, so that no compiler disturbs its time.
While the user writes the first kernel, `prepare` loads the modules that its card needs.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blocknb import forks

DEFAULT_VIEW = "sm_90a"  # the GPU whose code is shown after a run on the CPU
#: The modules that the first card needs.
_MODULES = (
    "blocknb.codegen.cpu.module",
    "blocknb.codegen.gpu.generator",
    "blocknb.codegen.loader",
    "blocknb.compat.rewrite",
    "blocknb.notebook.live",
    "blocknb.runtime.compile",
    "blocknb.runtime.extents",
    "blocknb.runtime.job",
    "blocknb.runtime.plan",
    "blocknb.runtime.summary",
    "numpy.ma",  # by np.unique
)
#: The modules for what follows the first paint of a card: the deferred parts, knobs and measurements.
_LATER_MODULES: tuple[str, ...] = (
    "blocknb.notebook.change_sentences",
    "blocknb.notebook.compared",
    "blocknb.notebook.edits",
    "blocknb.profile.roof",
    "blocknb.tune",
)
PAUSE = 0.3  # seconds before those: a cell that runs at once needs the interpreter more
STOP = 2.0  # seconds to wait for an interrupted compilation on a thread, which stops after its present pass


def compiled(source: Any, kinds: Mapping[str, Any], options: Mapping[str, Any], target: str) -> Callable[[], None]:
    """Starts to compile a kernel in another thread; returns a function that waits until it is done.

    Errors are dropped here: the card compiles the kernel again, and gets the error. An interrupt of the main thread stops the compiler.
    """
    from blocknb.errors import KernelError
    from blocknb.runtime import compile as compiler
    from blocknb.target import Target

    stopped: list[KeyboardInterrupt] = []

    def work() -> None:
        try:
            with contextlib.suppress(KernelError):
                compiler.compile(source, kinds, options, Target.parse(target))
        except KeyboardInterrupt as stop:
            stopped.append(stop)

    thread = threading.Thread(target=work, name="blocknb-view", daemon=True)
    thread.start()

    def wait() -> None:
        if isinstance(sys.exc_info()[1], KeyboardInterrupt):  # the code that runs was being compiled
            thread.join(STOP)
            return
        try:
            thread.join()
        except KeyboardInterrupt:
            thread.join(STOP)  # it sees the interrupt while this thread handles it
            if stopped:
                raise stopped[0] from None  # it has the passes that ran
            raise

    return wait


class Views:
    """The companion of a cell (`runtime.launch_context.companions`): compiles each kernel once for the displayed target.

    It starts with the first compilation of a kernel. If a cell compiles several specializations, the card may need another one.
    """

    def __init__(self, target: str | None):
        self.target, self.begun = target and target.partition(",")[0], set[str]()  # the first of several

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
    _load(_MODULES)
    for target in (gpu, Target.parse("cpu")):
        passes.pipeline(target)
    from blocknb.notebook import extension
    from blocknb.runtime import cache

    cache.shared()
    cache.environment_parts()
    extension.installed()
    time.sleep(PAUSE)
    _load(_LATER_MODULES)


def _load(names: Sequence[str]) -> None:
    for name in names:
        with forks.guard:
            importlib.import_module(name)
