"""`triton.knobs`: Triton's switches, as far as they exist here.

Libraries test whether a hook for launches or the interpreter is set, and read that none is. The switches of the autotuner work; as in
Triton, environment variables hold their values.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from blocknb.codegen import toolchain
from blocknb.compat.facade import NoAttribute, NotInBlocknb


class KnobGroup:
    """A group of switches with fixed values: reading returns the value, and setting another value raises NotInBlocknb."""

    def __init__(self, name: str, hint: str, **state: Any):
        vars(self).update(state, _name=name, _hint=hint)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NoAttribute(f"blocknb does not have triton.knobs.{self._name}.{name}", hint=self._hint)

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, name) != value:
            raise NotInBlocknb(
                f"triton.knobs.{self._name}.{name} is {getattr(self, name)!r} in blocknb", hint=self._hint
            )


runtime = KnobGroup(
    "runtime",
    "blocknb.runtime.launch_context.observers are called after each launch; kernel.interpret runs a kernel as Python",
    launch_enter_hook=None,
    launch_exit_hook=None,
    jit_cache_hook=None,
    jit_post_compile_hook=None,
    interpret=False,
    debug=False,
    override_arch=None,
)
compilation = KnobGroup(
    "compilation", "kernel.trace(*args) shows every stage of a compilation", always_compile=False, dump_ir=False
)


class NvidiaTool(NamedTuple):
    """A program of the CUDA toolkit: its path, and its version as in "13.0"."""

    path: str
    version: str


class NvidiaTools(KnobGroup):
    """`triton.knobs.nvidia`: the ptxas and the nvdisasm that blocknb prefers. Raises NotInBlocknb if this machine has none."""

    ptxas = property(lambda self: _tool("ptxas"))
    nvdisasm = property(lambda self: _tool("nvdisasm"))


def _tool(name: str) -> NvidiaTool:
    found = toolchain.candidates(name)
    if not found:
        raise NotInBlocknb(
            f"triton.knobs.nvidia.{name}: this machine has no {name}", hint="blocknb doctor says what installs it"
        )
    return NvidiaTool(found[0].path, ".".join(map(str, found[0].version[:2])))


nvidia = NvidiaTools("nvidia", "BLOCKNB_PTXAS and BLOCKNB_NVDISASM name the tools to use")


class Autotuning:
    """`cache` keeps tuning results on disk, and `print` prints the trials. Both read False if they are not set; then each tuner decides."""

    __slots__ = ()

    @property
    def cache(self) -> bool:
        """Whether tuning results are kept on disk."""
        return _on("TRITON_CACHE_AUTOTUNING")

    @cache.setter
    def cache(self, on: bool) -> None:
        os.environ["TRITON_CACHE_AUTOTUNING"] = str(int(on))

    @property
    def print(self) -> bool:
        """Whether tuning prints its trials."""
        return _on("TRITON_PRINT_AUTOTUNING")

    @print.setter
    def print(self, on: bool) -> None:
        os.environ["TRITON_PRINT_AUTOTUNING"] = str(int(on))


def _on(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


autotuning = Autotuning()
